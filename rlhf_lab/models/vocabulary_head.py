"""From hidden states to logits over the tokens of the tokenizer.

Some architectures multiply the head's output by a constant (Cohere, Granite) or bound it (Gemma 2). Many embedding
matrices have more rows than the tokenizer has tokens, because their number was rounded up for the hardware. The extra
ids decode to nothing, so they get no logit: they are never sampled and do not count in any probability.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.errors import ModelError
from rlhf_lab.kernels.matmul import linear

SOFT_CAP_FIELDS = ("final_logit_softcapping", "logits_soft_cap")
FACTOR_FIELDS, DIVISOR_FIELDS = ("logit_scale", "lm_head_multiplier"), ("logits_scaling",)
MULTIPLYING_MODEL_TYPES = ("hyperclovax",)  # whose `logits_scaling` is a factor


@dataclass(frozen=True)
class VocabularyHead:
    """logits = soft_cap · tanh(z / soft_cap) with z = scale · head(hidden states); without a soft cap they are z.

    size: the number of logits, one more than the largest token id. missing_ids: smaller ids that no token has; their
    logits are -inf. weight, bias: (size, H) and (size,), views of a frozen linear layer; weight is None if `module` has
    to compute, because it is sharded or no linear layer.
    """

    module: nn.Module
    size: int
    scale: float = 1.0
    soft_cap: float | None = None
    missing_ids: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None

    @property
    def linear_weight(self) -> Tensor | None:
        """`weight` if logits = scale · (hidden states · weightᵀ + bias); else None."""
        is_linear = self.soft_cap is None and self.missing_ids is None and self.scale > 0
        return self.weight if is_linear else None

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., size) of hidden states (..., H)."""
        weight = self.weight
        logits = self.module(hidden)[..., : self.size] if weight is None else linear(hidden, weight, self.bias)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits if self.missing_ids is None else logits.index_fill(-1, self.missing_ids, -torch.inf)


def make_vocabulary_head(model: Any, token_ids: Iterable[int], *, sharded: bool = False) -> VocabularyHead:
    """The head of a frozen model whose tokenizer has these ids. Raises ModelError if the model can produce none."""
    module, config = model.get_output_embeddings(), model.config.get_text_config()
    row_count = int(module.weight.shape[0])
    known_ids = {token_id for token_id in token_ids if 0 <= token_id < row_count}
    if not known_ids:
        raise ModelError(
            "the tokenizer has no token that the model can produce. Save the model's own tokenizer with it."
        )
    size = max(known_ids) + 1
    missing = sorted(set(range(size)) - known_ids)
    weight: Tensor | None = None
    bias: Tensor | None = None
    if type(module) is nn.Linear and not sharded:
        weight, bias = module.weight, module.bias
        if size < row_count:
            weight, bias = module.weight[:size], bias[:size] if bias is not None else None
    return VocabularyHead(
        module, size, logit_scale(config), logit_soft_cap(config),
        torch.tensor(missing, device=model.device) if missing else None, weight, bias,
    )  # fmt: skip


def logit_scale(config: Any) -> float:
    """The factor that the architecture applies to the head's product; 1 without one."""
    scale = 1.0
    multiplies = getattr(config, "model_type", "") in MULTIPLYING_MODEL_TYPES
    for name in (*FACTOR_FIELDS, *DIVISOR_FIELDS):
        value = getattr(config, name, None)
        if value is not None:
            scale = scale * value if name in FACTOR_FIELDS or multiplies else scale / value
    return scale


def logit_soft_cap(config: Any) -> float | None:
    """The bound of the logits; None without one."""
    return next((float(cap) for name in SOFT_CAP_FIELDS if (cap := getattr(config, name, None))), None)
