"""A reward model that reads the last state as a PEFT adapter of a `...ForSequenceClassification` with one label.

Its head `score` is linear without a bias and is saved with the adapter. Our head also adds an offset, which the card names.
NumPy only, no torch.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from rlhf_lab.common.model_files import ADAPTER_CONFIG, ADAPTER_FILE, HEAD_FILE

HEAD_KEY = "base_model.model.score.weight"


def can_export(head_config: dict[str, Any]) -> bool:
    """Whether a reward model can be exported in this form. head_config: its reward_head.json.

    A sequence classifier reads the last layer's state of the last token, and nothing else.
    """
    reads_last_state = head_config["pooling"] == "last" and head_config.get("layers", "last") == "last"
    return bool(head_config["adapter"]) and reads_last_state and "ensemble" not in head_config


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
