"""A reward model: scores, word shares, files."""

import json

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.model_files import HEAD_CONFIG, HEAD_FILE
from rlhf_lab.errors import ModelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel, load_reward_model


def model_of(folder, pooling="mean", adapter="reward", dtype=torch.float32, last_weight=0.3):
    backbone = tiny_models.load(folder, dtype)
    adapters = tiny_models.adapters_of(backbone, "policy", *([adapter] if adapter else []))
    head = RewardHead(backbone.hidden_size, FeatureSpec(pooling, last_weight), 11)
    with torch.no_grad():
        head.linear.bias.fill_(0.3)
        head.shift.fill_(-0.4)
        head.scale.fill_(0.7)
    return RewardModel(backbone, adapters, adapter, head.requires_grad_(False))


def by_hand(model, prompt, response):
    """Float64: hidden states of the response tokens of one row, pooled, times the head."""
    with torch.no_grad(), model.adapters.using(model.adapter):
        hidden = model.backbone.trunk(input_ids=torch.tensor([[*prompt, *response]])).last_hidden_state[0].double()
    states = [hidden[len(prompt) + i] for i in range(len(response))]
    pooled = 0.7 * sum(states) / len(states) + 0.3 * states[-1] if model.head.features.pooling == "mean" else states[-1]
    raw = sum(float(w) * float(h) for w, h in zip(model.head.linear.weight[0], pooled, strict=True)) + 0.3
    return (raw - float(model.head.shift)) / float(model.head.scale)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("adapter", ["reward", None])
def test_score_by_hand(gpt2_folder, pooling, adapter):
    """Ragged rows in one batch, against one row at a time; other active adapters change nothing."""
    model = model_of(gpt2_folder, pooling, adapter)
    prompts, responses = tiny_models.ragged()
    expected = [by_hand(model, p, r) for p, r in zip(prompts, responses, strict=True)]
    with model.adapters.using("policy", merged=True):
        scores = model.scores(prompts, responses)
    assert scores.dtype == torch.float32
    assert scores.tolist() == pytest.approx(expected, abs=2e-5)
    assert max(expected) - min(expected) > 0.1


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_score_ignores_padding(gpt2_folder, pooling):
    """Any amount of padding on either side, filled with any token, leaves the score."""
    model = model_of(gpt2_folder, pooling)
    prompts, responses = tiny_models.ragged()
    rows = make_batch(model.backbone, prompts, responses)
    expected = model.score_batch(rows)
    for left, right, junk in ((3, 0, tiny_models.EOS), (0, 4, 20), (2, 2, 33)):
        count = len(prompts)
        padded = rows._replace(
            prompts=torch.cat([torch.full((count, left), junk), rows.prompts], 1),
            prompt_mask=torch.cat([torch.zeros(count, left, dtype=torch.int64), rows.prompt_mask], 1),
            responses=torch.cat([rows.responses, torch.full((count, right), junk)], 1),
            mask=torch.cat([rows.mask, torch.zeros(count, right, dtype=torch.bool)], 1),
        )
        torch.testing.assert_close(model.score_batch(padded), expected, rtol=0, atol=2e-5)


def test_score_reads_the_response(llama_folder):
    """Another response has another score; the order of the rows and the other rows do not matter."""
    model = model_of(llama_folder)
    prompts, responses = tiny_models.ragged()
    scores = model.scores(prompts, responses)
    backwards = model.scores(prompts[::-1], responses[::-1])
    torch.testing.assert_close(backwards.flip(0), scores, rtol=0, atol=2e-5)
    changed = model.scores(prompts, [[*row[:-1], 30] for row in responses])
    assert float((changed - scores).abs().min()) > 1e-3


def test_token_scores_average_to_the_score(llama_folder):
    model = model_of(llama_folder)
    prompt, response = tiny_models.ids("the cat"), tiny_models.ids("sat very old . <eos>")
    words = model.token_scores(prompt, response)
    assert len(words) == len(response)
    assert sum(words) / len(words) == pytest.approx(by_hand(model, prompt, response), abs=2e-5)
    assert max(words) - min(words) > 0.05
    with pytest.raises(ModelError, match="pooling = mean only"):
        model_of(llama_folder, "last").token_scores(prompt, response)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("adapter", ["reward", None])
def test_saved_with_its_head(llama_folder, tmp_path, pooling, adapter):
    """Loaded on a new backbone with another adapter: the same scores, bit for bit."""
    model = model_of(llama_folder, pooling, adapter)
    folder = tmp_path / f"{pooling}-{adapter}"
    model.save(folder)
    backbone = tiny_models.load(llama_folder)
    again = load_reward_model(backbone, tiny_models.adapters_of(backbone, "policy"), folder, "judge")
    assert again.adapter == (adapter and "judge")
    prompts, responses = tiny_models.ragged()
    assert torch.equal(again.scores(prompts, responses), model.scores(prompts, responses))
    assert tiny_models.same(again.head.state_dict(), model.head.state_dict())
    assert not [p for p in again.head.parameters() if p.requires_grad]


def test_an_old_head_without_last_weight_is_a_plain_mean(llama_folder, tmp_path):
    model = model_of(llama_folder, last_weight=0.0)
    model.save(tmp_path)
    metadata = json.loads((tmp_path / HEAD_CONFIG).read_text())
    assert metadata.pop("last_weight") == 0.0
    (tmp_path / HEAD_CONFIG).write_text(json.dumps(metadata))
    again = load_reward_model(model.backbone, Adapters(model.backbone), tmp_path, "judge")
    prompts, responses = tiny_models.ragged()
    assert torch.equal(again.scores(prompts, responses), model.scores(prompts, responses))


def test_files_that_cannot_be_used(llama_folder, gpt2_folder, tmp_path):
    model = model_of(llama_folder)
    fresh = Adapters(model.backbone)
    with pytest.raises(ModelError, match="cannot be read"):
        load_reward_model(model.backbone, fresh, tmp_path / "nothing", "reward")
    model.save(tmp_path / "a")
    other = tiny_models.load(gpt2_folder)
    with pytest.raises(ModelError, match="with other weights"):
        load_reward_model(other, Adapters(other), tmp_path / "a", "reward")
    (tmp_path / "a" / HEAD_CONFIG).write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_reward_model(model.backbone, fresh, tmp_path / "a", "reward")
    (tmp_path / "a" / HEAD_CONFIG).write_text(json.dumps({"pooling": "mean"}))
    with pytest.raises(ModelError, match=r"cannot be read \(.*backbone_sha256"):
        load_reward_model(model.backbone, fresh, tmp_path / "a", "reward")
    model.save(tmp_path / "a")
    (tmp_path / "a" / HEAD_FILE).write_bytes(b"cut")
    with pytest.raises(ModelError, match="cannot be read"):
        load_reward_model(model.backbone, fresh, tmp_path / "a", "reward")


def test_scoring_changes_nothing(llama_folder):
    model = model_of(llama_folder)
    before, state = tiny_models.weights_hash(model.backbone), torch.random.get_rng_state()
    scores = model.scores(*tiny_models.ragged())
    assert not scores.requires_grad
    assert torch.equal(torch.random.get_rng_state(), state)
    assert tiny_models.weights_hash(model.backbone) == before
