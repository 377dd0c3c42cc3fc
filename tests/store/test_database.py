import errno
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from sqlalchemy import bindparam, select, text

from rlhf_lab.errors import CorruptStoreError, LostStoreError, StoreError
from rlhf_lab.store import database
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks

pytestmark = pytest.mark.sqlite
SEEN = text("SELECT seen_at FROM presence WHERE who = :who")
SET = text("INSERT INTO presence VALUES (:who, :at) ON CONFLICT DO UPDATE SET seen_at = :at")


def put(db: Database, who: str, at: float) -> None:
    with db.write() as conn:
        conn.execute(SET, {"who": who, "at": at})


def get(db: Database, who: str) -> float | None:
    with db.read() as conn:
        return conn.execute(SEEN, {"who": who}).scalar()


def test_every_connection_has_its_pragmas(db: Database) -> None:
    with db.read() as one, db.write() as two:
        for conn in (one, two):
            result = {
                name: conn.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
            assert result == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}


def test_only_writes_that_may_be_lost_do_not_wait_for_the_disk(db: Database) -> None:
    """Also on a connection that was used for the other kind of write before."""
    recorded = []
    for durable in (False, True, False, True):
        with db.write(durable=durable) as conn:
            recorded.append(conn.exec_driver_sql("PRAGMA synchronous").scalar())
    assert recorded == [1, 2, 1, 2]  # NORMAL, FULL


def test_a_fetched_result_is_complete_and_later_writes_do_not_change_it(db: Database) -> None:
    for n in range(3):
        put(db, f"person {n}", 1.0)
    query = select(t.presence.c.seen_at).where(t.presence.c.who != bindparam("who"))
    result = db.fetch(query, {"who": "person 1"})
    put(db, "person 2", 2.0)
    assert result.all() == [(1.0,), (1.0,)]


def test_a_write_is_kept_and_a_failed_one_leaves_nothing(db: Database) -> None:
    put(db, "a", 1.0)

    def fail_halfway() -> float:
        with db.write() as conn:
            conn.execute(SET, {"who": "a", "at": 2.0})
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert get(db, "a") == 1.0


def test_a_reader_has_one_snapshot_and_is_never_blocked(db: Database) -> None:
    put(db, "a", 1.0)
    with db.read() as reader:
        assert reader.execute(SEEN, {"who": "a"}).scalar() == 1.0
        with db.write() as writer:
            writer.execute(SET, {"who": "a", "at": 2.0})
            assert get(db, "a") == 1.0  # not committed yet
        assert reader.execute(SEEN, {"who": "a"}).scalar() == 1.0
    assert get(db, "a") == 2.0


def test_read_then_write_from_many_threads_loses_nothing(db: Database) -> None:
    put(db, "count", 0.0)

    def add_one_25_times() -> None:
        for _ in range(25):
            with db.write() as conn:
                now = conn.execute(SEEN, {"who": "count"}).scalar_one()
                conn.execute(SET, {"who": "count", "at": now + 1})

    threads = [threading.Thread(target=add_one_25_times) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get(db, "count") == 150.0


READ_MODIFY_WRITE = """
import sys, time
from pathlib import Path
from sqlalchemy import text
from rlhf_lab.store.database import Database
home = Path(sys.argv[1])
with Database.open(home) as db:
    print("ready", flush=True)
    while not (home / "go").exists():
        time.sleep(0.002)
    for _ in range(100):
        with db.write() as conn:
            now = conn.execute(text("SELECT seen_at FROM presence")).scalar_one()
            time.sleep(0.002)
            conn.execute(text("UPDATE presence SET seen_at = :n"), {"n": now + 1})
"""


def test_read_then_write_from_two_processes_loses_nothing(db: Database, home: Path, script: Callable) -> None:
    put(db, "count", 0.0)
    processes = [script(READ_MODIFY_WRITE), script(READ_MODIFY_WRITE)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    (home / "go").touch()
    for process in processes:
        _, err = process.communicate(timeout=50)
        assert (process.returncode, err) == (0, "")
    assert get(db, "count") == 200.0


def test_locked_for_too_long_says_so_and_recovers(db: Database, home: Path) -> None:
    with Database.open(home, busy_timeout_s=0.2) as short_timeout:
        with db.write():
            start = time.monotonic()
            with pytest.raises(StoreError, match=r"another process kept it locked.*doctor.*try again"):
                put(short_timeout, "a", 1.0)
            assert 0.15 < time.monotonic() - start < 5
        put(short_timeout, "a", 2.0)
    assert get(db, "a") == 2.0


def test_a_write_inside_a_write_fails_instead_of_waiting_for_ever(home: Path) -> None:
    with Database.open(home, busy_timeout_s=0.1) as db:
        with db.write(), pytest.raises(StoreError, match=r"another thread of this program.*Try again"):
            put(db, "a", 1.0)
        put(db, "a", 2.0)
        assert get(db, "a") == 2.0


def test_foreign_keys_hold(db: Database) -> None:
    with pytest.raises(StoreError, match="violate"), db.write() as conn:
        conn.exec_driver_sql("INSERT INTO run_events (run_id, kind, payload, created_at) VALUES (99, 'note', '{}', 0)")


OPEN_AND_COUNT = """
import sys
from pathlib import Path
from rlhf_lab.store.database import Database
with Database.open(Path(sys.argv[1])) as db, db.read() as conn:
    print(conn.exec_driver_sql("SELECT count(*) FROM projects").scalar())
"""


def test_several_processes_may_open_a_new_home_at_once(script: Callable) -> None:
    for process in [script(OPEN_AND_COUNT) for _ in range(4)]:
        out, err = process.communicate(timeout=50)
        assert (out, err) == ("0\n", "")


def test_only_one_at_a_time_opens(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Database.open(home).close()
    monkeypatch.setattr(database, "_OPENING_TIMEOUT_S", 0.2)
    with FileLock(home / "lab.db.lock"), pytest.raises(StoreError, match=r"Another process has been opening.*doctor"):
        Database.open(home)
    Database.open(home).close()


def test_urls(tmp_path: Path) -> None:
    with Database.open(f"sqlite:///{tmp_path}/named.sqlite") as db:
        put(db, "a", 1.0)
    assert (tmp_path / "named.sqlite").exists()
    with Database.open(str(tmp_path / "odd %20 ?#name")) as db:
        put(db, "a", 1.0)
    assert (tmp_path / "odd %20 ?#name" / "lab.db").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://me@host/lab", "not in mysql"),
        ("not a url://", "cannot be read"),
    ],
)
def test_invalid_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Database.open(url)


@pytest.mark.parametrize("place", ["/proc/nobody/lab", "/proc/self/fd", "file/below", "file"])
def test_a_home_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("I am not a folder")
    with pytest.raises(StoreError, match=r"cannot be used: .*--home"):
        Database.open(tmp_path / place)
    assert (tmp_path / "file").read_text() == "I am not a folder"


def test_a_file_that_may_not_be_written(db: Database) -> None:
    def write_in_vain() -> None:
        with db.write() as conn:
            conn.exec_driver_sql("PRAGMA query_only=ON")  # the error SQLite gives where the file is read-only
            conn.execute(SET, {"who": "a", "at": 1.0})

    with pytest.raises(StoreError, match=r"may not be written.*--home"):
        write_in_vain()


def test_no_space_to_make_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StoreError, match=r"No space left on device.*free space"):
        Database.open(home)


def test_a_full_disk_keeps_what_was_committed(db: Database) -> None:
    put(db, "a", 1.0)

    def write_too_much() -> None:
        with db.write() as conn:
            pages = conn.exec_driver_sql("PRAGMA page_count").scalar()
            conn.exec_driver_sql(f"PRAGMA max_page_count={pages}")
            conn.execute(SET, {"who": "x" * 100_000, "at": 2.0})

    with pytest.raises(StoreError, match=r"the disk is full.*Free some space"):
        write_too_much()
    assert get(db, "a") == 1.0
    assert get(db, "x" * 100_000) is None


FILL_UP = """
import resource, sys
from pathlib import Path
from rlhf_lab.errors import StoreError
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database
with Database.open(Path(sys.argv[1])) as db:
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    for n in range(1000):
        try:
            projects.create_project(db, f"p{n}", "m", "h", "s", 0, [("x" * 20_000, "train")])
        except StoreError as exc:
            print(n, exc)
            break
"""


def test_a_disk_that_fails_within_a_transaction_keeps_what_was_committed(home: Path, script: Callable) -> None:
    out, err = script(FILL_UP).communicate(timeout=50)
    assert err == ""
    committed, message = out.split(" ", 1)
    assert int(committed) > 3
    assert "it may be full" in message
    assert "Free some space" in message
    with Database.open(home) as db, db.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM projects").scalar() == int(committed)
        assert conn.exec_driver_sql("SELECT count(*) FROM prompts").scalar() == int(committed)


def test_corruption_found_while_the_database_is_open(db: Database, home: Path) -> None:
    with db.read() as conn:
        page = conn.exec_driver_sql("SELECT rootpage FROM sqlite_master WHERE name = 'votes'").scalar_one()
    db.close()  # checkpoints the log into the file; the next use opens it again
    with (home / "lab.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)
    with pytest.raises(CorruptStoreError, match=r"damaged.*copy the file"), db.read() as conn:
        conn.exec_driver_sql("SELECT * FROM votes").all()


def test_a_database_that_is_truncated_while_open_takes_no_more_rows(db: Database, home: Path) -> None:
    insert = text("INSERT INTO presence (who, seen_at) VALUES (:who, 1.0)")
    with db.write() as conn:
        conn.execute(insert, {"who": "before"})
    db.truncate_log()  # from now on all pages are in the file, and some in the connection's memory
    with db.write() as conn:
        conn.execute(insert, {"who": "before too"})
    with (home / "lab.db").open("r+b") as file:
        file.truncate(0)
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match=r"was truncated.*nothing is stored"), db.write() as conn:
            conn.execute(insert, {"who": "after"})
    with pytest.raises(CorruptStoreError), db.read():
        pass


def test_a_file_that_was_emptied_is_set_aside_with_its_log(home: Path) -> None:
    Database.open(home).close()
    (home / "lab.db").write_bytes(b"")
    (home / "lab.db-wal").write_bytes(b"rows")
    with pytest.raises(CorruptStoreError, match="it is empty, but its log is not"):
        Database.open(home)
    assert [path.read_bytes() for path in sorted(home.glob("lab.db.corrupt-*"))] == [b"", b"rows"]
    Database.open(home).close()  # a fresh one


def test_chunks() -> None:
    assert [list(chunk) for chunk in in_chunks([1, 2])] == [[1, 2]]
    assert [len(chunk) for chunk in in_chunks(range(10_001))] == [5000, 5000, 1]
    assert list(in_chunks([])) == []


@pytest.mark.parametrize("value", [10**30, "half \ud800"])
def test_a_value_that_no_database_can_store_is_refused(tmp_path, value):
    with Database.open(tmp_path) as db:
        with pytest.raises(StoreError, match="does not accept this value"), db.read() as conn:
            conn.execute(text("SELECT :x"), {"x": value})
        with db.read() as conn:
            assert conn.execute(text("SELECT 1")).scalar() == 1


def delete_home(home: Path) -> None:
    shutil.rmtree(home)


def delete_home_and_make_an_empty_one(home: Path) -> None:
    shutil.rmtree(home)
    home.mkdir()


def restore_a_copy(home: Path) -> None:
    shutil.copy(home / "lab.db", home / "copy")
    (home / "copy").replace(home / "lab.db")


def open_a_new_lab_in_its_place(home: Path) -> None:
    shutil.rmtree(home)
    Database.open(home).close()


LOSSES = [delete_home, delete_home_and_make_an_empty_one, restore_a_copy, open_a_new_lab_in_its_place]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_database_that_was_deleted_or_replaced_is_neither_written_nor_read(
    db: Database, home: Path, lose: Callable
) -> None:
    """SQLite itself would continue with the deleted file, and everything written to it would be lost."""
    put(db, "a", 1.0)
    lose(home)
    for _ in range(2):
        with pytest.raises(LostStoreError, match=r"deleted, moved or replaced.*start it again"):
            put(db, "b", 2.0)
        with pytest.raises(LostStoreError):
            get(db, "a")
    assert lose is not delete_home or not home.exists()


@pytest.mark.parametrize("lose", LOSSES)
def test_a_write_during_which_the_database_is_deleted_fails(db: Database, home: Path, lose: Callable) -> None:
    def write() -> None:
        with db.write() as conn:
            conn.execute(SET, {"who": "a", "at": 1.0})
            lose(home)

    with pytest.raises(LostStoreError):
        write()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_write_fails_when_the_write_ahead_log_alone_was_deleted(db: Database, home: Path, is_replaced: bool) -> None:
    put(db, "a", 1.0)
    (home / "lab.db-wal").unlink()
    if is_replaced:
        (home / "lab.db-wal").write_bytes(b"")
    with pytest.raises(LostStoreError):
        put(db, "a", 2.0)


def test_a_database_that_was_closed_and_is_used_again_is_not_lost(db: Database) -> None:
    put(db, "a", 1.0)
    db.close()
    put(db, "a", 2.0)
    db.truncate_log()
    put(db, "a", 3.0)
    assert get(db, "a") == 3.0
