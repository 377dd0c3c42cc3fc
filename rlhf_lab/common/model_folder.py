"""Checks from its files whether a folder contains a causal language model that can be loaded. No torch.

Used by inspection (jobs/model_inspection.py) and loading (models/backbone.py), so that both give the same result.
"""

import ast
import contextlib
import functools
import importlib.metadata
import json
import math
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_lab.common.model_files import ADAPTER_CONFIG
from rlhf_lab.common.paths import regular_file
from rlhf_lab.common.text import parse_foreign_json
from rlhf_lab.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONFIG_FILE, TOKENIZER_FILE = "config.json", "tokenizer.json"
TOKENIZER_CONFIG_FILE, GENERATION_CONFIG_FILE = "tokenizer_config.json", "generation_config.json"
SPECIAL_TOKENS_FILE, CHAT_TEMPLATE_FILE = "special_tokens_map.json", "chat_template.jinja"
CARD_FILE = "README.md"  # states the licence
TOKENIZER_FILES = (TOKENIZER_FILE, "tokenizer.model", "vocab.json", "vocab.txt")
#: Files of a tokenizer and its chat template, as patterns.
TOKENIZER_PATTERNS = (
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "chat_template*", "tekken.json", "*.model", "*.jinja",
    "vocab.json", "vocab.txt", "merges.txt",
)  # fmt: skip
TOKEN_ID_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
WEIGHT_FILE, WEIGHT_INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
WEIGHTS_KEY = "transformers_weights"  # in config.json: another name of the weight file or index
#: Tokenizer classes without default special tokens.
GENERIC_TOKENIZERS = (None, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
#: Model types without an attention layer, and so without a growing cache of keys and values.
RECURRENT_MODEL_TYPES = ("falcon_mamba", "mamba", "mamba2", "recurrent_gemma", "rwkv", "xlstm")
#: Types with which the lab's tests pass through the whole loop (tests/support/model_families.py). Of the others, a small model
#: with random weights makes every pass before they are used.
TESTED_MODEL_TYPES = (
    "cohere", "falcon_h1", "gemma2", "gemma3_text", "gemma3n_text", "gpt2", "granite", "lfm2", "llama", "mistral", "mixtral",
    "mpt", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3",
)  # fmt: skip
MERGE_CODE = (
    "from peft import PeftModel; from transformers import AutoModelForCausalLM, AutoTokenizer; "
    "model = AutoModelForCausalLM.from_pretrained({base!r}, dtype='auto'); "
    "PeftModel.from_pretrained(model, {adapter!r}).merge_and_unload().save_pretrained({out!r}); "
    "AutoTokenizer.from_pretrained({tokenizer!r}).save_pretrained({out!r})"
)
MAX_CONFIG_BYTES = 10_000_000
_FLOAT_TAG = "__float__"  # with which transformers writes an infinite number
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class ModelFolder:
    """Facts about a usable model, from its files. config: config.json. parameters: number in the files of `weight_files`."""

    config: dict[str, Any]
    architecture: str
    parameters: int


def check_model_folder(name: str, folder: Path) -> ModelFolder:
    """The facts about a model folder. Raises ModelError unless it contains a causal LM that can be loaded.

    name: used in messages.
    """
    try:  # a pipe or a device would be read without end, whichever file it stands for
        files = {path.name for path in folder.iterdir() if regular_file(path).is_file()}
    except OSError as error:
        raise ModelError(f"{name}: {error.filename}: {error.strerror}. Choose a folder of plain files.") from error
    if ADAPTER_CONFIG in files:
        raise ModelError(adapter_message(name, files, folder))
    check_file_names(name, files)
    config = read_config(name, folder / CONFIG_FILE)
    architecture = causal_lm_architecture(name, config)
    parameters = sum(count_parameters(folder / file) for file in weight_files(name, folder))
    _check_tokenizer(name, folder, config)
    _check_end_token(name, folder, config)
    return ModelFolder(config, architecture, parameters)


def read_config(name: str, path: Path) -> Any:
    """The JSON of a config.json. Raises ModelError, also for a value that no setting can have.

    What the values mean is checked by the classes of transformers, in a process (training/model_trial.py).
    """
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"it has more than {MAX_CONFIG_BYTES:,} bytes")
        config = parse_foreign_json(path.read_text(encoding="utf-8"))
        json.dumps(config, ensure_ascii=False).encode()  # fails for lone surrogates, which no message could contain
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{name}: its config.json cannot be read ({error}). Save the model again.") from error
    for field, value in _impossible_numbers("", config):
        raise ModelError(
            f"{name}: its config.json states {field[:60]} = {str(value)[:40]}, which is not a number that a model can use. "
            "Copy the file again."
        )
    return config


def _impossible_numbers(field: str, value: Any, *, in_list: bool = False) -> Iterator[tuple[str, float]]:
    """NaN, whole numbers beyond 64 bits, and infinite ones outside of lists: a list of limits may have no upper one."""
    if isinstance(value, dict) and isinstance(value.get(_FLOAT_TAG), str):
        with contextlib.suppress(ValueError):
            value = float(value[_FLOAT_TAG])
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _impossible_numbers(f"{field}.{key}" if field else key, item)
    elif isinstance(value, list):
        for item in value:
            yield from _impossible_numbers(field, item, in_list=True)
    elif isinstance(value, float):
        if math.isnan(value) or (math.isinf(value) and not in_list):
            yield field, value
    elif isinstance(value, int) and abs(value) >= 2**63:
        yield field, value


def check_file_names(name: str, files: Collection[str]) -> None:
    """Raises ModelError if config, safetensors or tokenizer are missing, or for an adapter."""
    if ADAPTER_CONFIG in files:
        raise ModelError(adapter_message(name, files))
    if CONFIG_FILE not in files:
        raise ModelError(f"{name}: there is no config.json, so it is not a transformers model. Choose another.")
    if not any(file.endswith(".safetensors") for file in files):
        if any(file.endswith(PICKLE_SUFFIXES) for file in files):
            raise ModelError(
                f"{name}: its weights are pickle files, which can run code when opened and are refused. Choose a "
                "model with *.safetensors, or convert it: "
                "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)."
            )
        raise ModelError(f"{name}: there is no *.safetensors file, so there are no weights to load. Choose another.")
    if not any(file in files for file in TOKENIZER_FILES):
        raise ModelError(
            f"{name}: there is no tokenizer ({', '.join(TOKENIZER_FILES)}). Save it there: "
            "tokenizer.save_pretrained(folder)."
        )


def adapter_message(name: str, files: Collection[str], folder: Path | None = None) -> str:
    """The message that a PEFT adapter cannot be loaded, and how to merge it. folder: None for one on the Hub."""
    has_base = CONFIG_FILE in files and any(
        file.endswith(".safetensors") and not file.startswith("adapter_") for file in files
    )
    stated = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path") if folder is not None else None
    source = str(folder) if folder is not None else name
    base, adapter, out = stated or "BASE_MODEL", source, f"{Path(source).name}-merged"
    step = "Merge it into its base model first"
    if has_base and folder is not None:
        base, adapter, out = source, str(folder / "adapter"), f"{source}-merged"
        step = (
            f"For the base model alone move the adapter away (mkdir '{adapter}'; mv '{source}'/adapter_* '{adapter}'), "
            "for the trained model merge it then"
        )
    has_tokenizer = any(file in files for file in TOKENIZER_FILES)
    code = MERGE_CODE.format(base=base, adapter=adapter, out=out, tokenizer=source if has_tokenizer else base)
    what = "base weights and a LoRA adapter" if has_base else "a LoRA adapter without its base model"
    return (
        f"{name}: it holds {what} ({ADAPTER_CONFIG}). The lab trains adapters of its own and needs a complete model. "
        f'{step}: python -c "{code}", and give the folder {out}.'
    )


def causal_lm_architecture(name: str, config: Any) -> str:
    """The architecture that a config.json names. Raises ModelError unless it is a causal LM that transformers loads."""
    if not isinstance(config, dict):
        raise ModelError(
            f"{name}: its config.json holds no settings, so it is not a transformers model. Choose another."
        )
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(item, str) for item in architectures):
        raise ModelError(f"{name}: its config.json names no architecture that can be read. Choose another model.")
    known = causal_lm_classes()
    if architectures and not set(architectures) & set(known.values()):
        raise ModelError(
            f"{name}: it is a {architectures[0]}, not a causal language model, and cannot continue a text. "
            "Choose a …ForCausalLM model."
        )
    model_type = str(config.get("model_type"))
    if model_type not in known:
        raise ModelError(
            f"{name}: its config.json cannot be read: the installed transformers knows no causal language model of "
            f"the type {model_type!r}. A model that needs remote code is not supported. Choose another."
        )
    if model_type in RECURRENT_MODEL_TYPES:
        raise ModelError(
            f"{name}: a model of the type {model_type} keeps a state of the text so far instead of keys and values, "
            "and the lab cannot sample from it. Choose a model with attention layers."
        )
    if config.get("quantization_config"):
        raise ModelError(
            f"{name}: its weights are stored quantised, and adapters cannot be trained on these. Choose the model's "
            "version in bfloat16 or float32."
        )
    return str(architectures[0] if architectures else known[model_type])


def causal_lm_classes() -> Mapping[str, str]:
    """The class of each model type that the installed transformers loads as a causal LM."""
    return _auto_classes("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")


def sequence_classifier_classes() -> Mapping[str, str]:
    """The class of each model type that the installed transformers loads as a sequence classifier."""
    return _auto_classes("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES")


@functools.cache
def _auto_classes(mapping: str) -> Mapping[str, str]:
    """A mapping of transformers' auto classes, read from its source: importing it would import torch."""
    path = importlib.metadata.distribution("transformers").locate_file("transformers/models/auto/modeling_auto.py")
    for node in ast.parse(Path(str(path)).read_text(encoding="utf-8")).body:
        names = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
        if isinstance(node, ast.Assign) and names == [mapping]:
            assert isinstance(node.value, ast.Call)  # of OrderedDict, with a list of pairs
            return dict(ast.literal_eval(node.value.args[0]))
    raise ModelError(f"{path} has no {mapping}. Install the versions in requirements.txt.")


def weight_index(folder: Path) -> str | None:
    """The index of a model whose weights transformers loads from several files; None for one file."""
    stated = read_json(folder / CONFIG_FILE).get(WEIGHTS_KEY)
    main = stated or (WEIGHT_FILE if (folder / WEIGHT_FILE).is_file() else WEIGHT_INDEX_FILE)
    return str(main) if str(main).endswith(".index.json") else None


def weight_files(name: str, folder: Path) -> list[str]:
    """The files from which transformers loads a model's weights, sorted. All others, such as copies, are ignored.

    Raises ModelError if one is missing. Source: `_get_resolved_checkpoint_files` in transformers/modeling_utils.py.
    """
    index = weight_index(folder)
    if index is None:
        return [str(read_json(folder / CONFIG_FILE).get(WEIGHTS_KEY) or WEIGHT_FILE)]
    if not (folder / index).is_file():
        raise ModelError(
            f"{name}: there is neither {WEIGHT_FILE} nor {index}, so transformers loads none of its weight files. Save the "
            "model again with model.save_pretrained(folder)."
        )
    try:
        files = set(parse_foreign_json((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{name}: {index} cannot be read ({error!r}). Save the model again.") from error
    missing = sorted(file for file in files if Path(file).name != file or not (folder / file).is_file())
    if missing:
        raise ModelError(
            f"{name}: {len(missing)} of its weight files are missing, such as {missing[0]}. Copy them too."
        )
    return sorted(files)


def count_parameters(path: Path) -> int:
    """The number of parameters in a safetensors file, from its header. Raises ModelError for a damaged or truncated file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(_MAX_HEADER_BYTES, size):
                raise ValueError("its header is longer than the file")
            header = parse_foreign_json(file.read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end = max((int(entry["data_offsets"][1]) for entry in tensors), default=0)
        if size != 8 + length + end:
            raise ValueError(f"it has {size:,} bytes and should have {8 + length + end:,}")
        return sum(math.prod(int(size) for size in entry["shape"]) for entry in tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(f"{path.name} is damaged or was not copied to its end ({error}). Copy it again.") from error


def _check_tokenizer(name: str, folder: Path, config: Mapping[str, Any]) -> None:
    """Raises ModelError for a damaged tokenizer.json, or if the end token or an ordinary token has no embedding in the model.

    Other special tokens may lack an embedding: in texts they are not encoded as special tokens, and padding is masked.
    """
    if not (folder / TOKENIZER_FILE).is_file():
        return
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    except Exception as error:  # the library raises Exception itself
        raise ModelError(
            f"{name}: its tokenizer cannot be read ({error}). Save it into the folder with "
            "tokenizer.save_pretrained(folder)."
        ) from error
    token, token_id = _stated_end_token(folder, tokenizer)
    rows = config.get("vocab_size")
    if not isinstance(rows, int):
        return
    kind = "its end-of-sequence token"
    if token_id is None or token_id < rows:
        added = tokenizer.get_added_tokens_decoder()
        outside = [
            (i, word)
            for word, i in tokenizer.get_vocab().items()
            if i >= rows and not (i in added and added[i].special)
        ]
        if not outside:
            return
        kind, (token_id, token) = "the token", min(outside)
    raise ModelError(
        f"{name}: {kind} {token} has the id {token_id}, and the model has embeddings for {rows} ids only. "
        "Call model.resize_token_embeddings(len(tokenizer)), train and save the model, or use its own tokenizer."
    )


def _stated_end_token(folder: Path, tokenizer: "Tokenizer") -> tuple[str | None, int | None]:
    """The end-of-sequence token that tokenizer_config.json names, and its id."""
    stated = read_json(folder / TOKENIZER_CONFIG_FILE).get("eos_token")
    token = stated.get("content") if isinstance(stated, dict) else stated
    return (token, tokenizer.token_to_id(token)) if isinstance(token, str) else (None, None)


def declared_token_ids(folder: Path) -> dict[str, Any]:
    """Ids of special tokens (such as eos_token_id) as `generate` uses them: from generation_config.json, else config.json."""
    if (folder / GENERATION_CONFIG_FILE).is_file():
        config = read_json(folder / GENERATION_CONFIG_FILE)
    else:
        config = read_json(folder / CONFIG_FILE)
        text_config = config.get("text_config")
        config = (text_config if isinstance(text_config, dict) else {}) | config
    return {key: config[key] for key in TOKEN_ID_KEYS if config.get(key) is not None}


def declares_chat_template(folder: Path) -> bool:
    """Whether a tokenizer's files contain a chat template."""
    return (folder / CHAT_TEMPLATE_FILE).is_file() or bool(
        read_json(folder / TOKENIZER_CONFIG_FILE).get("chat_template")
    )


def end_token_ids(folder: Path) -> list[int]:
    """The ids that end a response in the lab (`models.backbone`): the tokenizer's, then the declared ones.

    That of the tokenizer is missing if its files do not state it.
    """
    from tokenizers import Tokenizer

    declared = declared_token_ids(folder).get("eos_token_id")
    ids = [*declared] if isinstance(declared, list) else [declared]
    if (folder / TOKENIZER_FILE).is_file():
        ids.insert(0, _stated_end_token(folder, Tokenizer.from_file(str(folder / TOKENIZER_FILE)))[1])
    return list(dict.fromkeys(i for i in ids if type(i) is int))


def _check_end_token(name: str, folder: Path, config: Mapping[str, Any]) -> None:
    """Raises ModelError if the files state that there is no end token. If they leave it open, the tokenizer class has one."""
    tokenizer, special = read_json(folder / TOKENIZER_CONFIG_FILE), read_json(folder / SPECIAL_TOKENS_FILE)
    is_generic = tokenizer.get("tokenizer_class") in GENERIC_TOKENIZERS or "eos_token" in tokenizer
    has_no_id = "eos_token_id" in config and config["eos_token_id"] is None
    declared = (
        tokenizer.get("eos_token"),
        special.get("eos_token"),
        read_json(folder / GENERATION_CONFIG_FILE).get("eos_token_id"),
    )
    if tokenizer and is_generic and has_no_id and all(token is None for token in declared):
        raise ModelError(no_end_token_message(name))


def no_end_token_message(name: str) -> str:
    return (
        f"{name}: its tokenizer names no end-of-sequence token, so a response could never end. "
        "Set tokenizer.eos_token and save it again."
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if the file is missing, because these files are optional."""
    try:
        content = parse_foreign_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
