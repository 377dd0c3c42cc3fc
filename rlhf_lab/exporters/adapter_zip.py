"""A policy or reward model as a zip for PEFT and safetensors, with a README."""

import json
import math
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors import SafetensorError

from rlhf_lab.common.checkpoint_index import best_step, checkpoint_folder, checkpoint_steps, is_adapter_intact
from rlhf_lab.common.enums import EnsembleCombination
from rlhf_lab.common.model_files import ADAPTER_CONFIG, ADAPTER_FILE, HEAD_CONFIG, HEAD_FILE
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Run
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters import sequence_classifier
from rlhf_lab.exporters.base_model import base_model_name, card_origin
from rlhf_lab.exporters.json_io import portable_name
from rlhf_lab.exporters.output_folder import AtomicOutput, atomic_output
from rlhf_lab.exporters.policy_card import PolicyFacts, policy_card
from rlhf_lab.exporters.reward_model_card import RewardModelFacts, reward_model_card
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_models import get_reward_model, reward_model_of
from rlhf_lab.store.runs import get_run

BEST: Literal["best"] = "best"
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_FILE)
REWARD_MODEL_FILES = (HEAD_FILE, HEAD_CONFIG, "report.json", "config.json")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that the same content makes the same file


def export_adapter(
    db: Database, home: Path, run_id: int, out_dir: Path, *, step: int | Literal["best"] | None = None,
    force: bool = False,
) -> Path:  # fmt: skip
    """The policy adapter of a run's checkpoint (the newest intact one, or that of `step`) as run-ID-step-NNNNNN.zip.

    step: BEST for the best within the run's KL budget.

    Raises StoreError if there is no such checkpoint or it is damaged.
    """
    run = get_run(db, run_id)
    with atomic_output(out_dir, force=force) as output:
        add_adapter(output, db, home, run, resolve_step(home, run, step))
    return output.paths[0]


def resolve_step(home: Path, run: Run, step: int | Literal["best"] | None) -> int | None:
    """The step that BEST stands for; other values are returned unchanged. Raises StoreError if the run has no best checkpoint."""
    if step != BEST:
        return step
    best = best_step(run_folder(home, run.id))
    if best is None:
        raise StoreError(
            f"Run {run.id} has no best checkpoint: it has no KL budget, no checkpoint was within it, or the best is "
            "damaged. Name a step, or export the newest."
        )
    return best


def export_reward_model(db: Database, home: Path, reward_model_id: int, out_dir: Path, *, force: bool = False) -> Path:
    """Adapter (if any), head, report and config as reward-model-ID.zip. Raises StoreError if files are missing or damaged.

    A sequence classifier with one label if it meets `sequence_classifier.CONDITIONS`.
    """
    files = reward_model_files(db, home, reward_model_id)
    with atomic_output(out_dir, force=force) as output:
        _write_zip(output.add(f"reward-model-{reward_model_id}.zip"), files.folder, files.names, files.overrides)
    return output.paths[0]


@dataclass(frozen=True)
class RewardModelFiles:
    """An exported reward model: files of its folder by name, and files that replace or add to them."""

    folder: Path
    names: list[str]
    overrides: dict[str, str | bytes]
    facts: RewardModelFacts


def reward_model_files(db: Database, home: Path, reward_model_id: int, base: str | None = None) -> RewardModelFiles:
    """The files of `export_reward_model`, which raises the same errors. base: name of the base model in them."""
    row = get_reward_model(db, reward_model_id)
    project = get_project(db, row.project_id)
    folder = home / row.path
    try:
        head_config = json.loads((folder / HEAD_CONFIG).read_text(encoding="utf-8"))
        _check_head(head_config)
        names, offset = [*REWARD_MODEL_FILES], None
        overrides: dict[str, str | bytes] = {HEAD_CONFIG: _portable_json(folder / HEAD_CONFIG, "backbone", base)}
        if head_config["adapter"]:
            names = [*ADAPTER_FILES, *names]
            overrides[ADAPTER_CONFIG] = _portable_json(folder / ADAPTER_CONFIG, "base_model_name_or_path", base)
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        unmet = sequence_classifier.unmet_conditions(head_config)
        if not unmet:
            overrides |= sequence_classifier.classifier_files(folder, str(overrides[ADAPTER_CONFIG]))
            offset = sequence_classifier.score_offset(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise StoreError(
            f"Reward model {reward_model_id} cannot be read from {folder} ({error}). Train it again: the labels are "
            "untouched."
        ) from error
    base = base or base_model_name(project.model)
    facts = RewardModelFacts(row, project, base, head_config, offset, tuple(unmet), card_origin(db, project))
    overrides["README.md"] = reward_model_card(facts)
    return RewardModelFiles(folder, names, overrides, facts)


def _check_head(head_config: dict[str, Any]) -> None:
    """Refuse a reward_head.json that nobody's training wrote: its values become code of an export.

    Raises ValueError, or what reading values of another type raises.
    """
    ensemble = head_config.get("ensemble", {"members": 1, "coef": 0.0, "mode": "mean"})
    names = head_config["correction"]["names"] if "correction" in head_config else ()
    numbers = (head_config.get("last_weight", 0.0), ensemble["coef"], ensemble["members"])
    if not (
        all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
        and type(ensemble["members"]) is int
        and ensemble["mode"] in get_args(EnsembleCombination)
        and all(name in ATTRIBUTES for name in names)
        and re.fullmatch(r"\w*", head_config.get("backbone_sha256") or "")
    ):
        raise ValueError(f"{HEAD_CONFIG} has values of a wrong type")


def add_adapter(output: AtomicOutput, db: Database, home: Path, run: Run, step: int | None) -> None:
    """Add the zip of `export_adapter` to an export."""
    step, folder = find_checkpoint(home, run, step)
    project, row = get_project(db, run.project_id), reward_model_of(db, run.reward_model_id)
    digest = str(run.manifest.get("machine", {}).get("backbone_sha256") or project.model_hash)
    facts = PolicyFacts(run, step, row, project, base_model_name(project.model), digest, card_origin(db, project))
    adapter_config = _portable_json(folder / ADAPTER_CONFIG, "base_model_name_or_path")
    overrides: dict[str, str | bytes] = {
        ADAPTER_CONFIG: adapter_config,
        "README.md": policy_card(facts, json.loads(adapter_config)),
    }
    _write_zip(output.add(f"run-{run.id}-{folder.name}.zip"), folder, ADAPTER_FILES, overrides)


def find_checkpoint(home: Path, run: Run, step: int | None) -> tuple[int, Path]:
    """(step, folder) of the checkpoint of `step`, or of the newest intact one."""
    steps = checkpoint_steps(run_folder(home, run.id))
    if not steps:
        raise StoreError(f"Run {run.id} has no checkpoint yet. Let it train a few more steps, then try again.")
    if step is not None and step not in steps:
        raise StoreError(
            f"Run {run.id} has no checkpoint of step {step}; it has those of {', '.join(map(str, steps))}."
        )
    for candidate in [step] if step is not None else reversed(steps):
        folder = checkpoint_folder(run_folder(home, run.id), candidate)
        if is_adapter_intact(folder):
            return candidate, folder
    subject = f"The checkpoint of step {step}" if step is not None else "Every checkpoint"
    raise StoreError(
        f"{subject} of run {run.id} is damaged: its files are missing or were changed. Resume the run to "
        "make another, or choose another step."
    )


def _portable_json(path: Path, key: str, name: str | None = None) -> str:
    """The content of a JSON file with another model name under `key`; None: the name there, made portable."""
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if values.get(key):
        values[key] = name or portable_name(str(values[key]))
    return json.dumps(values, indent=1) + "\n"


def _write_zip(
    target: Path, folder: Path, names: list[str] | tuple[str, ...], overrides: Mapping[str, str | bytes]
) -> None:
    """Zip files of a folder; `overrides` replace or add files. Large files are streamed."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in dict.fromkeys([*names, *overrides]):
            info = zipfile.ZipInfo(name, _ZIP_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            if name in overrides:
                archive.writestr(info, overrides[name])
                continue
            with (folder / name).open("rb") as source, archive.open(info, "w", force_zip64=True) as entry:
                shutil.copyfileobj(source, entry, 1 << 20)
