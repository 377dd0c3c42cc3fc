"""Adapters: switching, nesting, merging, restoring; saved files that PEFT reads."""

import json
import warnings

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from support import tiny_models
from transformers import AutoModelForCausalLM

from rlhf_lab.common.model_files import ADAPTER_FILE
from rlhf_lab.errors import ModelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.sampling.sampler import sample

PROMPT = torch.tensor([tiny_models.ids("the cat sat . the very old king")])


def logits(backbone):
    with torch.no_grad():
        return backbone.model(input_ids=PROMPT, use_cache=False).logits


def own_weights(backbone):
    """The frozen parameters as objects, and copies of their values."""
    found = {name: p for name, p in backbone.model.named_parameters() if "lora_" not in name}
    return found, {name: p.detach().clone() for name, p in found.items()}


def test_a_new_adapter_changes_nothing_and_its_seed_decides(llama_folder):
    backbone = tiny_models.load(llama_folder)
    before, state = logits(backbone), torch.random.get_rng_state()
    adapters = Adapters(backbone)
    adapters.add("a", r=4, alpha=8, seed=1, trainable=True)
    with adapters.using("a"):
        assert torch.equal(logits(backbone), before)
    first = adapters.tensors("a")
    adapters.add("b", r=4, alpha=8, seed=1, trainable=False)
    adapters.add("c", r=4, alpha=8, seed=2, trainable=False)
    assert tiny_models.same(first, adapters.tensors("b"))
    assert not tiny_models.same(first, adapters.tensors("c"))
    assert adapters.names == ("a", "b", "c")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_delta_by_hand(llama_folder):
    """W + alpha / r * B A on every linear layer of the trunk, and none on the vocabulary head."""
    backbone = tiny_models.load(llama_folder, torch.float64)
    adapters = tiny_models.adapters_of(backbone, "a")
    tensors = {key.replace("base_model.model.", ""): value for key, value in adapters.tensors("a").items()}
    with adapters.using("a"):
        found = logits(backbone)
    plain = AutoModelForCausalLM.from_pretrained(llama_folder, dtype=torch.float64)
    linear = [name for name, module in plain.named_modules() if isinstance(module, torch.nn.Linear)]
    assert {key.rpartition(".lora_")[0] for key in tensors} == set(linear) - {"lm_head"}
    with torch.no_grad():
        for name in set(linear) - {"lm_head"}:
            plain.get_submodule(name).weight += (
                2.0 * tensors[f"{name}.lora_B.weight"] @ tensors[f"{name}.lora_A.weight"]
            )
        torch.testing.assert_close(found, plain.eval()(PROMPT).logits, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_contexts_nest_and_restore(folders, kind):
    backbone = tiny_models.load(folders[kind])
    base = logits(backbone)
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    with adapters.using("a"):
        a = logits(backbone)
        with adapters.using("b", merged=True):
            b_merged = logits(backbone)
            with adapters.using(None):
                assert torch.equal(logits(backbone), base)
            assert torch.equal(logits(backbone), b_merged)
            with adapters.using("a", merged=True):
                torch.testing.assert_close(logits(backbone), a, rtol=1e-4, atol=1e-4)
            assert torch.equal(logits(backbone), b_merged)
        assert torch.equal(logits(backbone), a)
    assert torch.equal(logits(backbone), base)
    with adapters.using("b"):
        torch.testing.assert_close(logits(backbone), b_merged, rtol=1e-4, atol=1e-4)
    assert float((a - base).abs().max()) > 0.1
    assert float((a - b_merged).abs().max()) > 0.1


@pytest.mark.parametrize("merged", [False, True])
def test_state_is_restored_after_an_exception(llama_folder, merged):
    backbone = tiny_models.load(llama_folder)
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    with adapters.using("b"):
        expected = logits(backbone)
        with pytest.raises(ZeroDivisionError), adapters.using("a", merged=merged), adapters.using(None):
            raise ZeroDivisionError
        assert torch.equal(logits(backbone), expected)


def test_out_of_memory_while_switching_leaves_the_previous_adapter(llama_folder, monkeypatch):
    backbone = tiny_models.load(llama_folder)
    base = logits(backbone)
    adapters = tiny_models.adapters_of(backbone, "a")
    use, calls = type(backbone.fused_layers).set_adapter, []

    def fails_once(fused, parts):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("can't allocate memory")
        use(fused, parts)

    monkeypatch.setattr(type(backbone.fused_layers), "set_adapter", fails_once)
    with pytest.raises(RuntimeError, match="allocate"), adapters.using("a"):
        pytest.fail("it was taken all the same")
    assert torch.equal(logits(backbone), base)
    adapters.remove("a")


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_unmerging_restores_the_identical_tensors(folders, kind):
    """Not only equal weights: the same tensor objects with the same bits, also after an exception.

    While merged, the frozen weight of a Linear is not changed (lora_linear); the layers of GPT-2 get temporary weights.
    """
    backbone = tiny_models.load(folders[kind])
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    before, values = own_weights(backbone)
    during = {}
    with pytest.raises(ZeroDivisionError), adapters.using("a", merged=True), adapters.using("b", merged=True):
        raise ZeroDivisionError(during.update(own_weights(backbone)[0]))
    assert any(during[name] is not before[name] for name in before) is (kind == "gpt2")
    after, values_after = own_weights(backbone)
    assert all(after[name] is before[name] for name in before)
    assert tiny_models.same(values_after, values)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_sampling_through_merged_weights_equals_unmerged(folders, kind):
    backbone = tiny_models.load(folders[kind], torch.float64)
    adapters = tiny_models.adapters_of(backbone, "policy", "other")
    prompts, _ = tiny_models.ragged(rows=6)
    with adapters.using("policy"):
        plain = sample(backbone, prompts, tiny_models.seeded(6, 10))
    with adapters.using("policy", merged=True):
        merged = sample(backbone, prompts, tiny_models.seeded(6, 10))
    assert merged.tokens == plain.tokens
    for row, expected in zip(merged.logprobs, plain.logprobs, strict=True):
        assert row == pytest.approx(expected, abs=1e-10)
    with adapters.using(None):
        assert sample(backbone, prompts, tiny_models.seeded(6, 10)).tokens != plain.tokens


def test_only_trainable_adapters_require_gradients(llama_folder):
    backbone = tiny_models.load(llama_folder)
    adapters = Adapters(backbone)
    adapters.add("policy", r=4, alpha=8, seed=0, trainable=True)
    adapters.add("reward", r=4, alpha=8, seed=0, trainable=False)

    def needing():
        return {name for name, p in backbone.model.named_parameters() if p.requires_grad}

    expected = {name for name, _ in backbone.model.named_parameters() if ".policy." in name}
    assert len(expected) == len(adapters.parameters("policy")) == 28
    for name, merged in (("policy", False), ("reward", False), (None, False), ("reward", True), ("policy", True)):
        with adapters.using(name, merged=merged):
            assert needing() == expected
    assert needing() == expected
    adapters.freeze("policy")
    assert needing() == set()
    adapters.remove("reward")
    adapters.remove("policy")
    assert needing() == set()


def test_an_adapter_may_be_named_like_a_module(llama_folder):
    backbone = tiny_models.load(llama_folder)
    adapters = tiny_models.adapters_of(backbone, "mlp", "layers")
    assert len(adapters.parameters("mlp")) == len(adapters.parameters("layers")) == 28
    assert not {id(p) for p in adapters.parameters("mlp")} & {id(p) for p in adapters.parameters("layers")}


def test_remove_and_add_again(llama_folder):
    backbone = tiny_models.load(llama_folder)
    base, weights = logits(backbone), tiny_models.weights_hash(backbone)
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    with adapters.using("a"):
        expected = logits(backbone)
        with pytest.raises(ModelError, match='"a" is in use'):
            adapters.remove("a")
        adapters.remove("b")
        adapters.add("c", r=2, alpha=2, seed=0, trainable=False)
        assert torch.equal(logits(backbone), expected)
    adapters.remove("nobody")
    adapters.remove("a")
    adapters.remove("c")
    assert adapters.names == ()
    assert torch.equal(logits(backbone), base)
    assert tiny_models.weights_hash(backbone) == weights
    assert not [name for name, _ in backbone.model.named_modules() if "lora" in name]
    adapters.add("a", r=4, alpha=8, seed=0, trainable=True)
    tiny_models.disturb(adapters, "a", 5)
    with adapters.using("a"):
        assert torch.equal(logits(backbone), expected)


def test_an_adapter_removed_inside_another_context_leaves_the_base(llama_folder):
    backbone = tiny_models.load(llama_folder)
    base = logits(backbone)
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    with adapters.using("a"):
        with adapters.using("b"):
            adapters.remove("a")
        assert torch.equal(logits(backbone), base)


def test_unknown_adapter_names_those_that_are_loaded(llama_folder):
    adapters = tiny_models.adapters_of(tiny_models.load(llama_folder), "a", "b")
    with pytest.raises(ModelError, match='no adapter named "c" is loaded; there are: a, b'), adapters.using("c"):
        pass


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_save_and_load_round_trip(folders, kind, tmp_path):
    backbone = tiny_models.load(folders[kind])
    adapters = tiny_models.adapters_of(backbone, "other", "policy")
    with adapters.using("policy"):
        expected = logits(backbone)
    adapters.save("policy", tmp_path / kind)
    again = tiny_models.load(folders[kind])
    loaded = tiny_models.adapters_of(again, "third")
    loaded.load("anew", tmp_path / kind, trainable=False)
    assert tiny_models.same(loaded.tensors("anew"), adapters.tensors("policy"))
    with loaded.using("anew"):
        assert torch.equal(logits(again), expected)
    assert not [p for p in loaded.parameters("anew") if p.requires_grad]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_saved_folder_loads_in_plain_peft(folders, kind, tmp_path):
    backbone = tiny_models.load(folders[kind])
    adapters = tiny_models.adapters_of(backbone, "other", "policy")
    adapters.save("policy", tmp_path / kind)
    with adapters.using("policy"):
        expected = logits(backbone)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False but the target module is `Conv1D`")
        automatic = AutoPeftModelForCausalLM.from_pretrained(tmp_path / kind)
        base = AutoModelForCausalLM.from_pretrained(folders[kind])
        by_hand = PeftModel.from_pretrained(base, tmp_path / kind)
    for model in (automatic, by_hand):
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(input_ids=PROMPT).logits, expected, rtol=1e-5, atol=1e-5)


def test_files_that_do_not_fit_or_cannot_be_read(llama_folder, gpt2_folder, tmp_path):
    adapters = tiny_models.adapters_of(tiny_models.load(llama_folder), "a")
    before = adapters.tensors("a")
    with pytest.raises(ModelError, match="does not fit this backbone"):
        adapters.load_tensors("a", tiny_models.adapters_of(tiny_models.load(gpt2_folder), "a").tensors("a"))
    assert tiny_models.same(adapters.tensors("a"), before)
    with pytest.raises(ModelError, match=f"holds no {ADAPTER_FILE}"):
        adapters.load("b", tmp_path / "nothing")
    adapters.save("a", tmp_path / "damaged")
    (tmp_path / "damaged" / ADAPTER_FILE).write_bytes(b"cut")
    with pytest.raises(ModelError, match="cannot be read"):
        adapters.load("b", tmp_path / "damaged")
    assert adapters.names == ("a",)


def test_saved_config_has_no_dropout(llama_folder, tmp_path):
    """Dropout stays off also for a training that continues from the saved adapter."""
    tiny_models.adapters_of(tiny_models.load(llama_folder), "a").save("a", tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["lora_dropout"], config["r"], config["lora_alpha"]) == (0.0, 4, 8)
    assert config["base_model_name_or_path"] == str(llama_folder)


def test_tensors_are_copies(llama_folder):
    adapters = tiny_models.adapters_of(tiny_models.load(llama_folder), "a")
    for value in adapters.tensors("a").values():
        value.fill_(7.0)
    assert not any(bool((p == 7.0).all()) for p in adapters.parameters("a"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`")
def test_adapters_are_float32_on_a_half_precision_backbone(folders, kind, dtype, tmp_path):
    """Whether new, restored or loaded; an optimiser step far below the rounding of bfloat16 is kept."""
    backbone = tiny_models.load(folders[kind], dtype)
    adapters = tiny_models.adapters_of(backbone, "first", "second")
    adapters.copy("first", "copied", trainable=True)
    adapters.save("second", tmp_path)
    adapters.load("loaded", tmp_path, trainable=True)
    assert backbone.model.get_input_embeddings().weight.dtype == dtype
    for name in ("first", "second", "copied", "loaded"):
        assert {parameter.dtype for parameter in adapters.parameters(name)} == {torch.float32}
    parameters = adapters.parameters("first")
    before = [parameter.detach().clone() for parameter in parameters]
    with adapters.using("first"):
        backbone.hidden(PROMPT).float().square().sum().backward()
    assert {parameter.grad.dtype for parameter in parameters} == {torch.float32}
    for parameter in parameters:
        parameter.grad.fill_(1.0)
    torch.optim.SGD(parameters, lr=1e-5).step()
    for parameter, start in zip(parameters, before, strict=True):
        torch.testing.assert_close(parameter.detach(), start - 1e-5, rtol=0, atol=1e-7)


def test_merged_weights_keep_their_addresses(gpt2_folder):
    """A CUDA graph holds their addresses; the values there are those of the adapter in use."""
    backbone = tiny_models.load(gpt2_folder, torch.float64)
    adapters = tiny_models.adapters_of(backbone, "a", "b")
    addresses, values = {}, {}
    for name in ("a", "b", "a"):
        with adapters.using(name, merged=True):
            weight = adapters._layers[0].get_base_layer().weight
            addresses.setdefault(name, set()).add(weight.data_ptr())
            values[name] = weight.clone()
    assert addresses["a"] == addresses["b"]
    assert len(addresses["a"]) == 1
    assert not torch.equal(values["a"], values["b"])


def save_with_peft(folder, target, seed=3, **options):
    """A LoRA adapter made by PEFT alone, with random B; returns the logits of PEFT's model with it."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **({"r": 3, "lora_alpha": 12} | options))
    torch.manual_seed(seed)
    model = get_peft_model(model, config).eval()
    model.save_pretrained(target)
    with torch.no_grad():
        return model(input_ids=PROMPT).logits


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`")
def test_an_adapter_of_peft_may_adapt_some_layers_only(folders, kind, tmp_path):
    some = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"]}[kind]
    options = {"use_rslora": True, "lora_dropout": 0.2, "rank_pattern": {some[0]: 5}, "layers_to_transform": [1]}
    theirs = save_with_peft(folders[kind], tmp_path / "peft", target_modules=some, **options)
    backbone = tiny_models.load(folders[kind])
    adapters, base = tiny_models.adapters_of(backbone, "whole"), logits(backbone)
    with adapters.using("whole"):
        whole = logits(backbone)
    adapters.load("part", tmp_path / "peft")
    adapters.copy("part", "copied", trainable=True)
    for name in ("part", "copied"):
        for merged in (False, True):
            with adapters.using(name, merged=merged):
                torch.testing.assert_close(logits(backbone), theirs, rtol=1e-4, atol=1e-4)
    for name, expected in (("whole", whole), (None, base)):
        with adapters.using(name):
            assert torch.equal(logits(backbone), expected)
    assert float((theirs - base).abs().max()) > 0.1
    adapters.save("copied", tmp_path / "again")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folders[kind]), tmp_path / "again")
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(input_ids=PROMPT).logits, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_modules": ["q_proj"], "use_dora": True}, "use_dora = True"),
        ({"target_modules": ["q_proj"], "bias": "lora_only"}, "bias = 'lora_only'"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["norm"]}, "modules_to_save"),
        ({"target_modules": ["q_proj", "lm_head"]}, "vocabulary head or the embeddings"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "vocabulary head or the embeddings"),
    ],
)
@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`")
def test_an_adapter_that_changes_more_is_refused(llama_folder, tmp_path, options, message):
    save_with_peft(llama_folder, tmp_path, **options)
    backbone = tiny_models.load(llama_folder)
    adapters, base = Adapters(backbone), logits(backbone)
    with pytest.raises(ModelError, match=rf"{message}.*merge_and_unload"):
        adapters.load("other", tmp_path)
    assert adapters.names == ()
    assert torch.equal(logits(backbone), base)


def test_adapters_of_other_models_and_kinds_are_refused(llama_folder, gpt2_folder, tmp_path):
    save_with_peft(llama_folder, tmp_path / "llama", target_modules=["q_proj"])
    adapters = Adapters(tiny_models.load(gpt2_folder))
    with pytest.raises(ModelError, match="does not fit this backbone"):
        adapters.load("other", tmp_path / "llama")
    path = tmp_path / "llama" / "adapter_config.json"
    path.write_text(json.dumps({"peft_type": "IA3", "task_type": "CAUSAL_LM", "target_modules": ["q_proj"]}))
    with pytest.raises(ModelError, match="the type IA3Config"):
        adapters.load("other", tmp_path / "llama")
    path.write_text(json.dumps({"peft_type": "LORA", "target_modules": ["q_proj"], "init_lora_weights": "pissa"}))
    with pytest.raises(ModelError, match="init_lora_weights = 'pissa'"):
        adapters.load("other", tmp_path / "llama")
    assert adapters.names == ()
