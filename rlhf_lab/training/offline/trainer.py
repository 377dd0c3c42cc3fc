"""The trainer of the offline methods: one step is one update on fixed texts.

dpo learns from label pairs. sft learns the chosen texts of the labels. rejection works in rounds: it samples several responses
to each prompt, in the first round from the base and later from the current policy, and learns the response with the highest
score. None of them uses the strength of a preference; the weight of a label multiplies its loss, as for reward models. dpo
treats a tie as a pair with target 0.5; sft leaves ties out. Labels whose two texts have the same tokens are left out.

With `edit_samples`, dpo works in rounds, too: each samples responses of the current policy to the prompts of edited answers. In
half of the pairs of an update, an edit is preferred to one of these responses, of any round so far. This is the idea of DITTO
(Shaikh et al. 2024, https://arxiv.org/abs/2406.00888); its pairs of responses of two policies are left out.

To make the methods comparable with those that learn from rollouts, the policy is measured on fresh samples before the first
step and then every `sample_every` steps; nothing is learned from these samples. With a KL budget, the update of such a step is
limited. The step after an update that was scaled back is measured too, because these methods have no KL penalty that would
bring the policy back. dpo and sft need no scorer; without one, the metrics of the score are left out. Resuming is exact.
"""

import itertools
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NoReturn

import torch
from torch import Tensor

from rlhf_lab.common.records import StepResult
from rlhf_lab.errors import ConfigError, LabelError, TrainingError
from rlhf_lab.models.batch import Batch, make_batch
from rlhf_lab.training.label_tokens import same_tokens_error
from rlhf_lab.training.offline.updates import (
    LabelPair,
    encode_labels,
    preference_update,
    reference_sums,
    sft_update,
)
from rlhf_lab.training.optimizers import set_lr
from rlhf_lab.training.policy.batching import prompt_indices, shuffled_indices
from rlhf_lab.training.policy.invariants import check_finite, check_metrics, check_scores
from rlhf_lab.training.policy.kl_budget import OldPolicy, limit_update, rounding_error_kl
from rlhf_lab.training.policy.metrics import peak_memory, reset_peak_memory
from rlhf_lab.training.policy.rollout import ScoredResponses, map_responses, score_responses
from rlhf_lab.training.policy.train_state import ChosenText
from rlhf_lab.training.policy.trainer import PolicyTrainer


class OfflineTrainer(PolicyTrainer):
    """A PolicyTrainer whose `run_step` learns from fixed texts. Raises LabelError if it needs labels and none prefers a text.

    indistinguishable: the number of labels that were left out because the model reads the same tokens for both texts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.state.config
        pairs, self.indistinguishable = encode_labels(self.backbone, self.task.labels)
        decided = [pair for pair in pairs if not pair.tie]
        self.pairs, self.texts, self.text_weights = list[LabelPair](), list[ChosenText](), list[float]()
        if config.spec.learns_from == "labels":
            self._check_labels(decided)
            # Weights relative to their mean: over the labels for dpo, and over the tokens for sft, as its loss.
            weights = relative_weights([pair.weight for pair in pairs])
            self.pairs = [pair._replace(weight=weight) for pair, weight in zip(pairs, weights, strict=True)]
            self.texts = [ChosenText(pair.prompt, pair.chosen) for pair in decided]
            sizes = [len(pair.chosen) for pair in decided]
            self.text_weights = relative_weights([pair.weight for pair in decided], sizes)
        longest = self.backbone.context_length - config.max_new_tokens
        self.edits = [pair for pair in self.pairs if pair.is_edit and len(pair.prompt) <= longest]
        self._references = list[Tensor]()  # (N, 2), of the labels and of the responses of each round; computed once

    def _check_labels(self, decided: list[LabelPair]) -> None:
        """Raises LabelError unless a label with a weight above 0 prefers a text that the model can tell from the other."""
        if any(pair.weight for pair in decided):
            return
        count = len(self.task.labels)
        if self.indistinguishable == count > 0:
            raise same_tokens_error(count)
        reasons = {"have the same tokens in both texts": self.indistinguishable, "have the weight 0": len(decided)}
        others = ", ".join(f"{number} {reason}" for reason, number in reasons.items() if number)
        raise LabelError(
            f"{self.state.config.algorithm} learns from labels, and none of the {count} prefers a text"
            f"{f' ({others})' if others else ''}. Label some pairs first."
        )

    def train_on_scored(self, *_: object) -> NoReturn:
        """Raises ConfigError: these methods do not learn from scored responses."""
        raise ConfigError(
            f"{self.state.config.algorithm} does not learn from scored responses. Call run_step, or choose ppo or another "
            "algorithm that does."
        )

    def run_step(self) -> StepResult:
        """Measure the policy if this step is due for it, then update. Raises NotFiniteError; the step then does not count."""
        if not self.task.prompts:
            raise TrainingError("there are no prompts to sample from. Add prompts to the project.")
        state, config = self.state, self.state.config
        self.measure_score_unit()
        reset_peak_memory(self.backbone.device)
        step, is_last = state.steps_done + 1, state.steps_done + 1 == config.steps
        start_time, episodes, metrics = self.state.working_time(), state.episodes, {"time/score": 0.0}
        measured: OldPolicy | None = None
        if state.steps_done % config.sample_every == 0 or is_last or state.kl_control.update_fraction < 1.0:
            fresh_metrics, measured = self.measure_policy()
            metrics |= fresh_metrics
        if state.steps_done % config.updates_per_round == 0:
            metrics |= self.start_round()
        update_start = self.state.working_time()
        metrics |= {"lr": state.current_value("lr"), "time/rollout": update_start - start_time - metrics["time/score"]}
        set_lr(state.optimizer, metrics["lr"])
        metrics |= self.update_on_texts() if measured is None else self.limited_update(measured)
        check_finite(metrics, step)
        state.steps_done = step
        metrics |= {"episode": float(state.episodes), "memory/peak": peak_memory(self.backbone.device)}
        metrics |= self.held_out_metrics()
        end_time = self.state.working_time()
        metrics |= {
            "time/update": end_time - update_start,
            "eps": (state.episodes - episodes) / (end_time - start_time),
        }
        samples_due = step % config.sample_every == 0 or is_last
        return StepResult(step, metrics, [], self.samples() if samples_due else [])

    def limited_update(self, old: OldPolicy) -> dict[str, float]:
        """`update_on_texts`; with a KL budget, the KL of the update is measured on responses of the old policy and limited."""
        state = self.state
        start = [parameter.detach().clone() for parameter in self.adapters.parameters(state.policy.adapter)]
        return self.update_on_texts() | limit_update(state, old, start, rounding_error_kl(state, old, start))

    def update_on_texts(self) -> dict[str, float]:
        """One update on the step's pairs or texts. Raises TrainingError for a loss of rollouts."""
        match self.state.config.spec.loss:
            case "direct_preference":
                return self._update_on_pairs()
            case "likelihood":
                return self._update_on_chosen_texts()
            case "ratio" | "ratio_and_penalty" | "log_probability":
                raise TrainingError(f"{self.state.config.algorithm} learns from rollouts, not from fixed texts.")

    def _update_on_chosen_texts(self) -> dict[str, float]:
        state, config = self.state, self.state.config
        if config.spec.learns_from == "best_samples":
            texts, round_, in_round = state.chosen_texts, *divmod(state.steps_done, config.updates_per_round)
            order: tuple[str | int, ...] = ("kept texts", round_)
        else:
            texts, in_round, order = self.texts, state.steps_done, ("labels",)
        count, is_weighted = len(texts), config.spec.learns_from == "labels"
        size = min(config.label_batch, count)
        indices = shuffled_indices(range(in_round * size, (in_round + 1) * size), count, config.seed, *order)
        weights = [self.text_weights[i] for i in indices] if is_weighted else None
        metrics = sft_update(state, [texts[i] for i in indices], weights)
        state.episodes += size
        return metrics | {"epoch": (in_round + 1) * size / count}

    def _update_on_pairs(self) -> dict[str, float]:
        """dpo; half of the pairs are those of `edit_pairs`, if there are any."""
        state, config = self.state, self.state.config
        edit_pairs, label_count, step = self.edit_pairs(), len(self.pairs), state.steps_done
        size = min(max(1, config.label_batch // 2) if edit_pairs else config.label_batch, label_count)
        indices = shuffled_indices(range(step * size, (step + 1) * size), label_count, config.seed, "labels")
        blocks = [self.pairs]
        if edit_pairs:
            round_, in_round = divmod(step, config.updates_per_round)
            positions = range(in_round * size, (in_round + 1) * size)
            drawn = shuffled_indices(positions, len(edit_pairs), config.seed, "edit pairs", round_)
            indices += [label_count + i for i in drawn]
            per_round = len(self.edits) * config.edit_samples
            blocks += [edit_pairs[i : i + per_round] for i in range(0, len(edit_pairs), per_round)]
        # By block, so that a resumed run reads the same batches and gets the same numbers.
        self._references += [reference_sums(state, block) for block in blocks[len(self._references) :]]
        pairs = [pair for block in blocks for pair in block]
        metrics = preference_update(state, [pairs[i] for i in indices], torch.cat(self._references)[indices])
        state.episodes += len(indices)
        return metrics | {"epoch": (step + 1) * size / label_count}

    def edit_pairs(self) -> list[LabelPair]:
        """Each edited answer with each response that was sampled for it, round by round."""
        edits = itertools.cycle(edit for edit in self.edits for _ in range(self.state.config.edit_samples))
        return [
            edit._replace(rejected=text.response) for text, edit in zip(self.state.chosen_texts, edits, strict=False)
        ]

    def measure_policy(self) -> tuple[dict[str, float], OldPolicy]:
        """Score, KL, entropy and length of the policy's responses to a step's prompts, and the responses."""
        state, config = self.state, self.state.config
        prompts = [self.prompt_ids[i] for i in prompt_indices(state.steps_done, len(self.prompt_ids), config)]
        tokens = self.sample_responses(prompts, "rollout", state.steps_done)[1].tokens
        batch, start_time = make_batch(self.backbone, prompts, tokens), self.state.working_time()
        logprobs = torch.zeros(batch.mask.shape, device=batch.mask.device)
        score_metrics = {} if self.task.scorer is None else self.score_metrics(prompts, tokens)

        @torch.no_grad()
        def read(indices: list[int], rows: Batch) -> Tensor:
            state.on_progress()
            output = state.policy.evaluate(rows, config.temperature)
            logprobs[indices, : rows.mask.shape[1]] = output.logprobs.to(logprobs)
            log_ratios = output.logprobs - state.policy.reference_logprobs(rows, config.temperature)
            return torch.stack([log_ratios.sum(1), -output.logprobs.sum(1), output.entropy.sum(1)], dim=1)

        kl, entropy, token_entropy = map_responses(self.backbone, read, prompts, tokens).double().T
        metrics = {
            "objective/kl": float(kl.mean()),
            **score_metrics,
            "objective/entropy": float(entropy.mean()),
            "policy/entropy_avg": float(token_entropy.sum() / sum(map(len, tokens))),
            "tokens/response_len": sum(map(len, tokens)) / len(tokens),
            "val/stop_token_rate": float(batch.ended.double().mean()),
        }
        if self.task.gold is not None:
            metrics["objective/gold"] = sum(map(self.task.gold, *self.texts_of(batch))) / len(tokens)
        check_metrics(metrics, self.backbone.model.dtype, state.steps_done + 1)
        state.update_kl_control(metrics["objective/kl"], len(tokens))
        return metrics | {"time/score": self.state.working_time() - start_time}, OldPolicy(batch, logprobs)

    def score_metrics(self, prompts: list[list[int]], responses: list[list[int]]) -> dict[str, float]:
        """Mean and standard deviation of the scores, and the mean of each reward term."""
        scored = self.score(prompts, responses)
        means = {"objective/scores": float(scored.scores.mean()), "objective/scores_sd": float(scored.scores.std())}
        return means | scored.term_metrics()

    def score(self, prompts: list[list[int]], responses: list[list[int]]) -> ScoredResponses:
        """The scores (N,) are float64, in the run's unit."""
        state = self.state
        scored = score_responses(state.policy, self.scorer, prompts, responses, state.config, state.on_progress)
        scores = self.scores_in_unit(scored.scores).double().cpu()
        check_scores(scores, state.steps_done + 1)
        return scored._replace(scores=scores)

    def start_round(self) -> dict[str, float]:
        """Sample with the policy. Rejection sampling: candidates, of which the best one for each prompt is kept. dpo: responses
        to the prompts of edited answers."""
        state, config = self.state, self.state.config
        round_ = state.steps_done // config.updates_per_round
        if config.spec.learns_from != "best_samples":
            prompts = [edit.prompt for edit in self.edits for _ in range(config.edit_samples)]
            responses = self._sample_in_batches(prompts, "edit samples", round_)
            state.chosen_texts += map(ChosenText, prompts, responses)
            del self._references[1 + round_ :]
            return {}
        count = config.texts_per_round
        positions = range(round_ * count, (round_ + 1) * count)
        chosen_prompts = shuffled_indices(positions, len(self.prompt_ids), config.seed, "candidate prompts")
        prompts = [self.prompt_ids[i] for i in chosen_prompts for _ in range(config.candidates)]
        responses = self._sample_in_batches(prompts, "candidates", round_)
        rewards = self.score(prompts, responses).scores
        ended = torch.tensor([response[-1] in self.backbone.eos_ids for response in responses])
        rewards = rewards.where(ended, rewards - config.missing_eos_penalty).view(-1, config.candidates)
        state.chosen_texts = best_texts(prompts, responses, rewards)
        return {
            "rejection/rewards": float(rewards.mean()),
            "rejection/kept_rewards": float(rewards.amax(1).mean()),
        }

    def _sample_in_batches(self, prompts: list[list[int]], purpose: str, round_: int) -> list[list[int]]:
        """A response of the policy to each prompt."""
        responses, size = list[list[int]](), self.state.config.batch_size
        for start in range(0, len(prompts), size):
            chunk = prompts[start : start + size]
            responses += self.sample_responses(chunk, purpose, round_, offset=start)[1].tokens
        return responses


def relative_weights(weights: Sequence[float], sizes: Sequence[float] | None = None) -> list[float]:
    """Weights over their mean, which must be above 0. sizes: how often each counts in the mean; None: once."""
    mean = fmean(weights, sizes)
    return [weight / mean for weight in weights]


def best_texts(prompts: Sequence[list[int]], responses: Sequence[list[int]], rewards: Tensor) -> list[ChosenText]:
    """The response with the highest reward of each group, the first of equals. rewards: (groups, candidates), row by row."""
    size = rewards.shape[1]
    best = [group * size + index for group, index in enumerate(rewards.argmax(1).tolist())]
    return [ChosenText(prompts[i], responses[i]) for i in best]
