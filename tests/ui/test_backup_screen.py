"""Section "Backup" without a browser: the operator downloads a backup and uploads one that the next start restores."""

import dataclasses
import json
import stat
import zipfile
from pathlib import Path

import gradio as gr
import pytest

from rlhf_lab.backup.archive import is_confirmed, read_manifest
from rlhf_lab.backup.restore import apply_confirmed
from rlhf_lab.errors import ConfigError, DataError, StoreError
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import projects
from rlhf_lab.ui.runs.backup import api as backup
from rlhf_lab.ui.runs.backup.api import BackupController
from rlhf_lab.ui.shared.api import parse_payload
from rlhf_lab.ui.shared.downloads import DownloadService


@pytest.fixture
def controller(ctx, tmp_path):
    (tmp_path / "uploads").mkdir()
    return BackupController(ctx, tmp_path / "uploads", DownloadService(ctx, tmp_path / "cache"))


def act(controller, action, **fields):
    return controller.handle_action(parse_payload(backup.BackupAction, {"action": action} | fields))


def send(controller, data, size=1000):
    for offset in range(0, len(data), size):
        piece = controller.uploads / "piece"
        piece.write_bytes(data[offset : offset + size])
        assert act(controller, "append", path=str(piece), offset=offset) == {"received": min(len(data), offset + size)}
        assert not piece.exists()


def work_files(home):
    return [path.name for path in home.iterdir() if path.name.startswith(".")]


def test_a_downloaded_backup_is_restored_at_the_next_start(controller, ctx):
    download = act(controller, "create")["download"]
    file = Path(download["path"])
    assert file.is_relative_to(controller.downloads.cache)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert download["bytes"] == file.stat().st_size
    assert "lab.db" in [record.path for record in read_manifest(file).files]
    new_project(ctx.db, name="Later")
    send(controller, file.read_bytes())
    assert act(controller, "check")["summary"].startswith("Backup of 20")
    assert not is_confirmed(ctx.home)
    assert act(controller, "confirm")["message"] == "The backup is checked. Restart the lab to use it."
    assert len(projects(ctx.db)) == 2  # until then the lab is unchanged
    assert is_confirmed(ctx.home)
    ctx.db.close()
    old = apply_confirmed(ctx.home)
    for folder, count in ((ctx.home, 1), (old, 2)):
        with Database.open(folder) as db:
            assert len(projects(db)) == count


def test_a_confirmed_backup_can_be_discarded(controller, ctx):
    send(controller, Path(act(controller, "create")["download"]["path"]).read_bytes(), size=10**6)
    act(controller, "check")
    act(controller, "confirm")
    act(controller, "discard")
    assert apply_confirmed(ctx.home) is None
    assert work_files(ctx.home) == []
    with pytest.raises(StoreError, match="Upload it again"):
        act(controller, "confirm")


def test_a_damaged_or_newer_backup_is_refused(controller, ctx):
    data = Path(act(controller, "create")["download"]["path"]).read_bytes()
    for damaged in (data[:-100], b"no zip"):
        send(controller, damaged)
        with pytest.raises(DataError):
            act(controller, "check")
    newer = controller.uploads / "newer.zip"
    with zipfile.ZipFile(newer, "w") as target:
        manifest = {"format": "rlhf-lab-backup", "format_version": 2, "lab_version": "9", "schema_revision": "0999"}
        target.writestr("manifest.json", json.dumps(manifest))
    send(controller, newer.read_bytes())
    with pytest.raises(DataError, match="Update this lab"):
        act(controller, "check")
    assert work_files(ctx.home) == []


def test_pieces_out_of_order_and_foreign_files_are_refused(controller, ctx, tmp_path):
    send(controller, b"a" * 1500)
    piece = controller.uploads / "piece"
    piece.write_bytes(b"x")
    with pytest.raises(ConfigError, match="sent twice"):
        act(controller, "append", path=str(piece), offset=1000)
    for path in (ctx.home / "lab.db", controller.uploads / ".." / "lab.db", controller.uploads / "missing"):
        with pytest.raises(ConfigError, match="missing"):
            act(controller, "append", path=str(path), offset=0)
    with pytest.raises(ConfigError, match="no usable action"):
        act(controller, "delete")


def test_only_the_operator_may(ctx, calls):
    screen = calls(backup, dataclasses.replace(ctx, operator_secret="secret"))
    for action in ("create", "append", "check", "confirm", "discard"):
        event = gr.EventData(None, {"action": action, "request_id": 1})
        assert "Only the operator" in screen.action("guess", event)["error"]
    assert screen.read({}) == {"is_confirmed": False}
