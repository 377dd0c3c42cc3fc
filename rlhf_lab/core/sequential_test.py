"""Whether people still prefer a policy's texts: two sequential tests, a stopping rule that may be applied after every answer.
numpy.

A person sees, blind and on random sides, a text of the policy and one of an opponent: the base model or an earlier
checkpoint. For each opponent an e-process tests the null hypothesis that the policy wins every decided answer with a probability
of at least 1/2, given all earlier answers. An e-process is the capital of a gambler who bets on defeats at even odds. It starts
at 1, each answer multiplies what was bet by 1 + b or 1 - b, and under the null hypothesis its expected value never rises. So the
probability that it ever reaches 1 / alpha is at most alpha (Ville's inequality), however often one looks. Source: Waudby-Smith &
Ramdas 2024, "Estimating means of bounded random variables by betting", https://arxiv.org/abs/2010.09686, sections 2 to 4.

- A decline may begin late, when early wins have used up the stake of bets on defeats. So the capital is divided in advance: the
  part `start_weight(k)` waits for k answers and bets from then on. The parts add up to 1; their sum is an e-process, too.
- Each part is divided equally among BETS. Where the policy wins with probability p, a bet of 1 - 2p grows fastest: these are the
  bets for one win in three and one in five.
- The mean of the e-processes of both opponents is an e-process under both null hypotheses, and the run stops when it reaches
  1 / FALSE_STOP_PROBABILITY. It does so no later than if each test had half of the probability, and stopped at twice that value.
- Ties, "both bad" and skipped pairs carry no bet and change no capital, so the bound holds however many there are. The null
  hypothesis is about decided answers.
- The policy may change with every step, and earlier answers choose the checkpoint that it is compared with. The null hypothesis
  is about each answer given the past, not about two fixed models: at no time in the run did people prefer the texts of the
  opponent of that time to those of the policy of that time. Which texts are shown, and which opponent is next, may depend on
  earlier answers: for any choice, the next answer is at best an even bet, and the capital of the other test does not change.
- Without a difference between the models, an answer is an even bet only if its texts were not judged before: after one answer
  about a text, the next one about it is no longer even. So count one answer of each pair, and use each text in one pair.
- Whether an answer counts must not depend on who won, as it would if a person who has seen this could take it back. So an
  answer stays in both e-processes once it is given.

The same e-process with wins and defeats exchanged tests "people do not prefer the policy's texts to the base's". Everything is
computed from the answers alone. How the bets and the weights were chosen: docs/LEARNING.md, "The brake".
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.common.enums import BrakeState, Opponent
from rlhf_lab.core.preference_fit import Float64

FALSE_STOP_PROBABILITY = (
    0.05  # of a whole run in which people never prefer the other texts; the same for a false PREFERRED
)
THRESHOLD = 1 / FALSE_STOP_PROBABILITY
BETS = (1 / 3, 3 / 5)
FACTORS = np.array([[1 - bet for bet in BETS], [1 + bet for bet in BETS]])  # of the stakes: failure, success
START_SCALE = 50  # after so many answers half of the capital has begun to bet
MAX_STAKE = 1e12  # what is above is given away, so that nothing overflows; an e-process may lose at any time
#: A forecast is the median of simulated futures. They draw the win rate from its posterior given the last answers of an opponent.
RECENT_ANSWERS, FUTURES, MAX_FORECAST = 20, 200, 200

Bools = NDArray[np.bool_]


class Answer(NamedTuple):
    """An answer about a text of the policy and one of an opponent. won: whether the policy's text was preferred; None for a tie,
    "both bad" or a skipped pair."""

    opponent: Opponent
    won: bool | None


class EProcess(NamedTuple):
    """The capital after some answers of a gambler who bets on successes at even odds, of one or many runs (...).

    Its expected value never rises if each success has a probability of at most 1/2, given the past. stakes: (..., BETS), what is
    at stake in each bet, all parts that have begun to bet together.
    """

    answers: int = 0
    stakes: Float64 = np.zeros(len(BETS))

    @property
    def value(self) -> Float64:
        """(...) e-values: the stakes and what has not begun to bet."""
        total: Float64 = self.stakes.sum(-1) + waiting_weight(self.answers)
        return total

    def after(self, success: Bools | bool) -> "EProcess":
        """After one more answer. success: (...)."""
        stakes = (self.stakes + start_weight(self.answers) / len(BETS)) * FACTORS[np.asarray(success, np.intp)]
        return EProcess(self.answers + 1, np.minimum(stakes, MAX_STAKE))


class Evidence(NamedTuple):
    """What the decided answers about an opponent say, of one or many runs (...).

    preferred: e-process against "the policy wins with a probability of at most 1/2"; declined: against "of at least 1/2".
    """

    preferred: EProcess = EProcess()
    declined: EProcess = EProcess()

    def after(self, won: Bools | bool) -> "Evidence":
        """After one more answer. won: (...)."""
        return Evidence(self.preferred.after(won), self.declined.after(np.logical_not(won)))


class BrakeReport(NamedTuple):
    """What the answers of a run say.

    Attributes:
        state: DECLINED once the run should stop, whatever is answered later. Otherwise PREFERRED while `is_preferred`, else
            UNKNOWN.
        worse_than: if DECLINED, the opponent with the larger e-value.
        more_answers: if UNKNOWN, about how many further decided answers lead to another state if the last ones are typical; None
            without any, and if that takes more than MAX_FORECAST.
        answers_read: the answers that the report is about, ties included: all, or those until the run should stop.
        wins, evidence: of each opponent. The number of its decided answers is `evidence[opponent].declined.answers`.
    """

    state: BrakeState
    worse_than: Opponent | None
    more_answers: int | None
    answers_read: int
    wins: Mapping[Opponent, int]
    evidence: Mapping[Opponent, Evidence]


def start_weight(k: int) -> float:
    """The part of the capital that waits for k answers: c / ((k + c)(k + c + 1)) for c = START_SCALE; sums to 1 over k >= 0."""
    return START_SCALE / ((k + START_SCALE) * (k + START_SCALE + 1))


def waiting_weight(answers: int) -> float:
    """The parts that have not begun to bet after so many answers: the sum of `start_weight` over k >= answers."""
    return START_SCALE / (answers + START_SCALE)


def brake(answers: Iterable[Answer]) -> BrakeReport:
    """The state of a run from its answers, in the order in which they were given.

    After a person has let a stopped run continue, pass only the answers about texts of later steps: these are new tests, with a
    false-stop probability of their own.
    """
    evidence, decided, read = no_evidence(), list[Answer](), 0
    for answer in answers:
        read += 1
        if answer.won is not None:
            evidence[answer.opponent] = evidence[answer.opponent].after(answer.won)
            decided.append(answer)
            if should_stop(evidence):
                break
    state, worse_than, more_answers = BrakeState.UNKNOWN, None, None
    if should_stop(evidence):
        state = BrakeState.DECLINED
        worse_than = max(Opponent, key=lambda opponent: float(evidence[opponent].declined.value))
    elif is_preferred(evidence):
        state = BrakeState.PREFERRED
    else:
        more_answers = forecast(evidence, decided)
    wins = {opponent: decided.count(Answer(opponent, True)) for opponent in Opponent}
    return BrakeReport(state, worse_than, more_answers, read, wins, evidence)


def no_evidence() -> dict[Opponent, Evidence]:
    """That of a run without answers."""
    return {opponent: Evidence() for opponent in Opponent}


def should_stop(evidence: Mapping[Opponent, Evidence]) -> Bools:
    """(...) whether the mean e-value against "people do not prefer the other texts" has reached THRESHOLD."""
    base, best = (evidence[opponent].declined.value for opponent in Opponent)
    result: Bools = (base + best) / 2 >= THRESHOLD
    return result


def is_preferred(evidence: Mapping[Opponent, Evidence]) -> Bools:
    """(...) whether the e-value against "people do not prefer the policy's texts to the base's" is at least THRESHOLD."""
    result: Bools = evidence[Opponent.BASE].preferred.value >= THRESHOLD
    return result


def forecast(evidence: Mapping[Opponent, Evidence], decided: Sequence[Answer]) -> int | None:
    """About how many further decided answers lead to another state; see `BrakeReport.more_answers`.

    The median of FUTURES simulations, the same for equal answers. Opponents take turns in proportion to their shares of the last
    answers. The win rate of an opponent is drawn from Beta(1 + wins, 1 + defeats) of its last answers.
    """
    shares = Counter(answer.opponent for answer in decided[-RECENT_ANSWERS:])
    if not shares:
        return None
    random, future, turns = np.random.default_rng(0), dict(evidence), Counter[Opponent]()
    rates: dict[Opponent, Float64] = {}
    for opponent in shares:
        last = [answer.won for answer in decided if answer.opponent == opponent][-RECENT_ANSWERS:]
        rates[opponent] = random.beta(1 + last.count(True), 1 + last.count(False), size=FUTURES)
    is_decided = np.zeros(FUTURES, np.bool_)
    for count in range(1, MAX_FORECAST + 1):
        opponent = max(shares, key=lambda each: shares[each] * count / shares.total() - turns[each])
        turns[opponent] += 1
        future[opponent] = future[opponent].after(random.random(FUTURES) < rates[opponent])
        is_decided |= should_stop(future) | is_preferred(future)
        if 2 * is_decided.sum() >= FUTURES:
            return count
    return None
