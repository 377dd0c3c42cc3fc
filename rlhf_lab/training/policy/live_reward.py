"""The reward model of a live run: a linear head on the frozen model's features, which is replaced as people label.

Scores of all heads are on one scale: each has mean 0 and standard deviation 1 on the same responses of the reference, whose
features are computed once. So is the search for the best checkpoint: the features of each checkpoint's responses to the held-out
prompts are kept, and the newest head scores all of them. A new head therefore costs two matrix products.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.policy.kl_control import BestCheckpoint, KLControl, ScoreUnit, updated_best

WEIGHTS, REFERENCE, HELD_OUT = "live.weights", "live.reference", "live.held_out."  # names in a saved state
LIVE = "live"  # of the numbers in a saved state: version, labels, KL budget


class LiveReward:
    """The newest head of a run, and the features that a new one needs.

    model: scores with it. version: 0 before the first head. labels: what it learned from. reference: (U, F) float32 features of
    the reference's responses, (0, F) before they are sampled. held_out: by step, (N, F) of each checkpoint within the KL budget.
    """

    def __init__(self, backbone: Backbone, adapters: Adapters, features: FeatureSpec) -> None:
        size = features.size(backbone)
        head = RewardHead(size, features, 0).to(backbone.device)
        head.requires_grad_(False)
        self.model = RewardModel(backbone, adapters, None, head)
        self.version = self.labels = 0
        self.reference = torch.zeros(0, size)
        self.held_out: dict[int, Tensor] = {}

    def set_head(self, version: int, labels: int, weights: NDArray[np.float32]) -> None:
        """Score with other weights (F,) from now on."""
        self.version, self.labels = version, labels
        self._set_weights(torch.from_numpy(weights.copy()))

    def set_reference(self, features: Tensor) -> None:
        """Set the features (U, F) of the reference's responses, on which scores have mean 0 and standard deviation 1."""
        self.reference = features.float().cpu()
        self._normalise()

    def scores_of(self, features: Tensor) -> Tensor:
        """(N,) float32 scores of features (N, F), on the CPU."""
        scores: Tensor = self.model.head(features.to(self.model.backbone.device))
        return scores.float().cpu()

    def best_checkpoint(self) -> BestCheckpoint | None:
        """The best of the checkpoints so far by the newest head; None without any."""
        best = None
        for step, features in sorted(self.held_out.items()):
            scores = self.scores_of(features).double()
            best = updated_best(best, step, float(scores.mean()), float(scores.std()) / math.sqrt(len(scores)))
        return best

    def tensors(self) -> dict[str, Tensor]:
        weights = self.model.head.heads[0].linear.weight[0]
        held_out = {f"{HELD_OUT}{step}": features for step, features in self.held_out.items()}
        return {WEIGHTS: weights.detach().cpu().clone(), REFERENCE: self.reference} | held_out

    def numbers(self, control: KLControl) -> dict[str, Any]:
        return {LIVE: [self.version, self.labels, control.budget]}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any], control: KLControl) -> None:
        """Restore what `tensors` and `numbers` returned."""
        version, labels, control.budget = numbers[LIVE]
        self.version, self.labels = int(version), int(labels)
        self.held_out = {
            int(name.removeprefix(HELD_OUT)): value for name, value in tensors.items() if name.startswith(HELD_OUT)
        }
        self.reference = tensors[REFERENCE]
        self._set_weights(tensors[WEIGHTS])

    def metrics(self, control: KLControl) -> dict[str, float]:
        return {
            "live/head": float(self.version), "live/labels": float(self.labels), "live/kl_budget": control.budget,
        }  # fmt: skip

    def _set_weights(self, weights: Tensor) -> None:
        with torch.no_grad():
            linear = self.model.head.heads[0].linear
            linear.weight.copy_(weights[None])
            linear.bias.zero_()
        self._normalise()

    def _normalise(self) -> None:
        if len(self.reference) and self.version:
            head = self.model.head
            head.normalise(head.raw_members(self.reference.to(self.model.backbone.device)))


#: Scores of a `LiveReward` are already in the unit of the reference's scores.
LIVE_UNIT = ScoreUnit(0.0, 1.0)
