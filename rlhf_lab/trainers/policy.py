"""The trainer of the policy: rollouts in, an updated policy and its numbers out.

One step: sample a batch, score it, penalise the KL to the frozen reference per token, estimate advantages (estimates.py), then
update by the algorithm of the config: gradient descent on its loss (gradient_step.py, objectives.py), or a natural step within
a trust region (natural_step.py).

Every random draw is derived from the seed and the step, so on a CPU a resumed run repeats the uninterrupted one bit for bit. The
trainer knows no database: results go to the caller, and `tick` is called between pieces of work (it may raise to stop).
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.config import KNOBS, PolicyConfig
from rlhf_lab.core.kl import AdaptiveKL, AdaptivePenalty, FixedKL
from rlhf_lab.core.score_shaping import RunningMoments
from rlhf_lab.errors import ConfigError, TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Sampled, Tick, no_tick, sample, uniforms
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.rows import Rows, make_rows
from rlhf_lab.records import Sample, StepResult
from rlhf_lab.seeds import derive
from rlhf_lab.trainers import gradient_step, natural_step, order, policy_state
from rlhf_lab.trainers.adam import fused
from rlhf_lab.trainers.critic import add_critic
from rlhf_lab.trainers.estimates import shaped
from rlhf_lab.trainers.group import ALONE, Group, Span
from rlhf_lab.trainers.measure import measure
from rlhf_lab.trainers.metrics import UpdateStats, forget_peak, step_metrics
from rlhf_lab.trainers.objectives import Weights
from rlhf_lab.trainers.pretraining import Pretraining
from rlhf_lab.trainers.rollout import Policy, Rollout, Scorer
from rlhf_lab.trainers.selfchecks import check_finite, check_first_ratio, check_group, check_metrics
from rlhf_lab.trainers.token_records import token_records

Text = str | Sequence[int]


@dataclass(frozen=True)
class Task:
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
        self, backbone: Backbone, adapters: Adapters, task: Task, config: PolicyConfig, *, adapter: str = "policy",
        tick: Tick = no_tick, group: Group = ALONE,
    ) -> None:  # fmt: skip
        self.backbone, self.adapters, self.task, self.config, self.tick = backbone, adapters, task, config, tick
        self.group = group
        check_group(group.size, config)
        self.prompt_ids = [backbone.encode_prompt(prompt) for prompt in task.prompts]
        adapters.add(adapter, r=config.lora_r, alpha=config.lora_alpha,
                     seed=derive(config.seed, "policy adapter"), trainable=True)  # fmt: skip
        head = ValueHead(backbone.hidden_size).to(backbone.device)
        self.policy = Policy(backbone, adapters, adapter, head, config.value_trunk)
        self.parameters = list(adapters.parameters(adapter))
        if config.uses_values:
            self.parameters += head.parameters()
        self.critic = add_critic(adapters, head, task.scorer, config) if config.value_trunk == "critic" else []
        self.parameters += self.critic
        self.optimiser = fused(torch.optim.Adam, self.parameters, lr=config.lr, eps=config.adam_eps)
        self.controller: FixedKL | AdaptiveKL = (
            FixedKL(config.beta)
            if config.kl_controller == "fixed"
            else AdaptiveKL(config.beta, config.kl_target, config.kl_horizon)
        )
        self.penalty = (
            AdaptivePenalty(config.penalty_coef, config.penalty_kl_min, config.penalty_kl_max)
            if config.algorithm == "ppo_penalty"
            else None
        )
        self.moments = RunningMoments()
        self.pretraining = Pretraining(self.policy, task.ptx_texts, config, self._tick) if config.ptx_coef > 0 else None
        self.lr = config.lr
        self.steps_done = self.episodes = 0

    def _tick(self) -> None:
        self.tick()

    @property
    def weights(self) -> Weights:
        """The weights of the loss that steer themselves."""
        return Weights(self.controller.value, self.penalty.value if self.penalty is not None else 0.0)

    def set_knob(self, name: str, value: float) -> None:
        """Change beta or lr from the next step on. Raises ConfigError for another name or a value out of range."""
        if name not in KNOBS:
            raise ConfigError(f'"{name}" cannot be changed while a run goes on; only {" and ".join(KNOBS)} can.')
        self.config.replace(**{name: value})
        if name == "beta":
            self.controller.value = value
        else:
            self.lr = value

    def use_scorer(self, scorer: Scorer) -> None:
        """Score with another reward model from the next step on."""
        self.task = dataclasses.replace(self.task, scorer=scorer)

    def run_step(self) -> StepResult:
        """Sample, score, learn. Raises NotFiniteError or SelfCheckError; the step then does not count."""
        if not self.task.prompts:
            raise TrainingError("there are no prompts to train on. Add prompts to the project.")
        forget_peak(self.backbone.device)
        begun, size = time.monotonic(), self.config.batch_size
        prompts = [self.prompt_ids[i] for i in self.prompts_of(self.steps_done)]
        sampled = Sampled([], [])
        for first in range(0, len(prompts), size):
            mine = self.group.slice(len(prompts[first : first + size]))
            own = prompts[first : first + size][mine]
            _, some = self.write(own, "rollout", self.steps_done, first=first + mine.start)
            some = Sampled(self.group.joined(some.tokens), self.group.joined(some.logprobs))
            sampled = Sampled(sampled.tokens + some.tokens, sampled.logprobs + some.logprobs)
        return self.learn(prompts, sampled, time.monotonic() - begun)

    def write(self, prompts: list[list[int]], *purpose: str | int, first: int = 0) -> tuple[list[int], Sampled]:
        """The seed of each row, and its response by the policy as it is now; row i draws from its seed alone.

        first: the number of the first row.
        """
        seeds = [derive(self.config.seed, *purpose, first + row) for row in range(len(prompts))]
        uniform = uniforms(seeds, self.config.max_new_tokens)
        with self.adapters.using(self.policy.adapter, merged=True):
            return seeds, sample(self.backbone, prompts, uniform, temperature=self.config.temperature, tick=self.tick)

    def learn(self, prompts: list[list[int]], sampled: Sampled, rollout_seconds: float = 0.0) -> StepResult:
        """One optimisation step on given rollouts: score them, then update."""
        begun = time.monotonic()

        def said(mine: Span) -> Tensor:
            return self.scorer.scores(prompts[mine], sampled.tokens[mine], self.tick)

        scores = self.group.rows(len(prompts), said).float().to(self.backbone.device)
        rows = make_rows(self.backbone, prompts, sampled.tokens)
        return self.advance(rows, scores, sampled.logprobs, (rollout_seconds, begun))

    def step(self, queries: Sequence[Text], responses: Sequence[Text], scores: Sequence[float] | Tensor) -> StepResult:
        """One optimisation step on responses that you had written and scored: any reward function will do.

        Args:
            queries: texts or token ids. For rloo and grpo each stands group_size times in a row.
            responses: one a query, by the policy as it is now, the stop token included: `write` samples them. A text gets
                its stop token here.
            scores: one a response, in any unit; beta is in that unit a nat.

        Raises ConfigError for lists of different lengths or too many for `kl_horizon`, ModelError for an empty or too long
        text, NotFiniteError for scores, losses or gradients that are not finite: no such gradient is applied, minibatches
        before it have been; `state` and `load_state` around a step undo those.
        """
        begun, backbone = time.monotonic(), self.backbone
        forget_peak(backbone.device)
        if not len(queries) == len(responses) == len(scores) > 0:
            raise ConfigError(
                f"{len(queries)} queries, {len(responses)} responses, {len(scores)} scores: pass as many of each, at least one."
            )
        self.controller.check(len(scores))
        prompts = [backbone.encode_prompt(x) if isinstance(x, str) else list(x) for x in queries]
        tokens = [backbone.encode_response(x) if isinstance(x, str) else list(x) for x in responses]
        given = torch.as_tensor(scores, dtype=torch.float32).to(backbone.device)
        return self.advance(make_rows(backbone, prompts, tokens), given, None, (0.0, begun))

    def advance(
        self, rows: Rows, scores: Tensor, sampler_logprobs: Sequence[Sequence[float]] | None, since: tuple[float, float]
    ) -> StepResult:
        """Update on scored rows, check and tell. since: seconds of the rollout, and when scoring began."""
        rollout_seconds, begun = since
        rollout = self.assess(rows, scores, sampler_logprobs)
        start = {"objective/scores": float(scores.mean()), "objective/kl": float(rollout.kl.sum())}
        check_finite(start, self.steps_done + 1)  # before anything learns from it
        scored, count = time.monotonic(), len(scores)
        beta, lr = self.controller.value, self.scheduled_lr()
        stats = self.update(rollout, lr)
        metrics = step_metrics(rollout, stats, beta=beta, lr=lr, episode=self.episodes + count)
        if self.task.gold is not None:
            written = [
                self.backbone.decode(row[inside].tolist())
                for row, inside in zip(rows.responses, rows.mask, strict=True)
            ]
            metrics["objective/gold"] = sum(map(self.task.gold, written)) / count
        self.check(metrics)
        self.controller.update(metrics["objective/kl"], count)
        self.steps_done, self.episodes = self.steps_done + 1, self.episodes + count
        done = time.monotonic()
        metrics |= {
            "time/rollout": rollout_seconds,
            "time/score": scored - begun,
            "time/update": done - scored,
            "eps": count / (done - begun + rollout_seconds),
        }
        tokens = token_records(self.policy, rollout, self.config) if self.config.token_rows else []
        due = self.steps_done % self.config.sample_every == 0 or self.steps_done == self.config.steps
        return StepResult(self.steps_done, metrics, tokens, self.samples() if due else [])

    @property
    def scorer(self) -> Scorer:
        """Raises TrainingError where the task has none."""
        if self.task.scorer is None:
            raise TrainingError("nothing scores the responses. Give the task a scorer, or call `step` with scores.")
        return self.task.scorer

    def prompts_of(self, step: int) -> list[int]:
        """The prompts of a step, by their number."""
        return order.prompts_of(step, len(self.prompt_ids), self.config)

    def minibatches(self, epoch: int, rows: Rows) -> Iterator[list[Tensor]]:
        """The minibatches of an epoch of the coming step, each a list of micro-batches."""
        return order.minibatches(self.steps_done, epoch, rows, self.config, self.group.size)

    def assess(self, rows: Rows, scores: Tensor, sampler_logprobs: Sequence[Sequence[float]] | None) -> Rollout:
        """Log-probabilities, values, KL, rewards and advantages of a batch, before any update."""
        scale = self.moments.update(scores) if self.config.scale_scores else 1.0
        parts = [micro for minibatch in self.minibatches(0, rows) for micro in self.group.own(minibatch)]
        measured = measure(self.policy, rows, scores, sampler_logprobs, parts, self.config, self.tick, self.group)
        return shaped(measured, self.controller.value, self.config, scale)

    def update(self, rollout: Rollout, lr: float) -> UpdateStats:
        """The updates of one step."""
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        if self.config.algorithm == "trpo":
            return natural_step.update(self, rollout)
        return gradient_step.update(self, rollout)

    def scheduled_lr(self) -> float:
        """lr of the coming step; beyond the last step of the config a schedule stays where it ended."""
        done = min(1.0, self.steps_done / self.config.steps)
        if self.config.lr_schedule == "linear":
            return self.lr * (1 - done)
        return self.lr if self.config.lr_schedule == "constant" else self.lr * 0.5 * (1 + math.cos(math.pi * done))

    def check_first_ratio(self, deviation: Tensor | None) -> None:
        """Raises SelfCheckError unless the ratios before the first update are 1."""
        worst = float(deviation) if deviation is not None else 0.0
        check_first_ratio(worst, self.backbone.model.dtype, self.steps_done + 1)

    def check(self, metrics: dict[str, float]) -> None:
        """Raises NotFiniteError or SelfCheckError for numbers that cannot be right."""
        check_metrics(metrics, self.backbone.model.dtype, self.steps_done + 1)

    def samples(self) -> list[Sample]:
        """Generations for the fixed prompts, always with the same uniforms; none in a process that does not lead, unless
        its part of the weights is needed for them."""
        prompts = list(self.task.sample_prompts)
        if not prompts or not (self.group.leads or self.backbone.shards):
            return []
        ids = [self.backbone.encode_prompt(prompt) for prompt in prompts]
        seeds, written = self.write(ids, "sample")
        scores = self.scorer.scores(ids, written.tokens, self.tick)
        texts = [self.backbone.decode(row) for row in written.tokens]
        gold = self.task.gold
        return [
            Sample(prompt, seed, text, float(score), gold(text) if gold else None)
            for prompt, seed, text, score in zip(prompts, seeds, texts, scores, strict=True)
        ]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a resume needs, copied: tensors, and plain numbers."""
        return policy_state.taken(self)

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `state` returned. Raises ModelError if the adapter does not fit."""
        policy_state.restore(self, tensors, numbers)
