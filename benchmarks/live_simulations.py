"""Simulations of live runs, for `benchmarks/live.py --simulate`: answers with known win rates, and a model of the KL budget."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.common.enums import Opponent
from rlhf_lab.common.stats import hit
from rlhf_lab.core.evidence_budget import evidence_budget
from rlhf_lab.core.preference_fit import (
    DualFit,
    Float64,
    PreferenceTargets,
    choose_ridge,
    fit_dual,
    held_out_scores,
    score_variance,
)
from rlhf_lab.core.sequential_test import (
    BETS,
    THRESHOLD,
    Answer,
    Evidence,
    brake,
    is_preferred,
    no_evidence,
    should_stop,
    start_weight,
)

Row = dict[str, str | float]
Bools = NDArray[np.bool_]

# ---- the brake: answers with known win rates

ANSWERS, EARLY_SHARE = 400, 0.7

#: Candidates for one test: bets, and by how many answers each part of the capital waits.
BET_CHOICES: dict[str, tuple[float, ...]] = {
    "1/3, 3/5": BETS,
    "2/5": (0.4,),
    "3/5": (0.6,),
    "1/5, 2/5, 3/5, 4/5": (0.2, 0.4, 0.6, 0.8),
    "19 from 0.05 to 0.95": tuple(np.linspace(0.05, 0.95, 19).tolist()),
}
WEIGHT_CHOICES: dict[str, Callable[[int], float]] = {
    "c = 50": start_weight,
    "c = 20": lambda k: 20 / ((k + 20) * (k + 21)),
    "c = 100": lambda k: 100 / ((k + 100) * (k + 101)),
    "geometric, 1 %": lambda k: 0.01 * 0.99**k,
    "equal, 400 answers": lambda k: float(k < ANSWERS) / ANSWERS,
    "start at 0 only": lambda k: float(k == 0),
}
DECLINES = {
    "80 % from 20": (20, 0.2),
    "2/3 from 20": (20, 1 / 3),
    "80 % from 100": (100, 0.2),
    "2/3 from 100": (100, 1 / 3),
}
#: Win rates against the base and the best checkpoint after the first 20 answers about each of them.
PAIRS_OF_RATES = {
    "no difference at all": (0.5, 0.5),
    "80 % against both": (0.2, 0.2),
    "2/3 against both": (1 / 3, 1 / 3),
    "80 % against the policy, base 70 % for it": (0.7, 0.2),
    "2/3 against the policy, base 70 % for it": (0.7, 1 / 3),
    "80 % against the policy, base not asked": (math.nan, 0.2),
}


def e_values(success: Bools, bets: Sequence[float], weight: Callable[[int], float]) -> Float64:
    """(R, n) e-values over time of R runs with n answers, by the definition; success: (R, n)."""
    stakes, waiting, values = np.zeros((len(success), len(bets))), 1.0, np.empty(success.shape)
    for t, column in enumerate(success.T):
        factors = np.where(column[:, None], 1 + np.array(bets), 1 - np.array(bets))
        stakes, waiting = (stakes + weight(t) / len(bets)) * factors, waiting - weight(t)
        values[:, t] = stakes.sum(1) + max(0.0, waiting)
    return values


def first_time(is_reached: Bools) -> Float64:
    """(R,) number of the first answer at which (R, n) is true; infinite: none."""
    return np.where(is_reached.any(1), is_reached.argmax(1) + 1.0, np.inf)


def wins(rng: np.random.Generator, runs: int, start: int, rate: float, early: float = EARLY_SHARE) -> Bools:
    """(runs, ANSWERS + start) whether the policy wins: with probability `early` before `start`, then with `rate`."""
    rates = np.where(np.arange(ANSWERS + start) < start, early, rate)
    return rng.random((runs, len(rates))) < rates


def brake_candidates(runs: int) -> list[Row]:
    """One test at 2.5 %: share of runs without a difference that are stopped, and median number of answers from a decline (from
    answer 20 or 100 on, after 70 % wins) to the stop."""
    rows: list[Row] = []
    choices = [(bets, "c = 50") for bets in BET_CHOICES] + [("1/3, 3/5", w) for w in WEIGHT_CHOICES if w != "c = 50"]
    for bets, weights in choices:
        rng, row = np.random.default_rng(0), Row(bets=bets, weights=weights)
        for name, (start, rate) in {"no difference": (0, 0.5), **DECLINES}.items():
            values = e_values(~wins(rng, runs, start, rate), BET_CHOICES[bets], WEIGHT_CHOICES[weights])
            times = first_time(values >= 2 * THRESHOLD)
            row[name] = float(np.isfinite(times).mean()) if name == "no difference" else float(np.median(times)) - start
        rows.append(row)
    return rows


def brake_combinations(runs: int) -> list[Row]:
    """Both tests at once, 400 answers about each opponent, in turn: share of runs that are stopped, and median number of answers
    about the best checkpoint from the decline (after 20 answers about each with 70 % wins) to the stop."""
    rows: list[Row] = []
    for name, rates in PAIRS_OF_RATES.items():
        rng, start = np.random.default_rng(0), 0 if rates[0] == rates[1] == 0.5 else 20
        won = [wins(rng, runs, start, rate) for rate in rates]
        asked = [not math.isnan(rate) for rate in rates]
        separate = [
            e_values(~w, BETS, start_weight) if is_asked else np.ones(w.shape)
            for w, is_asked in zip(won, asked, strict=True)
        ]
        in_turn = np.stack([~w for w, is_asked in zip(won, asked, strict=True) if is_asked], axis=2).reshape(runs, -1)
        pooled = first_time(e_values(in_turn, BETS, start_weight) >= THRESHOLD)
        combinations = {
            "mean": first_time(separate[0] + separate[1] >= 2 * THRESHOLD),
            "half the probability each": first_time(np.maximum(*separate) >= 2 * THRESHOLD),
            "one test of all answers": np.ceil(pooled / sum(asked)),
        }
        row = Row(answers=name)
        for combination, times in combinations.items():
            row[f"{combination}: stopped"] = float(np.isfinite(times).mean())
            row[f"{combination}: median"] = float(np.median(times)) - start
        rows.append(row)
    return rows


def brake_in_use(runs: int) -> list[Row]:
    """The tests as the lab runs them, 400 answers, with answers about the opponents in turn, or about one of them only."""
    rows: list[Row] = []
    for name, asked in (("both in turn", tuple(Opponent)), ("base", (Opponent.BASE,)), ("best", (Opponent.BEST,))):
        rng, evidence = np.random.default_rng(1), no_evidence()
        stopped, preferred = np.zeros(runs, np.bool_), np.zeros(runs, np.bool_)
        for i in range(ANSWERS):
            opponent = asked[i % len(asked)]
            evidence[opponent] = evidence[opponent].after(rng.random(runs) < 0.5)
            stopped, preferred = stopped | should_stop(evidence), preferred | is_preferred(evidence)
        rows.append(
            {
                "opponent": name,
                "runs": runs,
                "stopped": float(stopped.mean()),
                "ever preferred": float(preferred.mean()),
            }
        )
    return rows


def brake_forecasts(runs: int) -> list[Row]:
    """After 10, 20 and 30 answers about the base: median forecast of runs whose state is then unknown, and what came. A tenth of
    the runs."""
    rows: list[Row] = []
    for rate in (0.8, 0.7, 0.6, 0.3, 0.2):
        won, evidence = wins(np.random.default_rng(2), max(2, runs // 10), 0, rate), Evidence()
        decided = np.empty(won.shape, np.bool_)
        for t, column in enumerate(won.T):
            evidence = evidence.after(column)
            decided[:, t] = (evidence.declined.value + 1 >= 2 * THRESHOLD) | (evidence.preferred.value >= THRESHOLD)
        times = first_time(decided)
        for count in (10, 20, 30):
            pairs = []
            for i in np.flatnonzero(times > count):
                forecast = brake([Answer(Opponent.BASE, bool(w)) for w in won[i, :count]]).more_answers
                pairs.append((math.inf if forecast is None else forecast, times[i] - count))
            if not pairs:  # of a few runs, all may be decided
                continue
            forecasts, actual = np.array(pairs).T
            row = Row(
                {"win rate": rate, "answers": count, "unknown": len(pairs), "forecast": float(np.median(forecasts))}
            )
            row["came after"] = float(np.median(actual))
            row["within a factor of 2"] = float(((forecasts <= 2 * actual) & (actual <= 2 * forecasts)).mean())
            rows.append(row)
    return rows


# ---- the budget: a model of live runs in which everything is known

WIDTH, FULL, LABELS = 200, 4.0, 60
LABELS_PER_FIT, STEPS_PER_LABEL, STEP_SHARE = 2, 5, 1 / 40  # STEP_SHARE: of the full budget, KL(old || new) of a step
SHOWN_LABELS = (12, 20, 40, 60)


class World(NamedTuple):
    """decay: the variance of feature i is proportional to i^-decay, so heads learn faster if it is larger. signal: standard
    deviation of a text's log-odds; 0: answers are coin flips. damage: gold lost per nat of KL, which no two texts of one policy
    show."""

    decay: float
    signal: float
    damage: float


class Known(NamedTuple):
    """What a rule may use. wins, blind: answers about the base that the policy won, and all of them."""

    labels: int
    accuracy: float
    reliability: float
    wins: int
    blind: int


WORLDS = (
    World(2, 3, 0.35), World(2, 3, 0.7), World(2, 1, 0.35), World(1, 3, 0.35), World(2, 0, 0.35),
    World(2, 3, 0.0), World(1, 3, 0.0),
)  # fmt: skip


def score_reliability(gram: Float64, fit: DualFit, products: Float64, square_norms: Float64) -> float:
    """The expected share of the variance of true score differences that the head's differences explain, in [0, 1].

    gram: (N, N), fit: of N labels. products: (N, M), differences of the labels (chosen - rejected) times M differences of texts,
    such as pairs of reference texts; square_norms: (M,), of these. With the head's differences s and their posterior variances v
    it is mean(s²) / (mean(s²) + mean(v)): the reliability of classical test theory (Lord & Novick 1968, section 3.4). 0 if all
    texts are equal.

    It rises as labels determine the head; labels that contradict each other lower it. On average it is 0.03 to 0.15 below the
    squared correlation of the head's scores with the true ones, if the prior of the fit is right.
    """
    signal = float(np.mean((products.T @ fit.coefficients) ** 2))
    total = signal + float(score_variance(gram, fit, products, square_norms).mean())
    return signal / total if total > 0 else 0.0


BUDGETS: dict[str, Callable[[Known], float]] = {
    "fixed": lambda _: FULL,
    "labels / (labels + 40)": lambda known: FULL * known.labels / (known.labels + 40),
    "accuracy (in use)": lambda known: evidence_budget(FULL, known.accuracy * known.labels, known.labels),
    "accuracy, 10 pseudo labels": lambda known: evidence_budget(
        FULL, known.accuracy * known.labels + 4, known.labels + 8
    ),
    "reliability": lambda known: FULL * known.reliability,
    "accuracy, less if blind answers are lost": lambda known: (
        evidence_budget(FULL, known.accuracy * known.labels, known.labels)
        * min(1.0, 2 * (known.wins + 1) / (known.blind + 2))
    ),
}


class Policy:
    """A policy that follows a head within a budget. Texts are standard normal vectors around its mean, that of the base is 0."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.world, self.rng = world, rng
        sds = np.arange(1, WIDTH + 1) ** (-world.decay / 2)
        self.sds: Float64 = sds / np.linalg.norm(sds)  # of the features
        weights = rng.normal(size=WIDTH) * self.sds
        self.weights: Float64 = weights / np.linalg.norm(weights)
        self.mean = self.best = np.zeros(WIDTH)

    def gold(self, mean: Float64) -> float:
        return float(self.weights @ mean - self.world.damage * (mean @ mean) / 2)

    def answer(self, other: Float64) -> tuple[Float64, bool]:
        """A label: features of the chosen text less those of the rejected one, and whether the policy's text was chosen."""
        difference = self.mean - other + self.rng.normal(size=WIDTH) * math.sqrt(2)
        damage = self.world.damage * (self.mean @ self.mean - other @ other) / 2
        log_odds = self.world.signal * float(self.weights @ difference - damage)
        won = self.rng.random() < 0.5 * (1 + math.tanh(log_odds / 2))
        return (difference if won else -difference) * self.sds, won

    def follow(self, head: Float64, budget: float) -> None:
        """Steps towards the tilt by the head with this KL."""
        target = head / max(float(np.linalg.norm(head)), 1e-12) * math.sqrt(2 * budget)
        for _ in range(LABELS_PER_FIT * STEPS_PER_LABEL):
            distance = float(np.linalg.norm(target - self.mean))
            share = min(1.0, math.sqrt(2 * FULL * STEP_SHARE) / max(distance, 1e-12))
            self.mean = self.mean + share * (target - self.mean)


def live_run(budget: Callable[[Known], float], world: World, seed: int) -> Float64:
    """(LABELS / LABELS_PER_FIT, 3) gold, KL and correlation of the head with gold, after each fit."""
    policy = Policy(world, np.random.default_rng(seed))
    texts = policy.rng.normal(size=(32, WIDTH)) * policy.sds * math.sqrt(2)  # differences of reference texts
    chosen, wins, rows, ridge, next_choice = list[Float64](), 0, list[tuple[float, float, float]](), 1.0, 4
    for count in range(1, LABELS + 1):
        label, won = policy.answer((policy.mean, np.zeros(WIDTH), policy.best)[count % 3])
        chosen.append(label)
        wins += won and count % 3 == 1
        if count % LABELS_PER_FIT:
            continue
        differences, targets = np.array(chosen), PreferenceTargets(np.zeros(count, np.bool_))
        gram = differences @ differences.T
        if count >= next_choice:
            ridge, next_choice = choose_ridge(gram, targets, range(count)), max(count + 4, 5 * count // 4)
        fit = fit_dual(gram, targets, ridge)
        accuracy = float(hit(held_out_scores(gram, fit, range(count))).mean())
        reliability = score_reliability(gram, fit, differences @ texts.T, (texts**2).sum(1))
        head = (fit.coefficients @ differences) * policy.sds
        policy.follow(head, budget(Known(count, accuracy, reliability, wins, (count + 2) // 3)))
        if count % 6 == 0 and policy.gold(policy.mean) > policy.gold(policy.best):
            policy.best = policy.mean
        correlation = float(head @ policy.weights) / max(float(np.linalg.norm(head)), 1e-12)
        rows.append((policy.gold(policy.mean), float(policy.mean @ policy.mean) / 2, correlation))
    return np.array(rows)


def budget_rules(runs: int) -> list[Row]:
    """Gold and KL after 12, 20, 40 and 60 labels, gold's mean over the run with its standard error, and the lowest gold of a
    run, on average; in standard deviations of the base's gold and nats. r: correlation of the head with gold. A hundredth of
    the runs."""
    rows: list[Row] = []
    for world in WORLDS:
        for name, budget in BUDGETS.items():
            results = np.array([live_run(budget, world, seed) for seed in range(max(2, runs // 100))])
            shown = results.mean(0)[[labels // LABELS_PER_FIT - 1 for labels in SHOWN_LABELS]]
            gold = results[:, :, 0]
            row = Row(world=f"{world.decay:g}, {world.signal:g}, {world.damage:g}", budget=name)
            row |= {f"gold at {labels}": float(value) for labels, value in zip(SHOWN_LABELS, shown[:, 0], strict=True)}
            row |= {"mean": float(gold.mean()), "±": float(gold.mean(1).std(ddof=1)) / math.sqrt(len(gold))}
            row |= {"lowest": float(gold.min(1).mean())}
            row |= {f"KL at {labels}": float(value) for labels, value in zip(SHOWN_LABELS, shown[:, 1], strict=True)}
            rows.append(row | {"r at 60": float(shown[-1, 2])})
    return rows


SIMULATIONS: dict[str, dict[str, Callable[[int], list[Row]]]] = {
    "brake": {
        "Tests in use": brake_in_use, "Both tests": brake_combinations, "Candidates": brake_candidates,
        "Forecasts": brake_forecasts,
    },
    "budget": {"Budgets": budget_rules},
}  # fmt: skip
