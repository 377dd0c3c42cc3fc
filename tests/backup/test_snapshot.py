"""A snapshot holds the state of a home at one moment, even if other processes change it during the copy."""

import hashlib
import shutil
import sqlite3
import threading
from contextlib import closing

import pytest
from support.backup_homes import add_checkpoint, add_reward_model

from rlhf_lab.backup import snapshot as module
from rlhf_lab.backup.snapshot import CheckpointRule, take_snapshot
from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.records import StepResult
from rlhf_lab.errors import StoreError
from rlhf_lab.store import projects, runs
from rlhf_lab.store.run_metrics import record_step

ALWAYS = [
    "lab.db",
    "reward_models/m/report.json",
    "reward_models/m/reward_head.safetensors",
    "rewards/mine.py",
    "speed.json",
]
CHECKPOINT_FILES = {
    1: ["runs/1/step-000001/adapter_model.safetensors", "runs/1/step-000001/state.json"],
    2: [f"runs/1/step-000002/{name}" for name in ("adapter_model.safetensors", "state.json", "trainer.safetensors")],
    3: [f"runs/1/step-000003/{name}" for name in ("adapter_model.safetensors", "state.json", "trainer.safetensors")],
}


def paths(snapshot):
    return [file.path for file in snapshot.files]


def rows(snapshot, query):
    (file,) = (file for file in snapshot.files if file.path == "lab.db")
    with closing(sqlite3.connect(file.source)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize(
    ("rule", "steps"),
    [(CheckpointRule.ALL, (1, 2, 3)), (CheckpointRule.NEWEST, (1, 3)), (CheckpointRule.NONE, ())],
)
def test_files_of_each_rule(home, tmp_path, rule, steps):
    snapshot = take_snapshot(home, tmp_path / "copy", checkpoints=rule)
    expected = sorted(ALWAYS + [path for step in steps for path in CHECKPOINT_FILES[step]])
    assert paths(snapshot) == expected
    assert rows(snapshot, "SELECT count(*) FROM votes") == [(3,)]
    for file in snapshot.files:
        content = file.source.read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())
        if file.path != "lab.db":
            assert content == (home / file.path).read_bytes()
    assert (snapshot.schema, snapshot.missing) == ("0021", ())


def test_secrets_only_on_request(home, tmp_path):
    names = set(paths(take_snapshot(home, tmp_path / "copy", secrets=True)))
    assert names - set(paths(take_snapshot(home, tmp_path / "copy"))) == {"access.json", "ended_sessions.json"}


def test_newest_skips_a_damaged_checkpoint(home, tmp_path):
    (home / "runs/1/step-000003/trainer.safetensors").write_bytes(b"trainer X")
    names = paths(take_snapshot(home, tmp_path / "copy", checkpoints=CheckpointRule.NEWEST))
    assert set(names) - set(ALWAYS) == {*CHECKPOINT_FILES[1], *CHECKPOINT_FILES[2]}


def test_the_copy_is_one_file_that_opens_read_only(home, tmp_path, db):
    snapshot = take_snapshot(home, tmp_path / "copy")
    assert not list((tmp_path / "copy").glob("lab.db?*"))
    assert rows(snapshot, "PRAGMA journal_mode") == [("delete",)]
    assert rows(snapshot, "PRAGMA integrity_check") == [("ok",)]


def test_a_snapshot_stays_when_the_home_changes(home, tmp_path, db):
    snapshot = take_snapshot(home, tmp_path / "copy")
    contents = {file.path: file.source.read_bytes() for file in snapshot.files}
    runs.set_run_status(db, 1, RunStatus.STOPPED)
    runs.delete_run(db, 1)
    shutil.rmtree(home / "runs")
    (home / "rewards/mine.py").write_text("def reward(text): return 2.0")
    assert {file.path: file.source.read_bytes() for file in snapshot.files} == contents


@pytest.mark.parametrize("can_link", [True, False])
def test_known_files_are_not_hashed_again(home, tmp_path, monkeypatch, can_link):
    def refuse(*_):
        raise OSError("no links here")

    if not can_link:
        monkeypatch.setattr(module.os, "link", refuse)
    first = take_snapshot(home, tmp_path / "first")
    (home / "rewards/mine.py").write_text("def reward(text): return 20.0")
    hashed = []
    original = module.file_sha256
    monkeypatch.setattr(module, "file_sha256", lambda path: hashed.append(path.name) or original(path))
    second = take_snapshot(home, tmp_path / "second", known=first.known)
    assert set(hashed) == {"lab.db", "mine.py"}
    assert [file.path for file in first.files if file.sha256 != dict_of(second)[file.path]] == ["rewards/mine.py"]


def dict_of(snapshot):
    return {file.path: file.sha256 for file in snapshot.files}


def test_checkpoints_are_never_ahead_of_the_database(home, tmp_path, db, monkeypatch):
    """A step, its checkpoint and a reward model are written after the checkpoints and before the database are copied."""
    original = module._Collector._copy_database

    def copy_late(collector):
        record_step(db, 1, StepResult(4, {"kl": 4.0}))
        add_checkpoint(home, 1, 4)
        add_reward_model(db, home, "later")
        return original(collector)

    monkeypatch.setattr(module._Collector, "_copy_database", copy_late)
    snapshot = take_snapshot(home, tmp_path / "copy")
    assert not [path for path in paths(snapshot) if "step-000004" in path]
    assert rows(snapshot, "SELECT max(step) FROM metrics") == [(4,)]
    assert "reward_models/later/report.json" in paths(snapshot)


def test_files_that_come_after_the_database_are_left_out(home, tmp_path, db, monkeypatch):
    original = module._Collector._copy_database

    def copy_early(collector):
        result = original(collector)
        add_reward_model(db, home, "later")
        return result

    monkeypatch.setattr(module._Collector, "_copy_database", copy_early)
    snapshot = take_snapshot(home, tmp_path / "copy")
    assert not [path for path in paths(snapshot) if "later" in path]
    assert rows(snapshot, "SELECT path FROM reward_models") == [("reward_models/m",)]


def test_checkpoints_of_a_run_that_is_deleted_before_the_database_is_copied_are_left_out(
    home, tmp_path, db, monkeypatch
):
    original = module._Collector._copy_database

    def delete_before(collector):
        runs.set_run_status(db, 1, RunStatus.DONE)
        runs.delete_run(db, 1)
        return original(collector)

    monkeypatch.setattr(module._Collector, "_copy_database", delete_before)
    snapshot = take_snapshot(home, tmp_path / "copy")
    assert rows(snapshot, "SELECT count(*) FROM runs") == [(0,)]
    assert not [path for path in paths(snapshot) if path.startswith("runs/")]


def test_a_project_deleted_meanwhile_is_in_it_whole_or_not_at_all(home, tmp_path, db, monkeypatch):
    original = module._Collector._copy_database

    def delete_afterwards(collector):
        result = original(collector)
        monkeypatch.setattr(module._Collector, "_copy_database", original)
        projects.create_project(db, "other", "embedded", "abc", "tales", 7, [("Once", "train"), ("Far", "eval")])
        runs.set_run_status(db, 1, RunStatus.DONE)
        projects.delete_project(db, 1)
        shutil.rmtree(home / "runs")
        shutil.rmtree(home / "reward_models")
        return result

    monkeypatch.setattr(module._Collector, "_copy_database", delete_afterwards)
    snapshot = take_snapshot(home, tmp_path / "copy")
    assert paths(snapshot) == ["lab.db", "rewards/mine.py", "speed.json"]
    assert rows(snapshot, "SELECT count(*) FROM reward_models") == [(0,)]


def test_files_that_are_missing_for_good_are_named(home, tmp_path):
    shutil.rmtree(home / "reward_models/m")
    snapshot = take_snapshot(home, tmp_path / "copy")
    assert snapshot.missing == ("reward_models/m",)
    assert "lab.db" in paths(snapshot)


def test_rows_and_files_agree_while_others_write(home, tmp_path, db):
    """A thread records steps with checkpoints and reward models as fast as it can; each snapshot is consistent."""
    stop = threading.Event()

    def write():
        for step in range(4, 400):
            if stop.is_set():
                return
            record_step(db, 1, StepResult(step, {"kl": float(step)}))
            add_checkpoint(home, 1, step)
            add_reward_model(db, home, f"n{step}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(4):
            snapshot = take_snapshot(home, tmp_path / f"copy{n}")
            names = set(paths(snapshot))
            ((last_step,),) = rows(snapshot, "SELECT max(step) FROM metrics")
            steps = [int(name.split("step-")[1][:6]) for name in names if name.endswith("state.json")]
            assert max(steps) <= last_step
            models = {path for (path,) in rows(snapshot, "SELECT path FROM reward_models")}
            assert {name.rpartition("/")[0] for name in names if name.startswith("reward_models")} == models
    finally:
        stop.set()
        writer.join()


def test_a_home_without_a_lab_or_with_a_server_is_refused(home, tmp_path, monkeypatch):
    with pytest.raises(StoreError, match="There is no lab in"):
        take_snapshot(tmp_path / "nothing", tmp_path / "copy")
    monkeypatch.setenv("RLHF_LAB_STORE", "postgresql+psycopg://lab@db/lab")
    with pytest.raises(StoreError, match="pg_dump"):
        take_snapshot(home, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
