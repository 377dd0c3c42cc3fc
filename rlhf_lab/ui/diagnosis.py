"""What a curve is doing now and whether that is healthy: every rule and threshold in one place.

    diagnose({"objective/kl": [(1, 0.0), (2, 0.4), …], …}) -> {"objective/kl": Verdict(Level.GOOD, "KL 0.4: …"), …}

Pure functions of the curves; docs/METRICS.md says what the metrics are. The thresholds are for the usual setting (scores in
sd of the base's samples, responses of tens of tokens); they are where people start to look, not laws.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

Curves = Mapping[str, Sequence[tuple[int, float]]]

WINDOW = 5  # steps that count as "now"; as many before them are "before"
SCORE_FLAT = 0.15  # sd: a smaller change of the score is called flat
SCORE_LEARNT = 0.3  # sd above the start: something was learnt
PATIENCE = 15  # steps after which no learning at all is worth a word
KL_HEALTHY, KL_HIGH = 8.0, 14.0  # nats a response
KL_FAST = 2.0  # nats in a window
CLIP_LOW, CLIP_HIGH, CLIP_ALERT = 0.02, 0.25, 0.4  # share of tokens
VALUE_GROWTH = 2.0  # times its earlier size
ENTROPY_LOW, ENTROPY_COLLAPSE = 0.6, 0.35  # share of its first value
LENGTH_DRIFT, LENGTH_ALERT = 0.25, 0.5  # share of the first length
GOLD_FLAT = 0.1  # of the first values' size, or in judge points
GOLD_FALL = 0.5  # judge points below its best


class Level(StrEnum):
    INFO = "info"
    GOOD = "good"
    WARN = "warn"
    ALERT = "alert"


class Verdict(NamedTuple):
    level: Level
    words: str


class Trend(NamedTuple):
    """first: mean of the first steps; before, now: mean of the last two windows; points: finite ones."""

    first: float
    before: float
    now: float
    best: float
    points: int

    @property
    def change(self) -> float:
        return self.now - self.before


def trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """None for a curve without a finite point. With few points the windows shrink."""
    values = [value for _, value in points if math.isfinite(value)]
    if not values:
        return None
    window = max(1, min(WINDOW, len(values) // 2))
    now = values[-window:]
    before = values[-2 * window : -window] or now
    windows = [_mean(values[i : i + window]) for i in range(len(values) - window + 1)]
    return Trend(_mean(values[:window]), _mean(before), _mean(now), max(windows), len(values))


def diagnose(curves: Curves) -> dict[str, Verdict]:
    """A verdict for every metric that has a rule and a curve (NaN everywhere is an alert)."""
    found: dict[str, Verdict] = {}
    trends = {name: seen for name, points in curves.items() if (seen := trend(points)) is not None}
    for name, rule in RULES.items():
        if name in trends:
            found[name] = rule(trends[name], trends)
        elif curves.get(name):
            found[name] = Verdict(Level.ALERT, "Only NaN: the run is broken. Lower the learning rate and resume.")
    return found


Trends = Mapping[str, Trend]


def _score(score: Trend, others: Trends) -> Verdict:  # noqa: PLR0911  one return a rule
    gained = score.now - score.first
    if score.points < WINDOW:
        return Verdict(Level.INFO, f"Score {score.now:+.2f} sd: too early to say.")
    if _over_optimised(others):
        return Verdict(
            Level.ALERT, f"Score {score.now:+.2f} and rising while gold falls: the policy exploits the reward model."
        )
    if score.change > SCORE_FLAT:
        return Verdict(Level.GOOD, f"Score {score.now:+.2f} sd, rising: the policy learns what the reward model likes.")
    if score.change < -SCORE_FLAT:
        return Verdict(
            Level.WARN,
            f"Score {score.now:+.2f} sd, falling by {-score.change:.2f}: the updates may be too large; lower lr.",
        )
    if gained > SCORE_LEARNT:
        return Verdict(Level.GOOD, f"Score {score.now:+.2f} sd, {gained:+.2f} since the start, now flat.")
    if score.points >= PATIENCE:
        return Verdict(
            Level.WARN, f"Score {score.now:+.2f} sd, flat since the start: raise lr, lower beta, or label more pairs."
        )
    return Verdict(Level.INFO, f"Score {score.now:+.2f} sd: not moving yet.")


def _reward(reward: Trend, others: Trends) -> Verdict:
    if reward.points < WINDOW:
        return Verdict(Level.INFO, f"Score minus KL penalty: {reward.now:+.2f}.")
    if reward.change < -SCORE_FLAT:
        return Verdict(Level.WARN, f"{reward.now:+.2f}, falling: the KL costs more than the score brings.")
    if reward.now < reward.first - SCORE_FLAT:
        return Verdict(Level.WARN, f"{reward.now:+.2f}, below its start: beta is too high for this lr.")
    return Verdict(Level.GOOD, f"{reward.now:+.2f}, {reward.now - reward.first:+.2f} since the start.")


def _kl(kl: Trend, others: Trends) -> Verdict:  # noqa: PLR0911  one return a rule
    gold, score = others.get("objective/gold"), others.get("objective/scores")
    speed = "and rising" if kl.change > KL_FAST / 4 else "and steady" if kl.change > -KL_FAST / 4 else "and falling"
    if kl.now > KL_HEALTHY and gold is not None and gold.change <= GOLD_FLAT and kl.change > KL_FAST / 4:
        return Verdict(
            Level.ALERT,
            f"KL {kl.now:.1f} {speed} while gold is flat: the policy probably exploits the reward model; raise beta or stop.",
        )
    if kl.now > KL_HIGH:
        return Verdict(Level.ALERT, f"KL {kl.now:.1f} {speed}: far from the base model; raise beta or lower lr.")
    if kl.change > KL_FAST:
        return Verdict(
            Level.WARN, f"KL {kl.now:.1f}, {kl.change:+.1f} in {WINDOW} steps: fast; raise beta or lower lr."
        )
    if kl.now > KL_HEALTHY:
        return Verdict(Level.WARN, f"KL {kl.now:.1f} {speed}: above the usual {KL_HEALTHY:.0f}; read the samples.")
    if kl.now < -0.5:
        return Verdict(
            Level.WARN, f"KL {kl.now:.1f}: negative on average is noise at best; more rollouts a step would tell."
        )
    if kl.points >= PATIENCE and kl.now < 0.05 and (score is None or score.now - score.first < SCORE_LEARNT):
        return Verdict(Level.WARN, f"KL {kl.now:.2f}: the policy has hardly moved; raise lr or lower beta.")
    return Verdict(Level.GOOD, f"KL {kl.now:.1f} nats a response {speed}: near the base model.")


def _clip(clip: Trend, others: Trends) -> Verdict:
    share = f"{100 * clip.now:.0f} % of tokens clipped"
    if clip.now > CLIP_ALERT:
        return Verdict(Level.ALERT, f"{share}: updates far too large; lower lr.")
    if clip.now > CLIP_HIGH:
        return Verdict(Level.WARN, f"{share}: updates are large; lower lr or epochs.")
    if clip.now < CLIP_LOW and clip.points >= WINDOW:
        return Verdict(
            Level.INFO, f"{100 * clip.now:.1f} % of tokens clipped: gentle updates; there is room for more lr."
        )
    return Verdict(Level.GOOD, f"{share}: updates of a healthy size.")


def _value(value: Trend, others: Trends) -> Verdict:
    explained = others.get("val/explained_variance")
    tail = f" The values explain {100 * max(explained.now, 0):.0f} % of the returns." if explained else ""
    if value.points >= 2 * WINDOW and value.now > VALUE_GROWTH * max(value.before, 1e-3):
        return Verdict(Level.WARN, f"Value loss {value.now:.3g}, doubled: the values cannot follow.{tail}")
    moving = "falling" if value.change < 0 else "steady"
    return Verdict(Level.GOOD, f"Value loss {value.now:.3g}, {moving}.{tail}")


def _entropy(entropy: Trend, others: Trends) -> Verdict:
    share = entropy.now / entropy.first if entropy.first > 0 else 1.0
    if share < ENTROPY_COLLAPSE:
        return Verdict(
            Level.ALERT,
            f"Entropy {entropy.now:.2f} nats, {100 * share:.0f} % of its start: the policy says one thing; raise beta.",
        )
    if share < ENTROPY_LOW:
        return Verdict(
            Level.WARN,
            f"Entropy {entropy.now:.2f} nats, {100 * share:.0f} % of its start: variety shrinks; read the samples.",
        )
    return Verdict(Level.GOOD, f"Entropy {entropy.now:.2f} nats a token: varied.")


def _length(length: Trend, others: Trends) -> Verdict:
    drift = length.now / length.first - 1 if length.first > 0 else 0.0
    words = f"{length.now:.0f} tokens, {100 * drift:+.0f} % since the start"
    if abs(drift) > LENGTH_ALERT:
        return Verdict(Level.ALERT, f"{words}: length itself is probably being rewarded.")
    if abs(drift) > LENGTH_DRIFT:
        return Verdict(Level.WARN, f"{words}: is it the length that scores?")
    return Verdict(Level.GOOD, f"{words}.")


def _gold(gold: Trend, others: Trends) -> Verdict:
    gained = gold.now - gold.first
    if gold.points < WINDOW:
        return Verdict(Level.INFO, f"The judge gives {gold.now:+.2f}: too early to say.")
    if _over_optimised(others):
        return Verdict(
            Level.ALERT,
            f"Gold {gold.now:+.2f}, down from {gold.best:+.2f} while the score rises: over-optimisation; stop or raise beta.",
        )
    if gold.best - gold.now > GOLD_FALL:
        return Verdict(Level.WARN, f"Gold {gold.now:+.2f}, below its best {gold.best:+.2f}.")
    if gained > GOLD_FLAT:
        return Verdict(Level.GOOD, f"Gold {gold.now:+.2f}, {gained:+.2f} since the start: the judge agrees.")
    return Verdict(Level.INFO, f"Gold {gold.now:+.2f}: the judge sees no gain yet.")


def _ratio(ratio: Trend, others: Trends) -> Verdict:
    if not 0.95 <= ratio.now <= 1.05:
        return Verdict(
            Level.WARN, f"Mean ratio {ratio.now:.2f}: the policy moves much within a step; lower lr or epochs."
        )
    return Verdict(Level.GOOD, f"Mean ratio {ratio.now:.3f}.")


def _stops(stops: Trend, others: Trends) -> Verdict:
    share = f"{100 * stops.now:.0f} % of responses end by themselves"
    if stops.now < 0.7:
        return Verdict(Level.ALERT, f"{share}: the policy rambles.")
    return Verdict(Level.WARN if stops.now < 0.9 else Level.GOOD, f"{share}.")


def _over_optimised(others: Trends) -> bool:
    gold, score = others.get("objective/gold"), others.get("objective/scores")
    if gold is None or score is None or gold.points < 2 * WINDOW:
        return False
    return gold.best - gold.now > GOLD_FALL and gold.change < 0 and score.change > 0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


RULES: dict[str, Callable[[Trend, Trends], Verdict]] = {
    "objective/scores": _score,
    "objective/rlhf_reward": _reward,
    "objective/kl": _kl,
    "policy/clipfrac_avg": _clip,
    "loss/value_avg": _value,
    "policy/entropy_avg": _entropy,
    "tokens/response_len": _length,
    "objective/gold": _gold,
    "val/ratio": _ratio,
    "val/stop_token_rate": _stops,
}
