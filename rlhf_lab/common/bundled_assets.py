"""The files in assets/: the embedded model, prompt sets, and pairs sampled in advance. No torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.common.text import split_lines
from rlhf_lab.errors import ConfigError, ModelError

_PACKAGE = Path(__file__).resolve().parents[1]


def bundled_path(name: str) -> Path:
    """A folder at the top level of the repository. In a wheel it is inside the package."""
    return _PACKAGE / name if (_PACKAGE / name).exists() else _PACKAGE.parent / name


ASSETS = bundled_path("assets")
EMBEDDED_MODEL = "embedded"
EMBEDDED_PROMPT_SETS = ("tales", "support", "reviews")  # beginnings of texts, for the embedded model
EVERYDAY = "everyday"  # instructions, for models with a chat template
ARITHMETIC = "arithmetic"  # sums and differences of one-digit numbers, for the reward term of this name
PROMPT_SETS = (*EMBEDDED_PROMPT_SETS, EVERYDAY, ARITHMETIC)
MAX_EVAL_PROMPTS = 256
SHIPPED_PAIRS_TEMPERATURE = 1.0


@dataclass(frozen=True)
class ShippedPair:
    """Two samples of the embedded model for one prompt."""

    prompt_set: str
    prompt: str
    texts: tuple[str, str]
    token_ids: tuple[tuple[int, ...], tuple[int, ...]]
    seeds: tuple[int, int]


def embedded_model_folder() -> Path:
    """The folder of the embedded model. Raises ModelError if it is missing."""
    folder = ASSETS / "model"
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"the embedded model is missing from {folder}. Make it again with "
            "`python -m rlhf_lab pretrain --out assets/model`, or reinstall the project."
        )
    return folder


def weights_digest(folder: Path) -> str:
    """SHA-256 over the weight files of a model folder, in name order."""
    return file_sha256(*sorted(folder.glob("*.safetensors")))


def shipped_prompts(prompt_set: str) -> list[str]:
    """The prompts of a set. Raises ConfigError for an unknown one."""
    if prompt_set not in PROMPT_SETS:
        raise ConfigError(f'unknown prompt set "{prompt_set}"; choose one of {", ".join(PROMPT_SETS)}.')
    text = (ASSETS / "prompts" / f"{prompt_set}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line)["prompt"] for line in split_lines(text) if line]


def shipped_pairs() -> tuple[str, list[ShippedPair]]:
    """The SHA-256 of the weights with which the pairs were sampled, and the pairs."""
    data: dict[str, Any] = json.loads((ASSETS / "pairs.json").read_text(encoding="utf-8"))
    return data["model_sha256"], [_pair_from_json(item) for item in data["pairs"]]


def _pair_from_json(item: dict[str, Any]) -> ShippedPair:
    (first, second), (first_ids, second_ids), (first_seed, second_seed) = (
        item["texts"],
        item["token_ids"],
        item["seeds"],
    )
    token_ids = (tuple(first_ids), tuple(second_ids))
    return ShippedPair(item["prompt_set"], item["prompt"], (first, second), token_ids, (first_seed, second_seed))


def train_eval_split(prompts: list[str]) -> list[tuple[str, str]]:
    """Pairs (text, "train" | "eval"). The last quarter, at most MAX_EVAL_PROMPTS, is for evaluation; a single prompt is not."""
    eval_count = min(MAX_EVAL_PROMPTS, max(1, len(prompts) // 4)) if len(prompts) > 1 else 0
    return [(text, "eval" if i >= len(prompts) - eval_count else "train") for i, text in enumerate(prompts)]


def complete_splits(split_by_prompt: Mapping[str, str]) -> list[tuple[str, str]]:
    """Pairs (text, split) in the order of the mapping. Prompts whose split is "" are split by `train_eval_split`."""
    assigned = dict(train_eval_split([text for text, split in split_by_prompt.items() if not split]))
    return [(text, split or assigned[text]) for text, split in split_by_prompt.items()]
