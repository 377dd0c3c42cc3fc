"""The policy trainer: rollouts in, an updated policy and its metrics out.

One step: sample responses, score them, penalise the KL to the frozen reference per token and estimate advantages
(rewards_and_advantages.py), then update by the algorithm of the config: gradient descent on its loss (update.py,
objectives.py), or a natural gradient step within a trust region (trpo_update.py).

Every random draw is derived from the seed and the step, so on a CPU a resumed run repeats the uninterrupted one bit for bit. The
trainer does not use the database: it returns results, and calls `on_progress` regularly, which may raise to stop the run.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Comparison, Sample, StepResult
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.common.text import cut_length
from rlhf_lab.config.kl_control import HELD_OUT_RESPONSES
from rlhf_lab.config.policy import AUTOMATIC, PolicyConfig, check_live_setting
from rlhf_lab.core.reward_scaling import normalise_scores
from rlhf_lab.errors import ConfigError, TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import Batch, make_batch
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.sampling.sampler import Sampled, sample, uniforms
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed
from rlhf_lab.training.optimizers import set_lr
from rlhf_lab.training.policy import run_evaluation, trpo_update, update
from rlhf_lab.training.policy.attribute_refit import copy_scorer
from rlhf_lab.training.policy.batching import prompt_indices
from rlhf_lab.training.policy.invariants import (
    check_finite,
    check_metrics,
    check_process_count,
    check_scores,
    to_score_tensor,
)
from rlhf_lab.training.policy.live_reward import LiveReward
from rlhf_lab.training.policy.metrics import UpdateStats, reset_peak_memory, step_metrics
from rlhf_lab.training.policy.ptx import PtxObjective
from rlhf_lab.training.policy.rewards_and_advantages import build_rollout
from rlhf_lab.training.policy.rollout import (
    CRITIC_ADAPTER,
    PolicyModel,
    Rollout,
    ScoredResponses,
    Scorer,
    evaluate_batch,
    score_responses,
)
from rlhf_lab.training.policy.token_traces import token_records
from rlhf_lab.training.policy.train_state import TrainState
from rlhf_lab.training.policy.weighted_reward import REWARD_MODEL_LABEL

TextOrIds = str | Sequence[int]
RolloutRow = tuple[int, list[int]]  # position of the prompt in the task, token ids of the response


@dataclass(frozen=True)
class PolicyTask:
    """What a policy is trained for: its prompts, the scorer of the responses, and the gold score if a judge labelled.

    gold: the judge's score of (prompt, response).
    sample_prompts: fixed prompts whose responses are shown over the run. eval_prompts: held-out prompts; with a KL budget the
    score and KL on them determine the best checkpoint. ptx_texts: pretraining texts for PPO-ptx. labels: what dpo and sft learn
    from; for them a scorer is optional and only measures. For the other algorithms, `PolicyTrainer.run_step` needs prompts and
    a scorer; `PolicyTrainer.step` needs neither. live: of a live run; its model is the scorer. start: a frozen adapter of the
    backbone, of which the policy starts as a copy and which is the reference; None: the backbone without an adapter is.
    """

    prompts: Sequence[str] = ()
    scorer: Scorer | None = None
    sample_prompts: Sequence[str] = ()
    gold: Callable[[str, str], float] | None = None
    ptx_texts: Sequence[str] = ()
    eval_prompts: Sequence[str] = ()
    labels: Sequence[Comparison] = ()
    live: LiveReward | None = None
    start: str | None = None


def to_token_ids(backbone: Backbone, text_or_ids: TextOrIds, encode: Callable[[str], list[int]]) -> list[int]:
    """The tokens of a text, or the given ones. Raises ConfigError for anything else, and for ids that the model does not have."""
    if isinstance(text_or_ids, str):
        return encode(text_or_ids)
    try:
        ids = [operator.index(token_id) for token_id in text_or_ids]
    except TypeError as error:
        raise ConfigError(
            f"{text_or_ids!r:.80} is neither a text nor a list of token ids. Pass one of these."
        ) from error
    vocabulary_size = backbone.vocabulary_head.size
    unknown = [token_id for token_id in ids if not 0 <= token_id < vocabulary_size]
    if unknown:
        raise ConfigError(
            f"the token id {unknown[0]} does not exist: the model has the ids 0 to {vocabulary_size - 1}. Encode the "
            "text with the model's own tokenizer."
        )
    return ids


class PolicyTrainer:
    """Trains the adapter `adapter` of the backbone on a task.

    Call `run_step` until `steps_done == config.steps`; or `step` with your own responses and scores. `state.state_dict` and
    `state.load_state_dict` carry everything a resume needs. `set_live_setting` changes beta and lr between steps. rollout_rows:
    the rollouts of the last `run_step`.
    """

    def __init__(
        self, backbone: Backbone, adapters: Adapters, task: PolicyTask, config: PolicyConfig, *, adapter: str = "policy",
        on_progress: ProgressCallback = no_progress, distributed: Distributed = SINGLE_PROCESS,
    ) -> None:  # fmt: skip
        check_process_count(distributed.world_size, config)
        scorer, attribute_refit = copy_scorer(task.scorer)
        task = dataclasses.replace(task, scorer=scorer)
        self.backbone, self.adapters, self.task = backbone, adapters, task
        self.prompt_ids = [backbone.encode_prompt(prompt) for prompt in task.prompts]
        self.eval_prompt_ids = [backbone.encode_prompt(prompt) for prompt in task.eval_prompts[:HELD_OUT_RESPONSES]]
        seed = derive_seed(config.seed, "policy adapter")
        if task.start is None:
            adapters.add(adapter, r=config.lora_r, alpha=config.lora_alpha, seed=seed, trainable=True)
        else:
            adapters.copy(task.start, adapter, trainable=True)
        value_head = ValueHead(backbone.hidden_size).to(backbone.device)
        policy = PolicyModel(backbone, adapters, adapter, value_head, config.value_trunk, task.start)
        parameters = list(adapters.parameters(adapter))
        if config.uses_value_function:
            parameters += value_head.parameters()
        if config.value_trunk == "critic":
            parameters += add_critic(adapters, value_head, task.scorer, config)
        ptx = PtxObjective(policy, task.ptx_texts, config) if config.ptx_coef > 0 else None
        self.state = TrainState(config, policy, parameters, ptx, distributed, on_progress)
        self.state.attribute_refit, self.state.live = attribute_refit, task.live
        self.rollout_rows: list[RolloutRow] = []

    @property
    def steps_done(self) -> int:
        return self.state.steps_done

    def set_live_setting(self, name: str, value: float | str) -> None:
        """Set beta or lr from the next step on: to a number, which stays in force until it is set again, or to "automatic".

        Raises ConfigError for another name, a value out of range, and "automatic" where nothing adapts the setting.
        """
        check_live_setting(self.state.config, name, value)
        if value == AUTOMATIC:
            self.state.set_by_hand.pop(name, None)
        else:
            self.state.set_by_hand[name] = float(value)

    def set_scorer(self, scorer: Scorer) -> None:
        """Score with another reward model from the next step on. The search for the best checkpoint starts again."""
        own, self.state.attribute_refit = copy_scorer(scorer)
        self.task = dataclasses.replace(self.task, scorer=own)
        self.state.kl_control.score_unit = self.state.kl_control.best = None

    def set_head(
        self, version: int, labels: int, weights: NDArray[np.float32], kl_budget: float, ignored: Sequence[str] = ()
    ) -> None:
        """In a live run: score with another head (F,) from the next step on, with another KL budget (nats per response), and
        without the effect of the ignored attributes.

        The scores stay on one scale, and the best checkpoint is chosen again among all, see `LiveReward`.
        """
        live, control = self.state.live, self.state.kl_control
        assert live is not None
        live.set_head(version, labels, weights, ignored)
        control.set_budget(kl_budget)
        control.best = live.best_checkpoint()

    @property
    def scorer(self) -> Scorer:
        """The task's scorer. Raises TrainingError if it has none."""
        if self.task.scorer is None:
            raise TrainingError("nothing scores the responses. Give the task a scorer, or call `step` with scores.")
        return self.task.scorer

    def run_step(self) -> StepResult:
        """Sample, score, update. Raises NotFiniteError or SelfCheckError; the step then does not count."""
        if not self.task.prompts:
            raise TrainingError("there are no prompts to train on. Add prompts to the project.")
        self.measure_score_unit()
        reset_peak_memory(self.backbone.device)
        config, distributed, steps_done = self.state.config, self.state.distributed, self.state.steps_done
        start_time, batch_size = self.state.working_time(), config.batch_size
        rows = list(prompt_indices(steps_done, len(self.prompt_ids), config))
        prompts = [self.prompt_ids[i] for i in rows]
        sampled = Sampled([], [])
        for start in range(0, len(prompts), batch_size):
            chunk_prompts = prompts[start : start + batch_size]
            local_slice = distributed.shard_slice(len(chunk_prompts))
            offset = start + local_slice.start
            _, chunk = self.sample_responses(
                chunk_prompts[local_slice], "rollout", steps_done, offset=offset, total=len(prompts)
            )
            sampled.tokens.extend(distributed.all_gather(chunk.tokens))
            sampled.logprobs.extend(distributed.all_gather(chunk.logprobs))
        self.state.on_sampling(len(prompts), len(prompts))
        self.rollout_rows = list(zip(rows, sampled.tokens, strict=True))
        return self.train_on_samples(prompts, sampled, self.state.working_time() - start_time)

    def measure_score_unit(self) -> None:
        """With a KL budget: measure the unit of the scores before the first step that uses the scorer. Collective."""
        control = self.state.kl_control
        if control.has_budget and control.score_unit is None and self.task.scorer is not None:
            control.score_unit = run_evaluation.measure_score_unit(self.state, self.prompt_ids, self.scorer)

    def scores_in_unit(self, scores: Tensor) -> Tensor:
        """Scores minus the mean of the reference's scores, over their standard deviation; unchanged if it was not measured."""
        unit = self.state.kl_control.score_unit
        return scores if unit is None else normalise_scores(scores, mean=unit.mean, scale=unit.sd)

    def sample_responses(
        self, prompts: list[list[int]], *seed_path: str | int, offset: int = 0, total: int | None = None
    ) -> tuple[list[int], Sampled]:
        """The seed of each row, and a response to it by the current policy. A row's response depends on its seed alone.

        offset: the row number of the first prompt; the seed of a row is derived from seed_path and its number. total: of all rows
        that are sampled for this purpose, for the progress.
        """
        config, rows = self.state.config, len(prompts)
        on_progress = self.state.sampling_progress(offset, rows, offset + rows if total is None else total)
        seeds = [derive_seed(config.seed, *seed_path, offset + row) for row in range(len(prompts))]
        uniform = uniforms(seeds, config.max_new_tokens)
        with self.adapters.using(self.state.policy.adapter, merged=True):
            return seeds, sample(
                self.backbone, prompts, uniform, temperature=config.temperature, on_progress=on_progress
            )

    def train_on_samples(self, prompts: list[list[int]], sampled: Sampled, rollout_seconds: float = 0.0) -> StepResult:
        """One optimisation step on sampled responses: score them, then update."""
        start_time, state = self.state.working_time(), self.state
        scored = score_responses(
            state.policy, self.scorer, prompts, sampled.tokens, state.config, state.on_progress, state.distributed
        )
        if state.attribute_refit is not None:
            model_scores = scored.terms.get(REWARD_MODEL_LABEL, scored.scores)
            state.attribute_refit.add(state.steps_done + 1, prompts, sampled.tokens, model_scores)
        if state.live is not None and state.live.ignored:
            state.live.add_responses(state.steps_done + 1, state.live.read(prompts, sampled.tokens, state.on_progress))
        scores = self.scores_in_unit(scored.scores).float().to(self.backbone.device)
        batch = make_batch(self.backbone, prompts, sampled.tokens)
        return self.train_on_scored(
            batch, scored._replace(scores=scores), sampled.logprobs, (rollout_seconds, start_time)
        )

    def step(
        self, queries: Sequence[TextOrIds], responses: Sequence[TextOrIds], scores: Sequence[float] | Tensor
    ) -> StepResult:
        """One optimisation step on responses that the caller sampled and scored, by any reward function.

        Part of the Python API; the package itself calls `run_step`.

        Args:
            queries: texts or token ids. For rloo and grpo each is repeated group_size times in a row.
            responses: one per query, by the current policy, including the stop token: `sample_responses` samples them. If a
                response is a text, the stop token is appended.
            scores: one per response, in any unit; beta is in that unit per nat.

        Raises ConfigError for lists of different lengths, for more responses than `kl_horizon` allows, or for elements of
        another type; ModelError for an empty or too long text; NotFiniteError for scores, losses or gradients that are not
        finite. Such a gradient is not applied, but the earlier minibatches of the step have been: save `state.state_dict`
        before the step and restore it with `state.load_state_dict` to undo them.
        """
        start_time, backbone = self.state.working_time(), self.backbone
        reset_peak_memory(backbone.device)
        if isinstance(queries, str) or isinstance(responses, str):
            raise ConfigError("queries and responses are lists, not single texts. Put a single one in a list.")
        score_tensor = to_score_tensor(scores)
        if not len(queries) == len(responses) == len(score_tensor) > 0:
            raise ConfigError(
                f"{len(queries)} queries, {len(responses)} responses, {len(score_tensor)} scores: pass as many of "
                "each, at least one."
            )
        self.state.kl_control.check_batch_size(len(score_tensor))
        check_scores(score_tensor, self.state.steps_done + 1)
        prompts = [to_token_ids(backbone, x, backbone.encode_prompt) for x in queries]
        tokens = [to_token_ids(backbone, x, backbone.encode_response) for x in responses]
        batch = make_batch(backbone, prompts, tokens)
        scored = ScoredResponses(score_tensor.float().to(backbone.device))
        return self.train_on_scored(batch, scored, None, (0.0, start_time))

    def train_on_scored(
        self,
        batch: Batch,
        scored: ScoredResponses,
        sampler_logprobs: Sequence[Sequence[float]] | None,
        timing: tuple[float, float],
    ) -> StepResult:
        """Update on scored responses and check the metrics. timing: seconds of the rollout, and when scoring began."""
        state, scores, (rollout_seconds, start_time) = self.state, scored.scores, timing
        check_scores(scores, state.steps_done + 1)
        # The first KL has to be 0, so the reference is then evaluated in the policy's micro-batches, with equal rounding.
        ref_logprobs = scored.ref_logprobs if state.steps_done else None
        rollout = self.prepare_rollout(batch, scores, sampler_logprobs, ref_logprobs)
        initial_metrics = {"objective/scores": float(scores.mean()), "objective/kl": float(rollout.kl.sum())}
        check_finite(initial_metrics, state.steps_done + 1)  # before any update
        scored_time, response_count = self.state.working_time(), len(scores)
        beta, lr = state.current_value("beta"), state.current_value("lr")
        stats = self.update(rollout, lr)
        metrics = step_metrics(rollout, stats, beta=beta, lr=lr, episode=state.episodes + response_count)
        metrics |= scored.term_metrics()
        if penalty := state.config.missing_eos_penalty:
            metrics["objective/missing_end_reward"] = -penalty * (1.0 - metrics["val/stop_token_rate"])
        if self.task.gold is not None:
            metrics["objective/gold"] = sum(map(self.task.gold, *self.texts_of(batch))) / response_count
        check_metrics(metrics, self.backbone.model.dtype, state.steps_done + 1)
        state.update_kl_control(metrics["objective/kl"], response_count)
        state.steps_done, state.episodes = state.steps_done + 1, state.episodes + response_count
        metrics |= self.held_out_metrics()
        if state.live is not None:
            metrics |= state.live.metrics(state.kl_control)
        end_time = self.state.working_time()
        metrics |= {
            "time/rollout": rollout_seconds,
            "time/score": scored_time - start_time,
            "time/update": end_time - scored_time,
            "eps": response_count / (end_time - start_time + rollout_seconds),
        }
        tokens = token_records(state.policy, rollout, state.config) if state.config.token_rows else []
        samples_due = state.steps_done % state.config.sample_every == 0 or state.steps_done == state.config.steps
        return StepResult(state.steps_done, metrics, tokens, self.samples() if samples_due else [])

    def held_out_metrics(self) -> dict[str, float]:
        """At the steps that make a checkpoint, with a KL budget: score and KL on held-out prompts, and the best step so far."""
        state, config = self.state, self.state.config
        is_due = state.steps_done % config.checkpoint_every == 0 or state.steps_done == config.steps
        if is_due and state.attribute_refit is not None:
            state.attribute_refit.refit()
        if is_due and state.live is not None:
            state.live.refit()
        if state.kl_control.has_budget and self.eval_prompt_ids and self.task.scorer is not None and is_due:
            return run_evaluation.evaluate_held_out(state, self.eval_prompt_ids, self.scorer)
        return {}

    def texts_of(self, batch: Batch) -> tuple[list[str], list[str]]:
        """The prompts and responses of a batch as texts; prompts of the task as they were given, without a chat template."""
        prompts, responses = batch.token_ids()
        texts = [self.backbone.decode(ids, after=prompt) for prompt, ids in zip(prompts, responses, strict=True)]
        return [self.backbone.prompt_text(ids) for ids in prompts], texts

    def prepare_rollout(
        self, batch: Batch, scores: Tensor, sampler_logprobs: Sequence[Sequence[float]] | None,
        ref_logprobs: Tensor | None = None,
    ) -> Rollout:  # fmt: skip
        """Log-probabilities, values, KL, rewards and advantages of a batch, before any update.

        ref_logprobs: (B, R) of the reference, if they are known.
        """
        state, config = self.state, self.state.config
        score_scale = state.score_moments.update(scores) if config.scale_scores else 1.0
        micro_batches = [
            indices for minibatch in state.minibatches(0, batch) for indices in state.distributed.shard(minibatch)
        ]
        evaluated = evaluate_batch(
            state.policy, batch, ScoredResponses(scores, ref_logprobs), micro_batches, config, state.on_progress,
            state.distributed,
        )  # fmt: skip
        if sampler_logprobs is not None:
            evaluated = evaluated.with_sampler_logprobs(sampler_logprobs)
        return build_rollout(evaluated, state.current_value("beta"), config, score_scale)

    def update(self, rollout: Rollout, lr: float) -> UpdateStats:
        """All updates of one step."""
        set_lr(self.state.optimizer, lr)
        if self.state.config.spec.update == "natural_gradient":
            return trpo_update.trpo_update(self.state, rollout)
        return update.gradient_update(self.state, rollout)

    def samples(self) -> list[Sample]:
        """Responses to the fixed prompts, always with the same random numbers.

        Only the main process returns them; if the backbone is sharded, the others take part in the forward passes.
        """
        prompts = list(self.task.sample_prompts)
        if not prompts or not (self.state.distributed.is_main_process or self.backbone.shards):
            return []
        prompt_ids = [self.backbone.encode_prompt(prompt) for prompt in prompts]
        seeds, sampled = self.sample_responses(prompt_ids, "sample")
        scores = torch.full((len(prompts),), math.nan)
        if self.task.scorer is not None:
            scores = self.scores_in_unit(self.scorer.scores(prompt_ids, sampled.tokens, self.state.on_progress))
        texts = [
            self.backbone.decode(response, after=prompt_tokens)
            for prompt_tokens, response in zip(prompt_ids, sampled.tokens, strict=True)
        ]
        gold = self.task.gold
        return [
            Sample(
                prompt,
                seed,
                text,
                float(score),
                gold(prompt, text) if gold else None,
                cut_length(response, self.backbone.eos_ids),
            )
            for prompt, seed, text, score, response in zip(prompts, seeds, texts, scores, sampled.tokens, strict=True)
        ]


def add_critic(adapters: Adapters, head: ValueHead, scorer: object, config: PolicyConfig) -> list[nn.Parameter]:
    """Add the critic's adapter and return its parameters. critic_init "reward" copies the reward model into adapter and head.

    The initial value of a state is then the reward head applied to that state; with mean pooling (last_weight 0) the mean of the
    values over a response is its score.
    Raises TrainingError if there is no reward model with an adapter to copy.
    """
    if config.critic_init == "fresh":
        seed = derive_seed(config.seed, "critic")
        adapters.add(CRITIC_ADAPTER, r=config.lora_r, alpha=config.lora_alpha, seed=seed, trainable=True)
        return adapters.parameters(CRITIC_ADAPTER)
    if not isinstance(scorer, RewardModel) or scorer.adapter is None:
        raise TrainingError(
            "critic_init = reward, but the scorer of this run is not a reward model with an adapter. Choose critic_init = fresh."
        )
    adapters.copy(scorer.adapter, CRITIC_ADAPTER, trainable=True)
    with torch.no_grad():
        weight, bias = scorer.head.linear_map()
        head.linear.weight.copy_(weight)
        head.linear.bias.copy_(bias)
    return adapters.parameters(CRITIC_ADAPTER)
