"""Models in bfloat16 with layers in C: they are more accurate than the modules; and whole runs."""

import pytest
import torch
from support import tiny_models
from support.algorithm_names import ONLINE_ALGORITHMS
from support.model_families import WHOLE

from rlhf_lab.kernels import amx_layer, c_ops, matmul
from rlhf_lab.models.batch import forward, make_batch
from rlhf_lab.models.fused_llama import patch
from rlhf_lab.models.sampling.sampler import sample, uniforms

if not tiny_models.layer_backends():
    pytest.skip("no C compiler here, or nothing that multiplies bfloat16", allow_module_level=True)

HALF = torch.bfloat16
UNITS = pytest.mark.parametrize("units", tiny_models.layer_backends())
IDS = torch.randint(5, len(tiny_models.WORDS), (6, 20), generator=torch.Generator().manual_seed(0))
PROMPTS = [tiny_models.ids("the cat"), tiny_models.ids("moon"), tiny_models.ids("so the old")]


def amx_layer_of(backbone):
    return [fused.amx_layer is not None for fused in backbone.fused_layers._layers]


def load_model(folder, *names, dtype=HALF, known=patch.SUPPORTED_LAYERS, monkeypatch=None):
    """A model with non-zero biases, norms other than 1, and adapters that have an effect."""
    if monkeypatch is not None:
        monkeypatch.setattr(patch, "SUPPORTED_LAYERS", known)
    backbone = tiny_models.load(folder, dtype)
    with torch.no_grad():
        for module in backbone.trunk.layers:
            for i, (name, parameter) in enumerate(sorted(module.named_parameters())):
                if name.endswith("bias") or "norm" in name:
                    noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
                    parameter.add_(0.3 * noise.to(dtype))
    return backbone, tiny_models.adapters_of(backbone, *names)


def run_model(backbone, adapters, ids=IDS):
    """States and gradients under the adapter, states of the reference and from the third position on, and samples."""
    with adapters.using("a"):
        hidden = backbone.hidden(ids)
        (hidden.float() * torch.linspace(-1, 1, hidden.numel()).view_as(hidden)).sum().backward()
    with torch.no_grad(), adapters.using(None):
        reference, later = backbone.hidden(ids), backbone.hidden(ids, 2)
    with adapters.using("a", merged=True):
        samples = sample(backbone, PROMPTS, uniforms([1, 2, 3], 9))
    return [hidden.detach(), reference, later, *(p.grad for p in adapters.parameters("a"))], samples


@UNITS
@pytest.mark.parametrize("kind", WHOLE)
def test_amx_layers_are_as_accurate_as_the_modules(units, kind, tiled_folders, monkeypatch):
    """Exact values: float32 with the bfloat16 weights. Errors are relative to the norm of each tensor."""
    tiny_models.use_layer_backend(units, monkeypatch)
    folder, known = tiled_folders[kind], patch.SUPPORTED_LAYERS
    ours = load_model(folder, "a")
    assert amx_layer_of(ours[0]) == [True, True]
    modules = load_model(folder, "a", known=(), monkeypatch=monkeypatch)
    exact = load_model(folder, "a", dtype=torch.float32, known=(), monkeypatch=monkeypatch)
    monkeypatch.setattr(patch, "SUPPORTED_LAYERS", known)
    for mine, other in zip(exact[0].model.parameters(), modules[0].model.parameters(), strict=True):
        mine.data.copy_(other.float() if other.dtype == HALF else other)
    (expected, _), (found, samples), (theirs, _) = (run_model(*pair) for pair in (exact, ours, modules))

    def error(found):
        shares = [((a.float() - b).norm() / b.norm()).square() for a, b in zip(found, expected, strict=True)]
        return float(torch.stack(shares).mean().sqrt())

    assert error(found) < 0.1
    assert error(found) < 1.1 * error(theirs)
    backbone, adapters = exact
    rows = make_batch(backbone, PROMPTS, samples.tokens)
    with torch.no_grad(), adapters.using("a"):
        logprobs = backbone.logits(forward(backbone, rows).before_token).log_softmax(-1)
    for row, tokens, actual in zip(logprobs, samples.tokens, samples.logprobs, strict=True):
        assert actual == pytest.approx([float(row[i, token]) for i, token in enumerate(tokens)], abs=0.25)


@UNITS
def test_a_new_adapter_is_bit_identical_to_the_reference(units, tiled_folders, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    backbone, _ = load_model(tiled_folders["qwen2"])
    adapters = tiny_models.Adapters(backbone)
    with torch.no_grad():
        before = backbone.hidden(IDS)
        adapters.add("a", r=4, alpha=8, seed=0, trainable=True)
        for name in (None, "a"):
            with adapters.using(name):
                assert torch.equal(backbone.hidden(IDS), before)


@UNITS
@pytest.mark.parametrize("other_rank", [False, True])
def test_gradient_after_another_adapter_overwrote_the_update_is_refused(units, other_rank, tiled_folders, monkeypatch):
    """An adapter of another rank has its own buffer."""
    tiny_models.use_layer_backend(units, monkeypatch)
    backbone, adapters = load_model(tiled_folders["llama"], "a", "b")
    if other_rank:
        adapters.add("c", r=6, alpha=8, seed=3, trainable=True)
    with adapters.using("a"):
        hidden = backbone.hidden(IDS)
    with torch.no_grad(), adapters.using("c" if other_rank else "b"):
        backbone.hidden(IDS)
    if other_rank:
        hidden.sum().backward()
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            hidden.sum().backward()


@UNITS
@pytest.mark.parametrize("what", ["mlp.up_proj.weight", "input_layernorm.weight"])
def test_gradient_after_the_weights_changed_is_refused(units, what, tiled_folders, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    backbone, adapters = load_model(tiled_folders["qwen2"], "a")
    with adapters.using("a"):
        hidden = backbone.hidden(IDS)
        layer, named = backbone.trunk.layers[1], what.replace("proj.", "proj.base_layer.")
        with torch.no_grad():
            dict(layer.named_parameters())[named].mul_(1.5)
            backbone.hidden(IDS)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            hidden.sum().backward()


@UNITS
def test_changed_weights_are_used(units, tiled_folders, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    backbone, adapters = load_model(tiled_folders["llama"], "a")
    with torch.no_grad(), adapters.using("a"):
        backbone.logits(backbone.hidden(IDS))
        for name, parameter in backbone.model.named_parameters():
            if "lora_" not in name:
                parameter.mul_(1.25)
        found = backbone.logits(backbone.hidden(IDS))
        assert amx_layer_of(backbone) == [True, True]
    monkeypatch.setattr(c_ops, "supported", lambda *_: False)
    modules, others = load_model(tiled_folders["llama"], "a", known=(), monkeypatch=monkeypatch)
    with torch.no_grad():
        for mine, theirs in zip(modules.model.parameters(), backbone.model.parameters(), strict=True):
            mine.copy_(theirs)
        with others.using("a"):
            expected = modules.logits(modules.hidden(IDS)).float()
    assert float((found.float() - expected).norm() / expected.norm()) < 0.05


@UNITS
def test_a_layer_with_other_results_uses_its_module(units, tiled_folders, monkeypatch, caplog):
    tiny_models.use_layer_backend(units, monkeypatch)
    call = amx_layer._call_kernel

    def wrong(name, *args):
        return call(name, *args[:-2], 0, args[-1]) if name == "layer_post_attention" else call(name, *args)  # no rows

    monkeypatch.setattr(amx_layer, "_call_kernel", wrong)
    backbone = tiny_models.load(tiled_folders["llama"], HALF)
    assert not backbone.fused_layers.available
    assert "gave other results" in caplog.text


def test_unsupported_sizes_and_dtypes_have_no_amx_layer(llama_folder, tiled_folders, monkeypatch):
    tiny_models.use_layer_backend(tiny_models.layer_backends()[0], monkeypatch)
    assert amx_layer_of(tiny_models.load(llama_folder, HALF)) == [False, False]
    assert amx_layer_of(tiny_models.load(tiled_folders["llama"])) == [False, False]
    monkeypatch.setenv("RLHF_LAB_KERNELS", "0")
    from rlhf_lab.kernels import compile

    compile._load_or_explain.cache_clear()
    assert amx_layer_of(tiny_models.load(tiled_folders["llama"], HALF)) == [False, False]


# --- runs ---


def trainer(folder, algorithm="ppo", dtype=HALF, **changes):
    return tiny_models.learner(folder, algorithm, dtype, **{"batch_size": 6, "token_rows": 0, **changes})


@UNITS
@pytest.mark.parametrize("algorithm", ONLINE_ALGORITHMS)
def test_every_algorithm_takes_the_step_of_float32(units, algorithm, tiled_folders, monkeypatch):
    """Up to rounding."""
    tiny_models.use_layer_backend(units, monkeypatch)
    found = []
    for dtype in (HALF, torch.float32):
        one = tiny_models.midway(tiled_folders["llama"], algorithm, dtype, batch_size=6, token_rows=0)
        prompts, responses = tiny_models.ragged(rows=6)
        prompts = [prompts[i // 2 * 2] for i in range(6)]
        found.append(
            one.step(prompts, [one.backbone.decode(row) for row in responses], torch.linspace(-1, 1, 6)).metrics
        )
    half, exact = found
    for name, rel, most in (("objective/kl", 0, 0.1), ("objective/entropy", 0.01, 0), ("grad_norm", 0.05, 0)):
        assert half[name] == pytest.approx(exact[name], rel=rel, abs=most), name


@UNITS
def test_a_step_calls_every_amx_function(units, tiled_folders, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    called = set()
    for module in (amx_layer, c_ops):
        call = module._call_kernel

        def note(name, *args, call=call):
            called.add(name)
            return call(name, *args)

        monkeypatch.setattr(module, "_call_kernel", note)
    tiny_models.run(trainer(tiled_folders["llama"], steps=1), 1)
    assert set(amx_layer.SIGNATURES) <= called
    assert (
        not {
            "causal_attention",
            "causal_attention_backward",
            "rms_norm_backward",
            "lora_grads",
            "swiglu",
            "swiglu_backward",
        }
        & called
    ), "they are within layers"


@UNITS
def test_a_resumed_run_is_bit_identical(units, tiled_folders, monkeypatch):
    tiny_models.use_layer_backend(units, monkeypatch)
    config = {"steps": 4, "max_new_tokens": 6}
    uninterrupted = trainer(tiled_folders["mistral"], **config)
    expected = [tiny_models.numbers(result.metrics) for result in tiny_models.run(uninterrupted, 4)]
    first = trainer(tiled_folders["mistral"], **config)
    tiny_models.run(first, 2)
    resumed = trainer(tiled_folders["mistral"], **config)
    resumed.state.load_state_dict(*first.state.state_dict())
    assert [tiny_models.numbers(result.metrics) for result in tiny_models.run(resumed, 2)] == expected[2:]
    assert tiny_models.same(tiny_models.weights(resumed), tiny_models.weights(uninterrupted))


@UNITS
def test_the_gradient_does_not_depend_on_micro_batches(units, tiled_folders, monkeypatch):
    """Up to rounding: rows do not depend on the batch, sums over texts are float32."""
    tiny_models.use_layer_backend(units, monkeypatch)
    norms = []
    for size in (1, 2, 6):
        one = trainer(tiled_folders["llama"], epochs=1, minibatches=1, micro_batch=size)
        norms.append(tiny_models.run(one, 1)[0].metrics["grad_norm"])
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)


# --- the vocabulary head ---


@UNITS
def test_lm_head_products_use_our_kernels_in_both_directions(units, tiled_folders, monkeypatch):
    """For the weight and its transpose, also after a change; other tensors at its address are not mistaken for it."""
    tiny_models.use_layer_backend(units, monkeypatch)
    weight = torch.nn.Parameter(
        torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(HALF), requires_grad=False
    )
    matmul.register_weight(weight)
    calls, linear = [], amx_layer.tiled_linear
    monkeypatch.setattr(amx_layer, "tiled_linear", lambda x, *rest: calls.append(tuple(x.shape)) or linear(x, *rest))
    x, grad_output = torch.randn(5, 32).to(HALF), torch.randn(5, 64).to(HALF)
    for _ in range(2):
        for inputs, matrix in ((x, weight), (grad_output, weight.t())):
            torch.testing.assert_close(
                matmul.linear(inputs, matrix).float(), inputs.float() @ matrix.float().t(), rtol=0.01, atol=0.01
            )
        weight.mul_(2)
    assert calls == [(5, 32), (5, 64)] * 2
    learning = x.clone().requires_grad_()
    matmul.linear(learning, weight).float().sum().backward()
    torch.testing.assert_close(learning.grad.float(), weight.float().sum(0).expand(5, -1), rtol=0.01, atol=0.01)
    assert calls[4:] == [(5, 32), (5, 64)]
    for other in (weight[:32], weight.view(32, 64), weight.detach().requires_grad_()):
        matmul.linear(torch.ones(1, other.shape[1], dtype=HALF), other)
    matmul.linear(x.float(), weight.float())
    assert len(calls) == 6
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        matmul.linear(grad_output, weight)
    del weight, matrix, other
    assert not [entry for entry in matmul._registered_weights.values() if entry._weight() is None]


@UNITS
def test_a_moved_weight_is_not_found_at_its_old_address(units, monkeypatch):
    """Freeing the moved weight does not remove another one registered at the old address."""
    tiny_models.use_layer_backend(units, monkeypatch)
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(HALF)
    there = weight.data  # the same memory, whose changes do not count as changes of the weight
    matmul.register_weight(weight)
    matmul.linear(torch.ones(1, 32, dtype=HALF), weight)
    weight.data = weight.clone()
    there.zero_()
    assert not matmul.linear(torch.ones(1, 32, dtype=HALF), there).any()
    matmul.register_weight(there)
    del weight
    assert there.data_ptr() in matmul._registered_weights
