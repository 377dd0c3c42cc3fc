"""Facts about a model, read from its JSON files and the headers of its safetensors files without loading it. No torch.

A Hub model is read from the local cache if that has all its files; otherwise only small JSON files are requested from the Hub.
"""

import functools
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from rlhf_lab.common.bundled_assets import (
    EMBEDDED_MODEL,
    EMBEDDED_PROMPT_SETS,
    EVERYDAY,
    embedded_model_folder,
)
from rlhf_lab.common.hub_errors import HubSlowError, by_deadline
from rlhf_lab.common.model_folder import (
    CARD_FILE,
    CHAT_TEMPLATE_FILE,
    GENERATION_CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    causal_lm_architecture,
    check_file_names,
    check_model_folder,
    declares_chat_template,
    end_token_ids,
    read_config,
    read_json,
)
from rlhf_lab.common.paths import existing_path
from rlhf_lab.errors import ModelError, TemplateLimitError
from rlhf_lab.models.chat_templates import TemplateRenderer
from rlhf_lab.training.trial_process import try_configuration

log = logging.getLogger("rlhf_lab.jobs")

HUB_TIMEOUT_S = 15.0
HUB_MODEL_ID_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
MODEL_FILE_SUFFIXES = ("json", "safetensors", "model", "txt", "jinja")  # files of a Hub model that are downloaded
MODEL_FILE_PATTERN = re.compile(rf"{CARD_FILE}|[^/]+\.({'|'.join(MODEL_FILE_SUFFIXES)})")
MODEL_FILE_GLOBS = [CARD_FILE, *(f"*.{suffix}" for suffix in MODEL_FILE_SUFFIXES)]
CHAT_TEMPERATURE = 0.7  # proposed for a model that has a chat template but states no temperature
SENSIBLE_TEMPERATURES = (0.3, 1.5)  # a model's own temperature is proposed only within this range; 0 means no sampling
TRIAL_CHAT = ({"role": "user", "content": "Hi"},)
OFFLINE_MESSAGE = "The Hub cannot be reached ({}). Give a local folder, or use the embedded model."


@dataclass(frozen=True)
class ModelFacts:
    """A usable model. name: as stored in a project. files_to_download: (name, bytes) of files that are only on the Hub.

    has_chat_template: the model was trained to follow instructions. temperature: proposed for sampling. chat_template: the source
    of the template.
    """

    name: str
    architecture: str
    config: dict[str, Any]
    parameters: int
    folder: Path | None
    files_to_download: tuple[tuple[str, int], ...] = ()
    has_chat_template: bool = False
    temperature: float = 1.0
    chat_template: str = ""

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Proposed arguments of the chat template: thinking is turned off if the template supports that."""
        return {"enable_thinking": False} if "enable_thinking" in self.chat_template else {}

    @property
    def prompt_set(self) -> str:
        """The bundled prompts that suit the model."""
        return EVERYDAY if self.has_chat_template else EMBEDDED_PROMPT_SETS[0]

    @property
    def download_bytes(self) -> int:
        return sum(size for _, size in self.files_to_download)


def inspect_model(name: str) -> ModelFacts:
    """`read_model_facts`, for a model that works in the lab. Raises ModelError for another one.

    Configurations are tried in a process with torch (training/trial_process.py), and chat templates as the engine renders them
    (models/chat_templates.py).
    """
    facts = read_model_facts(name)
    if message := _template_message(facts.name, facts.chat_template):
        raise ModelError(message)
    if facts.name != EMBEDDED_MODEL:
        try_configuration(facts.name, facts.config, facts.parameters)
    return facts


@functools.lru_cache(maxsize=64)
def _template_message(name: str, template: str) -> str:
    """Why a chat template cannot be used; "" if it can, and if the trial itself fails: the engine has the same limits."""
    if not template:
        return ""
    try:
        with TemplateRenderer() as renderer:
            renderer.render(name, template, TRIAL_CHAT, {"bos_token": "", "eos_token": ""})
    except TemplateLimitError as error:
        return str(error)
    except ModelError as error:
        log.warning("The chat template of %s could not be tried: %s", name, error)
    except TemplateError:  # such as a rule that the first message must be of the system
        pass
    return ""


def read_model_facts(name: str) -> ModelFacts:
    """name: "embedded", a folder or a Hub id. Raises ModelError unless it is a causal LM with safetensors and a tokenizer."""
    name = name.strip()
    if name == EMBEDDED_MODEL:
        return inspect_model_folder(name, embedded_model_folder())
    path = existing_path(name)
    if path is not None and path.is_dir():
        return inspect_model_folder(str(path.resolve()), path)
    if not HUB_MODEL_ID_PATTERN.fullmatch(name) or path is not None:
        raise ModelError(
            f'"{name}" is neither a folder nor a Hub id. Give a folder with config.json, a tokenizer and *.safetensors, '
            f'a Hub id such as "HuggingFaceTB/SmolLM2-135M-Instruct", or "{EMBEDDED_MODEL}".'
        )
    if (cached := find_cached_model(name)) is not None:
        return cached
    try:
        return by_deadline(lambda: _inspect_hub_model(name))
    except HubSlowError as error:
        raise ModelError(OFFLINE_MESSAGE.format(error)) from None


def find_cached_model(name: str) -> ModelFacts | None:
    """The facts about a Hub model from the local cache; None if the cache does not have all its files."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(name, local_files_only=True, allow_patterns=MODEL_FILE_GLOBS, ignore_patterns=["*/*"])
        )
        return inspect_model_folder(name, folder)
    except (ModelError, OSError, ValueError):
        return None


@functools.lru_cache
def has_chat_template(model: str) -> bool:
    """Whether the model answers turn by turn; otherwise it continues the text. True for a model that cannot be read."""
    try:
        return read_model_facts(model).has_chat_template
    except ModelError:
        return True


def stop_token_ids(model: str) -> frozenset[int]:
    """The ids that end a response of a model whose files are here; empty if they are unknown. Asks no Hub."""
    try:
        return _stop_token_ids(model)
    except ModelError:
        return frozenset()


@functools.lru_cache
def _stop_token_ids(model: str) -> frozenset[int]:
    """Raises ModelError, whose outcome is not cached: the model may be downloaded later."""
    path = existing_path(model)
    if model == EMBEDDED_MODEL or (path is not None and path.is_dir()):
        return frozenset(end_token_ids(embedded_model_folder() if model == EMBEDDED_MODEL else Path(model)))
    facts = find_cached_model(model)
    if facts is None or facts.folder is None:
        raise ModelError(f"{model} is not on this machine.")
    return frozenset(end_token_ids(facts.folder))


def inspect_model_folder(name: str, folder: Path) -> ModelFacts:
    """The facts of a folder. Raises ModelError."""
    checked = check_model_folder(name, folder)
    has_chat_template, temperature = _sampling_facts(folder)
    return ModelFacts(
        name, checked.architecture, checked.config, checked.parameters, folder, has_chat_template=has_chat_template,
        temperature=temperature, chat_template=_chat_template(folder),
    )  # fmt: skip


def _sampling_facts(folder: Path) -> tuple[bool, float]:
    """Whether a tokenizer has a chat template, and the temperature to propose: the model's own if it is sensible."""
    has_chat_template = declares_chat_template(folder)
    stated, (low, high) = read_json(folder / GENERATION_CONFIG_FILE).get("temperature"), SENSIBLE_TEMPERATURES
    if isinstance(stated, (int, float)) and low <= stated <= high:
        return has_chat_template, float(stated)
    return has_chat_template, CHAT_TEMPERATURE if has_chat_template else 1.0


def _chat_template(folder: Path) -> str:
    """The source of the chat template, of the default one if there are several; "" if there is none."""
    if (folder / CHAT_TEMPLATE_FILE).is_file():
        return (folder / CHAT_TEMPLATE_FILE).read_text(encoding="utf-8", errors="replace")
    stated = read_json(folder / TOKENIZER_CONFIG_FILE).get("chat_template")
    if isinstance(stated, list):
        named = {item.get("name"): item.get("template") for item in stated if isinstance(item, dict)}
        stated = named.get("default")
    return str(stated or "")


def _inspect_hub_model(name: str) -> ModelFacts:
    from huggingface_hub import HfApi, get_safetensors_metadata, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, NotASafetensorsRepoError, RepositoryNotFoundError

    try:
        info = HfApi().model_info(name, files_metadata=True, timeout=HUB_TIMEOUT_S)
        sizes = {item.rfilename: int(item.size or 0) for item in info.siblings or []}
        check_file_names(name, set(sizes))
        config_path = Path(hf_hub_download(name, "config.json", revision=info.sha))
        config = read_config(name, config_path)
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
        files,
        *_sampling_facts(config_path.parent),
        _chat_template(config_path.parent),
    )
