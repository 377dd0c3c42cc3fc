"""Several heads with one score, by hand; and an ensemble as a reward model: uncertainty and files."""

import json
import warnings

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.model_files import HEAD_CONFIG
from rlhf_lab.errors import ConfigError, ModelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import EnsembleHead, RewardHead
from rlhf_lab.models.reward_model import RewardModel, load_reward_model

NAN = float("nan")
HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [NAN, NAN]], [[5.0, 6.0], [-1.0, 0.0], [7.0, -2.0]]])
MASK = torch.tensor([[True, True, False], [True, True, True]])
#: raw member 0: x; member 1: y. Pooled rows: (2, 3) and (11/3, 4/3).
RAW = torch.tensor([[2.0, 11 / 3], [3.0, 4 / 3]])


POOLED = FeatureSpec("mean").pool(HIDDEN, MASK)


def head_of(mode, coef=1.0):
    head = EnsembleHead(2, FeatureSpec("mean"), [1, 2], mode, coef)
    with torch.no_grad():
        for member, row in zip(head.heads, torch.eye(2), strict=True):
            member.linear.weight.copy_(row[None])
            member.linear.bias.zero_()
    return head.requires_grad_(False)


def test_one_score_of_two_members_by_hand():
    torch.testing.assert_close(head_of("mean").raw_members(POOLED), RAW)
    torch.testing.assert_close(head_of("mean")(POOLED), torch.tensor([2.5, 2.5]))
    torch.testing.assert_close(head_of("worst")(POOLED), torch.tensor([2.0, 4 / 3]))
    # half the distance, squared: 1/4, and (7/3 / 2)^2 = 49/36
    torch.testing.assert_close(head_of("uncertainty", 2.0)(POOLED), torch.tensor([2.0, 2.5 - 98 / 36]))


@pytest.mark.parametrize(("mode", "coef"), [("mean", 1.0), ("worst", 1.0), ("uncertainty", 0.5)])
def test_normalised_members_and_normalised_together(mode, coef):
    """Members of different scale and mean count equally; the joint score has mean 0 and sd 1 on the reference."""
    head = head_of(mode, coef)
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(2, 50, generator=generator) * torch.tensor([[1.0], [100.0]]) + torch.tensor([[3.0], [-40.0]])
    head.normalise(raw)
    a, b = ((row - row.mean()) / row.std() for row in raw.double())
    joint = {"mean": (a + b) / 2, "worst": torch.minimum(a, b), "uncertainty": (a + b) / 2 - coef * ((a - b) / 2) ** 2}
    expected = (joint[mode] - joint[mode].mean()) / joint[mode].std()
    torch.testing.assert_close(head(raw.T).double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("mode", "coef"), [("mean", 1.0), ("worst", 1.0), ("uncertainty", 0.5)])
def test_ensemble_token_scores_average_to_the_score(mode, coef):
    head = head_of(mode, coef)
    head.normalise(torch.tensor([[0.0, 1.0, 5.0], [2.0, 7.0, 3.0]]))
    shares = head.per_token(HIDDEN, MASK)
    assert float(shares[0, 2]) == 0.0
    torch.testing.assert_close(shares.sum(1) / MASK.sum(1), head(POOLED))


def test_the_linear_map_is_the_score_of_the_mean():
    head = head_of("mean")
    head.normalise(torch.tensor([[0.0, 1.0, 5.0], [2.0, 7.0, 3.0]]))
    head.shift.fill_(0.25)  # the mean of normalised members is 0 on the reference, so the joint shift would not be seen
    weight, bias = head.linear_map()
    torch.testing.assert_close((POOLED @ weight.T + bias).squeeze(1), head(POOLED))
    single = RewardHead(2, FeatureSpec("mean"), 3).requires_grad_(False)
    single.normalise(torch.tensor([[1.0, 4.0, 9.0]]))
    weight, bias = single.linear_map()
    torch.testing.assert_close((POOLED @ weight.T + bias).squeeze(1), single(POOLED))


def test_members_are_initialised_differently():
    one, other = EnsembleHead(8, FeatureSpec("mean"), [1, 2]).heads
    assert not torch.equal(one.linear.weight, other.linear.weight)


# --- as a reward model ---


def model_of(folder, mode="uncertainty"):
    backbone = tiny_models.load(folder)
    head = EnsembleHead(backbone.hidden_size, FeatureSpec("mean"), [1, 2, 3], mode, 0.5)
    model = RewardModel(backbone, tiny_models.adapters_of(backbone, "reward"), "reward", head.requires_grad_(False))
    head.normalise(model.raw_scores(*tiny_models.ragged(rows=9)))
    return model


def test_uncertainty_is_how_far_the_members_differ(llama_folder):
    """Against each member as a separate model; the order of the texts is kept."""
    model = model_of(llama_folder)
    texts = tiny_models.ragged(seed=3)
    alone = [RewardModel(model.backbone, model.adapters, "reward", head).scores(*texts) for head in model.head.heads]
    mean = sum(alone) / 3
    expected = (sum((row - mean) ** 2 for row in alone) / 3).sqrt()
    found = model.uncertainty(*texts)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert float(found.min()) > 1e-3
    torch.testing.assert_close(model.uncertainty(texts[0][::-1], texts[1][::-1]).flip(0), found, atol=1e-5, rtol=0)
    single = RewardModel(model.backbone, model.adapters, "reward", model.head.heads[0])
    with pytest.raises(ModelError, match="Train the reward model with ensemble = 3"):
        single.uncertainty(*texts)


@pytest.mark.parametrize("mode", ["mean", "worst", "uncertainty"])
def test_saved_with_all_its_heads(llama_folder, tmp_path, mode):
    model = model_of(llama_folder, mode)
    model.save(tmp_path / "m")
    backbone = tiny_models.load(llama_folder)
    again = load_reward_model(backbone, Adapters(backbone), tmp_path / "m", "judge")
    texts = tiny_models.ragged(seed=3)
    assert torch.equal(again.scores(*texts), model.scores(*texts))
    assert torch.equal(again.uncertainty(*texts), model.uncertainty(*texts))
    assert not [p for p in again.head.parameters() if p.requires_grad]


def test_metadata_with_another_number_of_heads_is_refused(llama_folder, tmp_path):
    model_of(llama_folder).save(tmp_path / "m")
    path = tmp_path / "m" / HEAD_CONFIG
    metadata = json.loads(path.read_text())
    metadata["ensemble"]["members"] = 2
    path.write_text(json.dumps(metadata))
    backbone = tiny_models.load(llama_folder)
    with pytest.raises(ModelError, match="does not fit its description"):
        load_reward_model(backbone, Adapters(backbone), tmp_path / "m", "judge")


def test_a_single_reference_sample_is_refused():
    """It is refused, and shift and scale do not change; without the check they would be NaN."""
    for head in (RewardHead(2, FeatureSpec("mean"), 0), EnsembleHead(2, FeatureSpec("mean"), [0, 1])):
        with (
            warnings.catch_warnings(action="ignore"),
            pytest.raises(ConfigError, match=r"there are 1\. Give at least 2"),
        ):
            head.normalise(torch.tensor([[3.0], [4.0]]))
        assert all((float(one.shift), float(one.scale)) == (0.0, 1.0) for one in (head, *head.heads))
