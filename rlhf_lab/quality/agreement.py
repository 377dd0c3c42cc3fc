"""Statistics of votes. The values are first, second and tie ("both are bad" is a tie, as for the reward model).

Agreement between people counts one vote per person and pair. A hidden repeat measures self-consistency; it is also counted in the
statistics of one person alone: sides, ties and seconds. So is an expert's decision on a disputed pair. In the agreement of one
person it is the pair's label, with which their vote is compared; alpha and the agreement of all people are those of their votes.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import krippendorff
import numpy as np

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.stats import wilson_interval

VOTE_VALUES = (Choice.FIRST, Choice.SECOND, Choice.TIE)


@dataclass(frozen=True)
class VoteRecord:
    """One vote. first_on_left: whether the first text was on the left; None: unknown."""

    vote_id: int
    pair_id: int
    annotator: str
    choice: Choice
    first_on_left: bool | None
    response_ms: int | None
    created_at: float
    repeat: bool = False
    adjudication: bool = False

    @property
    def value(self) -> Choice:
        return Choice.TIE if self.choice is Choice.BOTH_BAD else self.choice

    @property
    def left_won(self) -> bool | None:
        """Whether the text on the left won; None for ties and where the sides are unknown."""
        if self.first_on_left is None or self.value is Choice.TIE:
            return None
        return (self.value is Choice.FIRST) is self.first_on_left


@dataclass(frozen=True)
class Agreement:
    """`agreed` of `compared` comparisons of two votes are equal. interval: 95 % Wilson, as if they were independent."""

    agreed: int
    compared: int

    @property
    def share(self) -> float | None:
        return self.agreed / self.compared if self.compared else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.agreed, self.compared)


@dataclass(frozen=True)
class TimeBucket:
    """Consecutive votes, as a point of a curve. start, end: times of the first and last. alpha: of all votes on their pairs."""

    start: float
    end: float
    votes: int
    agreement_with_others: Agreement
    self_consistency: Agreement
    left_preference: Agreement
    ties: Agreement
    median_seconds: float | None
    alpha: float | None


@dataclass(frozen=True)
class AnnotatorQuality:
    """The statistics of one annotator.

    agreement_with_others: with every other vote on the same pair, or with an expert's decision. self_consistency: hidden repeats
    equal to the first vote. left_preference: decided votes for the text on the left. alpha_without: of the other annotators'
    votes.
    """

    annotator: str
    votes: int
    agreement_with_others: Agreement
    self_consistency: Agreement
    left_preference: Agreement
    ties: Agreement
    median_seconds: float | None
    alpha_without: float | None
    time_buckets: list[TimeBucket]


def krippendorff_alpha(votes: Iterable[VoteRecord]) -> float | None:
    """Krippendorff's alpha for nominal values: 1 perfect, 0 chance; None: no pair has two votes, or all values are equal."""
    counts = _value_counts(votes)
    return _alpha_from_counts(np.array(list(counts.values()), dtype=np.int64).reshape(-1, len(VOTE_VALUES)))


def pairwise_agreement(votes: Iterable[VoteRecord]) -> Agreement:
    """Over every two votes of different people on the same pair."""
    agreed = compared = 0
    for row in _value_counts(votes).values():
        n = sum(row)
        agreed += sum(k * (k - 1) // 2 for k in row)
        compared += n * (n - 1) // 2
    return Agreement(agreed, compared)


def annotator_qualities(votes: Sequence[VoteRecord], *, bucket_count: int = 6) -> list[AnnotatorQuality]:
    """The statistics of every annotator, most votes first."""
    reference = _ReferenceVotes.from_votes(votes)
    counts = reference.counts
    votes_by_annotator: defaultdict[str, list[VoteRecord]] = defaultdict(list)
    for vote in votes:
        votes_by_annotator[vote.annotator].append(vote)
    index = {pair: i for i, pair in enumerate(counts)}
    table = np.array(list(counts.values()), dtype=np.int64).reshape(-1, len(VOTE_VALUES))
    results = []
    for annotator, annotator_votes in votes_by_annotator.items():
        other_counts = table.copy()
        for vote in _first_votes(annotator_votes):
            other_counts[index[vote.pair_id], VOTE_VALUES.index(vote.value)] -= 1
        overall = _time_bucket(annotator_votes, reference)
        results.append(
            AnnotatorQuality(
                annotator,
                len(_first_votes(annotator_votes)),
                overall.agreement_with_others,
                overall.self_consistency,
                overall.left_preference,
                overall.ties,
                overall.median_seconds,
                _alpha_from_counts(other_counts),
                quality_over_time(annotator_votes, bucket_count, reference),
            )
        )
    return sorted(results, key=lambda person: (-person.votes, person.annotator))


def quality_over_time(
    votes: Sequence[VoteRecord], bucket_count: int, reference: "_ReferenceVotes | None" = None
) -> list[TimeBucket]:
    """Buckets of equally many votes in the order they were cast. reference: of all votes to compare with (default: `votes`)."""
    ordered = sorted(votes, key=lambda vote: (vote.created_at, vote.vote_id))
    reference = _ReferenceVotes.from_votes(votes) if reference is None else reference
    bucket_count = max(1, min(bucket_count, len(ordered)))
    edges = [round(i * len(ordered) / bucket_count) for i in range(bucket_count + 1)]
    return [_time_bucket(ordered[a:b], reference) for a, b in itertools.pairwise(edges) if b > a]


def _first_votes(votes: Iterable[VoteRecord]) -> list[VoteRecord]:
    return [vote for vote in votes if not vote.repeat and not vote.adjudication]


def _value_counts(votes: Iterable[VoteRecord]) -> dict[int, list[int]]:
    """pair id -> number of votes for each of VOTE_VALUES."""
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(VOTE_VALUES))
    for vote in _first_votes(votes):
        counts[vote.pair_id][VOTE_VALUES.index(vote.value)] += 1
    return dict(counts)


def _alpha_from_counts(counts: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> float | None:
    """counts: (pairs, values). None where alpha is undefined, which the krippendorff package would refuse."""
    with_several_votes = counts[counts.sum(1) > 1] if len(counts) else counts
    if len(with_several_votes) == 0 or (with_several_votes.sum(0) > 0).sum() < 2:
        return None
    return float(krippendorff.alpha(value_counts=with_several_votes, level_of_measurement="nominal"))


class _ReferenceVotes(NamedTuple):
    """Votes to compare with. counts: see `_value_counts`; first_values: (annotator, pair id) -> value of the first vote;
    decisions: pair id -> value of an expert's decision."""

    counts: dict[int, list[int]]
    first_values: dict[tuple[str, int], Choice]
    decisions: dict[int, Choice]

    @classmethod
    def from_votes(cls, votes: Sequence[VoteRecord]) -> "_ReferenceVotes":
        first_votes = _first_votes(votes)
        first_values = {(vote.annotator, vote.pair_id): vote.value for vote in first_votes}
        decisions = {vote.pair_id: vote.value for vote in votes if vote.adjudication}
        return cls(_value_counts(first_votes), first_values, decisions)


def _time_bucket(votes: Sequence[VoteRecord], reference: _ReferenceVotes) -> TimeBucket:
    """votes: of one person or of everybody; reference: of all votes."""
    agreed = compared = 0
    first_votes = _first_votes(votes)
    for vote in first_votes:
        if (decision := reference.decisions.get(vote.pair_id)) is not None:
            agreed += vote.value is decision
            compared += 1
            continue
        row = reference.counts[vote.pair_id]
        agreed += row[VOTE_VALUES.index(vote.value)] - 1
        compared += sum(row) - 1
    repeat_agrees = [
        vote.value is first_value
        for vote in votes
        if vote.repeat and (first_value := reference.first_values.get((vote.annotator, vote.pair_id))) is not None
    ]
    left_won_counts = Counter(vote.left_won for vote in votes)
    ties = sum(vote.value is Choice.TIE for vote in votes)
    times = [vote.response_ms for vote in votes if vote.response_ms is not None]
    pair_counts = [reference.counts[pair] for pair in {vote.pair_id for vote in first_votes}]
    return TimeBucket(
        min(vote.created_at for vote in votes),
        max(vote.created_at for vote in votes),
        len(votes),
        Agreement(agreed, compared),
        Agreement(sum(repeat_agrees), len(repeat_agrees)),
        Agreement(left_won_counts[True], left_won_counts[True] + left_won_counts[False]),
        Agreement(ties, len(votes)),
        median(times) / 1000 if times else None,
        _alpha_from_counts(np.array(pair_counts, dtype=np.int64).reshape(-1, len(VOTE_VALUES))),
    )
