"""Which checkpoints a run has, and whether one is as it was written. `trainers.checkpoint` writes them."""

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

TRAINER_FILE = "trainer.safetensors"
STATE_FILE = "state.json"


def folder_of(run: Path, step: int) -> Path:
    return run / f"step-{step:06d}"


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def checkpoints(run: Path) -> list[int]:
    """The steps that have a checkpoint, ascending. run: the run's folder."""
    found = [path for path in run.glob("step-*") if (path / STATE_FILE).is_file()]
    return sorted(step_of(path) for path in found if path.name.removeprefix("step-").isdigit())


def newest(run: Path) -> int | None:
    """The newest step whose adapter is as it was written; None where there is none. Cheap to ask again: a file is read once for
    as long as its size and time stay."""
    found = reversed(checkpoints(run))
    return next((step for step in found if adapter_whole(folder_of(run, step), _sha256_once)), None)


def passed_over(run: Path, used: int) -> str:
    """In words that the newest checkpoint is damaged, where an older one is used in its place; "" where it is not."""
    last = checkpoints(run)[-1]
    return f"The checkpoint of step {last} is damaged; the one of step {used} was used." if last != used else ""


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def whole(folder: Path) -> bool:
    """Whether every file of a checkpoint is there and has the content it was written with: then a run can be resumed from it."""
    return _as_written(folder, "", sha256)


def adapter_whole(folder: Path, digest_of: Callable[[Path], str] = sha256) -> bool:
    """The same without what a resume needs: enough to write texts and to export; older checkpoints have no more."""
    return _as_written(folder, TRAINER_FILE, digest_of)


def _as_written(folder: Path, without: str, digest_of: Callable[[Path], str]) -> bool:
    try:
        files: dict[str, str] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["sha256"]
        kept = {name: digest for name, digest in files.items() if name != without}
        return TRAINER_FILE in files and all(digest_of(folder / name) == digest for name, digest in kept.items())
    except (OSError, ValueError, KeyError):
        return False


def _sha256_once(path: Path) -> str:
    about = path.stat()
    return _sha256_of(path, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256_of(path: Path, _size: int, _changed_ns: int) -> str:
    return sha256(path)
