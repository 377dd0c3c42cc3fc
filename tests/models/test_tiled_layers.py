"""Models in bfloat16 whose layers are computed in C: nearer the exact numbers than the modules, and whole runs."""

import pytest
import tiny
import torch
from families import WHOLE

from rlhf_lab.config import ALGORITHMS
from rlhf_lab.core import products
from rlhf_lab.fused import calls, tiled
from rlhf_lab.models import decoder_layers
from rlhf_lab.models.generation import sample, uniforms
from rlhf_lab.models.rows import forward, make_rows

if not tiny.units():
    pytest.skip("no C compiler here, or nothing that multiplies bfloat16", allow_module_level=True)

HALF = torch.bfloat16
UNITS = pytest.mark.parametrize("units", tiny.units())
IDS = torch.randint(5, len(tiny.WORDS), (6, 20), generator=torch.Generator().manual_seed(0))
PROMPTS = [tiny.ids("the cat"), tiny.ids("moon"), tiny.ids("so the old")]


def in_c(backbone):
    return [whole.in_c is not None for whole in backbone.whole._layers]


def loaded(folder, *names, dtype=HALF, known=decoder_layers.KNOWN, monkeypatch=None):
    """Biases that do something, norms that are not one; under adapters that do something."""
    if monkeypatch is not None:
        monkeypatch.setattr(decoder_layers, "KNOWN", known)
    backbone = tiny.load(folder, dtype)
    with torch.no_grad():
        for module in backbone.trunk.layers:
            for i, (name, parameter) in enumerate(sorted(module.named_parameters())):
                if name.endswith("bias") or "norm" in name:
                    noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
                    parameter.add_(0.3 * noise.to(dtype))
    return backbone, tiny.adapters_of(backbone, *names)


def outcome(backbone, adapters, ids=IDS):
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
def test_it_is_as_near_the_exact_numbers_as_the_modules(units, kind, tiled_folders, monkeypatch):
    """Exact: float32 with the weights that bfloat16 has. Every number counts by its share of its own tensor's size."""
    tiny.multiply_by(units, monkeypatch)
    folder, known = tiled_folders[kind], decoder_layers.KNOWN
    ours = loaded(folder, "a")
    assert in_c(ours[0]) == [True, True]
    modules = loaded(folder, "a", known=(), monkeypatch=monkeypatch)
    exact = loaded(folder, "a", dtype=torch.float32, known=(), monkeypatch=monkeypatch)
    monkeypatch.setattr(decoder_layers, "KNOWN", known)
    for mine, other in zip(exact[0].model.parameters(), modules[0].model.parameters(), strict=True):
        mine.data.copy_(other.float() if other.dtype == HALF else other)
    (expected, _), (found, samples), (theirs, _) = (outcome(*pair) for pair in (exact, ours, modules))

    def error(found):
        shares = [((a.float() - b).norm() / b.norm()).square() for a, b in zip(found, expected, strict=True)]
        return float(torch.stack(shares).mean().sqrt())

    assert error(found) < 0.1
    assert error(found) < 1.1 * error(theirs)
    backbone, adapters = exact
    rows = make_rows(backbone, PROMPTS, samples.tokens)
    with torch.no_grad(), adapters.using("a"):
        logprobs = backbone.logits(forward(backbone, rows).predicting).log_softmax(-1)
    for row, tokens, said in zip(logprobs, samples.tokens, samples.logprobs, strict=True):
        assert said == pytest.approx([float(row[i, token]) for i, token in enumerate(tokens)], abs=0.25)


@UNITS
def test_a_fresh_adapter_is_the_reference_to_the_last_bit(units, tiled_folders, monkeypatch):
    tiny.multiply_by(units, monkeypatch)
    backbone, _ = loaded(tiled_folders["qwen2"])
    adapters = tiny.Adapters(backbone)
    with torch.no_grad():
        before = backbone.hidden(IDS)
        adapters.add("a", r=4, alpha=8, seed=0, trainable=True)
        for name in (None, "a"):
            with adapters.using(name):
                assert torch.equal(backbone.hidden(IDS), before)


@UNITS
@pytest.mark.parametrize("other_rank", [False, True])
def test_a_gradient_whose_update_another_adapter_has_overwritten_is_refused(
    units, other_rank, tiled_folders, monkeypatch
):
    """One of another rank has a place of its own."""
    tiny.multiply_by(units, monkeypatch)
    backbone, adapters = loaded(tiled_folders["llama"], "a", "b")
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
def test_a_gradient_whose_weights_have_changed_is_refused(units, what, tiled_folders, monkeypatch):
    tiny.multiply_by(units, monkeypatch)
    backbone, adapters = loaded(tiled_folders["qwen2"], "a")
    with adapters.using("a"):
        hidden = backbone.hidden(IDS)
        layer, named = backbone.trunk.layers[1], what.replace("proj.", "proj.base_layer.")
        with torch.no_grad():
            dict(layer.named_parameters())[named].mul_(1.5)
            backbone.hidden(IDS)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            hidden.sum().backward()


@UNITS
def test_new_weights_are_read(units, tiled_folders, monkeypatch):
    tiny.multiply_by(units, monkeypatch)
    backbone, adapters = loaded(tiled_folders["llama"], "a")
    with torch.no_grad(), adapters.using("a"):
        backbone.logits(backbone.hidden(IDS))
        for name, parameter in backbone.model.named_parameters():
            if "lora_" not in name:
                parameter.mul_(1.25)
        found = backbone.logits(backbone.hidden(IDS))
        assert in_c(backbone) == [True, True]
    monkeypatch.setattr(calls, "takes", lambda *_: False)
    modules, others = loaded(tiled_folders["llama"], "a", known=(), monkeypatch=monkeypatch)
    with torch.no_grad():
        for mine, theirs in zip(modules.model.parameters(), backbone.model.parameters(), strict=True):
            mine.copy_(theirs)
        with others.using("a"):
            expected = modules.logits(modules.hidden(IDS)).float()
    assert float((found.float() - expected).norm() / expected.norm()) < 0.05


@UNITS
def test_a_layer_that_says_something_else_is_left_to_its_module(units, tiled_folders, monkeypatch, caplog):
    tiny.multiply_by(units, monkeypatch)
    call = tiled._call

    def wrong(name, *given):
        return call(name, *given[:-2], 0, given[-1]) if name == "layer_rest" else call(name, *given)  # no rows

    monkeypatch.setattr(tiled, "_call", wrong)
    backbone = tiny.load(tiled_folders["llama"], HALF)
    assert not backbone.whole.there_are
    assert "did not say the same" in caplog.text


def test_sizes_that_do_not_fit_and_other_precisions_go_without(llama_folder, tiled_folders, monkeypatch):
    tiny.multiply_by(tiny.units()[0], monkeypatch)
    assert in_c(tiny.load(llama_folder, HALF)) == [False, False]
    assert in_c(tiny.load(tiled_folders["llama"])) == [False, False]
    monkeypatch.setenv("RLHF_LAB_KERNELS", "0")
    from rlhf_lab.fused import library

    library._found.cache_clear()
    assert in_c(tiny.load(tiled_folders["llama"], HALF)) == [False, False]


# --- runs ---


def trainer(folder, algorithm="ppo", dtype=HALF, **changes):
    return tiny.learner(folder, algorithm, dtype, **{"batch_size": 6, "token_rows": 0, **changes})


@UNITS
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_takes_the_step_of_float32(units, algorithm, tiled_folders, monkeypatch):
    """But for roundings."""
    tiny.multiply_by(units, monkeypatch)
    found = []
    for dtype in (HALF, torch.float32):
        one = tiny.midway(tiled_folders["llama"], algorithm, dtype, batch_size=6, token_rows=0)
        prompts, responses = tiny.ragged(rows=6)
        prompts = [prompts[i // 2 * 2] for i in range(6)]
        found.append(
            one.step(prompts, [one.backbone.decode(row) for row in responses], torch.linspace(-1, 1, 6)).metrics
        )
    mine, exact = found
    for name, rel, most in (("objective/kl", 0, 0.1), ("objective/entropy", 0.01, 0), ("grad_norm", 0.05, 0)):
        assert mine[name] == pytest.approx(exact[name], rel=rel, abs=most), name


@UNITS
def test_a_step_asks_all_of_it(units, tiled_folders, monkeypatch):
    tiny.multiply_by(units, monkeypatch)
    asked = set()
    for module in (tiled, calls):
        call = module._call

        def note(name, *given, call=call):
            asked.add(name)
            return call(name, *given)

        monkeypatch.setattr(module, "_call", note)
    tiny.run(trainer(tiled_folders["llama"], steps=1), 1)
    assert set(tiled.TAKES) <= asked
    assert not {"attend", "attend_back", "norm_back", "lora_slopes", "swiglu", "swiglu_back"} & asked, (
        "they are within layers"
    )


@UNITS
def test_a_resumed_run_is_the_run_to_the_last_bit(units, tiled_folders, monkeypatch):
    tiny.multiply_by(units, monkeypatch)
    config = {"steps": 4, "max_new_tokens": 6}
    through = trainer(tiled_folders["mistral"], **config)
    expected = [tiny.numbers(result.metrics) for result in tiny.run(through, 4)]
    first = trainer(tiled_folders["mistral"], **config)
    tiny.run(first, 2)
    resumed = trainer(tiled_folders["mistral"], **config)
    resumed.load_state(*first.state())
    assert [tiny.numbers(result.metrics) for result in tiny.run(resumed, 2)] == expected[2:]
    assert tiny.same(tiny.weights(resumed), tiny.weights(through))


@UNITS
def test_the_gradient_does_not_depend_on_micro_batches(units, tiled_folders, monkeypatch):
    """But for roundings: rows of a text are computed alike, sums over texts are float32."""
    tiny.multiply_by(units, monkeypatch)
    norms = []
    for size in (1, 2, 6):
        one = trainer(tiled_folders["llama"], epochs=1, minibatches=1, micro_batch=size)
        norms.append(tiny.run(one, 1)[0].metrics["grad_norm"])
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-4)


# --- the vocabulary head ---


@UNITS
def test_the_heads_products_are_our_own_both_ways(units, tiled_folders, monkeypatch):
    """Of the weight, of its transpose, and again when it has changed; other weights that lie there are not taken for it."""
    tiny.multiply_by(units, monkeypatch)
    weight = torch.nn.Parameter(
        torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(HALF), requires_grad=False
    )
    products.know(weight)
    asked, linear = [], tiled.linear
    monkeypatch.setattr(tiled, "linear", lambda x, *rest: asked.append(tuple(x.shape)) or linear(x, *rest))
    x, slope = torch.randn(5, 32).to(HALF), torch.randn(5, 64).to(HALF)
    for _ in range(2):
        for given, of in ((x, weight), (slope, weight.t())):
            torch.testing.assert_close(
                products.linear(given, of).float(), given.float() @ of.float().t(), rtol=0.01, atol=0.01
            )
        weight.mul_(2)
    assert asked == [(5, 32), (5, 64)] * 2
    learning = x.clone().requires_grad_()
    products.linear(learning, weight).float().sum().backward()
    torch.testing.assert_close(learning.grad.float(), weight.float().sum(0).expand(5, -1), rtol=0.01, atol=0.01)
    assert asked[4:] == [(5, 32), (5, 64)]
    for other in (weight[:32], weight.view(32, 64), weight.detach().requires_grad_()):
        products.linear(torch.ones(1, other.shape[1], dtype=HALF), other)
    products.linear(x.float(), weight.float())
    assert len(asked) == 6
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        products.linear(slope, weight)
    del weight, of, other
    assert not [known for known in products._known.values() if known._weight() is None]


@UNITS
def test_a_weight_that_has_gone_elsewhere_is_not_found_where_it_was(units, monkeypatch):
    """Nor is another one that is known there forgotten with it."""
    tiny.multiply_by(units, monkeypatch)
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(HALF)
    there = weight.data  # the same numbers, whose changes are not the weight's
    products.know(weight)
    products.linear(torch.ones(1, 32, dtype=HALF), weight)
    weight.data = weight.clone()
    there.zero_()
    assert not products.linear(torch.ones(1, 32, dtype=HALF), there).any()
    products.know(there)
    del weight
    assert there.data_ptr() in products._known
