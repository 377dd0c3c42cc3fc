"""Settings of policy training: ranges, the algorithms that use each setting, and conflicts between settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from rlhf_lab.common.algorithms import (
    ALGORITHMS,
    DEFAULT_ALGORITHM,
    AlgorithmSpec,
    algorithm_of,
    algorithms_where,
    spec_of,
)
from rlhf_lab.common.enums import (
    AnyKLEstimator,
    Baseline,
    CreditAssignment,
    DirectLoss,
    ScorePlacement,
    ValueTarget,
)
from rlhf_lab.common.records import DEFAULT_MAX_NEW_TOKENS
from rlhf_lab.config.base import Config, fields_of, setting
from rlhf_lab.config.kl_control import (
    FIXED_BETA_SETTINGS,
    KLControlSpec,
    kl_conflicts,
    kl_control_of,
    recommended_budget,
)
from rlhf_lab.errors import ConfigError

SHARDING_NEEDS_PROCESSES = (
    "shard_backbone distributes the frozen weights over processes, and there is only one. Choose processes = 2 or more"
)

#: Recommended for every algorithm that uses the setting; they differ from the defaults, which stay so that runs of older
#: versions resume unchanged. Scores of a reward model are in standard deviations of the base model's samples, so that one clip
#: suits all; scores of Python reward functions have other units, so the default of score_clip is none.
RECOMMENDED_FOR_ALL: dict[str, Any] = {"score_clip": 1.5, "missing_eos_penalty": 0.0}

# The algorithms that use a setting.
ROLLOUTS = algorithms_where(lambda spec: not spec.is_offline)
SAMPLES = algorithms_where(lambda spec: spec.learns_from != "labels")
FIXED_TEXTS = algorithms_where(lambda spec: spec.is_offline)
BETA = algorithms_where(lambda spec: spec.has_beta)
VALUES = algorithms_where(lambda spec: spec.value_function != "never")
TEMPORAL_DIFFERENCES = algorithms_where(lambda spec: spec.advantage == "temporal_difference")
GRADIENTS = algorithms_where(lambda spec: not spec.is_offline and spec.update == "gradient")
REPEATED_UPDATES = algorithms_where(lambda spec: spec.repeats_updates)
CLIPS = algorithms_where(lambda spec: spec.clips)
RETURNS = algorithms_where(lambda spec: spec.advantage == "returns")
GROUP_SCALES = algorithms_where(lambda spec: spec.advantage == "grpo")
LOSS_MEANS = algorithms_where(lambda spec: not spec.is_offline and spec.loss != "ratio_and_penalty")
PENALTIES = algorithms_where(lambda spec: spec.loss == "ratio_and_penalty")
TRUST_REGIONS = algorithms_where(lambda spec: spec.update == "natural_gradient")
DIRECT_PREFERENCES = algorithms_where(lambda spec: spec.loss == "direct_preference")
BEST_SAMPLES = algorithms_where(lambda spec: spec.learns_from == "best_samples")


@dataclass(frozen=True)
class PolicyConfig(Config):
    """Settings of a policy run. The default preset is `PolicyConfig.for_algorithm("ppo")`."""

    algorithm: str = setting(DEFAULT_ALGORITHM, "the learning algorithm", choices=tuple(ALGORITHMS), group="run")
    steps: int = setting(40, "optimisation steps; one step is one batch of rollouts", 1, 1_000_000, group="run")
    lr: float = setting(1.5e-3, "learning rate (Adam)", 1e-8, 1.0, group="run")
    lr_schedule: Literal["linear", "cosine", "constant"] = setting(
        "linear", "how the learning rate changes over the run: linear or cosine decay to 0, or constant", group="run"
    )
    adam_eps: float = setting(1e-5, "Adam epsilon", 1e-12, 1e-1, group="run")
    max_grad_norm: float = setting(1.0, "gradient clipping by global norm", 1e-3, 1e3, group="run")
    processes: int = setting(
        1,
        "processes that share the responses of a step (one per GPU); the result is the same as with one",
        1,
        64,
        group="run",
    )
    shard_backbone: bool = setting(
        False,
        "distribute the frozen weights over the processes, for models that do not fit on one GPU; slower",
        group="run",
    )
    seed: int = setting(
        0, "random seed of the adapter, the order of the prompts and the sampling", 0, 2**31 - 1, group="run"
    )
    sample_every: int = setting(5, "steps between two sets of samples for the fixed prompts", 1, 10_000, group="run")
    sample_count: int = setting(6, "number of fixed prompts that are sampled", 0, 64, group="run")
    token_rows: int = setting(
        2,
        "number of responses of each step whose per-token records are kept",
        0,
        64,
        group="run",
        only=ROLLOUTS,
    )
    checkpoint_every: int = setting(5, "steps between checkpoints", 1, 10_000, group="run")

    batch_size: int = setting(32, "responses per rollout", 2, 4096, group="rollouts")
    rollouts: int = setting(
        1, "rollouts collected by one policy before it learns from all of them; a larger number needs no more memory for "
        "sampling", 1, 64,
        group="rollouts", only=ROLLOUTS,
    )  # fmt: skip
    group_size: int = setting(
        1, "responses per prompt; rloo and grpo compare them with each other, so they need at least 2",
        1, 256, group="rollouts",
        only=ROLLOUTS,
    )  # fmt: skip
    epochs: int = setting(
        2, "passes over the rollouts of a step; for rejection: over the texts kept in a round", 1, 32, group="rollouts",
        only=SAMPLES,
    )  # fmt: skip
    minibatches: int = setting(2, "optimizer updates per pass", 1, 64, group="rollouts", only=ROLLOUTS)
    micro_batch: int = setting(
        8,
        "rows per forward and backward pass; a smaller number needs less memory and gives the same result",
        1,
        4096,
        group="rollouts",
    )
    max_new_tokens: int = setting(
        DEFAULT_MAX_NEW_TOKENS, "maximum length of a response, in tokens", 1, 4096, group="rollouts"
    )
    temperature: float = setting(
        1.0,
        "sampling temperature; also divides the logits of the old policy, the new policy and the reference",
        0.05,
        5.0,
        group="rollouts",
    )

    scale_scores: bool = setting(
        False, "divide scores by the standard deviation of all scores of the run so far", group="reward",
        only=ROLLOUTS,
    )  # fmt: skip
    score_clip: float | None = setting(
        None,
        "clip scores, after any scaling, to plus or minus this value, in standard deviations; none leaves them "
        "unclipped",
        0.1,
        1000.0,
        group="reward",
        only=ROLLOUTS,
    )
    missing_eos_penalty: float = setting(
        1.0,
        "subtracted from the score of a response that does not end with a stop token",
        0.0,
        100.0,
        group="reward",
        only=SAMPLES,
    )
    score_placement: ScorePlacement = setting(
        "last", "which tokens receive the score: the last one, or all of them in equal parts (spread)", group="reward",
        only=VALUES,
    )  # fmt: skip
    whiten_rewards: bool = setting(
        False, "scale the per-token rewards of a batch to standard deviation 1 without changing their mean",
        group="reward",
        only=ROLLOUTS,
    )  # fmt: skip

    live: bool = setting(
        False, "train while people label: learn the reward from each new label, see docs/SCREENS.md; needs a kl_budget",
        group="reward", only=ROLLOUTS,
    )  # fmt: skip
    brake_every: int = setting(
        0, "steps between blind pairs; the run pauses if people prefer the other texts to the policy's; 0: none", 0, 10_000,
        group="run", only=ROLLOUTS,
    )  # fmt: skip

    kl_budget: float | None = setting(
        None,
        "KL budget per response, in nats: lr and beta are adapted to stay within it (offline methods: lr only)",
        0.1,
        1000.0,
        group="KL",
    )
    kl_budget_role: Literal["target", "limit"] = setting(
        "target", "target: beta starts near 0, so the KL rises to the budget; limit: beta is never below its setting",
        group="KL", only=ROLLOUTS,
    )  # fmt: skip
    beta: float = setting(
        0.13, "weight of the per-token KL penalty against the frozen reference",
        0.0, 10.0, group="KL", only=BETA,
    )  # fmt: skip
    kl_controller: Literal["fixed", "adaptive"] = setting(
        "fixed",
        "keep beta constant, or adapt it so that the KL approaches kl_target",
        group="KL",
        only=ROLLOUTS,
    )
    kl_target: float = setting(
        6.0,
        "target of the adaptive controller: KL per response, in nats",
        0.01,
        1000.0,
        group="KL",
        only=ROLLOUTS,
    )
    kl_horizon: float = setting(
        2000.0, "time constant of the adaptive controller, in responses; a larger one changes beta more slowly",
        1.0, 1e9, group="KL", only=ROLLOUTS
    )  # fmt: skip
    kl_estimator: AnyKLEstimator = setting(
        "k1", "estimator of the per-token KL (full: exact, over the whole vocabulary); in the rewards, only k1 "
        "reliably limits the KL", group="KL",
        only=ROLLOUTS,
    )  # fmt: skip
    kl_penalty: Literal["reward", "loss"] = setting(
        "reward", "subtract the KL from the rewards, or add its estimate (k2 or k3) to the loss",
        group="KL", only=GRADIENTS,
    )  # fmt: skip

    gamma: float = setting(1.0, "discount factor per token", 0.0, 1.0, group="advantages", only=VALUES)
    lam: float = setting(0.95, "GAE lambda", 0.0, 1.0, group="advantages", only=VALUES)
    advantage: Literal["gae", "nstep"] = setting(
        "gae", "compute advantages by GAE or from n-step returns", group="advantages", only=TEMPORAL_DIFFERENCES
    )
    nstep: int = setting(
        8,
        "number of tokens that an n-step return looks ahead",
        1,
        4096,
        group="advantages",
        only=TEMPORAL_DIFFERENCES,
    )
    credit: CreditAssignment = setting(
        "to_go", "which rewards each token is credited with: those from this token on, or all rewards of the "
        "response (total)",
        group="advantages", only=RETURNS,
    )  # fmt: skip
    baseline: Baseline = setting(
        "value", "what is subtracted from the return: the value function, the mean return of the batch, or nothing",
        group="advantages", only=RETURNS
    )  # fmt: skip
    group_scale: bool = setting(
        True, "divide a group's advantages by its standard deviation", group="advantages", only=GROUP_SCALES
    )
    whiten_advantages: bool = setting(
        True,
        "shift and scale the advantages of a batch to mean 0 and standard deviation 1",
        group="advantages",
        only=ROLLOUTS,
    )

    cliprange: float | None = setting(
        0.2, "PPO clip of the probability ratio; none leaves it unclipped", 0.01, 1.0, group="policy loss",
        only=CLIPS,
    )  # fmt: skip
    loss_mean: Literal["token", "trajectory", "sum"] = setting(
        "token", "average token losses over all tokens, or over responses, each with the mean (trajectory) or the sum of its "
        "tokens",
        group="policy loss", only=LOSS_MEANS,
    )  # fmt: skip
    entropy_coef: float = setting(
        0.0, "weight of the entropy bonus", 0.0, 1.0, group="policy loss", only=GRADIENTS
    )  # fmt: skip
    ptx_coef: float = setting(
        0.0, "weight of the cross-entropy on pretraining texts (PPO-ptx)", 0.0, 100.0, group="policy loss",
        only=GRADIENTS,
    )  # fmt: skip
    ptx_batch: int = setting(8, "pretraining texts per update", 1, 1024, group="policy loss", only=GRADIENTS)
    penalty_coef: float = setting(
        0.5,
        "initial weight of the KL between old and new policy",
        1e-4,
        1e3,
        group="policy loss",
        only=PENALTIES,
    )
    penalty_kl_min: float = setting(
        0.003, "the weight is halved if the KL of a step is below this (nats per token)",
        0.0, 10.0, group="policy loss",
        only=PENALTIES,
    )  # fmt: skip
    penalty_kl_max: float = setting(
        0.03, "the weight is doubled if the KL of a step is above this (nats per token)",
        1e-5, 20.0, group="policy loss",
        only=PENALTIES,
    )  # fmt: skip
    max_kl: float = setting(
        0.01,
        "trust region: maximum KL of a step, in nats per token",
        1e-6,
        10.0,
        group="policy loss",
        only=TRUST_REGIONS,
    )
    cg_iters: int = setting(
        5, "iterations of the conjugate gradient method", 1, 100, group="policy loss", only=TRUST_REGIONS
    )
    cg_damping: float = setting(
        0.1,
        "multiple of the identity added to the Fisher matrix, so that it is positive definite",
        0.0,
        10.0,
        group="policy loss",
        only=TRUST_REGIONS,
    )
    fisher_rows: int = setting(
        8,
        "number of responses from which the Fisher matrix is estimated",
        1,
        4096,
        group="policy loss",
        only=TRUST_REGIONS,
    )
    target_kl: float | None = setting(
        None, "end a step's epochs early when an epoch's mean approximate KL exceeds this; none runs all epochs",
        1e-4, 100.0,
        group="policy loss", only=REPEATED_UPDATES,
    )  # fmt: skip
    ratio_threshold: float = setting(
        10.0,
        "skip an update if its mean probability ratio exceeds this",
        1.0,
        1e6,
        group="policy loss",
        only=REPEATED_UPDATES,
    )

    value_trunk: Literal["shared", "detached", "critic"] = setting(
        "shared", "adapter below the value head: the policy's, trained by both losses (shared) or not (detached), or its own",
        group="value", only=VALUES,
    )  # fmt: skip
    critic_init: Literal["fresh", "reward"] = setting(
        "fresh", "initial critic: a new adapter, or a copy of the reward model (which needs an adapter and "
        "layers = last)",
        group="value", only=VALUES,
    )  # fmt: skip
    value_warmup: int = setting(
        0, "number of initial steps in which only the value function learns",
        0, 10_000, group="value", only=VALUES
    )  # fmt: skip
    vf_coef: float = setting(0.1, "weight of the value loss", 0.0, 10.0, group="value", only=VALUES)
    cliprange_value: float | None = setting(
        0.2,
        "clip new values to within this distance of the old value; none leaves them unclipped",
        0.01,
        100.0,
        group="value",
        only=VALUES,
    )
    value_target: ValueTarget = setting(
        "gae", "what the value function learns to predict: the lambda-return (gae), or the discounted sum of the "
        "actual rewards",
        group="value", only=VALUES,
    )  # fmt: skip
    bootstrap_cut: bool = setting(
        False, "returns of responses cut off at max_new_tokens continue with the value of the last state (bootstrapping), not "
        "with 0",
        group="value", only=TEMPORAL_DIFFERENCES,
    )  # fmt: skip

    label_batch: int = setting(
        16, "label pairs (dpo) or texts (sft, rejection) per update; a step is one update",
        1, 4096, group="offline methods",
        only=FIXED_TEXTS,
    )  # fmt: skip
    dpo_loss: DirectLoss = setting(
        "sigmoid", "sigmoid: the margin of a pair, beta times its log-ratio difference, grows without limit; ipo: it "
        "approaches 1/2", group="offline methods",
        only=DIRECT_PREFERENCES,
    )  # fmt: skip
    label_smoothing: float = setting(
        0.0, "fraction of the labels assumed to be wrong", 0.0, 0.49, group="offline methods", only=DIRECT_PREFERENCES
    )
    edit_samples: int = setting(
        0, "responses of the policy, sampled in each round, to which each edited answer is preferred (DITTO); 0: none", 0, 64,
        group="offline methods", only=DIRECT_PREFERENCES,
    )  # fmt: skip
    candidates: int = setting(
        4, "responses sampled per prompt; the one with the highest reward is kept", 2, 256, group="offline methods",
        only=BEST_SAMPLES,
    )  # fmt: skip
    rounds: int = setting(
        4, "maximum number of rounds, each with new responses: first from the base model, then the policy (dpo: with "
        "edit_samples)", 1, 1000,
        group="offline methods", only=(*BEST_SAMPLES, *DIRECT_PREFERENCES),
    )  # fmt: skip

    lora_r: int = setting(8, "rank of the LoRA adapter", 1, 256, group="LoRA")
    lora_alpha: int = setting(16, "LoRA scale: the update is multiplied by lora_alpha / lora_r", 1, 1024, group="LoRA")

    def __post_init__(self) -> None:
        super().__post_init__()
        for item in fields_of(type(self)):
            value = getattr(self, item.name)
            if not item.applies_to(self.algorithm) and value != item.default:
                raise ConfigError(
                    f"{item.name} = {value} has no meaning for {self.algorithm}, only for "
                    f"{', '.join(item.only or ())}. Leave it at {item.default}."
                )
        for is_conflict, message in _conflicts(self):
            if is_conflict:
                raise ConfigError(message)

    @classmethod
    def for_algorithm(cls, algorithm: str, **changes: Any) -> Self:
        """The recommended config of an algorithm, with changes. Raises ConfigError."""
        values = {"algorithm": algorithm} | changes
        return cls.from_dict(cls.recommended(values) | values)

    @classmethod
    def recommended(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Recommended values of the settings that the algorithm uses. Raises ConfigError."""
        algorithm = algorithm_of(values)
        own = dict(spec_of(algorithm).recommended)
        recommended = RECOMMENDED_FOR_ALL | {"kl_budget": recommended_budget(values)} | own
        used = {item.name for item in fields_of(cls) if item.applies_to(algorithm)}
        return {name: value for name, value in recommended.items() if name in used}

    @property
    def spec(self) -> AlgorithmSpec:
        return spec_of(self.algorithm)

    @property
    def kl_control(self) -> KLControlSpec:
        return kl_control_of(self.to_dict())

    @property
    def responses_per_step(self) -> int:
        """Responses per step."""
        return self.batch_size * self.rollouts

    @property
    def is_offline(self) -> bool:
        """Whether the policy learns from fixed texts, not from rollouts."""
        return self.spec.is_offline

    @property
    def updates_per_round(self) -> int:
        """Offline methods that sample: number of updates between two rounds of sampling."""
        return -(-self.steps // self.rounds)

    @property
    def texts_per_round(self) -> int:
        """Rejection sampling: number of prompts of a round, which is also the number of texts that it keeps."""
        return -(-self.updates_per_round * self.label_batch // self.epochs)

    @property
    def uses_value_function(self) -> bool:
        """Whether a value function is trained."""
        return self.spec.value_function == "always" or (
            self.spec.value_function == "as_baseline" and self.baseline == "value"
        )


def _conflicts(c: PolicyConfig) -> list[tuple[bool, str]]:
    """(whether it applies, the error message) for each conflict between settings."""
    has_value_settings = c.value_trunk == "critic" or c.value_warmup > 0
    return [
        (
            c.minibatches > c.responses_per_step,
            f"minibatches = {c.minibatches} exceeds batch_size = {c.responses_per_step}: each update needs at least "
            "one rollout",
        ),
        (
            c.batch_size % c.group_size != 0,
            f"batch_size = {c.batch_size} is not a multiple of group_size = {c.group_size}: every prompt needs a "
            "whole group",
        ),
        (
            c.spec.is_grouped and c.group_size < 2,
            f"group_size = {c.group_size}: {c.algorithm} compares responses to one prompt, so choose at least 2",
        ),
        (
            c.spec.is_single_pass and (c.epochs > 1 or c.minibatches > 1),
            f"epochs = {c.epochs}, minibatches = {c.minibatches}: {c.algorithm} has no probability ratio that could "
            "account for rollouts of an older policy. Set both to 1",
        ),
        (
            c.spec.update == "natural_gradient" and c.value_trunk == "shared",
            f"value_trunk = shared lets the value loss move the policy past {c.algorithm}'s limit. Choose detached or critic",
        ),
        (
            c.value_warmup > 0 and c.value_trunk == "shared",
            f"value_warmup = {c.value_warmup} with value_trunk = shared would move the policy too. Choose detached "
            "or critic",
        ),
        (
            c.critic_init == "reward" and c.value_trunk != "critic",
            f"critic_init = reward needs value_trunk = critic; it is {c.value_trunk}",
        ),
        (
            c.spec.value_function == "as_baseline" and c.baseline != "value" and has_value_settings,
            f"baseline = {c.baseline} has no value function, so value_trunk and value_warmup have no effect. "
            "Choose baseline = value, or leave both at their defaults",
        ),
        (
            c.kl_penalty == "loss" and c.kl_estimator in ("k1", "full"),
            f"kl_estimator = {c.kl_estimator} in the loss: the expected gradient of k1 is 0, and full is not available "
            "in the loss. Choose k2 or k3, or kl_penalty = reward",
        ),
        *kl_conflicts(c.to_dict(), c.responses_per_step),
        (
            c.live and c.kl_budget is None,
            "live = on needs a KL budget, because a reward model of a few labels must not move the policy far. Set kl_budget, "
            "for example to 4",
        ),
        (
            (c.live or c.brake_every > 0) and c.processes > 1,
            f"processes = {c.processes}: a run that makes pairs for people trains in one process. Set processes to 1",
        ),
        (
            c.live and c.critic_init == "reward",
            "critic_init = reward copies a reward model, and with live = on there is none yet. Choose critic_init = fresh",
        ),
        (
            c.spec.loss == "direct_preference" and not c.beta > 0,
            f"beta = 0 leaves {c.algorithm} without a loss: its implicit reward is beta times a log-ratio. "
            "Choose a positive beta",
        ),
        (
            (c.spec.learns_from == "best_samples" or c.edit_samples > 0) and c.rounds > c.steps,
            f"rounds = {c.rounds} exceeds steps = {c.steps}: every round needs at least one update",
        ),
        *_process_conflicts(c),
        (
            c.penalty_kl_min >= c.penalty_kl_max,
            f"penalty_kl_min = {c.penalty_kl_min} is not below penalty_kl_max = {c.penalty_kl_max}",
        ),
    ]


def _process_conflicts(c: PolicyConfig) -> list[tuple[bool, str]]:
    """Conflicts of settings with the number of processes, in the form of `_conflicts`."""
    return [
        (
            c.is_offline and c.processes > 1,
            f"processes = {c.processes}: {c.algorithm} trains in one process. Set processes to 1",
        ),
        (
            c.spec.update == "natural_gradient" and c.processes > 1,
            f"processes = {c.processes}: the line search of {c.algorithm} needs all rows in one process. Set "
            "processes to 1",
        ),
        (
            c.batch_size < c.processes or c.responses_per_step < c.processes * c.minibatches,
            f"batch_size = {c.batch_size} in {c.minibatches} minibatches leaves some of {c.processes} processes "
            "without a response. Raise batch_size or use fewer processes",
        ),
        (c.shard_backbone and c.processes < 2, SHARDING_NEEDS_PROCESSES),
        (
            c.shard_backbone and c.ptx_coef > 0 and c.ptx_batch < c.processes,
            f"ptx_batch = {c.ptx_batch} leaves some of {c.processes} processes without a text, "
            "and shard_backbone needs all of them at every pass. Raise ptx_batch or use fewer processes",
        ),
    ]


#: Settings that can be changed during a run. A value that a person sets is in force, exactly, in every later step until the
#: person sets another one or sets AUTOMATIC, after which the run adapts the setting again (`adapted_settings`).
LIVE_SETTINGS = ("beta", "lr")
AUTOMATIC = "automatic"


def adapted_settings(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The live settings that a run itself changes: beta by a controller, lr by its schedule or the KL budget.

    config: the record of a run's config; a missing setting has its default.
    """
    by_schedule = ("lr",) if config.get("lr_schedule") != "constant" else ()
    return tuple(dict.fromkeys(kl_control_of(config).adapts + by_schedule))


def check_live_setting(config: PolicyConfig, name: str, value: float | str) -> None:
    """Raises ConfigError unless `value` (a number or AUTOMATIC) can be set during a run with this config."""
    if name not in LIVE_SETTINGS:
        raise ConfigError(f'"{name}" cannot be changed during a run; only {" and ".join(LIVE_SETTINGS)} can.')
    if value == AUTOMATIC:
        if name not in adapted_settings(config.to_dict()):
            raise ConfigError(
                f"{name} cannot be {AUTOMATIC}: nothing adapts it in this run. Set a number; the run began with "
                f"{getattr(config, name):g}."
            )
        return
    # What a controller needs at its start does not matter while it is not in use.
    config.replace(**FIXED_BETA_SETTINGS | {name: value})


#: Named presets.
PRESETS: dict[str, dict[str, Any]] = {
    "lab": {},
    "gentle": {"kl_budget": 2.0},
}
#: Of a live run that is started where people label: it lasts as long as they do, so its learning rate must not fall to 0.
LIVE_RUN_SETTINGS: dict[str, Any] = {"steps": 200, "lr_schedule": "constant"}
