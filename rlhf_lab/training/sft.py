"""Supervised fine-tuning: an adapter learns given responses to given prompts.

For models that do not answer prompts yet. The result is an adapter, or a model folder with the adapter merged into the weights.
Policy, reference and reward model then start from this folder, so the KL is measured relative to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.common.text import first_items, pluralize
from rlhf_lab.config.base import Config, setting
from rlhf_lab.core.logprobs import token_logprobs
from rlhf_lab.core.policy_losses import token_mean
from rlhf_lab.errors import ModelError, NotFiniteError, TemplateLimitError, TrainingError
from rlhf_lab.kernels.ops import HALF_DTYPES
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import Batch, forward, make_batch
from rlhf_lab.models.lora_linear import lora_weights_of
from rlhf_lab.training.optimizers import make_fused_adam, set_lr

UpdateCallback = Callable[[int, int, float], None]  # updates done, total updates, loss


@dataclass(frozen=True)
class SFTConfig(Config):
    """Settings of supervised fine-tuning."""

    epochs: int = setting(3, "passes over the examples", 1, 1000, group="run")
    batch_size: int = setting(16, "examples per update", 1, 4096, group="run")
    micro_batch: int = setting(
        8, "examples per forward and backward pass; does not change the result", 1, 4096, group="run"
    )
    lr: float = setting(1e-3, "learning rate (Adam), annealed to 0", 1e-8, 1.0, group="run")
    max_grad_norm: float = setting(1.0, "gradient clipping by global norm", 1e-3, 1e3, group="run")
    lora_r: int = setting(8, "rank of the LoRA adapter", 1, 256, group="LoRA")
    lora_alpha: int = setting(16, "LoRA scale: the update is multiplied by lora_alpha / lora_r", 1, 1024, group="LoRA")
    seed: int = setting(0, "random seed of the adapter and of the order of examples", 0, 2**31 - 1, group="run")


class SFTRow(NamedTuple):
    """line: its number in the file, for messages."""

    line: int
    prompt: str
    response: str


class SFTExample(NamedTuple):
    """Token ids; the response ends with a stop token."""

    prompt: list[int]
    response: list[int]


def encode_examples(backbone: Backbone, rows: Sequence[SFTRow]) -> list[SFTExample]:
    """Encode prompts and responses as for the policy.

    Raises TrainingError for an empty list, and for rows that cannot be trained on, with the numbers of their lines: a training
    would end at the first of them, after hours.
    """
    if not rows:
        raise TrainingError("there are no examples to learn from. Give prompts with their responses.")
    examples, lines_by_problem = [], dict[str, list[int]]()
    for row in rows:
        try:
            example = SFTExample(backbone.encode_prompt(row.prompt), backbone.encode_response(row.response))
            problem = _find_problem(backbone, example)
        except TemplateLimitError:
            raise  # of the model, not of this row
        except ModelError as error:
            problem = str(error).rstrip(".")
        if problem:
            lines_by_problem.setdefault(problem, []).append(row.line)
        else:
            examples.append(example)
    if lines_by_problem:
        listed = "; ".join(f"line {first_items(lines)}: {problem}" for problem, lines in lines_by_problem.items())
        raise TrainingError(
            f"{pluralize(len(rows) - len(examples), 'example')} of {len(rows):,} cannot be used. {listed}. Shorten or correct "
            "these lines, or take them out; nothing was trained."
        )
    return examples


def _find_problem(backbone: Backbone, example: SFTExample) -> str:
    """Why the model cannot be trained on an example; "" if it can."""
    if len(example.prompt) + len(example.response) > backbone.context_length:
        return f"longer than the model's context of {backbone.context_length:,} tokens"
    return "" if set(example.response) - set(backbone.eos_ids) else "the response has only stop tokens"


def train_sft(
    backbone: Backbone, adapters: Adapters, examples: Sequence[SFTExample], config: SFTConfig, *, adapter: str = "sft",
    on_update: UpdateCallback = lambda *_: None, on_progress: ProgressCallback = no_progress,
) -> list[float]:  # fmt: skip
    """Train the adapter; returns the loss of each update, nats per response token.

    Raises TrainingError without examples, ModelError for one that does not fit the context, NotFiniteError.
    """
    if not examples:
        raise TrainingError("there are no examples to learn from. Give prompts with their responses.")
    adapters.add(
        adapter, r=config.lora_r, alpha=config.lora_alpha, seed=derive_seed(config.seed, "sft"), trainable=True
    )
    parameters = adapters.parameters(adapter)
    optimizer = make_fused_adam(torch.optim.Adam, parameters, lr=config.lr)
    batches = [batch for epoch in range(config.epochs) for batch in _epoch_batches(len(examples), epoch, config)]
    losses: list[float] = []
    for update_index, batch in enumerate(batches):
        set_lr(optimizer, config.lr * (1 - update_index / len(batches)))
        losses.append(_batch_backward(backbone, adapters, adapter, [examples[i] for i in batch], config, on_progress))
        if not torch.isfinite(nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)):
            raise NotFiniteError(
                "the gradient of the supervised start became NaN or infinite. Lower the learning rate."
            )
        optimizer.step()
        optimizer.zero_grad()
        on_update(update_index + 1, len(batches), losses[-1])
    adapters.freeze(adapter)
    return losses


def response_loss(backbone: Backbone, batch: Batch, denominator: Tensor | float | None = None) -> Tensor:
    """Mean cross-entropy of the response tokens with the active adapter, nats per token; differentiable."""
    hidden = forward(backbone, batch, predict_only=True).before_token
    response_indices = batch.response_indices
    logprobs = token_logprobs(backbone.logits(hidden[response_indices]), batch.responses[response_indices])
    return -token_mean(logprobs, torch.ones_like(logprobs, dtype=torch.bool), denominator)


def _batch_backward(
    backbone: Backbone,
    adapters: Adapters,
    adapter: str,
    examples: list[SFTExample],
    config: SFTConfig,
    on_progress: ProgressCallback,
) -> float:
    """Accumulate the gradient of one batch over its micro-batches; returns the batch's loss."""
    token_count, total = float(sum(len(example.response) for example in examples)), 0.0
    by_length = sorted(examples, key=lambda example: len(example.prompt) + len(example.response))
    for start in range(0, len(by_length), config.micro_batch):
        on_progress()
        chunk = by_length[start : start + config.micro_batch]
        batch = make_batch(backbone, [x.prompt for x in chunk], [x.response for x in chunk])
        with adapters.using(adapter):
            total += _micro_batch_backward(backbone, batch, token_count)
    if not torch.isfinite(torch.tensor(total)):
        raise NotFiniteError("the loss of the supervised start became NaN or infinite. Lower the learning rate.")
    return total


def _micro_batch_backward(backbone: Backbone, batch: Batch, token_count: float) -> float:
    """One micro-batch's share of the loss. Frees its graph on return (see policy/update.py)."""
    loss = response_loss(backbone, batch, token_count)
    loss.backward()
    return float(loss.detach())


def _epoch_batches(count: int, epoch: int, config: SFTConfig) -> list[list[int]]:
    generator = torch.Generator().manual_seed(derive_seed(config.seed, "sft order", epoch))
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return [order[start : start + config.batch_size] for start in range(0, count, config.batch_size)]


def check_mergeable(backbone: Backbone) -> None:
    """Raises ModelError for a model that `save_merged` would refuse. Call it before training."""
    for name, layer in backbone.model.named_modules():
        if isinstance(layer, nn.Linear | Conv1D) and layer.weight.dtype in HALF_DTYPES:
            raise _half_precision_error(name, layer.weight.dtype)


def _half_precision_error(name: str, dtype: torch.dtype) -> ModelError:
    return ModelError(
        f"the adapter cannot be merged into {name}: {dtype} would round its update away. Load the model in float32, or keep "
        "the adapter as a separate file."
    )


@torch.no_grad()
def save_merged(backbone: Backbone, adapters: Adapters, adapter: str, folder: Path) -> None:
    """Save a plain transformers model with the adapter merged into its weights.

    The backbone in memory does not change. Raises ModelError for a layer in half precision.
    """
    model: Any = backbone.model
    merged_weights = {}
    for name, layer in model.named_modules():
        if hasattr(layer, "lora_A") and adapter in layer.lora_A:
            base_weight, lora = layer.get_base_layer().weight, lora_weights_of(layer, adapter)
            if base_weight.dtype in HALF_DTYPES:
                raise _half_precision_error(name, base_weight.dtype)
            merged_weights[f"{name}.weight"] = (
                base_weight + layer.get_delta_weight(adapter)  # PEFT knows the layout of other layer types
                if lora is None
                else torch.addmm(lora.base.weight, lora.b, lora.a, alpha=lora.scale)
            )
    base_weights = {
        key.replace(".base_layer.", "."): value for key, value in model.state_dict().items() if ".lora_" not in key
    }
    model.save_pretrained(folder, state_dict=base_weights | merged_weights)
    backbone.tokenizer.save_pretrained(folder)
