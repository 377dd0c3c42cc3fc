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

from rlhf_lab.checkpoints import STATE_FILE, TRAINER_FILE, checkpoints, folder_of, sha256, whole
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.adapters import ADAPTER_FILE, Adapters

#: How many of the newest checkpoints keep what a resume needs; older ones keep the adapter alone.
RESUMABLE = 2
_ASIDE = ".replaced-"


def save_checkpoint(
    run: Path, adapters: Adapters, adapter: str, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> Path:
    """Write the checkpoint of `numbers["step"]`; replaces one of that step. Raises TrainingError when the disk is full."""
    target = folder_of(run, int(numbers["step"]))
    building = run / f".building-{target.name}-{os.getpid()}"
    try:
        _tidy(run)
        adapters.save(adapter, building)
        own = {key: value.cpu() for key, value in tensors.items() if not key.startswith("adapter.")}
        save_file(own, building / TRAINER_FILE)
        files = {path.name: sha256(path) for path in sorted(building.iterdir())}
        (building / STATE_FILE).write_text(
            json.dumps({"numbers": numbers, "sha256": files}, indent=1), encoding="utf-8"
        )
        for path in building.iterdir():
            _flush(path)
        _put(building, target)
        _flush(run)
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as an error of its own
        shutil.rmtree(building, ignore_errors=True)
        raise TrainingError(
            f"the checkpoint of step {numbers['step']} could not be written to {run} ({error}). Free some disk space and "
            "resume the run: the last complete checkpoint is kept."
        ) from error
    for old in checkpoints(run)[:-RESUMABLE]:
        (folder_of(run, old) / TRAINER_FILE).unlink(missing_ok=True)
    return target


def _put(building: Path, target: Path) -> None:
    """The new folder takes the old one's place. The old one stands aside until then, and `_tidy` brings it back if need be."""
    aside = target.with_name(_ASIDE + target.name)
    if target.exists():
        target.rename(aside)
    try:
        building.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _tidy(run: Path) -> None:
    """Clear away what a crash left in the middle of a save; an old checkpoint whose new one never came is put back."""
    for aside in run.glob(f"{_ASIDE}*"):
        target = run / aside.name.removeprefix(_ASIDE)
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(target)
    for building in run.glob(".building-*"):
        shutil.rmtree(building, ignore_errors=True)


def load_latest(run: Path, *, writes: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and numbers of the newest checkpoint that is whole and can be resumed; None where there is none.

    writes: what a crash left is cleared away first. Of several processes the leading one does that, before the others look.
    """
    if writes:
        _tidy(run)
    for step in reversed(checkpoints(run)):
        folder = folder_of(run, step)
        if not whole(folder):
            continue
        numbers = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["numbers"]
        adapter = {f"adapter.{k}": v for k, v in load_file(folder / ADAPTER_FILE).items()}
        return load_file(folder / TRAINER_FILE) | adapter, numbers
    return None


def _flush(path: Path) -> None:
    """Push a file (or, on POSIX, a folder's entries) to the disk."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
