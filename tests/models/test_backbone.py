"""Loading a model, its prompts, and error messages with advice."""

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, MambaConfig, PreTrainedTokenizerFast

from rlhf_lab.common.bundled_assets import weights_digest
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import _check_head_logits, load_backbone


def edit(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_backbone_attributes(llama_folder, gpt2_folder):
    llama, gpt2 = tiny_models.load(llama_folder), tiny_models.load(gpt2_folder)
    assert (llama.hidden_size, llama.context_length, llama.pad_id, llama.eos_ids) == (
        32,
        48,
        tiny_models.PAD,
        (tiny_models.EOS,),
    )
    assert (gpt2.hidden_size, gpt2.context_length, gpt2.pad_id, gpt2.eos_ids) == (
        32,
        48,
        tiny_models.EOS,
        (tiny_models.EOS,),
    )
    assert (llama.name, llama.digest) == (str(llama_folder), weights_digest(llama_folder))
    assert llama.digest != gpt2.digest
    assert not [p for p in llama.model.parameters() if p.requires_grad]
    assert tiny_models.load(llama_folder, torch.float64).model.dtype == torch.float64
    assert load_backbone(str(llama_folder), device="cpu").model.dtype == torch.float32


def test_logits_equal_the_models_own(llama_folder, gpt2_folder):
    for path in (llama_folder, gpt2_folder):
        backbone, ids = (
            tiny_models.load(path, torch.float64),
            torch.tensor([tiny_models.ids("the cat sat so . the moon")]),
        )
        with torch.no_grad():
            ours = backbone.logits(backbone.hidden(ids))
            torch.testing.assert_close(ours, backbone.model(ids).logits, rtol=1e-12, atol=1e-12)


# --- prompts and texts ---


def test_a_plain_prompt_is_its_own_ids(llama_folder):
    backbone = tiny_models.load(llama_folder)
    assert backbone.encode_prompt("the cat") == tiny_models.ids("the cat")
    assert backbone.encode_prompt("") == [tiny_models.BOS]
    assert backbone.encode_response("cat ran") == [*tiny_models.ids("cat ran"), tiny_models.EOS]


def test_a_prompt_keeps_its_bos_and_loses_an_appended_eos(llama_copy):
    tiny_models.tokenizer(bos=True).save_pretrained(llama_copy)
    backbone = tiny_models.load(llama_copy)
    assert backbone.tokenizer("the cat")["input_ids"] == [tiny_models.BOS, *tiny_models.ids("the cat"), tiny_models.EOS]
    assert backbone.encode_prompt("the cat") == [tiny_models.BOS, *tiny_models.ids("the cat")]
    assert backbone.encode_response("cat ran") == [*tiny_models.ids("cat ran"), tiny_models.EOS]


@pytest.mark.parametrize("text", ["cat ran <eos>", "cat ran <eos> <eos>", "cat ran <eos>\n"])
def test_a_response_that_already_ends_with_a_stop_token_gets_no_second_one(llama_folder, text):
    assert tiny_models.load(llama_folder).encode_response(text) == [*tiny_models.ids("cat ran"), tiny_models.EOS]


def test_a_response_keeps_the_stop_token_that_it_ends_with(llama_copy):
    tiny_models.set_generation_config(llama_copy, eos_token_id=[tiny_models.EOS, tiny_models.STOP])
    backbone = tiny_models.load(llama_copy)
    assert backbone.encode_response("cat <stop>") == [tiny_models.ID["cat"], tiny_models.STOP]
    assert backbone.encode_response("cat <stop> <eos>") == [tiny_models.ID["cat"], tiny_models.STOP]
    assert backbone.encode_response("<eos>") == [tiny_models.EOS]


def test_a_text_with_special_tokens_has_each_only_once(llama_copy):
    tiny_models.tokenizer(bos=True).save_pretrained(llama_copy)
    backbone = tiny_models.load(llama_copy)
    expected = [tiny_models.BOS, *tiny_models.ids("the cat"), tiny_models.EOS]
    assert backbone.encode_document("the cat") == expected
    assert backbone.encode_document("<bos> the cat <eos>") == expected
    assert backbone.encode_prompt("<bos> the cat <eos>") == expected[:-1]


def test_the_text_of_an_empty_prompt_is_empty(llama_copy):
    words = tiny_models.tokenizer()
    words.chat_template = "{% for message in messages %}so {{ message['content'] }} the{% endfor %}"
    words.save_pretrained(llama_copy)
    backbone = tiny_models.load(llama_copy)
    ids = backbone.encode_prompt("")
    assert backbone.decode(ids) == "so the"
    assert backbone.prompt_text(ids) == ""


def test_a_chat_template_wraps_the_prompt(llama_copy):
    words = tiny_models.tokenizer()
    words.chat_template = (
        "{% for m in messages %}<bos> {{ m['role'] == 'user' and 'the king' }} . {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}! {% endif %}"
    )
    words.save_pretrained(llama_copy)
    assert tiny_models.load(llama_copy).encode_prompt("old cat") == [
        tiny_models.BOS,
        *tiny_models.ids("the king . old cat !"),
    ]


def test_an_empty_prompt_without_bos_is_the_end_token(gpt2_folder, tmp_path):
    folder = shutil.copytree(gpt2_folder, tmp_path / "nobos", dirs_exist_ok=True)
    words = tiny_models.tokenizer(pad=False)
    words.bos_token = None
    words.save_pretrained(folder)
    assert tiny_models.load(folder).encode_prompt("") == [tiny_models.EOS]


def test_decoding_and_encoding_again_changes_ids(llama_folder):
    """The reason for storing ids: this tokenizer has a token whose text is encoded as two others."""
    backbone = tiny_models.load(llama_folder)
    sampled = tiny_models.ids("not_good cat")
    assert backbone.decode(sampled) == "not good cat"
    assert backbone.encode_response("not good cat")[:-1] == tiny_models.ids("not good cat") != sampled
    assert backbone.token_strings([*sampled, tiny_models.EOS]) == ["not good", " cat", " <eos>"]
    assert backbone.decode([*sampled, tiny_models.EOS]) == "not good cat"


# --- models that cannot be used ---


def test_unknown_name_without_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match='"nobody/nothing" is neither a local folder nor a model that could be fetched'
    ):
        load_backbone("nobody/nothing")


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "~/nothing", "a/b/c"])
def test_a_missing_path_is_not_looked_up_on_the_hub(name):
    with pytest.raises(ModelError, match="is not a folder"):
        load_backbone(name)


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "model.txt").write_text("x")
    with pytest.raises(ModelError, match="is not a folder"):
        load_backbone(str(tmp_path / "model.txt"))


def test_folder_without_config(llama_copy):
    (llama_copy / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        tiny_models.load(llama_copy)


def test_folder_without_tokenizer(llama_copy):
    (llama_copy / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        tiny_models.load(llama_copy)


def test_damaged_tokenizer(llama_copy):
    (llama_copy / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="its tokenizer cannot be read"):
        tiny_models.load(llama_copy)


def test_folder_without_weights(llama_copy):
    (llama_copy / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*\.safetensors file"):
        tiny_models.load(llama_copy)


def test_a_missing_weight_is_not_replaced_by_random_numbers(llama_copy):
    path = llama_copy / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"], weights["lm_head.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack 2 of its weights, such as lm_head\.weight, which would be random"):
        tiny_models.load(llama_copy)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.ckpt"])
def test_pickled_weights_are_refused(llama_copy, name):
    (llama_copy / "model.safetensors").unlink()
    (llama_copy / name).write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ModelError, match="pickle files, which can run code"):
        tiny_models.load(llama_copy)


def test_damaged_weights(llama_copy):
    (llama_copy / "model.safetensors").write_bytes((llama_copy / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(ModelError, match="damaged or was not copied to its end"):
        tiny_models.load(llama_copy)


def test_a_model_that_is_not_causal(tmp_path):
    config = BertConfig(vocab_size=len(tiny_models.WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    tiny_models.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="it is a BertForSequenceClassification, not a causal language model"):
        tiny_models.load(tmp_path)


def test_an_unknown_architecture(llama_copy):
    edit(llama_copy / "config.json", model_type="nonesuch", auto_map={"AutoConfig": "code.Config"})
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        tiny_models.load(llama_copy)


def test_no_end_token_anywhere(llama_copy):
    edit(llama_copy / "tokenizer_config.json", eos_token=None)
    edit(llama_copy / "config.json", eos_token_id=None)
    edit(llama_copy / "generation_config.json", eos_token_id=None)
    with pytest.raises(ModelError, match="names no end-of-sequence token"):
        tiny_models.load(llama_copy)


@pytest.mark.parametrize(("dtype", "factor", "accepted"), [
    (torch.bfloat16, 1 + 2**-8, True),  # a logit may be rounded the other way by another kernel
    (torch.bfloat16, 1.02, False), (torch.float32, 1.005, False), (torch.float32, 1 + 2**-16, True),
])  # fmt: skip
def test_rounding_of_single_logits_is_not_taken_for_scaling(llama_folder, dtype, factor, accepted):
    backbone = tiny_models.load(llama_folder, dtype)

    def disturb(_module, _inputs, logits):
        logits = logits.clone()
        changed = logits[..., ::2] if accepted else logits
        changed.mul_(factor)
        return logits

    backbone.model.get_output_embeddings().register_forward_hook(disturb)
    if accepted:
        _check_head_logits(backbone)
    else:
        with pytest.raises(ModelError, match="changes its logits after the head"):
            _check_head_logits(backbone)


def test_unstated_context_length_is_no_limit(llama_folder):
    backbone = tiny_models.load(llama_folder)
    backbone.model.config = MambaConfig()
    assert backbone.context_length == 2**20


def byte_tokenizer(**special_tokens):
    """Every byte a token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    bytewise.pre_tokenizer, bytewise.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bytewise, **special_tokens)


@pytest.mark.parametrize("with_bos", [False, True])
@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("hi", "hi"),
        ("hi<E>", "hi"),
        ("hi <E>", "hi "),
        ("hi<E>\n", "hi"),
        ("hi<E>\n<E>", "hi"),
        ("hi<E> <E>", "hi"),
        ("hi\n<E> \r\n<E><E>\t\n", "hi\n"),
        ("hi \n", "hi \n"),
        ("\n", "\n"),
        ("hi\n<E>\nyou \n", "hi\n<E>\nyou \n"),
        ("", ""),
        ("<E>\n", ""),
    ],
)
def test_stop_tokens_at_the_end_of_a_text_count_once(llama_folder, text, stripped, with_bos):
    """White space between and after them is removed too; elsewhere they are text; the BOS may be a stop token as well."""
    tokenizer = byte_tokenizer(eos_token="<E>", **({"bos_token": "<E>"} if with_bos else {}))
    stop = tokenizer.eos_token_id
    if with_bos:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            "<E> $A", special_tokens=[("<E>", stop)]
        )
    backbone = dataclasses.replace(tiny_models.load(llama_folder), tokenizer=tokenizer, eos_ids=(stop,))
    bos = [stop] * with_bos
    ids = tokenizer(stripped, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert backbone.encode_response(text) == [*ids, stop]
    assert backbone.encode_prompt(text) == ([*bos, *ids] or [stop])
    document_end = [stop] if text != stripped and (ids or not with_bos) else []
    assert backbone.encode_document(text) == [*bos, *ids, *document_end]


@pytest.mark.parametrize("text", ["Zoë sang “naïve” songs 🎉 – twice.", "two  spaces\n\nand lines", "", "ends in 🎉"])
def test_token_strings_join_to_the_whole_text(llama_folder, text):
    """A character of two, three or four tokens is attributed to its last one."""
    backbone = dataclasses.replace(tiny_models.load(llama_folder), tokenizer=byte_tokenizer())
    pieces = backbone.token_strings(backbone.tokenizer(text)["input_ids"])
    assert pieces == [piece for letter in text for piece in [*[""] * (len(letter.encode()) - 1), letter]]


def sentencepiece_tokenizer():
    """As Llama 2's: "▁" begins a word, and decoding strips the first space."""
    words = ["<unk>", "<eos>", "▁Tom", "▁had", "▁a", "▁lot", "s"]
    pieces = Tokenizer(models.BPE({word: i for i, word in enumerate([*words, *"▁Tomhadlt"])}, [], unk_token="<unk>"))
    pieces.add_special_tokens(["<eos>"])
    pieces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    pieces.decoder = decoders.Metaspace(prepend_scheme="first")
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<eos>")


@pytest.mark.parametrize("make_tokenizer", [sentencepiece_tokenizer, byte_tokenizer])
@pytest.mark.parametrize("split", range(5))
def test_prompt_and_decoded_response_are_the_decoded_whole(llama_folder, make_tokenizer, split):
    backbone = dataclasses.replace(tiny_models.load(llama_folder), tokenizer=make_tokenizer())
    ids = [2, 3, 4, 5, 6]
    prompt, response = ids[:split], ids[split:]
    assert backbone.decode(prompt) + backbone.decode(response, after=prompt) == backbone.decode(ids)


def test_a_response_of_a_sentencepiece_model_keeps_its_first_space(llama_folder):
    backbone = dataclasses.replace(tiny_models.load(llama_folder), tokenizer=sentencepiece_tokenizer())
    assert backbone.decode([2, 3, 4, 5]) == "Tom had a lot"
    assert backbone.decode([3, 4, 5, 1], after=[2]) == " had a lot"
    assert backbone.decode([6], after=[2]) == "s"


def test_token_strings_of_an_incomplete_character(llama_folder):
    backbone = dataclasses.replace(tiny_models.load(llama_folder), tokenizer=byte_tokenizer())
    ids = backbone.tokenizer("a🎉")["input_ids"][:-2]
    assert backbone.token_strings(ids) == ["a", "", "\ufffd"]
