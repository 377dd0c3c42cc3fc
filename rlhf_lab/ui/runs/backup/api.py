"""Part "Backup": download the whole lab as one file, and upload a backup that replaces the lab at its next start.

The page's process has the database open and cannot replace it: an uploaded backup is checked and stored in the home, and
`app.py` restores it before it opens anything (backup/restore.py). The browser sends a backup in pieces, because the size of an
upload is limited (`page.launch_options`).
"""

import shutil
import time

from pydantic import Field

from rlhf_lab.backup import archive
from rlhf_lab.backup.restore import TEMPORARY_PREFIX
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder
from rlhf_lab.common.records import Role
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.runs.downloads import Download, ExportRequest, create_download
from rlhf_lab.ui.shared.api import Api, Payload
from rlhf_lab.ui.shared.uploads import uploaded_file
from rlhf_lab.ui.shared.widgets import widget

api = Api("backup")
PIECE_BYTES = 4_000_000
UPLOAD_FOLDER = f"{TEMPORARY_PREFIX}upload"
UPLOAD_FILE = "backup.zip"


class BackupPiece(Payload):
    """path: the file of an uploaded piece, which begins at byte `offset` of the backup."""

    path: str
    offset: int = Field(ge=0)


def build(ctx: Context) -> None:
    widget("backup", "runs/backup/view.js", data={"piece_bytes": PIECE_BYTES}, label="Backup")


@api.read(Payload)
def is_confirmed(ctx: Context, query: Payload) -> bool:
    """Whether a backup replaces the lab at its next start."""
    return archive.is_confirmed(ctx.home)


@api.action(Payload, role=Role.OPERATOR)
def create(ctx: Context, payload: Payload) -> Download:
    return create_download(ctx, ExportRequest(kind="backup"))


@api.action(BackupPiece, role=Role.OPERATOR)
def append(ctx: Context, piece: BackupPiece) -> int:
    """Add an uploaded piece to the backup; returns the number of bytes received so far."""
    path = uploaded_file(piece.path)
    folder = ctx.home / UPLOAD_FOLDER
    file = folder / UPLOAD_FILE
    try:
        if piece.offset == 0:
            shutil.rmtree(folder, ignore_errors=True)
            make_private_folder(folder)
            file.touch(PRIVATE_FILE)
        if not file.is_file() or file.stat().st_size != piece.offset:
            raise ConfigError("The backup was sent twice at the same time. Choose it again.")
        with path.open("rb") as source, file.open("ab") as target:
            shutil.copyfileobj(source, target)
        path.unlink()
        return file.stat().st_size
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(
            f"The backup could not be stored ({error.strerror or error}). Free some disk space and choose it again."
        ) from error


@api.action(Payload, role=Role.OPERATOR)
def check(ctx: Context, payload: Payload) -> str:
    """Describe what the uploaded backup contains. Raises DataError for a file that is not an intact backup."""
    folder = ctx.home / UPLOAD_FOLDER
    if not (folder / UPLOAD_FILE).is_file():
        raise ConfigError("The uploaded file is missing. Choose it again.")
    try:
        manifest = archive.stage_backup(folder / UPLOAD_FILE, ctx.home)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.created_at))
    return f"Backup of {made}, lab {manifest.lab_version}, {len(manifest.files)} files, {manifest.size / 1e6:,.1f} MB."


@api.action(Payload, role=Role.OPERATOR)
def confirm(ctx: Context, payload: Payload) -> None:
    """The backup that was checked replaces the lab at its next start."""
    archive.confirm_staged(ctx.home)


@api.action(Payload, role=Role.OPERATOR)
def discard(ctx: Context, payload: Payload) -> None:
    """Forget the backup that was checked, also after it was confirmed."""
    archive.discard_staged(ctx.home)
