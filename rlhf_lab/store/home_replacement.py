"""Replaces the content of a home by that of a folder in it, so that a partly replaced home is never opened.

    HOME/.restore-new/              the new content
    HOME/restore.json               exists during the replacement: lists what is moved where
    HOME/before-restore-<time>/     the old content

Files are only renamed within the home, so this works if the home is a mount point, and takes no disk space. restore.json exists
from before the first rename until after the last one. After an interruption, the next process that opens the home completes the
replacement.
"""

import json
import time
from pathlib import Path

from rlhf_lab.common.atomic import fsync_path, write_file_atomically
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder
from rlhf_lab.errors import StoreError
from rlhf_lab.store import home_lock

RECORD_FILE = "restore.json"
NEW_FOLDER = ".restore-new"
OLD_PREFIX = "before-restore-"


def is_unfinished(home: Path) -> bool:
    return (home / RECORD_FILE).exists()


def use_home(home: Path) -> home_lock.SharedLock:
    """Complete an interrupted replacement, then acquire a shared lock of the home. Raises OSError, StoreError."""
    while True:
        lock = home_lock.lock_shared(home)
        if not is_unfinished(home):
            return lock
        lock.release()
        with home_lock.lock_exclusively(home, wait_s=home_lock.WAIT_S):
            if is_unfinished(home):
                finish_replacement(home)


def replace_content(home: Path, names: list[str]) -> Path | None:
    """Move existing files and folders called `names` to a folder of old content, and everything in NEW_FOLDER to the home.

    The caller must hold the exclusive lock of the home. Returns the folder of old content, or None if none of the names existed.
    Raises OSError; the next process that opens the home then completes the replacement.
    """
    replaced = [name for name in names if (home / name).exists()]
    old = _unused_folder(home)
    _write_record(home, {"old": old.name, "replaced": replaced})
    finish_replacement(home)
    return old if replaced else None


def finish_replacement(home: Path) -> None:
    """Complete an interrupted `replace_content`. Raises OSError, StoreError."""
    try:
        record = json.loads((home / RECORD_FILE).read_text(encoding="utf-8"))
        old, replaced = home / str(record["old"]), [str(name) for name in record["replaced"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{home / RECORD_FILE} cannot be read ({error}), so a restore cannot be finished. The new content is in "
            f"{home / NEW_FOLDER}, the old one in {home} or a folder {OLD_PREFIX}… in it: put together one of them by hand, and "
            "delete that file."
        ) from error
    if replaced:
        make_private_folder(old)
        for name in replaced:
            if not (old / name).exists():
                (home / name).rename(old / name)
        fsync_path(old)
        fsync_path(home)
        _write_record(home, {"old": old.name, "replaced": []})
    new = home / NEW_FOLDER
    if new.exists():
        for path in sorted(new.iterdir()):
            path.rename(home / path.name)
        fsync_path(home)
        new.rmdir()
    (home / RECORD_FILE).unlink()
    fsync_path(home)


def _write_record(home: Path, record: dict[str, object]) -> None:
    write_file_atomically(home / RECORD_FILE, json.dumps(record), mode=PRIVATE_FILE)
    fsync_path(home)


def _unused_folder(home: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder, number = home / f"{OLD_PREFIX}{stamp}", 1
    while folder.exists():
        number += 1
        folder = home / f"{OLD_PREFIX}{stamp}-{number}"
    return folder
