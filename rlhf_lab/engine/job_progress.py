"""Progress of a job, and the estimated time left."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rlhf_lab.common.progress import ProgressCallback
from rlhf_lab.models.sampling.sampler import PROGRESS_EVERY


class JobProgress(NamedTuple):
    """fraction: from 0 to 1. eta_s: estimated seconds left, None if unknown. partial_result: can already be shown on the page;
    None leaves the last one."""

    fraction: float
    eta_s: float | None
    partial_result: dict[str, Any] | None = None


SAMPLING_REPORT_S = 1.0

JobProgressCallback = Callable[[JobProgress], None]


def no_job_progress(progress: JobProgress) -> None:
    return None


def counting_tokens(
    on_progress: ProgressCallback, on_tokens: Callable[[int, int], None], max_new_tokens: int
) -> ProgressCallback:
    """A callback for the sampling of one batch that also calls `on_tokens` with the number of tokens that each text has so far
    and the maximum number."""
    tokens = 0

    def count() -> None:
        nonlocal tokens
        tokens = min(tokens + PROGRESS_EVERY, max_new_tokens)
        on_tokens(tokens, max_new_tokens)
        on_progress()

    return count


class SamplingProgress:
    """How many of a number of texts are sampled, and the seconds left: estimated at first, then at the measured rate."""

    def __init__(self, estimate_s: Callable[[int], float | None]) -> None:
        self.estimate_s = estimate_s
        self._total, self._done = 0, 0.0
        self._started_at = self._reported_at = 0.0

    def update(self, done: float, total: int) -> dict[str, Any] | None:
        """{"done", "total", "left_s"}; None if less than SAMPLING_REPORT_S passed since the last report of the same texts."""
        now = time.monotonic()
        is_new = total != self._total or done < self._done
        if is_new:
            self._started_at = now
        self._total, self._done = total, done
        if not is_new and done < total and now - self._reported_at < SAMPLING_REPORT_S:
            return None
        self._reported_at = now
        left_s = (now - self._started_at) / done * (total - done) if done else self.estimate_s(total)
        return {"done": int(done), "total": total, "left_s": left_s}


class EtaEstimator:
    """Estimates the seconds left from the mean duration of the steps since `start_step`."""

    def __init__(self, start_step: int) -> None:
        self.restart(start_step)

    def restart(self, start_step: int) -> None:
        """Start measuring again at `start_step`."""
        self.start_time, self.start_step = time.monotonic(), start_step

    def eta_s(self, step: int, total_steps: int) -> float | None:
        """Estimated seconds left; None before the first step is done."""
        if step <= self.start_step:
            return None
        return (time.monotonic() - self.start_time) / (step - self.start_step) * (total_steps - step)
