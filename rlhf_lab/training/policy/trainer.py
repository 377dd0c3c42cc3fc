"""The trainer of the policy: rollouts in, an updated policy and its numbers out.

One step: sample a batch, score it, penalise the KL to the frozen reference per token, estimate advantages (estimation.py), then
update by the algorithm of the config: gradient descent on its loss (update.py, objectives.py), or a natural step within
a trust region (trpo_update.py).

Every random draw is derived from the seed and the step, so on a CPU a resumed run repeats the uninterrupted one bit for bit. The
trainer knows no database: results go to the caller, and `on_progress` is called between pieces of work (it may raise to stop).
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Sample, StepResult
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.policy import LIVE_SETTINGS, PolicyConfig
from rlhf_lab.core.kl import AdaptiveKL, AdaptivePenalty, FixedKL
from rlhf_lab.core.reward_scaling import RunningMoments
from rlhf_lab.errors import ConfigError, TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import Batch, make_batch
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.sampling.sampler import Sampled, sample, uniforms
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed, RowSlice
from rlhf_lab.training.optimizers import make_fused_adam
from rlhf_lab.training.policy import batching, train_state, trpo_update, update
from rlhf_lab.training.policy.estimation import build_rollout
from rlhf_lab.training.policy.invariants import check_finite, check_first_ratio, check_metrics, check_process_count
from rlhf_lab.training.policy.metrics import UpdateStats, reset_peak_memory, step_metrics
from rlhf_lab.training.policy.objectives import AdaptiveCoefficients
from rlhf_lab.training.policy.ptx import PtxObjective
from rlhf_lab.training.policy.rollout import CRITIC_ADAPTER, PolicyModel, Rollout, Scorer, evaluate_batch
from rlhf_lab.training.policy.token_traces import token_records

pass


TextOrIds = str | Sequence[int]


@dataclass(frozen=True)
class PolicyTask:
    """What a policy is trained for: prompts to write for, who scores, and (where a judge labelled) the gold score.

    sample_prompts are the fixed prompts whose samples are shown over the run. ptx_texts: what PPO-ptx mixes in. Without prompts
    or a scorer only `PolicyTrainer.step` trains.
    """

    prompts: Sequence[str] = ()
    scorer: Scorer | None = None
    sample_prompts: Sequence[str] = ()
    gold: Callable[[str], float] | None = None
    ptx_texts: Sequence[str] = ()


class PolicyTrainer:
    """Trains the adapter `adapter` of the backbone on a task.

    Call `run_step` until `steps_done == config.steps`; or `step` with responses and scores of your own. `state` and
    `load_state` carry everything a resume needs. `knobs` (beta, lr) may be set between steps.
    """

    def __init__(
        self, backbone: Backbone, adapters: Adapters, task: PolicyTask, config: PolicyConfig, *, adapter: str = "policy",
        on_progress: ProgressCallback = no_progress, distributed: Distributed = SINGLE_PROCESS,
    ) -> None:  # fmt: skip
        self.backbone, self.adapters, self.task, self.config, self.on_progress = (
            backbone,
            adapters,
            task,
            config,
            on_progress,
        )
        self.distributed = distributed
        check_process_count(distributed.world_size, config)
        self.prompt_ids = [backbone.encode_prompt(prompt) for prompt in task.prompts]
        adapters.add(adapter, r=config.lora_r, alpha=config.lora_alpha,
                     seed=derive_seed(config.seed, "policy adapter"), trainable=True)  # fmt: skip
        value_head = ValueHead(backbone.hidden_size).to(backbone.device)
        self.policy = PolicyModel(backbone, adapters, adapter, value_head, config.value_trunk)
        self.parameters = list(adapters.parameters(adapter))
        if config.uses_value_function:
            self.parameters += value_head.parameters()
        self.critic_parameters = (
            add_critic(adapters, value_head, task.scorer, config) if config.value_trunk == "critic" else []
        )
        self.parameters += self.critic_parameters
        self.optimizer = make_fused_adam(torch.optim.Adam, self.parameters, lr=config.lr, eps=config.adam_eps)
        self.kl_controller: FixedKL | AdaptiveKL = (
            FixedKL(config.beta)
            if config.kl_controller == "fixed"
            else AdaptiveKL(config.beta, config.kl_target, config.kl_horizon)
        )
        self.penalty_controller = (
            AdaptivePenalty(config.penalty_coef, config.penalty_kl_min, config.penalty_kl_max)
            if config.algorithm == "ppo_penalty"
            else None
        )
        self.score_moments = RunningMoments()
        self.ptx = (
            PtxObjective(self.policy, task.ptx_texts, config, self._call_on_progress) if config.ptx_coef > 0 else None
        )
        self.lr = config.lr
        self.steps_done = self.episodes = 0

    def _call_on_progress(self) -> None:
        self.on_progress()

    @property
    def coefficients(self) -> AdaptiveCoefficients:
        """The weights of the loss that steer themselves."""
        return AdaptiveCoefficients(
            self.kl_controller.value, self.penalty_controller.value if self.penalty_controller is not None else 0.0
        )

    def set_live_setting(self, name: str, value: float) -> None:
        """Change beta or lr from the next step on. Raises ConfigError for another name or a value out of range."""
        if name not in LIVE_SETTINGS:
            raise ConfigError(
                f'"{name}" cannot be changed while a run goes on; only {" and ".join(LIVE_SETTINGS)} can.'
            )
        self.config.replace(**{name: value})
        if name == "beta":
            self.kl_controller.value = value
        else:
            self.lr = value

    def set_scorer(self, scorer: Scorer) -> None:
        """Score with another reward model from the next step on."""
        self.task = dataclasses.replace(self.task, scorer=scorer)

    def run_step(self) -> StepResult:
        """Sample, score, learn. Raises NotFiniteError or SelfCheckError; the step then does not count."""
        if not self.task.prompts:
            raise TrainingError("there are no prompts to train on. Add prompts to the project.")
        reset_peak_memory(self.backbone.device)
        start_time, batch_size = time.monotonic(), self.config.batch_size
        prompts = [self.prompt_ids[i] for i in self.prompt_indices(self.steps_done)]
        sampled = Sampled([], [])
        for start in range(0, len(prompts), batch_size):
            local_slice = self.distributed.shard_slice(len(prompts[start : start + batch_size]))
            local_prompts = prompts[start : start + batch_size][local_slice]
            _, chunk = self.sample_responses(
                local_prompts, "rollout", self.steps_done, offset=start + local_slice.start
            )
            chunk = Sampled(self.distributed.all_gather(chunk.tokens), self.distributed.all_gather(chunk.logprobs))
            sampled = Sampled(sampled.tokens + chunk.tokens, sampled.logprobs + chunk.logprobs)
        return self.train_on_samples(prompts, sampled, time.monotonic() - start_time)

    def sample_responses(
        self, prompts: list[list[int]], *seed_path: str | int, offset: int = 0
    ) -> tuple[list[int], Sampled]:
        """The seed of each row, and its response by the policy as it is now; row i draws from its seed alone.

        first: the number of the first row.
        """
        seeds = [derive_seed(self.config.seed, *seed_path, offset + row) for row in range(len(prompts))]
        uniform = uniforms(seeds, self.config.max_new_tokens)
        with self.adapters.using(self.policy.adapter, merged=True):
            return seeds, sample(
                self.backbone, prompts, uniform, temperature=self.config.temperature, on_progress=self.on_progress
            )

    def train_on_samples(self, prompts: list[list[int]], sampled: Sampled, rollout_seconds: float = 0.0) -> StepResult:
        """One optimisation step on given rollouts: score them, then update."""
        start_time = time.monotonic()

        def local_scores(local_slice: RowSlice) -> Tensor:
            return self.scorer.scores(prompts[local_slice], sampled.tokens[local_slice], self.on_progress)

        scores = self.distributed.map_rows(len(prompts), local_scores).float().to(self.backbone.device)
        batch = make_batch(self.backbone, prompts, sampled.tokens)
        return self.train_on_scored(batch, scores, sampled.logprobs, (rollout_seconds, start_time))

    def step(
        self, queries: Sequence[TextOrIds], responses: Sequence[TextOrIds], scores: Sequence[float] | Tensor
    ) -> StepResult:
        """One optimisation step on responses that you had written and scored: any reward function will do.

        Args:
            queries: texts or token ids. For rloo and grpo each stands group_size times in a row.
            responses: one a query, by the policy as it is now, the stop token included: `sample_responses` samples them. A text gets
                its stop token here.
            scores: one a response, in any unit; beta is in that unit a nat.

        Raises ConfigError for lists of different lengths or too many for `kl_horizon`, ModelError for an empty or too long
        text, NotFiniteError for scores, losses or gradients that are not finite: no such gradient is applied, minibatches
        before it have been; `state` and `load_state` around a step undo those.
        """
        start_time, backbone = time.monotonic(), self.backbone
        reset_peak_memory(backbone.device)
        if not len(queries) == len(responses) == len(scores) > 0:
            raise ConfigError(
                f"{len(queries)} queries, {len(responses)} responses, {len(scores)} scores: pass as many of each, at least one."
            )
        self.kl_controller.check_batch_size(len(scores))
        prompts = [backbone.encode_prompt(x) if isinstance(x, str) else list(x) for x in queries]
        tokens = [backbone.encode_response(x) if isinstance(x, str) else list(x) for x in responses]
        score_tensor = torch.as_tensor(scores, dtype=torch.float32).to(backbone.device)
        return self.train_on_scored(make_batch(backbone, prompts, tokens), score_tensor, None, (0.0, start_time))

    def train_on_scored(
        self,
        batch: Batch,
        scores: Tensor,
        sampler_logprobs: Sequence[Sequence[float]] | None,
        timing: tuple[float, float],
    ) -> StepResult:
        """Update on scored rows, check and tell. since: seconds of the rollout, and when scoring began."""
        rollout_seconds, start_time = timing
        rollout = self.prepare_rollout(batch, scores, sampler_logprobs)
        initial_metrics = {"objective/scores": float(scores.mean()), "objective/kl": float(rollout.kl.sum())}
        check_finite(initial_metrics, self.steps_done + 1)  # before anything learns from it
        scored_time, response_count = time.monotonic(), len(scores)
        beta, lr = self.kl_controller.value, self.scheduled_lr()
        stats = self.update(rollout, lr)
        metrics = step_metrics(rollout, stats, beta=beta, lr=lr, episode=self.episodes + response_count)
        if self.task.gold is not None:
            texts = [
                self.backbone.decode(response[response_mask].tolist())
                for response, response_mask in zip(batch.responses, batch.mask, strict=True)
            ]
            metrics["objective/gold"] = sum(map(self.task.gold, texts)) / response_count
        self.check_metrics(metrics)
        self.kl_controller.update(metrics["objective/kl"], response_count)
        self.steps_done, self.episodes = self.steps_done + 1, self.episodes + response_count
        end_time = time.monotonic()
        metrics |= {
            "time/rollout": rollout_seconds,
            "time/score": scored_time - start_time,
            "time/update": end_time - scored_time,
            "eps": response_count / (end_time - start_time + rollout_seconds),
        }
        tokens = token_records(self.policy, rollout, self.config) if self.config.token_rows else []
        samples_due = self.steps_done % self.config.sample_every == 0 or self.steps_done == self.config.steps
        return StepResult(self.steps_done, metrics, tokens, self.samples() if samples_due else [])

    @property
    def scorer(self) -> Scorer:
        """Raises TrainingError where the task has none."""
        if self.task.scorer is None:
            raise TrainingError("nothing scores the responses. Give the task a scorer, or call `step` with scores.")
        return self.task.scorer

    def prompt_indices(self, step: int) -> list[int]:
        """The prompts of a step, by their number."""
        return batching.prompt_indices(step, len(self.prompt_ids), self.config)

    def minibatches(self, epoch: int, batch: Batch) -> Iterator[list[Tensor]]:
        """The minibatches of an epoch of the coming step, each a list of micro-batches."""
        return batching.minibatches(self.steps_done, epoch, batch, self.config, self.distributed.world_size)

    def prepare_rollout(
        self, batch: Batch, scores: Tensor, sampler_logprobs: Sequence[Sequence[float]] | None
    ) -> Rollout:
        """Log-probabilities, values, KL, rewards and advantages of a batch, before any update."""
        score_scale = self.score_moments.update(scores) if self.config.scale_scores else 1.0
        micro_batches = [
            micro_batch for minibatch in self.minibatches(0, batch) for micro_batch in self.distributed.shard(minibatch)
        ]
        evaluated = evaluate_batch(
            self.policy, batch, scores, sampler_logprobs, micro_batches, self.config, self.on_progress, self.distributed
        )
        return build_rollout(evaluated, self.kl_controller.value, self.config, score_scale)

    def update(self, rollout: Rollout, lr: float) -> UpdateStats:
        """The updates of one step."""
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = lr
        if self.config.algorithm == "trpo":
            return trpo_update.trpo_update(self, rollout)
        return update.gradient_update(self, rollout)

    def scheduled_lr(self) -> float:
        """lr of the coming step; beyond the last step of the config a schedule stays where it ended."""
        fraction_done = min(1.0, self.steps_done / self.config.steps)
        if self.config.lr_schedule == "linear":
            return self.lr * (1 - fraction_done)
        return (
            self.lr
            if self.config.lr_schedule == "constant"
            else self.lr * 0.5 * (1 + math.cos(math.pi * fraction_done))
        )

    def check_first_ratio(self, deviation: Tensor | None) -> None:
        """Raises SelfCheckError unless the ratios before the first update are 1."""
        max_deviation = float(deviation) if deviation is not None else 0.0
        check_first_ratio(max_deviation, self.backbone.model.dtype, self.steps_done + 1)

    def check_metrics(self, metrics: dict[str, float]) -> None:
        """Raises NotFiniteError or SelfCheckError for numbers that cannot be right."""
        check_metrics(metrics, self.backbone.model.dtype, self.steps_done + 1)

    def samples(self) -> list[Sample]:
        """Generations for the fixed prompts, always with the same uniforms; none in a process that does not lead, unless
        its part of the weights is needed for them."""
        prompts = list(self.task.sample_prompts)
        if not prompts or not (self.distributed.is_main_process or self.backbone.shards):
            return []
        prompt_ids = [self.backbone.encode_prompt(prompt) for prompt in prompts]
        seeds, sampled = self.sample_responses(prompt_ids, "sample")
        scores = self.scorer.scores(prompt_ids, sampled.tokens, self.on_progress)
        texts = [self.backbone.decode(response) for response in sampled.tokens]
        gold = self.task.gold
        return [
            Sample(prompt, seed, text, float(score), gold(text) if gold else None)
            for prompt, seed, text, score in zip(prompts, seeds, texts, scores, strict=True)
        ]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a resume needs, copied: tensors, and plain numbers."""
        return train_state.capture_state(self)

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `state` returned. Raises ModelError if the adapter does not fit."""
        train_state.restore_state(self, tensors, numbers)


def add_critic(adapters: Adapters, head: ValueHead, scorer: object, config: PolicyConfig) -> list[nn.Parameter]:
    """Add the critic's adapter and return its tensors; begun as the reward model, the head starts as that one's too.

    What the head says of a single state is what the values start as; their mean over a response is its score where mean pooling
    reads nothing besides (last_weight 0).
    Raises TrainingError where there is no reward model with an adapter to begin with.
    """
    if config.critic_init == "fresh":
        adapters.add(
            CRITIC_ADAPTER,
            r=config.lora_r,
            alpha=config.lora_alpha,
            seed=derive_seed(config.seed, "critic"),
            trainable=True,
        )
        return adapters.parameters(CRITIC_ADAPTER)
    if not isinstance(scorer, RewardModel) or scorer.adapter is None:
        raise TrainingError(
            "critic_init = reward, but what scores here is no reward model with an adapter. Choose critic_init = fresh."
        )
    adapters.copy(scorer.adapter, CRITIC_ADAPTER, trainable=True)
    with torch.no_grad():
        weight, bias = scorer.head.linear_map()
        head.linear.weight.copy_(weight)
        head.linear.bias.copy_(bias)
    return adapters.parameters(CRITIC_ADAPTER)
