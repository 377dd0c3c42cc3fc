"""A lab on a disk where a write-ahead log of SQLite is not safe: the disk is detected, and no data is lost without the log."""

import multiprocessing
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from rlhf_lab.errors import ConfigError, CorruptStoreError, LostStoreError
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import filesystem
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.filesystem import JOURNAL_VARIABLE, filesystem_type, wal_problem

pytestmark = pytest.mark.sqlite


@pytest.fixture
def rollback(monkeypatch):
    """All labs of the test, and of processes that it starts, use a rollback journal."""
    monkeypatch.setenv(JOURNAL_VARIABLE, "truncate")


def pragma(db, name):
    with db.read() as conn:
        return conn.exec_driver_sql(f"PRAGMA {name}").scalar()


def add_people(home, first, count):
    with Database.open(home) as db:
        for n in range(first, first + count):
            with db.write(durable=n % 2 == 0) as conn:
                insert_row(conn, t.people, {"name": f"p{n}", "joined_at": 1.0})


def count_people(db):
    with db.read() as conn:
        return conn.exec_driver_sql("SELECT count(*) FROM people").scalar()


# ---- which disks


@pytest.mark.parametrize(
    ("kind", "is_safe"),
    [("ext4", True), ("overlay", True), ("tmpfs", True), ("apfs", True), ("zfs", True), ("", True), ("nfs", False),
     ("nfs4", False), ("cifs", False), ("smb3", False), ("fuse.sshfs", False), ("fuse.gcsfuse", False), ("fuse", False),
     ("9p", False), ("ceph", False), ("lustre", False), ("virtiofs", False)],
)  # fmt: skip
def test_types_of_disks(home, monkeypatch, kind, is_safe):
    monkeypatch.setattr(filesystem, "filesystem_type", lambda _: kind)
    with Database.open(home) as db:
        assert pragma(db, "journal_mode") == ("wal" if is_safe else "truncate")
        assert (kind in db.wal_problem) == (not is_safe) or not kind
        assert bool(db.wal_problem) == (not is_safe)
        assert (pragma(db, "synchronous"), pragma(db, "secure_delete")) == (2, 1)


def test_the_deepest_mount_counts_and_of_two_the_later_one(tmp_path, monkeypatch):
    (tmp_path / "data/inner").mkdir(parents=True)
    mounts = [
        ("/", "ext4"),
        (str(tmp_path / "data"), "xfs"),
        (str(tmp_path / "data"), "NFS4"),
        (str(tmp_path / "dat"), "cifs"),
    ]
    partitions = [SimpleNamespace(mountpoint=mountpoint, fstype=kind) for mountpoint, kind in mounts]
    monkeypatch.setattr(filesystem.psutil, "disk_partitions", lambda all: partitions)
    assert filesystem_type(tmp_path / "data/inner") == "nfs4"
    assert filesystem_type(tmp_path) == "ext4"


def test_this_disk_passes_the_test(tmp_path):
    assert filesystem._share_wal(tmp_path / "test.db")


def test_a_disk_without_shared_memory_fails_it(tmp_path, monkeypatch):
    """The other process sees a copy of the database, as a machine whose mapping is not shared sees an old state."""
    script = filesystem._OTHER_PROCESS.replace(
        "connection = ", "import shutil; shutil.copy(sys.argv[1], sys.argv[1] + '2'); sys.argv[1] += '2'\nconnection = "
    )
    monkeypatch.setattr(filesystem, "_OTHER_PROCESS", script)
    assert not filesystem._share_wal(tmp_path / "test.db")


def test_a_disk_is_tested_once_unless_the_test_could_not_run(tmp_path, monkeypatch):
    tested, results = [], iter([OSError(), False])

    def share_wal(path):
        tested.append(path.parent.parent)
        if isinstance(result := next(results), OSError):
            raise result
        return result

    monkeypatch.setattr(filesystem, "_passes_by_device", {})
    monkeypatch.setattr(filesystem, "_share_wal", share_wal)
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    assert [filesystem._passes_test(folder) for folder in folders] == [True, False, False]
    assert tested == folders[:2]


def test_a_disk_that_fails_the_test_has_a_journal_for_every_process(home, monkeypatch):
    monkeypatch.setattr(filesystem, "_passes_test", lambda *_: False)
    for _ in range(2):
        with Database.open(home) as db:
            assert "test of its disk failed" in db.wal_problem
            assert pragma(db, "journal_mode") == "truncate"


def test_the_variable_decides(home, monkeypatch):
    home.mkdir()
    monkeypatch.setattr(filesystem, "filesystem_type", lambda _: "nfs")
    monkeypatch.setenv(JOURNAL_VARIABLE, "wal")
    assert wal_problem(home, has_wal=True) == ""
    monkeypatch.setenv(JOURNAL_VARIABLE, "off")
    with pytest.raises(ConfigError, match="wal or truncate"):
        wal_problem(home, has_wal=True)


# ---- the lab without a write-ahead log


def test_an_existing_lab_changes_to_a_journal_and_back(home, monkeypatch):
    add_people(home, 0, 3)
    for value, mode in (("truncate", "truncate"), ("truncate", "truncate"), ("wal", "wal"), ("truncate", "truncate")):
        monkeypatch.setenv(JOURNAL_VARIABLE, value)
        with Database.open(home) as db:
            assert (pragma(db, "journal_mode"), count_people(db)) == (mode, 3)
            with db.write() as conn:
                conn.exec_driver_sql("UPDATE people SET joined_at = 2")
    assert not (home / "lab.db-wal").exists()


def test_processes_and_threads_write_at_once(home, rollback):
    add_people(home, 0, 1)
    processes = multiprocessing.get_context("spawn")
    writers = [processes.Process(target=add_people, args=(home, 1000 * n, 20)) for n in (1, 2)]
    writers += [threading.Thread(target=add_people, args=(home, 1000 * n, 20)) for n in (3, 4)]
    with Database.open(home) as db:
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers):
            assert count_people(db) >= 1
        for writer in writers:
            writer.join()
        assert count_people(db) == 81
        assert not (home / "lab.db-wal").exists()


def test_a_rolled_back_transaction_that_grew_the_file_is_no_truncation(home, rollback):
    """More rows than SQLite holds in memory make the file grow before the commit."""
    with Database.open(home) as db:
        size = (home / "lab.db").stat().st_size
        with pytest.raises(KeyError), db.write() as conn:  # noqa: PT012
            conn.exec_driver_sql("PRAGMA cache_size=10")
            for n in range(2000):
                insert_row(conn, t.people, {"name": f"{n:0190}", "joined_at": 1.0})
            assert (home / "lab.db").stat().st_size > size
            with (
                pytest.raises(Exception, match="locked"),
                closing(sqlite3.connect(home / "lab.db", timeout=0)) as other,
            ):
                other.execute("SELECT * FROM people").fetchall()
            db._files.check()
            raise KeyError
        assert (home / "lab.db").stat().st_size == size
        with db.write() as conn:
            insert_row(conn, t.people, {"name": "after", "joined_at": 1.0})
        assert count_people(db) == 1


def test_a_truncated_or_deleted_file_takes_no_more_rows(home, rollback):
    add_people(home, 0, 5)
    with Database.open(home) as db:
        with (home / "lab.db").open("r+b") as file:
            file.truncate(8192)
        with pytest.raises(CorruptStoreError), db.write() as conn:
            insert_row(conn, t.people, {"name": "lost", "joined_at": 1.0})
    (home / "lab.db").unlink()
    with Database.open(home) as db:
        (home / "lab.db").unlink()
        with pytest.raises(LostStoreError), db.write():
            pass


def test_an_erased_name_is_in_no_file(home, rollback):
    add_people(home, 0, 3)
    with Database.open(home) as db:
        with db.write() as conn:
            insert_row(conn, t.people, {"name": "Hildegard", "joined_at": 1.0})
        with db.write() as conn:
            conn.exec_driver_sql("DELETE FROM people WHERE name = 'Hildegard'")
        db.truncate_log()
        assert not [path for path in home.iterdir() if b"Hildegard" in path.read_bytes()]


def test_a_database_that_a_process_opens_twice_keeps_its_log(tmp_path):
    """The second connection must not release the locks of the first one; otherwise another process would delete the log."""
    code = "import sys; from rlhf_lab.store.database import Database; Database.open(sys.argv[1]).close()"
    with Database.open(tmp_path) as first:
        new_project(first)
        with Database.open(tmp_path):
            pass
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
        new_project(first)  # LostStoreError without the log
