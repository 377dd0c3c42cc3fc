"""Files of a home, made by hand in the order in which the engine makes them."""

import hashlib
import json
from pathlib import Path

from rlhf_lab.common.checkpoint_index import checkpoint_folder
from rlhf_lab.common.enums import Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.store import label_snapshots, projects, reward_models
from rlhf_lab.store.database import Database


def add_reward_model(db: Database, home: Path, name: str) -> None:
    """The folder first, as the engine does."""
    project = projects.current_project(db)
    assert project is not None
    folder = home / "reward_models" / name
    folder.mkdir(parents=True)
    (folder / "reward_head.safetensors").write_bytes(name.encode() * 100)
    (folder / "report.json").write_text("{}")
    snapshot = label_snapshots.snapshot_labels(db, project.id, Source.HUMAN)
    reward_models.add_reward_model(db, project.id, f"reward_models/{name}", config={}, report={}, snapshot=snapshot)


def add_checkpoint(home: Path, run_id: int, step: int, *, resumable: bool = True, best: int | None = None) -> Path:
    """A checkpoint in the layout of training/checkpoints.py; `resumable`: with the trainer's state."""
    folder = checkpoint_folder(run_folder(home, run_id), step)
    folder.mkdir(parents=True)
    files = {"adapter_model.safetensors": b"adapter %d" % step, "trainer.safetensors": b"trainer %d" % step}
    for file, content in files.items():
        (folder / file).write_bytes(content)
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    numbers = {"step": step} | ({"best": [best, 0.0]} if best is not None else {})
    (folder / "state.json").write_text(json.dumps({"numbers": numbers, "sha256": digests}))
    if not resumable:
        (folder / "trainer.safetensors").unlink()
    return folder
