"""The token microscope: every number that PPO knew of a text's tokens, and the equation that ties it to the others.

An equation is a template over the names of columns (a number a token) and constants of the step, such as
"{kl} = {old_logprob} − {ref_logprob}": the page puts a token's numbers in, and a test puts in all of them and does the sum.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rlhf_lab.common.enums import CLIPPED_ALGORITHMS, SINGLE_PASS_ALGORITHMS
from rlhf_lab.common.records import TokenRecord
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import metric_at, token_records_at
from rlhf_lab.store.runs import get_run

TokenColumns = dict[str, list[float]]
EPSILON = 1e-12  # what is nearer to the middle has no colour


class Equation(NamedTuple):
    """A number of a token: its name, the equation with and without numbers, and what it tells. equation: "" where the number
    comes from more than this text."""

    name: str
    equation: str
    symbols: str
    about: str


class ColorScale(NamedTuple):
    """A column the tokens can be coloured by, and the number that is left white. valued: above it is good, below bad."""

    column: str
    name: str
    middle: float = 0.0
    valued: bool = False


def token_view(db: Database, run_id: int, step: int) -> dict[str, Any]:
    """The kept texts of one step for the page; without rows where none were kept. Raises StoreError for no such run."""
    run = get_run(db, run_id)
    config = PolicyConfig.from_dict(run.config)
    beta = metric_at(db, run_id, step, "objective/kl_coef")
    constants = step_constants(config, config.beta if beta is None else beta)
    records = token_records_at(db, run_id, step)
    columns = [token_columns(record, config, constants) for record in records]
    scales = color_scales(config)
    return {
        "run": run_id,
        "step": step,
        "steps": run.step,
        "kept": config.token_rows,
        "constants": constants,
        "lines": [equation._asdict() for equation in equations_for(config, columns)],
        "shades": [scale._asdict() | {"marks": legend_marks(scale, columns)} for scale in scales],
        "rows": [
            _token_row(*record_and_columns) | {"tints": token_colors(scales, record_and_columns[1], columns)}
            for record_and_columns in zip(records, columns, strict=True)
        ],
    }


def step_constants(config: PolicyConfig, beta: float) -> dict[str, float]:
    """The step's numbers that stand in equations. beta: in force at that step."""
    clip = config.cliprange or 0.0
    return {
        "beta": beta, "gamma": config.gamma, "lam": config.lam, "low": 1 - clip, "high": 1 + clip
    }  # fmt: skip


def token_columns(record: TokenRecord, config: PolicyConfig, constants: dict[str, float]) -> TokenColumns:
    """What was recorded, and what follows from it, a number a token. Columns that an old record lacks are not there."""
    columns: TokenColumns = {
        name: getattr(record, name)
        for name in ("logprob", "old_logprob", "ref_logprob", "kl", "reward", "advantage", "ratio")
    }
    count, gamma = len(record.token_ids), constants["gamma"]
    if record.earned is not None:
        earned_at_end = [0.0] * (count - 1) + [record.earned]
        columns["earned"] = earned_at_end if config.score_placement == "last" else [record.earned / count] * count
    if record.raw_advantage:
        columns["raw"] = record.raw_advantage
        columns["next_raw"] = [*record.raw_advantage[1:], 0.0]
    if record.spread is not None and record.centre is not None:
        columns |= {"centre": [record.centre] * count, "spread": [record.spread] * count}
    if config.uses_value_function:
        next_values = [*record.value[1:], record.after]
        columns |= {"value": record.value, "next_value": next_values}
        columns["delta"] = [
            reward + gamma * next_value - value
            for reward, next_value, value in zip(record.reward, next_values, record.value, strict=True)
        ]
    if record.target:
        columns["target"] = record.target
        columns["value_loss"] = [0.5 * (v - t) ** 2 for v, t in zip(record.value, record.target, strict=True)]
    columns["loss"] = [
        _loss(config, constants, *advantage_and_ratio)
        for advantage_and_ratio in zip(record.advantage, record.ratio, strict=True)
    ]
    return columns


def _loss(config: PolicyConfig, constants: dict[str, float], advantage: float, ratio: float) -> float:
    if not _uses_clipping(config):
        return -advantage * ratio
    return max(-advantage * ratio, -advantage * min(max(ratio, constants["low"]), constants["high"]))


def _uses_clipping(config: PolicyConfig) -> bool:
    return config.algorithm in CLIPPED_ALGORITHMS and config.cliprange is not None


def equations_for(config: PolicyConfig, columns: Sequence[TokenColumns]) -> list[Equation]:
    """The equations of an algorithm with these settings that the columns can fill, in the order in which numbers are found."""
    equations = [_kl_equation(config), _reward_equation(config), *_advantage_equations(config)]
    if config.whiten_advantages:
        equations.append(
            Equation("advantage", "{advantage} = ({raw} − {centre}) / {spread}", "(A − mean) / sd",
                 "Whitened over the batch. Above 0 the token is made likelier, below 0 less likely.")
        )  # fmt: skip
    equations += [_ratio_equation(), *_loss_equations(config)]
    known_names = set(step_constants(config, 0.0)).union(*columns)
    return [item for item in equations if not columns or names_in_equation(item.equation) <= known_names]


def names_in_equation(equation: str) -> set[str]:
    """The columns and constants that an equation reads."""
    return {segment.split("}")[0] for segment in equation.split("{")[1:]}


def _ratio_equation() -> Equation:
    return Equation(
        "ratio", "{ratio} = exp({logprob} − {old_logprob})", "exp(log π − log π_old)",
        "How much likelier the token is after this step's updates than when it was written.",
    )  # fmt: skip


def _kl_equation(config: PolicyConfig) -> Equation:
    equations = {
        "k1": ("{kl} = {old_logprob} − {ref_logprob}", "log π_old − log π_ref"),
        "k2": ("{kl} = ½ · ({old_logprob} − {ref_logprob})²", "½ (log π_old − log π_ref)²"),
        "k3": ("{kl} = exp({ref_logprob} − {old_logprob}) − 1 + {old_logprob} − {ref_logprob}", "exp(−d) − 1 + d"),
        "full": ("{kl}", "Σ π_old · (log π_old − log π_ref)"),
    }
    about = "How far this token's choice lies from the reference, in nats." + (
        " Over the whole vocabulary." if config.kl_estimator == "full" else ""
    )
    return Equation("KL", *equations[config.kl_estimator], about)


def _reward_equation(config: PolicyConfig) -> Equation:
    if config.whiten_rewards:
        return Equation("reward", "{reward}", "−β · KL + score, scaled", "Scaled to sd 1 over the batch.")
    placement_text = "on the last token" if config.score_placement == "last" else "in equal parts on all tokens"
    if config.kl_penalty == "loss":
        return Equation(
            "reward", "{reward} = {earned}", "score", f"The score, {placement_text}; the KL is a term of the loss."
        )
    return Equation(
        "reward",
        "{reward} = −{beta} · {kl} + {earned}",
        "−β · KL + score",
        f"The KL's price, and {placement_text} the score.",
    )


def _advantage_equations(config: PolicyConfig) -> list[Equation]:
    name = "advantage before whitening" if config.whiten_advantages else "advantage"
    if config.algorithm in ("rloo", "grpo"):
        about = f"One for the whole text: its rewards added up, beside those of the {config.group_size} texts of its prompt."
        return [Equation(name, "{raw}", "sum of rewards beside the group's", about)]
    if config.algorithm == "reinforce":
        rewards_text = "The rewards from here on" if config.credit == "to_go" else "All rewards of the text"
        baseline_text = {
            "none": "",
            "batch_mean": ", less the mean of the batch",
            "value": ", less the value",
        }[config.baseline]
        return [Equation(name, "{raw}", "return − baseline", f"{rewards_text}{baseline_text}.")]
    surprise = Equation(
        "surprise", "{delta} = {reward} + {gamma} · {next_value} − {value}", "δ = r + γ · V′ − V",
        "What this token brought beyond what the value function expected.",
    )  # fmt: skip
    if config.advantage == "nstep":
        return [surprise, Equation(name, "{raw}", "Σ γᵏ · δ", f"The surprises of {config.nstep} tokens from here on.")]
    return [
        surprise,
        Equation(name, "{raw} = {delta} + {gamma} · {lam} · {next_raw}", "A = δ + γ · λ · A′",
             "The surprise, and λ of what followed: generalised advantage estimation."),
    ]  # fmt: skip


def _loss_equations(config: PolicyConfig) -> list[Equation]:
    if _uses_clipping(config):
        loss_equation = Equation(
            "loss", "{loss} = max(−{advantage} · {ratio}, −{advantage} · clip({ratio}, {low}, {high}))",
            "max(−A · ratio, −A · clip(ratio, 1 − ε, 1 + ε))",
            "After this step's updates. Where the clip is the greater, the token moves nothing more.",
        )  # fmt: skip
    elif config.algorithm in SINGLE_PASS_ALGORITHMS:
        loss_equation = Equation("loss", "", "−A · log π", "Its slope makes the token likelier by as much as A says.")
    else:
        loss_equation = Equation(
            "loss", "{loss} = −{advantage} · {ratio}", "−A · ratio",
            "After this step's updates" + (", without the penalty." if config.algorithm == "ppo_penalty" else "."),
        )  # fmt: skip
    if not config.uses_value_function:
        return [loss_equation]
    lambda_return = config.value_target == "gae" and config.algorithm != "reinforce" and config.advantage == "gae"
    target = "{target} = {raw} + {value}" if lambda_return else "{target}"
    return [
        loss_equation,
        Equation(
            "value's target",
            target,
            "A + V" if lambda_return else "return from here on",
            "What the value should have been.",
        ),
        Equation(
            "value's loss", "{value_loss} = ½ · ({value} − {target})²", "½ (V − target)²", "Before this step's updates."
        ),
    ]


def color_scales(config: PolicyConfig) -> list[ColorScale]:
    """What the tokens can be coloured by; the first one is shown first."""
    scales = [
        ColorScale("advantage", "advantage", valued=True), ColorScale("reward", "reward", valued=True), ColorScale("kl", "KL"),
        ColorScale("ratio", "ratio", 1.0), ColorScale("old_logprob", "log-probability"),
    ]  # fmt: skip
    if config.uses_value_function:
        scales.append(ColorScale("value", "value"))
    return scales


def token_colors(
    scales: Sequence[ColorScale], columns: TokenColumns, all_columns: Sequence[TokenColumns]
) -> dict[str, list[float]]:
    """The colours of one text's tokens for every shade; of_all: the columns of all texts, which share a scale."""
    colors = {}
    for scale in scales:
        largest = max_distance(scale, all_columns)
        colors[scale.column] = [color_intensity(value - scale.middle, largest) for value in columns[scale.column]]
    return colors


def max_distance(scale: ColorScale, columns: Iterable[TokenColumns]) -> float:
    """How far from the middle the farthest finite number is."""
    distances = (abs(value - scale.middle) for text_columns in columns for value in text_columns[scale.column])
    return max((distance for distance in distances if math.isfinite(distance)), default=0.0)


def color_intensity(offset: float, largest: float) -> float:
    """How much colour a token gets: above 0 that of what lies above the middle, below 0 the other.

    It grows with the distance from the middle, to 1 (as strong as colours get behind text: lab.css) at `most` and beyond it.
    What is no number stays white.
    """
    if math.isnan(offset) or abs(offset) < EPSILON:
        return 0.0
    return round(math.copysign(min(1.0, abs(offset) / max(largest, EPSILON)), offset), 2)


def legend_marks(scale: ColorScale, columns: Sequence[TokenColumns]) -> list[tuple[float, float]]:
    """The legend: (number, its colour) of the lowest, the middle and the highest; an end on the middle's own side is left out."""
    values = [value for text_columns in columns for value in text_columns[scale.column] if math.isfinite(value)]
    low, high = min(values, default=scale.middle), max(values, default=scale.middle)
    largest = max_distance(scale, columns)
    stops = [*([low] if low < scale.middle else []), scale.middle, *([high] if high > scale.middle else [])]
    return [(_round_significant(value), color_intensity(value - scale.middle, largest)) for value in stops]


def _round_significant(value: float) -> float:
    return float(f"{value:.6g}")


def _token_row(record: TokenRecord, columns: TokenColumns) -> dict[str, Any]:
    """What is not finite becomes null, which JSON can say."""
    return {
        "prompt": record.prompt,
        "tokens": record.tokens,
        "score": record.score,
        "earned": record.earned,
        "clipped": record.clipped,
        "columns": {
            name: [_round_significant(value) if math.isfinite(value) else None for value in column]
            for name, column in columns.items()
        },
    }
