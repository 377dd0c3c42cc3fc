"""A reward that is a weighted sum of terms: a reward model's scores, and values of functions of prompt and response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.reward_model import RewardModel

REWARD_MODEL_LABEL = "reward_model"


class FunctionScorer(Protocol):
    """Values of functions: a list of N for each function. `rlhf_lab.rewards.evaluator.FunctionTerms` is one."""

    def scores(
        self, prompts: Sequence[str], responses: Sequence[str], on_progress: ProgressCallback = no_progress
    ) -> list[list[float]]: ...


@dataclass(frozen=True)
class WeightedReward:
    """A scorer. weights: by label, in the order of `functions`. If there is a reward model, its weight has the label
    REWARD_MODEL_LABEL; without one, a function may have this label.
    """

    backbone: Backbone
    reward_model: RewardModel | None
    functions: FunctionScorer
    weights: Mapping[str, float]

    def function_scores(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], on_progress: ProgressCallback
    ) -> Tensor:
        """(N, F) float64 on the CPU: the values of each function."""
        if not self._function_labels(has_model=self.reward_model is not None):
            return torch.zeros(len(prompts), 0, dtype=torch.float64)
        prompt_texts = [self.backbone.prompt_text(ids) for ids in prompts]
        texts = [self.backbone.decode(list(ids), after=list(p)) for p, ids in zip(prompts, responses, strict=True)]
        return torch.tensor(self.functions.scores(prompt_texts, texts, on_progress), dtype=torch.float64).T

    def combine(self, model_scores: Tensor | None, function_scores: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(N,) float32 weighted sum, and the values (N,) of each term by label.

        model_scores: (N,), None without a reward model.
        """
        functions = self._function_labels(has_model=model_scores is not None)
        values = {} if model_scores is None else {REWARD_MODEL_LABEL: model_scores.double().cpu()}
        values |= dict(zip(functions, function_scores.cpu().unbind(1), strict=True))
        total = sum((self.weights[label] * value for label, value in values.items()), torch.zeros(len(function_scores)))
        return total.float(), values

    def _function_labels(self, *, has_model: bool) -> list[str]:
        return [label for label in self.weights if not (has_model and label == REWARD_MODEL_LABEL)]

    def scores(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback = no_progress,
    ) -> Tensor:
        """(N,) float32 on the CPU."""
        model = None if self.reward_model is None else self.reward_model.scores(prompts, responses, on_progress)
        return self.combine(model, self.function_scores(prompts, responses, on_progress))[0]
