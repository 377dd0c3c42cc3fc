"""A reward model that reads the last token, as PEFT's adapter of a `...ForSequenceClassification` with one label.

There the head is a linear map without a bias, `score`, saved with the adapter. Ours also subtracts a number after it: the card
says which. Everything is NumPy: nothing here needs torch.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

ADAPTER_FILE, ADAPTER_CONFIG, HEAD_FILE = "adapter_model.safetensors", "adapter_config.json", "reward_head.safetensors"
HEAD_KEY = "base_model.model.score.weight"


def can_export(head_config: dict[str, Any]) -> bool:
    """Whether a reward model, by its reward_head.json, can be written in that form."""
    return bool(head_config["adapter"]) and head_config["pooling"] == "last" and "ensemble" not in head_config


def classifier_files(folder: Path, adapter_config: str) -> dict[str, str | bytes]:
    """The adapter's two files with the head among its tensors. config: adapter_config.json as it is to be.

    Raises OSError, SafetensorError, ValueError and KeyError where the folder is damaged.
    """
    head = load_file(folder / HEAD_FILE)
    weight = (head["linear.weight"] / head["scale"]).astype(np.float32)
    tensors = load_file(folder / ADAPTER_FILE) | {HEAD_KEY: weight}
    values = json.loads(adapter_config) | {"task_type": "SEQ_CLS", "modules_to_save": ["score"]}
    return {ADAPTER_FILE: save(tensors), ADAPTER_CONFIG: json.dumps(values, indent=1) + "\n"}


def score_offset(folder: Path) -> float:
    """What a score is beyond the classifier's logit."""
    head = load_file(folder / HEAD_FILE)
    return float((head["linear.bias"][0] - head["shift"]) / head["scale"])
