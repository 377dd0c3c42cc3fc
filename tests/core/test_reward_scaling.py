"""From a score to rewards. Expected values are worked by hand, or by `statistics`."""

import statistics

import pytest
import torch

from rlhf_lab.core import reward_scaling
from rlhf_lab.errors import ConfigError, NotFiniteError

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[True, True, False, False], [True, True, True, True], [False] * 4])


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_a_missing_end_costs(dtype):
    got = reward_scaling.missing_eos_penalty(torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor([True, False]), 0.5)
    assert got.tolist() == [1.0, 1.5]
    assert got.dtype == dtype


def test_scores_are_shifted_scaled_then_clipped():
    """(5 - 1) / 2 = 2, clipped to 1.5; (0 - 1) / 2 = -0.5; (-7 - 1) / 2 = -4, clipped."""
    scores = f64([5.0, 0.0, -7.0])
    assert reward_scaling.normalise_scores(scores, mean=1.0, scale=2.0).tolist() == [2.0, -0.5, -4.0]
    assert reward_scaling.normalise_scores(scores, mean=1.0, scale=2.0, clip=1.5).tolist() == [1.5, -0.5, -1.5]
    assert reward_scaling.normalise_scores(scores, clip=6.0).tolist() == [5.0, 0.0, -6.0]
    assert reward_scaling.normalise_scores(scores).tolist() == scores.tolist()


def test_score_on_the_last_token_or_in_equal_parts():
    scores = f64([3.0, 2.0, NAN])
    last = reward_scaling.place_scores(scores, MASK)
    assert last.tolist() == [[0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0], [0.0] * 4]
    spread = reward_scaling.place_scores(scores, MASK, "spread")
    assert spread.tolist() == [[1.5, 1.5, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [0.0] * 4]
    assert last[:2].sum(dim=1).tolist() == spread[:2].sum(dim=1).tolist() == [3.0, 2.0]


def test_running_moments_equal_those_of_all_scores_together():
    """Batches of different size and mean; with the offset of 1e8 a sum of squares would lose all precision."""
    moments = reward_scaling.RunningMoments()
    batches = [[1e8 + 1.0], [1e8 + 4.0, 1e8 + 9.0, 1e8 - 2.0], [], [1e8 + 0.5, 1e8 + 7.0]]
    seen = []
    for batch in batches:
        seen += batch
        sd = moments.update(f64(batch))
        assert sd == pytest.approx(statistics.stdev(seen) if len(seen) > 1 else 1.0, rel=1e-9)
    assert (moments.count, moments.mean) == (6, pytest.approx(statistics.fmean(seen), abs=1e-6))


def test_running_moments_of_equal_scores_have_sd_one():
    moments = reward_scaling.RunningMoments()
    assert moments.sd == 1.0
    assert moments.update(f64([2.0, 2.0])) == 1.0


def test_running_moments_refuse_non_finite_scores():
    moments = reward_scaling.RunningMoments()
    moments.update(f64([1.0, 3.0]))
    with pytest.raises(NotFiniteError):
        moments.update(f64([1.0, INF]))
    assert (moments.count, moments.mean) == (2, 2.0)


def test_gradcheck():
    scores = f64([0.3, -1.2, 2.0]).requires_grad_()
    for placement in ("last", "spread"):
        assert torch.autograd.gradcheck(lambda s, p=placement: reward_scaling.place_scores(s, MASK, p), scores)
    assert torch.autograd.gradcheck(lambda s: reward_scaling.normalise_scores(s, mean=0.1, scale=3, clip=0.5), scores)
    ended = torch.tensor([True, False, True])
    assert torch.autograd.gradcheck(lambda s: reward_scaling.missing_eos_penalty(s, ended, 0.5), scores)


def test_bad_arguments_are_refused():
    scores, ended = f64([1.0, 2.0]), torch.tensor([True, False])
    refused = [
        lambda: reward_scaling.missing_eos_penalty(scores, ended, -1.0),
        lambda: reward_scaling.missing_eos_penalty(scores, ended, NAN),
        lambda: reward_scaling.missing_eos_penalty(scores, ended.long(), 1.0),
        lambda: reward_scaling.missing_eos_penalty(scores, ended[:1], 1.0),
        lambda: reward_scaling.normalise_scores(scores, scale=0.0),
        lambda: reward_scaling.normalise_scores(scores, mean=INF),
        lambda: reward_scaling.normalise_scores(scores, clip=0.0),
        lambda: reward_scaling.place_scores(scores, MASK),
        lambda: reward_scaling.place_scores(scores, MASK[:2].long()),
        lambda: reward_scaling.place_scores(f64([1.0, 2.0, 3.0]), MASK, "first"),
    ]
    for call in refused:
        with pytest.raises(ConfigError):
            call()
