"""Samples the texts of a tournament: every contestant responds to the same prompts with the same random numbers."""

from collections.abc import Sequence
from typing import Any

import torch

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Project
from rlhf_lab.engine.completions import JOB_POLICY_SLOT, complete
from rlhf_lab.engine.job_progress import EtaEstimator, JobProgress, JobProgressCallback, no_job_progress
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.prompt_filter import indices_that_fit
from rlhf_lab.errors import ModelError
from rlhf_lab.models.batch import Batch, forward
from rlhf_lab.training.evaluation import best_of_n_kl
from rlhf_lab.training.policy.rollout import map_responses, response_logprobs


def sample_contestants(
    model_cache: ModelCache, project: Project, payload: dict[str, Any], *,
    report_progress: JobProgressCallback = no_job_progress, on_progress: ProgressCallback = no_progress,
) -> dict[str, object]:  # fmt: skip
    """The texts of a TOURNAMENT job.

    payload: contestants ("base", "base/best/N", "run/ID/STEP"), prompts, seed, max_new_tokens, reward_model_id (None: no scores).
    Result: prompts (those that fit the model's context), and for each contestant its model, texts, scores (None without a reward
    model) and kl (log-ratios of its texts to the base model; for best of n the bound of `best_of_n_kl`).
    """
    backbone, _ = model_cache.load_project(project)
    fitting, max_new_tokens = indices_that_fit(backbone, payload["prompts"], payload["max_new_tokens"])
    prompts = [str(payload["prompts"][i]) for i in fitting]
    settings = {
        "seed": payload["seed"], "max_new_tokens": max_new_tokens, "reward_model_id": payload.get("reward_model_id"),
    }  # fmt: skip
    models, rows, eta = payload["contestants"], [], EtaEstimator(0)
    for i, model in enumerate(models):
        report_progress(JobProgress(i / len(models), eta.eta_s(i, len(models)) if i else None, {}))
        rows.append(_sample_contestant(model_cache, project, model, settings | {"prompts": prompts}, on_progress))
    return {"prompts": prompts, "contestants": rows}


def _sample_contestant(
    model_cache: ModelCache, project: Project, model: str, payload: dict[str, Any], on_progress: ProgressCallback
) -> dict[str, Any]:
    checkpoint, prompts = model, payload["prompts"]
    n = 1
    if model.startswith("base/best/"):
        checkpoint, n = "base", int(model.removeprefix("base/best/"))
    request = payload | {"checkpoint": checkpoint, "prompts": [prompt for prompt in prompts for _ in range(n)]}
    result = complete(model_cache, project, request, on_progress=on_progress)
    scores: list[float] | None = result.get("scores")
    if n > 1 and scores is None:
        raise ModelError("best of n needs a reward model. Choose one, or leave best of n out.")
    best = list(range(len(prompts)))
    if scores is not None:
        best = [max(range(i, i + n), key=scores.__getitem__) for i in range(0, n * len(prompts), n)]
    kl = [best_of_n_kl(n)] * len(prompts)
    if checkpoint != "base":
        kl = _log_ratios(model_cache, project, checkpoint, prompts, result["tokens"], on_progress)
    return {
        "model": model,
        "texts": [result["texts"][i].strip() for i in best],
        "scores": None if scores is None else [scores[i] for i in best],
        "kl": kl,
    }


@torch.no_grad()
def _log_ratios(
    model_cache: ModelCache,
    project: Project,
    checkpoint: str,
    prompts: Sequence[str],
    tokens: Sequence[Sequence[int]],
    on_progress: ProgressCallback,
) -> list[float]:
    """log π(text) − log π_base(text) of a checkpoint's own texts, nats; their mean estimates the KL (k1)."""
    backbone, adapters = model_cache.load_project(project)
    slot = model_cache.load_checkpoint(checkpoint, JOB_POLICY_SLOT)

    def log_ratios(_: list[int], batch: Batch) -> torch.Tensor:
        on_progress()
        sums = []
        for adapter in (slot, None):
            with adapters.using(adapter):
                hidden = forward(backbone, batch, predict_only=True).before_token
                sums.append(response_logprobs(backbone, hidden, batch, project.temperature)[0].sum(1))
        return sums[0] - sums[1]

    prompt_ids = [backbone.encode_prompt(prompt) for prompt in prompts]
    ratios: list[float] = map_responses(backbone, log_ratios, prompt_ids, tokens).double().tolist()
    return ratios
