"""Checkpoints of a run: written whole or not at all, verified when read.

    RUN/step-000040/
      adapter_config.json, adapter_model.safetensors   the policy adapter in PEFT's format
      trainer.safetensors                              value head and optimiser, for resuming
      state.json                                       step, knobs, and the SHA-256 of the other files

A checkpoint is built in a hidden folder, flushed to disk and renamed: a crash leaves the old one or the new one, never half.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_lab.common.checkpoint_index import (
    STATE_FILE,
    TRAINER_FILE,
    checkpoint_folder,
    checkpoint_steps,
    file_sha256,
    is_intact,
)
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.adapters import ADAPTER_FILE, Adapters

#: How many of the newest checkpoints keep what a resume needs; older ones keep the adapter alone.
RESUMABLE_CHECKPOINTS = 2
_BACKUP_PREFIX = ".replaced-"


def save_checkpoint(
    run_path: Path, adapters: Adapters, adapter: str, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> Path:
    """Write the checkpoint of `numbers["step"]`; replaces one of that step. Raises TrainingError when the disk is full."""
    target = checkpoint_folder(run_path, int(numbers["step"]))
    temp_folder = run_path / f".building-{target.name}-{os.getpid()}"
    try:
        _recover_interrupted_saves(run_path)
        adapters.save(adapter, temp_folder)
        trainer_tensors = {key: value.cpu() for key, value in tensors.items() if not key.startswith("adapter.")}
        save_file(trainer_tensors, temp_folder / TRAINER_FILE)
        digests = {path.name: file_sha256(path) for path in sorted(temp_folder.iterdir())}
        (temp_folder / STATE_FILE).write_text(
            json.dumps({"numbers": numbers, "sha256": digests}, indent=1), encoding="utf-8"
        )
        for path in temp_folder.iterdir():
            _fsync(path)
        _replace_folder(temp_folder, target)
        _fsync(run_path)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        shutil.rmtree(temp_folder, ignore_errors=True)
        raise TrainingError(
            f"the checkpoint of step {numbers['step']} could not be written to {run_path} ({error}). Free some disk space and "
            "resume the run: the last complete checkpoint is kept."
        ) from error
    for step in checkpoint_steps(run_path)[:-RESUMABLE_CHECKPOINTS]:
        (checkpoint_folder(run_path, step) / TRAINER_FILE).unlink(missing_ok=True)
    return target


def _replace_folder(temp_folder: Path, target: Path) -> None:
    """The new folder takes the old one's place. The old one stands aside until then, and `_recover_interrupted_saves` brings it back if need be."""
    backup = target.with_name(_BACKUP_PREFIX + target.name)
    if target.exists():
        target.rename(backup)
    try:
        temp_folder.rename(target)
    except OSError:
        if backup.exists():
            backup.rename(target)
        raise
    shutil.rmtree(backup, ignore_errors=True)


def _recover_interrupted_saves(run_path: Path) -> None:
    """Clear away what a crash left in the middle of a save; an old checkpoint whose new one never came is put back."""
    for backup in run_path.glob(f"{_BACKUP_PREFIX}*"):
        target = run_path / backup.name.removeprefix(_BACKUP_PREFIX)
        if target.exists():
            shutil.rmtree(backup, ignore_errors=True)
        else:
            backup.rename(target)
    for temp_folder in run_path.glob(".building-*"):
        shutil.rmtree(temp_folder, ignore_errors=True)


def load_latest(run_path: Path, *, recover: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and numbers of the newest checkpoint that is whole and can be resumed; None where there is none.

    writes: what a crash left is cleared away first. Of several processes the leading one does that, before the others look.
    """
    if recover:
        _recover_interrupted_saves(run_path)
    for step in reversed(checkpoint_steps(run_path)):
        folder = checkpoint_folder(run_path, step)
        if not is_intact(folder):
            continue
        numbers = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["numbers"]
        adapter = {f"adapter.{k}": v for k, v in load_file(folder / ADAPTER_FILE).items()}
        return load_file(folder / TRAINER_FILE) | adapter, numbers
    return None


def _fsync(path: Path) -> None:
    """Push a file (or, on POSIX, a folder's entries) to the disk."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
