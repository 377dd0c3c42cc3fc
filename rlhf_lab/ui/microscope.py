"""The token microscope: every number that PPO knew of a text's tokens, and the equation that ties it to the others.

An equation is a template over the names of columns (a number a token) and constants of the step, such as
"{kl} = {old_logprob} − {ref_logprob}": the page puts a token's numbers in, and a test puts in all of them and does the sum.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rlhf_lab.kinds import CLIPPED, ON_POLICY
from rlhf_lab.policy_config import PolicyConfig
from rlhf_lab.records import TokenRecord
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import get_run
from rlhf_lab.store.steps import metric_at, token_records_at

Columns = dict[str, list[float]]
NO_SIZE = 1e-12  # what is nearer to the middle has no colour


class Line(NamedTuple):
    """A number of a token: its name, the equation with and without numbers, and what it tells. equation: "" where the number
    comes from more than this text."""

    name: str
    equation: str
    symbols: str
    about: str


class Shade(NamedTuple):
    """A column the tokens can be coloured by, and the number that is left white. valued: above it is good, below bad."""

    column: str
    name: str
    middle: float = 0.0
    valued: bool = False


def looked_at(db: Database, run_id: int, step: int) -> dict[str, Any]:
    """The kept texts of one step for the page; without rows where none were kept. Raises StoreError for no such run."""
    run = get_run(db, run_id)
    config = PolicyConfig.from_dict(run.config)
    beta = metric_at(db, run_id, step, "objective/kl_coef")
    constants = constants_of(config, config.beta if beta is None else beta)
    records = token_records_at(db, run_id, step)
    columns = [columns_of(record, config, constants) for record in records]
    shades = shades_of(config)
    return {
        "run": run_id, "step": step, "steps": run.step, "kept": config.token_rows, "constants": constants,
        "lines": [line._asdict() for line in lines_of(config, columns)],
        "shades": [shade._asdict() | {"marks": marks(shade, columns)} for shade in shades],
        "rows": [_row(*both) | {"tints": tints_of(shades, both[1], columns)} for both in zip(records, columns, strict=True)],
    }  # fmt: skip


def constants_of(config: PolicyConfig, beta: float) -> dict[str, float]:
    """The step's numbers that stand in equations. beta: in force at that step."""
    clip = config.cliprange or 0.0
    return {
        "beta": beta, "gamma": config.gamma, "lam": config.lam, "low": 1 - clip, "high": 1 + clip
    }  # fmt: skip


def columns_of(record: TokenRecord, config: PolicyConfig, constants: dict[str, float]) -> Columns:
    """What was recorded, and what follows from it, a number a token. Columns that an old record lacks are not there."""
    columns: Columns = {
        name: getattr(record, name)
        for name in ("logprob", "old_logprob", "ref_logprob", "kl", "reward", "advantage", "ratio")
    }
    count, gamma = len(record.token_ids), constants["gamma"]
    if record.earned is not None:
        last = [0.0] * (count - 1) + [record.earned]
        columns["earned"] = last if config.score_placement == "last" else [record.earned / count] * count
    if record.raw_advantage:
        columns["raw"] = record.raw_advantage
        columns["next_raw"] = [*record.raw_advantage[1:], 0.0]
    if record.spread is not None and record.centre is not None:
        columns |= {"centre": [record.centre] * count, "spread": [record.spread] * count}
    if config.uses_values:
        follows = [*record.value[1:], record.after]
        columns |= {"value": record.value, "next_value": follows}
        columns["delta"] = [
            reward + gamma * behind - value
            for reward, behind, value in zip(record.reward, follows, record.value, strict=True)
        ]
    if record.target:
        columns["target"] = record.target
        columns["value_loss"] = [0.5 * (v - t) ** 2 for v, t in zip(record.value, record.target, strict=True)]
    columns["loss"] = [_loss(config, constants, *of) for of in zip(record.advantage, record.ratio, strict=True)]
    return columns


def _loss(config: PolicyConfig, constants: dict[str, float], advantage: float, ratio: float) -> float:
    if not _clips(config):
        return -advantage * ratio
    return max(-advantage * ratio, -advantage * min(max(ratio, constants["low"]), constants["high"]))


def _clips(config: PolicyConfig) -> bool:
    return config.algorithm in CLIPPED and config.cliprange is not None


def lines_of(config: PolicyConfig, columns: Sequence[Columns]) -> list[Line]:
    """The equations of an algorithm with these settings that the columns can fill, in the order in which numbers are found."""
    parts = [_kl(config), _reward(config), *_advantage(config)]
    if config.whiten_advantages:
        parts.append(
            Line("advantage", "{advantage} = ({raw} − {centre}) / {spread}", "(A − mean) / sd",
                 "Whitened over the batch. Above 0 the token is made likelier, below 0 less likely.")
        )  # fmt: skip
    parts += [_ratio(), *_learning(config)]
    known = set(constants_of(config, 0.0)).union(*columns)
    return [line for line in parts if not columns or names_in(line.equation) <= known]


def names_in(equation: str) -> set[str]:
    """The columns and constants that an equation reads."""
    return {part.split("}")[0] for part in equation.split("{")[1:]}


def _ratio() -> Line:
    return Line(
        "ratio", "{ratio} = exp({logprob} − {old_logprob})", "exp(log π − log π_old)",
        "How much likelier the token is after this step's updates than when it was written.",
    )  # fmt: skip


def _kl(config: PolicyConfig) -> Line:
    equations = {
        "k1": ("{kl} = {old_logprob} − {ref_logprob}", "log π_old − log π_ref"),
        "k2": ("{kl} = ½ · ({old_logprob} − {ref_logprob})²", "½ (log π_old − log π_ref)²"),
        "k3": ("{kl} = exp({ref_logprob} − {old_logprob}) − 1 + {old_logprob} − {ref_logprob}", "exp(−d) − 1 + d"),
        "full": ("{kl}", "Σ π_old · (log π_old − log π_ref)"),
    }
    about = "How far this token's choice lies from the reference, in nats." + (
        " Over the whole vocabulary." if config.kl_estimator == "full" else ""
    )
    return Line("KL", *equations[config.kl_estimator], about)


def _reward(config: PolicyConfig) -> Line:
    if config.whiten_rewards:
        return Line("reward", "{reward}", "−β · KL + score, scaled", "Scaled to sd 1 over the batch.")
    where = "on the last token" if config.score_placement == "last" else "in equal parts on all tokens"
    if config.kl_penalty == "loss":
        return Line("reward", "{reward} = {earned}", "score", f"The score, {where}; the KL is a term of the loss.")
    return Line(
        "reward", "{reward} = −{beta} · {kl} + {earned}", "−β · KL + score", f"The KL's price, and {where} the score."
    )


def _advantage(config: PolicyConfig) -> list[Line]:
    named = "advantage before whitening" if config.whiten_advantages else "advantage"
    if config.algorithm in ("rloo", "grpo"):
        about = f"One for the whole text: its rewards added up, beside those of the {config.group_size} texts of its prompt."
        return [Line(named, "{raw}", "sum of rewards beside the group's", about)]
    if config.algorithm == "reinforce":
        told = "The rewards from here on" if config.credit == "to_go" else "All rewards of the text"
        less = {
            "none": "",
            "batch_mean": ", less the mean of the batch",
            "value": ", less the value",
        }[config.baseline]
        return [Line(named, "{raw}", "return − baseline", f"{told}{less}.")]
    surprise = Line(
        "surprise", "{delta} = {reward} + {gamma} · {next_value} − {value}", "δ = r + γ · V′ − V",
        "What this token brought beyond what the value function expected.",
    )  # fmt: skip
    if config.advantage == "nstep":
        return [surprise, Line(named, "{raw}", "Σ γᵏ · δ", f"The surprises of {config.nstep} tokens from here on.")]
    return [
        surprise,
        Line(named, "{raw} = {delta} + {gamma} · {lam} · {next_raw}", "A = δ + γ · λ · A′",
             "The surprise, and λ of what followed: generalised advantage estimation."),
    ]  # fmt: skip


def _learning(config: PolicyConfig) -> list[Line]:
    if _clips(config):
        loss = Line(
            "loss", "{loss} = max(−{advantage} · {ratio}, −{advantage} · clip({ratio}, {low}, {high}))",
            "max(−A · ratio, −A · clip(ratio, 1 − ε, 1 + ε))",
            "After this step's updates. Where the clip is the greater, the token moves nothing more.",
        )  # fmt: skip
    elif config.algorithm in ON_POLICY:
        loss = Line("loss", "", "−A · log π", "Its slope makes the token likelier by as much as A says.")
    else:
        loss = Line(
            "loss", "{loss} = −{advantage} · {ratio}", "−A · ratio",
            "After this step's updates" + (", without the penalty." if config.algorithm == "ppo_penalty" else "."),
        )  # fmt: skip
    if not config.uses_values:
        return [loss]
    lambda_return = config.value_target == "gae" and config.algorithm != "reinforce" and config.advantage == "gae"
    target = "{target} = {raw} + {value}" if lambda_return else "{target}"
    return [
        loss,
        Line("value's target", target, "A + V" if lambda_return else "return from here on", "What the value should have been."),
        Line("value's loss", "{value_loss} = ½ · ({value} − {target})²", "½ (V − target)²", "Before this step's updates."),
    ]  # fmt: skip


def shades_of(config: PolicyConfig) -> list[Shade]:
    """What the tokens can be coloured by; the first one is shown first."""
    shades = [
        Shade("advantage", "advantage", valued=True), Shade("reward", "reward", valued=True), Shade("kl", "KL"),
        Shade("ratio", "ratio", 1.0), Shade("old_logprob", "log-probability"),
    ]  # fmt: skip
    if config.uses_values:
        shades.append(Shade("value", "value"))
    return shades


def tints_of(shades: Sequence[Shade], columns: Columns, of_all: Sequence[Columns]) -> dict[str, list[float]]:
    """The colours of one text's tokens for every shade; of_all: the columns of all texts, which share a scale."""
    found = {}
    for shade in shades:
        most = farthest(shade, of_all)
        found[shade.column] = [tint(value - shade.middle, most) for value in columns[shade.column]]
    return found


def farthest(shade: Shade, columns: Iterable[Columns]) -> float:
    """How far from the middle the farthest finite number is."""
    away = (abs(value - shade.middle) for column in columns for value in column[shade.column])
    return max((size for size in away if math.isfinite(size)), default=0.0)


def tint(away: float, most: float) -> float:
    """How much colour a token gets: above 0 that of what lies above the middle, below 0 the other.

    It grows with the distance from the middle, to 1 (as strong as colours get behind text: lab.css) at `most` and beyond it.
    What is no number stays white.
    """
    if math.isnan(away) or abs(away) < NO_SIZE:
        return 0.0
    return round(math.copysign(min(1.0, abs(away) / max(most, NO_SIZE)), away), 2)


def marks(shade: Shade, columns: Sequence[Columns]) -> list[tuple[float, float]]:
    """The legend: (number, its colour) of the lowest, the middle and the highest; an end on the middle's own side is left out."""
    values = [value for column in columns for value in column[shade.column] if math.isfinite(value)]
    low, high = min(values, default=shade.middle), max(values, default=shade.middle)
    most = farthest(shade, columns)
    ends = [*([low] if low < shade.middle else []), shade.middle, *([high] if high > shade.middle else [])]
    return [(_short(value), tint(value - shade.middle, most)) for value in ends]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _row(record: TokenRecord, columns: Columns) -> dict[str, Any]:
    """What is not finite becomes null, which JSON can say."""
    return {
        "prompt": record.prompt, "tokens": record.tokens, "score": record.score, "earned": record.earned,
        "clipped": record.clipped,
        "columns": {
            name: [_short(value) if math.isfinite(value) else None for value in column] for name, column in columns.items()
        },
    }  # fmt: skip
