"""Files and folders that only their owner may read, because labels contain names and notes are personal."""

import contextlib
import os
import stat
from pathlib import Path

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner may read, and its parents. An existing folder is not changed. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True, mode=PRIVATE_FOLDER)
    folder.mkdir(exist_ok=True)  # raises if the name belongs to a file


def restrict_file(path: Path) -> None:
    """Remove the permissions of other users from a file, if it exists and belongs to this user."""
    _restrict(path, PRIVATE_FILE)


def restrict_folder(folder: Path) -> None:
    """Remove the permissions of other users from a folder, if it belongs to this user.

    The root, /tmp and the user's own home folder are not changed.
    """
    if folder.resolve() not in (Path(folder.anchor), Path.home().resolve()):
        _restrict(folder, PRIVATE_FOLDER)


def _restrict(path: Path, mode: int) -> None:
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):  # missing, or on a disk without permissions
        status = path.stat()
        others = stat.S_IRWXG | stat.S_IRWXO
        if status.st_uid == os.geteuid() and status.st_mode & others and not status.st_mode & stat.S_ISVTX:
            path.chmod(stat.S_IMODE(status.st_mode) & mode)
