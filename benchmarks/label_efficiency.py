"""Label efficiency of reward models: accuracy on unseen pairs at 20, 30, 60 and 200 labels, for many variants.

    python benchmarks/label_efficiency.py
    python benchmarks/label_efficiency.py --model FOLDER --labels 60,200 --judges polite
    python benchmarks/label_efficiency.py --variants preset,textbook,early --labels 60 --seeds 3 --json

Texts are sampled from the base model once, and simulated judges label them without noise; a seed selects the labelled pairs.
Held-out pairs are about other prompts. `HEAD_VARIANTS` fit a head on hidden states that are computed once, in milliseconds;
`TRAINING_VARIANTS` are full trainings with LoRA and take seconds to minutes each, so they only run with --variants.
"""

import argparse
import json
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

import torch
from sampled_states import HELD_OUT_SIZE, POOL_SIZE, POOLINGS, PromptSetSamples, Side, sample_prompt_set
from torch import Tensor

from rlhf_lab.common.records import Comparison
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.training.reward.active_selection import greedy_selection
from rlhf_lab.training.reward.head_init import FeatureScaler, PreferenceTargets, fit_head_weights
from rlhf_lab.training.reward.task import ReferenceSamples
from rlhf_lab.training.reward.trainer import train_reward

RIDGES = (30.0, 100.0, 300.0, 1000.0, 3000.0)
PRESET = RewardConfig()


# --- heads on precomputed hidden states ---

Feature = Callable[[Side, Side], Tensor]  # (side, base) -> (N, F) float64


def layer_feature(number: int, pooling: str = "mean") -> Feature:
    return lambda side, _base: side.states[:, number, POOLINGS.index(pooling)].double()


def last_weighted_feature(last_weight: float) -> Feature:
    """Interpolation of the mean and the last token's state of the last layer (`RewardConfig.last_weight`)."""
    mean, last = layer_feature(-1), layer_feature(-1, "last")
    return lambda side, base: (1 - last_weight) * mean(side, base) + last_weight * last(side, base)


def root_length_feature(side: Side, base: Side) -> Tensor:
    """Mean minus the base's mean, times the root of the length: closer to a sum over the text."""
    length = torch.tensor([float(len(row)) for row in side.samples.tokens], dtype=torch.float64)
    return (layer_feature(-1)(side, base) - layer_feature(-1)(base, base).mean(0)) * length.sqrt()[:, None]


def concat_features(*weighted_features: tuple[Feature, float]) -> Feature:
    """Features concatenated, each scaled to unit spread and weighted."""

    def concatenated(side: Side, base: Side) -> Tensor:
        return torch.cat(
            [
                weight * FeatureScaler(feature(base, base), 0.0)(feature(side, base))
                for feature, weight in weighted_features
            ],
            1,
        )

    return concatenated


PRESET_FEATURE = last_weighted_feature(PRESET.last_weight)


@dataclass(frozen=True)
class HeadVariant:
    """How to fit a head.

    Attributes:
        power, ridge: of the prior.
        pair_selection: which pairs are labelled: "random", "uncertain" (p nearest 0.5) or "telling" (active_selection).
        fit_rule: "fixed", "evidence" (the ridge of the greatest marginal likelihood) or "bagging" (mean of 3 bootstrap fits).
    """

    feature: Feature = PRESET_FEATURE
    power: float = PRESET.prior_power
    ridge: float = PRESET.ridge
    pair_selection: str = "random"
    fit_rule: str = "fixed"


HEAD_VARIANTS: dict[str, HeadVariant] = {
    "preset head": HeadVariant(),
    "even prior, ridge 300": HeadVariant(power=0.0, ridge=300.0),
    "even prior, ridge 30": HeadVariant(power=0.0, ridge=30.0),
    "even prior, ridge 3000": HeadVariant(power=0.0, ridge=3000.0),
    "even prior, ridge by evidence": HeadVariant(power=0.0, fit_rule="evidence"),
    "preset prior, ridge by evidence": HeadVariant(fit_rule="evidence"),
    "whitened (power -0.25)": HeadVariant(power=-0.25, ridge=300.0),
    "power 0.15": HeadVariant(power=0.15),
    "power 0.35": HeadVariant(power=0.35),
    "power 0.5": HeadVariant(power=0.5),
    "plain mean": HeadVariant(last_weighted_feature(0.0)),
    "last weight 0.05": HeadVariant(last_weighted_feature(0.05)),
    "last weight 0.2": HeadVariant(last_weighted_feature(0.2)),
    "last token": HeadVariant(layer_feature(-1, "last")),
    "mean beside last": HeadVariant(concat_features((layer_feature(-1), 1.0), (layer_feature(-1, "last"), 0.7))),
    "mean and max": HeadVariant(concat_features((PRESET_FEATURE, 1.0), (layer_feature(-1, "max"), 1.0))),
    "mean and sd": HeadVariant(concat_features((PRESET_FEATURE, 1.0), (layer_feature(-1, "sd"), 1.0))),
    "word embeddings alone": HeadVariant(layer_feature(0)),
    "a middle layer": HeadVariant(layer_feature(-3)),
    "with word embeddings": HeadVariant(concat_features((PRESET_FEATURE, 1.0), (layer_feature(0), 0.5))),
    "with layer 1": HeadVariant(concat_features((PRESET_FEATURE, 1.0), (layer_feature(1), 0.5))),
    "with the layer before": HeadVariant(concat_features((PRESET_FEATURE, 1.0), (layer_feature(-2), 1.0))),
    "mean times root of length": HeadVariant(root_length_feature),
    "ensemble of 3 heads": HeadVariant(fit_rule="bagging"),
    "pairs the head is unsure of": HeadVariant(pair_selection="uncertain"),
    "pairs that tell the most": HeadVariant(pair_selection="telling"),
}


def fit_head(variant: HeadVariant, differences: Tensor, ties: Tensor, seed: int) -> Tensor:
    labels = PreferenceTargets(ties)
    if variant.fit_rule == "evidence":
        fits = {ridge: fit_head_weights(differences, labels, ridge) for ridge in RIDGES}
        return fits[max(fits, key=lambda ridge: log_evidence(differences, ties, fits[ridge], ridge))]
    if variant.fit_rule == "bagging":
        generator, total = torch.Generator().manual_seed(seed), torch.zeros(differences.shape[1], dtype=torch.float64)
        for _ in range(3):
            draw_indices = torch.randint(len(ties), (len(ties),), generator=generator)
            weights = fit_head_weights(differences[draw_indices], PreferenceTargets(ties[draw_indices]), variant.ridge)
            total += weights / weights.norm().clamp_min(1e-12)
        return total
    return fit_head_weights(differences, labels, variant.ridge)


def select_pairs(
    variant: HeadVariant, signed: Tensor, ties: Tensor, order: list[int], size: int, seed: int
) -> list[int]:
    """Indices of the labelled pairs of the pool: 10 at random, then 10 at a time of the next 200 in `order`."""
    if variant.pair_selection == "random":
        return order[:size]
    chosen, remaining = order[:10], order[10:]
    while len(chosen) < size:
        candidates, count = remaining[:200], min(10, size - len(chosen))
        weights = fit_head(variant, signed[chosen], ties[chosen], seed)
        if variant.pair_selection == "telling":
            best = greedy_selection(signed[chosen], signed[candidates], weights, variant.ridge, count)
        else:
            best = (signed[candidates] @ weights).abs().argsort()[:count].tolist()
        chosen = chosen + [candidates[i] for i in best]
        remaining = [i for i in remaining if i not in set(chosen)]
    return chosen


def log_evidence(differences: Tensor, ties: Tensor, weights: Tensor, ridge: float) -> float:
    """Laplace approximation of the log marginal likelihood of the labels, up to a constant (MacKay 1992)."""
    target, logit = torch.where(ties, 0.5, 1.0).double(), differences @ weights
    nats = torch.nn.functional.binary_cross_entropy_with_logits(logit, target, reduction="sum")
    p = torch.sigmoid(logit)
    rows = (p * (1 - p)).sqrt()[:, None] * differences
    log_volume = torch.logdet(torch.eye(len(rows), dtype=torch.float64) + rows @ rows.T / ridge)
    return -float(nats + ridge / 2 * weights.square().sum() + log_volume / 2)


# --- full trainings ---

TRAINING_VARIANTS: dict[str, dict[str, Any]] = {
    "preset": {},
    "textbook": {"pooling": "last", "warm_start": False, "epochs": 10},
    "even prior": {"ridge": 300.0, "prior_power": 0.0},
    "head alone": {"epochs": 0},
    "ensemble": {"ensemble": 3},
    "ensemble, worst": {"ensemble": 3, "ensemble_score": "worst"},
    "early": {"epochs": 6, "early_stopping": True, "folds": 3},
}


def train(
    adapters: Adapters, samples: PromptSetSamples, gaps: "ScoreGaps", labelled: list[int], seed: int, name: str
) -> Tensor:
    """Scores (2, pairs) of the held-out pairs by a model trained on the labelled pairs."""
    a, b = (side.samples for side in samples.pool)
    comparisons = []
    for i in labelled:
        better, worse = (a, b) if gaps.pool[i] >= 0 else (b, a)
        comparisons.append(
            Comparison(
                samples.prompts[i], better.texts[i], worse.texts[i], tuple(better.tokens[i]), tuple(worse.tokens[i]),
                tie=bool(gaps.pool[i] == 0), group=i,
            )
        )  # fmt: skip
    config = RewardConfig(**({"folds": 0, "seed": seed} | TRAINING_VARIANTS[name]))
    base_samples = samples.base.samples
    model, _ = train_reward(adapters, comparisons, ReferenceSamples(base_samples.prompts, base_samples.tokens), config)
    return torch.stack([model.scores(side.samples.prompts, side.samples.tokens) for side in samples.held_out])


# --- the table ---


@dataclass(frozen=True)
class ScoreGaps:
    """A judge's score of the first minus the second text: pool (POOL_SIZE,), held_out (HELD_OUT_SIZE,) float64."""

    pool: Tensor
    held_out: Tensor


def score_gaps(samples: PromptSetSamples, name: str) -> ScoreGaps:
    def side_gaps(sides: tuple[Side, Side]) -> Tensor:
        first, second = (list(map(JUDGES[name].score, side.prompts, side.samples.texts)) for side in sides)
        return torch.tensor(first, dtype=torch.float64) - torch.tensor(second, dtype=torch.float64)

    return ScoreGaps(side_gaps(samples.pool), side_gaps(samples.held_out))


def accuracies(
    adapters: Adapters, samples: PromptSetSamples, gaps: ScoreGaps, name: str, sizes: list[int], seeds: int
) -> Iterator[tuple[int, list[float]]]:
    """(labels, accuracy of each seed) of one variant."""
    is_decided = gaps.held_out != 0
    first_is_better = gaps.held_out[is_decided] > 0
    if name in HEAD_VARIANTS:
        variant = HEAD_VARIANTS[name]
        base = variant.feature(samples.base, samples.base)
        scaler = FeatureScaler(base, variant.power)
        pool, held_out = (
            scaler(variant.feature(sides[0], samples.base) - variant.feature(sides[1], samples.base))
            for sides in (samples.pool, samples.held_out)
        )
        signed = torch.where(gaps.pool[:, None] >= 0, pool, -pool)
    for size in sizes:
        values = []
        for seed in range(seeds):
            order = torch.randperm(POOL_SIZE, generator=torch.Generator().manual_seed(seed)).tolist()
            if name in HEAD_VARIANTS:
                labelled = torch.tensor(select_pairs(variant, signed, gaps.pool == 0, order, size, seed))
                gap = held_out @ fit_head(variant, signed[labelled], gaps.pool[labelled] == 0, seed)
            else:
                first, second = train(adapters, samples, gaps, order[:size], seed, name)
                gap = first - second
            values.append(float(((gap[is_decided] > 0) == first_is_better).double().mean()))
        yield size, values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help='"embedded", a model folder, or a Hub id')
    parser.add_argument("--labels", default="20,30,60,200", help="numbers of labels, ties among them")
    parser.add_argument("--seeds", type=int, default=10, help="draws of the labels")
    parser.add_argument("--judges", default="cheerful,gloomy,polite,concrete", help="simulated judges")
    parser.add_argument(
        "--variants", default=",".join(HEAD_VARIANTS), help=f"ways; also {', '.join(TRAINING_VARIANTS)}"
    )
    parser.add_argument("--length", type=int, default=64, help="longest response, in tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names, judges, sizes = (
        parse_variants(args.variants),
        args.judges.split(","),
        [int(n) for n in args.labels.split(",")],
    )
    adapters = Adapters(load_backbone(args.model, device="cpu"))
    prompt_sets = {JUDGES[judge].prompt_set for judge in judges}
    samples_by_set = {
        prompt_set: sample_prompt_set(adapters.backbone, prompt_set, args.length) for prompt_set in sorted(prompt_sets)
    }
    rows = []
    for name in names:
        for judge in judges:
            samples, start_time = samples_by_set[JUDGES[judge].prompt_set], time.monotonic()
            for size, values in accuracies(adapters, samples, score_gaps(samples, judge), name, sizes, args.seeds):
                seconds, start_time = (time.monotonic() - start_time) / args.seeds, time.monotonic()
                rows.append({"variant": name, "judge": judge, "labels": size, "accuracies": values, "seconds": seconds})
        if not args.json:
            print_row(name, [row for row in rows if row["variant"] == name], sizes)
    if args.json:
        json.dump(
            {"model": args.model, "seeds": args.seeds, "pairs": HELD_OUT_SIZE, "rows": rows}, sys.stdout, indent=1
        )


def parse_variants(text: str) -> list[str]:
    """The variants of a comma-separated list; their names may contain commas. Exits if one is unknown."""
    known, names = [*HEAD_VARIANTS, *TRAINING_VARIANTS], []
    while text:
        name = max(
            (candidate for candidate in known if text == candidate or text.startswith(f"{candidate},")),
            key=len,
            default=None,
        )
        if name is None:
            raise SystemExit(f"unknown variant at {text!r}; known: {'; '.join(known)}")
        names.append(name)
        text = text[len(name) + 1 :]
    return names


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
