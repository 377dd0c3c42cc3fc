"""What the engine holds in memory: the store, one backbone at a time, and the adapters laid over it."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from rlhf_lab.common.checkpoint_index import (
    checkpoint_folder,
    checkpoint_step,
    checkpoint_steps,
    damaged_checkpoint_note,
    newest_intact_step,
)
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Project
from rlhf_lab.errors import ModelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone, load_backbone
from rlhf_lab.models.oom import free_memory
from rlhf_lab.models.reward_model import RewardModel, load_reward_model
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed

REWARD_MODELS_FOLDER = "reward_models"


@dataclass
class ModelCache:
    """One home and what is loaded from it. Slots are adapter names; a slot remembers which folder fills it.

    group: the processes that do the same work at the same time, each with a lab of its own; the leading one writes.
    sharded: they hold the backbone together.
    """

    home: Path
    db: Database
    device: str | None = None
    dtype: torch.dtype | None = None
    distributed: Distributed = SINGLE_PROCESS
    sharded: bool = False
    _adapters: Adapters | None = None
    _slots: dict[str, tuple[Path, RewardModel | None]] = field(default_factory=dict)

    def load_project(self, project: Project) -> tuple[Backbone, Adapters]:
        """The backbone of a project; another one that was loaded is let go first.

        Raises ModelError when its weights are not those the project was made with.
        """
        if self._adapters is not None and self._adapters.backbone.name != project.model:
            self.unload()
        if self._adapters is None:
            backbone = load_backbone(project.model, device=self.device, dtype=self.dtype, sharded=self.sharded)
            self._adapters = Adapters(backbone)
        backbone = self._adapters.backbone
        if project.model_hash not in ("", backbone.digest):
            raise ModelError(
                f'the weights of "{project.model}" are not those that project {project.id} ({project.name}) was made '
                "with: its texts and labels belong to other weights. Restore them, or make a new project."
            )
        return backbone, self._adapters

    @property
    def device_name(self) -> str:
        """Where the model is, and in which precision unless float32, for people; empty while none is loaded."""
        if self._adapters is None:
            return ""
        device, dtype = str(self._adapters.backbone.device), self._adapters.backbone.model.dtype
        return device if dtype == torch.float32 else f"{device}, {str(dtype).removeprefix('torch.')}"

    def unload(self) -> None:
        """Let the backbone go, and give its memory back."""
        self._adapters = None
        self._slots.clear()
        free_memory()

    def reward_model(self, reward_model_id: int, slot: str) -> RewardModel:
        """A stored reward model, loaded into the slot unless it is there already. The project must be open."""
        assert self._adapters is not None
        folder = self.home / get_reward_model(self.db, reward_model_id).path
        cached = self._slots.get(slot)
        if cached is not None and cached[0] == folder and cached[1] is not None:
            return cached[1]
        model = load_reward_model(self._adapters.backbone, self._adapters, folder, slot)
        self._slots[slot] = (folder, model)
        return model

    def load_checkpoint(self, name: str, slot: str) -> str | None:
        """Load the policy checkpoint "run/ID/STEP" (or "run/ID/latest") into the slot; None for "base".

        Raises ModelError when there is no such checkpoint.
        """
        if name == "base":
            return None
        assert self._adapters is not None
        folder = self.resolve_checkpoint_folder(name)
        if self._slots.get(slot, (None, None))[0] != folder:
            self._adapters.load(slot, folder)
            self._slots[slot] = (folder, None)
        return slot

    def resolve_checkpoint(self, name: str) -> tuple[str, str]:
        """A checkpoint by its step, "run/ID/STEP" (or "base"), and in words that newer ones are passed over, or "".

        Raises ModelError when there is no such checkpoint.
        """
        if name == "base":
            return name, ""
        folder = self.resolve_checkpoint_folder(name)
        step = checkpoint_step(folder)
        note = damaged_checkpoint_note(folder.parent, step) if name.endswith("/latest") else ""
        return f"run/{folder.parent.name}/{step}", note

    def resolve_checkpoint_folder(self, name: str) -> Path:
        """Where a checkpoint is; "latest" is the newest whose files are those that were saved. Raises ModelError."""
        parts = name.split("/")
        if len(parts) != 3 or parts[0] != "run" or not parts[1].isdigit():
            raise ModelError(f'"{name}" is no checkpoint; say "base", "run/ID/latest" or "run/ID/STEP".')
        run_path = run_folder(self.home, int(parts[1]))
        steps = checkpoint_steps(run_path)
        if not steps:
            raise ModelError(f"run {parts[1]} has no checkpoint yet; wait for its first, or use the base.")
        step = newest_intact_step(run_path) if parts[2] == "latest" else int(parts[2]) if parts[2].isdigit() else -1
        if step is None:
            raise ModelError(
                f"every checkpoint of run {parts[1]} is damaged: its files are missing or not those that were saved. Resume the "
                "run to make another, or use the base."
            )
        if step not in steps:
            raise ModelError(
                f"run {parts[1]} has no checkpoint of step {parts[2]}; it has {', '.join(map(str, steps))}."
            )
        return checkpoint_folder(run_path, step)
