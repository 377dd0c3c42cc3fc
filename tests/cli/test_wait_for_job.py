"""Waiting for a job on the command line ends if the engine cannot start."""

import sys
from types import SimpleNamespace

import pytest

from rlhf_lab.cli import commands
from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import EngineState, JobKind, JobStatus
from rlhf_lab.errors import EngineError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project


def test_ctrl_c_ends_the_wait_and_not_the_job(tmp_path, monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_process, "ensure_engine", lambda *_: SimpleNamespace(state=EngineState.STARTING))
    monkeypatch.setattr(commands, "time", SimpleNamespace(sleep=interrupt))
    with Database.open(tmp_path) as db:
        project = create_project(db, "a project", "embedded", "", "stories", 0, [("Once", "train")])
        assert main(["pairs", "--count", "1", "--home", str(tmp_path), "--json"]) == 130
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "sampling pairs continues in the background" in captured.err
        assert [job.status for job in queue.jobs(db, project_id=project.id)] == [JobStatus.QUEUED]


def test_an_engine_that_cannot_start_is_reported_and_no_longer_waited_for(tmp_path, monkeypatch):
    start, starts = engine_process.start_engine, []

    def start_failing_engine(home, command):
        starts.append(command)
        assert len(starts) < 4
        return start(home, [sys.executable, "-c", "print('RuntimeError: std::bad_alloc')"])

    monkeypatch.setattr(engine_process, "start_engine", start_failing_engine)
    with Database.open(tmp_path) as db:
        project = create_project(db, "a project", "embedded", "", "stories", 0, [("Once", "train")])
        job = queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": 1})
        with pytest.raises(EngineError, match="no longer waiting for sampling pairs") as raised:
            commands.wait_for_job(db, tmp_path, job, "sampling pairs")
        assert "2 times in a row it ended while loading (RuntimeError: std::bad_alloc)" in str(raised.value)
        assert "too little memory" in str(raised.value)
        assert queue.get_job(db, job.id).status is JobStatus.QUEUED
    assert len(starts) == 2
