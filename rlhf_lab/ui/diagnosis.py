"""What a curve is doing now and whether that is healthy: every rule and threshold in one place.

    diagnose({"objective/kl": [(1, 0.0), (2, 0.4), …], …}) -> {"objective/kl": Verdict(Level.GOOD, "KL 0.4: …"), …}

Pure functions of the curves; docs/METRICS.md says what the metrics are. The thresholds are for the usual setting (scores in
sd of the base's samples, responses of tens of tokens); they are where people start to look, not laws.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from rlhf_lab.ui.trends import WINDOW, Trend, trend

Curves = Mapping[str, Sequence[tuple[int, float]]]

MINUS = re.compile(r"(?<!\w)-(?=\d)")  # a hyphen before a number, which people read as a minus
SCORE_FLAT = 0.15  # sd: a smaller change of the score is called flat
SCORE_LEARNT = 0.3  # sd above the start: something was learnt
SETTLING = 30  # steps in which a turned knob may still move the score
PATIENCE = 15  # steps after which no learning at all is worth a word
SCORES_CLIPPED = 0.9  # share of the scores: nearly nothing is left to gain
KL_NEAR, KL_HEALTHY, KL_HIGH = 4.0, 8.0, 14.0  # nats a response; the preset ends below the first
KL_SLOW, KL_FAST = 0.2, 2.0  # nats in a window
CLIP_HIGH, CLIP_ALERT = 0.25, 0.4  # share of tokens
VALUE_GROWTH = 2.0  # times its earlier size
VALUE_STEADY = 0.1  # of its earlier size: a smaller change is none
EXPLAINED_LEAST = 0.05  # of the returns' variance: values that explain less help nobody
ENTROPY_LOW, ENTROPY_COLLAPSE = 0.6, 0.35  # share of its first value
LENGTH_DRIFT, LENGTH_ALERT = 0.25, 0.5  # share of the first length
GOLD_FLAT = 0.1  # judge points
GOLD_FALL = 0.5  # judge points below its best
GOLD_DOUBT = 2.0  # times the doubt: the best of many windows is partly luck


class Level(StrEnum):
    INFO = "info"
    GOOD = "good"
    WARN = "warn"
    ALERT = "alert"


class Verdict(NamedTuple):
    level: Level
    words: str


class Change(NamedTuple):
    """A knob (beta, lr) turned during a run, after `step` steps."""

    step: int
    name: str
    old: float
    new: float


class Trends(dict[str, Trend]):
    """The trend of every curve; `turned`: the knobs turned not long ago."""

    turned: Sequence[Change] = ()


def diagnose(curves: Curves, turned: Sequence[Change] = ()) -> dict[str, Verdict]:
    """A verdict for every metric that has a rule and a curve; an alert where its newest value is not a number."""
    found: dict[str, Verdict] = {}
    trends = Trends({name: seen for name, points in curves.items() if (seen := trend(points)) is not None})
    now = max((points[-1][0] for points in curves.values() if points), default=0)
    trends.turned = [change for change in turned if now - change.step <= SETTLING]
    for name, rule in RULES.items():
        points = curves.get(name)
        if not points:
            continue
        lost = _lost(points)
        if lost is not None:
            found[name] = Verdict(Level.ALERT, f"Not a number since step {lost}: stop, lower lr, and start or resume.")
        else:
            level, words = rule(trends[name], trends)
            found[name] = Verdict(level, MINUS.sub("−", words))
    return found


def _lost(points: Sequence[tuple[int, float]]) -> int | None:
    """The step since which there is no finite value, if the newest is not; one gap before is no matter."""
    since = None
    for step, value in reversed(points):
        if math.isfinite(value):
            break
        since = step
    return since


def _score(score: Trend, others: Trends) -> Verdict:  # noqa: PLR0911  one return a rule
    gained = score.now - score.first
    if score.points < WINDOW:
        return Verdict(Level.INFO, f"Score {score.now:z.2f} sd: too early to say.")
    if _over_optimised(others):
        return Verdict(
            Level.ALERT,
            f"Score {score.now:z.2f} sd at its best while gold has fallen: the policy exploits the reward model.",
        )
    clipped = others.get("objective/score_clipfrac")
    if clipped is not None and clipped.now > SCORES_CLIPPED:
        return Verdict(
            Level.INFO,
            f"Score {score.now:z.2f} sd, {100 * clipped.now:.0f} % beyond score_clip, where better earns no more: stop here, "
            "or start with a higher clip.",
        )
    if score.change > score.beyond(SCORE_FLAT):
        moves = "rising" if score.rises(SCORE_FLAT) else "higher than before"
        return Verdict(
            Level.GOOD, f"Score {score.now:z.2f} sd, {moves}: the policy learns what the reward model likes."
        )
    if score.falls(SCORE_FLAT):
        return _fall(f"Score {score.now:z.2f} sd, falling by {-score.change:.2f}", others.turned)
    if gained > SCORE_LEARNT:
        return Verdict(Level.GOOD, f"Score {score.now:z.2f} sd, {gained:+z.2f} since the start, now flat.")
    if score.points >= PATIENCE:
        return Verdict(
            Level.WARN, f"Score {score.now:z.2f} sd, flat since the start: raise lr, lower beta, or label more pairs."
        )
    return Verdict(Level.INFO, f"Score {score.now:z.2f} sd: no clear rise yet.")


def _fall(words: str, turned: Sequence[Change]) -> Verdict:
    """A falling score and its likely cause; a lowered beta is none."""
    causes = [change for change in turned if change.name == "lr" or change.new > change.old]
    if not causes:
        return Verdict(Level.WARN, f"{words}: the updates may be too large; lower lr.")
    cause = max(causes, key=lambda change: (change.step, change.name == "beta"))
    moved = f"{cause.name} went from {cause.old:g} to {cause.new:g} after step {cause.step}"
    if cause.new < cause.old:
        return Verdict(Level.INFO, f"{words} since {moved}: give it some steps.")
    if cause.name == "lr":
        return Verdict(Level.WARN, f"{words}, probably because {moved}: set it back.")
    return Verdict(
        Level.INFO, f"{words}, probably because {moved}: a higher beta holds the policy nearer to the base model."
    )


def _reward(reward: Trend, others: Trends) -> Verdict:
    score = others.get("objective/scores")
    if score is not None and score.now > 0 and reward.now < -SCORE_FLAT:
        return Verdict(
            Level.WARN,
            f"{reward.now:z.2f}: the KL costs more than the score brings; give it some steps, or lower beta.",
        )
    if reward.points < WINDOW:
        return Verdict(Level.INFO, f"Score minus KL penalty: {reward.now:z.2f}.")
    if reward.falls(SCORE_FLAT):
        return Verdict(Level.WARN, f"{reward.now:z.2f}, falling: the KL costs more than the score brings.")
    if reward.now < reward.first - reward.beyond(SCORE_FLAT):
        return Verdict(Level.WARN, f"{reward.now:z.2f}, below its start: beta is too high for this lr.")
    return Verdict(Level.GOOD, f"{reward.now:z.2f}, {reward.now - reward.first:+z.2f} since the start.")


def _kl(kl: Trend, others: Trends) -> Verdict:  # noqa: PLR0911  one return a rule
    gold, score = others.get("objective/gold"), others.get("objective/scores")
    rising = kl.rises(KL_SLOW)
    speed = "and rising" if rising else "and falling" if kl.falls(KL_SLOW) else "and steady"
    if kl.now > KL_HEALTHY and rising and gold is not None and gold.change <= GOLD_FLAT:
        moves = "falls" if gold.falls(GOLD_FLAT) else "is flat"
        return Verdict(
            Level.ALERT,
            f"KL {kl.now:.1f} {speed} while gold {moves}: the policy probably exploits the reward model; raise beta or stop.",
        )
    if kl.now > KL_HIGH:
        return Verdict(Level.ALERT, f"KL {kl.now:.1f} {speed}: far from the base model; raise beta or lower lr.")
    if rising and kl.change > KL_FAST:
        return Verdict(
            Level.WARN, f"KL {kl.now:.1f}, {kl.change:+z.1f} in {WINDOW} steps: fast; raise beta or lower lr."
        )
    if kl.now > KL_HEALTHY:
        return Verdict(Level.WARN, f"KL {kl.now:.1f} {speed}: above the usual {KL_HEALTHY:.0f}; read the samples.")
    if kl.now < -0.5:
        return Verdict(
            Level.WARN, f"KL {kl.now:.1f}: negative on average is noise at best; more rollouts a step would tell."
        )
    if kl.points >= PATIENCE and kl.now < 0.05 and (score is None or score.now - score.first < SCORE_LEARNT):
        return Verdict(Level.WARN, f"KL {kl.now:.2f}: the policy has hardly moved; raise lr or lower beta.")
    if kl.now > KL_NEAR:
        return Verdict(
            Level.INFO, f"KL {kl.now:.1f} nats a response {speed}: no longer near the base; read the samples."
        )
    if kl.points < WINDOW:
        return Verdict(Level.INFO, f"KL {kl.now:.2f} nats a response: too early to say.")
    if kl.now < 0:
        return Verdict(Level.GOOD, f"KL {kl.now:.2f}: an estimate, and so near 0 its noise reaches below.")
    return Verdict(Level.GOOD, f"KL {kl.now:.1f} nats a response {speed}: near the base model.")


def _clip(clip: Trend, others: Trends) -> Verdict:
    share = f"{100 * clip.now:.{0 if clip.now > 0.1 else 1}f} % of tokens clipped"
    if clip.now > CLIP_ALERT:
        return Verdict(Level.ALERT, f"{share}: updates far too large; lower lr.")
    if clip.now > CLIP_HIGH:
        return Verdict(Level.WARN, f"{share}: updates are large; lower lr or epochs.")
    return Verdict(Level.GOOD, f"{share}: no update was too large. The score says whether they are large enough.")


def _value(value: Trend, others: Trends) -> Verdict:
    explained = others.get("val/explained_variance")
    tail = f" The values explain {100 * max(explained.now, 0):.0f} % of the returns." if explained else ""
    if value.points >= 2 * WINDOW and value.now > VALUE_GROWTH * max(value.before, 1e-3):
        return Verdict(Level.WARN, f"Value loss {value.now:.3g}, doubled: the values cannot follow.{tail}")
    if value.points < WINDOW:
        return Verdict(Level.INFO, f"Value loss {value.now:.3g}: too early to say.")
    small = VALUE_STEADY * abs(value.before)
    moving = "falling" if value.falls(small) else "rising" if value.rises(small) else "steady"
    blind = explained is not None and value.points >= PATIENCE and explained.now < EXPLAINED_LEAST
    return Verdict(Level.INFO if blind else Level.GOOD, f"Value loss {value.now:.3g}, {moving}.{tail}")


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
    if length.points < WINDOW:
        return Verdict(Level.INFO, f"{length.now:.0f} tokens: too early to say.")
    words = f"{length.now:.0f} tokens, {100 * drift:+z.0f} % since the start"
    if abs(drift) > LENGTH_ALERT:
        return Verdict(Level.ALERT, f"{words}: length itself is probably being rewarded.")
    if abs(drift) > LENGTH_DRIFT:
        return Verdict(Level.WARN, f"{words}: is it the length that scores?")
    return Verdict(Level.GOOD, f"{words}.")


def _gold(gold: Trend, others: Trends) -> Verdict:
    gained = gold.now - gold.first
    if gold.points < WINDOW:
        return Verdict(Level.INFO, f"The judge gives {gold.now:z.2f}: too early to say.")
    if _over_optimised(others):
        return Verdict(
            Level.ALERT,
            f"Gold {gold.now:z.2f}, {gold.best:z.2f} at its best, while the score rose: over-optimisation; stop or raise beta.",
        )
    if gold.best - gold.now > GOLD_DOUBT * gold.beyond(GOLD_FALL / GOLD_DOUBT):
        return Verdict(Level.WARN, f"Gold {gold.now:z.2f}, below its best {gold.best:z.2f}.")
    if gained > gold.beyond(GOLD_FLAT):
        if gold.best - gold.now > GOLD_FALL:
            return Verdict(
                Level.INFO,
                f"Gold {gold.now:z.2f}, {gained:+z.2f} since the start, but {gold.best:z.2f} at its best: it may be turning.",
            )
        return Verdict(Level.GOOD, f"Gold {gold.now:z.2f}, {gained:+z.2f} since the start: the judge agrees.")
    return Verdict(Level.INFO, f"Gold {gold.now:z.2f}: no clear gain yet.")


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
    """Gold is clearly below its best while the score is at its own."""
    gold, score = others.get("objective/gold"), others.get("objective/scores")
    if gold is None or score is None or gold.points < 2 * WINDOW:
        return False
    fallen = gold.best - gold.now > GOLD_DOUBT * gold.beyond(GOLD_FALL / GOLD_DOUBT)
    return fallen and score.now >= score.best - score.beyond(SCORE_FLAT)


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
