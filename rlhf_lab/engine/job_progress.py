"""Progress of a job, and the estimated time left."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple


class JobProgress(NamedTuple):
    """fraction: from 0 to 1. eta_s: estimated seconds left, None if unknown. partial_result: can already be shown on the page."""

    fraction: float
    eta_s: float | None
    partial_result: dict[str, Any]


JobProgressCallback = Callable[[JobProgress], None]


def no_job_progress(progress: JobProgress) -> None:
    return None


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
