"""Settings: one frozen dataclass per config, each field written once with its help text and range.

The command line, the form in the browser and the saved manifest are generated from these classes (`fields_of`,
`add_arguments`, `to_dict`, `from_dict`). Values are checked on construction: ConfigError names the field, the value and
the range.
"""

import argparse
import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Self

from rlhf_lab.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """What is known of one field, for forms and command lines."""

    name: str
    type: type
    default: Any
    optional: bool
    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...] | None


def setting(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with its help text, range (inclusive) or choices."""
    return dataclasses.field(default=default, metadata={"help": help, "low": low, "high": high, "choices": choices})


class Config:
    """Base of the configs: validation, (de)serialisation and arguments from the field metadata."""

    def __post_init__(self) -> None:
        for item in fields_of(type(self)):
            _check(item, getattr(self, item.name))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Raises ConfigError for a name this config does not have."""
        known = {item.name for item in fields_of(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown setting(s) {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        return type(self).from_dict(self.to_dict() | changes)


def fields_of(cls: type) -> list[Setting]:
    """The settings of a config class, in order."""
    hints = typing.get_type_hints(cls)
    found = []
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        optional = isinstance(hint, types.UnionType)
        kind = next(arg for arg in typing.get_args(hint) if arg is not type(None)) if optional else hint
        meta = item.metadata
        found.append(
            Setting(item.name, kind, item.default, optional, meta["help"], meta["low"], meta["high"], meta["choices"])
        )
    return found


def _check(item: Setting, value: Any) -> None:
    if value is None:
        if not item.optional:
            raise ConfigError(f"{item.name} must not be empty: {item.help}")
        return
    if item.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, item.type) or (item.type is int and isinstance(value, bool)):
        raise ConfigError(f"{item.name} = {value!r} is not a {item.type.__name__}: {item.help}")
    if item.choices is not None and value not in item.choices:
        raise ConfigError(f"{item.name} = {value!r} is unknown; choose one of {', '.join(item.choices)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{item.name} = {value!r} is not a finite number: {item.help}")
    number: Any = value
    if item.low is not None and number < item.low:
        raise ConfigError(f"{item.name} = {value} is below its least value {item.low:g}: {item.help}")
    if item.high is not None and number > item.high:
        raise ConfigError(f"{item.name} = {value} is above its greatest value {item.high:g}: {item.help}")


def add_arguments(parser: argparse.ArgumentParser, cls: type[Config], skip: tuple[str, ...] = ()) -> None:
    """One `--name` option a field; an absent option leaves the default, so presets and options can be combined."""
    for item in fields_of(cls):
        if item.name in skip:
            continue
        kwargs: dict[str, Any] = {"dest": item.name, "default": None}
        about = f"{item.help} (default {item.default})".replace("%", "%%")
        if item.type is bool:
            kwargs["action"] = argparse.BooleanOptionalAction
        else:
            kwargs["type"] = _optional(item.type) if item.optional else item.type
            kwargs["metavar"] = "{" + ",".join(item.choices) + "}" if item.choices else item.type.__name__.upper()
        parser.add_argument(f"--{item.name.replace('_', '-')}", help=about, **kwargs)


#: How a command line says None; not None itself, which stands for an option that was not given.
NONE = "none"


def _optional(kind: type) -> Any:
    def parse(text: str) -> Any:
        return NONE if text == NONE else kind(text)

    return parse


def from_args(cls: type[Config], args: argparse.Namespace, **fixed: Any) -> Any:
    """The config of parsed arguments: options given on the command line over `fixed` over the defaults."""
    values = dict(fixed)
    for item in fields_of(cls):
        given = getattr(args, item.name, None)
        if given is not None:
            values[item.name] = None if item.optional and given == NONE else given
    return cls.from_dict(values)


@dataclass(frozen=True)
class RewardConfig(Config):
    """How a reward model learns from comparisons."""

    pooling: str = setting(
        "mean",
        "which hidden states the head reads: the mean over the response, or its last token",
        choices=("mean", "last"),
    )
    lora_r: int = setting(8, "rank of the LoRA adapter", 1, 256)
    lora_alpha: int = setting(16, "LoRA scale: the update is multiplied by lora_alpha / lora_r", 1, 1024)
    epochs: int = setting(2, "passes over the labels for the adapter; 0 trains the head alone", 0, 200)
    batch_size: int = setting(16, "comparisons per update", 1, 1024)
    lr: float = setting(3e-4, "learning rate of the adapter and the head", 1e-7, 1.0)
    weight_decay: float = setting(0.01, "AdamW weight decay", 0.0, 1.0)
    max_grad_norm: float = setting(1.0, "gradient clipping by global norm", 1e-3, 1e3)
    warm_start: bool = setting(True, "fit the head on frozen features first (a convex problem), then train the adapter")
    ridge: float = setting(
        300.0, "strength of the head's prior in the warm start; features are scaled to unit spread", 1e-3, 1e6
    )
    label_smoothing: float = setting(0.0, "share of each label given to the other side", 0.0, 0.49)
    centering: float = setting(0.01, "weight of the penalty on the squared sum of a pair's scores", 0.0, 1.0)
    folds: int = setting(5, "folds of the cross-validation, grouped by prompt; 0 skips it", 0, 20)
    seed: int = setting(0, "seed of the adapter, the batches and the folds", 0, 2**31 - 1)


@dataclass(frozen=True)
class PolicyConfig(Config):
    """How the policy learns from the reward model. The defaults are the shipped preset."""

    algorithm: str = setting("ppo", "the learning algorithm", choices=("ppo",))
    steps: int = setting(40, "optimisation steps; one step is one batch of rollouts", 1, 1_000_000)
    batch_size: int = setting(32, "rollouts per step", 2, 4096)
    epochs: int = setting(2, "passes over each batch of rollouts", 1, 32)
    minibatches: int = setting(2, "optimiser updates per pass", 1, 64)
    micro_batch: int = setting(8, "rows per forward and backward; smaller needs less memory, same result", 1, 4096)
    max_new_tokens: int = setting(64, "longest response, in tokens", 1, 4096)
    temperature: float = setting(
        1.0, "sampling temperature; also divides the logits of old, new and reference", 0.05, 5.0
    )
    lr: float = setting(1.5e-3, "learning rate (Adam)", 1e-8, 1.0)
    lr_schedule: str = setting("linear", "how the learning rate moves over the run", choices=("linear", "constant"))
    beta: float = setting(0.05, "weight of the per-token KL penalty against the frozen reference", 0.0, 10.0)
    kl_controller: str = setting("fixed", "keep beta, or steer it towards kl_target", choices=("fixed", "adaptive"))
    kl_target: float = setting(6.0, "sequence KL that the adaptive controller aims at, in nats", 0.01, 1000.0)
    kl_horizon: float = setting(2000.0, "episodes over which the adaptive controller corrects", 1.0, 1e9)
    kl_estimator: str = setting("k1", "estimator of the per-token KL", choices=("k1", "k2", "k3"))
    gamma: float = setting(1.0, "discount per token", 0.0, 1.0)
    lam: float = setting(0.95, "GAE lambda", 0.0, 1.0)
    cliprange: float | None = setting(0.2, "PPO clip of the probability ratio; none leaves it unclipped", 0.01, 10.0)
    cliprange_value: float | None = setting(
        0.2, "clip of the value around the old value; none leaves it unclipped", 0.01, 100.0
    )
    vf_coef: float = setting(0.1, "weight of the value loss", 0.0, 10.0)
    entropy_coef: float = setting(0.0, "weight of the entropy bonus", 0.0, 1.0)
    value_trunk: str = setting(
        "shared", "whether the value loss trains the policy adapter too", choices=("shared", "detached")
    )
    whiten_rewards: bool = setting(False, "divide the per-token rewards of a batch by their standard deviation")
    whiten_advantages: bool = setting(True, "shift and scale the advantages of a batch to mean 0, sd 1")
    score_clip: float | None = setting(None, "clip of the reward model's score, in sd; none leaves it", 0.1, 1000.0)
    missing_eos_penalty: float = setting(1.0, "taken from the score of a response that never ends", 0.0, 100.0)
    target_kl: float | None = setting(
        None, "stop the epochs of a step when approxkl passes this; none never stops", 1e-4, 100.0
    )
    ratio_threshold: float = setting(10.0, "skip an update whose mean ratio exceeds this", 1.0, 1e6)
    max_grad_norm: float = setting(1.0, "gradient clipping by global norm", 1e-3, 1e3)
    adam_eps: float = setting(1e-5, "Adam epsilon", 1e-12, 1e-1)
    lora_r: int = setting(8, "rank of the LoRA adapter", 1, 256)
    lora_alpha: int = setting(16, "LoRA scale: the update is multiplied by lora_alpha / lora_r", 1, 1024)
    sample_every: int = setting(5, "steps between samples for the fixed prompts", 1, 10_000)
    sample_count: int = setting(6, "how many fixed prompts are sampled", 0, 64)
    token_rows: int = setting(2, "rollout rows whose per-token records are kept each step", 0, 64)
    checkpoint_every: int = setting(5, "steps between checkpoints", 1, 10_000)
    seed: int = setting(0, "seed of the adapter, the prompts and the sampling", 0, 2**31 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minibatches > self.batch_size:
            raise ConfigError(
                f"minibatches = {self.minibatches} exceeds batch_size = {self.batch_size}: "
                "each update needs at least one rollout"
            )


#: What a person can change while a run goes on, and where it may be set.
KNOBS = ("beta", "lr")

#: Named starting points of the policy; "gentle" is the default of the form for models nobody has tuned here.
PRESETS: dict[str, dict[str, Any]] = {
    "lab": {},
    "gentle": {"lr": 1e-4, "beta": 0.2},
}
