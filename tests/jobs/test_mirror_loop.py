"""When the lab is saved to the Hub, retries after failures, and the messages of the page."""

import sqlite3
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from filelock import FileLock

from rlhf_lab.backup.mirror_records import MirrorState
from rlhf_lab.errors import ConfigError, HubUnavailableError, MirrorConflictError, MirrorError, StoreError
from rlhf_lab.jobs import mirror_loop
from rlhf_lab.jobs.mirror_loop import MirrorLoop, mirror_of, mirror_view, restore_home


class FakeMirror:
    """Records calls; the next saves raise `errors`."""

    def __init__(self, home):
        self.home, self.repository = home, SimpleNamespace(name="someone/lab")
        self.errors, self.problems, self.saves, self.notes = [], [], 0, []
        self.restores = []

    def read_state(self):
        pass

    def save(self):
        self.saves += 1
        if self.errors:
            raise self.errors.pop(0)
        return True

    def note_problem(self, message):
        self.problems.append(message)

    def note_unchanged(self, moment):
        self.notes.append(moment)

    def restore(self):
        if self.errors:
            raise self.errors.pop(0)
        self.restores.append(time.monotonic())
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(mirror_loop.time, "monotonic", lambda: now.s)
    monkeypatch.setattr(mirror_loop.time, "sleep", lambda seconds: setattr(now, "s", now.s + seconds))
    monkeypatch.setattr(mirror_loop.random, "uniform", lambda low, high: high)
    return now


@pytest.fixture
def mirror(tmp_path):
    with closing(sqlite3.connect(tmp_path / "lab.db")) as connection:
        connection.execute("CREATE TABLE votes (id INTEGER PRIMARY KEY)")
    return FakeMirror(tmp_path)


def change(mirror):
    with closing(sqlite3.connect(mirror.home / "lab.db")) as connection, connection:
        connection.execute("INSERT INTO votes DEFAULT VALUES")


def run_for(loop, clock, seconds):
    """Run a round every 2 s; returns the times, in seconds, at which something was saved."""
    start, before, moments = clock.s, loop.mirror.saves, []
    while clock.s < start + seconds:
        loop.run_once()
        if loop.mirror.saves > before:
            before = loop.mirror.saves
            moments.append(clock.s - start)
        clock.s += 2.0
    return moments


def test_while_something_changes_a_save_begins_every_40_seconds(mirror, clock, monkeypatch):
    loop = MirrorLoop(mirror)
    real = mirror.save
    monkeypatch.setattr(mirror, "save", lambda: (real(), change(mirror)))
    assert run_for(loop, clock, 130) == [0, 40, 80, 120]


def test_without_changes_nothing_is_saved_and_the_lab_counts_as_saved(mirror, clock):
    loop = MirrorLoop(mirror)
    assert run_for(loop, clock, 120) == [0]
    assert len(mirror.notes) == 8  # from 40 s on, every 10 s
    change(mirror)
    assert run_for(loop, clock, 20) == [0]  # at once, because the last save is old


def test_other_files_are_looked_at_every_5_minutes(mirror, clock):
    assert run_for(MirrorLoop(mirror), clock, 700) == [0, 300, 600]


def test_failures_are_told_at_once_and_tried_again_after_longer_and_longer_times(mirror, clock):
    mirror.errors = [HubUnavailableError("the Hub cannot be reached (timeout)")] * 6
    loop = MirrorLoop(mirror)
    loop.run_once()
    assert mirror.problems == ["The Hub cannot be reached (timeout). It is tried again by itself."]
    clock.s += 2.0
    # delays of 5, 10, 20, 40, 60 and 60 s, at the next round
    assert run_for(loop, clock, 230) == [4, 14, 34, 74, 134, 194]
    mirror.errors = [HubUnavailableError("down")]
    change(mirror)
    clock.s += 40
    assert run_for(loop, clock, 12) == [0, 6]  # after a successful save the delays start again


def test_the_time_that_the_hub_asks_for_is_waited(mirror, clock):
    mirror.errors = [HubUnavailableError("the Hub limits how often the lab may save", 3600.0)]
    assert run_for(MirrorLoop(mirror), clock, 3610) == [0, 3600]


@pytest.mark.parametrize("error", [MirrorError("The token …"), StoreError("disk"), RuntimeError("a mistake")])
def test_other_failures_are_tried_again_each_minute(mirror, clock, error):
    mirror.errors = [error]
    assert run_for(MirrorLoop(mirror), clock, 70) == [0, 60]
    assert len(mirror.problems) == 1


@pytest.mark.parametrize("failing", ["note_unchanged", "_database_version"])
def test_a_failure_between_saves_does_not_end_the_thread(mirror, clock, monkeypatch, failing):
    """The disk is full when the lab notes that nothing has changed; the database is locked."""
    loop = MirrorLoop(mirror)
    assert run_for(loop, clock, 2) == [0]
    owner = mirror if failing == "note_unchanged" else loop
    error = MirrorError("The disk is full.") if owner is mirror else sqlite3.OperationalError("database is locked")
    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, lambda *_: (_ for _ in ()).throw(error))
        assert run_for(loop, clock, 50) == []
    assert len(mirror.problems) == 1
    change(mirror)
    assert len(run_for(loop, clock, 70)) == 1


def test_nothing_is_saved_any_more_after_another_lab_has_saved(mirror, clock):
    mirror.errors = [MirrorConflictError("Another lab …")]
    loop = MirrorLoop(mirror)
    assert run_for(loop, clock, 300) == [0]
    assert mirror.problems == ["Another lab …"]


def test_of_two_pages_one_saves(mirror, clock, tmp_path):
    loop = MirrorLoop(mirror)
    lock = FileLock(tmp_path / "mirror.lock")
    with lock:
        assert run_for(loop, clock, 10) == []
    assert run_for(loop, clock, 10) == [0]


def test_the_last_save_comes_with_the_end_of_the_page(mirror, monkeypatch):
    monkeypatch.setattr(mirror_loop, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(mirror_loop, "FIRST_RETRY_S", 0.01)
    loop = MirrorLoop(mirror)
    loop.start()
    while not mirror.saves:
        time.sleep(0.01)
    change(mirror)
    mirror.errors = [HubUnavailableError("the Hub cannot be reached")]
    loop.stop()
    assert mirror.saves == 3


def test_a_page_that_another_one_saves_for_ends_at_once(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror_loop, "FIRST_RETRY_S", 1e6)
    monkeypatch.setattr(mirror_loop, "LAST_SAVE_TIMEOUT_S", 5.0)
    loop = MirrorLoop(mirror)
    with FileLock(tmp_path / "mirror.lock"):
        loop.start()
        loop.stop()
    assert not loop._thread.is_alive()
    assert mirror.saves == 0


def test_a_home_that_cannot_be_made_is_no_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MirrorError, match="choose another with --home"):
        restore_home(FakeMirror(tmp_path / "file" / "home"), pytest.fail)
    mirror = FakeMirror(tmp_path / "new")
    mirror.errors = [OSError(28, "No space left on device")]
    with pytest.raises(MirrorError, match=r"No space left on device\. Nothing was changed"):
        restore_home(mirror, pytest.fail)


def test_a_restore_waits_for_the_hub_and_gives_up_with_what_to_do(clock, tmp_path):
    lines, mirror = [], FakeMirror(tmp_path / "new")
    mirror.errors = [HubUnavailableError("the Hub cannot be reached")] * 3
    restore_home(mirror, lines.append)
    assert [line.rsplit(". ", 1)[-1] for line in lines] == [
        "It is tried again in 5 s.", "It is tried again in 10 s.", "It is tried again in 20 s.",
        "The lab was restored from someone/lab on the Hub.",
    ]  # fmt: skip
    mirror.errors = [HubUnavailableError("the Hub cannot be reached")] * 30
    with pytest.raises(MirrorError, match=r"cannot be reached\. Nothing was changed.*start it without RLHF_LAB_MIRROR"):
        restore_home(mirror, lines.append)
    mirror.errors = [MirrorError("The token needs write access.")]
    with pytest.raises(MirrorError, match=r"write access\. Nothing was changed"):
        restore_home(mirror, lines.append)


def test_a_second_page_of_a_home_with_a_lab_starts_while_the_first_one_saves(mirror, tmp_path):
    with FileLock(tmp_path / "mirror.lock"):
        restore_home(mirror, pytest.fail)
    assert mirror.restores == []


def test_of_two_pages_that_start_with_an_empty_home_one_restores_it(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror_loop, "RESTORE_PATIENCE_S", 0.0)
    mirror = FakeMirror(tmp_path / "new")
    mirror.home.mkdir()
    with FileLock(mirror.home / "mirror.lock"), pytest.raises(MirrorError, match="Another process is restoring"):
        restore_home(mirror, pytest.fail)


def test_settings(tmp_path, monkeypatch):
    assert mirror_of(tmp_path, {}) is None
    assert mirror_of(tmp_path, {"RLHF_LAB_MIRROR": " "}) is None
    assert mirror_of(tmp_path, {"RLHF_LAB_MIRROR": "someone/lab"}).repository.name == "someone/lab"
    with pytest.raises(ConfigError, match="OWNER/NAME"):
        mirror_of(tmp_path, {"RLHF_LAB_MIRROR": "lab"})
    with pytest.raises(ConfigError, match="Choose all, newest, none"):
        mirror_of(tmp_path, {"RLHF_LAB_MIRROR": "a/b", "RLHF_LAB_MIRROR_CHECKPOINTS": "some"})
    monkeypatch.setenv("RLHF_LAB_STORE", "postgresql+psycopg://x/y")
    with pytest.raises(ConfigError, match="puts the tables elsewhere"):
        mirror_of(tmp_path, {"RLHF_LAB_MIRROR": "a/b"})


def test_what_the_page_says(tmp_path):
    def view(**state):
        MirrorState("a/b", **state).write(tmp_path)
        shown = mirror_view(tmp_path, "a/b")
        return shown.saved_at, shown.problem, shown.is_late

    assert mirror_view(tmp_path, "a/b").saved_at is None
    now = time.time()
    assert view(saved_at=now - 80) == (now - 80, "", False)
    assert view(saved_at=now - 100) == (now - 100, "", True)
    assert view(saved_at=now, problem="The Hub …") == (now, "The Hub …", False)
    assert mirror_view(tmp_path, "c/d").saved_at is None  # another repository has been set since
