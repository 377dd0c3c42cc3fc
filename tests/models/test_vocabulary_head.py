"""Logits that an architecture scales or bounds, and rows of the embedding matrix without a token."""

import math

import pytest
import torch
from support import model_families, tiny_models
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RecurrentGemmaConfig,
)

from rlhf_lab.core.kl import full_kl
from rlhf_lab.errors import ConfigError, ModelError
from rlhf_lab.models import vocabulary_head
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.models.vocabulary_head import logit_scale, logit_soft_cap, make_vocabulary_head
from rlhf_lab.training.policy.rollout import PolicyModel, response_logprobs
from rlhf_lab.training.policy.trainer import to_token_ids

TOKENS = len(tiny_models.WORDS)


def save_padded_llama(folder, missing=()):
    """A Llama with 20 rows too many, and without a token for the ids `missing`. Its logits prefer the ids without a token."""
    config = LlamaConfig(
        vocab_size=TOKENS + 20, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=48, initializer_range=0.3, bos_token_id=tiny_models.BOS,
        eos_token_id=tiny_models.EOS, pad_token_id=tiny_models.PAD,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[[*missing, *range(TOKENS, TOKENS + 20)]] *= 4
    model.save_pretrained(folder)
    words = Tokenizer(
        models.WordLevel({word: i for word, i in tiny_models.ID.items() if i not in missing}, unk_token="<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", bos_token="<bos>", unk_token="<unk>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


MISSING = (7, 8, 30)
CASES = pytest.mark.parametrize("missing", [(), MISSING], ids=["padded", "padded with gaps"])


@CASES
def test_ids_without_a_token_are_never_sampled(tmp_path, missing):
    backbone = tiny_models.load(save_padded_llama(tmp_path, missing))
    prompts = [tiny_models.ids("the cat"), tiny_models.ids("a small dog saw the moon")] * 50
    sampled = sample(backbone, prompts, tiny_models.seeded(100, 8))
    ids = {token for row in sampled.tokens for token in row}
    assert ids <= set(range(TOKENS)) - set(missing)
    assert len(ids) > 20
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        probabilities = plain(torch.tensor([prompts[0]])).logits[0, -1].softmax(-1)
    without_token = [*missing, *range(TOKENS, TOKENS + 20)]
    assert float(probabilities[without_token].sum()) > 0.2  # the model itself would sample them


@CASES
def test_the_largest_uniform_number_samples_a_token(tmp_path, missing):
    backbone = tiny_models.load(save_padded_llama(tmp_path, missing))
    last = torch.full((1, 4), math.nextafter(1.0, 0.0), dtype=torch.float64)
    assert set(sample(backbone, [[7]], last).tokens[0]) <= set(range(TOKENS)) - set(missing)


@CASES
def test_sampler_policy_and_reference_agree_on_a_new_adapter(tmp_path, missing):
    """Probabilities of the tokens sum to 1, the first ratio is 1, and the KL to the reference is 0."""
    backbone = tiny_models.load(save_padded_llama(tmp_path, missing))
    adapters = tiny_models.adapters_of(backbone, "other")
    adapters.add("policy", r=4, alpha=8, seed=0, trainable=True)
    policy = PolicyModel(backbone, adapters, "policy", ValueHead(32))
    prompts, _ = tiny_models.ragged(rows=6)
    with adapters.using("policy", merged=True):
        sampled = sample(backbone, prompts, tiny_models.seeded(6, 10), temperature=1.3)
    batch = make_batch(backbone, prompts, sampled.tokens)
    old = policy.evaluate(batch, 1.3).logprobs
    for row, logprobs in zip(old, sampled.logprobs, strict=True):
        assert logprobs == pytest.approx(row[: len(logprobs)].tolist(), abs=1e-5)
    torch.testing.assert_close(policy.reference_logprobs(batch, 1.3), old.detach(), rtol=0, atol=0)
    with torch.no_grad():
        logits = backbone.logits(policy.prediction_states(batch)[batch.response_indices])
        states = policy.reference_states(batch)[batch.response_indices]
        kl = full_kl(logits, backbone.logits(states), 1.3)
    real = [i for i in range(TOKENS) if i not in missing]
    assert logits.shape[-1] == TOKENS
    torch.testing.assert_close(logits[:, real].softmax(-1).sum(-1), torch.ones(len(logits)))
    torch.testing.assert_close(logits.softmax(-1)[:, real].sum(-1), torch.ones(len(logits)))
    torch.testing.assert_close(kl, torch.zeros(len(kl)), rtol=0, atol=1e-6)


@CASES
def test_gradients_are_those_of_a_softmax_over_the_tokens(tmp_path, missing):
    """Fused where possible, with and without the entropy's gradient, against plain operations on the model's logits."""
    backbone = tiny_models.load(save_padded_llama(tmp_path, missing), torch.float64)
    batch = make_batch(backbone, *tiny_models.ragged(rows=4))
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(*batch.mask.shape, 32, generator=generator, dtype=torch.float64).requires_grad_()
    real = [i for i in range(TOKENS) if i not in missing]
    logits = (hidden @ backbone.model.lm_head.weight[real].t()) / 0.7
    index = torch.tensor([[real.index(t) if t in real else 0 for t in row] for row in batch.responses.tolist()])
    expected = logits.log_softmax(-1).gather(-1, index[..., None]).squeeze(-1)
    counted = batch.mask & torch.isin(batch.responses, torch.tensor(real))
    (gradient,) = torch.autograd.grad(expected[counted].sum(), hidden)
    for with_entropy in (False, True):
        logprobs, _ = response_logprobs(backbone, hidden, batch, 0.7, with_entropy)
        torch.testing.assert_close(logprobs[counted], expected[counted].detach().requires_grad_())
        torch.testing.assert_close(torch.autograd.grad(logprobs[counted].sum(), hidden)[0], gradient)


def test_a_token_id_of_a_padded_row_is_refused(tmp_path):
    backbone = tiny_models.load(save_padded_llama(tmp_path))
    assert to_token_ids(backbone, [TOKENS - 1], backbone.encode_prompt) == [TOKENS - 1]
    with pytest.raises(ConfigError, match=f"token id {TOKENS} does not exist: the model has the ids 0 to {TOKENS - 1}"):
        to_token_ids(backbone, [TOKENS], backbone.encode_prompt)


@pytest.mark.parametrize(("config", "scale", "soft_cap"), [
    (LlamaConfig(), 1.0, None),
    (CohereConfig(logit_scale=0.25), 0.25, None),
    (GraniteConfig(logits_scaling=8.0), 0.125, None),
    (HyperCLOVAXConfig(logits_scaling=8.0), 8.0, None),
    (FalconH1Config(lm_head_multiplier=0.5), 0.5, None),
    (Gemma2Config(), 1.0, 30.0),
    (Gemma2Config(final_logit_softcapping=None), 1.0, None),
    (RecurrentGemmaConfig(logits_soft_cap=20.0), 1.0, 20.0),
])  # fmt: skip
def test_scale_and_soft_cap_of_a_config(config, scale, soft_cap):
    assert (logit_scale(config), logit_soft_cap(config)) == (scale, soft_cap)


@pytest.mark.parametrize("kind", ["granite", "cohere", "gemma2"])
def test_logprobs_of_scaled_and_bounded_logits_have_the_gradient_of_the_models_own(saved, kind):
    backbone = tiny_models.load(saved[kind], torch.float64)
    batch = make_batch(backbone, *tiny_models.ragged(rows=4))
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(*batch.mask.shape, 32, generator=generator, dtype=torch.float64).requires_grad_()
    z = hidden @ backbone.model.get_output_embeddings().weight.t()
    logits = {"granite": z / 3.0, "cohere": z * 0.25, "gemma2": 2.0 * (z / 2.0).tanh()}[kind] / 0.7
    expected = logits.log_softmax(-1).gather(-1, batch.responses[..., None]).squeeze(-1)
    (gradient,) = torch.autograd.grad(expected[batch.mask].sum(), hidden)
    logprobs, _ = response_logprobs(backbone, hidden, batch, 0.7)
    torch.testing.assert_close(logprobs[batch.mask], expected[batch.mask])
    torch.testing.assert_close(torch.autograd.grad(logprobs.sum(), hidden)[0], gradient)


def test_logits_that_are_changed_in_an_unknown_way_are_refused(tmp_path, monkeypatch):
    """The trunk-then-head path would train on other numbers."""
    monkeypatch.setattr(vocabulary_head, "FACTOR_FIELDS", ())
    folder = model_families.save("cohere", tmp_path)
    with pytest.raises(ModelError, match="CohereForCausalLM changes its logits after the head"):
        tiny_models.load(folder)


def test_a_tokenizer_without_any_token_of_the_model(llama_folder):
    model = AutoModelForCausalLM.from_pretrained(llama_folder, dtype=torch.float32)
    with pytest.raises(ModelError, match="no token that the model can produce"):
        make_vocabulary_head(model, [TOKENS, -1])
