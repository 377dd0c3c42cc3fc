"""`python -m rlhf_lab sft`: supervised fine-tuning on given responses; writes a model folder to start from."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.cli.console import add_command, make_output_folder, print_result, progress_reporter
from rlhf_lab.common.paths import regular_file
from rlhf_lab.common.text import first_items, pluralize, split_lines
from rlhf_lab.config.base import add_arguments, from_args
from rlhf_lab.errors import ConfigError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.training.model_trial import load_tried_backbone
from rlhf_lab.training.sft import SFTConfig, SFTRow, check_mergeable, encode_examples, save_merged, train_sft


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers, "sft", "supervised fine-tuning: train on given responses, write a model folder", run=run
    )
    parser.add_argument("--model", default="embedded", help='"embedded", a model folder, or a Hub id')
    parser.add_argument(
        "--data", type=Path, required=True, help='JSON Lines: one {"prompt": ..., "response": ...} per line'
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the new model; give it as --model elsewhere")
    add_arguments(parser, SFTConfig)


def run(args: argparse.Namespace) -> int:
    """Train, merge the adapter and write the model folder. Raises LabError."""
    config: SFTConfig = from_args(SFTConfig, args)
    rows = read_rows(args.data)
    make_output_folder(args.out)
    # float32, because merging into bfloat16 weights would round most of the update away.
    backbone = load_tried_backbone(args.model, dtype=torch.float32)
    check_mergeable(backbone)
    examples, adapters = encode_examples(backbone, rows), Adapters(backbone)
    with progress_reporter("supervised start") as report:
        losses = train_sft(
            backbone, adapters, examples, config,
            on_update=lambda done, total, loss: report(done / total, None, f"loss {loss:.3f}"),
        )  # fmt: skip
    save_merged(backbone, adapters, "sft", args.out)
    result = {"examples": len(rows), "updates": len(losses), "first_loss": losses[0], "last_loss": losses[-1]}
    text = f"{pluralize(len(rows), 'example')}, loss {losses[0]:.3f} → {losses[-1]:.3f}; use it with --model {args.out}"
    print_result(args, result | {"model": str(args.out)}, text)
    return 0


def read_rows(path: Path) -> list[SFTRow]:
    """The rows of a file of JSON Lines. Raises ConfigError with the numbers of the first invalid lines."""
    try:
        text = regular_file(path).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The examples in {path} cannot be read ({error}). Give a UTF-8 file of JSON Lines."
        ) from error
    rows, invalid_lines = [], []
    for number, line in enumerate(split_lines(text), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            prompt, response = value["prompt"], value["response"]
            if not (isinstance(prompt, str) and isinstance(response, str) and response.strip()):
                raise TypeError
            (prompt + response).encode()  # half of a surrogate pair is no text
            rows.append(SFTRow(number, prompt, response))
        except (ValueError, KeyError, TypeError, RecursionError):
            invalid_lines.append(number)
    if invalid_lines:
        raise ConfigError(
            f"{pluralize(len(invalid_lines), 'line')} of {path.name} cannot be used: {first_items(invalid_lines)}. "
            'Each needs {"prompt": "…", "response": "…"}.'
        )
    return rows
