"""Simulations for `benchmarks/live.py --simulate opponents`: with which opponent should people compare a policy?

The policy's gold rises and then falls. There is one decided answer after each step, and a checkpoint every five steps. The scores
of texts are normal with standard deviation 1 around the gold of their model, so the policy wins with probability
Φ(difference / √2).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from rlhf_lab.common.enums import Opponent
from rlhf_lab.core.sequential_test import is_preferred, no_evidence, should_stop
from rlhf_lab.quality.brake import compared_checkpoint, loses_to
from rlhf_lab.store.live_runs import LiveAnswer

Row = dict[str, str | float]
CHECKPOINT_EVERY, STEPS_AFTER_BEST, NO_DIFFERENCE_ANSWERS, SOON = 5, 200, 400, 80


class Course(NamedTuple):
    """Gold rises in a line from 0 to `best` at step `best_step`, falls in a line to `end` at `end_step`, and stays there."""

    best: float
    best_step: int
    end: float
    end_step: int

    def gold(self, step: int) -> float:
        return float(np.interp(step, [0, self.best_step, self.end_step], [0.0, self.best, self.end]))


#: From the answers so far, the checkpoints, the step and a generator: the checkpoint to compare with; None: the base.
Rule = Callable[[Sequence[LiveAnswer], Sequence[int], int, np.random.Generator], int | None]

COURSES = {
    "+0.45 at 10, −0.25 at 40": Course(0.45, 10, -0.25, 40),
    "+2 at 22, +1 at 50": Course(2.0, 22, 1.0, 50),
    "−0.7 at 40": Course(0.0, 0, -0.7, 40),
}
RISING, NO_DIFFERENCE = Course(1.0, 20, 1.0, 21), Course(0.0, 0, 0.0, 1)


def by_majority(answers: Sequence[LiveAnswer], checkpoints: Sequence[int]) -> int | None:
    """The first checkpoint, until the policy wins more of six or more answers about it; then the newest one, and so on."""
    about = [answer for answer in answers if answer.opponent is Opponent.BEST]
    if not about:
        return checkpoints[0] if checkpoints else None
    present = about[-1].opponent_step
    won = [answer.won for answer in about if answer.opponent_step == present]
    return checkpoints[-1] if len(won) >= 6 and 2 * sum(map(bool, won)) > len(won) else present


def base_every(period: int, choose: Callable[[Sequence[LiveAnswer], Sequence[int]], int | None]) -> Rule:
    return lambda answers, checkpoints, step, _: choose(answers, checkpoints) if step % period else None


def in_use(answers: Sequence[LiveAnswer], checkpoints: Sequence[int], step: int, _: np.random.Generator) -> int | None:
    checkpoint = compared_checkpoint(answers, checkpoints)
    return checkpoint if step % 2 or loses_to(answers, checkpoint) else None


def drawn(answers: Sequence[LiveAnswer], checkpoints: Sequence[int], _: int, rng: np.random.Generator) -> int | None:
    """Win rates of base and checkpoint are drawn from their posteriors given the last 20 answers; the higher one decides."""
    draws = {}
    for opponent in dict.fromkeys((None, compared_checkpoint(answers, checkpoints))):
        last = [answer.won for answer in answers if answer.opponent_step == opponent][-20:]
        draws[opponent] = rng.beta(1 + last.count(False), 1 + last.count(True))
    return max(draws, key=lambda opponent: draws[opponent])


RULES: dict[str, Rule] = {
    "base in turn, checkpoint until beaten by majority (before)": base_every(2, by_majority),
    "base every 4th, checkpoint until beaten by majority": base_every(4, by_majority),
    "base every 4th, until clearly beaten": base_every(4, compared_checkpoint),
    "base every 8th, until clearly beaten": base_every(8, compared_checkpoint),
    "base or checkpoint drawn, until clearly beaten": drawn,
    "base in turn unless the policy loses to the checkpoint, until clearly beaten (in use)": in_use,
}


def times(rule: Rule, course: Course, seed: int, answers: int) -> tuple[float, float]:
    """Answers until the run is stopped, and until people prefer the policy; infinite: never."""
    rng, evidence, given, preferred = np.random.default_rng(seed), no_evidence(), list[LiveAnswer](), math.inf
    for step in range(1, answers + 1):
        checkpoint = rule(given, range(CHECKPOINT_EVERY, step, CHECKPOINT_EVERY), step, rng)
        won = bool(rng.random() < 0.5 + 0.5 * math.erf((course.gold(step) - course.gold(checkpoint or 0)) / 2))
        opponent = Opponent.BASE if checkpoint is None else Opponent.BEST
        given.append(LiveAnswer(step, step, opponent, checkpoint, won))
        evidence[opponent] = evidence[opponent].after(won)
        preferred = min(preferred, step if is_preferred(evidence) else math.inf)
        if should_stop(evidence):
            return step, preferred
    return math.inf, preferred


def opponents(runs: int) -> list[Row]:
    """For three courses of gold: the median number of answers from its best to the stop (infinite if not within 200), and the
    share of runs stopped within 80. The median number of answers to "people prefer the policy" if gold rises to +1 in 20 steps.
    A tenth of the runs."""
    seeds, rows = range(max(2, runs // 10)), list[Row]()
    for name, rule in [*RULES.items(), ("the best checkpoint, if it were known", None)]:
        row = Row(rule=name)
        for course_name, course in COURSES.items():
            used = rule or best_of(course)
            stops = [times(used, course, seed, course.best_step + STEPS_AFTER_BEST)[0] for seed in seeds]
            after = np.array(stops) - course.best_step
            row |= {course_name: float(np.median(after)), f"{course_name}: by 80": float((after <= SOON).mean())}
        found = [times(rule, RISING, seed, STEPS_AFTER_BEST)[1] for seed in seeds] if rule else [math.inf]
        rows.append(row | {"preferred": float(np.median(found))})
    return rows


def best_of(course: Course) -> Rule:
    return lambda _answers, checkpoints, _step, _rng: max((0, *checkpoints), key=course.gold) or None


def false_stops(runs: int) -> list[Row]:
    """Runs of 400 answers without a difference: the share that is stopped."""
    rows: list[Row] = []
    for name in ("base or checkpoint drawn, until clearly beaten", [*RULES][-1]):
        stops = [times(RULES[name], NO_DIFFERENCE, seed, NO_DIFFERENCE_ANSWERS)[0] for seed in range(runs)]
        rows.append(Row({"rule": name, "runs": runs, "stopped": float(np.isfinite(stops).mean())}))
    return rows


SIMULATIONS: dict[str, Callable[[int], list[Row]]] = {"Opponents": opponents, "False stops": false_stops}
