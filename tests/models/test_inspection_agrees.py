"""The page inspects the files of a model, the engine loads it: both accept the same folders, with the same error messages."""

import json
import shlex
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support import model_families, tiny_models
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rlhf_lab.common.model_folder import (
    RECURRENT_MODEL_TYPES,
    WEIGHT_INDEX_FILE,
    adapter_message,
    causal_lm_classes,
)
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs.model_inspection import inspect_model
from rlhf_lab.training.model_trial import load_tried_backbone

pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`")


def verdicts(folder):
    """The messages of inspection and of loading; "" if they accept."""
    messages = []
    for judge in (inspect_model, tiny_models.load):
        try:
            judge(str(folder))
            messages.append("")
        except ModelError as error:
            messages.append(str(error))
    return messages


def edit(folder, file, **values):
    path = folder / file
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))


def no_end_token(folder):
    edit(folder, "tokenizer_config.json", eos_token=None)
    for file in ("config.json", "generation_config.json"):
        edit(folder, file, eos_token_id=None)


def added_end_token(folder):
    words = tiny_models.tokenizer()
    words.add_special_tokens({"eos_token": "<end>"})
    words.save_pretrained(folder)


def added_token(folder):
    words = tiny_models.tokenizer()
    words.add_tokens(["unheard"])
    words.save_pretrained(folder)


def added_special_token(folder):
    words = tiny_models.tokenizer()
    words.add_special_tokens({"additional_special_tokens": ["<mask>"]})
    words.save_pretrained(folder)


def truncate(folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-4])


REFUSED = {
    "no config": (lambda f: (f / "config.json").unlink(), r"no config\.json"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), r"config\.json cannot be read"),
    "config that is a list": (lambda f: (f / "config.json").write_text("[]"), "no settings"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"no \*\.safetensors file"),
    "pickled weights": (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickle files"),
    "truncated weights": (truncate, "damaged or was not copied to its end"),
    "a missing shard": (
        lambda f: (
            (f / "model.safetensors").rename(f / "model-1.safetensors"),
            edit(f, WEIGHT_INDEX_FILE, weight_map={"a": "model-1.safetensors", "b": "model-2.safetensors"}),
        ),
        "1 of its weight files are missing, such as model-2",
    ),
    "a file outside of the folder": (
        lambda f: (
            (f / "model.safetensors").rename(f.parent / "model-1.safetensors"),
            (f / "other.safetensors").write_bytes((f.parent / "model-1.safetensors").read_bytes()),
            edit(f, WEIGHT_INDEX_FILE, weight_map={"a": "../model-1.safetensors"}),
        ),
        r"1 of its weight files are missing, such as \.\./model-1",
    ),
    "weights under other names": (
        lambda f: (f / "model.safetensors").rename(f / "model.fp16.safetensors"),
        r"neither model\.safetensors nor model\.safetensors\.index\.json, so transformers loads none",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer"),
    "broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer cannot be read"),
    "a classifier": (
        lambda f: edit(f, "config.json", architectures=["LlamaForSequenceClassification"]), "not a causal language model"
    ),
    "a trunk without head": (lambda f: edit(f, "config.json", architectures=["LlamaModel"]), "not a causal language model"),
    "a class of nobody": (lambda f: edit(f, "config.json", architectures=["MadeUpForCausalLM"]), "not a causal language"),
    "remote code": (
        lambda f: edit(f, "config.json", model_type="nonesuch", architectures=None, auto_map={"AutoConfig": "code.Config"}),
        "no causal language model of the type 'nonesuch'",
    ),
    "a recurrent model": (
        lambda f: edit(f, "config.json", model_type="mamba", architectures=["MambaForCausalLM"]),
        "keeps a state of the text so far instead of keys and values",
    ),
    "quantised weights": (
        lambda f: edit(f, "config.json", quantization_config={"quant_method": "gptq", "bits": 4}), "stored quantised"
    ),
    "no end token": (no_end_token, "names no end-of-sequence token"),
    "an end token that was added to the tokenizer alone": (
        added_end_token, f"end-of-sequence token <end> has the id {len(tiny_models.WORDS)}"
    ),
    "a token that was added to the tokenizer alone": (
        added_token, f"the token unheard has the id {len(tiny_models.WORDS)}, and the model has embeddings for"
    ),
    "adapter and base": (lambda f: edit(f, "adapter_config.json", peft_type="LORA"), "base weights and a LoRA adapter"),
    "adapter alone": (
        lambda f: ((f / "model.safetensors").rename(f / "adapter_model.safetensors"), edit(f, "adapter_config.json")),
        "a LoRA adapter without its base model",
    ),
}  # fmt: skip
ACCEPTED = {
    "as saved": lambda f: None,
    "no architectures": lambda f: edit(f, "config.json", architectures=None),
    "several end tokens": lambda f: edit(f, "generation_config.json", eos_token_id=[tiny_models.EOS, tiny_models.STOP]),
    "no pad token": lambda f: tiny_models.tokenizer(pad=False).save_pretrained(f),
    "no generation config": lambda f: (f / "generation_config.json").unlink(),
    "end token in the generation config alone": lambda f: edit(f, "tokenizer_config.json", eos_token=None),
    "a special token that was added to the tokenizer alone": added_special_token,
    "no BOS token": lambda f: edit(f, "tokenizer_config.json", bos_token=None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_both_refuse_with_the_same_words(llama_copy, case):
    damage, words = REFUSED[case]
    damage(llama_copy)
    inspected, loaded = verdicts(llama_copy)
    assert inspected == loaded
    with pytest.raises(ModelError, match=words):
        inspect_model(str(llama_copy))


@pytest.mark.parametrize("case", ACCEPTED)
def test_both_accept(llama_copy, case):
    ACCEPTED[case](llama_copy)
    assert verdicts(llama_copy) == ["", ""]


@pytest.mark.parametrize("kind", model_families.PARAMETERS)
def test_both_accept_every_family(saved, kind):
    assert verdicts(saved[kind]) == ["", ""]


@pytest.mark.trial
def test_page_and_engine_refuse_a_family_with_the_same_words(tmp_path):
    """MiniMax accepts only a cache of its own class: the page finds that in another process, without the weights."""
    folder = model_families.save("minimax", tmp_path / "model")
    with pytest.raises(
        ModelError, match=r"of the type minimax with its .* do not work .* token by token with a cache failed"
    ) as page:
        inspect_model(str(folder))
    with pytest.raises(ModelError) as engine:
        load_tried_backbone(str(folder), device="cpu")
    assert str(page.value) == str(engine.value)


def test_known_types_are_those_of_transformers():
    assert causal_lm_classes() == dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert set(RECURRENT_MODEL_TYPES) < set(causal_lm_classes())


@pytest.fixture
def tuned(llama_copy):
    """A model folder with an adapter inside that names the folder's own base, the base's and the adapter's logits."""
    ids = torch.tensor([tiny_models.ids("the cat sat . the king")])
    model = AutoModelForCausalLM.from_pretrained(llama_copy, dtype=torch.float32).eval()
    with torch.no_grad():
        base = model(ids).logits
        peft = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        for name, weight in peft.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.linspace(-0.5, 0.5, weight.numel()).view(weight.shape))
        tuned = peft.eval()(ids).logits
        peft.peft_config["default"].base_model_name_or_path = str(llama_copy)
        peft.save_pretrained(llama_copy)
    return ids, base, tuned


def merge(message):
    """Run the Python code of the message."""
    words = shlex.split(message)
    exec(words[words.index("-c") + 1].rstrip(","), {})


def logits(folder, ids):
    backbone = tiny_models.load(folder)
    with torch.no_grad():
        return backbone.logits(backbone.hidden(ids))


def test_the_command_of_the_message_merges_an_adapter_beside_its_base(llama_copy, tuned):
    ids, base, expected = tuned
    message = verdicts(llama_copy)[1]
    (llama_copy / "adapter").mkdir()
    for file in llama_copy.glob("adapter_*"):
        shutil.move(file, llama_copy / "adapter")
    torch.testing.assert_close(logits(llama_copy, ids), base)
    merge(message)
    torch.testing.assert_close(logits(f"{llama_copy}-merged", ids), expected, rtol=1e-4, atol=1e-4)


def test_the_command_of_the_message_merges_an_adapter_without_a_base(llama_copy, tuned, tmp_path, monkeypatch):
    ids, _, expected = tuned
    (tmp_path / "tuned").mkdir()
    for file in llama_copy.glob("adapter_*"):
        shutil.move(file, tmp_path / "tuned")
    monkeypatch.chdir(tmp_path)
    merge(verdicts(tmp_path / "tuned")[1])
    torch.testing.assert_close(logits("tuned-merged", ids), expected, rtol=1e-4, atol=1e-4)


def test_an_adapter_on_the_hub():
    message = adapter_message("someone/tuned", {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"})
    assert "it holds a LoRA adapter without its base model (adapter_config.json)" in message
    assert "from_pretrained('BASE_MODEL', dtype='auto')" in message
    assert "AutoTokenizer.from_pretrained('someone/tuned').save_pretrained('tuned-merged')" in message
