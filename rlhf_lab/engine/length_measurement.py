"""Measures which share of a project's texts ends within each candidate length, and what that costs (a MEASURE_LENGTH job).

Texts are sampled once, at the longest candidate that the model's context and the time allow; jobs/answer_length.py computes the
table from their lengths and from the times at which they had so many tokens.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Project
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.common.text import cut_length
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.prompt_filter import filter_prompts
from rlhf_lab.errors import LabelError
from rlhf_lab.jobs.answer_length import CANDIDATES, INSTRUCTION, length_rows, with_instruction
from rlhf_lab.jobs.model_speed import ModelSpeed
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.sampling.sampler import PROGRESS_EVERY, sample, uniforms
from rlhf_lab.store.projects import prompts

BUDGET_S = 30.0
BATCH_ROWS, MAX_ROWS = (32, 16, 8), 64  # texts of each variant: in a batch, according to the speed, and in all


class _TimeIsUpError(Exception):
    """Ends the sampling of a batch."""


class _Clock:
    """The progress callback of one batch: measures after how many seconds the texts had how many tokens.

    The time that other jobs took in between does not count.
    """

    def __init__(self, on_progress: ProgressCallback, seconds_left: float) -> None:
        self._on_progress, self._seconds_left = on_progress, seconds_left
        self._start, self._tokens = time.monotonic(), 0
        self._seconds: dict[int, float] = {}
        self._total = 0.0

    def __call__(self) -> None:
        elapsed, paused_at = self.elapsed(), time.monotonic()
        self._tokens += PROGRESS_EVERY
        self._seconds[self._tokens] = elapsed
        if elapsed > self._seconds_left:
            raise _TimeIsUpError
        self._on_progress()
        self._start += time.monotonic() - paused_at

    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def stop(self) -> float:
        """The seconds of the whole batch."""
        self._total = self.elapsed()
        return self._total

    def seconds_until(self, tokens: int) -> float:
        """Seconds until every text had so many tokens or had ended; for numbers in between, those of the next measured one."""
        return next((seconds for count, seconds in self._seconds.items() if count >= tokens), self._total)


def measure_length(
    model_cache: ModelCache,
    project: Project,
    *,
    budget_s: float = BUDGET_S,
    on_progress: ProgressCallback = no_progress,
) -> dict[str, Any]:
    """Sample answers to train prompts as the project does, and for a chat model also with a short instruction.

    Both variants have the same prompts and random numbers. Batches are added while the next one fits the budget (seconds).
    Result: rows (`LengthRow` as dicts), system_prompt (without the instruction), seconds, note (a message, or "").
    Raises LabelError if the project has no prompts, or if not even one batch fits the budget.
    """
    backbone, adapters = model_cache.load_project(project)
    available = prompts(model_cache.db, project.id, "train")
    if not available:
        raise LabelError(f"project {project.id} has no prompts to write for. Add some prompts.")
    fitting = filter_prompts(backbone, available, CANDIDATES[-1], shortens=True)
    limits = [limit for limit in CANDIDATES if limit < fitting.response_length] + [fitting.response_length]
    generator = torch.Generator().manual_seed(derive_seed(project.seed, "length prompts"))
    order = torch.randperm(len(fitting.prompts), generator=generator).tolist()[:MAX_ROWS]
    variants = _encoded_variants(backbone, project, [fitting.prompts[i].text for i in order])
    batch_rows = _batch_rows(model_cache.speed, limits[-1], budget_s / len(variants))
    lengths: list[list[int | None]] = [[] for _ in variants]
    seconds = [dict.fromkeys(limits, 0.0) for _ in variants]
    spent = 0.0
    with contextlib.suppress(_TimeIsUpError), adapters.using(None):
        for start in range(0, len(order), batch_rows):
            if start and spent * (start + batch_rows) / start > budget_s:
                break
            rows, batch = range(start, min(start + batch_rows, len(order))), []
            uniform = uniforms([derive_seed(project.seed, "length", i) for i in rows], limits[-1])
            for encoded in variants:
                clock = _Clock(on_progress, budget_s - spent)
                prompt_ids = [encoded[i] for i in rows]
                sampled = sample(backbone, prompt_ids, uniform, temperature=project.temperature, on_progress=clock)
                spent += clock.stop()
                batch.append((sampled.tokens, {limit: clock.seconds_until(limit) for limit in limits}))
            for i, (responses, times) in enumerate(batch):  # a variant without the other could not be compared
                lengths[i] += [_ended_length(backbone, ids) for ids in responses]
                seconds[i] = {limit: seconds[i][limit] + times[limit] for limit in limits}
    if not lengths[0]:
        raise LabelError(
            f"the length of the answers could not be measured within {budget_s:.0f} s: the model is too slow here, or the "
            "machine is busy. Measure again, or choose a length yourself, under Project."
        )
    tables = [length_rows(column, seconds[i], adds_instruction=i > 0) for i, column in enumerate(lengths)]
    return {
        "rows": [asdict(row) for table in tables for row in table],
        "system_prompt": project.system_prompt,
        "seconds": round(spent, 1),
        "note": fitting.message,
    }


def _batch_rows(speed: ModelSpeed, limit: int, seconds: float) -> int:
    """The largest number of rows whose sampling takes at most so many seconds, as far as the speed is known."""
    if not (speed.sampling and speed.response_tokens):
        return BATCH_ROWS[0]
    return next((rows for rows in BATCH_ROWS if speed.sampling_seconds(rows, limit) <= seconds), BATCH_ROWS[-1])


def _encoded_variants(backbone: Backbone, project: Project, texts: Sequence[str]) -> list[list[list[int]]]:
    """The prompts' ids, with the project's system prompt and, for a chat model, with the instruction added to it."""
    variants = [[backbone.encode_prompt(text) for text in texts]]
    if backbone.tokenizer.chat_template and INSTRUCTION not in project.system_prompt:
        settings = project.chat_settings
        backbone.chat_settings = type(settings)(with_instruction(settings.system_prompt), settings.template_arguments)
        try:
            variants.append([backbone.encode_prompt(text) for text in texts])
        finally:
            backbone.chat_settings = settings
    return variants


def _ended_length(backbone: Backbone, ids: Sequence[int]) -> int | None:
    return len(ids) if cut_length(ids, backbone.eos_ids) is None else None
