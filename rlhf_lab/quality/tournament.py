"""Tournaments: the choice of the next pair for a person, and the ranking from all answers."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from statistics import fmean, median_low
from typing import Any

import numpy as np

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import PairKey, TournamentAnswer
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.quality.bradley_terry import BradleyTerryFit, Matrix, are_compared, fit_bradley_terry, score_intervals

WIN_SHARE = {Choice.FIRST: 1.0, Choice.SECOND: 0.0, Choice.TIE: 0.5, Choice.BOTH_BAD: 0.5}
BASE = "base"
MAX_SKIPS = 10  # of a person, one after the other


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
    interval, for other prompts; None for an end that the answers do not limit, such as the upper one without a defeat. kl,
    reward, gold: means over its texts; None if not measured, or not to be shown.
    """

    contestant: int
    name: str
    score: float | None
    low: float | None
    high: float | None
    answers: int
    kl: float | None
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
    contestants: Sequence[Contestant],
    answers: Sequence[TournamentAnswer],
    annotator: str,
    leased_since: float,
    draw: Callable[[PairKey], bytes] | None = None,
    revealed: Sequence[TournamentAnswer] = (),
) -> PairKey | None:
    """The pair that this person judges next, or None if none is left for them.

    Its contestants are those whose answer is expected to be most informative; pairs on other people's screens are treated as
    pending. Its prompt is the one that this person has seen least often, then the one with the fewest answers. answers: including
    pairs on screens, which have no choice yet. leased_since: pairs shown to others after this time are not chosen.

    draw: for people, who must not find out which model wrote a text: a value per pair that only the lab can compute and that
    differs between people. The pair then is drawn among the more informative half of the contestants' pairs, nobody sees a text
    twice, and after MAX_SKIPS skips in a row a person waits until these are older than leases. None for a program.
    revealed: the answers that the ranking shows. Who gave them may know the models of their texts, and may be this person under
    another name, so these texts are not shown again.
    """
    if draw is not None and is_skipping(answers, annotator, leased_since):
        return None
    on_screen = [answer for answer in answers if answer.choice is None and answer.created_at > leased_since]
    excluded = {answer.key for answer in on_screen} | {
        answer.key for answer in answers if answer.annotator == annotator
    }
    shown = Counter(answer.position for answer in answers if answer.annotator == annotator)
    answer_counts = Counter(answer.key for answer in answers)
    information = _fit_with_pending(len(contestants), answers, on_screen).expected_information()
    seen = [*revealed, *(answer for answer in answers if draw and answer.annotator == annotator)]
    keys = [key for key in unseen_pairs(contestants, seen) if key not in excluded]
    worth = {key: round(float(information[key.first, key.second]), 9) for key in keys}
    if draw is None:
        order = {key: derive_seed(key.position, "tournament", annotator) for key in keys}
        return min(
            keys,
            key=lambda key: (-worth[key], key[1:], shown[key.position], answer_counts[key], order[key]),
            default=None,
        )
    if keys:
        least = median_low({key[1:]: worth[key] for key in keys}.values())
        keys = [key for key in keys if worth[key] >= least]
    return min(keys, key=lambda key: (shown[key.position], answer_counts[key], draw(key)), default=None)


def is_skipping(answers: Sequence[TournamentAnswer], annotator: str, since: float) -> bool:
    """Whether this person's last MAX_SKIPS answers are skips, the last one after this time."""
    own = [answer for answer in answers if answer.annotator == annotator and answer.choice is not None][-MAX_SKIPS:]
    return len(own) == MAX_SKIPS and {answer.choice for answer in own} == {Choice.SKIP} and own[-1].created_at > since


def judging_since(
    contestants: Sequence[Contestant],
    answers: Sequence[TournamentAnswer],
    now: float,
    pause_s: float,
    *,
    waits_for_others: bool = False,
) -> float:
    """When the present judging began; infinity if nobody judges.

    Somebody judges who has a pair on screen since less than pause_s, or has given an answer since and has pairs left. A pause of
    everybody that is longer than pause_s ends the judging. answers: in chronological order. waits_for_others: somebody judges who
    has given an answer since, also without pairs left, because others may come.
    """
    recent = [answer for answer in answers if answer.created_at > now - pause_s]
    has_screen = any(answer.choice is None for answer in recent)
    answers_of_recent = (
        [answer for answer in answers if answer.annotator == name] for name in {answer.annotator for answer in recent}
    )
    if (
        not has_screen
        and not (waits_for_others and recent)
        and not any(unseen_pairs(contestants, own) for own in answers_of_recent)
    ):
        return math.inf
    begin = now
    for answer in reversed(answers):
        if begin - answer.created_at > pause_s:
            break
        begin = answer.created_at
    return begin


def unseen_pairs(contestants: Sequence[Contestant], seen_answers: Sequence[TournamentAnswer]) -> list[PairKey]:
    """All pairs of two different texts to a prompt, neither of which is in these answers."""
    texts = [[text.strip() for text in contestant.texts] for contestant in contestants]
    seen = {(row.position, texts[i][row.position]) for row in seen_answers for i in (row.first, row.second)}
    return [
        PairKey(position, i, j)
        for i, j in combinations(range(len(texts)), 2)
        for position, (first, second) in enumerate(zip(texts[i], texts[j], strict=True))
        if first != second and (position, first) not in seen and (position, second) not in seen
    ]


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
    return len(unseen_pairs(contestants, []))
