"""Checkpoints of a run: written whole or not at all, verified when read.

    RUN/step-000040/
      adapter_config.json, adapter_model.safetensors   the policy adapter in PEFT's format
      trainer.safetensors                              value head and optimizer, for resuming
      state.json                                       step, live settings, and the SHA-256 of the other files

A checkpoint replaces an older one of the same step atomically (common/atomic.py).
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_lab.common.atomic import atomic_folder, recover_interrupted_writes
from rlhf_lab.common.checkpoint_index import (
    STATE_FILE,
    TRAINER_FILE,
    best_step,
    checkpoint_folder,
    checkpoint_steps,
    is_intact,
)
from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.common.model_files import ADAPTER_FILE
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.adapters import Adapters

#: This many of the newest checkpoints, and the best one, keep what a resume needs; the others keep only the adapter.
RESUMABLE_CHECKPOINTS = 2


def save_checkpoint(
    run_path: Path, adapters: Adapters, adapter: str, tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> Path:
    """Write the checkpoint of a state (`TrainState.state_dict`), whatever the adapter has learned since; replaces one of the same
    step. Raises TrainingError if the disk is full."""
    target = checkpoint_folder(run_path, int(numbers["step"]))
    try:
        with atomic_folder(target) as folder:
            of_adapter = {key: value for key, value in tensors.items() if key.startswith("adapter.")}
            adapters.save(adapter, folder, {key.removeprefix("adapter."): value for key, value in of_adapter.items()})
            trainer_tensors = {key: value.cpu() for key, value in tensors.items() if key not in of_adapter}
            save_file(trainer_tensors, folder / TRAINER_FILE)
            digests = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
            state = json.dumps({"numbers": numbers, "sha256": digests}, indent=1)
            (folder / STATE_FILE).write_text(state, encoding="utf-8")
    except (OSError, SafetensorError) as error:  # safetensors has its own exception for a full disk
        reason = getattr(error, "strerror", None) or error  # without the path of the temporary folder
        raise TrainingError(
            f"the checkpoint of step {numbers['step']} could not be written to {run_path} ({reason}). Free some disk space and "
            "resume the run: the last complete checkpoint is kept."
        ) from error
    for step in set(checkpoint_steps(run_path)[:-RESUMABLE_CHECKPOINTS]) - {best_step(run_path)}:
        (checkpoint_folder(run_path, step) / TRAINER_FILE).unlink(missing_ok=True)
    return target


def load_latest(run_path: Path, *, recover: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and numbers of the newest intact checkpoint that can be resumed; None if there is none.

    recover: first clean up writes that a crash interrupted. With several processes, only the main process does
    this, before the others call.
    """
    if recover:
        recover_interrupted_writes(run_path)
    for step in reversed(checkpoint_steps(run_path)):
        folder = checkpoint_folder(run_path, step)
        if not is_intact(folder):
            continue
        numbers = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))["numbers"]
        adapter = {f"adapter.{k}": v for k, v in load_file(folder / ADAPTER_FILE).items()}
        tensors = load_file(folder / TRAINER_FILE) | adapter
        # Copies: in the file a tensor begins anywhere, and the last digits of a product depend on how its operands are aligned.
        return {name: tensor.clone() for name, tensor in tensors.items()}, numbers
    return None
