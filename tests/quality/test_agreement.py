"""Figures worked by hand, and against an independent computation over every pair of votes."""

import math
import random
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest

from rlhf_lab.common import stats
from rlhf_lab.common.enums import Choice
from rlhf_lab.quality import agreement
from rlhf_lab.quality.agreement import Agreement, VoteColumns

F, S, T, B = Choice.FIRST, Choice.SECOND, Choice.TIE, Choice.BOTH_BAD
VALUE = {F: agreement.FIRST, S: agreement.SECOND, T: agreement.TIE, B: agreement.TIE}


class Ballot(NamedTuple):
    pair_id: int
    annotator: str
    choice: Choice
    created_at: float
    first_on_left: bool | None = True
    response_ms: int | None = None
    repeat: bool = False
    adjudication: bool = False

    @property
    def value(self):
        return VALUE[self.choice]

    @property
    def left_won(self):
        unknown = self.first_on_left is None or self.value == agreement.TIE
        return -1 if unknown else int((self.choice is F) == self.first_on_left)


def make_vote(pair, annotator, choice, **more):
    return Ballot(pair, annotator, choice, **({"created_at": float(pair)} | more))


def columns(votes):
    names = tuple(sorted({vote.annotator for vote in votes}))
    return VoteColumns(
        names,
        np.array([names.index(vote.annotator) for vote in votes], np.int64),
        np.array([vote.pair_id for vote in votes], np.int64),
        np.array([vote.value for vote in votes], np.int64),
        np.array([vote.left_won for vote in votes], np.int64),
        np.array([math.nan if vote.response_ms is None else vote.response_ms for vote in votes], np.float64),
        np.array([vote.created_at for vote in votes], np.float64),
        np.array([vote.repeat for vote in votes], np.bool_),
        np.array([vote.adjudication for vote in votes], np.bool_),
    )


def krippendorff_alpha(votes):
    return agreement.krippendorff_alpha(columns(votes))


def pairwise_agreement(votes):
    return agreement.pairwise_agreement(columns(votes))


def annotator_qualities(votes):
    return agreement.annotator_qualities(columns(votes))


def quality_over_time(votes, bucket_count):
    return agreement.quality_over_time(columns(votes), bucket_count)


#: Pair 1: F F; pair 2: F S; pair 3: S S T; pair 4: one vote only.
HAND = [
    make_vote(1, "a", F),
    make_vote(1, "b", F),
    make_vote(2, "a", F),
    make_vote(2, "b", S),
    make_vote(3, "a", S),
    make_vote(3, "b", S),
    make_vote(3, "c", B),
    make_vote(4, "c", T),
]


def test_pairwise_agreement_by_hand():
    assert pairwise_agreement(HAND) == Agreement(2, 5)  # FF; SS of three; not FS, ST, ST
    assert pairwise_agreement([]).share is None


def test_the_interval_counts_pairs_not_comparisons():
    """Ten people per pair agree on half of 40 pairs and split evenly on the others: 40 trials, not 1,800 comparisons."""
    names = [f"person {i}" for i in range(10)]
    votes = [
        make_vote(pair, name, S if pair % 2 and i % 2 else F) for pair in range(40) for i, name in enumerate(names)
    ]
    everybody = pairwise_agreement(votes)
    assert (everybody.agreed, everybody.compared) == (20 * 45 + 20 * 20, 40 * 45)
    expected = stats.clustered_interval([(45, 45), (20, 45)] * 20)
    assert everybody.interval == expected
    assert expected[1] - expected[0] > 0.15
    person = next(iter(annotator_qualities(votes)))
    assert person.agreement_with_others == Agreement(20 * 9 + 20 * 4, 40 * 9)
    assert person.agreement_with_others.interval == stats.clustered_interval([(9, 9), (4, 9)] * 20)
    assert pairwise_agreement([]).interval == (0.0, 1.0)


def test_an_experts_decision_is_the_label_that_votes_are_compared_with():
    decided = [*HAND, make_vote(2, "e", S, adjudication=True), make_vote(3, "e", T, adjudication=True)]
    people = {person.annotator: person for person in annotator_qualities(decided)}
    assert people["a"].agreement_with_others == Agreement(1, 3)  # pair 1 with b; not the decisions S and T
    assert people["b"].agreement_with_others == Agreement(2, 3)  # and the decision on pair 2
    assert people["c"].agreement_with_others == Agreement(1, 1)  # the decision on pair 3: both bad is a tie
    assert people["e"].votes == 0
    assert (pairwise_agreement(decided), krippendorff_alpha(decided)) == (Agreement(2, 5), krippendorff_alpha(HAND))


def test_alpha_by_hand():
    # Coincidences: F-F 2, F-S 1, S-F 1, S-S 1, S-T 1, T-S 1 (each of pair 3's six ordered pairs counts 1/2); n = 7.
    # n_F = 3, n_S = 3, n_T = 1. Observed disagreement 4/7; expected 2 (9 + 3 + 3) / (7 * 6) = 5/7; alpha = 1 - 4/5.
    assert krippendorff_alpha(HAND) == pytest.approx(0.2)


def brute_force_alpha(votes):
    """Nominal alpha from its definition, in fractions."""
    pairs = {}
    for vote in votes:
        pairs.setdefault(vote.pair_id, []).append(vote.value)
    units = [values for values in pairs.values() if len(values) > 1]
    everything = [value for values in units for value in values]
    n = len(everything)
    observed = (
        sum(Fraction(sum(a is not b for a, b in combinations(values, 2)) * 2, len(values) - 1) for values in units) / n
    )
    expected = Fraction(sum(a is not b for a, b in combinations(everything, 2)) * 2, n * (n - 1))
    return float(1 - observed / expected)


@pytest.mark.parametrize("seed", range(5))
def test_alpha_and_agreement_equal_their_definitions(seed):
    rng = random.Random(seed)
    votes = [
        make_vote(pair, who, rng.choices([F, S, T, B], [5, 3, 2, 1])[0])
        for pair in range(40)
        for who in "abcde"
        if rng.random() < 0.5
    ]
    assert krippendorff_alpha(votes) == pytest.approx(brute_force_alpha(votes), abs=1e-12)
    same_pair = [(a, b) for a, b in combinations(votes, 2) if a.pair_id == b.pair_id]
    assert pairwise_agreement(votes) == Agreement(sum(a.value is b.value for a, b in same_pair), len(same_pair))
    for person in annotator_qualities(votes):
        others = [vote for vote in votes if vote.annotator != person.annotator]
        assert person.alpha_without == pytest.approx(brute_force_alpha(others), abs=1e-12)
        compared = [(a, b) for a, b in same_pair if person.annotator in (a.annotator, b.annotator)]
        assert person.agreement_with_others == Agreement(sum(a.value is b.value for a, b in compared), len(compared))


def test_alpha_is_none_where_it_is_undefined():
    assert krippendorff_alpha([]) is None
    assert krippendorff_alpha([make_vote(1, "a", F), make_vote(2, "b", S)]) is None  # no pair has votes of two people
    assert (
        krippendorff_alpha([make_vote(1, "a", F), make_vote(1, "b", F)]) is None
    )  # no variation: agreement by chance is complete
    assert annotator_qualities([]) == []


def test_left_preference_ties_and_seconds_by_hand():
    votes = [
        make_vote(1, "a", F, first_on_left=True, response_ms=1000),
        make_vote(2, "a", S, first_on_left=False, response_ms=5000),
        make_vote(3, "a", F, first_on_left=False, response_ms=2000),
        make_vote(4, "a", T, response_ms=None),
        make_vote(5, "a", F, first_on_left=None),
        make_vote(6, "a", S, first_on_left=False),
    ]
    (person,) = annotator_qualities(votes)
    assert person.left_preference == Agreement(3, 4)  # left on pairs 1, 2 and 6; 4 is a tie; sides of 5 unknown
    assert (person.ties, person.median_seconds, person.votes) == (Agreement(1, 6), 2.0, 6)
    assert person.agreement_with_others == Agreement(0, 0)


def test_repeats_count_for_consistency_alone():
    votes = [
        make_vote(1, "a", F),
        make_vote(1, "a", F, repeat=True),
        make_vote(2, "a", S),
        make_vote(2, "a", T, repeat=True),
        make_vote(3, "a", F, repeat=True),
        make_vote(1, "b", S),
    ]
    a, b = annotator_qualities(votes)
    assert (a.self_consistency, b.self_consistency) == (Agreement(1, 2), Agreement(0, 0))
    assert (a.votes, a.agreement_with_others) == (2, Agreement(0, 1))
    assert pairwise_agreement(votes) == Agreement(0, 1)


def test_time_buckets_have_equal_lengths():
    votes = [make_vote(i, "a", F if i < 5 else S, first_on_left=True, created_at=100.0 - i) for i in range(10)]
    late, early = quality_over_time(votes, 2)[::-1]
    assert (early.start, early.end, early.votes, early.left_preference) == (91.0, 95.0, 5, Agreement(0, 5))
    assert (late.start, late.end, late.votes, late.left_preference) == (96.0, 100.0, 5, Agreement(5, 5))
    assert [bucket.votes for bucket in quality_over_time(votes, 3)] == [3, 4, 3]
    assert len(quality_over_time(votes[:2], 6)) == 2


def test_consistency_and_alpha_over_time():
    """Early: pairs 1 and 2, a and b agree once of two; late: the repeats, one of two alike, and pair 3 where they agree."""
    votes = [
        make_vote(1, "a", F, created_at=1.0),
        make_vote(1, "b", F, created_at=2.0),
        make_vote(2, "a", F, created_at=3.0),
        make_vote(2, "b", S, created_at=4.0),
        make_vote(1, "a", F, created_at=5.0, repeat=True),
        make_vote(2, "b", F, created_at=6.0, repeat=True),
        make_vote(3, "a", S, created_at=7.0),
        make_vote(3, "b", S, created_at=8.0),
    ]
    early, late = quality_over_time(votes, 2)
    assert (early.self_consistency, late.self_consistency) == (Agreement(0, 0), Agreement(1, 2))
    assert (early.agreement_with_others, late.agreement_with_others) == (Agreement(2, 4), Agreement(2, 2))
    # F-F 2, F-S 1, S-F 1; n_F = 3, n_S = 1, n = 4: observed 2/4, expected 2 * 3 / (4 * 3), alpha = 1 - 1 = 0
    assert early.alpha == pytest.approx(0.0)
    assert late.alpha is None  # on pair 3 all agree
    of_b = annotator_qualities(votes)[1]
    assert [bucket.self_consistency for bucket in of_b.time_buckets][-2:] == [Agreement(0, 1), Agreement(0, 0)]
    assert [bucket.median_seconds for bucket in of_b.time_buckets] == [None] * 4


def test_the_interval_is_wilsons():
    low, high = Agreement(8, 10).interval
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
