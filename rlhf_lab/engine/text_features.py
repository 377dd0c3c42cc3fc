"""Computes features of texts for the instant reward model, in small batches while the engine is idle.

This also covers imported texts and texts of older homes. The texts that are needed first come first, and no job waits for
features.
"""

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlhf_lab.common.records import Completion, Prompt
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.errors import CorruptStoreError, LabError, LostStoreError
from rlhf_lab.jobs.model_speed import MAX_MEASUREMENTS, ModelSpeed
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import make_batch, map_by_length
from rlhf_lab.models.features import FeatureSpec, text_features, token_states
from rlhf_lab.store.features import Float16, TextFeatures, add_features, texts_without_features
from rlhf_lab.store.projects import current_project, get_project

log = logging.getLogger("rlhf_lab.engine")
DEFAULTS = RewardConfig()

#: The features that a reward model reads by default. A change needs a new store.features.FEATURE_VERSION.
FEATURES = FeatureSpec(DEFAULTS.pooling, DEFAULTS.last_weight, DEFAULTS.layers)
BATCH_SIZE = 8  # texts; a new job waits for at most one batch
CHECK_INTERVAL_S = 1.0
RETRY_AFTER_S = 60.0  # after an error, for example if the model cannot be loaded
REST_FACTOR = 30.0  # during a training: pause after a batch over the duration of the batch
#: Seconds spent on texts without features at the end of a sampling job, or this share of the job if that is longer: somebody who
#: labels as fast as pairs are sampled leaves the engine no idle time. The rest is done when it is idle.
NEW_TEXTS_BUDGET_S, NEW_TEXTS_SHARE = 1.0, 0.2


class FeatureBackfill:
    """Computes the missing features of a project, one batch at a time. Stored features are not computed again."""

    def __init__(self, model_cache: ModelCache) -> None:
        self.model_cache = model_cache
        self._next_at = 0.0

    def run_idle(self) -> bool:
        """Compute a batch for the open project. Returns False if there is nothing to do at present."""
        project = current_project(self.model_cache.db) if time.monotonic() >= self._next_at else None
        return project is not None and self._run_batch(project.id, rest_factor=0.0)

    def run_beside(self, project_id: int) -> None:
        """Compute a batch for the project that is being trained, then pause for REST_FACTOR times the duration."""
        if time.monotonic() >= self._next_at:
            self._run_batch(project_id, REST_FACTOR)

    def run_for(self, project_id: int, seconds: float) -> None:
        """Compute batches for a project until `seconds` have passed; an idle engine does the rest."""
        end = time.monotonic() + seconds
        while self._run_batch(project_id, rest_factor=0.0) and time.monotonic() < end:
            pass

    def _run_batch(self, project_id: int, rest_factor: float) -> bool:
        start_time = time.monotonic()
        try:
            were_missing = add_missing_features(self.model_cache, project_id)
        except (CorruptStoreError, LostStoreError):
            raise
        except Exception as error:  # labels are stored and jobs run without features
            log.warning("no features of texts: %s", error, exc_info=not isinstance(error, LabError))
            self._next_at = time.monotonic() + RETRY_AFTER_S
            return False
        if were_missing and len(self.model_cache.speed.forward) < MAX_MEASUREMENTS:
            self.model_cache.save_speed()
        now = time.monotonic()
        self._next_at = now + (rest_factor * (now - start_time) if were_missing else CHECK_INTERVAL_S)
        return were_missing


def add_missing_features(model_cache: ModelCache, project_id: int) -> bool:
    """Compute and store one batch. Returns whether any were missing."""
    texts = texts_without_features(model_cache.db, project_id, BATCH_SIZE)
    if texts:
        _, adapters = model_cache.load_project(get_project(model_cache.db, project_id))
        add_features(model_cache.db, compute_features(adapters, texts, model_cache.speed))
    return bool(texts)


def compute_features(
    adapters: Adapters, texts: Sequence[tuple[Prompt, Completion]], speed: ModelSpeed | None = None
) -> dict[int, TextFeatures]:
    """Features by completion id. A text whose features are not finite in half precision gets empty ones.

    speed: records the duration of a forward pass over a full batch.
    """
    backbone = adapters.backbone
    rows = []
    for prompt, completion in texts:
        prompt_ids = backbone.encode_prompt(prompt.text)
        response_ids = list(completion.token_ids) or backbone.encode_response(completion.text)
        if len(prompt_ids) + len(response_ids) > backbone.context_length:  # an imported text
            prompt_ids = prompt_ids[-(backbone.context_length // 2) :]
        rows.append((prompt_ids, response_ids[: backbone.context_length - len(prompt_ids)]))
    vectors = feature_vectors(adapters, rows, speed if len(texts) == BATCH_SIZE else None)
    is_finite = [bool(np.isfinite(vector).all()) for vector in vectors]
    return {
        completion.id: TextFeatures(backbone.state_count, vector if finite else vector[:0])
        for (_, completion), vector, finite in zip(texts, vectors, is_finite, strict=True)
    }


@torch.no_grad()
def token_share(adapters: Adapters, row: tuple[list[int], list[int]], tokens: slice) -> tuple[Float16, float]:
    """(layers * H,) what some tokens of a response contribute to its features, and their weight: features are a weighted mean of
    the hidden states at the tokens, so the contributions of all tokens add up to the features, and their weights to 1."""
    batch = make_batch(adapters.backbone, [row[0]], [row[1]])
    with adapters.using(None):
        states = token_states(adapters.backbone, batch, FEATURES)[0, tokens].float()
    weights = FEATURES.token_weights(batch.mask)[0, tokens]
    return (weights[:, None] * states).sum(0).half().cpu().numpy(), float(weights.sum())


@torch.no_grad()
def feature_vectors(
    adapters: Adapters, rows: Sequence[tuple[list[int], list[int]]], speed: ModelSpeed | None = None
) -> Float16:
    """(N, layers * H) features of texts, given as prompt and response token ids. speed: records the duration of the pass."""
    backbone = adapters.backbone

    def features_of(indices: list[int]) -> Tensor:
        batch = make_batch(backbone, [rows[i][0] for i in indices], [rows[i][1] for i in indices])
        return text_features(backbone, batch, FEATURES)

    lengths, start_time = [len(prompt) + len(response) for prompt, response in rows], time.monotonic()
    with adapters.using(None):
        features = map_by_length(features_of, lengths, backbone)
    vectors: Float16 = features.half().cpu().numpy()
    if speed is not None:
        speed.record_forward(time.monotonic() - start_time, sum(lengths))
    return vectors
