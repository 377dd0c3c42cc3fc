"""Label efficiency of reward models: accuracy on unseen pairs at 30, 60 and 200 labels, for many kinds of features.

    python benchmarks/label_efficiency.py
    python benchmarks/label_efficiency.py --model FOLDER --prompts everyday --temperature 0.7 --judges concise,concrete --pool 250
    python benchmarks/label_efficiency.py --variants "all layers;with an adapter" --labels 60 --seeds 3 --json
    python benchmarks/label_efficiency.py --model FOLDER --human-pairs PAIRS.jsonl

Texts are sampled from the base model once, and simulated judges label them without noise; a seed selects the labelled pairs.
Held-out pairs are about other prompts. `HEAD_VARIANTS` fit a head on hidden states that are computed once, in milliseconds;
`TRAINING_VARIANTS` are full trainings and take seconds to minutes each, so they only run with --variants.
--human-pairs: JSON lines of prompt, chosen and rejected; accuracy in 5 folds by prompt.
"""

import argparse
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import numpy as np
import torch
from sampled_states import SampledPairs, SamplingSettings, Side, pooled_states, sample_pairs
from torch import Tensor

from rlhf_lab.common.records import Comparison
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.preference_fit import RIDGES, LayerScaler, PreferenceTargets, choose_ridge, fit_dual
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.training.reward.active_selection import greedy_selection
from rlhf_lab.training.reward.head_init import assign_folds
from rlhf_lab.training.reward.task import ReferenceSamples
from rlhf_lab.training.reward.trainer import train_reward

VARIANCE_FLOOR = 0.05  # of a direction, in units of the mean variance
LAST_WEIGHT = RewardConfig().last_weight
Blocks = list[Tensor]  # of a text's features (N, F) each
Feature = Callable[[Side], Blocks]


# --- features ---


def layers(selected: slice = slice(None), last_weight: float = LAST_WEIGHT) -> Feature:
    """One block for each layer: the mean state with some of the last token's."""

    def blocks(side: Side) -> Blocks:
        pooled = (1 - last_weight) * side.states[:, :, 0] + last_weight * side.states[:, :, 1]
        return list(pooled[:, selected].double().unbind(1))

    return blocks


def upper_half(side: Side) -> Blocks:
    blocks = layers()(side)
    return blocks[len(blocks) // 2 :]


def with_words(side: Side) -> Blocks:
    return [*layers()(side), *word_counts(side)]


def word_counts(side: Side) -> Blocks:
    """(N, 4096) which words occur, of unit length; two words may share a column."""
    counts = torch.zeros(len(side.samples.texts), 4096, dtype=torch.float64)
    for row, text in zip(counts, side.samples.texts, strict=True):
        for word in set(re.findall(r"[^\W_]+|[^\w\s]", text.lower())):
            row[sum(ord(char) * 31**i for i, char in enumerate(word)) % 4096] = 1.0
    return [counts / counts.norm(dim=1, keepdim=True).clamp_min(1.0)]


def with_length(side: Side) -> Blocks:
    lengths = torch.tensor([[float(len(row))] for row in side.samples.tokens], dtype=torch.float64)
    return [*layers()(side), lengths]


def layer_scaling(reference: Blocks) -> Callable[[Blocks], Tensor]:
    """The scaling that the lab uses: every layer has the same share of the spread."""
    widths = [block.shape[1] for block in reference]
    scales = [LayerScaler(block.numpy(), 1).scales[0] / math.sqrt(len(widths)) for block in reference]
    return lambda blocks: torch.cat([float(scale) * block for scale, block in zip(scales, blocks, strict=True)], 1)


def no_scaling(reference: Blocks) -> Callable[[Blocks], Tensor]:
    """All layers multiplied by one factor."""
    joined = torch.cat(reference, 1)
    return lambda blocks: torch.cat(blocks, 1) / joined.var(0).sum().sqrt()


def extra_scaling(weight: float) -> Callable[[Blocks], Callable[[Blocks], Tensor]]:
    """The last block is no layer; its spread is `weight` beside that of all layers."""

    def scaling(reference: Blocks) -> Callable[[Blocks], Tensor]:
        scale_layers, scale_extra = layer_scaling(reference[:-1]), layer_scaling(reference[-1:])
        return lambda blocks: torch.cat([scale_layers(blocks[:-1]), weight * scale_extra(blocks[-1:])], 1)

    return scaling


def unit_scaling(reference: Blocks) -> Callable[[Blocks], Tensor]:
    """Every hidden unit has unit spread, with a lower bound of the divisor."""
    spreads = torch.cat(reference, 1).std(0)
    floor = 0.1 * spreads.median()
    return lambda blocks: torch.cat(blocks, 1) / (spreads + floor) / math.sqrt(len(spreads))


def power_scaling(power: float) -> Callable[[Blocks], Callable[[Blocks], Tensor]]:
    """In each layer a direction of variance v among the base's texts is scaled by (v + VARIANCE_FLOOR) ** power."""

    def scaling(reference: Blocks) -> Callable[[Blocks], Tensor]:
        maps = []
        for block in reference:
            _, singular_values, directions = torch.linalg.svd(block - block.mean(0), full_matrices=False)
            variance = singular_values.square() * block.shape[1] / singular_values.square().sum().clamp_min(1e-300)
            extra = (variance + VARIANCE_FLOOR) ** power - VARIANCE_FLOOR**power
            maps.append(
                (directions.T * extra) @ directions + VARIANCE_FLOOR**power * torch.eye(block.shape[1]).double()
            )
        finish = layer_scaling([block @ matrix for block, matrix in zip(reference, maps, strict=True)])
        return lambda blocks: finish([block @ matrix for block, matrix in zip(blocks, maps, strict=True)])

    return scaling


@dataclass(frozen=True)
class HeadVariant:
    """How to fit a head. ridge: None chooses it by leaving labels out. selects_pairs: the most informative pairs are labelled."""

    feature: Feature = layers()  # noqa: RUF009
    scaling: Callable[[Blocks], Callable[[Blocks], Tensor]] = layer_scaling
    ridge: float | None = None
    selects_pairs: bool = False


LAST_LAYER = slice(-1, None)
HEAD_VARIANTS: dict[str, HeadVariant] = {
    "all layers": HeadVariant(),
    "last layer": HeadVariant(layers(LAST_LAYER)),
    "last layer, variance to the 0.25": HeadVariant(layers(LAST_LAYER), power_scaling(0.25)),
    "every other layer": HeadVariant(layers(slice(None, None, 2))),
    "upper half": HeadVariant(upper_half),
    "embeddings alone": HeadVariant(layers(slice(0, 1))),
    "plain mean": HeadVariant(layers(last_weight=0.0)),
    "last weight 0.2": HeadVariant(layers(last_weight=0.2)),
    "last token": HeadVariant(layers(last_weight=1.0)),
    "layers as they are": HeadVariant(scaling=no_scaling),
    "units of unit spread": HeadVariant(scaling=unit_scaling),
    "variance to the 0.15": HeadVariant(scaling=power_scaling(0.15)),
    "words": HeadVariant(word_counts),
    "with words": HeadVariant(with_words, extra_scaling(0.7)),
    "with the length": HeadVariant(with_length, extra_scaling(0.3)),
    "ridge 0.1": HeadVariant(ridge=0.1),
    "ridge 1": HeadVariant(ridge=1.0),
    "ridge 3": HeadVariant(ridge=3.0),
    "pairs that tell the most": HeadVariant(selects_pairs=True),
}


class FeatureTable:
    """Scaled differences of a variant: pool (N, F), chosen minus rejected; held_out (M, F), first minus second."""

    def __init__(self, pairs: SampledPairs, gaps: "ScoreGaps", variant: HeadVariant) -> None:
        scale = variant.scaling(variant.feature(pairs.base))
        pool, held_out = (
            scale(variant.feature(first)) - scale(variant.feature(second))
            for first, second in (pairs.pool, pairs.held_out)
        )
        self.pool, self.held_out = torch.where(gaps.pool[:, None] >= 0, pool, -pool), held_out
        self.ties, self.ridge = gaps.pool == 0, variant.ridge

    def fit(self, labelled: list[int]) -> tuple[Tensor, float]:
        """Weights (F,), and the ridge."""
        rows = self.pool[labelled]
        gram, targets = (rows @ rows.T).numpy(), PreferenceTargets(self.ties[labelled].numpy())
        ridge = self.ridge or choose_ridge(gram, targets, labelled, RIDGES)
        return rows.T @ torch.from_numpy(fit_dual(gram, targets, ridge).coefficients), ridge

    def select(self, order: list[int], size: int) -> list[int]:
        """10 pairs at random, then 10 at a time of the next 200 in `order`."""
        chosen, remaining = order[:10], order[10:]
        while len(chosen) < size:
            candidates, count = remaining[:200], min(10, size - len(chosen))
            weights, ridge = self.fit(chosen)
            best = greedy_selection(self.pool[chosen], self.pool[candidates], weights, ridge, count)
            chosen = chosen + [candidates[i] for i in best]
            remaining = [i for i in remaining if i not in set(chosen)]
        return chosen


# --- full trainings ---

TRAINING_VARIANTS: dict[str, dict[str, Any]] = {
    "trained as by default": {},
    "with an adapter": {"folds": 0},
    "textbook": {"pooling": "last", "layers": "last", "warm_start": False, "epochs": 10, "folds": 0},
    "ensemble": {"ensemble": 3},
}


def train(
    adapters: Adapters, pairs: SampledPairs, gaps: "ScoreGaps", labelled: list[int], seed: int, name: str
) -> Tensor:
    """Score differences of the held-out pairs by a model trained on the labelled pairs."""
    a, b = pairs.pool
    comparisons = []
    for i in labelled:
        better, worse = (a.samples, b.samples) if gaps.pool[i] >= 0 else (b.samples, a.samples)
        comparisons.append(
            Comparison(
                a.prompts[i], better.texts[i], worse.texts[i], tuple(better.tokens[i]), tuple(worse.tokens[i]),
                tie=bool(gaps.pool[i] == 0), group=i,
            )
        )  # fmt: skip
    config = RewardConfig(**({"seed": seed} | TRAINING_VARIANTS[name]))
    reference = ReferenceSamples(pairs.base.samples.prompts, pairs.base.samples.tokens)
    model, _ = train_reward(adapters, comparisons, reference, config)
    first, second = (model.scores(side.samples.prompts, side.samples.tokens) for side in pairs.held_out)
    return first - second


# --- the table ---


@dataclass(frozen=True)
class ScoreGaps:
    """A judge's score of the first minus the second text: pool (N,), held_out (M,) float64."""

    pool: Tensor
    held_out: Tensor


def score_gaps(pairs: SampledPairs, name: str) -> ScoreGaps:
    def side_gaps(sides: tuple[Side, Side]) -> Tensor:
        first, second = (list(map(JUDGES[name].score, side.prompts, side.samples.texts)) for side in sides)
        return torch.tensor(first, dtype=torch.float64) - torch.tensor(second, dtype=torch.float64)

    return ScoreGaps(side_gaps(pairs.pool), side_gaps(pairs.held_out))


def accuracies(
    adapters: Adapters, pairs: SampledPairs, gaps: ScoreGaps, name: str, sizes: list[int], seeds: int
) -> Iterator[tuple[int, list[float]]]:
    """(labels, accuracy of each seed) of one variant."""
    is_decided = gaps.held_out != 0
    table = FeatureTable(pairs, gaps, HEAD_VARIANTS[name]) if name in HEAD_VARIANTS else None
    for size in sizes:
        values = []
        for seed in range(seeds):
            order = torch.randperm(len(gaps.pool), generator=torch.Generator().manual_seed(seed)).tolist()
            if table is None:
                gap = train(adapters, pairs, gaps, order[:size], seed, name)
            else:
                labelled = table.select(order, size) if HEAD_VARIANTS[name].selects_pairs else order[:size]
                gap = table.held_out @ table.fit(labelled)[0]
            values.append(float(((gap > 0) == (gaps.held_out > 0))[is_decided].double().mean()))
        yield size, values


def print_human_pairs(adapters: Adapters, path: Path) -> None:
    """Accuracy on pairs that people judged, in 5 folds by prompt, of features of all layers and of the last."""
    backbone = adapters.backbone
    pairs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    room = backbone.context_length // 2
    prompts = [backbone.encode_prompt(pair["prompt"])[-room:] for pair in pairs]
    chosen, rejected = (
        pooled_states(backbone, prompts, [backbone.encode_response(pair[side])[:room] for pair in pairs])
        for side in ("chosen", "rejected")
    )
    groups = [hash(pair["prompt"]) for pair in pairs]
    folds = np.array(assign_folds(groups, 5))
    for name, selected in (("all layers", slice(None)), ("last layer", LAST_LAYER)):
        states = [
            (1 - LAST_WEIGHT) * side[:, selected, 0] + LAST_WEIGHT * side[:, selected, 1] for side in (chosen, rejected)
        ]
        a, b = (side.flatten(1).numpy() for side in states)
        scaler = LayerScaler(np.concatenate([a, b]), states[0].shape[1])
        rows = scaler(a - b).astype(np.float64)
        correct = 0
        for fold in range(5):
            labelled, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            gram, targets = rows[labelled] @ rows[labelled].T, PreferenceTargets(np.zeros(len(labelled), bool))
            fit = fit_dual(gram, targets, choose_ridge(gram, targets, [groups[i] for i in labelled]))
            correct += int((rows[test] @ (rows[labelled].T @ fit.coefficients) > 0).sum())
        print(f"{name}: {correct / len(pairs):.3f} of {len(pairs)} human pairs, 5 folds by prompt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help='"embedded", a model folder, or a Hub id')
    parser.add_argument("--human-pairs", type=Path, help="JSON lines of prompt, chosen and rejected")
    parser.add_argument(
        "--prompts", default="", help="a prompt set or a file with a prompt on each line; default: that of each judge"
    )
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--labels", default="30,60,200", help="numbers of labels, ties among them")
    parser.add_argument("--seeds", type=int, default=10, help="draws of the labels")
    parser.add_argument("--judges", default="cheerful,polite,vivid,concrete", help="simulated judges")
    parser.add_argument("--pool", type=int, default=700, help="pairs to label")
    parser.add_argument("--held-out", type=int, default=400, help="pairs to test on")
    parser.add_argument(
        "--variants", default=";".join(HEAD_VARIANTS), help=f"separated by ;, also {', '.join(TRAINING_VARIANTS)}"
    )
    parser.add_argument("--length", type=int, default=64, help="longest response, in tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    adapters = Adapters(load_backbone(args.model, device="cpu"))
    if args.human_pairs is not None:
        print_human_pairs(adapters, args.human_pairs)
        return
    rows = compare_variants(adapters, args)
    if args.json:
        settings = {"model": args.model, "seeds": args.seeds, "pairs": args.held_out}
        json.dump(settings | {"rows": rows}, sys.stdout, indent=1)


def compare_variants(adapters: Adapters, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each variant, judge and number of labels; printed variant by variant unless --json is given."""
    judges, sizes = args.judges.split(","), [int(n) for n in args.labels.split(",")]
    names = args.variants.split(";")
    if unknown := set(names) - {*HEAD_VARIANTS, *TRAINING_VARIANTS}:
        raise SystemExit(
            f"unknown variants {sorted(unknown)}; known: {'; '.join([*HEAD_VARIANTS, *TRAINING_VARIANTS])}"
        )
    settings = SamplingSettings(args.temperature, args.length, args.pool, args.held_out)
    prompt_set_of = {judge: args.prompts or JUDGES[judge].prompt_set for judge in judges}
    sampled = {name: sample_pairs(adapters.backbone, name, settings) for name in sorted(set(prompt_set_of.values()))}
    rows = []
    for name in names:
        for judge in judges:
            pairs, start_time = sampled[prompt_set_of[judge]], time.monotonic()
            for size, values in accuracies(adapters, pairs, score_gaps(pairs, judge), name, sizes, args.seeds):
                seconds, start_time = (time.monotonic() - start_time) / args.seeds, time.monotonic()
                rows.append({"variant": name, "judge": judge, "labels": size, "accuracies": values, "seconds": seconds})
        if not args.json:
            print_row(name, [row for row in rows if row["variant"] == name], sizes)
    return rows


def print_row(name: str, rows: list[dict[str, Any]], sizes: list[int]) -> None:
    """One line: for each number of labels the mean over all judges, and each judge's mean (minimum over seeds)."""
    columns = []
    for size in sizes:
        size_rows = [row for row in rows if row["labels"] == size]
        means = [statistics.fmean(row["accuracies"]) for row in size_rows]
        per_judge = " ".join(
            f"{mean:.3f}({min(row['accuracies']):.2f})" for mean, row in zip(means, size_rows, strict=True)
        )
        columns.append(f"{size}: {statistics.fmean(means):.4f} = {per_judge}")
    print(f"{name:32s} {' | '.join(columns)}", flush=True)


if __name__ == "__main__":
    main()
