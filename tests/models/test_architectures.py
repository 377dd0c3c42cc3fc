"""Other causal LMs: what the other tests check for Llama and GPT-2 holds for further families.

Tiny random models of each: rotary and absolute positions, biases, norms of queries and keys, shared key heads, sliding
windows, with and without a pad token.
"""

import json
import warnings

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from support import tiny_models
from support.model_families import (
    IGNORED_WARNING,
    LETTERS,
    PARAMETERS,
    SINGLE_PRECISION,
    VARIANTS,
    bytes_of,
    exact,
    save,
)
from transformers import AutoModelForCausalLM

from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.batch import forward, make_batch
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead, ValueHead
from rlhf_lab.models.reward_model import RewardModel, load_reward_model
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.training.policy.rollout import PolicyModel

CHAT = (
    "{% for m in messages %}<bos> {{ m['role'] == 'user' and 'the king' }} . {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}! {% endif %}"
)


pytestmark = pytest.mark.filterwarnings(
    "ignore:fan_in_fan_out is set to False but the target module is `Conv1D`", IGNORED_WARNING
)


@pytest.mark.parametrize("kind", PARAMETERS)
def test_loaded_and_reads_as_transformers_does(saved, kind):
    dtype, tolerance = (torch.float32, 1e-4) if kind in SINGLE_PRECISION else (torch.float64, 1e-10)
    backbone = tiny_models.load(saved[kind], dtype)
    assert (backbone.hidden_size, backbone.context_length) == (32, 48)
    assert backbone.pad_id == (tiny_models.EOS if kind.startswith(("gpt2", "qwen")) else tiny_models.PAD)
    ids = torch.tensor([tiny_models.ids("the cat sat so . the moon and a small dog")])
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(saved[kind], dtype=dtype).eval()(ids).logits
        logits = backbone.logits(backbone.hidden(ids))
    assert logits.shape[-1] == len(backbone.tokenizer)
    torch.testing.assert_close(logits, plain[..., : len(backbone.tokenizer)], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_scores_do_not_depend_on_padding_and_batch(saved, kind, pooling):
    """Ragged rows together, against each alone; and the same rows behind padding that holds any token."""
    backbone = tiny_models.load(saved[kind], exact(kind)[0])
    model = RewardModel(
        backbone, tiny_models.adapters_of(backbone, "reward"), "reward", RewardHead(32, FeatureSpec(pooling), seed=1)
    )
    prompts, responses = tiny_models.ragged(rows=6)
    together = model.scores(prompts, responses)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        assert float(model.scores([prompt], [response])) == pytest.approx(float(together[i]), abs=1e-5)
    rows = make_batch(backbone, prompts, responses)
    padded = rows._replace(
        prompts=torch.cat([torch.full((6, 3), 20), rows.prompts], 1),
        prompt_mask=torch.cat([torch.zeros(6, 3, dtype=torch.int64), rows.prompt_mask], 1),
        responses=torch.cat([rows.responses, torch.full((6, 2), tiny_models.EOS)], 1),
        mask=torch.cat([rows.mask, torch.zeros(6, 2, dtype=torch.bool)], 1),
    )
    torch.testing.assert_close(model.score_batch(padded).float(), together, rtol=0, atol=1e-5)
    assert float(together.std()) > 0.05


@pytest.mark.parametrize("kind", PARAMETERS)
def test_rollout_logprobs_with_merged_adapter_equal_the_policys(saved, kind):
    """Sampler (cache, left padding, merged weights) against plain forwards of each row, and against the trainer's pass.

    Some in float32: Gemma 2's attention computes the softmax in it, where float64's lowest number, which masks, is -inf.
    """
    dtype, tolerance = exact(kind)
    backbone = tiny_models.load(saved[kind], dtype)
    adapters = tiny_models.adapters_of(backbone, "policy")
    prompts, _ = tiny_models.ragged(rows=8)
    with adapters.using("policy", merged=True):
        sampled = sample(backbone, prompts, tiny_models.seeded(8, 14), temperature=1.3)
    with adapters.using("policy"):
        expected = [
            tiny_models.teacher_forced(backbone, p, t, 1.3) for p, t in zip(prompts, sampled.tokens, strict=True)
        ]
    with adapters.using(None):
        base = [tiny_models.teacher_forced(backbone, p, t, 1.3) for p, t in zip(prompts, sampled.tokens, strict=True)]
    for found, row in zip(sampled.logprobs, expected, strict=True):
        assert found == pytest.approx(row.tolist(), abs=tolerance)
    assert max(float((a - b).abs().max()) for a, b in zip(expected, base, strict=True)) > 0.05
    assert {row[-1] for row in sampled.tokens if len(row) < 14} <= {tiny_models.EOS}
    policy = PolicyModel(backbone, adapters, "policy", ValueHead(32))
    rows = make_batch(backbone, prompts, sampled.tokens)
    with torch.no_grad():
        trained = policy.evaluate(rows, 1.3).logprobs
    for i, row in enumerate(expected):
        torch.testing.assert_close(trained[i, : len(row)].double(), row, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_sampler_and_reference_read_variants_as_transformers_does(tmp_path, variant):
    """Texts longer than the windows, in ragged rows, two of one prompt, against the plain model on each row alone.

    Any stop token ends a text.
    """
    kind, sizes = VARIANTS[variant]
    folder = save(kind, tmp_path, **sizes)
    stop_ids = [tiny_models.EOS, *range(20, 28)]
    tiny_models.set_generation_config(folder, eos_token_id=stop_ids)
    dtype, tolerance = (torch.float32, 1e-4) if kind == "gemma2" else (torch.float64, 1e-8)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    is_tied = plain.get_output_embeddings().weight is plain.get_input_embeddings().weight
    assert is_tied == sizes.get("tie_word_embeddings", is_tied)
    backbone = tiny_models.load(folder, dtype)
    prompts, _ = tiny_models.ragged(rows=6)
    prompts += prompts[:2]
    sampled = sample(backbone, prompts, tiny_models.seeded(8, 14), temperature=1.3)
    stopped = [row for row in sampled.tokens if len(row) < 14]
    assert {row[-1] for row in stopped} <= set(stop_ids)
    assert any(row[-1] != tiny_models.EOS for row in stopped)
    assert max(len(prompt + row) for prompt, row in zip(prompts, sampled.tokens, strict=True)) > 8  # two windows
    policy = PolicyModel(backbone, Adapters(backbone), "none", ValueHead(32))
    reference = policy.reference_logprobs(make_batch(backbone, prompts, sampled.tokens), 1.3)
    rows = zip(prompts, sampled.tokens, sampled.logprobs, reference, strict=True)
    for prompt, response, logprobs, reference_row in rows:
        with torch.no_grad():
            logits = plain(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1, : len(backbone.tokenizer)]
        expected = (logits / 1.3).log_softmax(-1).gather(-1, torch.tensor(response)[:, None]).squeeze(-1)
        assert logprobs == pytest.approx(expected.tolist(), abs=tolerance)
        assert reference_row[: len(response)].tolist() == pytest.approx(expected.tolist(), abs=max(tolerance, 1e-5))


@pytest.mark.parametrize("kind", ["lfm2", "falcon_h1", "mpt", "gemma3n"])
def test_rows_that_share_prompts_or_their_beginning_are_sampled_as_alone(saved, kind):
    """Repeated prompts, rows that end early, and prompts of different lengths with the same 20 tokens at the start.

    A layer of Falcon-H1 has keys and values, and a state of the text so far. MPT counts columns between two tokens.
    """
    backbone = tiny_models.load(saved[kind])
    backbone.eos_ids = tuple(range(20))
    generator = torch.Generator().manual_seed(4)
    beginning = torch.randint(20, 50, (20,), generator=generator).tolist()
    prompts = [[*beginning, *rest] for rest in ([30], [31, 32, 33, 34], [30], [35, 36], [30], [30])]
    sampled = sample(backbone, prompts, tiny_models.seeded(6, 12))
    assert len({len(row) for row in sampled.tokens}) > 2
    for prompt, response, logprobs in zip(prompts, sampled.tokens, sampled.logprobs, strict=True):
        assert logprobs == pytest.approx(tiny_models.teacher_forced(backbone, prompt, response).tolist(), abs=1e-4)


def test_states_of_layers_with_several_streams(saved):
    """Gemma 3n: one stream of four is the layer's own; the last state is the normalised mean, as from `hidden`."""
    backbone = tiny_models.load(saved["gemma3n"])
    ids = torch.tensor([tiny_models.ids("the cat sat so . the moon")])
    inputs = []
    for layer in backbone.trunk.layers:
        layer.register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    with torch.no_grad():
        states = list(backbone.layer_states(ids))
        assert [tuple(state.shape) for state in states] == [(1, 7, 32)] * 5
        for state, streams in zip(states, inputs, strict=False):
            assert streams.shape[0] == 2
            torch.testing.assert_close(state, streams[0])
        torch.testing.assert_close(states[-1], backbone.hidden(ids))
        torch.testing.assert_close(states[0], backbone.trunk.embed_tokens(ids))


def test_the_context_of_mpt_has_another_name(saved):
    assert tiny_models.load(saved["mpt"]).context_length == 48


def test_the_adapters_of_experts_work_unmerged(tmp_path):
    """A layer of experts is one module with several weights: sampling computes it as training does."""
    backbone = tiny_models.load(save("mixtral", tmp_path))
    adapters = tiny_models.adapters_of(backbone, "policy")
    prompts, _ = tiny_models.ragged(rows=6)
    with adapters.using("policy", merged=True):
        sampled = sample(backbone, prompts, tiny_models.seeded(6, 8))
    rows = list(zip(prompts, sampled.tokens, sampled.logprobs, strict=True))
    with adapters.using("policy"):
        for prompt, response, logprobs in rows:
            assert logprobs == pytest.approx(tiny_models.teacher_forced(backbone, prompt, response).tolist(), abs=1e-4)
    with adapters.using(None):
        base = [tiny_models.teacher_forced(backbone, prompt, response) for prompt, response, _ in rows]
    differences = [
        abs(a - b)
        for (*_, row), other in zip(rows, base, strict=True)
        for a, b in zip(row, other.tolist(), strict=True)
    ]
    assert max(differences) > 0.05


@pytest.mark.parametrize("kind", PARAMETERS)
def test_a_policy_adapter_generates_the_same_in_plain_peft(saved, kind, tmp_path):
    backbone = tiny_models.load(saved[kind])
    adapters = tiny_models.adapters_of(backbone, "other", "policy")
    adapters.save("policy", tmp_path)
    ids = torch.tensor([tiny_models.ids("the cat sat . the very old king")])
    with torch.no_grad(), adapters.using("policy"):
        expected = backbone.model(input_ids=ids).logits
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", PARAMETERS)
def test_a_reward_model_scores_the_same_after_loading(saved, kind, tmp_path):
    backbone = tiny_models.load(saved[kind])
    model = RewardModel(
        backbone, tiny_models.adapters_of(backbone, "reward"), "reward", RewardHead(32, FeatureSpec("mean"), seed=1)
    )
    model.save(tmp_path)
    fresh = tiny_models.load(saved[kind])
    again = load_reward_model(fresh, Adapters(fresh), tmp_path, "reward")
    assert torch.equal(again.scores(*tiny_models.ragged()), model.scores(*tiny_models.ragged()))


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_and_finite(saved, kind, dtype):
    """Hidden states and scores of half precision on the CPU, against float32 of the same (rounded) weights."""
    half, exact = tiny_models.load(saved[kind], dtype), tiny_models.load(saved[kind])
    with torch.no_grad():
        for p, q in zip(exact.model.parameters(), half.model.parameters(), strict=True):
            p.copy_(q.float())
    prompts, responses = tiny_models.ragged(rows=6)
    with torch.no_grad():
        rows = [make_batch(backbone, prompts, responses) for backbone in (half, exact)]
        states = [
            forward(backbone, r).at_token.float()[r.mask] for backbone, r in zip((half, exact), rows, strict=True)
        ]
    assert half.model.dtype == dtype
    error = (states[0] - states[1]).norm() / states[1].norm()
    assert float(error) < {torch.bfloat16: 0.08, torch.float16: 0.02}[dtype]
    head = RewardHead(32, FeatureSpec("mean"), seed=1)
    scores = RewardModel(half, Adapters(half), None, head).scores(prompts, responses)
    assert scores.dtype == torch.float32
    assert bool(scores.isfinite().all())
    sampled = sample(half, prompts, tiny_models.seeded(6, 8))
    assert all(0 < len(row) <= 8 for row in sampled.tokens)


@pytest.mark.parametrize("kind", ["qwen2", "gemma3"])
def test_policy_and_reward_model_read_the_chat_template(kind, tmp_path):
    """The prompt is wrapped, once, for a turn of the assistant; the response is what follows, without any wrapping."""
    folder = save(kind, tmp_path / kind)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": CHAT}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backbone = load_backbone(str(folder), device="cpu", dtype=torch.float32)
    expected = tiny_models.ids("the king . old cat !") if kind == "gemma3" else bytes_of("the king . old cat ! ")
    found = backbone.encode_prompt("old cat")
    assert found[0] == tiny_models.BOS
    assert [i for i in found[1:] if i != LETTERS["Ġ"]] == [i for i in expected if i != LETTERS["Ġ"]]
    assert backbone.encode_response("sat") == [
        *(tiny_models.ids("sat") if kind == "gemma3" else bytes_of("sat")),
        tiny_models.EOS,
    ]


def test_a_pad_token_without_embedding(tmp_path):
    """Added to the tokenizer only, as many recipes do: padding must not read beyond the end of the embeddings."""
    folder = save("gpt2", tmp_path / "model")
    words = tiny_models.tokenizer(pad=False)
    words.add_special_tokens({"pad_token": "<padding>"})
    words.save_pretrained(folder)
    backbone = tiny_models.load(folder)
    assert backbone.tokenizer.pad_token_id == len(tiny_models.WORDS)
    assert backbone.pad_id == tiny_models.EOS
    model = RewardModel(backbone, Adapters(backbone), None, RewardHead(32, FeatureSpec("mean"), seed=1))
    assert bool(model.scores(*tiny_models.ragged()).isfinite().all())
