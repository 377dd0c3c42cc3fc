"""Statistics of votes. The values are first, second and tie ("both are bad" is a tie, as for the reward model).

Agreement between people uses one vote per person and pair. Hidden repeats measure self-consistency. They are also included in the
statistics of a single person (sides, ties and seconds), and so are an expert's decisions on disputed pairs. For the agreement
of a single person, a decision is the label of its pair, with which their vote is compared; alpha and the agreement of all
people are computed from the votes without decisions.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.common.stats import counted_interval, wilson_interval

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
FIRST, SECOND, TIE = range(3)  # values of votes
VALUE_COUNT = 3


@dataclass(frozen=True)
class VoteColumns:
    """Votes in the order they were cast, one array per column.

    names: of annotators. annotator: positions in names. pair: non-negative numbers that identify the pairs. value: FIRST, SECOND
    or TIE. left_won: 1 or 0, -1 for ties and unknown sides. response_ms: NaN if unknown.
    """

    names: tuple[str, ...]
    annotator: Int
    pair: Int
    value: Int
    left_won: Int
    response_ms: NDArray[np.float64]
    created_at: NDArray[np.float64]
    repeat: Bool
    adjudication: Bool

    @property
    def is_first(self) -> Bool:
        """Whether each vote is neither a hidden repeat nor an expert's decision."""
        return ~self.repeat & ~self.adjudication

    def __len__(self) -> int:
        return len(self.pair)

    def label_counts(self) -> dict[str, int]:
        """Number of votes by annotator, without hidden repeats and decisions; 0 for annotators who only have these."""
        counts = np.bincount(self.annotator[self.is_first], minlength=len(self.names))
        return {self.names[i]: int(counts[i]) for i in np.unique(self.annotator)}


@dataclass(frozen=True)
class Agreement:
    """Of `compared` comparisons of two votes, `agreed` are equal.

    groups: (2, G) `agreed` and `compared` of each pair of texts, where a vote is compared with several others, so that its
    comparisons are correlated; None for independent ones. interval: 95 %, `counted_interval`.
    """

    agreed: int
    compared: int
    groups: Int | None = field(default=None, compare=False, repr=False)

    @property
    def share(self) -> float | None:
        return self.agreed / self.compared if self.compared else None

    @property
    def interval(self) -> tuple[float, float]:
        if self.groups is None:
            return wilson_interval(self.agreed, self.compared)
        return counted_interval([(agreed, compared) for agreed, compared in self.groups.T.tolist() if compared])


@dataclass(frozen=True)
class TimeBucket:
    """Statistics of consecutive votes, a point of a curve. start, end: times of the first and last vote. alpha: of all votes on
    their pairs."""

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
    equal to the first vote. left_preference: decided votes for the text on the left. alpha_without: alpha of the votes of all
    other annotators.
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


def krippendorff_alpha(votes: VoteColumns) -> float | None:
    """Krippendorff's alpha for nominal values: 1 perfect, 0 chance. None if no pair has two votes or all values are equal."""
    return _AlphaSums.of(_value_counts(votes)).alpha()


def pairwise_agreement(votes: VoteColumns) -> Agreement:
    """Agreement over all combinations of two votes of different people on the same pair."""
    counts = _value_counts(votes)
    totals = counts.sum(1)
    return _agreement_by_pair(np.stack(((counts * (counts - 1)).sum(1), totals * (totals - 1))) // 2)


def _agreement_by_pair(groups: Int) -> Agreement:
    """groups: see `Agreement`."""
    agreed, compared = groups.sum(1).tolist()
    return Agreement(agreed, compared, groups)


def annotator_qualities(votes: VoteColumns, *, bucket_count: int = 6) -> list[AnnotatorQuality]:
    """The statistics of every annotator, most votes first."""
    comparison, is_first = _Comparison.of(votes), votes.is_first
    all_sums = comparison.alpha_sums(np.arange(len(comparison.counts)))
    by_annotator = np.argsort(votes.annotator, kind="stable")
    edges = np.searchsorted(votes.annotator[by_annotator], np.arange(len(votes.names) + 1))
    results = []
    for name, (start, end) in zip(votes.names, itertools.pairwise(edges), strict=True):
        if start == end:
            continue
        rows = by_annotator[start:end]
        first_rows = rows[is_first[rows]]
        own_pairs = _distinct(votes.pair[first_rows], len(comparison.counts))
        cells = VALUE_COUNT * np.searchsorted(own_pairs, votes.pair[first_rows]) + votes.value[first_rows]
        own_counts = np.bincount(cells, minlength=VALUE_COUNT * len(own_pairs)).reshape(-1, VALUE_COUNT)
        without = _AlphaSums.of(comparison.counts[own_pairs] - own_counts)
        overall = _time_bucket(votes, rows, comparison)
        results.append(
            AnnotatorQuality(
                name,
                len(first_rows),
                overall.agreement_with_others,
                overall.self_consistency,
                overall.left_preference,
                overall.ties,
                overall.median_seconds,
                (all_sums - comparison.alpha_sums(own_pairs) + without).alpha(),
                _time_buckets(votes, rows, bucket_count, comparison),
            )
        )
    return sorted(results, key=lambda person: (-person.votes, person.annotator))


def quality_over_time(votes: VoteColumns, bucket_count: int) -> list[TimeBucket]:
    """Buckets with equal numbers of votes, in chronological order."""
    return _time_buckets(votes, np.arange(len(votes)), bucket_count, _Comparison.of(votes))


def _value_counts(votes: VoteColumns) -> Int:
    """(pairs, VALUE_COUNT) number of votes with each value, without hidden repeats and decisions."""
    first = votes.is_first
    pair_count = int(votes.pair.max()) + 1 if len(votes) else 0
    cells = np.bincount(VALUE_COUNT * votes.pair[first] + votes.value[first], minlength=VALUE_COUNT * pair_count)
    return cells.reshape(-1, VALUE_COUNT)


@dataclass(frozen=True)
class _AlphaSums:
    """Sums over pairs with several votes, from which alpha is computed.

    by_value: n_v, the number of votes with each value. coincidences: Σ o_vv = Σ k_v (k_v − 1) / (k − 1) over pairs and values,
    where a pair has k votes, k_v of them with the value v. Source: Krippendorff, Content Analysis, chapter 11.
    """

    by_value: Int
    coincidences: float

    @classmethod
    def of(cls, counts: Int) -> "_AlphaSums":
        """counts: (pairs, VALUE_COUNT)."""
        counts, coincidences = _with_several_votes(counts)
        return cls(counts.sum(0), float(coincidences.sum()))

    def __add__(self, other: "_AlphaSums") -> "_AlphaSums":
        return _AlphaSums(self.by_value + other.by_value, self.coincidences + other.coincidences)

    def __sub__(self, other: "_AlphaSums") -> "_AlphaSums":
        return _AlphaSums(self.by_value - other.by_value, self.coincidences - other.coincidences)

    def alpha(self) -> float | None:
        """1 − (n − 1) (n − Σ o_vv) / (n² − Σ n_v²); None if fewer than two values occur."""
        n = int(self.by_value.sum())
        if (self.by_value > 0).sum() < 2:
            return None
        return 1 - (n - 1) * (n - self.coincidences) / float(n**2 - (self.by_value**2).sum())


def _with_several_votes(counts: Int) -> tuple[Int, NDArray[np.float64]]:
    """The counts, set to 0 for pairs with a single vote, and Σ k_v (k_v − 1) / (k − 1) for each pair."""
    totals = counts.sum(1)
    counts = counts * (totals > 1)[:, None]
    return counts, (counts * (counts - 1)).sum(1) / np.maximum(totals - 1, 1)


class _Comparison(NamedTuple):
    """Comparisons of each vote with the other votes.

    counts: see `_value_counts`. By pair: comparable and coincidences, see `_with_several_votes`. By vote: first, see
    `VoteColumns.is_first`; agreed and compared: numbers of equal and of all comparisons with other votes on the pair or with an
    expert's decision, 0 for repeats and decisions; known_repeat: it is a hidden repeat whose first vote exists; same_again: that
    has the same value.
    """

    counts: Int
    comparable: Int
    coincidences: NDArray[np.float64]
    first: Bool
    agreed: Int
    compared: Int
    known_repeat: Bool
    same_again: Bool

    @classmethod
    def of(cls, votes: VoteColumns) -> "_Comparison":
        counts, first = _value_counts(votes), votes.is_first
        decisions = np.full(len(counts), -1)
        decisions[votes.pair[votes.adjudication]] = votes.value[votes.adjudication]
        decision = decisions[votes.pair]
        agreed = np.where(decision < 0, counts[votes.pair, votes.value] - 1, votes.value == decision) * first
        compared = np.where(decision < 0, counts.sum(1)[votes.pair] - 1, 1) * first
        keys = len(counts) * votes.annotator + votes.pair
        order = np.flatnonzero(first)[np.argsort(keys[first], kind="stable")]
        first_keys, repeats = keys[order], np.flatnonzero(votes.repeat)
        known = repeats[np.isin(keys[repeats], first_keys)]
        first_values = votes.value[order[np.searchsorted(first_keys, keys[known])]]
        known_repeat, same_again = np.zeros(len(votes), np.bool_), np.zeros(len(votes), np.bool_)
        known_repeat[known], same_again[known] = True, votes.value[known] == first_values
        return cls(counts, *_with_several_votes(counts), first, agreed, compared, known_repeat, same_again)

    def alpha_sums(self, pairs: Int) -> _AlphaSums:
        return _AlphaSums(self.comparable[pairs].sum(0), float(self.coincidences[pairs].sum()))


def _distinct(pairs: Int, pair_count: int) -> Int:
    """The distinct pairs in ascending order."""
    seen = np.zeros(pair_count, np.bool_)
    seen[pairs] = True
    return np.flatnonzero(seen)


def _time_buckets(votes: VoteColumns, rows: Int, bucket_count: int, comparison: _Comparison) -> list[TimeBucket]:
    ordered = rows[np.argsort(votes.created_at[rows], kind="stable")]
    bucket_count = max(1, min(bucket_count, len(ordered)))
    edges = [round(i * len(ordered) / bucket_count) for i in range(bucket_count + 1)]
    return [_time_bucket(votes, ordered[a:b], comparison) for a, b in itertools.pairwise(edges) if b > a]


def _time_bucket(votes: VoteColumns, rows: Int, comparison: _Comparison) -> TimeBucket:
    """Statistics of some votes. rows: positions of at least one vote, of one person or of all."""

    def count(column: NDArray[Any]) -> int:
        return int(column[rows].sum())

    times, left_won, created_at = votes.response_ms[rows], votes.left_won[rows], votes.created_at[rows]
    times = times[~np.isnan(times)]
    pairs = _distinct(votes.pair[rows[comparison.first[rows]]], len(comparison.counts))
    by_pair, group = np.unique(votes.pair[rows], return_inverse=True)
    columns = comparison.agreed[rows], comparison.compared[rows]
    groups = np.stack([np.bincount(group, column, len(by_pair)) for column in columns]).astype(np.int64)
    return TimeBucket(
        float(created_at.min()),
        float(created_at.max()),
        len(rows),
        _agreement_by_pair(groups),
        Agreement(count(comparison.same_again), count(comparison.known_repeat)),
        Agreement(int((left_won == 1).sum()), int((left_won >= 0).sum())),
        Agreement(int((votes.value[rows] == TIE).sum()), len(rows)),
        float(np.median(times)) / 1000 if len(times) else None,
        comparison.alpha_sums(pairs).alpha(),
    )
