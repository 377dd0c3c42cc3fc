"""Diagnoses of the training curves, with all rules and thresholds: what a curve does now, and whether that is healthy.

    diagnose({"objective/kl": [(1, 0.0), (2, 0.4), …], …}) -> {"objective/kl": Diagnosis(Level.GOOD, "KL 0.4: …"), …}

Pure functions of the curves; docs/METRICS.md describes the metrics. The thresholds fit the usual setting (scores in sd of the
base's samples, responses of tens of tokens); they indicate where to look and are not strict limits.
"""

import itertools
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from rlhf_lab.common.curves import Point
from rlhf_lab.common.enums import OFFLINE_ALGORITHMS
from rlhf_lab.config.policy import KL_BUDGET_TOLERANCE

WINDOW = 5  # steps that count as "now"; the same number before them is "before"
NOISE_STEPS = 50  # the last steps, from which the noise of a curve is estimated
MEDIAN_ABS_NORMAL_DIFFERENCE = 0.6745 * math.sqrt(2)  # of two draws from a normal distribution of sd 1
SETTLING_STEPS = 30  # steps in which a changed setting may still move the score
PATIENCE_STEPS = 15  # steps after which a lack of progress is reported
SCORE_FLAT = 0.15  # sd: a smaller change of the score is called flat
SCORE_LEARNT = 0.3  # sd above the start: something was learnt
SCORES_CLIPPED = 0.9  # share of the scores: little is left to gain
KL_NEAR, KL_HEALTHY, KL_HIGH = 4.0, 8.0, 14.0  # nats a response; the preset ends below the first
KL_BUDGET_FAR = 2.0  # times the budget: the policy is far beyond it
KL_FREE = 0.1  # nats a response: a smaller KL costs next to nothing
KL_SLOW, KL_FAST = 0.2, 2.0  # nats in a window
CLIP_HIGH, CLIP_ALERT = 0.25, 0.4  # share of tokens
VALUE_GROWTH = 2.0  # times the previous loss
VALUE_STEADY = 0.1  # of the previous loss: a smaller change is called steady
MIN_EXPLAINED_VARIANCE = 0.05  # of the returns' variance: values that explain less do not help
ENTROPY_LOW, ENTROPY_COLLAPSE = 0.6, 0.35  # share of its first value
LENGTH_DRIFT, LENGTH_ALERT = 0.25, 0.5  # share of the first length
LOSS_STEADY = 0.03  # of the previous loss of an offline method: a smaller change is called steady
ACCURACY_KNOWN = 0.95  # share of the pairs of a step: the labels are memorised
GOLD_FLAT = 0.1  # judge points
GOLD_FALL = 0.5  # judge points below its best
GOLD_NOISE_FACTOR = 2.0  # times the noise margin: the best of many windows is partly luck
#: Replacements in the advice for runs in which there is no beta, or beta is not weighed against a score.
ADVICE_WITHOUT_BETA = (
    ("raise beta or lower lr", "lower lr"), ("raise beta or stop", "stop"), ("raise lr or lower beta", "raise lr"),
    ("raise lr, lower beta, or label", "raise lr, or label"), ("stop or raise beta", "stop"), ("raise beta", "stop earlier"),
)  # fmt: skip
#: Replacements for offline methods, which keep the KL budget by the learning rate alone.
OFFLINE_BUDGET_WORDS = (
    ("beta rises until the KL is back at the budget", "the score cannot rise further there"),
    ("the KL budget lowers lr and raises beta automatically", "the KL budget lowers lr automatically"),
)
#: Replacements for runs without a reward model.
WORDS_WITHOUT_REWARD_MODEL = (
    ("the policy learns what the reward model likes", "the policy learns what is rewarded"),
    ("raise lr, lower beta, or label more pairs", "raise lr or lower beta"), ("raise lr, or label more pairs", "raise lr"),
    (": label more pairs", ""),
)  # fmt: skip
HYPHEN_AS_MINUS = re.compile(r"(?<!\w)-(?=\d)")  # a hyphen before a number, shown as a minus sign

Curves = Mapping[str, Sequence[Point]]


class Level(StrEnum):
    INFO = "info"
    GOOD = "good"
    WARN = "warn"
    ALERT = "alert"


class Diagnosis(NamedTuple):
    level: Level
    message: str


class Finding(NamedTuple):
    """The result of a rule for one curve, before it is compared with the others.

    restrains: it advises to move the policy less (lower lr, raise beta, stop). if_restrained: the message without its advice to
    move the policy more, which is used if another finding restrains; None if it has no such advice.
    """

    level: Level
    message: str
    restrains: bool = False
    if_restrained: str | None = None


class SettingChange(NamedTuple):
    """A live setting (beta, lr) changed during a run, after `step` steps. old: None where the run itself had adapted it."""

    step: int
    name: str
    old: float | None
    new: float


class Trend(NamedTuple):
    """initial: mean of the first window; previous, current: means of the last two windows; best: the highest window mean.

    num_points: the number of finite values. noise_margin: the change between two windows that noise alone may cause (2 standard
    errors). latest: the newest value. A curve does not count as rising if latest is below the mean of its window, nor as falling
    if latest is above it: it may be turning.
    """

    initial: float
    previous: float
    current: float
    best: float
    num_points: int
    noise_margin: float
    latest: float

    @property
    def change(self) -> float:
        return self.current - self.previous

    @property
    def gain(self) -> float:
        return self.current - self.initial

    def effective_threshold(self, threshold: float) -> float:
        """The threshold, or the noise margin if that is larger."""
        return max(threshold, self.noise_margin)

    def is_rising(self, threshold: float) -> bool:
        return self.change > self.effective_threshold(threshold) and self.latest >= self.current

    def is_falling(self, threshold: float) -> bool:
        return self.change < -self.effective_threshold(threshold) and self.latest <= self.current

    def direction(self, threshold: float) -> str:
        """The change as a word; a change that the newest step does not confirm is only "higher" or "lower than before"."""
        if abs(self.change) <= self.effective_threshold(threshold):
            return "steady"
        if self.change > 0:
            return "rising" if self.is_rising(threshold) else "higher than before"
        return "falling" if self.is_falling(threshold) else "lower than before"


class CurveTrends(dict[str, Trend]):
    """The trend of every curve; `recent_changes`: the settings changed within the last SETTLING_STEPS.

    kl_budget: nats per response, of a run that steers lr and beta by it.
    """

    recent_changes: Sequence[SettingChange] = ()
    kl_budget: float | None = None

    @property
    def kl_high(self) -> float:
        """The KL above which the policy is far from the base model."""
        return KL_HIGH if self.kl_budget is None else KL_BUDGET_FAR * self.kl_budget

    def to_move_less(self, advice: str) -> str:
        """The advice, or with a KL budget, which adapts lr and beta, a statement of what happens automatically."""
        return advice if self.kl_budget is None else "the KL budget lowers lr and raises beta automatically"


def trend(points: Sequence[Point]) -> Trend | None:
    """None for a curve without a finite point. With few points the windows shrink."""
    values = [value for _, value in points if math.isfinite(value)]
    if not values:
        return None
    window = max(1, min(WINDOW, len(values) // 2))
    current = values[-window:]
    previous = values[-2 * window : -window] or current
    cumulative_sums = [0.0, *itertools.accumulate(values)]
    best = max(cumulative_sums[i + window] - cumulative_sums[i] for i in range(len(values) - window + 1)) / window
    noise_margin = 2 * noise_sd(values[-NOISE_STEPS:]) * math.sqrt(2 / window)
    mean = statistics.fmean
    return Trend(mean(values[:window]), mean(previous), mean(current), best, len(values), noise_margin, values[-1])


def noise_sd(values: Sequence[float]) -> float:
    """The sd of the noise around a smooth curve, from the median difference of adjacent values; 0 for fewer than 3 values."""
    if len(values) < 3:
        return 0.0
    return statistics.median(abs(b - a) for a, b in itertools.pairwise(values)) / MEDIAN_ABS_NORMAL_DIFFERENCE


def diagnose(
    curves: Curves, changes: Sequence[SettingChange] = (), kl_budget: float | None = None, algorithm: str = "ppo",
    *, has_reward_model: bool = True,
) -> dict[str, Diagnosis]:  # fmt: skip
    """A diagnosis for every metric that has a rule and a curve; an alert if the newest value is not finite.

    has_reward_model: False if the score is a sum of reward terms only.
    """
    trends = CurveTrends(
        {name: curve_trend for name, points in curves.items() if (curve_trend := trend(points)) is not None}
    )
    last_step = max((points[-1][0] for points in curves.values() if points), default=0)
    trends.kl_budget = kl_budget
    trends.recent_changes = [change for change in changes if last_step - change.step <= SETTLING_STEPS]
    findings: dict[str, Finding] = {}
    for name, rule in RULES.items():
        points = curves.get(name)
        if not points:
            continue
        first_lost_step = _not_finite_since(points)
        if first_lost_step is None:
            findings[name] = rule(trends[name], trends)
        else:
            message = f"NaN since step {first_lost_step}: stop, lower lr, and start or resume."
            findings[name] = Finding(Level.ALERT, message, restrains=True)
    replacements = _replacements(algorithm, has_reward_model=has_reward_model, has_unit=kl_budget is not None)
    return {
        name: _reworded(diagnosis, replacements)
        for name, diagnosis in _without_contradictions(findings, trends).items()
    }


def _replacements(algorithm: str, *, has_reward_model: bool, has_unit: bool) -> list[tuple[str, str]]:
    """Replacements in the messages of a run's diagnoses. An offline method is measured every few steps and, except for dpo, has
    no beta. A run with reward terms only has nothing to label, and its score is in sd only if their unit was measured."""
    pairs: list[tuple[str, str]] = []
    if algorithm in OFFLINE_ALGORITHMS:
        pairs.append((f"in {WINDOW} steps", f"in {WINDOW} measurements"))
        pairs += OFFLINE_BUDGET_WORDS
        pairs += () if algorithm == "dpo" else ADVICE_WITHOUT_BETA
    if not has_reward_model:
        pairs += WORDS_WITHOUT_REWARD_MODEL if has_unit else (*WORDS_WITHOUT_REWARD_MODEL, (" sd", ""))
    return pairs


def _reworded(diagnosis: Diagnosis, replacements: Sequence[tuple[str, str]]) -> Diagnosis:
    message = diagnosis.message
    for words, replacement in replacements:
        message = message.replace(words, replacement)
    return Diagnosis(diagnosis.level, message)


def _without_contradictions(findings: Mapping[str, Finding], trends: CurveTrends) -> dict[str, Diagnosis]:
    """The findings as diagnoses. Advice to move the policy more is left out if a finding advises to move it less, if the KL is
    high, or if a KL budget decides how much it moves."""
    kl = trends.get("objective/kl")
    is_restrained = (
        trends.kl_budget is not None
        or any(finding.restrains for finding in findings.values())
        or (kl is not None and kl.current > KL_HEALTHY)
    )
    diagnoses: dict[str, Diagnosis] = {}
    for name, finding in findings.items():
        message = finding.message if finding.if_restrained is None or not is_restrained else finding.if_restrained
        diagnoses[name] = Diagnosis(finding.level, HYPHEN_AS_MINUS.sub("−", message))
    return diagnoses


def _not_finite_since(points: Sequence[Point]) -> int | None:
    """The first step of the non-finite values at the end of a curve; None if the newest value is finite."""
    first_step = None
    for step, value in reversed(points):
        if math.isfinite(value):
            break
        first_step = step
    return first_step


def _score(score: Trend, trends: CurveTrends) -> Finding:  # noqa: PLR0911  one return a rule
    if score.num_points < WINDOW:
        return Finding(Level.INFO, f"Score {score.current:z.2f} sd: too early to say.")
    if _is_over_optimized(trends):
        return Finding(
            Level.ALERT,
            f"Score {score.current:z.2f} sd, its highest value, while gold has fallen: the policy exploits the "
            "reward model.",
        )
    clipped = trends.get("objective/score_clipfrac")
    if clipped is not None and clipped.current > SCORES_CLIPPED:
        text = (
            f"Score {score.current:z.2f} sd, {100 * clipped.current:.0f} % above score_clip, where more earns nothing"
        )
        return Finding(
            Level.INFO,
            f"{text}: stop here, or start with a higher score_clip.",
            if_restrained=f"{text}: stop here.",
        )
    if score.change > score.effective_threshold(SCORE_FLAT):
        return Finding(
            Level.GOOD,
            f"Score {score.current:z.2f} sd, {score.direction(SCORE_FLAT)}: the policy learns what the reward model likes.",
        )
    if score.is_falling(SCORE_FLAT):
        return _falling_score(f"Score {score.current:z.2f} sd, falling by {-score.change:.2f}", trends)
    if score.gain > SCORE_LEARNT:
        return Finding(Level.GOOD, f"Score {score.current:z.2f} sd, {score.gain:+z.2f} since the start, now flat.")
    if score.num_points >= PATIENCE_STEPS:
        return Finding(
            Level.WARN,
            f"Score {score.current:z.2f} sd, flat since the start: raise lr, lower beta, or label more pairs.",
            if_restrained=f"Score {score.current:z.2f} sd, flat since the start: label more pairs.",
        )
    return Finding(Level.INFO, f"Score {score.current:z.2f} sd: no clear rise yet.")


def _falling_score(prefix: str, trends: CurveTrends) -> Finding:
    """The finding for a falling score, with its likely cause: a changed setting (but not a lowered beta), or updates that are too
    large according to another curve."""
    causes = [
        change
        for change in trends.recent_changes
        if change.name == "lr" or change.old is None or change.new > change.old
    ]
    if not causes:
        if _has_large_updates(trends):
            advice = trends.to_move_less("lower lr")
            return Finding(Level.WARN, f"{prefix}: the updates may be too large; {advice}.", restrains=True)
        return Finding(Level.WARN, f"{prefix}, and no other curve shows large updates. Read the samples.")
    cause = max(causes, key=lambda change: (change.step, change.name == "beta"))
    if cause.old is None:
        text = f"{prefix} since {cause.name} was set to {cause.new:g} after step {cause.step}: wait for some steps."
        return Finding(Level.INFO, text)
    change_text = f"{cause.name} went from {cause.old:g} to {cause.new:g} after step {cause.step}"
    if cause.new < cause.old:
        return Finding(Level.INFO, f"{prefix} since {change_text}: wait for some steps.")
    if cause.name == "lr":
        return Finding(Level.WARN, f"{prefix}, probably because {change_text}: set it back.", restrains=True)
    return Finding(
        Level.INFO,
        f"{prefix}, probably because {change_text}: a higher beta holds the policy nearer to the base model.",
    )


def _reward(reward: Trend, trends: CurveTrends) -> Finding:  # noqa: PLR0911  one return a rule
    score, kl = trends.get("objective/scores"), trends.get("objective/kl")
    if score is not None and score.current > 0 and reward.current < -SCORE_FLAT:
        if kl is not None and kl.current < KL_FREE:
            return Finding(
                Level.WARN,
                f"Reward {reward.current:z.2f}, though the KL is near 0: probably many responses do not end and lose "
                "missing_eos_penalty; a larger max_new_tokens lets them end.",
            )
        return Finding(
            Level.WARN,
            f"Reward {reward.current:z.2f}: the KL penalty is larger than the gain in score; wait for some steps, or "
            "lower beta.",
            if_restrained=f"Reward {reward.current:z.2f}: the KL penalty is larger than the gain in score.",
        )
    if reward.num_points < WINDOW:
        return Finding(Level.INFO, f"Score minus KL penalty: {reward.current:z.2f}.")
    if trends.kl_budget is not None and reward.change < 0:
        if score is not None and score.change < reward.change / 2:
            return Finding(Level.INFO, f"Reward {reward.current:z.2f}, lower than before because the score is.")
        return Finding(
            Level.INFO, f"Reward {reward.current:z.2f}: beta follows the KL budget, and this reward follows beta."
        )
    if reward.is_falling(SCORE_FLAT):
        return Finding(
            Level.WARN, f"Reward {reward.current:z.2f}, falling: the KL penalty is larger than the gain in score."
        )
    if reward.current < reward.initial - reward.effective_threshold(SCORE_FLAT):
        return Finding(
            Level.WARN,
            f"Reward {reward.current:z.2f}, below its start: beta is too high for this lr.",
            if_restrained=f"Reward {reward.current:z.2f}, below its start.",
        )
    return Finding(Level.GOOD, f"Reward {reward.current:z.2f}, {reward.gain:+z.2f} since the start.")


def _kl(kl: Trend, trends: CurveTrends) -> Finding:  # noqa: PLR0911  one return a rule
    gold, score = trends.get("objective/gold"), trends.get("objective/scores")
    if trends.kl_budget is not None and kl.current > trends.kl_budget / KL_BUDGET_TOLERANCE:
        return _kl_at_budget(kl, trends.kl_budget)
    rising = kl.is_rising(KL_SLOW)
    direction = f"and {kl.direction(KL_SLOW)}"
    if kl.current > KL_HEALTHY and rising and gold is not None and gold.change <= GOLD_FLAT:
        gold_direction = "falls" if gold.is_falling(GOLD_FLAT) else "is flat"
        return Finding(
            Level.ALERT,
            f"KL {kl.current:.1f} {direction} while gold {gold_direction}: the policy probably exploits the reward "
            f"model; {'raise beta or stop' if trends.kl_budget is None else 'stop, or start with a lower kl_budget'}.",
            restrains=True,
        )
    if kl.current > KL_HIGH:
        return Finding(
            Level.ALERT,
            f"KL {kl.current:.1f} {direction}: far from the base model; "
            f"{'raise beta or lower lr' if trends.kl_budget is None else 'stop, or start with a lower kl_budget'}.",
            restrains=True,
        )
    if rising and kl.change > KL_FAST:
        advice = trends.to_move_less("raise beta or lower lr")
        return Finding(
            Level.WARN,
            f"KL {kl.current:.1f}, {kl.change:+z.1f} in {WINDOW} steps: fast; {advice}.",
            restrains=True,
        )
    if kl.current > KL_HEALTHY:
        return Finding(
            Level.WARN, f"KL {kl.current:.1f} {direction}: above the usual {KL_HEALTHY:.0f}; read the samples."
        )
    if kl.current < -0.5:
        return Finding(
            Level.WARN,
            f"KL {kl.current:.1f}: negative on average, which is noise; use more rollouts per step for a better "
            "estimate.",
        )
    if kl.num_points >= PATIENCE_STEPS and kl.current < 0.05 and (score is None or score.gain < SCORE_LEARNT):
        text = f"KL {kl.current:.2f}: the policy has hardly moved"
        return Finding(Level.WARN, f"{text}; raise lr or lower beta.", if_restrained=f"{text}.")
    if trends.kl_budget is not None and kl.num_points >= WINDOW and kl.current >= 0:
        budget_text = f"below the budget of {trends.kl_budget:g}"
        return Finding(Level.GOOD, f"KL {kl.current:.1f} nats a response {direction}: {budget_text}.")
    if kl.current > KL_NEAR:
        return Finding(
            Level.INFO, f"KL {kl.current:.1f} nats a response {direction}: no longer near the base; read the samples."
        )
    if kl.num_points < WINDOW:
        return Finding(Level.INFO, f"KL {kl.current:.2f} nats a response: too early to say.")
    if kl.current < 0:
        return Finding(Level.GOOD, f"KL {kl.current:.2f}: an estimate, which can be negative when the KL is near 0.")
    return Finding(Level.GOOD, f"KL {kl.current:.1f} nats a response {direction}: near the base model.")


def _kl_at_budget(kl: Trend, budget: float) -> Finding:
    """The finding for a KL that has reached or exceeded the budget."""
    if kl.current > KL_BUDGET_FAR * budget:
        text = f"KL {kl.current:.1f}: far beyond the budget of {budget:g}. Look at the best checkpoint, or stop."
        return Finding(Level.ALERT, text, restrains=True)
    if kl.current > KL_BUDGET_TOLERANCE * budget:
        return Finding(
            Level.WARN,
            f"KL {kl.current:.1f}: above the budget of {budget:g}; beta rises until the KL is back at the budget.",
        )
    return Finding(Level.GOOD, f"KL {kl.current:.1f} nats a response: at the budget of {budget:g}.")


def _clip(clip: Trend, trends: CurveTrends) -> Finding:
    share = f"{100 * clip.current:.{0 if clip.current > 0.1 else 1}f} % of tokens clipped"
    if clip.current > CLIP_ALERT:
        return Finding(
            Level.ALERT, f"{share}: updates far too large; {trends.to_move_less('lower lr')}.", restrains=True
        )
    if clip.current > CLIP_HIGH:
        return Finding(
            Level.WARN, f"{share}: updates are large; {trends.to_move_less('lower lr or epochs')}.", restrains=True
        )
    if _has_large_updates(trends):
        return Finding(Level.INFO, f"{share}, but another curve shows updates that are too large.")
    return Finding(
        Level.GOOD, f"{share}: no update was too large. Check the score to see whether updates are large enough."
    )


def _value(value: Trend, trends: CurveTrends) -> Finding:
    explained_variance = trends.get("val/explained_variance")
    tail = (
        f" The values explain {100 * max(explained_variance.current, 0):.0f} % of the returns."
        if explained_variance
        else ""
    )
    if value.num_points >= 2 * WINDOW and value.current > VALUE_GROWTH * max(value.previous, 1e-3):
        return Finding(Level.WARN, f"Value loss {value.current:.3g}, doubled: the values cannot follow.{tail}")
    if value.num_points < WINDOW:
        return Finding(Level.INFO, f"Value loss {value.current:.3g}: too early to say.")
    direction = value.direction(VALUE_STEADY * abs(value.previous))
    explains_little = (
        explained_variance is not None
        and value.num_points >= PATIENCE_STEPS
        and explained_variance.current < MIN_EXPLAINED_VARIANCE
    )
    return Finding(Level.INFO if explains_little else Level.GOOD, f"Value loss {value.current:.3g}, {direction}.{tail}")


def _entropy(entropy: Trend, trends: CurveTrends) -> Finding:
    share = entropy.current / entropy.initial if entropy.initial > 0 else 1.0
    if share < ENTROPY_COLLAPSE:
        return Finding(
            Level.ALERT,
            f"Entropy {entropy.current:.2f} nats, {100 * share:.0f} % of its start: all texts are nearly the same; "
            f"{'raise beta' if trends.kl_budget is None else 'start with a lower kl_budget'}.",
            restrains=True,
        )
    if share < ENTROPY_LOW:
        return Finding(
            Level.WARN,
            f"Entropy {entropy.current:.2f} nats, {100 * share:.0f} % of its start: variety shrinks; read the samples.",
        )
    return Finding(Level.GOOD, f"Entropy {entropy.current:.2f} nats a token: varied.")


def _length(length: Trend, trends: CurveTrends) -> Finding:
    drift = length.current / length.initial - 1 if length.initial > 0 else 0.0
    if length.num_points < WINDOW:
        return Finding(Level.INFO, f"{length.current:.0f} tokens: too early to say.")
    prefix = f"{length.current:.0f} tokens, {100 * drift:+z.0f} % since the start"
    if abs(drift) > LENGTH_ALERT:
        return Finding(Level.ALERT, f"{prefix}: length itself is probably rewarded.")
    if abs(drift) > LENGTH_DRIFT:
        return Finding(Level.WARN, f"{prefix}: check whether length itself raises the score.")
    return Finding(Level.GOOD, f"{prefix}.")


def _gold(gold: Trend, trends: CurveTrends) -> Finding:
    if gold.num_points < WINDOW:
        return Finding(Level.INFO, f"The judge gives {gold.current:z.2f}: too early to say.")
    if _is_over_optimized(trends):
        return Finding(
            Level.ALERT,
            f"Gold {gold.current:z.2f}, {gold.best:z.2f} at its highest, while the score rose: over-optimisation; "
            f"stop or {'raise beta' if trends.kl_budget is None else 'start with a lower kl_budget'}.",
            restrains=True,
        )
    if gold.best - gold.current > GOLD_NOISE_FACTOR * gold.effective_threshold(GOLD_FALL / GOLD_NOISE_FACTOR):
        return Finding(Level.WARN, f"Gold {gold.current:z.2f}, below its best {gold.best:z.2f}.")
    if gold.gain > gold.effective_threshold(GOLD_FLAT):
        if gold.best - gold.current > GOLD_FALL:
            return Finding(
                Level.INFO,
                f"Gold {gold.current:z.2f}, {gold.gain:+z.2f} since the start, but {gold.best:z.2f} at its highest: "
                "it may have started to fall.",
            )
        return Finding(Level.GOOD, f"Gold {gold.current:z.2f}, {gold.gain:+z.2f} since the start: the judge agrees.")
    return Finding(Level.INFO, f"Gold {gold.current:z.2f}: no clear gain yet.")


def _margin(margin: Trend, trends: CurveTrends) -> Finding:
    text = f"Margin {margin.current:z.2f}"
    if margin.num_points < WINDOW:
        return Finding(Level.INFO, f"{text}: too early to say.")
    if margin.current <= 0:
        text += ": the policy does not prefer the chosen texts; label more pairs"
        return Finding(Level.WARN, f"{text}, or raise lr.", if_restrained=f"{text}.")
    return Finding(
        Level.GOOD, f"{text} and {margin.direction(LOSS_STEADY)}: chosen texts became more likely than rejected ones."
    )


def _accuracy(accuracy: Trend, trends: CurveTrends) -> Finding:
    text, epoch = f"{100 * accuracy.current:.0f} % of the pairs ranked as labelled", trends.get("epoch")
    if epoch is not None and epoch.latest <= 1:
        return Finding(Level.INFO, f"{text}, in the first pass: these pairs are new to it.")
    if accuracy.current >= ACCURACY_KNOWN:
        return Finding(
            Level.INFO,
            f"{text}: it has learnt these labels. More steps move it further from the base; new pairs are not "
            "measured.",
        )
    return Finding(Level.GOOD, f"{text}, on pairs that it was trained on.")


def _offline_loss(loss: Trend, trends: CurveTrends) -> Finding:
    threshold = LOSS_STEADY * abs(loss.previous)
    if loss.num_points < WINDOW:
        return Finding(Level.INFO, f"Loss {loss.current:.3f}: too early to say.")
    if loss.is_rising(threshold):
        return Finding(
            Level.WARN, f"Loss {loss.current:.3f}, rising: {trends.to_move_less('lower lr')}.", restrains=True
        )
    return Finding(Level.GOOD, f"Loss {loss.current:.3f}, {loss.direction(threshold)}.")


def _ratio(ratio: Trend, trends: CurveTrends) -> Finding:
    if _is_ratio_far(ratio):
        return Finding(
            Level.WARN,
            f"Mean ratio {ratio.current:.2f}: the policy changes much within a step; "
            f"{trends.to_move_less('lower lr or epochs')}.",
            restrains=True,
        )
    return Finding(Level.GOOD, f"Mean ratio {ratio.current:.3f}.")


def _stop_rate(stops: Trend, trends: CurveTrends) -> Finding:
    share = f"{100 * stops.current:.0f} % of responses end by themselves"
    if stops.current < 0.7:
        return Finding(Level.ALERT, f"{share}: most responses are cut off at the maximum length.")
    return Finding(Level.WARN if stops.current < 0.9 else Level.GOOD, f"{share}.")


def _has_large_updates(trends: CurveTrends) -> bool:
    """Whether clip fraction, KL or ratio show that the policy moves too much; their rules then advise a lower lr."""
    clip, kl, ratio = trends.get("policy/clipfrac_avg"), trends.get("objective/kl"), trends.get("val/ratio")
    return (
        (clip is not None and clip.current > CLIP_HIGH)
        or (kl is not None and (kl.current > trends.kl_high or (kl.is_rising(KL_SLOW) and kl.change > KL_FAST)))
        or (ratio is not None and _is_ratio_far(ratio))
    )


def _is_ratio_far(ratio: Trend) -> bool:
    return not 0.95 <= ratio.current <= 1.05


def _is_over_optimized(trends: CurveTrends) -> bool:
    """Gold is clearly below its best while the score is at its own."""
    gold, score = trends.get("objective/gold"), trends.get("objective/scores")
    if gold is None or score is None or gold.num_points < 2 * WINDOW:
        return False
    gold_fell = gold.best - gold.current > GOLD_NOISE_FACTOR * gold.effective_threshold(GOLD_FALL / GOLD_NOISE_FACTOR)
    return gold_fell and score.current >= score.best - score.effective_threshold(SCORE_FLAT)


RULES: dict[str, Callable[[Trend, CurveTrends], Finding]] = {
    "objective/scores": _score,
    "objective/rlhf_reward": _reward,
    "objective/kl": _kl,
    "policy/clipfrac_avg": _clip,
    "loss/value_avg": _value,
    "policy/entropy_avg": _entropy,
    "rewards/margins": _margin,
    "rewards/accuracies": _accuracy,
    "loss/dpo_avg": _offline_loss,
    "loss/sft_avg": _offline_loss,
    "tokens/response_len": _length,
    "objective/gold": _gold,
    "val/ratio": _ratio,
    "val/stop_token_rate": _stop_rate,
}
