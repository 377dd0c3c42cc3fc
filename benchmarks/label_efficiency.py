"""How much a reward model learns from few labels: accuracy on unseen pairs at 20, 30, 60 and 200 labels, in many ways.

    python benchmarks/label_efficiency.py
    python benchmarks/label_efficiency.py --model FOLDER --labels 60,200 --judges polite
    python benchmarks/label_efficiency.py --variants preset,textbook,early --labels 60 --seeds 3 --json

Texts are sampled from the base model once; simulated judges label them without noise; a seed is a draw of the labels. Held-out
pairs answer prompts that no label is about. Ways of `HEADS` fit a head on hidden states that are computed once, in
milliseconds; ways of `TRAINED` are whole trainings (LoRA and all) and take seconds to minutes each, so they must be asked for.
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

from rlhf_lab.runtime import prepare

prepare()

import torch  # noqa: E402
from sampled_states import HELD, POOL, POOLINGS, Material, Side, sample_all  # noqa: E402
from torch import Tensor  # noqa: E402

from rlhf_lab.config import RewardConfig  # noqa: E402
from rlhf_lab.judges import JUDGES  # noqa: E402
from rlhf_lab.models.adapters import Adapters  # noqa: E402
from rlhf_lab.models.backbone import load_backbone  # noqa: E402
from rlhf_lab.records import Comparison  # noqa: E402
from rlhf_lab.trainers.pair_choice import greedy  # noqa: E402
from rlhf_lab.trainers.reward import Reference, train_reward  # noqa: E402
from rlhf_lab.trainers.warm_start import Labels, Stretch, fit  # noqa: E402

RIDGES = (30.0, 100.0, 300.0, 1000.0, 3000.0)
PRESET = RewardConfig()


# --- heads on states that are computed once ---

Feature = Callable[[Side, Side], Tensor]  # (side, base) -> (N, F) float64


def layer(number: int, pooling: str = "mean") -> Feature:
    return lambda side, _base: side.states[:, number, POOLINGS.index(pooling)].double()


def weighted(last_weight: float) -> Feature:
    """The mean of the last layer with so much of the last token's state besides (`RewardConfig.last_weight`)."""
    mean, last = layer(-1), layer(-1, "last")
    return lambda side, base: (1 - last_weight) * mean(side, base) + last_weight * last(side, base)


def root_length(side: Side, base: Side) -> Tensor:
    """Distance of the mean from the base's mean, times the root of the length: nearer to a sum over the text."""
    length = torch.tensor([float(len(row)) for row in side.written.tokens], dtype=torch.float64)
    return (layer(-1)(side, base) - layer(-1)(base, base).mean(0)) * length.sqrt()[:, None]


def joined(*parts: tuple[Feature, float]) -> Feature:
    """Several features side by side, each brought to unit spread and then weighed."""

    def all_of(side: Side, base: Side) -> Tensor:
        return torch.cat([weight * Stretch(part(base, base), 0.0)(part(side, base)) for part, weight in parts], 1)

    return all_of


LAST_LAYER = weighted(PRESET.last_weight)


@dataclass(frozen=True)
class Head:
    """A way to fit a head: what it reads, its prior, and how the weights are made of the fit."""

    feature: Feature = LAST_LAYER
    power: float = PRESET.prior_power
    ridge: float = PRESET.ridge
    ask: str = "random"  # or "uncertain" (p nearest 0.5), or "telling" (trainers.pair_choice): which pairs are labelled
    rule: str = "fixed"  # or "evidence" (the ridge of the greatest marginal likelihood), or "bagging" (mean of 3 draws)


HEADS: dict[str, Head] = {
    "preset head": Head(),
    "even prior, ridge 300": Head(power=0.0, ridge=300.0),
    "even prior, ridge 30": Head(power=0.0, ridge=30.0),
    "even prior, ridge 3000": Head(power=0.0, ridge=3000.0),
    "even prior, ridge by evidence": Head(power=0.0, rule="evidence"),
    "preset prior, ridge by evidence": Head(rule="evidence"),
    "whitened (power -0.25)": Head(power=-0.25, ridge=300.0),
    "power 0.15": Head(power=0.15),
    "power 0.35": Head(power=0.35),
    "power 0.5": Head(power=0.5),
    "plain mean": Head(weighted(0.0)),
    "last weight 0.05": Head(weighted(0.05)),
    "last weight 0.2": Head(weighted(0.2)),
    "last token": Head(layer(-1, "last")),
    "mean beside last": Head(joined((layer(-1), 1.0), (layer(-1, "last"), 0.7))),
    "mean and max": Head(joined((LAST_LAYER, 1.0), (layer(-1, "max"), 1.0))),
    "mean and sd": Head(joined((LAST_LAYER, 1.0), (layer(-1, "sd"), 1.0))),
    "word embeddings alone": Head(layer(0)),
    "a middle layer": Head(layer(-3)),
    "with word embeddings": Head(joined((LAST_LAYER, 1.0), (layer(0), 0.5))),
    "with layer 1": Head(joined((LAST_LAYER, 1.0), (layer(1), 0.5))),
    "with the layer before": Head(joined((LAST_LAYER, 1.0), (layer(-2), 1.0))),
    "mean times root of length": Head(root_length),
    "ensemble of 3 heads": Head(rule="bagging"),
    "pairs the head is unsure of": Head(ask="uncertain"),
    "pairs that tell the most": Head(ask="telling"),
}


def fit_head(how: Head, differences: Tensor, ties: Tensor, seed: int) -> Tensor:
    labels = Labels(ties)
    if how.rule == "evidence":
        fits = {ridge: fit(differences, labels, ridge) for ridge in RIDGES}
        return fits[max(fits, key=lambda ridge: evidence(differences, ties, fits[ridge], ridge))]
    if how.rule == "bagging":
        generator, total = torch.Generator().manual_seed(seed), torch.zeros(differences.shape[1], dtype=torch.float64)
        for _ in range(3):
            drawn = torch.randint(len(ties), (len(ties),), generator=generator)
            one = fit(differences[drawn], Labels(ties[drawn]), how.ridge)
            total += one / one.norm().clamp_min(1e-12)
        return total
    return fit(differences, labels, how.ridge)


def asked(how: Head, signed: Tensor, ties: Tensor, order: list[int], size: int, seed: int) -> list[int]:
    """Which pairs of the pool are labelled: the first 10 at random, then 10 at a time out of the next 200 in the order."""
    if how.ask == "random":
        return order[:size]
    chosen, rest = order[:10], order[10:]
    while len(chosen) < size:
        some, wanted = rest[:200], min(10, size - len(chosen))
        weights = fit_head(how, signed[chosen], ties[chosen], seed)
        if how.ask == "telling":
            best = greedy(signed[chosen], signed[some], weights, how.ridge, wanted)
        else:
            best = (signed[some] @ weights).abs().argsort()[:wanted].tolist()
        chosen = chosen + [some[i] for i in best]
        rest = [i for i in rest if i not in set(chosen)]
    return chosen


def evidence(differences: Tensor, ties: Tensor, weights: Tensor, ridge: float) -> float:
    """Laplace's log marginal likelihood of the labels, up to a constant (MacKay 1992)."""
    target, logit = torch.where(ties, 0.5, 1.0).double(), differences @ weights
    nats = torch.nn.functional.binary_cross_entropy_with_logits(logit, target, reduction="sum")
    p = torch.sigmoid(logit)
    rows = (p * (1 - p)).sqrt()[:, None] * differences
    volume = torch.logdet(torch.eye(len(rows), dtype=torch.float64) + rows @ rows.T / ridge)
    return -float(nats + ridge / 2 * weights.square().sum() + volume / 2)


# --- whole trainings ---

TRAINED: dict[str, dict[str, Any]] = {
    "preset": {},
    "textbook": {"pooling": "last", "warm_start": False, "epochs": 10},
    "even prior": {"ridge": 300.0, "prior_power": 0.0},
    "head alone": {"epochs": 0},
    "ensemble": {"ensemble": 3},
    "ensemble, worst": {"ensemble": 3, "ensemble_score": "worst"},
    "early": {"epochs": 6, "early_stopping": True, "folds": 3},
}


def train(adapters: Adapters, material: Material, labels: "Judged", drawn: list[int], seed: int, name: str) -> Tensor:
    """Scores (2, pairs) of the held-out pairs by a model trained on the labels that were drawn."""
    a, b = (side.written for side in material.pool)
    comparisons = []
    for i in drawn:
        better, worse = (a, b) if labels.pool[i] >= 0 else (b, a)
        comparisons.append(
            Comparison(
                material.prompts[i], better.texts[i], worse.texts[i], tuple(better.tokens[i]), tuple(worse.tokens[i]),
                tie=bool(labels.pool[i] == 0), group=i,
            )
        )  # fmt: skip
    config = RewardConfig(**({"folds": 0, "seed": seed} | TRAINED[name]))
    base = material.base.written
    model, _ = train_reward(adapters, comparisons, Reference(base.prompts, base.tokens), config)
    return torch.stack([model.scores(side.written.prompts, side.written.tokens) for side in material.held])


# --- the table ---


@dataclass(frozen=True)
class Judged:
    """What a judge says: score of first minus second; pool (POOL,), held (HELD,) float64."""

    pool: Tensor
    held: Tensor


def judged(material: Material, name: str) -> Judged:
    def gaps(sides: tuple[Side, Side]) -> Tensor:
        first, second = ([JUDGES[name].score(text) for text in side.written.texts] for side in sides)
        return torch.tensor(first, dtype=torch.float64) - torch.tensor(second, dtype=torch.float64)

    return Judged(gaps(material.pool), gaps(material.held))


def accuracies(
    adapters: Adapters, material: Material, labels: Judged, name: str, sizes: list[int], seeds: int
) -> Iterator[tuple[int, list[float]]]:
    """(labels, accuracy of each seed) of one way."""
    decided = labels.held != 0
    right = labels.held[decided] > 0
    if name in HEADS:
        how = HEADS[name]
        base = how.feature(material.base, material.base)
        stretch = Stretch(base, how.power)
        pool, held = (
            stretch(how.feature(sides[0], material.base) - how.feature(sides[1], material.base))
            for sides in (material.pool, material.held)
        )
        signed = torch.where(labels.pool[:, None] >= 0, pool, -pool)
    for size in sizes:
        found = []
        for seed in range(seeds):
            order = torch.randperm(POOL, generator=torch.Generator().manual_seed(seed)).tolist()
            if name in HEADS:
                drawn = torch.tensor(asked(how, signed, labels.pool == 0, order, size, seed))
                gap = held @ fit_head(how, signed[drawn], labels.pool[drawn] == 0, seed)
            else:
                first, second = train(adapters, material, labels, order[:size], seed, name)
                gap = first - second
            found.append(float(((gap[decided] > 0) == right).double().mean()))
        yield size, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help='"embedded", a model folder, or a Hub id')
    parser.add_argument("--labels", default="20,30,60,200", help="numbers of labels, ties among them")
    parser.add_argument("--seeds", type=int, default=10, help="draws of the labels")
    parser.add_argument("--judges", default="cheerful,gloomy,polite,concrete", help="simulated judges")
    parser.add_argument("--variants", default=",".join(HEADS), help=f"ways; also {', '.join(TRAINED)}")
    parser.add_argument("--length", type=int, default=64, help="longest response, in tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names, judges, sizes = named(args.variants), args.judges.split(","), [int(n) for n in args.labels.split(",")]
    adapters = Adapters(load_backbone(args.model, device="cpu"))
    sets = {JUDGES[judge].prompt_set for judge in judges}
    materials = {one: sample_all(adapters.backbone, one, args.length) for one in sorted(sets)}
    rows = []
    for name in names:
        for judge in judges:
            material, begun = materials[JUDGES[judge].prompt_set], time.monotonic()
            for size, found in accuracies(adapters, material, judged(material, judge), name, sizes, args.seeds):
                seconds, begun = (time.monotonic() - begun) / args.seeds, time.monotonic()
                rows.append({"variant": name, "judge": judge, "labels": size, "accuracies": found, "seconds": seconds})
        if not args.json:
            show(name, [row for row in rows if row["variant"] == name], sizes)
    if args.json:
        json.dump({"model": args.model, "seeds": args.seeds, "pairs": HELD, "rows": rows}, sys.stdout, indent=1)


def named(text: str) -> list[str]:
    """The ways of a list with commas, some of whose names hold commas themselves. Exits where one is unknown."""
    known, names = [*HEADS, *TRAINED], []
    while text:
        name = max((one for one in known if text == one or text.startswith(f"{one},")), key=len, default=None)
        if name is None:
            raise SystemExit(f"unknown variant at {text!r}; known: {'; '.join(known)}")
        names.append(name)
        text = text[len(name) + 1 :]
    return names


def show(name: str, rows: list[dict[str, Any]], sizes: list[int]) -> None:
    """One line: for each number of labels the mean over all judges, and each judge's mean (least of its seeds)."""
    parts = []
    for size in sizes:
        mine = [row for row in rows if row["labels"] == size]
        means = [statistics.fmean(row["accuracies"]) for row in mine]
        each = " ".join(f"{mean:.3f}({min(row['accuracies']):.2f})" for mean, row in zip(means, mine, strict=True))
        parts.append(f"{size}: {statistics.fmean(means):.4f} = {each}")
    print(f"{name:32s} {' | '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
