"""How often 95 % intervals contain the true value, by simulations in which it is known.

    python benchmarks/interval_coverage.py tournament

tournament: two models, m prompts and k people, each of whom judges every pair. The log-odds of one text against another are the
difference of the models plus a normal quality of either text with standard deviation tau, the same for all people. The true score
is that of the population of prompts, the log-odds of the mean win rate over prompts.
"""

import argparse
import math
from functools import cache

import numpy as np

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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tournament"])
    parser.add_argument("--draws", type=int, default=2000, help="simulations of each setting")
    arguments = parser.parse_args()
    tournament_coverage(arguments.draws)
