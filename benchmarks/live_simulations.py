"""Simulations of live runs, for `benchmarks/live.py --simulate`: answers with known win rates, and a model of the KL budget."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.common.enums import Opponent
from rlhf_lab.common.stats import hit, wilson_interval
from rlhf_lab.core.evidence_budget import SMALLEST_SHARE, evidence_budget
from rlhf_lab.core.preference_fit import (
    Float64,
    PreferenceTargets,
    choose_ridge,
    fit_dual,
    held_out_scores,
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
FIRST_LABELS = 6  # with which a live run may start
SHOWN_LABELS = (12, 60)
BEFORE, IN_USE = "2 pseudo-labels (before)", "6 pseudo-labels (in use)"


class World(NamedTuple):
    """decay: the variance of feature i is proportional to i^-decay, so heads learn faster if it is larger. signal: standard
    deviation of a text's log-odds; 0: answers are coin flips. damage: gold lost per nat of KL, which no two texts of one policy
    show."""

    decay: float
    signal: float
    damage: float


class Known(NamedTuple):
    """What a rule may use. accuracy: of held-out labels; new: labels since the fit before; previous: what the rule allowed then,
    0 at first."""

    labels: int
    accuracy: float
    new: int
    previous: float


WORLDS = (
    World(2, 3, 0.35), World(2, 3, 0.7), World(2, 1, 0.35), World(1, 3, 0.35), World(2, 0, 0.35),
    World(2, 3, 0.0), World(1, 3, 0.0),
)  # fmt: skip


def by_accuracy(accuracy: float) -> float:
    """The budget by r² for r = sin(π (accuracy - 1/2)), as in `evidence_budget`."""
    return FULL * max(SMALLEST_SHARE, math.sin(math.pi * max(0.0, accuracy - 0.5)) ** 2)


def pseudo(known: Known, count: int = 2) -> float:
    """By the accuracy with `count` pseudo-labels, half of them right."""
    return by_accuracy((known.accuracy * known.labels + count / 2) / (known.labels + count))


def wilson(known: Known, z: float) -> float:
    """By the lower end of the Wilson interval."""
    return by_accuracy(wilson_interval(known.accuracy * known.labels, known.labels, z)[0])


def beta(known: Known, probability: float) -> float:
    """By a quantile of the posterior of the accuracy, with a uniform prior."""
    grid = np.linspace(0, 1, 2001)[1:-1]
    right = known.accuracy * known.labels
    logs = right * np.log(grid) + (known.labels - right) * np.log1p(-grid)
    mass = np.exp(logs - logs.max()).cumsum()
    return by_accuracy(float(grid[np.searchsorted(mass, probability * mass[-1])]))


def limited(rule: Callable[[Known], float], rise: float, fall: float = math.inf) -> Callable[[Known], float]:
    """A rule that at most doubles in `rise` labels, from a tenth of the full budget on, and halves in `fall`."""

    def limit(known: Known) -> float:
        low = known.previous * 0.5 ** (known.new / fall) if math.isfinite(fall) else 0.0
        return max(low, min(rule(known), (known.previous or FULL / 10) * 2 ** (known.new / rise)))

    return limit


BUDGETS: dict[str, Callable[[Known], float]] = {
    BEFORE: pseudo,
    IN_USE: lambda known: evidence_budget(FULL, known.accuracy * known.labels, known.labels),
    "10 pseudo-labels": lambda known: pseudo(known, 10),
    "Beta, 25 %": lambda known: beta(known, 0.25),
    "Beta, 10 %": lambda known: beta(known, 0.1),
    "Wilson, 10 %": lambda known: wilson(known, 1.282),
    "before, doubling in 8 labels": limited(pseudo, 8),
    "before, doubling and halving in 16": limited(pseudo, 16, 16),
    "labels / (labels + 40)": lambda known: FULL * known.labels / (known.labels + 40),
    "fixed": lambda _: FULL,
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

    @property
    def kl(self) -> float:
        return float(self.mean @ self.mean) / 2

    def gold(self, mean: Float64) -> float:
        return float(self.weights @ mean - self.world.damage * (mean @ mean) / 2)

    def answer(self, other: Float64) -> Float64:
        """A label: features of the chosen text less those of the rejected one, of the policy and of another mean."""
        difference = self.mean - other + self.rng.normal(size=WIDTH) * math.sqrt(2)
        damage = self.world.damage * (self.mean @ self.mean - other @ other) / 2
        log_odds = self.world.signal * float(self.weights @ difference - damage)
        won = self.rng.random() < 0.5 * (1 + math.tanh(log_odds / 2))
        return (difference if won else -difference) * self.sds

    def follow(self, head: Float64, budget: float) -> None:
        """Steps towards the tilt by the head with this KL."""
        target = head / max(float(np.linalg.norm(head)), 1e-12) * math.sqrt(2 * budget)
        for _ in range(LABELS_PER_FIT * STEPS_PER_LABEL):
            distance = float(np.linalg.norm(target - self.mean))
            share = min(1.0, math.sqrt(2 * FULL * STEP_SHARE) / max(distance, 1e-12))
            self.mean = self.mean + share * (target - self.mean)


def live_run(
    budget: Callable[[Known], float], world: World, seed: int, keeps: float = 1.0, labels_per_fit: int = LABELS_PER_FIT
) -> Float64:
    """(LABELS / labels_per_fit, 2) gold and KL after each fit; 0 before FIRST_LABELS.

    keeps: what the policy keeps, from one fit to the next, of a KL that the budget no longer allows.
    """
    policy, rows = Policy(world, np.random.default_rng(seed)), list[tuple[float, float]]()
    chosen, ridge, next_choice, allowed, previous = list[Float64](), 1.0, 4, 0.0, 0.0
    for count in range(1, LABELS + 1):
        chosen.append(policy.answer((policy.mean, np.zeros(WIDTH), policy.best)[count % 3]))
        if count % labels_per_fit:
            continue
        if count >= FIRST_LABELS:
            differences, targets = np.array(chosen), PreferenceTargets(np.zeros(count, np.bool_))
            gram = differences @ differences.T
            if count >= next_choice:
                ridge, next_choice = choose_ridge(gram, targets, range(count)), max(count + 4, 5 * count // 4)
            fit = fit_dual(gram, targets, ridge)
            accuracy = float(hit(held_out_scores(gram, fit, range(count))).mean())
            previous = budget(Known(count, accuracy, labels_per_fit, previous))
            allowed = max(previous, keeps * min(policy.kl, allowed))
            policy.follow((fit.coefficients @ differences) * policy.sds, allowed)
            if count % 6 == 0 and policy.gold(policy.mean) > policy.gold(policy.best):
                policy.best = policy.mean
        rows.append((policy.gold(policy.mean), policy.kl))
    return np.array(rows)


def coin_flips(runs: int) -> list[Row]:
    """Labels that are coin flips, a head for each label from the sixth to the 60th: the share of runs that a rule ever allows
    3 nats, and 2, and the mean of the largest budgets. decay: of the features. A tenth of the runs; their heads are fitted once,
    with the former rule."""
    rows = {name: Row(budget=name) for name in BUDGETS}
    for decay in (1, 2, 3):
        paths = [coin_flip_path(World(decay, 0, 0.35), seed) for seed in range(max(2, runs // 10))]
        for name, rule in BUDGETS.items():
            allowed = np.zeros((len(paths), len(paths[0])))
            for i, path in enumerate(paths):
                for j, known in enumerate(path):
                    allowed[i, j] = rule(known._replace(previous=allowed[i, j - 1] if j else 0.0))
            highest = allowed.max(1)
            rows[name] |= {f"{nats} nats, decay {decay}": float((highest >= nats).mean()) for nats in (3, 2)}
            rows[name] |= {f"highest, decay {decay}": float(highest.mean())}
    return list(rows.values())


def coin_flip_path(world: World, seed: int) -> list[Known]:
    """What a rule knows after each label."""
    path = list[Known]()

    def rule(known: Known) -> float:
        path.append(known)
        return pseudo(known)

    live_run(rule, world, seed, labels_per_fit=1)
    return path


def budget_rules(runs: int) -> list[Row]:
    """Gold, mean over 60 labels, in each world and in their mean with its standard error; the mean difference from the former
    rule with its standard error; KL in the first world. *Keeps*: what a policy keeps, in ten steps, of a KL that the budget no
    longer allows. A hundredth of the runs."""
    cases = [(name, 1.0) for name in BUDGETS] + [(name, keeps) for name in (BEFORE, IN_USE) for keeps in (0.5, 0.0)]
    rows, before = list[Row](), np.zeros(0)
    for name, keeps in cases:
        seeds = range(max(2, runs // 100))
        results = np.array([[live_run(BUDGETS[name], world, seed, keeps) for world in WORLDS] for seed in seeds])
        gold = results[..., 0].mean(2)  # (R, worlds)
        before = gold.mean(1) if name == BEFORE and keeps == 1 else before
        row = Row({"budget": name, "keeps": keeps})
        for world, value in zip(WORLDS, gold.mean(0), strict=True):
            row[f"{world.decay:g}, {world.signal:g}, {world.damage:g}"] = float(value)
        difference = gold.mean(1) - before
        for column, values in (("mean", gold.mean(1)), ("difference", difference)):
            row |= {column: float(values.mean()), f"± ({column})": float(values.std(ddof=1)) / math.sqrt(len(values))}
        kl = results[:, 0, :, 1].mean(0)
        rows.append(row | {f"KL at {labels}": float(kl[labels // LABELS_PER_FIT - 1]) for labels in SHOWN_LABELS})
    return rows


SIMULATIONS: dict[str, dict[str, Callable[[int], list[Row]]]] = {
    "brake": {
        "Tests in use": brake_in_use, "Both tests": brake_combinations, "Candidates": brake_candidates,
        "Forecasts": brake_forecasts,
    },
    "budget": {"Coin flips": coin_flips, "Budgets": budget_rules},
}  # fmt: skip
