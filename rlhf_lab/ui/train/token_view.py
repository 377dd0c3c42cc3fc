"""The token view: every number of PPO for each token of a stored response, and the equations between these numbers.

An equation is a template over the names of columns (a number for each token) and constants of the step, for example
"{kl} = {old_logprob} − {ref_logprob}". The page fills in the numbers of a token; a test fills in those of all tokens and
evaluates both sides.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.records import TokenRecord
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import metric_at, token_records_at
from rlhf_lab.store.runs import get_run

TokenColumns = dict[str, list[float]]
EPSILON = 1e-12  # offsets smaller than this have no colour
#: The loss of a token where it is not clipped, by `AlgorithmSpec.loss`: equation, symbols, description.
LOSSES = {
    "ratio": ("{loss} = −{advantage} · {ratio}", "−A · ratio", "After this step's updates."),
    "ratio_and_penalty": (
        "{loss} = −{advantage} · {ratio}", "−A · ratio", "After this step's updates, without the penalty.",
    ),
    "log_probability": ("", "−A · log π", "Its gradient makes the token likelier in proportion to A."),
}  # fmt: skip


class StepConstants(TypedDict):
    """The numbers of a step in equations. low, high: the ends of the clip range of the ratio."""

    beta: float
    gamma: float
    lam: float
    low: float
    high: float


@dataclass(frozen=True)
class TokenEquation:
    """A number of a token: its name, the equation over columns, the same in symbols, and what the number means.

    equation: "" if the number depends on more than this response.
    """

    name: str
    equation: str
    symbols: str
    about: str


class TokenScale(TypedDict):
    """A `ColorScale` for the page. legend: `legend_stops`."""

    column: str
    name: str
    neutral: float
    higher_is_better: bool
    legend: list[tuple[float, float]]


class TokenRow(TypedDict):
    """A response. columns: a number for each token, None for one that is not finite; colors: by the column of the scale."""

    turns: list[dict[str, str]]
    tokens: list[str]
    score: float | None
    shaped_score: float | None
    clipped: list[bool]
    columns: dict[str, list[float | None]]
    colors: dict[str, list[float]]


class TokenView(TypedDict):
    """The stored responses of a step. last_step: of the run; tokens_per_step: how many responses the run stores. notable: row and
    token of `notable_token`."""

    run: int
    step: int
    last_step: int
    tokens_per_step: int
    constants: StepConstants
    equations: list[TokenEquation]
    color_scales: list[TokenScale]
    notable: tuple[int, int]
    rows: list[TokenRow]


class ColorScale(NamedTuple):
    """A column by which tokens can be coloured. neutral: the value without colour."""

    column: str
    name: str
    neutral: float = 0.0
    higher_is_better: bool = False


def token_view(db: Database, run_id: int, step: int) -> TokenView:
    """The stored responses of one step for the page; no rows if none were stored. Raises StoreError if there is no such run."""
    run = get_run(db, run_id)
    config = PolicyConfig.from_dict(run.config)
    beta = metric_at(db, run_id, step, "objective/kl_coef")
    constants = step_constants(config, config.beta if beta is None else beta)
    records = token_records_at(db, run_id, step)
    all_columns = [token_columns(record, config, constants) for record in records]
    scales = color_scales(config)
    return {
        "run": run_id,
        "step": step,
        "last_step": run.step,
        "tokens_per_step": config.token_rows,
        "constants": constants,
        "equations": equations_for(config, all_columns),
        "color_scales": [
            {
                "column": scale.column,
                "name": scale.name,
                "neutral": scale.neutral,
                "higher_is_better": scale.higher_is_better,
                "legend": legend_stops(scale, all_columns),
            }
            for scale in scales
        ],
        "notable": notable_token(records),
        "rows": [
            _token_row(record, columns, token_colors(scales, columns, all_columns))
            for record, columns in zip(records, all_columns, strict=True)
        ],
    }


def notable_token(records: Sequence[TokenRecord]) -> tuple[int, int]:
    """Row and index of the token to show first: of the clipped tokens, or of all if none is clipped, that with the largest finite
    absolute advantage; (0, 0) without tokens."""
    places = [(row, index) for row, record in enumerate(records) for index in range(len(record.advantage))]

    def weight(place: tuple[int, int]) -> tuple[bool, float]:
        record, index = records[place[0]], place[1]
        size = abs(record.advantage[index])
        return record.clipped[index], size if math.isfinite(size) else 0.0

    return max(places, key=weight, default=(0, 0))


def step_constants(config: PolicyConfig, beta: float) -> StepConstants:
    """beta: the KL coefficient in force at that step."""
    clip = config.cliprange or 0.0
    return {"beta": beta, "gamma": config.gamma, "lam": config.lam, "low": 1 - clip, "high": 1 + clip}


def token_columns(record: TokenRecord, config: PolicyConfig, constants: StepConstants) -> TokenColumns:
    """The recorded numbers and those derived from them. Columns that an older record lacks are missing."""
    columns: TokenColumns = {
        "logprob": record.logprob, "old_logprob": record.old_logprob, "ref_logprob": record.ref_logprob, "kl": record.kl,
        "reward": record.reward, "advantage": record.advantage, "ratio": record.ratio,
    }  # fmt: skip
    count, gamma = len(record.token_ids), constants["gamma"]
    if record.shaped_score is not None:
        on_last = [0.0] * (count - 1) + [record.shaped_score]
        columns["shaped_score"] = on_last if config.score_placement == "last" else [record.shaped_score / count] * count
    if record.raw_advantage:
        columns["raw_advantage"] = record.raw_advantage
        columns["next_raw_advantage"] = [*record.raw_advantage[1:], 0.0]
    if record.advantage_sd is not None and record.advantage_mean is not None:
        columns |= {"advantage_mean": [record.advantage_mean] * count, "advantage_sd": [record.advantage_sd] * count}
    if config.uses_value_function:
        next_values = [*record.value[1:], record.bootstrap_value]
        columns |= {"value": record.value, "next_value": next_values}
        columns["delta"] = [
            reward + gamma * next_value - value
            for reward, next_value, value in zip(record.reward, next_values, record.value, strict=True)
        ]
    if record.target:
        columns["target"] = record.target
        columns["value_loss"] = [0.5 * (v - t) ** 2 for v, t in zip(record.value, record.target, strict=True)]
    columns["loss"] = [
        _loss(config, constants, advantage, ratio)
        for advantage, ratio in zip(record.advantage, record.ratio, strict=True)
    ]
    return columns


def _loss(config: PolicyConfig, constants: StepConstants, advantage: float, ratio: float) -> float:
    if not _uses_clipping(config):
        return -advantage * ratio
    return max(-advantage * ratio, -advantage * min(max(ratio, constants["low"]), constants["high"]))


def _uses_clipping(config: PolicyConfig) -> bool:
    return config.spec.clips and config.cliprange is not None


# ---- equations


def equations_for(config: PolicyConfig, all_columns: Sequence[TokenColumns]) -> list[TokenEquation]:
    """The equations of the algorithm with these settings for which there are columns, in the order of computation."""
    equations = [_kl_equation(config), _reward_equation(config), *_advantage_equations(config)]
    if config.whiten_advantages:
        equations.append(
            TokenEquation(
                "advantage", "{advantage} = ({raw_advantage} − {advantage_mean}) / {advantage_sd}", "(A − mean) / sd",
                "Whitened over the batch. A positive advantage makes the token likelier, a negative one less likely.",
            )
        )  # fmt: skip
    equations += [_ratio_equation(), *_loss_equations(config)]
    available = {*StepConstants.__annotations__}.union(*all_columns)
    return [item for item in equations if not all_columns or names_in_equation(item.equation) <= available]


def names_in_equation(equation: str) -> set[str]:
    """The columns and constants in an equation."""
    return {segment.split("}")[0] for segment in equation.split("{")[1:]}


def _ratio_equation() -> TokenEquation:
    return TokenEquation(
        "ratio", "{ratio} = exp({logprob} − {old_logprob})", "exp(log π − log π_old)",
        "Probability of the token after this step's updates, divided by its probability when it was sampled.",
    )  # fmt: skip


def _kl_equation(config: PolicyConfig) -> TokenEquation:
    equations = {
        "k1": ("{kl} = {old_logprob} − {ref_logprob}", "log π_old − log π_ref"),
        "k2": ("{kl} = ½ · ({old_logprob} − {ref_logprob})²", "½ (log π_old − log π_ref)²"),
        "k3": ("{kl} = exp({ref_logprob} − {old_logprob}) − 1 + {old_logprob} − {ref_logprob}", "exp(−d) − 1 + d"),
        "full": ("{kl}", "Σ π_old · (log π_old − log π_ref)"),
    }
    about = "How much likelier the policy made this token than the base model does, in nats; below 0: less likely."
    if config.kl_estimator != "k1":
        about = "Estimate of the KL to the base model from this token, in nats."
    if config.kl_estimator == "full":
        about = "KL to the base model at this token, over the whole vocabulary, in nats."
    return TokenEquation("KL", *equations[config.kl_estimator], about)


def _reward_equation(config: PolicyConfig) -> TokenEquation:
    if config.whiten_rewards:
        return TokenEquation(
            "reward", "{reward}", "−β · KL + score, scaled", "Scaled to standard deviation 1 over the batch."
        )
    placement = "on the last token" if config.score_placement == "last" else "in equal parts on all tokens"
    if config.kl_penalty == "loss":
        return TokenEquation(
            "reward", "{reward} = {shaped_score}", "score", f"The score, {placement}; the KL is a term of the loss."
        )
    return TokenEquation(
        "reward", "{reward} = −{beta} · {kl} + {shaped_score}", "−β · KL + score",
        f"The KL penalty, plus the score {placement}.",
    )  # fmt: skip


def _advantage_equations(config: PolicyConfig) -> list[TokenEquation]:
    name = "advantage before whitening" if config.whiten_advantages else "advantage"
    raw = "{raw_advantage}"
    match config.spec.advantage:
        case "rloo" | "grpo":
            about = f"One value per text: the sum of its rewards, compared with the {config.group_size} texts of its prompt."
            return [TokenEquation(name, raw, "sum of rewards, compared with the group", about)]
        case "returns":
            rewards = "The rewards from this token on" if config.credit == "to_go" else "All rewards of the text"
            baselines = {"none": "", "batch_mean": ", minus the mean of the batch", "value": ", minus the value"}
            return [TokenEquation(name, raw, "return − baseline", f"{rewards}{baselines[config.baseline]}.")]
        case "temporal_difference":
            return _estimated_advantage_equations(config, name, raw)
        case None:
            return []
        case kind:  # without an equation here
            return [TokenEquation(name, raw, kind.replace("_", " "), "Computed from the responses of the step.")]


def _estimated_advantage_equations(config: PolicyConfig, name: str, raw: str) -> list[TokenEquation]:
    surprise = TokenEquation(
        "surprise", "{delta} = {reward} + {gamma} · {next_value} − {value}", "δ = r + γ · V′ − V",
        "Reward of this token beyond what the value function expected.",
    )  # fmt: skip
    if config.advantage == "nstep":
        return [
            surprise,
            TokenEquation(name, raw, "Σ γᵏ · δ", f"The sum of the surprises of {config.nstep} tokens, starting here."),
        ]
    return [
        surprise,
        TokenEquation(name, raw + " = {delta} + {gamma} · {lam} · {next_raw_advantage}", "A = δ + γ · λ · A′",
             "The surprise plus γλ times the next token's advantage: generalised advantage estimation."),
    ]  # fmt: skip


def _loss_equations(config: PolicyConfig) -> list[TokenEquation]:
    if _uses_clipping(config):
        loss_equation = TokenEquation(
            "loss", "{loss} = max(−{advantage} · {ratio}, −{advantage} · clip({ratio}, {low}, {high}))",
            "max(−A · ratio, −A · clip(ratio, 1 − ε, 1 + ε))",
            "After this step's updates; ε is the setting cliprange. If the clipped term is larger, the token's gradient is zero.",
        )  # fmt: skip
    else:
        loss = config.spec.loss
        loss_equation = TokenEquation(
            "loss", *LOSSES.get(loss, ("", loss.replace("_", " "), "Of the step's last update."))
        )
    if not config.uses_value_function:
        return [loss_equation]
    target, symbols = "{target}", "return from this token on"
    if config.value_target == "gae" and config.spec.advantage == "temporal_difference" and config.advantage == "gae":
        target, symbols = "{target} = {raw_advantage} + {value}", "A + V"
    return [
        loss_equation,
        TokenEquation("value's target", target, symbols, "Regression target of the value."),
        TokenEquation(
            "value's loss", "{value_loss} = ½ · ({value} − {target})²", "½ (V − target)²", "Before this step's updates."
        ),
    ]


# ---- colours


def color_scales(config: PolicyConfig) -> list[ColorScale]:
    """The columns by which tokens can be coloured; the page starts with the first."""
    scales = [
        ColorScale("advantage", "advantage", higher_is_better=True), ColorScale("reward", "reward", higher_is_better=True),
        ColorScale("kl", "KL"), ColorScale("ratio", "ratio", 1.0), ColorScale("old_logprob", "log-probability"),
    ]  # fmt: skip
    if config.uses_value_function:
        scales.append(ColorScale("value", "value"))
    return scales


def token_colors(
    scales: Sequence[ColorScale], columns: TokenColumns, all_columns: Sequence[TokenColumns]
) -> dict[str, list[float]]:
    """The colours of one response's tokens by scale. all_columns: of all responses, which share the range of a scale."""
    colors = {}
    for scale in scales:
        largest = max_distance(scale, all_columns)
        colors[scale.column] = [color_intensity(value - scale.neutral, largest) for value in columns[scale.column]]
    return colors


def max_distance(scale: ColorScale, all_columns: Iterable[TokenColumns]) -> float:
    """The largest finite distance from the neutral value."""
    distances = (abs(value - scale.neutral) for columns in all_columns for value in columns[scale.column])
    return max((distance for distance in distances if math.isfinite(distance)), default=0.0)


def color_intensity(offset: float, largest: float) -> float:
    """The colour of a value `offset` away from neutral: positive for the colour of higher values, negative for the other.

    Its absolute value grows with the distance, up to 1 at `largest` and beyond (the strongest colour behind text: lab.css). 0 for
    NaN.
    """
    if math.isnan(offset) or abs(offset) < EPSILON:
        return 0.0
    return round(math.copysign(min(1.0, abs(offset) / max(largest, EPSILON)), offset), 2)


def legend_stops(scale: ColorScale, all_columns: Sequence[TokenColumns]) -> list[tuple[float, float]]:
    """(value, colour) of the lowest value, the neutral one and the highest; an end on the wrong side of neutral is left out."""
    values = [value for columns in all_columns for value in columns[scale.column] if math.isfinite(value)]
    low, high = min(values, default=scale.neutral), max(values, default=scale.neutral)
    largest = max_distance(scale, all_columns)
    stops = [*([low] if low < scale.neutral else []), scale.neutral, *([high] if high > scale.neutral else [])]
    return [(_round_significant(value), color_intensity(value - scale.neutral, largest)) for value in stops]


def _round_significant(value: float) -> float:
    return float(f"{value:.6g}")


def _token_row(record: TokenRecord, columns: TokenColumns, colors: dict[str, list[float]]) -> TokenRow:
    return {
        "turns": turns_of_prompt(record.prompt),
        "tokens": record.tokens,
        "score": record.score,
        "shaped_score": record.shaped_score,
        "clipped": record.clipped,
        "columns": {
            name: [_round_significant(value) if math.isfinite(value) else None for value in column]
            for name, column in columns.items()
        },
        "colors": colors,
    }
