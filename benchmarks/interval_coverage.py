"""How often 95 % intervals contain the true value, by simulations in which it is known.

    python benchmarks/interval_coverage.py tournament
    python benchmarks/interval_coverage.py reward

tournament: two models, m prompts and k people, each of whom judges every pair. The log-odds of one text against another are the
difference of the models plus a normal quality of either text with standard deviation tau, the same for all people. The true score
is that of the population of prompts, the log-odds of the mean win rate over prompts.

reward: linear heads as the lab fits them (`core/preference_fit.py`, here for many draws at once) on normal features. The true
value is the mean, over the draws, of the exact accuracy of the fitted heads on new pairs: the expected accuracy on new
prompts of a model that is trained on as many labels. "One split" fits to four fifths of the prompts and predicts the others,
as for adapters.
"""

import argparse
import itertools
import math
from functools import cache
from typing import NamedTuple

import numpy as np

from rlhf_lab.common.stats import cross_validated_interval, grouped_interval, held_out_interval, hit, student_t
from rlhf_lab.core.preference_fit import RIDGES, Float64
from rlhf_lab.quality.bradley_terry import fit_bradley_terry, score_intervals

TOURNAMENTS = ((5, 1, 0.0), (12, 1, 0.0), (48, 1, 0.0), (12, 5, 0.0), (12, 5, 1.0), (48, 5, 1.0), (12, 10, 2.0))
LOG_ODDS = (0.0, 1.0, 2.0, 4.0, 6.0)
PRIOR_SD_OF_DIFFERENCE = 8**0.5


def wins_of_model_1(
    rng: np.random.Generator, log_odds: float, prompts: int, people: int, tau: float
) -> tuple[int, ...]:
    """How many people prefer model 1 at each prompt, ascending, since the order does not matter."""
    quality = tau * rng.normal(size=(prompts, 2))
    won = rng.binomial(people, 1 / (1 + np.exp(-(log_odds + quality[:, 1] - quality[:, 0]))))
    return tuple(sorted(won.tolist()))


def true_score(log_odds: float, tau: float) -> float:
    z = np.linspace(-8, 8, 4001)
    rates = 1 / (1 + np.exp(-(log_odds + tau * math.sqrt(2) * z)))
    rate = float(np.average(rates, weights=np.exp(-z * z / 2)))
    return math.log(rate / (1 - rate))


@cache
def tournament_intervals(won: tuple[int, ...], people: int) -> list[tuple[float | None, float | None]]:
    """Of the score of model 1 by `score_intervals`, and score ± 1.96 standard errors with the prior's information, as if answers
    were independent, at most as wide as the prior's."""
    wins = [np.array([[0.0, people - w], [w, 0.0]]) for w in won]
    fit = fit_bradley_terry(sum(wins, np.zeros((2, 2))))
    half_width = 1.96 * min(PRIOR_SD_OF_DIFFERENCE, math.sqrt(fit.covariance[1, 1]))
    return [score_intervals(fit, wins)[1], (float(fit.scores[1] - half_width), float(fit.scores[1] + half_width))]


def tournament_coverage(draws: int) -> None:
    print("| prompts, people, tau | log-odds | true score | no defeat | of these bound too high ", end="")
    print("| score interval | Wald with the prior |\n|" + "---|" * 7)
    for prompts, people, tau in TOURNAMENTS:
        tournament_intervals.cache_clear()
        for log_odds in LOG_ODDS:
            rng, truth = np.random.default_rng(0), true_score(log_odds, tau)
            covered, undefeated, too_high = [0, 0], 0, 0
            for _ in range(draws):
                intervals = tournament_intervals(wins_of_model_1(rng, log_odds, prompts, people, tau), people)
                for i, (low, high) in enumerate(intervals):
                    covered[i] += (low is None or low <= truth) and (high is None or truth <= high)
                low, high = intervals[0]
                undefeated += high is None
                too_high += high is None and low is not None and low > truth
            cells = [f"{prompts}, {people}, {tau:g}", f"{log_odds:g}", f"{truth:.2f}", f"{undefeated / draws:.1%}"]
            cells += [f"{too_high} of {undefeated}", *(f"{count / draws:.1%}" for count in covered)]
            print("|", " | ".join(cells), "|", flush=True)


# ---- accuracy of reward models


class Setting(NamedTuple):
    """labels: n. per_prompt: pairs of each prompt, whose features have this correlation. people: who label each pair alike.
    signal: standard deviation of the true log-odds; 0: coin flips."""

    labels: int
    per_prompt: int
    signal: float
    people: int = 1
    correlation: float = 0.3


REWARD_SETTINGS = (
    *(Setting(n, k, signal) for n in (20, 60) for k in (1, 2, 4) for signal in (0.0, 1.0, 3.0, 10.0)),
    *(Setting(200, k, signal) for k in (1, 2, 4) for signal in (0.0, 3.0)),
    *(Setting(n, 1, signal, 4) for n in (20, 60, 200) for signal in (0.0, 3.0)),
    *(Setting(n, n // 5, signal, correlation=0.8) for n in (50, 100) for signal in (0.0, 3.0, 10.0)),
)
WIDTH = 200
CHUNK = {20: 250, 50: 50, 60: 50, 100: 20, 200: 8}  # draws computed at once


class Draws(NamedTuple):
    """differences: (R, P, D) of R draws and P pairs, chosen by coin flip or the true log-odds; weights: (R, D) true ones."""

    differences: Float64
    labels: Float64  # (R, P), 1 or -1
    weights: Float64


def spectrum() -> Float64:
    """Standard deviations of the features: variances fall as 1 / i."""
    sds = np.arange(1, WIDTH + 1) ** -0.5
    result: Float64 = sds / np.sqrt((sds**2).sum()) * math.sqrt(2)
    return result


def draw(rng: np.random.Generator, setting: Setting, count: int) -> Draws:
    pairs, sds = setting.labels // setting.people, spectrum()
    prompts = pairs // setting.per_prompt
    shared = rng.normal(size=(count, prompts, 1, WIDTH))
    own = rng.normal(size=(count, prompts, setting.per_prompt, WIDTH))
    x = (math.sqrt(setting.correlation) * shared + math.sqrt(1 - setting.correlation) * own) * sds
    weights = rng.normal(size=(count, WIDTH))
    weights *= setting.signal / np.sqrt(((weights * sds) ** 2).sum(1, keepdims=True))
    x = x.reshape(count, pairs, WIDTH)
    is_first = rng.random((count, pairs)) < _sigmoid(np.einsum("rpd,rd->rp", x, weights))
    return Draws(x, np.where(is_first, 1.0, -1.0), weights)


def fit_heads(
    gram: Float64, ridge: float, start: Float64, counts: Float64
) -> tuple[Float64, Float64, Float64, Float64]:
    """`fit_dual` of R draws at once: coefficients, scores, gradients and curvatures (R, P)."""
    a, scores = start, np.einsum("rij,rj->ri", gram, start)
    for _ in range(8):
        p = _sigmoid(scores)
        gradient, curvature = counts * (p - 1), np.maximum(counts * p * (1 - p), 1e-12)
        root, target = np.sqrt(curvature), curvature * scores - gradient
        system = gram * root[:, :, None] * root[:, None, :] + ridge * np.eye(gram.shape[1])
        solved = np.linalg.solve(system, (root * np.einsum("rij,rj->ri", gram, target))[..., None])[..., 0]
        step = (target - root * solved) / ridge - a
        a, scores = a + step, scores + np.einsum("rij,rj->ri", gram, step)
    p = _sigmoid(scores)
    return a, scores, counts * (p - 1), np.maximum(counts * p * (1 - p), 1e-12)


def left_out_scores(gram: Float64, ridge: float, fit: tuple[Float64, ...], size: int) -> Float64:
    """`held_out_scores` of R draws at once, for groups of `size` neighbouring pairs."""
    _, scores, gradient, curvature = fit
    count, pairs, root = len(gram), gram.shape[1], np.sqrt(curvature)
    inverse = ridge * np.linalg.inv(gram * root[:, :, None] * root[:, None, :] + ridge * np.eye(pairs))
    blocks = np.stack([inverse[:, i : i + size, i : i + size] for i in range(0, pairs, size)], axis=1)
    scaled = (gradient / root).reshape(count, -1, size)
    shift = (np.linalg.solve(blocks, scaled[..., None])[..., 0] - scaled).reshape(count, pairs)
    result: Float64 = scores + shift / root
    return result


def cross_validate(draws: Draws, setting: Setting) -> tuple[Float64, Float64, Float64]:
    """Left-out hits (R, P), the true accuracy of each fitted head (R,), and its ridge. The ridge is chosen as in the lab."""
    chosen = draws.differences * draws.labels[..., None]
    gram = chosen @ chosen.transpose(0, 2, 1)
    count, pairs, _ = chosen.shape
    best, ridge_of = np.full(count, np.inf), np.zeros(count)
    scores, coefficients, start = np.zeros((count, pairs)), np.zeros((count, pairs)), np.zeros((count, pairs))
    counts = np.full((count, pairs), float(setting.people))
    for ridge in sorted(RIDGES, reverse=True):
        fit = fit_heads(gram, ridge, start, counts)
        start, held_out = fit[0], left_out_scores(gram, ridge, fit, setting.per_prompt)
        loss = np.logaddexp(0, -held_out).mean(1)
        better = loss < best
        best, ridge_of = np.where(better, loss, best), np.where(better, ridge, ridge_of)
        scores[better], coefficients[better] = held_out[better], start[better]
    return hit(scores), true_accuracy(np.einsum("rp,rpd->rd", coefficients, chosen), draws.weights, setting), ridge_of


def true_accuracy(heads: Float64, weights: Float64, setting: Setting) -> Float64:
    """Of each head on new pairs: an integral over the true log-odds, since score and log-odds are jointly normal."""
    if not setting.signal:
        return np.full(len(heads), 0.5)
    variances = spectrum() ** 2
    norms = np.sqrt((heads**2 * variances).sum(1)) * setting.signal
    correlation = (heads * weights * variances).sum(1) / norms
    z = np.linspace(-6, 6, 601)
    scaled = correlation / np.sqrt(np.maximum(1 - correlation**2, 1e-12))
    first = 0.5 * (1 + np.vectorize(math.erf)(scaled[:, None] * z / math.sqrt(2)))
    p = _sigmoid(setting.signal * z)
    return np.average(p * first + (1 - p) * (1 - first), axis=1, weights=np.exp(-z * z / 2))


def predict_split(draws: Draws, setting: Setting) -> tuple[Float64, Float64]:
    """Hits of the last fifth of the prompts by heads fitted to the others with ridge 0.3, and the true accuracies of these."""
    pairs = draws.labels.shape[1]
    test = max(1, pairs // setting.per_prompt // 5) * setting.per_prompt
    chosen = draws.differences * draws.labels[..., None]
    train, held_out = chosen[:, :-test], chosen[:, -test:]
    counts = np.full(train.shape[:2], float(setting.people))
    coefficients = fit_heads(train @ train.transpose(0, 2, 1), 0.3, np.zeros(counts.shape), counts)[0]
    heads = np.einsum("rp,rpd->rd", coefficients, train)
    return hit(np.einsum("rpd,rd->rp", held_out, heads)), true_accuracy(heads, draws.weights, setting)


def bootstrap_interval(
    rng: np.random.Generator, gram: Float64, setting: Setting, ridge: float, samples: int = 100
) -> tuple[float, float]:
    """2.5 and 97.5 % quantile of the left-out accuracy of refits to prompts drawn with replacement; copies of a prompt are left
    out together."""
    pairs = len(gram)
    prompts = pairs // setting.per_prompt
    drawn = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=samples)
    counts: Float64 = np.repeat(drawn, setting.per_prompt, axis=1).astype(np.float64) * setting.people
    grams = np.broadcast_to(gram, (samples, pairs, pairs))
    fit = fit_heads(grams, ridge, np.zeros((samples, pairs)), counts)
    hits = hit(left_out_scores(grams, ridge, fit, setting.per_prompt))
    low, high = np.quantile((hits * counts).sum(1) / counts.sum(1), [0.025, 0.975])
    return float(low), float(high)


def doubled_interval(hits: list[tuple[int, float]]) -> tuple[float, float]:
    """The variance of the clustered interval times 2, whatever the accuracy, with Student's t for the number of prompts."""
    clusters = [[value for _, value in group] for _, group in itertools.groupby(hits, key=lambda pair: pair[0])]
    m, total, share = len(clusters), len(hits), sum(value for _, value in hits) / len(hits)
    variance = m / (m - 1) * sum((sum(one) - share * len(one)) ** 2 for one in clusters) / total**2
    bernoulli = share * (1 - share)
    trials = bernoulli / max(variance, bernoulli / total) if bernoulli else m
    z = student_t(m - 1)
    centre, scale = share + z * z / trials, 1 + 2 * z * z / trials
    half_width = z * math.sqrt(2 * bernoulli / trials + (z / trials) ** 2)
    return (centre - half_width) / scale, (centre + half_width) / scale


def reward_coverage(draws: int, bootstrap_draws: int) -> None:
    print(
        "| labels, pairs a prompt, people | signal | true accuracy | in use | clustered (before) | doubled | bootstrap ",
        end="",
    )
    print("| one split |\n|" + "---|" * 8)
    for setting in REWARD_SETTINGS:
        rng = np.random.default_rng(0)
        size = setting.per_prompt * setting.people
        methods = ("in use", "clustered", "doubled", "bootstrap", "split")
        intervals: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
        truths, split_truths = list[float](), list[float]()
        while len(truths) < draws:
            batch = draw(rng, setting, CHUNK[setting.labels])
            hits, accuracies, ridges = cross_validate(batch, setting)
            truths += accuracies.tolist()
            split_hits, split_accuracies = predict_split(batch, setting)
            split_truths += split_accuracies.tolist()
            for i, row in enumerate(hits):
                trials = [(j // size, value) for j, value in enumerate(np.repeat(row, setting.people).tolist())]
                intervals["in use"].append(cross_validated_interval(trials))
                intervals["clustered"].append(grouped_interval(trials))
                intervals["doubled"].append(doubled_interval(trials))
                if len(intervals["bootstrap"]) < bootstrap_draws * (
                    setting.labels < 200 and setting.signal in (0.0, 3.0)
                ):
                    chosen = batch.differences[i] * batch.labels[i][:, None]
                    intervals["bootstrap"].append(bootstrap_interval(rng, chosen @ chosen.T, setting, float(ridges[i])))
                split_trials = [
                    (j // size, value) for j, value in enumerate(np.repeat(split_hits[i], setting.people).tolist())
                ]
                intervals["split"].append(held_out_interval(split_trials, cross_validated=False))
        cells = [
            f"{setting.labels}, {setting.per_prompt}, {setting.people}" + " *" * (setting.correlation > 0.5),
            f"{setting.signal:g}",
            f"{np.mean(truths):.3f}",
        ]
        for name, rows in intervals.items():
            truth = np.mean(split_truths if name == "split" else truths)
            cells.append(f"{np.mean([low <= truth <= high for low, high in rows]):.1%}" if rows else "–")
        print("|", " | ".join(cells), "|", flush=True)


def _sigmoid(x: Float64) -> Float64:
    result: Float64 = 0.5 * (1 + np.tanh(0.5 * x))
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tournament", "reward"])
    parser.add_argument("--draws", type=int, default=2000, help="simulations of each setting")
    parser.add_argument(
        "--bootstrap-draws", type=int, default=200, help="simulations of the bootstrap, with 100 refits each"
    )
    arguments = parser.parse_args()
    if arguments.what == "tournament":
        tournament_coverage(arguments.draws)
    else:
        reward_coverage(arguments.draws, arguments.bootstrap_draws)
