"""Diagnoses of the training curves, with all rules and thresholds: whether what a curve does now is healthy.

    diagnose({"objective/kl": [(1, 0.0), (2, 0.4), …], …}) -> {"objective/kl": Diagnosis(Level.GOOD, "Mean KL 0.4: …"), …}

Pure functions of the curves; docs/METRICS.md describes the metrics. The thresholds fit the usual setting (scores in sd of the
base's samples, responses of tens of tokens); they indicate where to look and are not strict limits.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from rlhf_lab.common.algorithms import DEFAULT_ALGORITHM, spec_of
from rlhf_lab.common.text import plain_number
from rlhf_lab.config.kl_control import FIXED_BETA, KL_BUDGET_TOLERANCE, KLControlSpec
from rlhf_lab.ui.run_views.curve_trends import (
    MAIN_PART,
    TURN_NOISE_FACTOR,
    WINDOW,
    Curves,
    RewardPart,
    SettingChange,
    Trend,
    explains_fall,
    not_finite_since,
    reward_parts,
    trend,
)

SETTLING_STEPS = 30  # steps in which a changed setting may still move the score
PATIENCE_STEPS = 15  # steps after which a lack of progress is reported
SCORE_FLAT = 0.15  # sd: a smaller change of the score is called flat
SCORE_LEARNED = 0.3  # sd above the start: something was learned
SCORES_CLIPPED = 0.9  # share of the scores: little is left to gain
MANY_CLIPPED = 0.25  # share of the scores: said under the score
KL_NEAR, KL_HEALTHY, KL_HIGH = 4.0, 8.0, 14.0  # nats a response; the preset ends below the first
KL_BUDGET_FAR = 2.0  # times the budget: the policy is far beyond it
KL_NEGATIVE = -0.005  # nats a response; a value below it is visibly below 0
NEGATIVE_KL = " Points below 0 are noise of the estimate from few texts."
KL_SLOW, KL_FAST = 0.2, 2.0  # nats in a window
KL_UNMOVED, KL_UNMOVED_SHARE = 0.05, 0.2  # nats a response, share of a KL budget: below it the policy has hardly moved
CLIP_FEW, CLIP_HIGH, CLIP_ALERT = 0.01, 0.25, 0.4  # share of tokens
VALUE_GROWTH = 2.0  # times the previous loss
VALUE_STEADY = 0.1  # of the previous loss: a smaller change is called steady
MIN_EXPLAINED_VARIANCE = 0.05  # of the returns' variance: values that explain less do not help
ENTROPY_LOW, ENTROPY_COLLAPSE = 0.6, 0.35  # share of its first value
LENGTH_DRIFT, LENGTH_ALERT = 0.25, 0.5  # share of the first length
LENGTH_STEADY = 1.0  # tokens: a smaller change is called steady
LOSS_STEADY = 0.03  # of the previous loss of an offline method: a smaller change is called steady
ACCURACY_KNOWN = 0.95  # share of the pairs of a step: the labels are memorised
GOLD_FLAT = 0.1  # judge points
GOLD_FALL = 0.5  # judge points below its best
#: Replacements in the advice for runs in which there is no beta, or beta is not weighed against a score.
ADVICE_WITHOUT_BETA = (
    ("raise beta or lower lr", "lower lr"), ("raise beta or stop", "stop"), ("raise lr or lower beta", "raise lr"),
    ("raise lr, lower beta, or label", "raise lr, or label"), ("stop or raise beta", "stop"), ("raise beta", "stop earlier"),
)  # fmt: skip
#: Replacements for runs without a reward model.
TEXTS_WITHOUT_REWARD_MODEL = (
    ("the policy learns what the reward model likes", "the policy learns what is rewarded"),
    ("raise lr, lower beta, or label more pairs", "raise lr or lower beta"), ("raise lr, or label more pairs", "raise lr"),
    ("so far; label more pairs", "so far"),
)  # fmt: skip
HYPHEN_AS_MINUS = re.compile(r"(?<!\w)-(?=\d)")  # a hyphen before a number, shown as a minus sign


class Level(StrEnum):
    INFO = "info"
    GOOD = "good"
    WARN = "warn"
    ALERT = "alert"


class Diagnosis(NamedTuple):
    """message: the figures; in a warning or an alert a colon, the reason, and any advice follow."""

    level: Level
    message: str


class Finding(NamedTuple):
    """The result of a rule for one curve, before it is compared with the others.

    advises_smaller_steps: it advises to move the policy less (lower lr, raise beta, stop). message_without_advice: the message
    without its advice to move the policy more, which is used if another finding advises smaller steps; None if it has no such
    advice.
    """

    level: Level
    message: str
    advises_smaller_steps: bool = False
    message_without_advice: str | None = None

    def with_note(self, note: str) -> "Finding":
        without = None if self.message_without_advice is None else self.message_without_advice + note
        return self._replace(message=self.message + note, message_without_advice=without)


class CurveTrends(dict[str, Trend]):
    """The trend of every curve; `recent_changes`: the settings changed within the last SETTLING_STEPS.

    control: of the KL. adapted_settings: the settings that the run adapts to keep a KL budget. set_by_hand: the adapted settings
    that a person has set. reward_parts: the summands of the reward, in its own windows; empty if a curve is missing.
    has_negative_kl: the curve of the KL has points below 0.
    """

    recent_changes: Sequence[SettingChange] = ()
    control: KLControlSpec = FIXED_BETA
    adapted_settings: Collection[str] = ()
    set_by_hand: Collection[str] = ()
    reward_parts: Sequence[RewardPart] = ()
    has_negative_kl = False

    @property
    def kl_high(self) -> float:
        """The KL above which the policy is far from the base model."""
        return KL_HIGH if self.control.budget is None else KL_BUDGET_FAR * self.control.budget

    @property
    def budget_text(self) -> str:
        """The KL budget in words; a live run's depends on its labels."""
        allowed = " that the labels so far allow" if "live/kl_budget" in self else ""
        return f"the budget of {self.control.budget:g}{allowed}"

    def advice_for_smaller_steps(self, advice: str) -> str:
        """The advice, or a statement of what the KL budget does automatically."""
        actions = [
            text for name, text in (("lr", "lowers lr"), ("beta", "raises beta")) if name in self.adapted_settings
        ]
        return f"the KL budget {' and '.join(actions)} automatically" if actions else advice


def diagnose(
    curves: Curves, changes: Sequence[SettingChange] = (), control: KLControlSpec = FIXED_BETA,
    algorithm: str = DEFAULT_ALGORITHM, *, has_reward_model: bool = True, has_terms: bool = False,
    missing_eos_penalty: float = 0.0, set_by_hand: Collection[str] = (),
) -> dict[str, Diagnosis]:  # fmt: skip
    """A diagnosis for every metric that has a rule and a curve; an alert if the newest value is not finite.

    control: of the run's KL. has_reward_model: False if the score is a sum of reward terms only. has_terms: whether it is a sum
    of terms. missing_eos_penalty: the run's setting. set_by_hand: the adapted settings that a person has set.
    """
    trends = CurveTrends(
        {name: curve_trend for name, points in curves.items() if (curve_trend := trend(points)) is not None}
    )
    last_step = max((points[-1][0] for points in curves.values() if points), default=0)
    trends.control, trends.adapted_settings = control, set(control.settings_adapted_to_budget) - set(set_by_hand)
    trends.set_by_hand, trends.reward_parts = set_by_hand, reward_parts(curves, missing_eos_penalty)
    trends.has_negative_kl = any(value < KL_NEGATIVE for _, value in curves.get("objective/kl", ()))
    trends.recent_changes = [
        change
        for change in changes
        if last_step - change.step <= SETTLING_STEPS and explains_fall(change, curves.get("objective/scores", ()))
    ]
    findings: dict[str, Finding] = {}
    for name, rule in RULES.items():
        points = curves.get(name)
        if not points:
            continue
        first_lost_step = not_finite_since(points)
        if first_lost_step is not None:
            message = f"NaN since step {first_lost_step}: it cannot be computed; stop, lower lr, and start or resume."
            findings[name] = Finding(Level.ALERT, message, advises_smaller_steps=True)
        elif name in EARLY_TEXTS and trends[name].num_points < WINDOW:
            findings[name] = Finding(Level.INFO, f"{EARLY_TEXTS[name](trends[name].current)}: too early to say.")
        else:
            findings[name] = rule(trends[name], trends)
    has_unit = control.unit_responses > 0 or (has_reward_model and not has_terms)
    replacements = _replacements(algorithm, has_reward_model=has_reward_model, has_unit=has_unit)
    is_restrained = _is_restrained(findings.values(), trends)
    diagnoses: dict[str, Diagnosis] = {}
    for name, finding in findings.items():
        restrained_message = finding.message_without_advice if is_restrained else None
        message = finding.message if restrained_message is None else restrained_message
        for phrase, replacement in replacements:
            message = message.replace(phrase, replacement)
        diagnoses[name] = Diagnosis(finding.level, HYPHEN_AS_MINUS.sub("−", message))
    return diagnoses


def _replacements(algorithm: str, *, has_reward_model: bool, has_unit: bool) -> list[tuple[str, str]]:
    """Replacements in the messages of a run's diagnoses. An offline method is measured every few steps and, except for dpo, has
    no beta. A run with reward terms only has nothing to label; a sum of terms is in sd only if their unit was measured."""
    pairs: list[tuple[str, str]] = []
    if spec_of(algorithm).is_offline:
        pairs.append((f"in {WINDOW} steps", f"in {WINDOW} measurements"))
        pairs += () if spec_of(algorithm).has_beta else ADVICE_WITHOUT_BETA
    pairs += () if has_reward_model else TEXTS_WITHOUT_REWARD_MODEL
    return pairs if has_unit else [*pairs, (" sd", "")]


def _is_restrained(findings: Iterable[Finding], trends: CurveTrends) -> bool:
    """Whether advice to move the policy more is left out: if a finding advises to move it less, if the KL is high, or if a KL
    budget decides how much it moves and beta is not set by hand."""
    kl = trends.get("objective/kl")
    return (
        (bool(trends.adapted_settings) and "beta" not in trends.set_by_hand)
        or any(finding.advises_smaller_steps for finding in findings)
        or (kl is not None and kl.current > KL_HEALTHY)
    )


def _score(score: Trend, trends: CurveTrends) -> Finding:
    if _is_over_optimized(trends):
        return Finding(
            Level.ALERT,
            f"Mean score {score.current:z.2f} sd, its highest value, while gold has fallen: the policy exploits the "
            "reward model.",
        )
    clip_share = trends["objective/score_clipfrac"].current if "objective/score_clipfrac" in trends else 0.0
    text = f"Mean score {score.current:z.2f} sd, {score.compared(SCORE_FLAT, f'{score.gain:+z.2f}', '{:z.2f}'.format)}"
    if clip_share > SCORES_CLIPPED and score.current > 0:
        text += f"; score_clip clips {100 * clip_share:.0f} % of the scores, so higher scores bring no more reward"
        return Finding(
            Level.INFO,
            f"{text}: stop here, or start with a higher score_clip.",
            message_without_advice=f"{text}: stop here.",
        )
    finding = _unclipped_score(text, score, trends)
    if clip_share < MANY_CLIPPED:
        return finding
    return finding.with_note(
        f" score_clip clips {100 * clip_share:.0f} % of the scores: differences among these are not rewarded."
    )


def _unclipped_score(text: str, score: Trend, trends: CurveTrends) -> Finding:
    """The finding for a score of which something is left to gain. text: its value and comparison."""
    if score.is_rising(SCORE_FLAT):
        return Finding(Level.GOOD, f"{text}: the policy learns what the reward model likes.")
    if score.is_falling(SCORE_FLAT):
        return _falling_score(text, trends)
    if score.gain > SCORE_LEARNED:  # advice to learn more would contradict what one sees
        return Finding(Level.GOOD if score.gain > score.noise_margin else Level.INFO, f"{text}.")
    if score.gain < -score.effective_threshold(SCORE_FLAT):
        return Finding(Level.WARN, f"{text}: lower than at the start; read the samples.")
    if score.num_points >= PATIENCE_STEPS:
        return Finding(
            Level.WARN,
            f"{text}: no clear gain so far; raise lr, lower beta, or label more pairs.",
            message_without_advice=f"{text}: no clear gain so far; label more pairs.",
        )
    return Finding(Level.INFO, f"{text}: too early to say.")


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
            advice = trends.advice_for_smaller_steps("lower lr")
            return Finding(Level.WARN, f"{prefix}: the updates may be too large; {advice}.", advises_smaller_steps=True)
        level, reason = Level.WARN, "the score falls, though no other curve shows large updates; read the samples."
        if "live/head" in trends and trends["live/head"].change > 0:
            level, reason = (
                Level.INFO,
                "new labels have changed the reward model, so the score may fall for that reason.",
            )
        return Finding(level, f"{prefix}: {reason}")
    cause = max(causes, key=lambda change: (change.step, change.name == "beta"))
    if cause.old is None:
        text = f"{prefix} since {cause.name} was set to {plain_number(cause.new)} after step {cause.step}: wait a few steps."
        return Finding(Level.INFO, text)
    change_text = (
        f"{cause.name} went from {plain_number(cause.old)} to {plain_number(cause.new)} after step {cause.step}"
    )
    if cause.new < cause.old:
        return Finding(Level.INFO, f"{prefix} since {change_text}: wait a few steps.")
    if cause.name == "lr":
        return Finding(
            Level.WARN, f"{prefix}: probably because {change_text}; set it back.", advises_smaller_steps=True
        )
    return Finding(
        Level.INFO,
        f"{prefix}, probably because {change_text}: a higher beta keeps the policy closer to the base model.",
    )


def _reward(reward: Trend, trends: CurveTrends) -> Finding:
    """The parts of the reward explain why it is below the score, falls, or is below its start."""
    score, text = trends.get("objective/scores"), f"Mean reward {reward.current:z.2f}"
    if score is not None and score.current > 0 and reward.current < -SCORE_FLAT:
        text += f", though the score is {score.current:z.2f}"
        return _reward_finding(
            text, "far below the score", trends, lambda part: part.current, reward.current - score.current
        )
    if reward.num_points < WINDOW:
        return Finding(Level.INFO, f"{text}: too early to say.")
    text += f", {reward.compared(SCORE_FLAT, f'{reward.gain:+z.2f}', '{:z.2f}'.format)}"
    if reward.is_falling(SCORE_FLAT) and reward.num_points >= 2 * WINDOW:  # the text says that it falls now
        return _reward_finding(text, f"lower than {WINDOW} steps ago", trends, lambda part: part.change, reward.change)
    if reward.gain < -reward.effective_threshold(SCORE_FLAT):
        return _reward_finding(text, "lower than at the start", trends, lambda part: part.gain, reward.gain)
    return Finding(Level.GOOD, f"{text}.")


def _reward_finding(
    text: str, problem: str, trends: CurveTrends, amount: Callable[[Trend], float], total: float
) -> Finding:
    """The finding for a reward that is too low, with the part that explains at least half of it, if there is one.

    problem: what is wrong, for a reward that no part explains. amount: what a part contributes to `total`, which is
    negative.
    """
    parts = [part for part in trends.reward_parts if amount(part.trend) <= MAIN_PART * total]
    if not parts:
        return Finding(Level.WARN, f"{text}: {problem}.")
    part = min(parts, key=lambda part: amount(part.trend))
    text = f"{text}: mostly {part.name} ({amount(part.trend):+z.2f})"
    # The score's own caption warns, and a budget is kept by raising beta.
    is_usual = part.name == "the score" or (part.name == "the KL penalty" and "beta" in trends.adapted_settings)
    message = f"{text}; {part.advice}." if part.advice else f"{text}."
    message_without_advice = f"{text}." if part.name == "the KL penalty" else None
    return Finding(Level.INFO if is_usual else Level.WARN, message, message_without_advice=message_without_advice)


def _kl(kl: Trend, trends: CurveTrends) -> Finding:
    """Explains points below 0, where the curve has some."""
    finding = _kl_level(kl, trends)
    return finding.with_note(NEGATIVE_KL) if trends.has_negative_kl else finding


def _kl_level(kl: Trend, trends: CurveTrends) -> Finding:  # noqa: PLR0911  one return a rule
    gold, score = trends.get("objective/gold"), trends.get("objective/scores")
    control, budget = trends.control, trends.control.budget
    if budget is not None and control.is_at_budget(kl.current):
        return _kl_at_budget(kl, budget, trends)
    rising = kl.is_rising(KL_SLOW)
    text = f"Mean KL {kl.current:.1f} nats a response, {kl.compared(KL_SLOW, f'{kl.gain:+z.1f}', '{:z.1f}'.format)}"
    if kl.current > KL_HEALTHY and rising and gold is not None and gold.change <= GOLD_FLAT:
        return Finding(
            Level.ALERT,
            f"{text}, while gold does not rise: the policy probably exploits the reward "
            f"model; {control.less_kl_or_stop}.",
            advises_smaller_steps=True,
        )
    if kl.current > KL_HIGH:
        return Finding(
            Level.ALERT,
            f"{text}: far from the base model; {control.less_kl_now}.",
            advises_smaller_steps=True,
        )
    if rising and kl.change > KL_FAST:
        advice = trends.advice_for_smaller_steps("raise beta or lower lr")
        return Finding(
            Level.WARN,
            f"Mean KL {kl.current:.1f}, {kl.change:+z.1f} in {WINDOW} steps: fast; {advice}.",
            advises_smaller_steps=True,
        )
    if kl.current > KL_HEALTHY:
        return Finding(Level.WARN, f"{text}: above the usual {KL_HEALTHY:.0f}; read the samples.")
    if kl.current < -0.5:
        return Finding(
            Level.WARN,
            f"Mean KL {kl.current:.1f}: negative on average; use more rollouts per step for a better estimate.",
        )
    unmoved = max(KL_UNMOVED, KL_UNMOVED_SHARE * (budget or 0.0))
    if kl.num_points >= PATIENCE_STEPS and kl.current < unmoved and (score is None or score.gain < SCORE_LEARNED):
        text = f"Mean KL {kl.current:.2f}: the policy has hardly moved"
        return Finding(
            Level.WARN, f"{text}; {control.more_kl}.", message_without_advice=f"{text}." if budget is None else None
        )
    if budget is not None and kl.num_points >= WINDOW and kl.current >= 0:
        return Finding(Level.GOOD, f"{text}: below {trends.budget_text}.")
    if kl.current > KL_NEAR:
        return Finding(Level.INFO, f"{text}: no longer near the base; read the samples.")
    if kl.num_points < WINDOW:
        return Finding(Level.INFO, f"Mean KL {kl.current:.2f} nats a response: too early to say.")
    return Finding(Level.GOOD, f"{text}: near the base model.")


def _kl_at_budget(kl: Trend, budget: float, trends: CurveTrends) -> Finding:
    """The finding for a KL that has reached or exceeded the budget."""
    if kl.current > KL_BUDGET_FAR * budget:
        text = f"Mean KL {kl.current:.1f}: far beyond {trends.budget_text}. Look at the best checkpoint, or stop."
        return Finding(Level.ALERT, text, advises_smaller_steps=True)
    if kl.current > KL_BUDGET_TOLERANCE * budget:
        text = f"Mean KL {kl.current:.1f}: above {trends.budget_text}; {_budget_outlook(trends)}"
        return Finding(Level.WARN, text, advises_smaller_steps="beta" not in trends.adapted_settings)
    return Finding(Level.GOOD, f"Mean KL {kl.current:.1f} nats a response: at {trends.budget_text}.")


def _budget_outlook(trends: CurveTrends) -> str:
    """What happens to a KL above the budget."""
    if "beta" in trends.adapted_settings:
        return "beta rises until the KL is back at the budget."
    name, verb = ("beta", "rise: raise") if "beta" in trends.set_by_hand else ("lr", "fall: lower")
    if name in trends.set_by_hand:
        return f"{name} was set by hand and does not {verb} it, or make it automatic."
    return "the score cannot rise further there."


def _clip(clip: Trend, trends: CurveTrends) -> Finding:
    share = f"{100 * clip.current:.{0 if clip.current > 0.1 else 1}f} % of tokens clipped"
    if clip.current > CLIP_ALERT:
        return Finding(
            Level.ALERT,
            f"{share}: updates far too large; {trends.advice_for_smaller_steps('lower lr')}.",
            advises_smaller_steps=True,
        )
    if clip.current > CLIP_HIGH:
        return Finding(
            Level.WARN,
            f"{share}: updates are large; {trends.advice_for_smaller_steps('lower lr or epochs')}.",
            advises_smaller_steps=True,
        )
    if _has_large_updates(trends):
        return Finding(Level.INFO, f"{share}, but another curve shows updates that are too large.")
    if clip.current < CLIP_FEW:
        return Finding(Level.GOOD, f"{share}: clipping hardly changed the updates.")
    return Finding(
        Level.GOOD, f"{share}: these tokens reached the edge of the clip range, so the step moved them no further."
    )


def _value(value: Trend, trends: CurveTrends) -> Finding:
    explained_variance = trends.get("val/explained_variance")
    tail = "" if explained_variance is None else f" {_explained_text(explained_variance.current, trends)}"
    gain = f"{100 * value.gain / value.initial:+z.0f} %" if value.initial > 0 else f"{value.gain:+z.3g}"
    compared = value.compared(VALUE_STEADY * abs(value.previous), gain, lambda mean: plain_number(mean, 3))
    text = f"Mean value loss {plain_number(value.current, 3)}, {compared}"
    if value.num_points >= 2 * WINDOW and value.current > VALUE_GROWTH * max(value.previous, 1e-3):
        return Finding(Level.WARN, f"{text}: more than doubled in {WINDOW} steps.{tail}")
    explains_little = (
        explained_variance is not None
        and value.num_points >= PATIENCE_STEPS
        and explained_variance.current < MIN_EXPLAINED_VARIANCE
    )
    return Finding(Level.INFO if explains_little else Level.GOOD, f"{text}.{tail}")


def _explained_text(share: float, trends: CurveTrends) -> str:
    """What the explained variance says, as a sentence; below 0 with what is known about the reason."""
    if share > -0.005:
        return f"The value function explains {100 * max(share, 0.0):.0f} % of the variance of the returns."
    text = (
        f"Explained variance {share:z.2f}, worse than a constant: the errors of the value function vary "
        f"{-100 * share:.0f} % more than the returns"
    )
    clipped = trends.get("objective/score_clipfrac")
    if clipped is not None and clipped.current > MANY_CLIPPED:
        text += f"; score_clip clips {100 * clipped.current:.0f} % of the scores, which leaves less variance to explain"
    return f"{text}."


def _entropy(entropy: Trend, trends: CurveTrends) -> Finding:
    share = entropy.current / entropy.initial if entropy.initial > 0 else 1.0
    if share < ENTROPY_COLLAPSE:
        return Finding(
            Level.ALERT,
            f"Mean entropy {entropy.current:.2f} nats, {100 * share:.0f} % of its start: all texts are nearly the same; "
            f"{trends.control.less_kl}.",
            advises_smaller_steps=True,
        )
    if share < ENTROPY_LOW:
        return Finding(
            Level.WARN,
            f"Mean entropy {entropy.current:.2f} nats, {100 * share:.0f} % of its start: the texts become more alike; "
            "read the samples.",
        )
    return Finding(Level.GOOD, f"Mean entropy {entropy.current:.2f} nats per token: the texts are varied.")


def _length(length: Trend, trends: CurveTrends) -> Finding:
    drift = length.current / length.initial - 1 if length.initial > 0 else 0.0
    prefix = f"{length.current:.0f} tokens, {length.compared(LENGTH_STEADY, f'{100 * drift:+z.0f} %', '{:.0f}'.format)}"
    if abs(drift) > LENGTH_DRIFT:
        score = trends.get("objective/scores")
        has_risen = score is not None and score.gain > score.effective_threshold(SCORE_FLAT)
        reason = f"much {'longer' if drift > 0 else 'shorter'} than at the start"
        advice = "the score rose too, so check whether length itself is rewarded" if has_risen else "read the samples"
        return Finding(Level.ALERT if abs(drift) > LENGTH_ALERT else Level.WARN, f"{prefix}: {reason}; {advice}.")
    return Finding(Level.GOOD, f"{prefix}.")


def _gold(gold: Trend, trends: CurveTrends) -> Finding:
    text = f"Mean gold {gold.current:z.2f}, {gold.compared(GOLD_FLAT, f'{gold.gain:+z.2f}', '{:z.2f}'.format)}"
    if _is_over_optimized(trends):
        return Finding(
            Level.ALERT,
            f"Mean gold {gold.current:z.2f}, {gold.best:z.2f} at its highest, while the score rose: over-optimisation; "
            f"stop or {trends.control.less_kl}.",
            advises_smaller_steps=True,
        )
    if gold.best - gold.current > TURN_NOISE_FACTOR * gold.effective_threshold(GOLD_FALL / TURN_NOISE_FACTOR):
        best = "" if gold.turn(GOLD_FLAT) == gold.highest else f", {gold.best:z.2f}"  # else the text has it
        return Finding(Level.WARN, f"{text}: below its best{best}.")
    if gold.gain > gold.effective_threshold(GOLD_FLAT):
        if gold.best - gold.current > GOLD_FALL:
            return Finding(Level.INFO, f"{text}, but {gold.best:z.2f} at its highest: it may have started to fall.")
        return Finding(Level.GOOD, f"{text}: the judge agrees.")
    return Finding(Level.INFO, f"{text}: no clear gain yet.")


def _margin(margin: Trend, trends: CurveTrends) -> Finding:
    text = f"Mean margin {margin.current:z.2f}"
    if margin.current <= 0:
        text += ": the policy does not prefer the chosen texts; label more pairs"
        return Finding(Level.WARN, f"{text}, or raise lr.", message_without_advice=f"{text}.")
    comparison = margin.compared(LOSS_STEADY, f"{margin.gain:+z.2f}", "{:z.2f}".format)
    return Finding(Level.GOOD, f"{text}, {comparison}: chosen texts became more likely than rejected ones.")


def _accuracy(accuracy: Trend, trends: CurveTrends) -> Finding:
    text, epoch = f"{100 * accuracy.current:.0f} % of the pairs ranked as labelled", trends.get("epoch")
    if epoch is not None and epoch.latest <= 1:
        return Finding(Level.INFO, f"{text}, in the first pass: these pairs are new to it.")
    if accuracy.current >= ACCURACY_KNOWN:
        return Finding(
            Level.INFO,
            f"{text}: it has memorised these labels. More steps only move it further from the base. This says nothing "
            "about new pairs.",
        )
    return Finding(Level.GOOD, f"{text}, on pairs that it was trained on.")


def _offline_loss(loss: Trend, trends: CurveTrends) -> Finding:
    threshold = LOSS_STEADY * abs(loss.previous)
    text = f"Mean loss {loss.current:.3f}, {loss.compared(threshold, f'{loss.gain:+z.3f}', '{:.3f}'.format)}"
    if loss.is_rising(threshold):
        return Finding(
            Level.WARN,
            f"{text}: the loss rises; {trends.advice_for_smaller_steps('lower lr')}.",
            advises_smaller_steps=True,
        )
    return Finding(Level.GOOD, f"{text}.")


def _ratio(ratio: Trend, trends: CurveTrends) -> Finding:
    if _is_ratio_far(ratio):
        return Finding(
            Level.WARN,
            f"Mean ratio {ratio.current:.2f}: the policy changes much within a step; "
            f"{trends.advice_for_smaller_steps('lower lr or epochs')}.",
            advises_smaller_steps=True,
        )
    return Finding(Level.GOOD, f"Mean ratio {ratio.current:.3f}.")


def _stop_rate(stops: Trend, trends: CurveTrends) -> Finding:
    share = f"{100 * stops.current:.0f} % of responses end by themselves"
    if stops.current >= 0.9:
        return Finding(Level.GOOD, f"{share}.")
    level = Level.ALERT if stops.current < 0.7 else Level.WARN
    return Finding(level, f"{share}: the others are cut off at the maximum length.")


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
    gold_fell = gold.best - gold.current > TURN_NOISE_FACTOR * gold.effective_threshold(GOLD_FALL / TURN_NOISE_FACTOR)
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

#: The mean of a curve, which alone is said while it has fewer than WINDOW points. The other rules say something else then.
EARLY_TEXTS: dict[str, Callable[[float], str]] = {
    "objective/scores": "Mean score {:z.2f} sd".format, "objective/gold": "The judge gives {:z.2f}".format,
    "loss/dpo_avg": "Mean loss {:.3f}".format, "loss/sft_avg": "Mean loss {:.3f}".format,
    "rewards/margins": "Mean margin {:z.2f}".format, "tokens/response_len": "{:.0f} tokens".format,
    "loss/value_avg": lambda mean: f"Mean value loss {plain_number(mean, 3)}",
}  # fmt: skip
