"""Part "Backup": download the whole lab as one file, and upload a backup that replaces the lab at its next start.

The page's process has the database open and cannot replace it: an uploaded backup is checked and stored in the home, and
`app.py` restores it before it opens anything (backup/restore.py). The browser sends a backup in pieces, because the size of an
upload is limited (`page.launch_options`).
"""

import shutil
import time
from pathlib import Path
from typing import Any, Literal

import gradio as gr
from gradio.utils import get_upload_folder
from pydantic import Field

from rlhf_lab.backup import archive
from rlhf_lab.backup.restore import TEMPORARY_PREFIX
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import Payload
from rlhf_lab.ui.shared.downloads import DownloadService, ExportRequest
from rlhf_lab.ui.shared.events import operator_action
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget

PIECE_BYTES = 4_000_000
UPLOAD_FOLDER = f"{TEMPORARY_PREFIX}upload"
UPLOAD_FILE = "backup.zip"


class BackupAction(Payload):
    """action: "create" a backup to download; "append" an uploaded piece, which begins at byte `offset` of the backup; "check" the
    complete backup; "confirm" it, or "discard" it, also after it was confirmed. path: the file of the uploaded piece."""

    action: Literal["create", "append", "check", "confirm", "discard"]
    path: str = ""
    offset: int = Field(0, ge=0)


def build(ctx: Context, operator: gr.BrowserState) -> None:
    controller = BackupController(ctx)

    def get_state(_: dict[str, Any]) -> dict[str, Any]:
        return {"is_confirmed": archive.is_confirmed(ctx.home)}

    @operator_action(ctx, BackupAction)
    def action(payload: BackupAction) -> dict[str, Any]:
        return controller.handle_action(payload)

    component = widget(
        "backup",
        "runs/backup/view.js",
        events=("action",),
        server_functions={"get_state": get_state},
        data={"piece_bytes": PIECE_BYTES},
        label="Backup",
    )
    component.action(action, operator, component, **SILENT_MULTIPLE_EVENT)


class BackupController:
    """Makes backups, and checks those that the operator uploads."""

    def __init__(self, ctx: Context, uploads: Path | None = None, downloads: DownloadService | None = None) -> None:
        self.home = ctx.home
        self.downloads = downloads or DownloadService(ctx)
        self.uploads = (uploads or Path(get_upload_folder())).resolve()

    def handle_action(self, payload: BackupAction) -> dict[str, Any]:
        """The reply to an action. Raises LabError."""
        match payload.action:
            case "create":
                return {"download": self.downloads.create(ExportRequest(kind="backup"))}
            case "append":
                return {"received": self.append_piece(payload)}
            case "check":
                return {"summary": self.check()}
            case "confirm":
                archive.confirm_staged(self.home)
                return {"message": "The backup is checked. Restart the lab to use it."}
            case "discard":
                archive.discard_staged(self.home)
                return {"message": "Nothing will be restored."}

    def append_piece(self, payload: BackupAction) -> int:
        """Add an uploaded piece to the backup; returns the number of bytes received so far."""
        piece = Path(payload.path).resolve()
        if not piece.is_relative_to(self.uploads) or not piece.is_file():
            raise ConfigError("The uploaded file is missing. Choose it again.")
        folder = self.home / UPLOAD_FOLDER
        file = folder / UPLOAD_FILE
        try:
            if payload.offset == 0:
                shutil.rmtree(folder, ignore_errors=True)
                make_private_folder(folder)
                file.touch(PRIVATE_FILE)
            if not file.is_file() or file.stat().st_size != payload.offset:
                raise ConfigError("The backup was sent twice at the same time. Choose it again.")
            with piece.open("rb") as source, file.open("ab") as target:
                shutil.copyfileobj(source, target)
            piece.unlink()
            return file.stat().st_size
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StoreError(
                f"The backup could not be stored ({error.strerror or error}). Free some disk space and choose it again."
            ) from error

    def check(self) -> str:
        """Describe what the uploaded backup contains. Raises DataError for a file that is not an intact backup."""
        folder = self.home / UPLOAD_FOLDER
        if not (folder / UPLOAD_FILE).is_file():
            raise ConfigError("The uploaded file is missing. Choose it again.")
        try:
            manifest = archive.stage_backup(folder / UPLOAD_FILE, self.home)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.created_at))
        return (
            f"Backup of {made}, lab {manifest.lab_version}, {len(manifest.files)} files, {manifest.size / 1e6:,.1f} MB."
        )
