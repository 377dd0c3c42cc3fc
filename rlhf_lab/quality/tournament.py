"""Tournaments: the choice of the next pair for a person, and the ranking from all answers."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import PairKey, TournamentAnswer
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.quality.bradley_terry import BradleyTerryFit, Matrix, are_compared, fit_bradley_terry, score_intervals

WIN_SHARE = {Choice.FIRST: 1.0, Choice.SECOND: 0.0, Choice.TIE: 0.5, Choice.BOTH_BAD: 0.5}
BASE = "base"


@dataclass(frozen=True)
class Contestant:
    """model: as in the request. texts, rewards, kl: by prompt. rewards: None without a reward model. kl: log-ratios to the base
    model; for best of n the bound of its KL."""

    model: str
    texts: list[str]
    rewards: list[float] | None
    kl: list[float]

    @property
    def name(self) -> str:
        """ "base model", "base, best of 4", "run 1, step 40"."""
        parts = self.model.split("/")
        if parts[0] == "run":
            return f"run {parts[1]}, step {parts[2]}"
        return f"base, best of {parts[2]}" if len(parts) == 3 else "base model"


@dataclass(frozen=True)
class Standing:
    """The place of a contestant in the ranking. contestant: its index. answers: number of answers about it.

    score: of the Bradley-Terry model, log-odds relative to the first contestant, the base model where it takes part; None for a
    contestant that no answers connect to the first one, directly or through others: it is not compared. low, high: the 95 %
    interval, for other prompts; None for an end that the answers do not limit, such as the upper one without a defeat.
    """

    contestant: int
    name: str
    score: float | None
    low: float | None
    high: float | None
    answers: int
    kl: float
    reward: float | None
    gold: float | None


def contestants_of(result: dict[str, Any]) -> list[Contestant]:
    """The contestants in the result of a TOURNAMENT job."""
    return [Contestant(row["model"], row["texts"], row["scores"], row["kl"]) for row in result["contestants"]]


def win_matrix(count: int, answers: Sequence[TournamentAnswer]) -> Matrix:
    """(n, n) how often texts of i were preferred to texts of j. Ties and "both bad" count one half, skips are ignored."""
    wins = np.zeros((count, count))
    for answer in answers:
        if answer.choice in WIN_SHARE:
            share = WIN_SHARE[answer.choice]
            wins[answer.first, answer.second] += share
            wins[answer.second, answer.first] += 1 - share
    return wins


def rank_contestants(
    contestants: Sequence[Contestant], answers: Sequence[TournamentAnswer], gold: Sequence[Sequence[float]] = ()
) -> list[Standing]:
    """The ranking, best score first, then those that are not compared. gold: a judge's score of each text, by contestant."""
    wins = win_matrix(len(contestants), answers)
    counts, scores = (wins + wins.T).sum(1), _scores(len(contestants), tuple(answers))
    standings = [
        Standing(
            i, contestant.name, *scores[i], round(float(counts[i])), fmean(contestant.kl),
            None if contestant.rewards is None else fmean(contestant.rewards), fmean(gold[i]) if gold else None,
        )
        for i, contestant in enumerate(contestants)
    ]  # fmt: skip
    return sorted(standings, key=lambda standing: math.inf if standing.score is None else -standing.score)


@lru_cache(maxsize=16)  # every page that shows the ranking asks for it after every poll
def _scores(count: int, answers: tuple[TournamentAnswer, ...]) -> list[tuple[float | None, float | None, float | None]]:
    """(score, low, high) of each contestant; see `Standing`."""
    answers_by_prompt = defaultdict(list)
    for answer in answers:
        if answer.choice in WIN_SHARE:
            answers_by_prompt[answer.position].append(answer)
    wins = win_matrix(count, answers)
    fit = fit_bradley_terry(wins)
    intervals = score_intervals(fit, [win_matrix(count, group) for group in answers_by_prompt.values()])
    rows = zip(fit.scores.tolist(), intervals, are_compared(wins), strict=True)
    return [(score, *interval) if is_compared else (None, None, None) for score, interval, is_compared in rows]


def choose_pair(
    contestants: Sequence[Contestant], answers: Sequence[TournamentAnswer], annotator: str, leased_since: float
) -> PairKey | None:
    """The pair that this person judges next, or None if none is left for them.

    Its contestants are those whose answer is expected to be most informative; pairs on other people's screens are treated as
    pending. Its prompt is the one that this person has seen least often, then the one with the fewest answers. answers: including
    pairs on screens, which have no choice yet. leased_since: pairs shown to others after this time are not chosen.
    """
    on_screen = [answer for answer in answers if answer.choice is None and answer.created_at > leased_since]
    excluded = {answer.key for answer in on_screen} | {
        answer.key for answer in answers if answer.annotator == annotator
    }
    shown = Counter(answer.position for answer in answers if answer.annotator == annotator)
    answer_counts = Counter(answer.key for answer in answers)
    information = _fit_with_pending(len(contestants), answers, on_screen).expected_information()
    pairs = [(i, j) for i in range(len(contestants)) for j in range(i + 1, len(contestants))]
    for i, j in sorted(pairs, key=lambda pair: (-round(float(information[pair]), 9), pair)):
        keys = [
            PairKey(position, i, j)
            for position, (first, second) in enumerate(zip(contestants[i].texts, contestants[j].texts, strict=True))
            if first.strip() != second.strip() and (position, i, j) not in excluded
        ]
        if keys:
            order = {key: derive_seed(key.position, "tournament", annotator) for key in keys}
            return min(keys, key=lambda key: (shown[key.position], answer_counts[key], order[key]))
    return None


def _fit_with_pending(
    count: int, answers: Sequence[TournamentAnswer], on_screen: Sequence[TournamentAnswer]
) -> BradleyTerryFit:
    pending = np.zeros((count, count))
    for answer in on_screen:
        pending[answer.first, answer.second] += 1
        pending[answer.second, answer.first] += 1
    return fit_bradley_terry(win_matrix(count, answers), pending)


def pair_count(contestants: Sequence[Contestant]) -> int:
    """How many pairs a person can judge: all combinations of two contestants and a prompt with different texts."""
    return sum(
        first.strip() != second.strip()
        for i, contestant in enumerate(contestants)
        for other in contestants[i + 1 :]
        for first, second in zip(contestant.texts, other.texts, strict=True)
    )
