"""Models with fused decoder layers: the same values as the modules, which are used where fused layers are not supported."""

import gc
import math
import weakref
from types import SimpleNamespace

import pytest
import torch
from support import tiny_models
from support.model_families import SHARED, WHOLE
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from rlhf_lab.kernels import c_ops, matmul
from rlhf_lab.models.batch import forward, make_batch, pad_left
from rlhf_lab.models.fused_llama import patch
from rlhf_lab.models.fused_llama.decode_step import DecodeStep
from rlhf_lab.models.fused_llama.layer import LayerWeights
from rlhf_lab.models.fused_llama.patch import FusedLayers, is_supported
from rlhf_lab.models.kv_cache import reserved_cache
from rlhf_lab.models.sampling import sampler
from rlhf_lab.models.sampling.sampler import sample, uniforms

KNOWN = patch.SUPPORTED_LAYERS  # `loaded` changes the module's
IDS = torch.tensor(
    [tiny_models.ids("the cat sat . the very old king"), tiny_models.ids("so ran . the moon the cat sat")]
)


def load_model(folder, monkeypatch, known, *names, dtype=torch.float32):
    monkeypatch.setattr(patch, "SUPPORTED_LAYERS", known)
    backbone = tiny_models.load(folder, dtype)
    for module in backbone.trunk.layers:  # non-zero biases, norms other than 1
        for i, (name, parameter) in enumerate(sorted(module.named_parameters())):
            if name.endswith("bias") or "norm" in name:
                generator = torch.Generator().manual_seed(i)
                parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator).to(dtype))
    if known:
        backbone.fused_layers = FusedLayers(backbone.model)
    return backbone, tiny_models.adapters_of(backbone, *names)


def run_model(backbone, adapters, ids=IDS):
    """States and gradients under the adapter, states of the reference, and samples."""
    with adapters.using("a"):
        hidden = backbone.hidden(ids)
        (hidden.float() * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    with torch.no_grad(), adapters.using(None):
        reference = backbone.hidden(ids)
    with adapters.using("a", merged=True):
        samples = sample(
            backbone,
            [tiny_models.ids("the cat"), tiny_models.ids("moon"), tiny_models.ids("so the old")],
            uniforms([1, 2, 3], 9),
        )
    return [hidden.detach(), reference, *(p.grad for p in adapters.parameters("a"))], samples


def fused_layer_of(layer):
    return (
        layer.__dict__["forward"]
        .__closure__[[*layer.__dict__["forward"].__code__.co_freevars].index("self")]
        .cell_contents
    )


def fused_modules(backbone):
    return [layer for layer in backbone.trunk.layers if "forward" in layer.__dict__]


@pytest.mark.parametrize("kind", WHOLE)
def test_states_gradients_and_samples_match_the_modules(whole_folders, kind, monkeypatch):
    ours, our_samples = run_model(*(pair := load_model(whole_folders[kind], monkeypatch, KNOWN, "a", "b")))
    assert len(fused_modules(pair[0])) == 2
    theirs, their_samples = run_model(*(pair := load_model(whole_folders[kind], monkeypatch, (), "a", "b")))
    assert not fused_modules(pair[0])
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5 * float(other.abs().max()))
    assert our_samples.tokens == their_samples.tokens
    for mine, other in zip(our_samples.logprobs, their_samples.logprobs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("kind", WHOLE)
def test_bfloat16_is_as_accurate_as_the_modules(whole_folders, kind, monkeypatch):
    """Exact values: float32 with the bfloat16 weights. Errors are relative to the norm of each tensor."""
    half = load_model(whole_folders[kind], monkeypatch, KNOWN, "a", dtype=torch.bfloat16)
    assert len(fused_modules(half[0])) == 2
    modules = load_model(whole_folders[kind], monkeypatch, (), "a", dtype=torch.bfloat16)
    exact = load_model(whole_folders[kind], monkeypatch, (), "a")
    for mine, other in zip(exact[0].model.parameters(), modules[0].model.parameters(), strict=True):
        mine.data.copy_(other.float() if other.dtype == torch.bfloat16 else other)
    (expected, _), (ours, samples), (theirs, _) = (run_model(*pair) for pair in (exact, half, modules))

    def error(found):
        shares = [((a.float() - b).norm() / b.norm()).square() for a, b in zip(found, expected, strict=True)]
        return float(torch.stack(shares).mean().sqrt())

    assert error(ours) < 0.1
    assert error(ours) < 1.1 * error(theirs)
    assert {one.dtype for one in ours[2:]} == {torch.float32}
    backbone, adapters = exact
    prompts = [tiny_models.ids("the cat"), tiny_models.ids("moon"), tiny_models.ids("so the old")]
    rows = make_batch(backbone, prompts, samples.tokens)
    with torch.no_grad(), adapters.using("a"):
        logprobs = backbone.logits(forward(backbone, rows).before_token).log_softmax(-1)
    for row, tokens, found in zip(logprobs, samples.tokens, samples.logprobs, strict=True):
        assert found == pytest.approx([float(row[i, token]) for i, token in enumerate(tokens)], abs=0.25)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN here")
def test_states_gradients_and_samples_by_onednn(whole_folders, monkeypatch):
    """With slices of a wider tensor, transposed weights, few rows, and packed weights."""
    theirs, their_samples = run_model(*load_model(whole_folders["qwen2"], monkeypatch, (), "a"))
    for name, value in {"USE_ONEDNN": True, "MIN_MULTIPLICATIONS": 1, "MIN_MULTIPLICATIONS_PACKED": 1}.items():
        monkeypatch.setattr(matmul, name, value)
    packed, reorder = [], torch.ops.mkldnn._reorder_linear_weight
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda x: packed.append(x) or reorder(x))
    ours, our_samples = run_model(*(pair := load_model(whole_folders["qwen2"], monkeypatch, KNOWN, "a")))
    assert len(fused_modules(pair[0])) == 2
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5 * float(other.abs().max()))
    assert our_samples.tokens == their_samples.tokens
    for mine, other in zip(our_samples.logprobs, their_samples.logprobs, strict=True):
        assert mine == pytest.approx(other, abs=1e-4)
    assert max(map(len, our_samples.tokens)) > 2
    assert len(packed) == 2 * 5 + 1, "each weight of a layer and the head's once, whatever is sampled"


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch has no oneDNN here")
def test_nested_work_while_sampling_with_packed_weights(llama_folder, monkeypatch):
    """Another adapter computes and samples between two tokens, in the tensors that hold the first one's merged weights."""
    for name, value in {"USE_ONEDNN": True, "MIN_MULTIPLICATIONS": 1, "MIN_MULTIPLICATIONS_PACKED": 1}.items():
        monkeypatch.setattr(matmul, name, value)
    monkeypatch.setattr(sampler, "PROGRESS_EVERY", 2)
    layouts, reorder = weakref.WeakSet(), torch.ops.mkldnn._reorder_linear_weight

    def recorded_reorder(weight):
        layouts.add(layout := reorder(weight))
        return layout

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", recorded_reorder)
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a", "b")
    prompts, lengths = [tiny_models.ids("the cat"), tiny_models.ids("moon"), tiny_models.ids("so the old")], []

    def other_work():
        lengths.append(len(layouts))
        with torch.no_grad(), adapters.using("b"):
            backbone.hidden(IDS)
        with adapters.using("b", merged=True):
            sample(backbone, prompts[:2], uniforms([4, 5], 3))

    with adapters.using("a", merged=True):
        undisturbed = sample(backbone, prompts, uniforms([1, 2, 3], 9))
        assert not layouts
        disturbed = sample(backbone, prompts, uniforms([1, 2, 3], 9), on_progress=other_work)
    assert lengths
    assert min(lengths) >= 2 * 5 + 1
    assert disturbed == undisturbed
    assert not layouts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_new_adapter_is_bit_identical_to_the_reference(whole_folders, monkeypatch, dtype):
    backbone, _ = load_model(whole_folders["qwen2"], monkeypatch, KNOWN, dtype=dtype)
    adapters = tiny_models.Adapters(backbone)
    with torch.no_grad():
        before = backbone.hidden(IDS)
        adapters.add("a", r=4, alpha=8, seed=0, trainable=True)
        for name in (None, "a"):
            with adapters.using(name):
                assert torch.equal(backbone.hidden(IDS), before)


def test_qkv_weights_are_views_of_one_tensor(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    run_model(backbone, adapters)
    adapters.remove("a")
    assert len(fused_modules(backbone)) == 2
    fresh = LlamaForCausalLM.from_pretrained(llama_folder)
    for (name, mine), (_, theirs) in zip(backbone.model.named_parameters(), fresh.named_parameters(), strict=True):
        assert torch.equal(mine, theirs) or "norm" in name, name
    attention = backbone.trunk.layers[0].self_attn
    storages = {
        one.weight.untyped_storage().data_ptr() for one in (attention.q_proj, attention.k_proj, attention.v_proj)
    }
    assert len(storages) == 1


def test_the_merged_weights_follow_an_optimiser_step(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    optimiser = torch.optim.Adam(adapters.parameters("a"), lr=0.1)
    with adapters.using("a"):
        backbone.hidden(IDS).square().sum().backward()
        optimiser.step()
        after = backbone.hidden(IDS).detach()
    other, plain = load_model(llama_folder, monkeypatch, (), "a")
    plain.load_tensors("a", adapters.tensors("a"))
    with plain.using("a"):
        torch.testing.assert_close(after, other.hidden(IDS).detach(), rtol=1e-4, atol=1e-4)


def test_modules_compute_long_and_masked_sequences(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    monkeypatch.setattr(patch, "fused_layer", lambda *_: pytest.fail("computed as one function"))
    with torch.no_grad(), adapters.using("a"):
        hidden = backbone.trunk(
            input_ids=IDS, attention_mask=torch.ones_like(IDS).index_fill(1, torch.tensor([0]), 0), use_cache=False
        )
        assert hidden.last_hidden_state.shape == (2, 8, 32)
        for layer in backbone.trunk.layers:
            monkeypatch.setattr(fused_layer_of(layer), "max_length", 7)
        longer = backbone.hidden(IDS)
    other, plain = load_model(llama_folder, monkeypatch, (), "a")
    with torch.no_grad(), plain.using("a"):
        torch.testing.assert_close(longer, other.hidden(IDS), rtol=1e-4, atol=1e-4)


def test_gradients_of_mixed_lengths_by_modules_and_fused_layers(llama_folder, monkeypatch):
    """The modules merge q, k and v one after the other into the tensor that the fused layer uses."""
    found = []
    for known in (KNOWN, ()):
        backbone, adapters = load_model(llama_folder, monkeypatch, known, "a")
        for layer in fused_modules(backbone):
            monkeypatch.setattr(fused_layer_of(layer), "max_length", 5)
        with adapters.using("a"):
            with torch.no_grad():
                backbone.hidden(IDS[:, :5])
                for parameter in adapters.parameters("a"):
                    parameter.mul_(1.5)
            hidden = backbone.hidden(IDS)
            (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
        found.append([parameter.grad for parameter in adapters.parameters("a")])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5 * float(other.abs().max()))


def test_backward_after_modules_overwrote_the_merged_weights_is_refused(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a", "b")
    with adapters.using("a"):
        hidden = backbone.hidden(IDS)
    for layer in fused_modules(backbone):
        monkeypatch.setattr(fused_layer_of(layer), "max_length", 5)
    with torch.no_grad(), adapters.using("b"):
        backbone.hidden(IDS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        hidden.sum().backward()


@pytest.mark.parametrize("first", [0, 3, 7])
def test_hidden_states_from_start_pos_match_the_modules(llama_folder, monkeypatch, first):
    """With fused layers, which skip the other positions, and with modules."""
    found, shapes = [], []
    for known in (KNOWN, ()):
        backbone, adapters = load_model(llama_folder, monkeypatch, known, "a")
        backbone.trunk.norm.register_forward_pre_hook(lambda _, given: shapes.append(given[0].shape[:-1].numel()))
        with adapters.using("a"):
            hidden = backbone.hidden(IDS, first)
            (hidden * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
            after = backbone.trunk(input_ids=IDS, use_cache=False).last_hidden_state.detach()
        assert hidden.shape == (2, 8 - first, 32)
        torch.testing.assert_close(hidden.detach(), after[:, first:], rtol=1e-4, atol=1e-5)
        found.append([hidden.detach(), *(parameter.grad for parameter in adapters.parameters("a"))])
    assert shapes == [2 * (8 - first), 2 * 8, 2 * 8, 2 * 8]
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5 * float(other.abs().max()))


def test_max_length_is_the_shortest_window(llama_folder, monkeypatch):
    """With kernels; with torch operations at most six times the head size."""
    layers, found = tiny_models.load(llama_folder).trunk.layers, []
    most = 6 * layers[0].self_attn.head_dim
    layers[1].self_attn.sliding_window = most + 2
    for takes in (True, False):
        monkeypatch.setattr(c_ops, "supported", lambda *_, takes=takes: takes)
        found.append([patch.FusedLayer(layer).max_length for layer in layers])
    assert found == [[math.inf, most + 2], [most, most]]
    backbone, _ = load_model(llama_folder, monkeypatch, KNOWN, "a")
    whole, trunk = backbone.fused_layers, backbone.trunk
    for lengths, is_available in (((math.inf, 8), True), ((math.inf, 7), False), ((7, 8), False)):
        for layer, length in zip(fused_modules(backbone), lengths, strict=True):
            fused_layer_of(layer).max_length = length
        assert (whole.hidden_states(trunk, IDS, 0) is not None) is is_available


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("by_kernels", [False, True])
def test_decode_step_matches_the_trunk(whole_folders, kind, padded, by_kernels, monkeypatch):
    """With and without an adapter; the padding before shorter prompts is not attended to."""
    if not by_kernels:
        monkeypatch.setattr(c_ops, "supported", lambda *_: False)
    prompts = (
        [tiny_models.ids("the cat sat"), tiny_models.ids("moon . so")]
        if not padded
        else [tiny_models.ids("the cat sat"), [9]]
    )
    found = []
    for known in (KNOWN, ()):
        backbone, adapters = load_model(whole_folders[kind], monkeypatch, known, "a")
        ids, mask = pad_left(prompts, backbone.pad_id, backbone.device)
        states = []
        for name in ("a", None):
            with torch.no_grad(), adapters.using(name, merged=True):
                cache, positions = reserved_cache(backbone.model.config, 3), (mask.cumsum(1) - 1).clamp_min(0)
                given = {"attention_mask": mask, "position_ids": positions, "past_key_values": cache}
                backbone.trunk(input_ids=ids, **given, use_cache=True)
                step, longer, at = backbone.fused_layers.decode_step(backbone.trunk, padded), mask, positions[:, -1:]
                assert (step is None) is (known == ())
                for token in (9, 17):
                    longer, at = torch.cat([longer, longer.new_ones(2, 1)], 1), at + 1
                    words, given = torch.tensor([[token], [token + 1]]), {"position_ids": at, "past_key_values": cache}
                    states += [
                        step(words, at, longer, cache)
                        if step is not None
                        else backbone.trunk(input_ids=words, attention_mask=longer, **given).last_hidden_state[:, -1]
                    ]
        found.append(states)
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["window", "another precision", "another trunk", "no model", "rotation by length"])
def test_no_decode_step_for_unsupported_trunks(llama_folder, monkeypatch, case):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    whole, trunk = backbone.fused_layers, backbone.trunk
    with torch.no_grad(), adapters.using("a"):
        assert whole.decode_step(trunk, False) is not None
        if case == "window":
            trunk.config.sliding_window = 60
        elif case == "another precision":
            trunk.double()
        elif case == "rotation by length":
            trunk.rotary_emb.rope_type = "dynamic"
        elif case == "another trunk":
            trunk.__class__ = type("GemmaModel", (type(trunk),), {})
        else:
            whole = FusedLayers()
        try:
            assert whole.decode_step(trunk, False) is None
            assert (whole.hidden_states(trunk, IDS, 0) is None) is (case != "window")  # shorter than any window
        finally:
            trunk.float()


def test_no_decode_step_if_a_layer_uses_its_module(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    parts = adapters._lora_weights["a"]
    parts[3] = parts[3]._replace(scale=7.0)
    with torch.no_grad(), adapters.using("a"):
        assert backbone.fused_layers.decode_step(backbone.trunk, False) is None
    with torch.no_grad(), adapters.using(None):
        assert backbone.fused_layers.decode_step(backbone.trunk, False) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("wrong", ["layer", "weights", "states", "next token", "next token, a little"])
def test_a_model_is_verified_when_it_is_loaded(whole_folders, kind, dtype, wrong, monkeypatch, caplog):
    """The modules are used if fused layers give other results, as they might with another version of transformers."""
    model = tiny_models.load(whole_folders[kind], dtype).model
    expected = model.base_model(input_ids=IDS).last_hidden_state
    assert fused_modules(SimpleNamespace(trunk=model.base_model))
    if wrong == "layer":
        monkeypatch.setattr(patch, "fused_layer", lambda x, *_: 1.5 * x)
    elif wrong == "weights":
        monkeypatch.setattr(
            patch, "LayerWeights", lambda *args: LayerWeights(*args)._replace(norms=(2 * args[5][0], args[5][1]))
        )
    elif wrong == "states":
        monkeypatch.setattr(FusedLayers, "hidden_states", lambda _, trunk, ids, __: 1.5 * trunk(ids).last_hidden_state)
    elif wrong == "next token":
        monkeypatch.setattr(DecodeStep, "__call__", lambda _, ids, *__: torch.ones(1, 32, dtype=dtype) * ids)
    else:
        original = DecodeStep.__call__
        monkeypatch.setattr(DecodeStep, "__call__", lambda *step_args: 1.15 * original(*step_args))
    patched = patch.patch_model(model)
    assert not patched.available
    assert "gave other results" in caplog.text
    assert not fused_modules(SimpleNamespace(trunk=model.base_model))
    by_modules = model.base_model(input_ids=IDS).last_hidden_state
    torch.testing.assert_close(by_modules, expected, rtol=0.1, atol=0.3 if dtype == torch.bfloat16 else 1e-3)
    monkeypatch.undo()
    assert patch.patch_model(model).available
    assert len(fused_modules(SimpleNamespace(trunk=model.base_model))) == 2


def test_layers_with_two_lora_scales_use_the_modules(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a", "b")
    parts = adapters._lora_weights["a"]
    parts[3] = parts[3]._replace(scale=7.0)
    with adapters.using("a"):
        assert len(fused_modules(backbone)) == 1
    with adapters.using("b"):
        assert len(fused_modules(backbone)) == 2


def test_a_model_moved_to_another_dtype_uses_its_modules(llama_folder, monkeypatch):
    backbone, _ = load_model(llama_folder, monkeypatch, KNOWN)
    before = backbone.hidden(IDS)
    backbone.model.double()
    assert torch.allclose(backbone.hidden(IDS), before.double(), atol=1e-4)


def test_last_norm_in_another_dtype(llama_folder):
    """A norm in float32 after layers in bfloat16 works too."""
    model = tiny_models.load(llama_folder, torch.bfloat16).model
    model.model.norm.float()
    assert patch.patch_model(model).available


def test_projections_in_another_dtype(llama_folder, monkeypatch):
    """As under autocast in a program that uses the package."""
    backbone, _ = load_model(llama_folder, monkeypatch, KNOWN)
    expected = backbone.hidden(IDS)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = backbone.hidden(IDS)
        written = sample(backbone, [tiny_models.ids("the cat sat")], uniforms([1], 4))
    assert float((found - expected).norm() / expected.norm()) < 0.03
    assert torch.tensor(written.logprobs[0]).isfinite().all()


@pytest.mark.parametrize(
    "case",
    [
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
        {"attention_bias": True},
        "float64",
        "a norm in half precision",
        "window",
        "another kind",
        "adapter",
    ],
)
def test_unsupported_layers(case):
    model = LlamaForCausalLM(LlamaConfig(**SHARED, **(case if isinstance(case, dict) else {})))
    if case == "window":
        model = MistralForCausalLM(MistralConfig(**SHARED, sliding_window=4, head_dim=8))
    layer = model.model.layers[0]
    assert not isinstance(case, str) or case == "window" or is_supported(layer)
    if case == "float64":
        layer.mlp.up_proj.double()
    elif case == "a norm in half precision":
        layer.post_attention_layernorm.bfloat16()
    elif case == "another kind":
        layer = model.model.norm
    elif case == "adapter":
        layer.self_attn.k_proj = torch.nn.Sequential(layer.self_attn.k_proj)
    assert not is_supported(layer)


def test_longer_sequences_extend_the_rope_tables(llama_folder, monkeypatch):
    """The angles are computed once per pass."""
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    with torch.no_grad(), adapters.using("a"):
        short, long = backbone.hidden(IDS[:, :3]), backbone.hidden(IDS)
    torch.testing.assert_close(long[:, :3], short, rtol=1e-4, atol=1e-5)
    other, plain = load_model(llama_folder, monkeypatch, (), "a")
    with torch.no_grad(), plain.using("a"):
        torch.testing.assert_close(long, other.hidden(IDS), rtol=1e-4, atol=1e-4)


def test_an_adapter_added_later_is_merged(llama_folder, monkeypatch):
    """Adding one creates new merged weights for all adapters."""
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    with torch.no_grad(), adapters.using("a"):
        backbone.hidden(IDS)
    adapters.add("b", r=4, alpha=8, seed=1, trainable=True)
    tiny_models.disturb(adapters, "b", 6)
    other, plain = load_model(llama_folder, monkeypatch, (), "a", "b")
    for name in ("b", "a"):
        plain.load_tensors(name, adapters.tensors(name))
        with torch.no_grad(), adapters.using(name), plain.using(name):
            torch.testing.assert_close(backbone.hidden(IDS), other.hidden(IDS), rtol=1e-4, atol=1e-4)


def test_a_layer_merged_by_its_module_is_merged_again(llama_folder, monkeypatch):
    """A pass of the modules before the first fused pass leaves merged weights in other tensors."""
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    with torch.no_grad(), adapters.using("a"):
        with monkeypatch.context() as patch:
            for layer in backbone.trunk.layers:
                patch.setattr(fused_layer_of(layer), "max_length", 0)
            by_modules = backbone.hidden(IDS)
        torch.testing.assert_close(backbone.hidden(IDS), by_modules, rtol=1e-4, atol=1e-4)


def test_no_merged_weight_outlives_its_adapter(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    with torch.no_grad(), adapters.using("a"):
        backbone.hidden(IDS)
    whole = [fused_layer_of(layer) for layer in backbone.trunk.layers]
    assert all(one.weight_cache is not None for one in whole)
    adapters.remove("a")
    assert all(one.weight_cache is None for one in whole)


def test_an_unreferenced_model_is_freed_at_once(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN)
    weight = weakref.ref(backbone.trunk.layers[0].mlp.up_proj.weight)
    gc.disable()
    try:
        del backbone, adapters
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("case", ["training", "weights"])
def test_a_trainable_model_uses_its_modules(llama_folder, monkeypatch, case):
    backbone, _ = load_model(llama_folder, monkeypatch, KNOWN)
    if case == "training":
        backbone.model.train()
        assert not torch.equal(backbone.hidden(IDS), backbone.hidden(IDS))  # half of the attention drops out
    else:
        backbone.model.requires_grad_(True)
        backbone.hidden(IDS).square().sum().backward()
        assert all(layer.self_attn.q_proj.weight.grad is not None for layer in backbone.trunk.layers)


def test_gradients_with_a_cache_use_the_modules(llama_folder, monkeypatch):
    backbone, adapters = load_model(llama_folder, monkeypatch, KNOWN, "a")
    with adapters.using("a"):
        cached = backbone.trunk(input_ids=IDS, use_cache=True).last_hidden_state
        weight = torch.linspace(-1, 1, cached.numel()).view_as(cached)
        found = [
            torch.autograd.grad((states * weight).sum(), adapters.parameters("a"))
            for states in (cached, backbone.hidden(IDS))
        ]
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-5 * float(other.abs().max()))


def test_changed_weights_and_biases_are_used(whole_folders, monkeypatch):
    backbone, _ = load_model(whole_folders["qwen2"], monkeypatch, KNOWN)
    other, _ = load_model(whole_folders["qwen2"], monkeypatch, ())
    changed = {name: tensor + 0.1 for name, tensor in other.model.state_dict().items()}
    for model in (backbone.model, other.model):
        model.load_state_dict(changed)
    with torch.no_grad():
        torch.testing.assert_close(backbone.hidden(IDS), other.hidden(IDS), rtol=1e-4, atol=1e-4)
