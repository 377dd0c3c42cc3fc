"""The settings of a run or of a reward model as arguments of TRL's trainers, and the settings that TRL has no argument for.

Read in the source of TRL 1.16.0; `tests/exporters/test_trl_recipe.py` checks that every setting is here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig

TRL_VERSION = "1.16.0"
DEFAULT_GROUP = 4  # responses per prompt for algorithms that compare none, as in the lab's recommended settings of grpo
UNCLIPPED = 1e9
LOSS_TYPES = {"token": "dapo", "trajectory": "grpo", "sum": "luspo"}


class Argument(NamedTuple):
    """An argument of TRL's config, and the settings that it translates (none: one that only makes TRL compute as the lab)."""

    name: str
    value: Any
    settings: tuple[str, ...] = ()


class Rule(NamedTuple):
    """Settings without an argument. neutral: values of the first of them for which nothing is lost; empty: always lost."""

    settings: tuple[str, ...]
    neutral: tuple[Any, ...]
    reason: str


@dataclass(frozen=True)
class TrlSettings:
    """Settings for TRL.

    Attributes:
        trainer: "GRPO", "RLOO", "DPO" or "Reward", as in GRPOTrainer and GRPOConfig.
        arguments: of its config.
        lora: rank and alpha.
        elsewhere: settings that are no arguments of the config, by the place that has them.
        left_out: sentences about settings that are not translated.
        updates_per_step: optimizer updates, which TRL counts as steps, in one step of the lab.
        prompts_per_step: different prompts that a step of TRL needs; 0 for trainers that sample nothing.
        replacement: what trains in place of an algorithm that TRL has not, and what that means; "" for others.
    """

    trainer: str
    arguments: tuple[Argument, ...]
    lora: tuple[int, int]
    elsewhere: tuple[Argument, ...]
    left_out: tuple[str, ...]
    updates_per_step: int = 1
    prompts_per_step: int = 0
    replacement: str = ""


#: They change what is stored or how the work is divided, not what is learned.
WITHOUT_EFFECT = ("processes", "shard_backbone", "sample_every", "sample_count", "token_rows")
_KL_CONTROL = Rule(("kl_budget", "kl_budget_role"), (None,), "the lab adapts the learning rate and beta to this budget and "
    "limits each update; TRL keeps both as set, so watch the KL")  # fmt: skip
_ONLINE_RULES = (
    _KL_CONTROL,
    Rule(("kl_controller", "kl_target", "kl_horizon"), ("fixed",), "TRL's beta is constant"),
    Rule(
        ("gamma", "lam", "advantage", "nstep", "score_placement", "value_trunk", "critic_init", "value_warmup", "vf_coef",
         "cliprange_value", "value_target", "bootstrap_cut"), (), "TRL has no value function any more: it compares the responses "
        "to one prompt with each other, so all tokens of a response get the same advantage",
    ),
    Rule(("credit", "baseline"), (), "TRL's baseline is the mean of the other responses to the prompt"),
    Rule(("penalty_coef", "penalty_kl_min", "penalty_kl_max"), (), "TRL clips the ratio instead (epsilon)"),
    Rule(("max_kl", "cg_iters", "cg_damping", "fisher_rows"), (), "TRL has no natural gradient; it takes Adam's steps with lr"),
    Rule(("target_kl",), (None,), "TRL does not end a step's updates early"),
    Rule(("ratio_threshold",), (), "TRL skips no updates"),
    Rule(("ptx_coef", "ptx_batch"), (0.0,), "TRL mixes in no pretraining texts"),
    Rule(("scale_scores",), (False,), "rewards are not divided by their running standard deviation"),
    Rule(("whiten_rewards",), (False,), "TRL does not scale rewards of tokens"),
    Rule(("live",), (False,), "the reward does not learn any more; it is the reward model that the run started with"),
    Rule(("brake_every",), (0,), "nobody is asked for blind answers during the training"),
)  # fmt: skip
_RLOO_RULES = (
    Rule(("kl_estimator",), ("k1",), "RLOOTrainer estimates the KL by k1"),
    Rule(("kl_penalty",), ("reward",), "RLOOTrainer subtracts the KL from the reward"),
    Rule(("entropy_coef",), (0.0,), "RLOOTrainer has no entropy bonus"),
    Rule(
        ("loss_mean",), ("sum",), "RLOOTrainer's loss is the sum over the tokens of a response, the mean over responses"
    ),
)
_DPO_RULES = (
    _KL_CONTROL,
    Rule(("temperature",), (1.0,), "DPOTrainer does not divide the logits by a temperature"),
    Rule(("max_new_tokens", "batch_size"), (), "DPOTrainer samples nothing and measures no KL"),
    Rule(("edit_samples", "rounds"), (0,), "DPOTrainer samples no responses to compare edited answers with"),
    Rule(("label_smoothing",), (0.0,), "DPOTrainer's losses sigmoid and ipo have no label smoothing"),
)
_REWARD_RULES = (
    Rule(("pooling", "last_weight"), ("last",), "TRL's reward model reads the last token's state, not the mean of the response"),
    Rule(("layers",), ("last",), "TRL's reward model reads the last layer only"),
    Rule(("ensemble", "ensemble_score", "ensemble_penalty"), (1,), "one head is trained"),
    Rule(("warm_start", "ridge"), (False,), "the head starts from random weights, not from a fit on frozen features, so a few "
         "passes over few labels learn less than in the lab"),
    Rule(("early_stopping",), (False,), "TRL trains all passes"),
    Rule(("folds",), (0,), "nothing is held out, so no accuracy on unseen labels is measured"),
    Rule(("label_smoothing",), (0.0,), "RewardTrainer has no label smoothing"),
    Rule(("score_l2",), (0.0,), "RewardTrainer has no penalty on the squares of scores"),
    *(Rule((name,), ("as_labelled",), "this attribute counts as the labels reward it")
      for name in ("length", "cut", "lists", "exclamations", "copied")),
)  # fmt: skip


def online_settings(config: PolicyConfig, dtype: str) -> TrlSettings:
    """For an algorithm that samples: RLOOTrainer if its loss has no probability ratio, else GRPOTrainer.

    The number of responses is rounded down to one that TRL can divide into groups and minibatches. dtype: of the weights.
    """
    group = config.group_size if config.group_size > 1 else DEFAULT_GROUP
    unit = math.lcm(group, config.minibatches)
    responses = max(unit, config.responses_per_step // unit * unit)
    minibatch, updates = responses // config.minibatches, config.epochs * config.minibatches
    rows = _rows_per_pass(minibatch, config.micro_batch)
    arguments = [
        Argument("max_steps", config.steps * updates, ("steps",)),
        *_optimizer_arguments(config, config.checkpoint_every * updates),
        Argument("generation_batch_size", responses, ("batch_size", "rollouts")),
        Argument("num_generations", group, ("group_size",)),
        Argument("num_iterations", config.epochs, ("epochs",)),
        Argument("per_device_train_batch_size", rows, ("micro_batch",)),
        Argument("gradient_accumulation_steps", minibatch // rows, ("minibatches",)),
        Argument("max_completion_length", config.max_new_tokens, ("max_new_tokens",)),
        Argument("temperature", config.temperature, ("temperature",)),
        Argument("beta", config.beta, ("beta",)),
    ]
    is_rloo = config.spec.loss == "log_probability"
    if is_rloo:
        arguments.append(Argument("normalize_advantages", config.whiten_advantages, ("whiten_advantages",)))
    else:
        arguments += _grpo_arguments(config)
    left_out = list(_left_out(config, rules_of("RLOO" if is_rloo else "GRPO")))
    left_out += [] if is_rloo else _kl_differences(config, updates)
    if config.spec.advantage == "grpo" and config.whiten_advantages:
        left_out.append("`whiten_advantages = True`: GRPOTrainer scales the advantages of each group only.")
    elif config.whiten_advantages and not is_rloo:
        left_out.append(
            "`whiten_advantages = True`: TRL subtracts the mean of the group's rewards and divides by the standard deviation of "
            "the batch's (`scale_rewards`). This is not whitening, which the lab does with the advantages of all tokens."
        )
    if config.group_size == 1:
        left_out.append(
            f"`group_size = 1`: TRL needs several responses to a prompt, here {group}, so a step has fewer prompts."
        )
    if responses != config.responses_per_step:
        left_out.append(f"{config.responses_per_step} responses per step: TRL's groups and updates divide {responses}.")
    return TrlSettings(
        "RLOO" if is_rloo else "GRPO",
        (*arguments, *_fixed_arguments(dtype)),
        (config.lora_r, config.lora_alpha),
        tuple(Argument("reward.py", getattr(config, name), (name,)) for name in ("score_clip", "missing_eos_penalty")),
        tuple(left_out),
        updates,
        responses // group,
        _replacement(config, "RLOOTrainer" if is_rloo else "GRPOTrainer", group),
    )


def _replacement(config: PolicyConfig, trainer: str, group: int) -> str:
    spec = config.spec
    if spec.is_grouped:
        return ""
    gone = " any more (the last was in 1.12)" if config.algorithm == "ppo" else ""
    had = "no value function" if spec.value_function == "always" else "another baseline"
    same = "loss" if spec.is_single_pass else "clipped probability ratio" if spec.clips else ""
    step = ""
    if spec.update == "natural_gradient":
        step = " Its steps are Adam's, with a clipped probability ratio, not those of a natural gradient in a trust region."
    elif spec.loss == "ratio_and_penalty":
        step = " It clips the probability ratio, where the run had a penalty on the KL to the policy before the step."
    return (
        f"TRL has no trainer for {config.algorithm}{gone}. This folder trains with {trainer} instead. The same: the model, the "
        f"prompts, the reward{f', the {same}' if same else ''} and the settings in the first table below. Not the same: there is "
        f"{had}: each response is compared with the other {group - 1} to its prompt, and all its tokens get the same "
        f"advantage.{step} So the curves differ, and `learning_rate` and `beta` may have to be retuned; the last section "
        f"lists every setting that is lost. To train with {config.algorithm} itself in a script: `rlhf_lab.api.Trainer`."
    )


def _grpo_arguments(config: PolicyConfig) -> list[Argument]:
    is_grpo = config.spec.advantage == "grpo"
    scales = config.group_scale if is_grpo else config.whiten_advantages
    arguments = [
        Argument("epsilon", UNCLIPPED if config.cliprange is None else config.cliprange, ("cliprange",)),
        Argument("loss_type", LOSS_TYPES[config.loss_mean], ("loss_mean",)),
        Argument(
            "scale_rewards",
            ("group" if is_grpo else "batch") if scales else "none",
            ("group_scale", "whiten_advantages"),
        ),
        Argument("entropy_coef", config.entropy_coef, ("entropy_coef",)),
        Argument(
            "use_bias_correction_kl",
            config.kl_penalty == "reward" or config.kl_estimator == "k2",
            ("kl_penalty", "kl_estimator"),
        ),
    ]
    return arguments if config.spec.clips else arguments[1:]


def _kl_differences(config: PolicyConfig, updates: int) -> list[str]:
    """How GRPOTrainer's KL to the reference differs from the lab's. updates: of a step.

    It adds beta times k3 to the loss of each token, with use_bias_correction_kl times the probability ratio r. For
    d = log-probability of the policy minus that of the reference, the gradient of r (exp(-d) - 1 + d) is r d times that of the
    log-probability. That of k2 = d^2 / 2 is d times it: the same in the first update of a step, where r = 1.
    """
    if config.kl_penalty == "reward":
        return [
            f"`kl_penalty = reward`, `kl_estimator = {config.kl_estimator}`: GRPOTrainer adds beta times the KL to the loss of "
            "each token. The lab subtracts it from the reward, so the same beta has a different effect."
        ]
    if config.kl_estimator == "k2" and updates > 1:
        return [
            f"`kl_estimator = k2`: from the second of the {updates} updates of a step on, GRPOTrainer multiplies the gradient of "
            "the KL by the probability ratio; the lab does not."
        ]
    return []


def dpo_settings(config: PolicyConfig, dtype: str) -> TrlSettings:
    """For DPOTrainer. config: of dpo."""
    rows = _rows_per_pass(config.label_batch, config.micro_batch)
    arguments = (
        Argument("max_steps", config.steps, ("steps",)),
        *_optimizer_arguments(config, config.checkpoint_every),
        Argument("per_device_train_batch_size", rows, ("micro_batch",)),
        Argument("gradient_accumulation_steps", config.label_batch // rows, ("label_batch",)),
        Argument("beta", config.beta, ("beta",)),
        Argument("loss_type", [config.dpo_loss], ("dpo_loss",)),
        Argument("max_length", None),
        *_fixed_arguments(dtype),
    )
    left_out = list(_left_out(config, _DPO_RULES))
    if config.dpo_loss == "ipo":
        left_out.append(
            "`dpo_loss = ipo`: TRL divides the log-ratios by the lengths of the texts, so it needs a larger beta."
        )
    return TrlSettings("DPO", arguments, (config.lora_r, config.lora_alpha), (), tuple(left_out))


def reward_settings(config: RewardConfig) -> TrlSettings:
    """For RewardTrainer, in float32. The margins of labels (setting margin) are a column of the data."""
    arguments = (
        Argument("num_train_epochs", max(1, config.epochs), ("epochs",)),
        Argument("learning_rate", config.lr, ("lr",)),
        Argument("lr_scheduler_type", "linear"),
        Argument("weight_decay", config.weight_decay, ("weight_decay",)),
        Argument("max_grad_norm", config.max_grad_norm, ("max_grad_norm",)),
        Argument("seed", config.seed, ("seed",)),
        Argument("per_device_train_batch_size", config.batch_size, ("batch_size",)),
        Argument("center_rewards_coefficient", config.centering or None, ("centering",)),
        Argument("max_length", None),
        *_fixed_arguments("float32"),
    )
    margin = Argument("column margin of the data, for labels with a strength", config.margin, ("margin",))
    left_out = list(_left_out(config, _REWARD_RULES))
    if config.epochs == 0:
        left_out.append(
            "`epochs = 0`: the lab trains only the head; TRL trains the adapter as well, here for one pass."
        )
    return TrlSettings("Reward", arguments, (config.lora_r, config.lora_alpha), (margin,), tuple(left_out))


def rules_of(trainer: str) -> tuple[Rule, ...]:
    """The rules for settings without an argument, by trainer."""
    return {
        "GRPO": _ONLINE_RULES,
        "RLOO": _ONLINE_RULES + _RLOO_RULES,
        "DPO": _DPO_RULES,
        "Reward": _REWARD_RULES,
    }[trainer]


def _optimizer_arguments(config: PolicyConfig, save_steps: int) -> list[Argument]:
    return [
        Argument("learning_rate", config.lr, ("lr",)),
        Argument("lr_scheduler_type", config.lr_schedule, ("lr_schedule",)),
        Argument("adam_epsilon", config.adam_eps, ("adam_eps",)),
        Argument("weight_decay", 0.0),
        Argument("max_grad_norm", config.max_grad_norm, ("max_grad_norm",)),
        Argument("seed", config.seed, ("seed",)),
        Argument("save_steps", save_steps, ("checkpoint_every",)),
    ]


def _fixed_arguments(dtype: str) -> tuple[Argument, ...]:
    return (
        Argument("model_init_kwargs", {"dtype": dtype}),
        Argument("bf16", value=False),  # TRL's default casts every computation to bfloat16
        Argument("disable_dropout", value=True),
        Argument("gradient_checkpointing", value=False),
        Argument("logging_steps", 1),
        Argument("report_to", "none"),
    )


def _rows_per_pass(rows: int, limit: int) -> int:
    """The largest divisor of `rows` up to the limit."""
    return max(count for count in range(1, min(rows, limit) + 1) if rows % count == 0)


def _left_out(config: PolicyConfig | RewardConfig, rules: Iterable[Rule]) -> Iterable[str]:
    used = {
        item.name
        for item in fields_of(type(config))
        if isinstance(config, RewardConfig) or item.applies_to(config.algorithm)
    }
    for rule in rules:
        names = [name for name in rule.settings if name in used]
        if names and getattr(config, names[0]) not in rule.neutral:
            values = ", ".join(f"`{name} = {getattr(config, name)}`" for name in names)
            yield f"{values}: {rule.reason}."
