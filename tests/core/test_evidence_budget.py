"""The KL budget of a live run: by hand, against the correlation that it stands for, and what it refuses."""

import math

import numpy as np
import pytest

from rlhf_lab.core.evidence_budget import evidence_budget
from rlhf_lab.errors import ConfigError


def test_budgets_by_hand():
    """(right + 3) / (decided + 6) of 1/2, 2/3, 3/4 and 1 (almost): sin² of 0, π/6, π/4 and π/2. A hundredth is left of 0."""
    assert evidence_budget(4.0, 3, 6) == 0.04
    assert evidence_budget(4.0, 5, 6) == pytest.approx(1.0)
    assert evidence_budget(4.0, 6, 6) == pytest.approx(2.0)
    assert evidence_budget(4.0, 10**6, 10**6) == pytest.approx(4.0)
    assert evidence_budget(4.0, 0, 0) == evidence_budget(4.0, 1, 9) == 0.04


def test_more_right_answers_and_more_labels_allow_more():
    assert [evidence_budget(1.0, right, 12) for right in range(13)] == sorted(
        evidence_budget(1.0, right, 12) for right in range(13)
    )
    shares = [evidence_budget(1.0, 0.75 * count, count) for count in (8, 16, 64, 512)]
    assert shares == sorted(shares)
    assert shares[-1] < 0.5


@pytest.mark.parametrize("correlation", [0.3, 0.8])
def test_the_share_is_the_squared_correlation_of_normal_scores(correlation):
    """200,000 pairs of normal scores and true differences; the standard error of the accuracy is 0.001."""
    random = np.random.default_rng(0)
    true, noise = random.normal(size=200_000), random.normal(size=200_000)
    scores = correlation * true + math.sqrt(1 - correlation**2) * noise
    right = int((np.sign(scores) == np.sign(true)).sum())
    assert evidence_budget(1.0, right, len(true)) == pytest.approx(correlation**2, abs=0.008)


@pytest.mark.parametrize(
    ("full", "right", "decided"), [(0.0, 1, 2), (-1.0, 1, 2), (4.0, -1, 2), (4.0, 3, 2), (4.0, float("nan"), 2)]
)
def test_no_such_budget(full, right, decided):
    with pytest.raises(ConfigError, match="full="):
        evidence_budget(full, right, decided)
