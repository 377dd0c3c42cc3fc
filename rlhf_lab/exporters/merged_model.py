"""A policy as a whole model folder: the base's weights with the adapter added, for programs that know no adapters.

The files of the base are copied and the adapted weights are changed in place, one at a time: tied weights, tokenizer and chat
template stay as they are, and memory holds one weight, however large the model. NumPy only, no torch.
"""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL, embedded_model_folder, weights_digest
from rlhf_lab.common.model_files import ADAPTER_CONFIG, ADAPTER_FILE
from rlhf_lab.common.model_folder import read_json
from rlhf_lab.common.records import Project
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters import readme_templates
from rlhf_lab.exporters.adapter_zip import base_model_name, find_checkpoint, resolve_step
from rlhf_lab.exporters.json_io import write_json
from rlhf_lab.exporters.output_folder import atomic_output
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_models import reward_model_of
from rlhf_lab.store.run_metrics import metric_at
from rlhf_lab.store.runs import get_run

Float32 = NDArray[np.float32]
COPIED = ("*.json", "*.safetensors", "*.model", "*.jinja", "merges.txt", "vocab.txt")
GENERATION_CONFIG = "generation_config.json"
CARD_METRICS = ("objective/scores", "objective/kl", "objective/gold", "eval/scores", "eval/kl")
_ADAPTER_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


def export_model(
    db: Database, home: Path, run_id: int, out_dir: Path, *, step: int | Literal["best"] | None = None,
    force: bool = False,
) -> Path:  # fmt: skip
    """Write OUT/run-ID-step-NNNNNN-model/ of a run's checkpoint (the newest intact one, or that of `step`); returns the folder.

    The weights have the dtype that they have in the base's files.

    Raises StoreError if there is no such checkpoint, if the base is not on this machine or not the one that the run trained, or
    if its files do not have the weights that the adapter changes.
    """
    run = get_run(db, run_id)
    project, row = get_project(db, run.project_id), reward_model_of(db, run.reward_model_id)
    step, checkpoint = find_checkpoint(home, run, resolve_step(home, run, step))
    base = _base_folder(project)
    digest = str(run.manifest.get("machine", {}).get("backbone_sha256") or project.model_hash)
    if digest and weights_digest(base) != digest:
        raise StoreError(
            f"The weights in {base} are not those that run {run.id} trained. Put the base model back as it was, or export the "
            "adapter alone."
        )
    folder_name = f"run-{run.id}-{checkpoint.name}-model"
    with atomic_output(out_dir, force=force) as output:
        shards = {}
        for path in sorted({path for pattern in COPIED for path in base.glob(pattern)}):
            target = output.add(f"{folder_name}/{path.name}")
            shutil.copyfile(path, target)
            if path.suffix == ".safetensors":
                shards[path.name] = target
        _add_updates(checkpoint, list(shards.values()))
        generation_config = read_json(base / GENERATION_CONFIG) | _sampling_settings(project)
        target = output.temp_dir / folder_name / GENERATION_CONFIG
        write_json(target if target.exists() else output.add(f"{folder_name}/{GENERATION_CONFIG}"), generation_config)
        figures = {name: metric_at(db, run.id, step, name) for name in CARD_METRICS}
        card = readme_templates.model_card(run, step, row, base_model_name(project.model), digest, project, figures)
        output.add(f"{folder_name}/README.md").write_text(card, encoding="utf-8")
    return out_dir / folder_name


def _base_folder(project: Project) -> Path:
    if project.model == EMBEDDED_MODEL:
        return embedded_model_folder()
    folder = Path(project.model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(project.model, local_files_only=True))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"The base model {project.model} is not on this machine, and the adapter is merged into its weights. Open the "
                "project once, which fetches the model, or export the adapter alone."
            ) from error
    return folder


def _sampling_settings(project: Project) -> dict[str, Any]:
    """How the lab samples: from the whole vocabulary at the project's temperature."""
    return {"do_sample": True, "temperature": project.temperature, "top_k": 0, "top_p": 1.0}


def _add_updates(checkpoint: Path, shards: list[Path]) -> None:
    """Add the adapter's updates to the weights in the shards. Raises StoreError."""
    stored = {name: weight for path in shards for name, weight in _stored_weights(path)}
    updates = dict(_updates(checkpoint))
    weights = {name: _find_weight(name, stored) for name in updates}
    # GPT-2 stores weights as (in, out); for a square weight, the other weights decide
    is_transposed = any(weight.shape != updates[name].shape for name, weight in weights.items())
    for name, update in updates.items():
        weight, change = weights[name], update.product()
        change = change.T if is_transposed else change
        if weight.shape != change.shape:
            raise StoreError(
                f"The weight {weight.name} of the base has the shape {weight.shape}, and the adapter changes one of "
                f"{change.shape}. The adapter is of another model: export it alone."
            )
        weight.add(change)


@dataclass(frozen=True)
class LoraUpdate:
    """scale · B A of one weight. a: (r, in), b: (out, r)."""

    a: Float32
    b: Float32
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.b), self.a.shape[1]

    def product(self) -> Float32:
        """(out, in)."""
        return (self.b @ self.a) * np.float32(self.scale)


def _updates(checkpoint: Path) -> Iterator[tuple[str, LoraUpdate]]:
    """The adapted modules' names and updates. Raises StoreError for an adapter that is no plain LoRA."""
    try:
        config = json.loads((checkpoint / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(checkpoint / ADAPTER_FILE)
    except (OSError, ValueError, SafetensorError) as error:
        raise StoreError(f"The adapter in {checkpoint} cannot be read ({error}). Choose another step.") from error
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    modules = {name.removesuffix(_A) for name in tensors if name.endswith(_A)}
    others = [name for name in tensors if not name.endswith((_A, _B))]
    if others or config.get("use_dora") or config.get("rank_pattern") or config.get("alpha_pattern"):
        raise StoreError(
            f"The adapter in {checkpoint} is not a plain LoRA adapter, and only those are merged. Export the adapter alone, and "
            "merge it with PEFT."
        )
    for module in sorted(modules):
        yield module.removeprefix(_ADAPTER_PREFIX), LoraUpdate(tensors[module + _A], tensors[module + _B], scale)


@dataclass(frozen=True)
class StoredWeight:
    """A tensor of a safetensors file, by its place in the file."""

    path: Path
    name: str
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    offset: int
    size: int

    def add(self, change: Float32) -> None:
        """Add to the tensor in float32 and round to its dtype, to nearest even."""
        with self.path.open("r+b") as file:
            file.seek(self.offset)
            raw = file.read(self.size)
            if self.dtype == "BF16":
                bits = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
                total = (bits.view(np.float32) + change.ravel()).view(np.uint32)
                data = ((total + 0x7FFF + ((total >> 16) & 1)) >> 16).astype("<u2").tobytes()
            else:
                stored = np.frombuffer(raw, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[self.dtype])
                data = (
                    (stored.astype(np.promote_types(stored.dtype, "f4")) + change.ravel())
                    .astype(stored.dtype)
                    .tobytes()
                )
            file.seek(self.offset)
            file.write(data)


def _stored_weights(path: Path) -> Iterator[tuple[str, StoredWeight]]:
    """The tensors of a safetensors file: eight bytes with the length of a JSON header, the header, the data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            yield name, StoredWeight(path, name, entry["dtype"], tuple(entry["shape"]), 8 + length + start, end - start)


def _find_weight(module: str, stored: dict[str, StoredWeight]) -> StoredWeight:
    """The weight of a module. Some files leave out the model's own prefix ("transformer.h.0" is "h.0" in GPT-2's)."""
    name = f"{module}.weight"
    weight = stored.get(name) or stored.get(name.partition(".")[2])
    if weight is None or weight.dtype not in ("F64", "F32", "F16", "BF16"):
        raise StoreError(
            f"The base's files have no weight {name} in floating point, so the adapter cannot be merged into it. Export the "
            "adapter alone, and merge it with PEFT."
        )
    return weight
