"""Faults of real engine processes: unusable homes, damaged databases, full disks, and repeated kill -9."""

import logging
import random
import resource
import subprocess
import sys
import time

import psutil
import pytest
from support_engine_process import PATIENCE_S, ROOT

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.engine.__main__ import _open_log
from rlhf_lab.store.database import Database
from rlhf_lab.store.votes import vote_counts


def engine(folder, *, preexec_fn=None):
    command = [sys.executable, "-m", "rlhf_lab.engine", "--home", str(folder), "--idle-exit", "0.2"]
    return subprocess.run(  # noqa: PLW1510  a failure is what is tested
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, preexec_fn=preexec_fn
    )


def test_a_file_where_the_home_should_be_is_explained(tmp_path):
    (tmp_path / "home").write_text("mine")
    done = engine(tmp_path / "home")
    assert done.returncode == 1
    assert "choose another with --home" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "home").read_text() == "mine"


def test_a_disk_without_any_space_is_explained(tmp_path):
    done = engine(tmp_path / "home", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "space" in done.stderr


def test_a_damaged_database_is_kept_aside(tmp_path):
    Database.open(tmp_path).close()
    damaged = b"SQLite format 3\0" + b"\xff" * 8000
    (tmp_path / "lab.db").write_bytes(damaged)
    done = engine(tmp_path)
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert "Traceback" not in done.stderr
    (renamed,) = tmp_path.glob("lab.db.corrupt-*")
    assert renamed.read_bytes() == damaged
    assert engine(tmp_path).returncode == 0  # the next engine starts with a new database
    assert renamed.read_bytes() == damaged


def test_the_log_is_rotated(tmp_path):
    log = logging.getLogger("rlhf_lab.engine")
    before = list(log.handlers)
    _open_log(tmp_path)
    (mine,) = (handler for handler in log.handlers if handler not in before)
    try:
        for i in range(12 * 1024):
            log.info("%d %s", i, "x" * 1000)
    finally:
        log.removeHandler(mine)
        mine.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sorted(sizes) == ["engine.log", "engine.log.1", "engine.log.2", "engine.log.3"]
    assert max(sizes.values()) <= 2 * 2**20
    assert str(12 * 1024 - 1) in (tmp_path / "engine.log").read_text()[-1100:]


@pytest.mark.slow
def test_kill_9_at_ten_random_moments_changes_no_number_and_loses_no_label(home, reward_model_id):
    changes = {"steps": 40, "checkpoint_every": 2}
    plain, plain_job = home.run(reward_model_id, **changes)
    assert home.done(plain_job).status is JobStatus.DONE
    seconds = sum(row["time/update"] + row["time/rollout"] for row in home.times(plain)) / changes["steps"]
    votes = vote_counts(home.db, home.project.id)
    run, job = home.run(reward_model_id, **changes)
    moments = random.Random(0)
    for _ in range(10):
        home.await_steps(run, len(home.curve(run)) + 1)  # a new one: the engine that was started last is at work
        time.sleep(moments.uniform(0, 2 * seconds))
        home.kill()
        time.sleep(0.1)
    assert home.done(job).status is JobStatus.DONE
    assert home.curve(run) == home.curve(plain)
    assert sorted(home.curve(run)) == list(range(1, 41))
    assert vote_counts(home.db, home.project.id) == votes


@pytest.mark.slow
def test_a_run_and_a_chat_wait_for_a_long_write(home, reward_model_id):
    run, job = home.run(reward_model_id, steps=40)
    home.await_steps(run, 1)
    chat = home.submit(
        JobKind.CHAT, chat=[{"role": "user", "content": "Once"}], checkpoint="base", seed=0, temperature=1.0, top_p=1.0,
        max_new_tokens=24,
    )  # fmt: skip
    with home.db.write():
        time.sleep(12.0)  # longer than a page waits
    assert [home.done(one).status for one in (job, chat)] == [JobStatus.DONE] * 2


def parts(folder):
    """The processes of a run in this home, whatever their parents."""
    named = (p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"]))
    return [words for words in named if "train-policy" in words and str(folder) in words]


@pytest.mark.slow
def test_the_processes_of_a_run_end_with_a_killed_engine(home, reward_model_id):
    alone, job = home.run(reward_model_id, steps=30)
    assert home.done(job).status is JobStatus.DONE
    run, job = home.run(reward_model_id, steps=30, processes=2)
    home.await_steps(run, 3)
    assert parts(home.folder)
    home.kill()
    for _ in range(PATIENCE_S * 10):
        if not parts(home.folder):
            break
        time.sleep(0.1)
    assert not parts(home.folder)
    assert home.done(job).status is JobStatus.DONE
    one, two = home.curve(alone), home.curve(run)
    assert list(two) == list(one)
    assert [step["objective/kl"] for step in two.values()] == pytest.approx(
        [step["objective/kl"] for step in one.values()], rel=1e-2, abs=1e-3
    )
