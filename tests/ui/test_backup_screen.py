"""Section "Backup" without a browser: the operator downloads a backup and uploads one that the next start restores."""

import dataclasses
import json
import stat
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest

from rlhf_lab.backup.archive import is_confirmed, read_manifest
from rlhf_lab.backup.restore import apply_confirmed
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import projects
from rlhf_lab.ui.runs.backup import api as backup
from rlhf_lab.ui.runs.downloads import cache_folder


@pytest.fixture
def uploads(tmp_path, monkeypatch):
    """The folder of uploaded files, and of the cache of downloads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    return tmp_path / "uploads"


@pytest.fixture
def screen(ctx, calls, uploads):
    return calls(backup, ctx)


def file_of(download):
    return Path(unquote(download["address"].removeprefix("gradio_api/file=")))


def send(screen, uploads, data, size=1000):
    for offset in range(0, len(data), size):
        piece = uploads / "piece"
        piece.write_bytes(data[offset : offset + size])
        assert screen.append({"path": str(piece), "offset": offset}) == min(len(data), offset + size)
        assert not piece.exists()


def work_files(home):
    return [path.name for path in home.iterdir() if path.name.startswith(".")]


def test_a_downloaded_backup_is_restored_at_the_next_start(screen, ctx, uploads):
    download = screen.create()
    file = file_of(download)
    assert file.is_relative_to(cache_folder())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (download["name"], download["bytes"]) == (file.name, file.stat().st_size)
    assert "lab.db" in [record.path for record in read_manifest(file).files]
    new_project(ctx.db, name="Later")
    send(screen, uploads, file.read_bytes())
    assert screen.check().startswith("Backup of 20")
    assert not is_confirmed(ctx.home)
    assert screen.is_confirmed() is False
    assert screen.confirm() is None
    assert len(projects(ctx.db)) == 2  # until then the lab is unchanged
    assert is_confirmed(ctx.home)
    assert screen.is_confirmed() is True
    ctx.db.close()
    old = apply_confirmed(ctx.home)
    for folder, count in ((ctx.home, 1), (old, 2)):
        with Database.open(folder) as db:
            assert len(projects(db)) == count


def test_a_confirmed_backup_can_be_discarded(screen, ctx, uploads):
    send(screen, uploads, file_of(screen.create()).read_bytes(), size=10**6)
    screen.check()
    screen.confirm()
    assert screen.discard() is None
    assert apply_confirmed(ctx.home) is None
    assert work_files(ctx.home) == []
    assert "Upload it again" in screen.confirm()["error"]


def test_a_damaged_or_newer_backup_is_refused(screen, ctx, uploads):
    data = file_of(screen.create()).read_bytes()
    for damaged in (data[:-100], b"no zip"):
        send(screen, uploads, damaged)
        assert "not an intact backup" in screen.check()["error"]
    newer = uploads / "newer.zip"
    with zipfile.ZipFile(newer, "w") as target:
        manifest = {"format": "rlhf-lab-backup", "format_version": 2, "lab_version": "9", "schema_revision": "0999"}
        target.writestr("manifest.json", json.dumps(manifest))
    send(screen, uploads, newer.read_bytes())
    assert "Update this lab" in screen.check()["error"]
    assert "Choose it again" in screen.check()["error"]  # its file is gone
    assert work_files(ctx.home) == []


def test_pieces_out_of_order_and_foreign_files_are_refused(screen, ctx, uploads):
    send(screen, uploads, b"a" * 1500)
    piece = uploads / "piece"
    piece.write_bytes(b"x")
    assert "sent twice" in screen.append({"path": str(piece), "offset": 1000})["error"]
    for path in (ctx.home / "lab.db", uploads / ".." / "lab.db", uploads / "missing", uploads):
        assert "missing" in screen.append({"path": str(path), "offset": 0})["error"]
    for offset in (-1, "x", None):
        assert "no usable offset" in screen.append({"path": str(piece), "offset": offset})["error"]


def test_only_the_operator_may(ctx, calls):
    screen = calls(backup, dataclasses.replace(ctx, operator_secret="secret"))
    for action in (screen.create, screen.append, screen.check, screen.confirm, screen.discard):
        assert "Only the operator" in action()["error"]
    assert screen.is_confirmed() is False
