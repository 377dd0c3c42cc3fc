"""Keeps the scores of a run free of the ignored attributes while the policy changes (models/attribute_correction.py).

The policy moves to texts for which the slopes of the base's texts are no longer right. At every step that makes a checkpoint
they are fitted again to the responses of the last steps. Centre and unit of the scores stay those of the base's texts.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_lab.models.attribute_correction import AttributeCorrection, token_attributes
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.policy.rollout import Scorer
from rlhf_lab.training.policy.weighted_reward import WeightedReward

#: Whose responses the slopes are fitted to: with more, less of the attribute remains in the scores (docs/LEARNING.md).
WINDOW_STEPS, OLD_WINDOW_STEPS = 20, 5  # old: of runs that began before version 0.3.1, which keep theirs
ROWS, SLOPES, WINDOW = "correction.rows", "correction.slopes", "correction.window"  # names in a saved state


class AttributeRefit:
    """The correction of a run's reward model, which is replaced at each refit; the model belongs to the run alone.

    rows: (R, A + 2) float64 on the CPU, of the responses of the last `window` steps: step, head score, attributes.
    own_correction: the correction with which the model was trained, as JSON: refitted slopes are those of this model alone.
    """

    def __init__(self, model: RewardModel, correction: AttributeCorrection) -> None:
        self.model, self.own_correction = model, correction.to_json()
        self.window = WINDOW_STEPS
        self.rows = torch.zeros(0, len(correction.names) + 2, dtype=torch.float64)

    @property
    def correction(self) -> AttributeCorrection:
        assert self.model.correction is not None
        return self.model.correction

    def add(
        self, step: int, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], scores: Tensor
    ) -> None:
        """Add the responses of a step, with the model's scores (N,); those of earlier steps than the window are dropped."""
        attributes = token_attributes(self.model.backbone, prompts, responses, self.correction.names)
        head_scores = self.correction.undo(scores, attributes)
        steps = torch.full((len(attributes), 1), float(step), dtype=torch.float64)
        rows = torch.cat([self.rows, torch.cat([steps, head_scores[:, None], attributes], dim=1)])
        self.rows = rows[rows[:, 0] > step - self.window]

    def refit(self) -> None:
        """Fit the slopes to the responses of the window; attributes that hardly vary there keep theirs."""
        if len(self.rows):
            self.model.correction = self.correction.refitted(self.rows[:, 1], self.rows[:, 2:])

    def tensors(self) -> dict[str, Tensor]:
        return {ROWS: self.rows.clone(), SLOPES: self.correction.slopes.clone(), WINDOW: torch.tensor(self.window)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned for the same `own_correction`."""
        self.rows, self.window = tensors[ROWS].clone(), int(tensors.get(WINDOW, OLD_WINDOW_STEPS))
        self.model.correction = dataclasses.replace(self.correction, slopes=tensors[SLOPES].clone())


def copy_scorer(scorer: Scorer | None) -> tuple[Scorer | None, AttributeRefit | None]:
    """The scorer with a reward model of its own if the model ignores attributes, and what refits it."""
    model = scorer.reward_model if isinstance(scorer, WeightedReward) else scorer
    if not isinstance(model, RewardModel) or model.correction is None:
        return scorer, None
    own = dataclasses.replace(model)
    refit = AttributeRefit(own, model.correction)
    return dataclasses.replace(scorer, reward_model=own) if isinstance(scorer, WeightedReward) else own, refit
