"""What the engine holds in memory: the database, one backbone at a time, and its adapters."""

import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.common.checkpoint_index import (
    best_step,
    checkpoint_folder,
    checkpoint_step,
    checkpoint_steps,
    damaged_checkpoint_note,
    newest_intact_step,
)
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Project
from rlhf_lab.config.dtype import DTYPE_NAMES, requested_dtype
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs.model_speed import ModelSpeed, load_speed, save_speed
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.oom import free_memory
from rlhf_lab.models.reward_model import RewardModel, load_reward_model
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed
from rlhf_lab.training.model_trial import load_tried_backbone
from rlhf_lab.training.reward.task import ReferenceSamples


@dataclass
class ModelCache:
    """One home and the models loaded from it.

    Slots are names of adapters; the cache records which folder is loaded into each. distributed: the processes that train
    together; each has its own cache, and only the main one writes. sharded: the backbone is sharded among them. startup_s:
    seconds that this process needed before it could load a model. speed: measurements of the loaded model. interrupted_s: seconds
    spent on short jobs in the middle of other jobs. references: reference samples of the loaded model, by what they depend on
    (`completions.reference_samples`).
    """

    home: Path
    db: Database
    device: str | None = None
    dtype: torch.dtype | None = None
    distributed: Distributed = SINGLE_PROCESS
    sharded: bool = False
    startup_s: float = 0.0
    speed: ModelSpeed = field(default_factory=lambda: ModelSpeed(""))
    interrupted_s: float = 0.0
    references: dict[Any, ReferenceSamples] = field(default_factory=dict)
    _adapters: Adapters | None = None
    _slots: dict[str, tuple[Path, RewardModel | None]] = field(default_factory=dict)

    def working_time(self) -> float:
        """Seconds of a clock that stands still while short jobs run in the middle of another job."""
        return time.monotonic() - self.interrupted_s

    def load_project(self, project: Project, recorded_dtype: str | None = None) -> tuple[Backbone, Adapters]:
        """The backbone of a project, with its chat settings, and its adapters. Another loaded backbone is unloaded first.

        recorded_dtype: the dtype of a run that is resumed; the backbone is loaded in it, unless the user requests another one.
        None accepts any dtype.
        Raises ModelError if the weights are not those with which the project was created.
        """
        dtype = self.dtype
        if dtype is None and recorded_dtype in DTYPE_NAMES and requested_dtype() is None:
            dtype = getattr(torch, recorded_dtype)
        loaded = None if self._adapters is None else self._adapters.backbone
        if loaded is not None and (loaded.name != project.model or dtype not in (None, loaded.model.dtype)):
            self.unload()
        if self._adapters is None:
            start_time = time.monotonic()
            backbone = load_tried_backbone(project.model, device=self.device, dtype=dtype, sharded=self.sharded)
            self._adapters = Adapters(backbone)
            self.speed = self._stored_speed(backbone)
            self.speed.record_load(self.startup_s + time.monotonic() - start_time)
        backbone = self._adapters.backbone
        if project.model_hash not in ("", backbone.digest):
            raise ModelError(
                f'the weights of "{project.model}" are not those that project {project.id} ({project.name}) was made '
                "with: its texts and labels belong to other weights. Restore them, or make a new project."
            )
        backbone.chat_settings = project.chat_settings
        return backbone, self._adapters

    def _stored_speed(self, backbone: Backbone) -> ModelSpeed:
        """Earlier measurements of a backbone in this environment, with the relative cost of its vocabulary head."""
        environment = f"{backbone.digest}, {backbone.device}, {backbone.model.dtype}, {torch.get_num_threads()} threads"
        stored = load_speed(self.home, socket.gethostname(), backbone.name)
        if stored is not None and stored.environment == environment:
            return stored
        head = backbone.model.get_output_embeddings().weight
        embeddings = {backbone.model.get_input_embeddings().weight, head}  # often tied: the same tensor
        layer_weights = sum(p.numel() for p in backbone.model.parameters()) - sum(p.numel() for p in embeddings)
        return ModelSpeed(environment, head_cost=head.numel() / max(1, layer_weights))

    def save_speed(self) -> None:
        """Store the measurements of the loaded model, for the page and the next engine."""
        if self._adapters is not None and self.distributed.is_main_process:
            save_speed(self.home, socket.gethostname(), self._adapters.backbone.name, self.speed)

    @property
    def device_name(self) -> str:
        """The model's device, and its dtype unless that is float32, for display; "" if no model is loaded."""
        if self._adapters is None:
            return ""
        device, dtype = str(self._adapters.backbone.device), self._adapters.backbone.model.dtype
        return device if dtype == torch.float32 else f"{device}, {str(dtype).removeprefix('torch.')}"

    def unload(self) -> None:
        """Drop the backbone and free its memory."""
        self._adapters = None
        self._slots.clear()
        self.references.clear()
        free_memory()

    def reward_model(self, reward_model_id: int, slot: str) -> RewardModel:
        """A stored reward model. It is loaded into the slot unless it is already there; its project must be loaded."""
        assert self._adapters is not None
        folder = self.home / get_reward_model(self.db, reward_model_id).path
        cached = self._slots.get(slot)
        if cached is not None and cached[0] == folder and cached[1] is not None:
            return cached[1]
        self._slots.pop(slot, None)  # a loading that fails leaves nothing usable there
        model = load_reward_model(self._adapters.backbone, self._adapters, folder, slot)
        self._slots[slot] = (folder, model)
        return model

    def load_checkpoint(self, name: str, slot: str) -> str | None:
        """Load the policy checkpoint "run/ID/STEP" (or "run/ID/latest", "run/ID/best") into the slot; None for "base".

        Raises ModelError when there is no such checkpoint.
        """
        if name == "base":
            return None
        assert self._adapters is not None
        folder = self.resolve_checkpoint_folder(name)
        if self._slots.get(slot, (None, None))[0] != folder:
            self._slots.pop(slot, None)  # a loading that fails leaves nothing usable there
            self._adapters.load(slot, folder)
            self._slots[slot] = (folder, None)
        return slot

    def resolve_checkpoint(self, name: str) -> tuple[str, str]:
        """The name of a checkpoint with its step, "run/ID/STEP" (or "base"), and a note if newer ones are damaged, or "".

        Raises ModelError when there is no such checkpoint.
        """
        if name == "base":
            return name, ""
        folder = self.resolve_checkpoint_folder(name)
        step = checkpoint_step(folder)
        note = damaged_checkpoint_note(folder.parent, step) if name.endswith("/latest") else ""
        return f"run/{folder.parent.name}/{step}", note

    def resolve_checkpoint_folder(self, name: str) -> Path:
        """The folder of a checkpoint; "latest" is the newest intact one, "best" that of `best_step`. Raises ModelError."""
        parts = name.split("/")
        if len(parts) != 3 or parts[0] != "run" or not parts[1].isdigit():
            raise ModelError(
                f'"{name}" is not a checkpoint; use "base", "run/ID/latest", "run/ID/best" or "run/ID/STEP".'
            )
        run_path = run_folder(self.home, int(parts[1]))
        steps = checkpoint_steps(run_path)
        if not steps:
            raise ModelError(f"run {parts[1]} has no checkpoint yet; wait for the first one, or use the base.")
        if parts[2] == "best" and best_step(run_path) is None:
            raise ModelError(
                f"run {parts[1]} has no best checkpoint: it has no KL budget, no checkpoint was within it, or the "
                "best is "
                f'damaged. Use "run/{parts[1]}/latest" or one of the steps {", ".join(map(str, steps))}.'
            )
        names = {"latest": newest_intact_step, "best": best_step}
        step = names[parts[2]](run_path) if parts[2] in names else int(parts[2]) if parts[2].isdigit() else -1
        if step is None:
            raise ModelError(
                f"every checkpoint of run {parts[1]} is damaged: its files are missing or were changed. Resume the "
                "run to write a new one, or use the base."
            )
        if step not in steps:
            raise ModelError(
                f"run {parts[1]} has no checkpoint of step {parts[2]}; it has {', '.join(map(str, steps))}."
            )
        return checkpoint_folder(run_path, step)
