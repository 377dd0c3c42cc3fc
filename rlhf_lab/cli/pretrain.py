"""`python -m rlhf_lab pretrain --out DIR`: train the embedded model from scratch, using only this repository."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.cli.console import add_command, make_output_folder, number_from, print_result, progress_reporter
from rlhf_lab.common.bundled_assets import EMBEDDED_PROMPT_SETS, SHIPPED_PAIRS_TEMPERATURE, weights_digest
from rlhf_lab.common.process_env import thread_count
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.base import add_arguments, from_args
from rlhf_lab.embedded_model.corpus import generate_prompts
from rlhf_lab.embedded_model.model_card import measure_samples, render_card
from rlhf_lab.embedded_model.train import PretrainConfig, choose_precision, train
from rlhf_lab.models.backbone import Backbone, load_backbone
from rlhf_lab.training.evaluation import sample_responses

PROMPTS_PER_SET = 1024
PAIRS_PER_SET = 14


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers, "pretrain", "train the embedded model from the grammar in this repository", run=run
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the model (a plain transformers folder)")
    parser.add_argument(
        "--ship", type=Path, default=None, help="also write prompt sets and sampled pairs to this folder"
    )
    parser.add_argument(
        "--threads", type=number_from(0), default=0, help="threads of PyTorch; 0: OMP_NUM_THREADS, or all cores"
    )
    add_arguments(parser, PretrainConfig)


def run(args: argparse.Namespace) -> int:
    config: PretrainConfig = from_args(PretrainConfig, args)
    torch.set_num_threads(args.threads or thread_count())
    make_output_folder(args.out)
    precision, reason = choose_precision(config.precision, config.hidden, config.intermediate)
    config = config.replace(precision=precision)
    print(f"pretrain: in {reason}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="rlhf-lab-pretrain-") as scratch:
        corpus = Path(scratch) / "corpus.txt"
        with progress_reporter("pretrain") as report:

            def on_progress(done: int, total: int, loss: float, eta_s: float) -> None:
                report(done / total, eta_s, f"update {done} of {total}, loss {loss:.3f}")

            training_stats = train(config, args.out, corpus, on_progress)
        backbone = load_backbone(str(args.out), device="cpu", dtype=torch.float32)
        measurements = measure_samples(
            backbone, config, corpus, lambda message: print(message, file=sys.stderr, flush=True)
        )
    (args.out / "README.md").write_text(
        render_card(config, training_stats, measurements, backbone.digest), encoding="utf-8"
    )
    if args.ship is not None:
        write_shipped_assets(args.ship, backbone, config)
    message = f"perplexity {training_stats['held_out_perplexity']:.3f}; see {args.out / 'README.md'}"
    print_result(args, training_stats | measurements | {"precision": precision}, message)
    return 0


def write_shipped_assets(folder: Path, backbone: Backbone, config: PretrainConfig) -> None:
    """Write the prompt sets and the sampled pairs that the page can show before a model is loaded."""
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    pairs: list[dict[str, Any]] = []
    for name in EMBEDDED_PROMPT_SETS:
        prompts = generate_prompts(name, PROMPTS_PER_SET, config.seed)
        lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts)
        (folder / "prompts" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        pairs += _sample_pairs(backbone, name, prompts[:PAIRS_PER_SET], config.seed)
    data = {"model_sha256": weights_digest(Path(backbone.name)), "pairs": pairs}
    (folder / "pairs.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _sample_pairs(backbone: Backbone, name: str, prompts: list[str], seed: int) -> list[dict[str, Any]]:
    """Two samples for each prompt with their seeds, without pairs of equal samples."""
    sides = []
    for side in ("first", "second"):
        side_seed = derive_seed(seed, "shipped", name, side)
        samples = sample_responses(
            backbone, prompts, seed=side_seed, purpose=side, max_new_tokens=64, temperature=SHIPPED_PAIRS_TEMPERATURE
        )
        sides.append((side_seed, samples))
    return [
        {
            "prompt_set": name,
            "prompt": prompt,
            "texts": [samples.texts[i] for _, samples in sides],
            "token_ids": [samples.tokens[i] for _, samples in sides],
            "seeds": [side_seed for side_seed, _ in sides],
        }
        for i, prompt in enumerate(prompts)
        if sides[0][1].tokens[i] != sides[1][1].tokens[i]
    ]
