"""Finds the checkpoints of a run and checks whether their files are intact. `training.checkpoints` writes them."""

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhf_lab.common.hashing import file_sha256

TRAINER_FILE = "trainer.safetensors"
STATE_FILE = "state.json"


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    return run_folder / f"step-{step:06d}"


def checkpoint_step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def checkpoint_steps(run_folder: Path) -> list[int]:
    """The steps that have a checkpoint, ascending."""
    folders = [path for path in run_folder.glob("step-*") if (path / STATE_FILE).is_file()]
    return sorted(checkpoint_step(path) for path in folders if path.name.removeprefix("step-").isdigit())


def newest_intact_step(run_folder: Path) -> int | None:
    """The newest step with an intact adapter, or None. Files are hashed again only if their size or time has changed."""
    newest_first = reversed(checkpoint_steps(run_folder))
    return next(
        (step for step in newest_first if is_adapter_intact(checkpoint_folder(run_folder, step), _cached_sha256)), None
    )


def best_step(run_folder: Path) -> int | None:
    """The step with the best score on held-out prompts within the KL budget, or None.

    None if the run has no budget, or if the checkpoint of that step is missing or damaged.
    """
    best = saved_numbers(run_folder).get("best")
    best_folder = checkpoint_folder(run_folder, int(best[0])) if best else None
    is_usable = best_folder is not None and is_adapter_intact(best_folder, _cached_sha256)
    return int(best[0]) if best and is_usable else None


def saved_numbers(run_folder: Path) -> dict[str, Any]:
    """The numbers of the newest checkpoint with a readable state (`TrainState.state_dict`); {} without one."""
    for step in reversed(checkpoint_steps(run_folder)):
        try:
            numbers = json.loads((checkpoint_folder(run_folder, step) / STATE_FILE).read_text(encoding="utf-8"))[
                "numbers"
            ]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(numbers, dict):
            return numbers
    return {}


def damaged_checkpoint_note(run_folder: Path, used_step: int) -> str:
    """A note that an older checkpoint was used because the newest is damaged; "" if `used_step` is the newest."""
    last_step = checkpoint_steps(run_folder)[-1]
    return (
        f"The checkpoint of step {last_step} is damaged; the one of step {used_step} was used."
        if last_step != used_step
        else ""
    )


def is_intact(folder: Path, digest_of: Callable[[Path], str] = file_sha256) -> bool:
    """Whether every file of a checkpoint has its recorded SHA-256, so that a run can be resumed from it."""
    return _matches_digests(folder, "", digest_of)


def is_adapter_intact(folder: Path, digest_of: Callable[[Path], str] = file_sha256) -> bool:
    """`is_intact` without the trainer state, which older checkpoints lack: enough for sampling and export."""
    return _matches_digests(folder, TRAINER_FILE, digest_of)


def _matches_digests(folder: Path, excluded_file: str, digest_of: Callable[[Path], str]) -> bool:
    try:
        files: dict[str, str] = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["sha256"]
        expected = {name: digest for name, digest in files.items() if name != excluded_file}
        return TRAINER_FILE in files and all(digest_of(folder / name) == digest for name, digest in expected.items())
    except (OSError, ValueError, KeyError):
        return False


def _cached_sha256(path: Path) -> str:
    stat = path.stat()
    return _sha256_by_stat(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256_by_stat(path: Path, _size: int, _mtime_ns: int) -> str:
    return file_sha256(path)
