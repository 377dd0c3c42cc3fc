"""Scores without the linear effect of some attributes of the text, such as its length.

With head scores h and attributes z, the corrected score is (h − slopes·(z − mean)) / unit. slopes is the regression of h on z
over texts of the policy (at first of the base), so the corrected scores of these texts are not correlated with z. mean and unit
come from the base's texts: their corrected scores have mean 0 and standard deviation 1.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rlhf_lab.common.chat_format import plain_prompt
from rlhf_lab.common.text_attributes import attribute_values
from rlhf_lab.core.attribute_effects import AttributeScaler, linear_slopes
from rlhf_lab.models.backbone import Backbone

MIN_UNIT = 1e-6  # of corrected scores, if the attributes explain all differences


def token_attributes(
    backbone: Backbone, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], names: Sequence[str]
) -> Tensor:
    """(N, A) float64 attributes of responses. A response is cut off if it does not end with a stop token."""
    texts = [backbone.decode(ids, after=prompt) for prompt, ids in zip(prompts, responses, strict=True)]
    cut = [not ids or ids[-1] not in backbone.eos_ids for ids in responses]
    prompt_texts = [plain_prompt(backbone.prompt_text(ids)) for ids in prompts]
    return torch.from_numpy(attribute_values(prompt_texts, texts, cut, names))


@dataclass(frozen=True)
class AttributeCorrection:
    """names: of the ignored attributes. mean, slopes: (A,) float64. unit: in units of the head's scores."""

    names: tuple[str, ...]
    mean: Tensor
    slopes: Tensor
    unit: float

    @classmethod
    def fit(cls, names: Sequence[str], scores: Tensor, attributes: Tensor) -> Self:
        """The correction of head scores (M,) of the base's texts with attributes (M, A)."""
        slopes = fitted_slopes(scores, attributes)
        residual = scores.cpu().double() - (attributes - attributes.mean(0)) @ slopes
        return cls(tuple(names), attributes.mean(0), slopes, max(MIN_UNIT, float(residual.std())))

    def apply(self, scores: Tensor, attributes: Tensor) -> Tensor:
        """Corrected scores (N,) of head scores (N,) of texts with attributes (N, A); on the device of the scores."""
        corrected = (scores.cpu().double() - (attributes - self.mean) @ self.slopes) / self.unit
        return corrected.to(scores)

    def undo(self, corrected: Tensor, attributes: Tensor) -> Tensor:
        """(N,) float64 head scores of corrected ones."""
        return corrected.cpu().double() * self.unit + (attributes - self.mean) @ self.slopes

    def refitted(self, scores: Tensor, attributes: Tensor) -> Self:
        """With slopes fitted to head scores (M,) of other texts with attributes (M, A); an attribute that hardly varies there
        keeps its slope."""
        varies = torch.from_numpy(AttributeScaler(attributes.numpy()).varies)
        slopes = torch.where(varies, fitted_slopes(scores, attributes), self.slopes)
        return dataclasses.replace(self, slopes=slopes)

    def to_json(self) -> dict[str, Any]:
        return {
            "names": list(self.names), "mean": self.mean.tolist(), "slopes": self.slopes.tolist(), "unit": self.unit,
        }  # fmt: skip

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        mean, slopes = (torch.tensor(values[name], dtype=torch.float64) for name in ("mean", "slopes"))
        return cls(tuple(values["names"]), mean, slopes, float(values["unit"]))


def fitted_slopes(scores: Tensor, attributes: Tensor) -> Tensor:
    """(A,) float64 slopes of scores (M,) on attributes (M, A); 0 for an attribute that hardly varies."""
    values = attributes.numpy()
    scaler = AttributeScaler(values)
    slopes = linear_slopes(scores.detach().cpu().double().numpy(), scaler(values)) / scaler.sd
    return torch.from_numpy(np.where(scaler.varies, slopes, 0.0))
