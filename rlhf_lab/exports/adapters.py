"""A trained policy or a reward model as a zip that PEFT and safetensors read, with a README that says what it is."""

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rlhf_lab.assets import EMBEDDED
from rlhf_lab.checkpoints import adapter_whole, checkpoints, folder_of
from rlhf_lab.errors import StoreError
from rlhf_lab.exports import cards, classifier
from rlhf_lab.exports.staging import Stage, staging
from rlhf_lab.exports.words import portable
from rlhf_lab.home import run_folder
from rlhf_lab.records import Run
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.runs import get_reward_model, get_run

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors")
HEAD_CONFIG = "reward_head.json"
HEAD_FILES = ("reward_head.safetensors", HEAD_CONFIG, "report.json", "config.json")
_BEGINNING = (1980, 1, 1, 0, 0, 0)  # of time in a zip: the same content makes the same file


def export_adapter(
    db: Database, home: Path, run_id: int, out: Path, *, step: int | None = None, force: bool = False
) -> Path:
    """The policy of a run's checkpoint (the newest whole one, or that of `step`) as run-ID-step-NNNNNN.zip.

    Raises StoreError when there is no such checkpoint or its files are not those that were saved.
    """
    run = get_run(db, run_id)
    with staging(out, force=force) as stage:
        add_adapter(stage, db, home, run, step)
    return stage.paths[0]


def export_reward_model(db: Database, home: Path, reward_model_id: int, out: Path, *, force: bool = False) -> Path:
    """Adapter (where it has one), head, report and config as reward-model-ID.zip. Raises StoreError when files are missing.

    A single head that reads the last token becomes part of the adapter, as a sequence classifier of one label.
    """
    row = get_reward_model(db, reward_model_id)
    project = get_project(db, row.project_id)
    folder = home / row.path
    try:
        about = json.loads((folder / HEAD_CONFIG).read_text(encoding="utf-8"))
        names = [*(ADAPTER_FILES if about["adapter"] else ()), *HEAD_FILES]
        changed: dict[str, str | bytes] = {HEAD_CONFIG: _portable_json(folder / HEAD_CONFIG, "backbone")}
        if about["adapter"]:
            changed[ADAPTER_CONFIG] = _portable_json(folder / ADAPTER_CONFIG, "base_model_name_or_path")
        if lacking := [name for name in names if not (folder / name).is_file()]:
            raise ValueError(f"it lacks {', '.join(lacking)}")
        if classifier.fits(about):
            changed |= classifier.files(folder, str(changed[ADAPTER_CONFIG]))
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise StoreError(
            f"Reward model {reward_model_id} cannot be read from {folder} ({error}). Train it again: the labels are untouched."
        ) from error
    more = classifier.offset(folder) if classifier.fits(about) else None
    changed["README.md"] = cards.reward_model(row, base_of(project.model), about, more)
    with staging(out, force=force) as stage:
        _zip(stage.add(f"reward-model-{reward_model_id}.zip"), folder, names, changed)
    return stage.paths[0]


def add_adapter(stage: Stage, db: Database, home: Path, run: Run, step: int | None) -> None:
    step, folder = _checkpoint(home, run, step)
    project, row = get_project(db, run.project_id), get_reward_model(db, run.reward_model_id)
    digest = str(run.manifest.get("machine", {}).get("backbone_sha256") or project.model_hash)
    changed: dict[str, str | bytes] = {
        ADAPTER_CONFIG: _portable_json(folder / ADAPTER_CONFIG, "base_model_name_or_path"),
        "README.md": cards.policy(run, step, row, base_of(project.model), digest),
    }
    _zip(stage.add(f"run-{run.id}-{folder.name}.zip"), folder, ADAPTER_FILES, changed)


def _checkpoint(home: Path, run: Run, step: int | None) -> tuple[int, Path]:
    """The checkpoint of a step, or the newest one that is whole."""
    there = checkpoints(run_folder(home, run.id))
    if not there:
        raise StoreError(f"Run {run.id} has no checkpoint yet. Let it train a few more steps, then try again.")
    if step is not None and step not in there:
        raise StoreError(
            f"Run {run.id} has no checkpoint of step {step}; it has those of {', '.join(map(str, there))}."
        )
    for candidate in [step] if step is not None else reversed(there):
        folder = folder_of(run_folder(home, run.id), candidate)
        if adapter_whole(folder):
            return candidate, folder
    which = f"The checkpoint of step {step}" if step is not None else "Every checkpoint"
    raise StoreError(
        f"{which} of run {run.id} is damaged: its files are missing or not those that were saved. Resume the run to make "
        "another, or choose another step."
    )


def base_of(model: str) -> str:
    """How the base model is called on another machine."""
    return "assets/model" if model == EMBEDDED else portable(model)


def _portable_json(path: Path, key: str) -> str:
    """A JSON file with the base model's name made portable."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if values.get(key):
        values[key] = portable(str(values[key]))
    return json.dumps(values, indent=1) + "\n"


def _zip(target: Path, folder: Path, names: list[str] | tuple[str, ...], texts: Mapping[str, str | bytes]) -> None:
    """The files of a folder; `texts` in place of some, or beside them. Large files are never held in memory."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in dict.fromkeys([*names, *texts]):
            info = zipfile.ZipInfo(name, _BEGINNING)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            if name in texts:
                archive.writestr(info, texts[name])
                continue
            with (folder / name).open("rb") as source, archive.open(info, "w", force_zip64=True) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)
