"""A damaged file is renamed unchanged, and no file is overwritten."""

import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlhf_lab.errors import CorruptStoreError, StoreError
from rlhf_lab.store import projects, sqlite
from rlhf_lab.store.database import Database
from rlhf_lab.store.sqlite import OpenFiles

pytestmark = pytest.mark.sqlite


def renamed_files(home: Path) -> list[str]:
    """The renamed files; without the empty log that SQLite creates beside a file when it reads it."""
    return sorted(path.name for path in home.iterdir() if ".corrupt-" in path.name and path.stat().st_size > 0)


def renamed_databases(home: Path) -> list[str]:
    return [name for name in renamed_files(home) if not name.endswith(("-wal", "-shm"))]


def garbage(file: Path) -> None:
    file.write_bytes(b"this was a database" * 500)


def wrong_page(file: Path) -> None:
    with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'votes'").fetchone()
    with file.open("r+b") as content:
        content.seek((page - 1) * 4096)
        content.write(b"\xa5" * 4096)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: 4096 * 3])


@pytest.mark.parametrize("damage", [garbage, wrong_page, truncated])
def test_a_corrupt_database_is_renamed_and_the_next_start_has_a_new_one(home: Path, damage: Callable) -> None:
    with Database.open(home) as db:
        projects.create_project(db, "old", "m", "h", "s", 0, [("a prompt", "train")])
    damage(home / "lab.db")
    damaged = (home / "lab.db").read_bytes()
    with pytest.raises(
        CorruptStoreError, match=r"damaged.*Nothing was deleted.*lab\.db\.corrupt-.*Start again"
    ) as raised:
        Database.open(home)
    (name,) = renamed_databases(home)
    assert re.fullmatch(r"lab\.db\.corrupt-\d{8}T\d{6}Z", name)
    assert name in str(raised.value)
    assert (home / name).read_bytes() == damaged
    assert not (home / "lab.db").exists()
    with Database.open(home) as db:
        assert projects.projects(db) == []
    assert renamed_databases(home) == [name]


def test_the_write_ahead_log_is_renamed_with_it(home: Path, tmp_path: Path) -> None:
    Database.open(home).close()
    killed = tmp_path / "left"
    killed.mkdir()
    with Database.open(home) as db:
        projects.create_project(db, "old", "m", "h", "s", 0, [])
        for path in home.glob("lab.db*"):  # as a killed process leaves them
            (killed / path.name).write_bytes(path.read_bytes())
    wrong_page(killed / "lab.db")
    content, log = ((killed / name).read_bytes() for name in ("lab.db", "lab.db-wal"))
    assert len(log) > 4096
    with pytest.raises(CorruptStoreError):
        Database.open(killed)
    main, shm, wal = renamed_files(killed)
    assert (shm, wal) == (f"{main}-shm", f"{main}-wal")
    assert (killed / wal).read_bytes() == log
    assert (killed / main).read_bytes() == content
    Database.open(killed).close()
    assert renamed_files(killed) == [main, shm, wal]


def test_a_file_renamed_in_the_same_second_is_not_overwritten(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite.time, "strftime", lambda *_: "20260101T000000Z")
    home.mkdir()
    for content in (b"first " * 100, b"second " * 100, b"third " * 100):
        (home / "lab.db").write_bytes(content)
        with pytest.raises(CorruptStoreError):
            Database.open(home)
    stem = "lab.db.corrupt-20260101T000000Z"
    assert {name: (home / name).read_bytes()[:5] for name in renamed_databases(home)} == {
        stem: b"first",
        f"{stem}-2": b"secon",
        f"{stem}-3": b"third",
    }


OPEN = """
import sys
from pathlib import Path
from rlhf_lab.errors import CorruptStoreError
from rlhf_lab.store.database import Database
try:
    Database.open(Path(sys.argv[1])).close()
    print("opened")
except CorruptStoreError:
    print("damaged")
"""


def test_one_of_several_processes_renames_a_corrupt_database(home: Path, script: Callable) -> None:
    home.mkdir()
    garbage(home / "lab.db")
    outputs = []
    for process in [script(OPEN) for _ in range(3)]:
        out, err = process.communicate(timeout=50)
        assert err == ""
        outputs.append(out.strip())
    assert sorted(outputs) == ["damaged", "opened", "opened"]
    assert len(renamed_databases(home)) == 1


def test_a_locked_database_is_not_taken_for_a_corrupt_one(home: Path) -> None:
    Database.open(home).close()
    with closing(sqlite3.connect(home / "lab.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE busy (x)")
        with pytest.raises(StoreError, match="locked") as raised:
            Database.open(home, busy_timeout_s=0.1)
    assert not isinstance(raised.value, CorruptStoreError)
    assert renamed_files(home) == []


def test_a_large_file_is_opened_without_reading_it_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database.open(home) as db:
        projects.create_project(db, "old", "m", "h", "s", 0, [("a prompt", "train")])
    wrong_page(home / "lab.db")
    monkeypatch.setattr(sqlite, "QUICK_CHECK_BELOW", 1000)
    Database.open(home).close()
    garbage(home / "lab.db")
    with pytest.raises(CorruptStoreError):
        Database.open(home)


def test_an_empty_file_is_a_new_database(home: Path) -> None:
    home.mkdir()
    (home / "lab.db").touch()
    with Database.open(home) as db:
        assert projects.projects(db) == []


def test_a_file_that_another_thread_sees_grow_is_not_taken_for_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of another thread comes between reading the file's size and comparing it."""
    path = tmp_path / "lab.db"
    path.write_bytes(bytes(4096))
    files, stat = OpenFiles(path), Path.stat

    def stat_before_growth(file: Path, **options: Any) -> os.stat_result:
        status = stat(file, **options)
        monkeypatch.setattr(Path, "stat", stat)
        path.write_bytes(bytes(8192))
        files.check()
        return status

    monkeypatch.setattr(Path, "stat", stat_before_growth)
    files.check()
    path.write_bytes(bytes(4096))
    with pytest.raises(CorruptStoreError, match="it was truncated"):
        files.check()
