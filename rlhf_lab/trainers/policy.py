"""PPO: rollouts in, an updated policy and its numbers out.

One step: sample a batch, score it, penalise the KL to the frozen reference per token, estimate advantages (GAE), then several
epochs of clipped-ratio updates on the same rollouts (Schulman et al. 2017; Ziegler et al. 2019 for the KL penalty).

Every random draw is derived from the seed and the step, so a resumed run repeats the uninterrupted one bit for bit. The
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
from rlhf_lab.core.kl import AdaptiveKL, FixedKL
from rlhf_lab.core.policy_losses import clipped_value_loss, ppo_clip, token_mean
from rlhf_lab.errors import ConfigError, NotFiniteError, SelfCheckError, TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Sampled, Tick, no_tick, sample, uniforms
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.rows import Rows, make_rows
from rlhf_lab.records import Sample, StepResult
from rlhf_lab.seeds import derive
from rlhf_lab.trainers.metrics import UpdateStats, step_metrics, token_records
from rlhf_lab.trainers.rollout import Policy, Rollout, Scorer, shaped

RATIO_TOLERANCE = 1e-5
START_KL_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Task:
    """What a policy is trained for: prompts to write for, who scores, and (where a judge labelled) the gold score.

    sample_prompts are the fixed prompts whose samples are shown over the run.
    """

    prompts: Sequence[str]
    scorer: Scorer
    sample_prompts: Sequence[str] = ()
    gold: Callable[[str], float] | None = None


class PolicyTrainer:
    """Trains the adapter `adapter` of the backbone on a task.

    Call `run_step` until `step == config.steps`; or `learn` with rollouts of your own. `state` and `load_state` carry
    everything a resume needs. `knobs` (beta, lr) may be set between steps.
    """

    def __init__(
        self, backbone: Backbone, adapters: Adapters, task: Task, config: PolicyConfig, *, adapter: str = "policy",
        tick: Tick = no_tick,
    ) -> None:  # fmt: skip
        if not task.prompts:
            raise TrainingError("there are no prompts to train on. Add prompts to the project.")
        self.backbone, self.adapters, self.task, self.config, self.tick = backbone, adapters, task, config, tick
        self.prompt_ids = [backbone.encode_prompt(prompt) for prompt in task.prompts]
        adapters.add(adapter, r=config.lora_r, alpha=config.lora_alpha,
                     seed=derive(config.seed, "policy adapter"), trainable=True)  # fmt: skip
        self.policy = Policy(backbone, adapters, adapter, ValueHead(backbone.hidden_size).to(backbone.device))
        self.parameters = [*adapters.parameters(adapter), *self.policy.value_head.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=config.lr, eps=config.adam_eps)
        self.controller: FixedKL | AdaptiveKL = (
            FixedKL(config.beta)
            if config.kl_controller == "fixed"
            else AdaptiveKL(config.beta, config.kl_target, config.kl_horizon)
        )
        self.lr = config.lr
        self.step = 0

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
        begun = time.monotonic()
        index = self.prompts_of(self.step)
        prompts = [self.prompt_ids[i] for i in index]
        _, sampled = self.write(prompts, "rollout", self.step)
        return self.learn(prompts, sampled, time.monotonic() - begun)

    def write(self, prompts: list[list[int]], *purpose: str | int) -> tuple[list[int], Sampled]:
        """The seed of each row, and its response by the policy as it is now; row i draws from its seed alone."""
        seeds = [derive(self.config.seed, *purpose, row) for row in range(len(prompts))]
        uniform = uniforms(seeds, self.config.max_new_tokens)
        with self.adapters.using(self.policy.adapter, merged=True):
            return seeds, sample(self.backbone, prompts, uniform, temperature=self.config.temperature, tick=self.tick)

    def learn(self, prompts: list[list[int]], sampled: Sampled, rollout_seconds: float = 0.0) -> StepResult:
        """One optimisation step on given rollouts: score them, then update."""
        begun = time.monotonic()
        scores = self.task.scorer.scores(prompts, sampled.tokens, self.tick).to(self.backbone.device)
        rollout = self.assess(make_rows(self.backbone, prompts, sampled.tokens), scores, sampled.logprobs)
        scored = time.monotonic()
        beta, lr = self.controller.value, self.scheduled_lr()
        stats = self.update(rollout, lr)
        metrics = step_metrics(rollout, stats, beta=beta, lr=lr, episode=(self.step + 1) * len(prompts))
        if self.task.gold is not None:
            texts = [self.backbone.decode(row) for row in sampled.tokens]
            metrics["objective/gold"] = sum(map(self.task.gold, texts)) / len(texts)
        self.check(metrics)
        self.controller.update(metrics["objective/kl"], len(prompts))
        self.step += 1
        done = time.monotonic()
        metrics |= {
            "time/rollout": rollout_seconds,
            "time/score": scored - begun,
            "time/update": done - scored,
            "eps": len(prompts) / (done - begun + rollout_seconds),
        }
        tokens = token_records(self.policy, rollout, self.config) if self.config.token_rows else []
        due = self.step % self.config.sample_every == 0 or self.step == self.config.steps
        return StepResult(self.step, metrics, tokens, self.samples() if due else [])

    def prompts_of(self, step: int) -> list[int]:
        """The prompts of a step: the list in a new random order each time it has been used up."""
        count, wanted = len(self.prompt_ids), self.config.batch_size
        first = step * wanted
        orders: dict[int, list[int]] = {}
        chosen = []
        for position in range(first, first + wanted):
            round_ = position // count
            if round_ not in orders:
                generator = torch.Generator().manual_seed(derive(self.config.seed, "prompts", round_))
                orders[round_] = torch.randperm(count, generator=generator).tolist()
            chosen.append(orders[round_][position % count])
        return chosen

    def assess(self, rows: Rows, scores: Tensor, sampler_logprobs: Sequence[Sequence[float]]) -> Rollout:
        """Log-probabilities, values, KL, rewards and advantages of a batch, before any update.

        The old log-probabilities come from the forward pass that training uses, on the very micro-batches of the first
        epoch, so that the first ratios are exactly 1.
        """
        old = torch.zeros(rows.mask.shape, device=rows.mask.device)
        ref, values, sampler = (torch.zeros_like(old) for _ in range(3))
        for part in (micro for minibatch in self.minibatches(0, rows) for micro in minibatch):
            self.tick()
            index = part.to(rows.mask.device)
            some = rows.take(index)
            with torch.no_grad():
                evaluated = self.policy.evaluate(some, self.config.temperature)
                reference = self.policy.reference_logprobs(some, self.config.temperature)
            length = some.mask.shape[1]
            old[index, :length] = evaluated.logprobs.to(old)
            values[index, :length] = evaluated.values.to(old)
            ref[index, :length] = reference.to(old)
        for i, row in enumerate(sampler_logprobs):
            sampler[i, : len(row)] = torch.tensor(row, dtype=sampler.dtype)
        return shaped(rows, scores, (old, ref, sampler), values, self.controller.value, self.config)

    def minibatches(self, epoch: int, rows: Rows) -> Iterator[list[Tensor]]:
        """The minibatches of an epoch, each a list of micro-batches (row indices) of rows of similar length."""
        seed = derive(self.config.seed, "minibatches", self.step, epoch)
        lengths = (rows.prompt_mask.sum(1) + rows.mask.sum(1)).cpu()
        order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
        for minibatch in order.chunk(self.config.minibatches):
            by_length = minibatch[lengths[minibatch].argsort(stable=True)]
            yield list(by_length.split(self.config.micro_batch))  # type: ignore[no-untyped-call]

    def update(self, rollout: Rollout, lr: float) -> UpdateStats:
        """The epochs of one step. Stops early at target_kl; skips an update whose mean ratio exceeds the threshold."""
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        stats = UpdateStats()
        for epoch in range(self.config.epochs):
            for minibatch in self.minibatches(epoch, rollout.rows):
                self.accumulate(rollout, minibatch, stats)
                if not stats.updates and not stats.skipped:
                    self.check_first_ratio(stats.first_ratio_deviation)
                if stats.mean_ratio > self.config.ratio_threshold:
                    stats.skip()
                    self.optimiser.zero_grad()
                    continue
                norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
                self.optimiser.step()
                self.optimiser.zero_grad()
                stats.finish_update(norm)
            if self.config.target_kl is not None and stats.epoch_approx_kl() > self.config.target_kl:
                break
        return stats

    def accumulate(self, rollout: Rollout, minibatch: list[Tensor], stats: UpdateStats) -> None:
        """Gradients of one minibatch, micro-batch by micro-batch; the split changes nothing but memory."""
        config, bonus = self.config, self.config.entropy_coef > 0
        tokens = rollout.rows.mask[torch.cat(minibatch).to(rollout.scores.device)].sum()
        stats.begin_update()
        for part in minibatch:
            self.tick()
            index = part.to(rollout.scores.device)
            rows = rollout.rows.take(index)
            length = rows.mask.shape[1]
            old, advantages, values, returns = (
                x[index, :length] for x in (rollout.old_logprobs, rollout.advantages, rollout.values, rollout.returns)
            )
            now = self.policy.evaluate(rows, config.temperature, config.value_trunk == "detached", bonus)
            policy = ppo_clip(now.logprobs, old, advantages, rows.mask, cliprange=config.cliprange, denominator=tokens)
            value = clipped_value_loss(
                now.values, values, returns, rows.mask, cliprange_value=config.cliprange_value, denominator=tokens
            )
            entropy = token_mean(now.entropy, rows.mask, tokens)
            cost = config.vf_coef * value.loss - (config.entropy_coef * entropy if bonus else 0.0)
            (policy.loss + cost).backward()  # type: ignore[no-untyped-call]
            stats.add(policy, value, now, old, rows.mask, entropy)

    def scheduled_lr(self) -> float:
        """lr of the coming step."""
        if self.config.lr_schedule == "constant":
            return self.lr
        return self.lr * (1 - self.step / self.config.steps)

    def check_first_ratio(self, deviation: Tensor | None) -> None:
        """Old and new policy are the same before the first update, so every ratio must be 1."""
        worst = float(deviation) if deviation is not None else 0.0
        if self.backbone.model.dtype in (torch.float32, torch.float64) and not worst < RATIO_TOLERANCE:
            raise SelfCheckError(
                f"the probability ratios before the first update of step {self.step + 1} differ from 1 by {worst:.2g} "
                f"(allowed: {RATIO_TOLERANCE:g}): the log-probabilities cannot be trusted on this machine. "
                "The last checkpoint is kept; try another thread count or device, and report this."
            )

    def check(self, metrics: dict[str, float]) -> None:
        """Nothing but finite numbers leaves a step, and a run that starts at the base starts with KL 0."""
        broken = [name for name, value in metrics.items() if not math.isfinite(value)]
        if broken:
            raise NotFiniteError(
                f"{', '.join(broken)} became NaN or infinite at step {self.step + 1}. The step was discarded and the last "
                "checkpoint is kept. Lower the learning rate or raise beta, then resume."
            )
        kl = metrics["objective/kl"]
        if self.step == 0 and abs(kl) > START_KL_TOLERANCE and self.backbone.model.dtype == torch.float32:
            raise SelfCheckError(
                f"the KL to the reference is {kl:.2g} before anything was learnt; it must be 0. "
                "The reference or the adapter is not what it should be; please report this."
            )

    def samples(self) -> list[Sample]:
        """Generations for the fixed prompts, always with the same uniforms."""
        prompts = list(self.task.sample_prompts)
        if not prompts:
            return []
        ids = [self.backbone.encode_prompt(prompt) for prompt in prompts]
        seeds, written = self.write(ids, "sample")
        scores = self.task.scorer.scores(ids, written.tokens, self.tick)
        texts = [self.backbone.decode(row) for row in written.tokens]
        gold = self.task.gold
        return [
            Sample(prompt, seed, text, float(score), gold(text) if gold else None)
            for prompt, seed, text, score in zip(prompts, seeds, texts, scores, strict=True)
        ]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything a resume needs, copied: tensors, and plain numbers."""
        tensors = {f"adapter.{k}": v for k, v in self.adapters.tensors(self.policy.adapter).items()}
        tensors |= {f"value.{k}": v.detach().cpu().clone() for k, v in self.policy.value_head.state_dict().items()}
        for i, parameter in enumerate(self.parameters):
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"optimiser.{i}.{key}"] = value.detach().cpu().clone()
        return tensors, {"step": self.step, "beta": self.controller.value, "lr": self.lr}

    def load_state(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore what `state` returned. Raises ModelError if the adapter does not fit."""

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.adapters.load_tensors(self.policy.adapter, part("adapter."))
        self.policy.value_head.load_state_dict(part("value."))
        self.optimiser.state.clear()
        self.optimiser.zero_grad()  # a step that was stopped half-way has left some
        for i, parameter in enumerate(self.parameters):
            entry = part(f"optimiser.{i}.")
            if entry:
                self.optimiser.state[parameter] = {
                    k: v.clone() if k == "step" else v.clone().to(parameter.device) for k, v in entry.items()
                }
        self.step = int(numbers["step"])
        self.controller.value, self.lr = float(numbers["beta"]), float(numbers["lr"])
