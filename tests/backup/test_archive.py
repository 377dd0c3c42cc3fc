"""A restored backup is the same lab, and anything but an intact backup leaves a home unchanged."""

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from rlhf_lab.backup import archive, restore
from rlhf_lab.backup.archive import read_manifest, restore_backup, write_backup
from rlhf_lab.backup.restore import apply_confirmed, restore_files
from rlhf_lab.backup.snapshot import SnapshotFile, take_snapshot
from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import EngineState, JobKind, JobStatus, RunStatus
from rlhf_lab.errors import DataError, StoreError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store import home_lock, home_replacement
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import get_run

ROOT = Path(__file__).parents[2]
CONTENT = [
    "access.json", "ended_sessions.json", "lab.db", "reward_models/m/report.json", "reward_models/m/reward_head.safetensors",
    "rewards/mine.py", "runs/1/step-000001/adapter_model.safetensors", "runs/1/step-000001/state.json",
    *(f"runs/1/step-00000{n}/{name}.{end}" for n in (2, 3)
      for name, end in (("adapter_model", "safetensors"), ("state", "json"), ("trainer", "safetensors"))),
    "speed.json",
]  # fmt: skip


@pytest.fixture
def backup(home, tmp_path):
    file = tmp_path / "lab.zip"
    write_backup(home, file)
    return file


def content(home, *excluded):
    """Every file of a home but the database and locks."""
    names = (path.relative_to(home).as_posix() for path in sorted(home.rglob("*")) if path.is_file())
    included = [name for name in names if not name.startswith(("lab.db", "engine.", ".", *excluded))]
    return {name: (home / name).read_bytes() for name in included}


def votes(home):
    with closing(sqlite3.connect(home / "lab.db")) as connection:
        return connection.execute("SELECT uuid, annotator, choice, created_at FROM votes ORDER BY id").fetchall()


def rewrite(file, change):
    """The archive with its manifest and entries changed: change(manifest, entries) -> entries, as (name, content)."""
    with zipfile.ZipFile(file) as old:
        entries = [(info.filename, old.read(info)) for info in old.infolist()]
    manifest = json.loads(entries[0][1])
    entries = change(manifest, entries[1:])
    with zipfile.ZipFile(file, "w") as new:
        for name, data in [("manifest.json", json.dumps(manifest).encode()), *entries]:
            new.writestr(name, data)


def test_a_restored_home_is_the_same(home, backup, tmp_path):
    before = votes(home)
    assert [file.path for file in read_manifest(backup).files] == CONTENT
    assert restore_backup(backup, tmp_path / "new") is None
    assert votes(tmp_path / "new") == before
    assert len(before) == 3
    expected = {name: (home / name).read_bytes() for name in CONTENT if name != "lab.db"}
    assert content(tmp_path / "new") == expected
    assert not [path for path in (tmp_path / "new").iterdir() if path.name.startswith(".")]
    assert not [path for path in home.iterdir() if path.name.startswith(".")]


def test_only_the_owner_reads_a_backup(backup, home, tmp_path):
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    restore_backup(backup, tmp_path / "new")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_the_old_content_is_kept_and_opens(home, backup, tmp_path):
    with Database.open(home) as db, db.write() as conn:
        conn.exec_driver_sql("DELETE FROM votes WHERE id = 1")
    (home / "runs/1/notes.txt").write_text("mine")
    old = restore_backup(backup, home, replace=True)
    assert (len(votes(home)), len(votes(old))) == (3, 2)
    assert (old / "runs/1/notes.txt").read_text() == "mine"
    assert not (home / "runs/1/notes.txt").exists()
    assert (home / "engine.log").read_text() == "a line"  # no content of the lab
    with Database.open(old):
        pass


def test_an_existing_lab_is_not_replaced_unasked(home, backup, monkeypatch, capsys):
    before = content(home)
    with pytest.raises(StoreError, match="--yes"):
        restore_backup(backup, home)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # no terminal
    assert main(["restore", str(backup), "--home", str(home), "--json"]) == 1
    assert "--yes" in json.loads(capsys.readouterr().out)["error"]
    assert content(home) == before


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_terminal_is_asked(home, backup, monkeypatch, answer, status):
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert main(["restore", str(backup), "--home", str(home)]) == status
    assert len(list(home.glob("before-restore-*"))) == (status == 0)


def test_commands(home, tmp_path, capsys):
    file = tmp_path / "folder" / "lab.zip"
    assert main(["backup", str(file), "--home", str(home), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["files"], printed["schema"], printed["bytes"]) == (len(CONTENT), "0021", file.stat().st_size)
    assert main(["backup", str(file), "--home", str(home)]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["backup", str(file), "--home", str(home), "--force"]) == 0
    assert "Keep it private" in capsys.readouterr().out
    assert main(["restore", str(file), "--home", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["old"] is None
    assert main(["backup", str(tmp_path), "--home", str(home)]) == 1
    assert "is a folder" in capsys.readouterr().err


def test_a_home_in_use_is_backed_up_but_not_replaced(home, tmp_path):
    with Database.open(home):
        write_backup(home, tmp_path / "lab.zip")
        with pytest.raises(StoreError, match="is in use"):
            restore_backup(tmp_path / "lab.zip", home, replace=True)
    restore_backup(tmp_path / "lab.zip", home, replace=True)


OPEN = """
import sys, time
from rlhf_lab.store.database import Database
db = Database.open(sys.argv[1])
print(1, flush=True)
time.sleep(60)
"""


def test_another_process_in_the_home_is_noticed(home, backup):
    with subprocess.Popen([sys.executable, "-c", OPEN, str(home)], cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"1\n"
            with pytest.raises(StoreError, match="is in use"):
                restore_backup(backup, home, replace=True)
        finally:
            process.kill()
    restore_backup(backup, home, replace=True)


def test_runs_and_jobs_go_on_after_a_restore(home, tmp_path):
    """The engine recorded in the backup still serves the old home; the restored home needs another one."""
    with Database.open(home) as db:
        engine = engine_process.record_heartbeat(db, "training")
        queue.submit(db, JobKind.TRAIN_POLICY, 1, {"run_id": 2})
        job = queue.claim(db, [JobKind.TRAIN_POLICY], engine)
        assert engine_process.engine_state(db).state is EngineState.ALIVE
        write_backup(home, tmp_path / "lab.zip")
    restore_backup(tmp_path / "lab.zip", tmp_path / "new")
    with Database.open(tmp_path / "new") as db:
        assert engine_process.engine_state(db).state is EngineState.ABSENT
        assert [other.id for other in queue.requeue_interrupted(db)] == [job.id]
        assert queue.get_job(db, job.id).status is JobStatus.QUEUED
        run = get_run(db, 1)  # without a job
        assert (run.status, run.step) == (RunStatus.INTERRUPTED, 3)


def test_a_server_is_refused(backup, tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_LAB_STORE", "postgresql+psycopg://lab@db/lab")
    with pytest.raises(StoreError, match="RLHF_LAB_STORE"):
        restore_backup(backup, tmp_path / "new")


def replace_entry(name, data):
    return lambda manifest, entries: [(other, data if other == name else old) for other, old in entries]


def extra_entry(name, *, listed):
    def change(manifest, entries):
        if listed:
            digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
            manifest["files"].append({"path": name, "size": 0, "sha256": digest})
        return [*entries, (name, b"")]

    return change


def with_value(key, value):
    def change(manifest, entries):
        manifest[key] = value
        return entries

    return change


def with_symlink(manifest, entries):
    info = zipfile.ZipInfo("speed.json")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return [(info if name == "speed.json" else name, data) for name, data in entries]


def with_huge_size(manifest, entries):
    manifest["files"][0]["size"] = 10**15
    return entries


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_entry("speed.json", b"[1"), "speed.json is damaged"),
        (replace_entry("speed.json", b"[]" * 10**6), "not the file that manifest.json lists"),
        (replace_entry("lab.db", b""), "not the file that manifest.json lists"),
        (lambda manifest, entries: entries[1:], "differ: 'access.json'"),
        (extra_entry("rewards/other.py", listed=False), "differ: 'rewards/other.py'"),
        (extra_entry("../outside", listed=True), "not a file of a lab"),
        (extra_entry("/tmp/outside", listed=True), "not a file of a lab"),
        (extra_entry("rewards/../../outside", listed=True), "not a file of a lab"),
        (extra_entry("rewards/./x", listed=True), "not a file of a lab"),
        (extra_entry("rewards\\..\\..\\x", listed=True), "not a file of a lab"),
        (extra_entry("C:/x", listed=True), "not a file of a lab"),
        (extra_entry("before-restore-1/x", listed=True), "not a file of a lab"),
        (extra_entry("restore.json", listed=True), "not a file of a lab"),
        (extra_entry("speed.json", listed=True), "twice"),
        (with_symlink, "not the file that manifest.json lists"),
        (with_huge_size, "not the file that manifest.json lists"),
        (with_value("files", []), "no database"),
        (with_value("files", 1), "cannot be read"),
        (with_value("created_at", 1e300), "cannot be read"),
        (with_value("format", "other"), "has another format"),
        (with_value("format_version", 2), "newer version"),
        (with_value("schema_revision", "0999"), "Update this lab"),
        (with_value("schema_revision", "0016"), "Restore it with version 0.2.0"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_forged_or_newer_archive_changes_nothing(home, backup, change, message):
    before, stored = content(home), votes(home)
    rewrite(backup, change)
    with pytest.raises(DataError, match=message):
        restore_backup(backup, home, replace=True)
    assert (content(home), votes(home)) == (before, stored)
    assert not [path for path in home.iterdir() if path.name.startswith((".restore", "before", "restore"))]


@pytest.mark.parametrize(
    "files", [[], [("rewards/mine.py", b"x")], [("lab.db", b"")]], ids=["nothing", "no database", "an empty one"]
)
def test_what_has_no_database_is_not_restored(home, tmp_path, files):
    before, snapshot = content(home), []
    for path, data in files:
        (tmp_path / "file").write_bytes(data)
        snapshot.append(SnapshotFile(path, tmp_path / "file", len(data), hashlib.sha256(data).hexdigest()))
    with pytest.raises(DataError, match="no database"):
        restore_files(iter(snapshot), home)
    assert content(home) == before


def test_a_truncated_or_damaged_archive_changes_nothing(home, backup):
    """A missing or changed byte is either detected or has no effect on what is restored."""
    whole, before = backup.read_bytes(), content(home)
    choices = random.Random(0)
    for n in range(30):
        position = choices.randrange(len(whole))
        damaged = (
            whole[:position] if n % 2 else whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :]
        )
        backup.write_bytes(damaged)
        target = home.parent / f"new{n}"
        try:
            restore_backup(backup, target)
        except DataError:
            assert not (target / "lab.db").exists()
        else:
            assert n % 2 == 0
            expected = {name: data for name, data in before.items() if name in CONTENT}
            assert content(target) == expected
            assert votes(target) == votes(home)


@pytest.mark.parametrize("data", [b"", b"PK", b"no zip at all" * 100])
def test_other_files_are_no_backups(tmp_path, data):
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(DataError, match="not an intact backup"):
        restore_backup(tmp_path / "x.zip", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for path, reason in ((tmp_path / "missing.zip", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(DataError, match=f"cannot be read: {reason}"):
            restore_backup(path, tmp_path / "new")


def test_a_full_disk_is_noticed_before_anything_is_written(home, backup, monkeypatch):
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(StoreError, match="are free on the disk"):
        restore_backup(backup, home, replace=True)
    assert not list(home.glob("before-restore-*"))


def test_files_of_a_snapshot_are_verified(home, tmp_path):
    snapshot = take_snapshot(home, tmp_path / "copy")
    files = [file._replace(sha256="0" * 64) if file.path == "speed.json" else file for file in snapshot.files]
    with pytest.raises(DataError, match=r"speed.json is damaged"):
        restore_files(files, tmp_path / "new")
    with pytest.raises(DataError, match="not a file of a lab"):
        restore_files([*snapshot.files, SnapshotFile("../x", tmp_path / "copy/lab.db", 1, "0")], tmp_path / "new")
    assert restore_files(snapshot.files, tmp_path / "new") is None
    assert votes(tmp_path / "new") == votes(home)


def test_without_keys_those_of_the_home_stay(home, tmp_path):
    snapshot = take_snapshot(home, tmp_path / "copy")
    (home / "access.json").write_text('{"key": "11"}')
    old = restore_files(snapshot.files, home)
    assert (home / "access.json").read_text() == '{"key": "11"}'
    assert not (old / "access.json").exists()


def test_a_staged_backup_waits_for_the_next_start(home, backup):
    with Database.open(home) as db:
        archive.stage_backup(backup, home)
        assert not archive.is_confirmed(home)
        archive.confirm_staged(home)
        with db.write() as conn:
            conn.exec_driver_sql("DELETE FROM votes")
        with pytest.raises(StoreError, match=r"waits to be restored\..*is in use"):
            apply_confirmed(home)
    assert len(votes(home)) == 0
    old = apply_confirmed(home)
    assert (len(votes(home)), len(votes(old))) == (3, 0)
    assert apply_confirmed(home) is None
    archive.stage_backup(backup, home)
    archive.discard_staged(home)
    with pytest.raises(StoreError, match="Upload it again"):
        archive.confirm_staged(home)


def test_a_later_restore_in_the_terminal_replaces_one_that_waits(home, backup, tmp_path):
    """Otherwise the next start would replace it with the older backup."""
    with Database.open(home) as db, db.write() as conn:
        conn.exec_driver_sql("DELETE FROM votes WHERE id = 1")
    newer = tmp_path / "newer.tar"
    archive.write_backup(home, newer)
    archive.stage_backup(backup, home)
    archive.confirm_staged(home)
    restore_backup(newer, home, replace=True)
    assert apply_confirmed(home) is None
    assert len(votes(home)) == 2


def test_uploads_that_were_given_up_are_deleted_at_a_start_a_day_later(home, backup):
    archive.stage_backup(backup, home)
    for name in (".restore-upload", ".restore-0a1b2c3d"):
        (home / name).mkdir()
        (home / name / "file").write_text("half")
    assert apply_confirmed(home) is None
    temporary = sorted(home.glob(".restore-*"))
    assert [folder.name for folder in temporary] == [".restore-0a1b2c3d", ".restore-checked", ".restore-upload"]
    for folder in temporary:
        os.utime(folder, (time.time() - 90_000,) * 2)
    assert apply_confirmed(home) is None
    assert not list(home.glob(".restore-*"))
    archive.stage_backup(backup, home)
    archive.confirm_staged(home)
    os.utime(home / restore.CONFIRMED_FOLDER, (1.0, 1.0))
    assert apply_confirmed(home) is not None


# ---- interruptions


def assert_old_or_new(home):
    """Opening the home completes an interrupted restore: it holds the old lab (2 votes, one more file) or the new one."""
    with Database.open(home):
        pass
    is_new = len(votes(home)) == 3
    assert is_new or len(votes(home)) == 2
    names = {name for name in content(home, "before-restore-") if name.startswith(("runs/", "reward", "access"))}
    expected = {name for name in CONTENT if name.startswith(("runs/", "reward", "access"))}
    if not is_new:
        expected |= {"rewards/old.py", "runs/1/writer.json", "rewards/__pycache__/mine.pyc"}
        expected |= {"runs/1/.building-step-000004-1/state.json"}
    assert names == expected
    assert (home / "access.json").read_text() == ("{}" if not is_new else '{"key": "00"}')
    assert not (home / "restore.json").exists()
    return is_new


@pytest.fixture
def changed(home, backup):
    """The home, changed after its backup."""
    with Database.open(home) as db, db.write() as conn:
        conn.exec_driver_sql("DELETE FROM votes WHERE id = 1")
    (home / "rewards/old.py").write_text("x")
    (home / "access.json").write_text("{}")
    return home


def test_every_rename_may_be_the_last_one(changed, backup, monkeypatch, tmp_path):
    """The process ends before the n-th rename of the replacement, for each n, and again at the first retry."""
    original, outcomes = Path.rename, []
    for last in range(40):
        home = tmp_path / f"copy{last}"
        shutil.copytree(changed, home)
        remaining = [last]

        def rename(path, target, remaining=remaining):
            if remaining[0] == 0:
                raise KeyboardInterrupt
            remaining[0] -= 1
            return original(path, target)

        monkeypatch.setattr(Path, "rename", rename)
        try:
            restore_backup(backup, home, replace=True)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
            remaining[0] = 1
            with contextlib.suppress(KeyboardInterrupt):
                Database.open(home).close()
        monkeypatch.setattr(Path, "rename", original)
        outcomes.append(assert_old_or_new(home))
        if not interrupted:
            break
    assert not outcomes[0]
    assert outcomes == sorted(outcomes)
    assert len(outcomes) > 8


def test_a_confirmed_restore_that_is_killed_before_it_replaces_anything_is_done_at_the_next_start(
    changed, backup, monkeypatch
):
    """Between the folder's new name and restore.json."""
    archive.stage_backup(backup, changed)
    archive.confirm_staged(changed)
    with monkeypatch.context() as patch:
        patch.setattr(home_replacement, "_write_record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            apply_confirmed(changed)
    assert len(votes(changed)) == 2
    old = apply_confirmed(changed)
    assert old is not None
    assert (len(votes(changed)), len(votes(old))) == (3, 2)
    assert assert_old_or_new(changed)
    assert apply_confirmed(changed) is None
    assert not list(changed.glob(f"{restore.TEMPORARY_PREFIX}*"))


def test_a_part_of_an_earlier_restore_is_never_put_in_place(changed, backup, monkeypatch):
    """The process ends while it deletes the new content of a restore that was interrupted."""
    (changed / ".restore-new").mkdir()
    (changed / ".restore-new/part").write_text("")
    original = shutil.rmtree

    def rmtree(path, **options):
        if Path(path, "part").exists():
            raise KeyboardInterrupt
        original(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(backup, changed, replace=True)
    assert apply_confirmed(changed) is None
    assert not assert_old_or_new(changed)


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("last", ["lab.db", "reward_models"])
def test_a_backup_of_a_half_replaced_home_is_the_new_lab(changed, backup, monkeypatch, tmp_path, last):
    """The restore was killed after it had moved this file of the new content."""
    original = Path.rename

    def rename(path, target):
        original(path, target)
        if path == changed / ".restore-new" / last:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(backup, changed, replace=True)
    write_backup(changed, tmp_path / "again.zip")
    assert [file.path for file in read_manifest(tmp_path / "again.zip").files] == CONTENT
    assert len(votes(changed)) == 3


def test_nothing_is_backed_up_while_the_home_is_replaced(home, tmp_path, monkeypatch):
    monkeypatch.setattr(home_lock, "WAIT_S", 0.0)
    with home_lock.lock_exclusively(home), pytest.raises(StoreError, match="is being restored"):
        write_backup(home, tmp_path / "lab.zip")


KILLED = """
import sys
from pathlib import Path
from rlhf_lab.backup.archive import restore_backup
print("begin", flush=True)
restore_backup(Path(sys.argv[1]), Path(sys.argv[2]), replace=True)
"""


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_at_random(changed, backup, tmp_path, rounds):
    """Kill a restore after a random time: the home opens as the old or the new lab, and the next restore succeeds."""
    start = time.monotonic()
    restore_backup(backup, tmp_path / "timed")
    longest = time.monotonic() - start
    for n in range(rounds):
        home = tmp_path / f"killed{n}"
        shutil.copytree(changed, home)
        command = [sys.executable, "-c", KILLED, str(backup), str(home)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            process.stdout.readline()
            time.sleep(random.Random(n).uniform(0, 1.5 * longest))
            process.send_signal(signal.SIGKILL)
        assert_old_or_new(home)
        restore_backup(backup, home, replace=True)
        assert assert_old_or_new(home)
        assert not list(home.glob(f"{restore.TEMPORARY_PREFIX}*"))
        shutil.rmtree(home)


def test_a_record_that_cannot_be_read_says_what_to_do(home):
    (home / "restore.json").write_text("{")
    with pytest.raises(StoreError, match="put together one of them by hand"):
        Database.open(home)


def test_a_killed_backup_leaves_no_file(home, tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_backup(home, tmp_path / "lab.zip", interrupt)
    assert not list(tmp_path.glob("*.zip"))
    assert not list(home.glob(".backup-*"))


def damage(data):
    """Overwrite the middle of a database."""
    return data[: len(data) // 2] + bytes(4096) + data[len(data) // 2 + 4096 :]


def without_header(data):
    return b"no database" + data[11:]


def of_another_program(data):
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
        return connection.serialize()


def of_a_newer_lab(data):
    with sqlite3.connect(":memory:") as connection:
        connection.deserialize(data)
        connection.execute("UPDATE alembic_version SET version_num = '0999'")
        connection.commit()
        return connection.serialize()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (damage, "lab.db is damaged: "), (without_header, "lab.db is damaged: file is not a database"),
        (of_another_program, "lab.db belongs to another program: its tables are recipes"),
        (of_a_newer_lab, "lab.db was created by a newer version"),
    ],
)  # fmt: skip
def test_an_error_of_a_restore_names_only_what_the_person_has(home, tmp_path, change, reason):
    """Whatever is wrong with the database: not the folder in which it was opened, which is gone then."""
    copy = tmp_path / "copy"
    files = {file.path: file for file in take_snapshot(home, copy).files}
    data = change((copy / "lab.db").read_bytes())
    (copy / "lab.db").write_bytes(data)
    changed = files["lab.db"]._replace(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(DataError) as raised:
        restore_files([*(files | {"lab.db": changed}).values()], tmp_path / "new")
    assert reason in str(raised.value)
    assert "Nothing was changed" in str(raised.value)
    assert str(tmp_path) not in str(raised.value)
    assert ".restore-" not in str(raised.value)
    assert "moved to" not in str(raised.value)


def test_an_endless_list_of_files_is_not_read(tmp_path):
    """zipfile reads the whole list into memory: some hundred bytes for each entry of 47."""
    size = archive.MAX_DIRECTORY_BYTES + 2**18
    with (tmp_path / "many.zip").open("wb") as file:
        file.truncate(size)  # zeros in place of the entries, which are not read
        file.seek(size)
        file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFE, 0xFFFE, size, 0, 0))
    tracemalloc.start()
    with pytest.raises(DataError, match="its list of files is too long"):
        read_manifest(tmp_path / "many.zip")
    assert tracemalloc.get_traced_memory()[1] < size / 2
    tracemalloc.stop()
