"""`python -m rlhf_lab sft`: a supervised start for a model that does not answer yet; writes a model folder to start from."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.cli.common import add_common, answer, progress_line
from rlhf_lab.config import add_arguments, from_args
from rlhf_lab.counted import counted
from rlhf_lab.errors import ConfigError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.trainers.sft import SFTConfig, encode, save_merged, supervise

TOLD = 5  # mistakes named at once


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("sft", help="supervised start: learn given responses, write a model folder")
    parser.add_argument("--model", default="embedded", help='"embedded", a model folder, or a Hub id')
    parser.add_argument("--data", type=Path, required=True, help='JSON Lines: {"prompt": ..., "response": ...} a line')
    parser.add_argument("--out", type=Path, required=True, help="folder of the new model; give it as --model elsewhere")
    add_common(parser)
    add_arguments(parser, SFTConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Raises LabError."""
    config: SFTConfig = from_args(SFTConfig, args)
    pairs = read_pairs(args.data)
    if args.out.exists() and any(args.out.iterdir()):
        raise ConfigError(f"the folder {args.out} is not empty. Give another --out, so that nothing is overwritten.")
    # In bfloat16 the weights that are written would round the update away.
    backbone = load_backbone(args.model, dtype=torch.float32)
    adapters = Adapters(backbone)
    with progress_line("supervised start") as show:
        losses = supervise(
            backbone, adapters, encode(backbone, pairs), config,
            tell=lambda done, total, loss: show(done / total, None, f"loss {loss:.3f}"),
        )  # fmt: skip
    save_merged(backbone, adapters, "sft", args.out)
    result = {"examples": len(pairs), "updates": len(losses), "first_loss": losses[0], "last_loss": losses[-1]}
    words = f"{counted(len(pairs), 'example')}, loss {losses[0]:.3f} → {losses[-1]:.3f}; start from it with --model {args.out}"
    answer(args, result | {"model": str(args.out)}, words)
    return 0


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """The prompts and responses of a file. Raises ConfigError that names the first lines that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The examples in {path} cannot be read ({error}). Give a UTF-8 file of JSON Lines."
        ) from error
    pairs, wrong = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt, response = row["prompt"], row["response"]
            if not (isinstance(prompt, str) and isinstance(response, str) and response.strip()):
                raise TypeError
            pairs.append((prompt, response))
        except (ValueError, KeyError, TypeError):
            wrong.append(number)
    if wrong:
        named = ", ".join(map(str, wrong[:TOLD])) + (", …" if len(wrong) > TOLD else "")
        raise ConfigError(
            f"{counted(len(wrong), 'line')} of {path.name} cannot be used: {named}. "
            'Each needs {"prompt": "…", "response": "…"}.'
        )
    return pairs
