"""Progress of sampling before the first step of a run."""

import pytest

from rlhf_lab.engine import job_progress
from rlhf_lab.engine.job_progress import SamplingProgress


def test_the_time_left_is_estimated_first_and_then_measured(monkeypatch):
    now = 100.0
    monkeypatch.setattr(job_progress.time, "monotonic", lambda: now)
    progress = SamplingProgress(lambda texts: 2.0 * texts)
    assert progress.update(0, 128) == {"done": 0, "total": 128, "left_s": 256.0}
    now = 100.5
    assert progress.update(1.0, 128) is None  # not more often than once a second
    now = 110.0
    assert progress.update(12.8, 128) == {"done": 12, "total": 128, "left_s": pytest.approx(90.0)}  # a tenth took 10 s
    now = 110.1
    assert progress.update(128, 128) == {"done": 128, "total": 128, "left_s": 0.0}
    now = 110.2
    assert progress.update(0, 128) == {"done": 0, "total": 128, "left_s": 256.0}  # others
    now = 114.2
    assert progress.update(64, 128) == {"done": 64, "total": 128, "left_s": pytest.approx(4.0)}


def test_without_measured_rates_there_is_no_estimate_at_first():
    assert SamplingProgress(lambda _: None).update(0, 8) == {"done": 0, "total": 8, "left_s": None}
