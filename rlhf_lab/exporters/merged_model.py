"""A policy as a whole model folder: the base's weights with the adapter added, for programs that know no adapters.

The files that transformers loads are copied and the adapted weights changed on the way, one at a time: tied weights, tokenizer
and chat template stay as they are, and memory holds one weight, however large the model. NumPy only, no torch.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from rlhf_lab.common.bundled_assets import weights_digest
from rlhf_lab.common.model_files import ADAPTER_CONFIG, ADAPTER_FILE
from rlhf_lab.common.model_folder import (
    CONFIG_FILE,
    GENERATION_CONFIG_FILE,
    declared_token_ids,
    end_token_ids,
    read_json,
    weight_files,
    weight_index,
)
from rlhf_lab.common.records import Run
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters.adapter_zip import find_checkpoint, resolve_step
from rlhf_lab.exporters.base_model import base_folder, base_model_name, card_origin, tokenizer_files
from rlhf_lab.exporters.json_io import write_json
from rlhf_lab.exporters.modelfile import modelfile
from rlhf_lab.exporters.output_folder import AtomicOutput, atomic_output
from rlhf_lab.exporters.policy_card import MergedModelFacts, PolicyFacts, model_card
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_models import reward_model_of
from rlhf_lab.store.run_metrics import metric_at
from rlhf_lab.store.runs import get_run

Float = NDArray[np.floating[Any]]
CARD_METRICS = ("objective/scores", "objective/kl", "objective/gold", "eval/scores", "eval/kl")
#: Of the adapted weights: that of the base's files, or float32.
DTYPES = ("base", "float32")
#: A rounding error of this share of the update is reported. Measured: docs/DECISIONS.md, "Dtype of a merged model".
LARGE_ROUNDING = 0.3
MODELFILE = "Modelfile"
_ADAPTER_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}  # and BF16, which NumPy does not have


@dataclass
class Rounding:
    """How far the stored weights are from base plus update. dtypes: of the changed weights, as safetensors names them."""

    error_square: float = 0.0
    update_square: float = 0.0
    dtypes: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Norm of the rounding error over that of the update, all weights together; 0 if nothing was changed."""
        return math.sqrt(self.error_square / self.update_square) if self.update_square else 0.0


def export_model(
    db: Database, home: Path, run_id: int, out_dir: Path, *, step: int | Literal["best"] | None = None,
    dtype: str = "base", force: bool = False, on_note: Callable[[str], None] = lambda _: None,
) -> Path:  # fmt: skip
    """Write OUT/run-ID-step-NNNNNN-model/ of a run's checkpoint (the newest intact one, or that of `step`); returns the folder.

    dtype: of the weights that the adapter changes, one of DTYPES. on_note: gets a warning if rounding to it loses much of the
    update, and if there is no Modelfile. `generate` samples from the folder as the run did (`_generation_config`).

    Raises StoreError if there is no such checkpoint, if the base is not on this machine or not the one that the run trained, or
    if its files do not have the weights that the adapter changes; ModelError if transformers would not load its files.
    """
    run = get_run(db, run_id)
    project, row = get_project(db, run.project_id), reward_model_of(db, run.reward_model_id)
    step, checkpoint = find_checkpoint(home, run, resolve_step(home, run, step))
    base = base_folder(project)
    digest = str(run.manifest.get("machine", {}).get("backbone_sha256") or project.model_hash)
    if digest and weights_digest(base) != digest:
        raise StoreError(
            f"The weights in {base} are not those that run {run.id} trained. Put the base model back as it was, or export the "
            "adapter alone."
        )
    folder_name = f"run-{run.id}-{checkpoint.name}-model"
    with atomic_output(out_dir, force=force) as output:
        rounding = _write_weights(output, folder_name, base, checkpoint, dtype)
        for path in tokenizer_files(base):
            shutil.copyfile(path, output.add(f"{folder_name}/{path.name}"))
        write_json(output.add(f"{folder_name}/{CONFIG_FILE}"), _model_config(base, dtype))
        write_json(output.add(f"{folder_name}/{GENERATION_CONFIG_FILE}"), _generation_config(base, run))
        modelfile_text, problem = modelfile(base, project, run)
        if modelfile_text:
            output.add(f"{folder_name}/{MODELFILE}").write_text(modelfile_text, encoding="utf-8")
        figures = {name: metric_at(db, run.id, step, name) for name in CARD_METRICS}
        policy = PolicyFacts(run, step, row, project, base_model_name(project.model), digest, card_origin(db, project))
        facts = MergedModelFacts(policy, figures, _rounding_text(rounding), problem)
        output.add(f"{folder_name}/README.md").write_text(model_card(facts), encoding="utf-8")
    if rounding.share >= LARGE_ROUNDING:
        on_note(_rounding_note(rounding))
    if problem:
        on_note(f"There is no Modelfile for Ollama: {problem}. The card names other servers.")
    return out_dir / folder_name


def _rounding_text(rounding: Rounding) -> str:
    return (
        f"{rounding.share:.1%} of the update (norm of the error over norm of the update, weights in {_names(rounding)})"
    )


def _rounding_note(rounding: Rounding) -> str:
    return (
        f"Rounding the merged weights to {_names(rounding)} changed the run's update by {rounding.share:.0%}: the model may "
        "answer differently than in the run. `export model --dtype float32` keeps these weights exact, and so does the adapter "
        "alone."
    )


def _names(rounding: Rounding) -> str:
    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    return " and ".join(names[dtype] for dtype in rounding.dtypes)


def _generation_config(base: Path, run: Run) -> dict[str, Any]:
    """Samples the distribution that the run learned: the whole vocabulary at the run's temperature, and nothing else.

    Only token ids are taken over from the base; its penalties, filters, beams and limits, known or not, would change the
    distribution. Where the file states nothing, top_k would be 50.
    """
    temperature = PolicyConfig.from_dict(run.config).temperature
    token_ids = declared_token_ids(base) | {"eos_token_id": end_token_ids(base)}
    return token_ids | {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


def _model_config(base: Path, dtype: str) -> dict[str, Any]:
    """config.json of the base without its settings for sampling in pipelines."""
    config = read_json(base / CONFIG_FILE)
    config.pop("task_specific_params", None)
    if dtype == "float32":
        _set_dtype(config, dtype)
        config["dtype"] = dtype  # without it transformers takes the dtype of the first weight in the file
    return config


def _set_dtype(config: dict[str, Any], dtype: str) -> None:
    """Set the dtype that transformers and vLLM load the weights in, also in configs within the config."""
    for key, value in config.items():
        if isinstance(value, dict):
            _set_dtype(value, dtype)
        elif key in ("dtype", "torch_dtype"):
            config[key] = dtype


def _write_weights(output: AtomicOutput, folder_name: str, base: Path, checkpoint: Path, dtype: str) -> Rounding:
    """Write the base's weight files, the adapter's updates added. Raises StoreError."""
    files = [base / name for name in weight_files(str(base), base)]
    stored: dict[str, StoredWeight] = {}
    for weight in (weight for path in files for weight in _stored_weights(path)):
        if weight.name in stored:
            raise StoreError(
                f"The tensor {weight.name} is in {stored[weight.name].path.name} and in {weight.path.name}. Save the base model "
                "again with model.save_pretrained(folder), or export the adapter alone."
            )
        stored[weight.name] = weight
    changes = _changes(checkpoint, stored)
    new_dtypes = {
        name: "F32" if dtype == "float32" and stored[name].dtype != "F64" else stored[name].dtype for name in changes
    }
    rounding = Rounding(dtypes=tuple(sorted(set(new_dtypes.values()))))
    for path in files:
        _write_shard(path, output.add(f"{folder_name}/{path.name}"), changes, new_dtypes, rounding)
    if index := weight_index(base):
        content = read_json(base / index)
        if isinstance(content.get("metadata"), dict) and "total_size" in content["metadata"]:
            content["metadata"]["total_size"] += sum(
                4 * math.prod(stored[name].shape) - stored[name].size
                for name, new_dtype in new_dtypes.items()
                if new_dtype != stored[name].dtype
            )
        write_json(output.add(f"{folder_name}/{index}"), content)
    return rounding


def _changes(checkpoint: Path, stored: dict[str, "StoredWeight"]) -> dict[str, "LoraUpdate"]:
    """The update of each tensor that the adapter changes, in the tensor's layout. Raises StoreError."""
    updates = dict(_updates(checkpoint))
    weights = {name: _find_weight(name, stored) for name in updates}
    # GPT-2 stores weights as (in, out); for a square weight, the other weights decide
    is_transposed = any(weight.shape != updates[name].shape for name, weight in weights.items())
    changes = {}
    for name, update in updates.items():
        weight, change = weights[name], update.transposed() if is_transposed else update
        if weight.shape != change.shape:
            raise StoreError(
                f"The weight {weight.name} of the base has the shape {weight.shape}, and the adapter changes one of "
                f"{change.shape}. The adapter is of another model: export it alone."
            )
        changes[weight.name] = change
    return changes


@dataclass(frozen=True)
class LoraUpdate:
    """scale · B A of one weight. a: (r, in), b: (out, r)."""

    a: Float
    b: Float
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.b), self.a.shape[1]

    def product(self) -> Float:
        """(out, in)."""
        return (self.b @ self.a) * np.float32(self.scale)

    def transposed(self) -> "LoraUpdate":
        return LoraUpdate(self.b.T, self.a.T, self.scale)


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


def _stored_weights(path: Path) -> list[StoredWeight]:
    """The tensors of a safetensors file, as they lie in it."""
    header, data_start = _read_header(path)
    weights = []
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            weights.append(
                StoredWeight(path, name, entry["dtype"], tuple(entry["shape"]), data_start + start, end - start)
            )
    return sorted(weights, key=lambda weight: weight.offset)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, which is JSON after eight bytes with its length; and where the data begin."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def _write_shard(
    source: Path, target: Path, changes: dict[str, LoraUpdate], new_dtypes: dict[str, str], rounding: Rounding
) -> None:
    """Copy a safetensors file, the updates added. new_dtypes: of the changed tensors. Adds to `rounding`."""
    weights, header, end = _stored_weights(source), _read_header(source)[0], 0
    for weight in weights:
        entry, size = header[weight.name], weight.size
        if new_dtypes.get(weight.name, weight.dtype) != weight.dtype:
            entry["dtype"], size = new_dtypes[weight.name], 4 * math.prod(weight.shape)
        entry["data_offsets"], end = [end, end + size], end + size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data are aligned to 8 bytes
    with source.open("rb") as reader, target.open("wb") as writer:
        writer.write(len(text).to_bytes(8, "little") + text)
        for weight in weights:
            reader.seek(weight.offset)
            if weight.name in changes:
                raw, change = reader.read(weight.size), changes[weight.name].product().ravel()
                writer.write(_add(raw, weight.dtype, new_dtypes[weight.name], change, rounding))
            else:
                _copy(reader, writer, weight.size)


def _copy(reader: BinaryIO, writer: BinaryIO, size: int, chunk: int = 1 << 24) -> None:
    for start in range(0, size, chunk):
        writer.write(reader.read(min(chunk, size - start)))


def _add(raw: bytes, dtype: str, new_dtype: str, change: Float, rounding: Rounding) -> bytes:
    """The bytes of a tensor plus its change, summed in float32 or better and rounded to nearest even. Adds to `rounding`."""
    stored = _decode(raw, dtype)
    total = stored.astype(np.promote_types(stored.dtype, "f4")) + change
    if new_dtype == "BF16":
        bits = total.astype("<f4").view(np.uint32)
        data = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    else:
        data = total.astype(_NUMPY_TYPES[new_dtype]).tobytes()
    error = _decode(data, new_dtype).astype("f8") - stored.astype("f8") - change.astype("f8")
    rounding.error_square += float(error @ error)
    rounding.update_square += float(change.astype("f8") @ change.astype("f8"))
    return data


def _decode(raw: bytes, dtype: str) -> Float:
    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, _NUMPY_TYPES[dtype])


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
