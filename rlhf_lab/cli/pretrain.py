"""`python -m rlhf_lab pretrain --out DIR`: makes the embedded model again from the repository alone."""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.assets import PROMPT_SETS, weights_digest
from rlhf_lab.cli.card import card, measure
from rlhf_lab.cli.common import add_common, answer, progress_line
from rlhf_lab.config import add_arguments, from_args
from rlhf_lab.errors import ConfigError
from rlhf_lab.models.backbone import Backbone, load_backbone
from rlhf_lab.pretrain.corpus import prompt_list
from rlhf_lab.pretrain.precision import chosen
from rlhf_lab.pretrain.train import PretrainConfig, train
from rlhf_lab.seeds import derive
from rlhf_lab.trainers.evaluation import write

PROMPTS_EACH = 1024
PAIRS_EACH = 14


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("pretrain", help="make the embedded model again, from the grammar in this repository")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model (a plain transformers folder)")
    parser.add_argument(
        "--ship", type=Path, default=None, help="also write prompt sets and sampled pairs to this folder"
    )
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0 takes every core")
    add_common(parser)
    add_arguments(parser, PretrainConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config: PretrainConfig = from_args(PretrainConfig, args)
    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {args.out} cannot be made ({error}). Give another --out.") from error
    precision, why = chosen(config.precision, config.hidden, config.intermediate)
    config = config.replace(precision=precision)
    print(f"pretrain: in {why}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="rlhf-lab-pretrain-") as scratch:
        corpus = Path(scratch) / "corpus.txt"
        with progress_line("pretrain") as show:

            def tell(done: int, total: int, loss: float, left: float) -> None:
                show(done / total, left, f"update {done} of {total}, loss {loss:.3f}")

            trained = train(config, args.out, corpus, tell)
        backbone = load_backbone(str(args.out), device="cpu", dtype=torch.float32)
        figures = measure(backbone, config, corpus, lambda words: print(words, file=sys.stderr, flush=True))
    (args.out / "README.md").write_text(card(config, trained, figures, backbone.digest), encoding="utf-8")
    if args.ship is not None:
        ship(args.ship, backbone, config)
    words = f"perplexity {trained['held_out_perplexity']:.3f}; see {args.out / 'README.md'}"
    answer(args, trained | figures | {"precision": precision}, words)
    return 0


def ship(folder: Path, backbone: Backbone, config: PretrainConfig) -> None:
    """The prompt sets, and pairs of samples for some train prompts of each, so that a page can open before any model."""
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    pairs: list[dict[str, Any]] = []
    for name in PROMPT_SETS:
        prompts = prompt_list(name, PROMPTS_EACH, config.seed)
        lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
        (folder / "prompts" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        pairs += sampled_pairs(backbone, name, prompts[:PAIRS_EACH], config.seed)
    data = {"model_sha256": weights_digest(Path(backbone.name)), "pairs": pairs}
    (folder / "pairs.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def sampled_pairs(backbone: Backbone, name: str, prompts: list[str], seed: int) -> list[dict[str, Any]]:
    sides = []
    for side in ("first", "second"):
        drawn = derive(seed, "shipped", name, side)
        sides.append((drawn, write(backbone, prompts, seed=drawn, purpose=side, max_new_tokens=64)))
    return [
        {
            "prompt_set": name,
            "prompt": prompt,
            "texts": [written.texts[i] for _, written in sides],
            "token_ids": [written.tokens[i] for _, written in sides],
            "seeds": [drawn for drawn, _ in sides],
        }
        for i, prompt in enumerate(prompts)
        if sides[0][1].tokens[i] != sides[1][1].tokens[i]
    ]
