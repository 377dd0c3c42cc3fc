"""A reward model that ignores attributes: corrected scores, their words, and its files."""

import dataclasses
import json

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.model_files import HEAD_CONFIG
from rlhf_lab.errors import ModelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.attribute_correction import AttributeCorrection, fitted_slopes, token_attributes
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel, load_reward_model

NAMES = ("length", "cut")


def neutral_model(folder):
    """A model with a random head, corrected on 24 ragged texts; the model, and these texts."""
    backbone = tiny_models.load(folder)
    head = RewardHead(backbone.hidden_size, FeatureSpec("mean", 0.3), 11)
    model = RewardModel(backbone, Adapters(backbone), None, head.requires_grad_(False))
    texts = tiny_models.ragged(rows=24, longest=9)
    scores, attributes = model.scores(*texts), token_attributes(backbone, *texts, NAMES)
    return dataclasses.replace(model, correction=AttributeCorrection.fit(NAMES, scores, attributes)), texts


def test_attributes_come_from_the_tokens(llama_folder):
    """The prompt without its chat template; a response is cut off unless it ends with a stop token."""
    backbone = tiny_models.load(llama_folder)
    prompt = backbone.encode_prompt("the cat")
    responses = [[*tiny_models.ids("cat dog"), tiny_models.EOS], list(tiny_models.ids("cat"))]
    values = token_attributes(backbone, [prompt, prompt], responses, ("length", "cut", "copied"))
    texts = [backbone.decode(ids, after=prompt).strip() for ids in responses]
    lengths = torch.tensor([1.0 + len(text) for text in texts], dtype=torch.float64).log().tolist()
    assert values.tolist() == [
        pytest.approx([lengths[0], 0.0, 0.5], rel=1e-6),
        pytest.approx([lengths[1], 1.0, 1.0], rel=1e-6),
    ]


def test_corrected_scores_have_no_linear_relation_to_the_attributes(llama_folder):
    model, texts = neutral_model(llama_folder)
    head_scores = dataclasses.replace(model, correction=None).scores(*texts).double()
    scores = model.scores(*texts).double()
    attributes = token_attributes(model.backbone, *texts, NAMES)
    assert float(model.correction.slopes.abs().max()) > 0.01
    for column in attributes.T:
        assert float(torch.corrcoef(torch.stack([scores, column]))[0, 1]) == pytest.approx(0.0, abs=1e-5)
    assert float(scores.mean() - head_scores.mean() / model.correction.unit) == pytest.approx(0.0, abs=1e-5)
    assert float(scores.std()) == pytest.approx(1.0, abs=1e-5)
    assert model.correction.undo(scores, attributes) == pytest.approx(head_scores, abs=1e-5)


def test_batches_states_and_words_have_the_corrected_score(llama_folder):
    model, (prompts, responses) = neutral_model(llama_folder)
    expected = model.scores(prompts, responses)
    batch = make_batch(model.backbone, prompts, responses)
    assert batch.token_ids() == (prompts, responses)
    assert model.score_batch(batch) == pytest.approx(expected, abs=1e-5)
    assert model.score_batch_and_states(batch)[0] == pytest.approx(expected, abs=1e-5)
    words = model.token_scores(prompts[3], responses[3])
    assert sum(words) / len(words) == pytest.approx(float(expected[3]), abs=1e-5)


def test_a_saved_model_gives_the_same_scores(llama_folder, tmp_path):
    model, texts = neutral_model(llama_folder)
    model.save(tmp_path)
    loaded = load_reward_model(model.backbone, model.adapters, tmp_path, "reward")
    assert torch.equal(loaded.scores(*texts), model.scores(*texts))


@pytest.mark.parametrize("damage", [{"names": None}, {"slopes": "steep"}, None, {"unit": []}])
def test_a_damaged_correction_is_an_error_that_says_what_to_do(llama_folder, tmp_path, damage):
    model, _ = neutral_model(llama_folder)
    model.save(tmp_path)
    metadata = json.loads((tmp_path / HEAD_CONFIG).read_text())
    metadata["correction"] = metadata["correction"] | damage if damage else damage
    (tmp_path / HEAD_CONFIG).write_text(json.dumps(metadata))
    with pytest.raises(ModelError, match="does not fit its description"):
        load_reward_model(model.backbone, model.adapters, tmp_path, "reward")


def test_slopes_of_attributes_that_do_not_vary_are_zero():
    attributes = torch.tensor([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]], dtype=torch.float64)
    assert fitted_slopes(torch.tensor([2.0, 4.0, 6.0]), attributes).tolist() == pytest.approx([2.0, 0.0])


def test_scores_that_the_attributes_explain_completely_stay_finite():
    attributes = torch.arange(5.0, dtype=torch.float64)[:, None]
    correction = AttributeCorrection.fit(("length",), 3 * attributes[:, 0].float() + 1, attributes)
    assert torch.isfinite(correction.apply(torch.ones(5), attributes)).all()
