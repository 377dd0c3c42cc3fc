"""A reward model that reads the last state as a PEFT adapter of a `...ForSequenceClassification` with one label.

Its head `score` is linear without a bias and is saved with the adapter. Our head also adds an offset, which the card names.
NumPy only, no torch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL, embedded_model_folder
from rlhf_lab.common.model_files import ADAPTER_CONFIG, ADAPTER_FILE, HEAD_FILE
from rlhf_lab.common.model_folder import CONFIG_FILE, read_json, sequence_classifier_classes

HEAD_KEY = "base_model.model.score.weight"


#: What a reward model needs to be exported in this form, and whether a reward_head.json has it: a sequence classifier reads the
#: last layer's state of the last token through one head, which is saved with an adapter.
CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "`pooling = last`": lambda head: head["pooling"] == "last",
    "`layers = last`": lambda head: head.get("layers", "last") == "last",
    "an adapter that is in use": lambda head: bool(head["adapter"]),
    "a single head (no ensemble)": lambda head: "ensemble" not in head,
    "no ignored attributes": lambda head: "correction" not in head,
    "a class for sequence classification in transformers": lambda head: has_classifier(head["backbone"]),
}


def unmet_conditions(head_config: dict[str, Any]) -> list[str]:
    """The CONDITIONS that a reward model does not meet; [] if it can be exported. head_config: its reward_head.json."""
    return [condition for condition, is_met in CONDITIONS.items() if not is_met(head_config)]


def has_classifier(model: str) -> bool:
    """Whether the installed transformers has a sequence classifier of the model's type. model: a folder, or an id on the Hub.

    False if its config.json is not on this machine.
    """
    if model == EMBEDDED_MODEL:
        path: Path | None = embedded_model_folder() / CONFIG_FILE
    else:
        path = Path(model) / CONFIG_FILE if Path(model).is_dir() else _cached_config(model)
    return path is not None and read_json(path).get("model_type") in sequence_classifier_classes()


def _cached_config(hub_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(hub_id, CONFIG_FILE)
    except HFValidationError:  # the folder no longer exists
        return None
    return Path(path) if isinstance(path, str) else None


def classifier_files(folder: Path, adapter_config: str) -> dict[str, str | bytes]:
    """The two files of the adapter with the head among its tensors. adapter_config: adapter_config.json to start from.

    Raises OSError, SafetensorError, ValueError or KeyError if the folder is damaged.
    """
    head = load_file(folder / HEAD_FILE)
    weight = (head["linear.weight"] / head["scale"]).astype(np.float32)
    tensors = load_file(folder / ADAPTER_FILE) | {HEAD_KEY: weight}
    values = json.loads(adapter_config) | {"task_type": "SEQ_CLS", "modules_to_save": ["score"]}
    return {ADAPTER_FILE: save(tensors), ADAPTER_CONFIG: json.dumps(values, indent=1) + "\n"}


def score_offset(folder: Path) -> float:
    """Score minus logit of the classifier."""
    head = load_file(folder / HEAD_FILE)
    return float((head["linear.bias"][0] - head["shift"]) / head["scale"])
