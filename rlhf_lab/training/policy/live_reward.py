"""The reward model of a live run: a linear head on the frozen model's features, which is replaced as people label.

Scores of all heads are on one scale: each has mean 0 and standard deviation 1 on the same responses of the reference, whose
features are computed once. So is the search for the best checkpoint: the features of each checkpoint's responses to the held-out
prompts are kept, and the newest head scores all of them. A new head therefore costs two matrix products.

Where scores ignore attributes of the texts (models/attribute_correction.py), the slopes are fitted for every new head and at
every step that makes a checkpoint: to the responses of the last five steps, whose features are then computed, too, and before
these five steps to those of the reference.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.attribute_correction import AttributeCorrection, token_attributes
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.policy.kl_control import BestCheckpoint, KLControl, ScoreUnit, updated_best

#: Whose responses the slopes of ignored attributes are fitted to; checkpoints contain their features.
LIVE_WINDOW_STEPS = 5
#: Names in a saved state.
WEIGHTS, REFERENCE, HELD_OUT, WINDOW = "live.weights", "live.reference", "live.held_out.", "live.window."
LIVE = "live"  # of the numbers in a saved state: version, labels, KL budget
CORRECTION = "live_correction"  # in a saved state: of a head that ignores attributes
A = len(ATTRIBUTES)


class LiveReward:
    """The newest head of a run, and what a new one needs to know of texts.

    Texts are rows (N, A + F) float32: all A attributes, then the F features. model: scores with the head. version: 0 before the
    first head. labels: what it learned from. ignored: names of the attributes that its scores ignore. reference: (U, A + F) of
    the reference's responses, (0, A + F) before they are sampled. held_out: by step, of each checkpoint within the KL budget.
    window: by step, the responses of the last steps, while attributes are ignored.
    """

    def __init__(self, backbone: Backbone, adapters: Adapters, features: FeatureSpec) -> None:
        size = features.size(backbone)
        head = RewardHead(size, features, 0).to(backbone.device)
        head.requires_grad_(False)
        self.model = RewardModel(backbone, adapters, None, head)
        self.version = self.labels = 0
        self.ignored: tuple[str, ...] = ()
        self.reference = torch.zeros(0, A + size)
        self.held_out: dict[int, Tensor] = {}
        self.window: dict[int, Tensor] = {}

    def set_head(self, version: int, labels: int, weights: NDArray[np.float32], ignored: Sequence[str] = ()) -> None:
        """Score with other weights (F,) from now on, without the effect of the ignored attributes."""
        self.version, self.labels, self.ignored = version, labels, tuple(ignored)
        self.window = self.window if ignored else {}
        self._set_weights(torch.from_numpy(weights.copy()))
        self.refit()

    def set_reference(self, texts: Tensor) -> None:
        """Set the responses of the reference (U, A + F), on which scores have mean 0 and standard deviation 1."""
        self.reference = texts.float().cpu()
        self._normalise()
        self.refit()

    def read(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback = no_progress,
    ) -> Tensor:  # fmt: skip
        """(N, A + F) rows of texts, given as token ids."""
        attributes = token_attributes(self.model.backbone, prompts, responses, tuple(ATTRIBUTES))
        return torch.cat([attributes.float(), self.model.features(prompts, responses, on_progress)], dim=1)

    def add_responses(self, step: int, texts: Tensor) -> None:
        """Add the responses of a step (N, A + F); those of earlier steps than the window are dropped."""
        self.window = {s: rows for s, rows in self.window.items() if s > step - LIVE_WINDOW_STEPS} | {step: texts}

    def refit(self) -> None:
        """Fit the slopes of the ignored attributes again; centre and unit of the scores are those of the reference."""
        self.model.correction = None
        if not self.ignored or not self.version or not len(self.reference):
            return
        reference, recent = self.reference, list(self.window.values())
        correction = AttributeCorrection.fit(self.ignored, self._head_scores(reference), self._attributes(reference))
        if len(recent) == LIVE_WINDOW_STEPS:
            texts = torch.cat(recent)
            correction = correction.refitted(self._head_scores(texts), self._attributes(texts))
        self.model.correction = correction

    def scores_of(self, texts: Tensor) -> Tensor:
        """(N,) float32 scores of texts (N, A + F), on the CPU."""
        scores, correction = self._head_scores(texts), self.model.correction
        return scores if correction is None else correction.apply(scores, self._attributes(texts))

    def _head_scores(self, texts: Tensor) -> Tensor:
        scores: Tensor = self.model.head(texts[:, A:].to(self.model.backbone.device))
        return scores.float().cpu()

    def _attributes(self, texts: Tensor) -> Tensor:
        names = list(ATTRIBUTES)
        return texts[:, [names.index(name) for name in self.ignored]].double()

    def best_checkpoint(self) -> BestCheckpoint | None:
        """The best of the checkpoints so far by the newest head; None without any."""
        best = None
        for step, texts in sorted(self.held_out.items()):
            scores = self.scores_of(texts).double()
            best = updated_best(best, step, float(scores.mean()), float(scores.std()) / math.sqrt(len(scores)))
        return best

    def tensors(self) -> dict[str, Tensor]:
        weights = self.model.head.heads[0].linear.weight[0]
        by_step = {f"{HELD_OUT}{step}": texts for step, texts in self.held_out.items()}
        by_step |= {f"{WINDOW}{step}": texts for step, texts in self.window.items()}
        return {WEIGHTS: weights.detach().cpu().clone(), REFERENCE: self.reference} | by_step

    def numbers(self, control: KLControl) -> dict[str, Any]:
        correction = self.model.correction
        return {LIVE: [self.version, self.labels, control.budget]} | (
            {CORRECTION: correction.to_json()} if correction is not None else {}
        )

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any], control: KLControl) -> None:
        """Restore what `tensors` and `numbers` returned."""
        version, labels, control.budget = numbers[LIVE]
        self.version, self.labels = int(version), int(labels)
        self.held_out, self.window = (
            {int(name.removeprefix(prefix)): rows for name, rows in tensors.items() if name.startswith(prefix)}
            for prefix in (HELD_OUT, WINDOW)
        )
        self.reference = tensors[REFERENCE]
        self._set_weights(tensors[WEIGHTS])
        saved = numbers.get(CORRECTION)
        self.model.correction = None if saved is None else AttributeCorrection.from_json(saved)
        self.ignored = () if saved is None else tuple(saved["names"])

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
            head.normalise(head.raw_members(self.reference[:, A:].to(self.model.backbone.device)))


#: Scores of a `LiveReward` are already in the unit of the reference's scores.
LIVE_UNIT = ScoreUnit(0.0, 1.0)
