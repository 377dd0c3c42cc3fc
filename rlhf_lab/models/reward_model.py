"""A reward model: a LoRA adapter and a head (or several) on the shared backbone; text in, score out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_lab.errors import ModelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.heads import EnsembleHead, RewardHead
from rlhf_lab.models.rows import Rows, by_length, forward, make_rows

HEAD_FILE = "reward_head.safetensors"
HEAD_CONFIG = "reward_head.json"


@dataclass
class RewardModel:
    """adapter: the name of its adapter, or None for a head on the frozen backbone."""

    backbone: Backbone
    adapters: Adapters
    adapter: str | None
    head: RewardHead | EnsembleHead

    def score_rows(self, rows: Rows) -> Tensor:
        """(B,) normalised scores; gradients flow if the caller allows them."""
        with self.adapters.using(self.adapter):
            scores: Tensor = self.head(forward(self.backbone, rows).read, rows.mask)
            return scores

    @torch.no_grad()
    def scores(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], tick: Tick = no_tick
    ) -> Tensor:
        """(N,) float32 scores on the CPU, in sd of the base model's samples (mean 0)."""
        return self._of_rows(self.score_rows, prompts, responses, tick)

    @torch.no_grad()
    def raw_scores(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], tick: Tick = no_tick
    ) -> Tensor:
        """(K, N) float32 scores of each member before normalisation, on the CPU: a difference is the logit of a preference."""

        def raw(rows: Rows) -> Tensor:
            with self.adapters.using(self.adapter):
                return self.head.raw_members(forward(self.backbone, rows).read, rows.mask).T

        return self._of_rows(raw, prompts, responses, tick).T

    def uncertainty(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], tick: Tick = no_tick
    ) -> Tensor:
        """(N,) float32: how far the members of an ensemble differ on each text, as the sd of their scores (divided by K).

        Raises ModelError for a single head, which has nobody to differ from.
        """
        if isinstance(self.head, RewardHead):
            raise ModelError(
                "a single head does not know how sure it is. Train the reward model with ensemble = 3 or more: the "
                "uncertainty of a text is how far its members differ."
            )
        return (
            self.head.members_of(self.raw_scores(prompts, responses, tick).to(self.head.scale.device))
            .std(dim=0, correction=0)
            .cpu()
        )

    def _of_rows(
        self, function: Callable[[Rows], Tensor], prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]],
        tick: Tick,
    ) -> Tensor:  # fmt: skip
        """(N, ...) float32 on the CPU: `function` of rows of similar length, in the order of the texts."""

        def some(index: list[int]) -> Tensor:
            tick()
            return function(make_rows(self.backbone, [prompts[i] for i in index], [responses[i] for i in index]))

        lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
        return by_length(some, lengths, self.backbone).float().cpu()

    @torch.no_grad()
    def token_scores(self, prompt: Sequence[int], response: Sequence[int]) -> list[float]:
        """What each response token adds to a mean-pooled score; their mean is the score. Only for pooling = mean.

        The end of the text has the last token's weight besides.
        """
        if self.head.pooling != "mean":
            raise ModelError(
                "word scores exist for pooling = mean only: a head on the last token has one score a text."
            )
        rows = make_rows(self.backbone, [prompt], [response])
        with self.adapters.using(self.adapter):
            hidden = forward(self.backbone, rows).read
        return [float(x) for x in self.head.per_token(hidden, rows.mask)[0]]

    def save(self, folder: Path) -> None:
        """Adapter in PEFT's format, and the head with its normalisation."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.adapter is not None:
            self.adapters.save(self.adapter, folder)
        save_file({k: v.detach().cpu().contiguous() for k, v in self.head.state_dict().items()}, folder / HEAD_FILE)
        about: dict[str, Any] = {
            "pooling": self.head.pooling,
            "last_weight": self.head.last_weight,
            "hidden_size": self.backbone.hidden_size,
            "adapter": self.adapter is not None,
            "backbone": self.backbone.name,
            "backbone_sha256": self.backbone.digest,
        }
        if isinstance(self.head, EnsembleHead):
            about["ensemble"] = {"members": len(self.head.heads), "mode": self.head.mode, "coef": self.head.coef}
        (folder / HEAD_CONFIG).write_text(json.dumps(about, indent=1), encoding="utf-8")


def load_reward_model(backbone: Backbone, adapters: Adapters, folder: Path, adapter: str) -> RewardModel:
    """Load what `RewardModel.save` wrote, its adapter under the name `adapter`.

    Raises ModelError if files are missing or belong to another backbone.
    """
    try:
        about = json.loads((folder / HEAD_CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / HEAD_FILE)
        if lacking := {"pooling", "adapter", "backbone", "backbone_sha256"} - set(about):
            raise ValueError(f"{HEAD_CONFIG} lacks {', '.join(sorted(lacking))}")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"the reward model in {folder} cannot be read ({error}). Train it again.") from error
    if about["backbone_sha256"] != backbone.digest:
        raise ModelError(
            f'the reward model in {folder} was trained on "{about["backbone"]}" with other weights than '
            f'"{backbone.name}". Load that model or train a new reward model.'
        )
    head = _empty_head(backbone, about).to(backbone.device)
    try:
        head.load_state_dict(tensors)
    except RuntimeError as error:  # tensors of another shape, or of another number of members
        raise ModelError(f"the reward model in {folder} does not fit its description. Train it again.") from error
    head.requires_grad_(False)
    if about["adapter"]:
        adapters.load(adapter, folder)
    return RewardModel(backbone, adapters, adapter if about["adapter"] else None, head)


def _empty_head(backbone: Backbone, about: dict[str, Any]) -> RewardHead | EnsembleHead:
    """A head of the kind that was saved, to be filled."""
    several, last_weight = about.get("ensemble"), float(about.get("last_weight", 0.0))  # older ones: a plain mean
    if several is None:
        return RewardHead(backbone.hidden_size, about["pooling"], 0, last_weight)
    seeds, coef = [0] * int(several["members"]), float(several["coef"])
    return EnsembleHead(backbone.hidden_size, about["pooling"], seeds, several["mode"], coef, last_weight)
