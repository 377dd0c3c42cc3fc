"""Figures of votes. A vote says first, second or tie ("both are bad" is a tie here, as it is to the reward model).

Agreement between people counts one vote a person and pair. A hidden repeat tells how consistent a person is, and counts as a vote
in what speaks of a person alone: sides, ties and seconds.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import krippendorff
import numpy as np

from rlhf_lab.intervals import wilson_interval
from rlhf_lab.kinds import Choice

VALUES = (Choice.FIRST, Choice.SECOND, Choice.TIE)


@dataclass(frozen=True)
class Said:
    """One vote as the figures need it. on_left: did the first text stand on the left; None where nobody knows."""

    vote_id: int
    pair: int
    annotator: str
    choice: Choice
    on_left: bool | None
    response_ms: int | None
    at: float
    repeat: bool = False

    @property
    def value(self) -> Choice:
        return Choice.TIE if self.choice is Choice.BOTH_BAD else self.choice

    @property
    def left(self) -> bool | None:
        """Whether the text on the left won; None for ties and where the sides are unknown."""
        if self.on_left is None or self.value is Choice.TIE:
            return None
        return (self.value is Choice.FIRST) is self.on_left


@dataclass(frozen=True)
class Agreement:
    """Of `compared` comparisons of two votes, `agreed` say the same; low, high: 95 % Wilson, as if they were independent."""

    agreed: int
    compared: int

    @property
    def share(self) -> float | None:
        return self.agreed / self.compared if self.compared else None

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.agreed, self.compared)


@dataclass(frozen=True)
class Stretch:
    """Votes in a row, as a point of a curve: seconds since 1970 of the first and last of them. alpha: of all votes on the pairs
    that were judged then."""

    start: float
    end: float
    votes: int
    with_others: Agreement
    with_self: Agreement
    left: Agreement
    ties: Agreement
    seconds: float | None
    alpha: float | None


@dataclass(frozen=True)
class Person:
    """What one annotator's votes say. with_others: against every other vote on the same pair. with_self: hidden repeats that
    were judged alike. left: decided votes for the text on the left. alpha_without: of the others alone. seconds: median."""

    annotator: str
    votes: int
    with_others: Agreement
    with_self: Agreement
    left: Agreement
    ties: Agreement
    seconds: float | None
    alpha_without: float | None
    time: list[Stretch]


def alpha(votes: Iterable[Said]) -> float | None:
    """Krippendorff's alpha for nominal values: 1 perfect, 0 as by chance; None where no pair has two votes, or all are equal."""
    counts = _counts(votes)
    return _alpha(np.array(list(counts.values()), dtype=np.int64).reshape(-1, len(VALUES)))


def pairwise(votes: Iterable[Said]) -> Agreement:
    """Every two votes of different people on the same pair."""
    agreed = compared = 0
    for row in _counts(votes).values():
        n = sum(row)
        agreed += sum(k * (k - 1) // 2 for k in row)
        compared += n * (n - 1) // 2
    return Agreement(agreed, compared)


def people(votes: Sequence[Said], *, blocks: int = 6) -> list[Person]:
    """Everybody's figures, most votes first."""
    known = _Known.of(votes)
    counts = known.counts
    mine: defaultdict[str, list[Said]] = defaultdict(list)
    for vote in votes:
        mine[vote.annotator].append(vote)
    index = {pair: i for i, pair in enumerate(counts)}
    table = np.array(list(counts.values()), dtype=np.int64).reshape(-1, len(VALUES))
    found = []
    for annotator, said in mine.items():
        rest = table.copy()
        for vote in _first_looks(said):
            rest[index[vote.pair], VALUES.index(vote.value)] -= 1
        whole = _stretch(said, known)
        found.append(
            Person(
                annotator, len(_first_looks(said)), whole.with_others, whole.with_self, whole.left, whole.ties, whole.seconds,
                _alpha(rest), over_time(said, blocks, known),
            )
        )  # fmt: skip
    return sorted(found, key=lambda person: (-person.votes, person.annotator))


def over_time(votes: Sequence[Said], blocks: int, known: "_Known | None" = None) -> list[Stretch]:
    """The votes in the order they were cast, in so many stretches of equal length; known: of all votes, to compare with."""
    ordered = sorted(votes, key=lambda vote: (vote.at, vote.vote_id))
    known = _Known.of(votes) if known is None else known
    blocks = max(1, min(blocks, len(ordered)))
    edges = [round(i * len(ordered) / blocks) for i in range(blocks + 1)]
    return [_stretch(ordered[a:b], known) for a, b in itertools.pairwise(edges) if b > a]


def _first_looks(votes: Iterable[Said]) -> list[Said]:
    return [vote for vote in votes if not vote.repeat]


def _counts(votes: Iterable[Said]) -> dict[int, list[int]]:
    """pair -> how many said each of VALUES."""
    counts: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(VALUES))
    for vote in _first_looks(votes):
        counts[vote.pair][VALUES.index(vote.value)] += 1
    return dict(counts)


def _alpha(counts: "np.ndarray[tuple[int, int], np.dtype[np.int64]]") -> float | None:
    """counts: (pairs, values). The package refuses what has no answer; that is looked for beforehand."""
    several = counts[counts.sum(1) > 1] if len(counts) else counts
    if len(several) == 0 or (several.sum(0) > 0).sum() < 2:
        return None
    return float(krippendorff.alpha(value_counts=several, level_of_measurement="nominal"))


class _Known(NamedTuple):
    """What votes are compared with. counts: pair -> how many said each of VALUES; firsts: what somebody said first of a pair."""

    counts: dict[int, list[int]]
    firsts: dict[tuple[str, int], Choice]

    @classmethod
    def of(cls, votes: Iterable[Said]) -> "_Known":
        looks = _first_looks(votes)
        return cls(_counts(looks), {(vote.annotator, vote.pair): vote.value for vote in looks})


def _stretch(votes: Sequence[Said], known: _Known) -> Stretch:
    """votes: one person's or everybody's; known: of all votes."""
    agreed = compared = 0
    looks = _first_looks(votes)
    for vote in looks:
        row = known.counts[vote.pair]
        agreed += row[VALUES.index(vote.value)] - 1
        compared += sum(row) - 1
    again = [
        vote.value is first
        for vote in votes
        if vote.repeat and (first := known.firsts.get((vote.annotator, vote.pair))) is not None
    ]
    sides = Counter(vote.left for vote in votes)
    ties = sum(vote.value is Choice.TIE for vote in votes)
    times = [vote.response_ms for vote in votes if vote.response_ms is not None]
    rows = [known.counts[pair] for pair in {vote.pair for vote in looks}]
    return Stretch(
        min(vote.at for vote in votes), max(vote.at for vote in votes), len(votes), Agreement(agreed, compared),
        Agreement(sum(again), len(again)), Agreement(sides[True], sides[True] + sides[False]), Agreement(ties, len(votes)),
        median(times) / 1000 if times else None, _alpha(np.array(rows, dtype=np.int64).reshape(-1, len(VALUES))),
    )  # fmt: skip
