"""A reward model: a LoRA adapter and a head (or an ensemble) on the shared backbone; texts in, scores out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_lab.common.model_files import HEAD_CONFIG, HEAD_FILE
from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.errors import ModelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.attribute_correction import AttributeCorrection, token_attributes
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import Batch, make_batch, map_by_length
from rlhf_lab.models.features import FeatureSpec, features_and_states, text_features, token_states
from rlhf_lab.models.heads import EnsembleHead, RewardHead


@dataclass
class RewardModel:
    """adapter: the name of its adapter, or None for a head on the frozen backbone. correction: of the head's scores, if the
    model ignores attributes of the texts.
    """

    backbone: Backbone
    adapters: Adapters
    adapter: str | None
    head: RewardHead | EnsembleHead
    correction: AttributeCorrection | None = None

    def score_batch(self, batch: Batch) -> Tensor:
        """(B,) normalised scores; with gradients unless the caller disables them."""
        with self.adapters.using(self.adapter):
            scores: Tensor = self.head(text_features(self.backbone, batch, self.head.features))
        return self._corrected_batch(scores, batch)

    def score_batch_and_states(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B,) normalised scores, and from the same pass (B, R, H) hidden states where each response token is predicted."""
        with self.adapters.using(self.adapter):
            features, hidden = features_and_states(self.backbone, batch, self.head.features)
        return self._corrected_batch(self.head(features), batch), hidden.before_token

    def _corrected_batch(self, scores: Tensor, batch: Batch) -> Tensor:
        return scores if self.correction is None else self.corrected(scores, *batch.token_ids())

    def corrected(self, scores: Tensor, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Tensor:
        """Scores (N,) of the head less the effect of the ignored attributes of these texts, given as token ids."""
        if self.correction is None:
            return scores
        return self.correction.apply(scores, token_attributes(self.backbone, prompts, responses, self.correction.names))

    @torch.no_grad()
    def scores(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback = no_progress,
    ) -> Tensor:
        """(N,) float32 scores on the CPU, in sd of the base model's samples (mean 0)."""
        return self._map_batches(self.score_batch, prompts, responses, on_progress)

    @torch.no_grad()
    def features(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback = no_progress,
    ) -> Tensor:
        """(N, F) float32 input of the head for each text, on the CPU."""

        def of_batch(batch: Batch) -> Tensor:
            with self.adapters.using(self.adapter):
                return text_features(self.backbone, batch, self.head.features)

        return self._map_batches(of_batch, prompts, responses, on_progress)

    @torch.no_grad()
    def raw_scores(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback = no_progress,
    ) -> Tensor:
        """(K, N) float32 scores of each member before normalisation and correction, on the CPU: a difference is the logit of a
        preference, without the effect of ignored attributes on the labels.
        """

        def raw(batch: Batch) -> Tensor:
            with self.adapters.using(self.adapter):
                return self.head.raw_members(text_features(self.backbone, batch, self.head.features)).T

        return self._map_batches(raw, prompts, responses, on_progress).T

    def uncertainty(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback = no_progress,
    ) -> Tensor:
        """(N,) float32: the standard deviation of the ensemble members' scores for each text (divided by K).

        Raises ModelError for a single head.
        """
        if isinstance(self.head, RewardHead):
            raise ModelError(
                "a single head has no measure of uncertainty. Train the reward model with ensemble = 3 or more: the "
                "uncertainty of a text is how far its members differ."
            )
        raw = self.raw_scores(prompts, responses, on_progress).to(self.head.scale.device)
        spread = self.head.normalised_members(raw).std(dim=0, correction=0).cpu()
        return spread if self.correction is None else spread / self.correction.unit

    def _map_batches(
        self, score_fn: Callable[[Batch], Tensor], prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]],
        on_progress: ProgressCallback,
    ) -> Tensor:  # fmt: skip
        """(N, ...) float32 on the CPU: `score_fn` of batches of similar length, in the order of the texts."""

        def score_indices(indices: list[int]) -> Tensor:
            on_progress()
            return score_fn(make_batch(self.backbone, [prompts[i] for i in indices], [responses[i] for i in indices]))

        lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
        return map_by_length(score_indices, lengths, self.backbone).float().cpu()

    @torch.no_grad()
    def token_scores(self, prompt: Sequence[int], response: Sequence[int]) -> list[float]:
        """Contribution of each response token to the score, which is their mean. For pooling = mean only.

        The last token's contribution includes last_weight.
        """
        if self.head.features.pooling != "mean":
            raise ModelError(
                "word scores exist for pooling = mean only: a head on the last token has one score a text."
            )
        batch = make_batch(self.backbone, [prompt], [response])
        with self.adapters.using(self.adapter):
            states = token_states(self.backbone, batch, self.head.features)
        contributions = self.head.per_token(states, batch.mask)[0]
        if self.correction is not None:  # the same for each token, since no single one has the text's length
            attributes = token_attributes(self.backbone, [prompt], [response], self.correction.names)
            contributions = self.correction.apply(contributions, attributes.expand(len(contributions), -1))
        return [float(x) for x in contributions]

    def save(self, folder: Path) -> None:
        """Save the adapter in PEFT's format, and the head with its normalisation."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.adapter is not None:
            self.adapters.save(self.adapter, folder)
        save_file({k: v.detach().cpu().contiguous() for k, v in self.head.state_dict().items()}, folder / HEAD_FILE)
        metadata: dict[str, Any] = {
            **self.head.features._asdict(),
            "hidden_size": self.backbone.hidden_size,
            "adapter": self.adapter is not None,
            "backbone": self.backbone.name,
            "backbone_sha256": self.backbone.digest,
        }
        if isinstance(self.head, EnsembleHead):
            metadata["ensemble"] = {"members": len(self.head.heads), "mode": self.head.mode, "coef": self.head.coef}
        if self.correction is not None:
            metadata["correction"] = self.correction.to_json()
        (folder / HEAD_CONFIG).write_text(json.dumps(metadata, indent=1), encoding="utf-8")


def load_reward_model(backbone: Backbone, adapters: Adapters, folder: Path, adapter: str) -> RewardModel:
    """Load what `RewardModel.save` wrote, its adapter under the name `adapter`.

    Raises ModelError if files are missing or belong to another backbone.
    """
    try:
        metadata = json.loads((folder / HEAD_CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / HEAD_FILE)
        if missing := {"pooling", "adapter", "backbone", "backbone_sha256"} - set(metadata):
            raise ValueError(f"{HEAD_CONFIG} lacks {', '.join(sorted(missing))}")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"the reward model in {folder} cannot be read ({error}). Train it again.") from error
    if metadata["backbone_sha256"] != backbone.digest:
        raise ModelError(
            f'the reward model in {folder} was trained on "{metadata["backbone"]}" with other weights than '
            f'"{backbone.name}". Load that model or train a new reward model.'
        )
    head = _head_from_metadata(backbone, metadata).to(backbone.device)
    try:
        head.load_state_dict(tensors)
        correction = AttributeCorrection.from_json(metadata["correction"]) if "correction" in metadata else None
    except (RuntimeError, LookupError, TypeError, ValueError) as error:  # tensors of another shape or number of members
        raise ModelError(f"the reward model in {folder} does not fit its description. Train it again.") from error
    head.requires_grad_(False)
    if metadata["adapter"]:
        adapters.load(adapter, folder)
    return RewardModel(backbone, adapters, adapter if metadata["adapter"] else None, head, correction)


def _head_from_metadata(backbone: Backbone, metadata: dict[str, Any]) -> RewardHead | EnsembleHead:
    """An uninitialised head of the saved kind."""
    features = FeatureSpec(
        metadata["pooling"],
        float(metadata.get("last_weight", 0.0)),  # older heads: a plain mean
        metadata.get("layers", "last"),  # older heads read no other layer
    )
    ensemble, feature_size = metadata.get("ensemble"), features.size(backbone)
    if ensemble is None:
        return RewardHead(feature_size, features, 0)
    seeds, coef = [0] * int(ensemble["members"]), float(ensemble["coef"])
    return EnsembleHead(feature_size, features, seeds, ensemble["mode"], coef)
