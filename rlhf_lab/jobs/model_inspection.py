"""Facts about a model, read from its JSON files and the headers of its safetensors files without loading it. No torch.

A Hub id whose files are all in the local cache is read there; otherwise from the Hub, which sends nothing but small JSON files.
"""

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.common.bundled_assets import (
    EMBEDDED_MODEL,
    EMBEDDED_PROMPT_SETS,
    EVERYDAY,
    embedded_model_folder,
)
from rlhf_lab.errors import ModelError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
CAUSAL_LM_SUFFIXES = ("ForCausalLM", "LMHeadModel")
WEIGHT_INDEX_FILE = "model.safetensors.index.json"
HUB_TIMEOUT_S = 15.0
HUB_MODEL_ID_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
MODEL_FILE_PATTERN = re.compile(r"[^/]+\.(json|safetensors|model|txt|jinja)")  # the files of a Hub model to download
CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
CHAT_TEMPERATURE = 0.7  # proposed for models with a chat template that state none
SENSIBLE_TEMPERATURES = (0.3, 1.5)  # what a model states outside is not proposed: 0 means no sampling
_MAX_HEADER_BYTES = 100_000_000
OFFLINE_MESSAGE = "The Hub cannot be reached from here ({}). Give a local folder, or use the embedded model."


@dataclass(frozen=True)
class ModelFacts:
    """A usable model. name: as a project stores it. files_to_download: (name, bytes) of files that are only on the Hub.

    has_chat_template: it was trained to follow instructions. temperature: proposed for sampling.
    """

    name: str
    architecture: str
    config: dict[str, Any]
    parameters: int
    folder: Path | None
    revision: str = ""
    files_to_download: tuple[tuple[str, int], ...] = ()
    has_chat_template: bool = False
    temperature: float = 1.0

    @property
    def prompt_set(self) -> str:
        """The bundled prompts that suit the model."""
        return EVERYDAY if self.has_chat_template else EMBEDDED_PROMPT_SETS[0]

    @property
    def download_bytes(self) -> int:
        return sum(size for _, size in self.files_to_download)


def inspect_model(name: str) -> ModelFacts:
    """name: "embedded", a folder or a Hub id. Raises ModelError unless it is a causal LM with safetensors and a tokenizer."""
    name = name.strip()
    if name == EMBEDDED_MODEL:
        return inspect_model_folder(name, embedded_model_folder())
    path = Path(name).expanduser()
    if name and path.is_dir():
        return inspect_model_folder(str(path.resolve()), path)
    if not HUB_MODEL_ID_PATTERN.fullmatch(name) or path.exists():
        raise ModelError(
            f'"{name}" is neither a folder nor a Hub id. Give a folder with config.json, a tokenizer and *.safetensors, '
            f'a Hub id such as "HuggingFaceTB/SmolLM2-135M-Instruct", or "{EMBEDDED_MODEL}".'
        )
    return find_cached_model(name) or _inspect_hub_model(name)


def find_cached_model(name: str) -> ModelFacts | None:
    """A Hub model's facts from the local cache; None: it is not there, or not completely."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
        return inspect_model_folder(name, folder)
    except (ModelError, OSError, ValueError):
        return None


def inspect_model_folder(name: str, folder: Path) -> ModelFacts:
    """The facts of a folder. Raises ModelError."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    check_files(name, names)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{name}: its config.json cannot be read ({error}). Save the model again.") from error
    architecture = causal_lm_architecture(name, config)
    missing = _weight_shards(name, folder) - names
    if missing:
        raise ModelError(
            f"{name}: {len(missing)} of its weight files are missing, such as {min(missing)}. Copy them too."
        )
    parameters = sum(count_parameters(folder / file) for file in sorted(names) if file.endswith(".safetensors"))
    has_chat_template, temperature = _sampling_facts(folder)
    return ModelFacts(
        name, architecture, config, parameters, folder, has_chat_template=has_chat_template, temperature=temperature
    )


def _sampling_facts(folder: Path) -> tuple[bool, float]:
    """Whether a tokenizer has a chat template, and the temperature to propose: the model's own where that is sensible."""
    has_chat_template = bool(
        (folder / CHAT_TEMPLATE_FILE).is_file() or _read_json(folder / TOKENIZER_CONFIG_FILE).get("chat_template")
    )
    stated, (low, high) = _read_json(folder / GENERATION_CONFIG_FILE).get("temperature"), SENSIBLE_TEMPERATURES
    if isinstance(stated, (int, float)) and low <= stated <= high:
        return has_chat_template, float(stated)
    return has_chat_template, CHAT_TEMPERATURE if has_chat_template else 1.0


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if there is none: a model can do without these files."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def check_files(name: str, names: set[str]) -> None:
    """Raises ModelError for a model without config, safetensors or tokenizer."""
    if "config.json" not in names:
        raise ModelError(f"{name}: there is no config.json, so it is no transformers model. Choose another.")
    if not any(file.endswith(".safetensors") for file in names):
        if any(file.endswith(PICKLE_SUFFIXES) for file in names):
            raise ModelError(
                f"{name}: its weights are pickle files, which can run code when opened and are refused. Choose a model with "
                "*.safetensors, or convert it: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)."
            )
        raise ModelError(f"{name}: there is no *.safetensors file, so there are no weights to load. Choose another.")
    if not any(file in names for file in TOKENIZER_FILES):
        raise ModelError(
            f"{name}: there is no tokenizer ({', '.join(TOKENIZER_FILES)}). Save it there: tokenizer.save_pretrained(folder)."
        )


def causal_lm_architecture(name: str, config: Any) -> str:
    """The architecture. Raises ModelError unless the model is a causal LM."""
    if not isinstance(config, dict):
        raise ModelError(f"{name}: its config.json holds no settings, so it is no transformers model. Choose another.")
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(item, str) for item in architectures):
        raise ModelError(f"{name}: its config.json names no architecture that can be read. Choose another model.")
    if architectures and not any(item.endswith(CAUSAL_LM_SUFFIXES) for item in architectures):
        raise ModelError(
            f"{name}: it is a {architectures[0]}, not a causal language model, and cannot continue a text. "
            "Choose a …ForCausalLM model."
        )
    return str(architectures[0]) if architectures else str(config.get("model_type", "unknown"))


def _weight_shards(name: str, folder: Path) -> set[str]:
    """The weight files in the index of a sharded model."""
    if not (folder / WEIGHT_INDEX_FILE).is_file():
        return set()
    try:
        return set(json.loads((folder / WEIGHT_INDEX_FILE).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{name}: {WEIGHT_INDEX_FILE} cannot be read ({error!r}). Save the model again.") from error


def count_parameters(path: Path) -> int:
    """The number of parameters in a safetensors file, from its header. ModelError: it is damaged or truncated."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(_MAX_HEADER_BYTES, size):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
        if size != 8 + length + end:
            raise ValueError(f"it has {size:,} bytes and should have {8 + length + end:,}")
        return sum(math.prod(int(size) for size in entry["shape"]) for entry in tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(f"{path.name} is damaged or was not copied to its end ({error}). Copy it again.") from error


def _inspect_hub_model(name: str) -> ModelFacts:
    from huggingface_hub import HfApi, get_safetensors_metadata, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, NotASafetensorsRepoError, RepositoryNotFoundError

    try:
        info = HfApi().model_info(name, files_metadata=True, timeout=HUB_TIMEOUT_S)
        sizes = {item.rfilename: int(item.size or 0) for item in info.siblings or []}
        check_files(name, set(sizes))
        config_path = Path(hf_hub_download(name, "config.json", revision=info.sha))
        config = json.loads(config_path.read_text(encoding="utf-8"))
        architecture = causal_lm_architecture(name, config)
        for file in {CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, GENERATION_CONFIG_FILE} & set(sizes):
            hf_hub_download(name, file, revision=info.sha)
        counts = get_safetensors_metadata(name, revision=info.sha, timeout=HUB_TIMEOUT_S).parameter_count
    except ModelError:
        raise
    except GatedRepoError as error:
        raise ModelError(
            f"{name} is gated: accept its terms on its page on the Hub, then set HF_TOKEN where the lab runs."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f'There is no model "{name}" on the Hub, or it is private. Check the spelling, or set HF_TOKEN where the lab runs.'
        ) from error
    except NotASafetensorsRepoError as error:
        raise ModelError(f"{name}: its *.safetensors are not a model's weights. Choose another model.") from error
    except Exception as error:  # the client raises errors of many classes: no route, a proxy, a server error
        raise ModelError(OFFLINE_MESSAGE.format(type(error).__name__)) from error
    files = tuple((file, size) for file, size in sorted(sizes.items()) if MODEL_FILE_PATTERN.fullmatch(file))
    return ModelFacts(
        name,
        architecture,
        config,
        sum(counts.values()),
        None,
        str(info.sha or ""),
        files,
        *_sampling_facts(config_path.parent),
    )
