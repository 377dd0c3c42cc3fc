"""What the engine holds in memory: the store, one backbone at a time, and the adapters laid over it."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from rlhf_lab.checkpoints import checkpoints, folder_of, newest, passed_over, step_of
from rlhf_lab.errors import ModelError
from rlhf_lab.home import run_folder
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone, load_backbone
from rlhf_lab.models.memory import free_memory
from rlhf_lab.models.reward_model import RewardModel, load_reward_model
from rlhf_lab.records import Project
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import get_reward_model
from rlhf_lab.trainers.group import ALONE, Group

REWARD_MODELS = "reward_models"


@dataclass
class Lab:
    """One home and what is loaded from it. Slots are adapter names; a slot remembers which folder fills it.

    group: the processes that do the same work at the same time, each with a lab of its own; the leading one writes.
    sharded: they hold the backbone together.
    """

    home: Path
    db: Database
    device: str | None = None
    dtype: torch.dtype | None = None
    group: Group = ALONE
    sharded: bool = False
    _adapters: Adapters | None = None
    _slots: dict[str, tuple[Path, RewardModel | None]] = field(default_factory=dict)

    def open(self, project: Project) -> tuple[Backbone, Adapters]:
        """The backbone of a project; another one that was loaded is let go first.

        Raises ModelError when its weights are not those the project was made with.
        """
        if self._adapters is not None and self._adapters.backbone.name != project.model:
            self.close()
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
        where, dtype = str(self._adapters.backbone.device), self._adapters.backbone.model.dtype
        return where if dtype == torch.float32 else f"{where}, {str(dtype).removeprefix('torch.')}"

    def close(self) -> None:
        """Let the backbone go, and give its memory back."""
        self._adapters = None
        self._slots.clear()
        free_memory()

    def reward_model(self, reward_model_id: int, slot: str) -> RewardModel:
        """A stored reward model, loaded into the slot unless it is there already. The project must be open."""
        assert self._adapters is not None
        folder = self.home / get_reward_model(self.db, reward_model_id).path
        held = self._slots.get(slot)
        if held is not None and held[0] == folder and held[1] is not None:
            return held[1]
        model = load_reward_model(self._adapters.backbone, self._adapters, folder, slot)
        self._slots[slot] = (folder, model)
        return model

    def checkpoint(self, name: str, slot: str) -> str | None:
        """Load the policy checkpoint "run/ID/STEP" (or "run/ID/latest") into the slot; None for "base".

        Raises ModelError when there is no such checkpoint.
        """
        if name == "base":
            return None
        assert self._adapters is not None
        folder = self.checkpoint_folder(name)
        if self._slots.get(slot, (None, None))[0] != folder:
            self._adapters.load(slot, folder)
            self._slots[slot] = (folder, None)
        return slot

    def resolved(self, name: str) -> tuple[str, str]:
        """A checkpoint by its step, "run/ID/STEP" (or "base"), and in words that newer ones are passed over, or "".

        Raises ModelError when there is no such checkpoint.
        """
        if name == "base":
            return name, ""
        folder = self.checkpoint_folder(name)
        used = step_of(folder)
        note = passed_over(folder.parent, used) if name.endswith("/latest") else ""
        return f"run/{folder.parent.name}/{used}", note

    def checkpoint_folder(self, name: str) -> Path:
        """Where a checkpoint is; "latest" is the newest whose files are those that were saved. Raises ModelError."""
        parts = name.split("/")
        if len(parts) != 3 or parts[0] != "run" or not parts[1].isdigit():
            raise ModelError(f'"{name}" is no checkpoint; say "base", "run/ID/latest" or "run/ID/STEP".')
        run = run_folder(self.home, int(parts[1]))
        steps = checkpoints(run)
        if not steps:
            raise ModelError(f"run {parts[1]} has no checkpoint yet; wait for its first, or use the base.")
        step = newest(run) if parts[2] == "latest" else int(parts[2]) if parts[2].isdigit() else -1
        if step is None:
            raise ModelError(
                f"every checkpoint of run {parts[1]} is damaged: its files are missing or not those that were saved. Resume the "
                "run to make another, or use the base."
            )
        if step not in steps:
            raise ModelError(
                f"run {parts[1]} has no checkpoint of step {parts[2]}; it has {', '.join(map(str, steps))}."
            )
        return folder_of(run, step)
