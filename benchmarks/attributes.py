"""Attributes of texts in labels: do the intervals cover, and what does ignoring them cost on human labels?

    python benchmarks/attributes.py --coverage 2000
    python benchmarks/attributes.py --human-pairs PAIRS.jsonl --model FOLDER

--coverage: scripted people label pairs by a content criterion and a planted bias for one attribute at a time, and so many label
sets are drawn for each. The table has the share of 95 % intervals that contain the large-sample value of the same model (1,500
labels), this value and the mean estimate.
--human-pairs: JSON lines of prompt, chosen and rejected. Heads are fitted on the features of the model; accuracy of their scores
in 5 folds by prompt, on all pairs and on those of similar length, and the effect of each attribute.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import numpy as np
import torch

from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.core.attribute_effects import (
    MIN_RIDGE,
    AttributeEffects,
    AttributeScaler,
    attribute_effects,
    attribute_gram,
    linear_slopes,
)
from rlhf_lab.core.preference_fit import PreferenceTargets, choose_ridge, fit_dual
from rlhf_lab.engine.text_features import feature_vectors
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.attribute_correction import token_attributes
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.training.reward.head_init import HeadFitter, PairAttributes, assign_folds

SIMILAR = 0.2  # difference of log lengths
FEATURES, MIXED = 200, 0.5  # of scripted texts; how strongly features depend on the attributes
REFERENCE_TEXTS, MANY_LABELS = 128, 1500
CONTENTS = (1.0, 2.0)  # standard deviation of the content's log-odds between two texts
BIASES, LABELS = (0.5, 1.0), (40, 100)
FOLDS = 5


class ScriptedPeople(NamedTuple):
    """Texts with attributes z and features u + z·mixing; P(a ≻ b) = sigmoid(meaning·Δu + bias·Δz)."""

    spectrum: np.ndarray
    mixing: np.ndarray
    meaning: np.ndarray
    bias: np.ndarray

    @classmethod
    def make(cls, content: float, bias: float, attribute: int, rng: np.random.Generator) -> "ScriptedPeople":
        spectrum = np.arange(1, FEATURES + 1) ** -0.5
        spectrum /= np.linalg.norm(spectrum)
        meaning = rng.normal(size=FEATURES)
        meaning *= content / (math.sqrt(2) * np.linalg.norm(meaning * spectrum))
        planted = np.zeros(len(ATTRIBUTES))
        planted[attribute] = bias
        return cls(spectrum, MIXED * rng.normal(size=(len(planted), FEATURES)) * spectrum, meaning, planted)

    def label(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Attributes (count, A) and features (count, D) of chosen minus rejected texts."""
        z, u = (rng.normal(size=(2, count, len(self.bias))), rng.normal(size=(2, count, FEATURES)) * self.spectrum)
        attributes, content = z[0] - z[1], u[0] - u[1]
        prefers_first = rng.random(count) < 1 / (1 + np.exp(-(content @ self.meaning + attributes @ self.bias)))
        sign = np.where(prefers_first, 1.0, -1.0)[:, None]
        return attributes * sign, (content + attributes @ self.mixing) * sign


def coverage(sets: int) -> None:
    print("| labels | content | bias | large-sample value | mean estimate | covered: planted | covered: others |")
    print("|---|---|---|---|---|---|---|")
    for labels in LABELS:
        for content in CONTENTS:
            for bias in BIASES:
                rows = [coverage_of(labels, content, bias, attribute, sets) for attribute in range(len(ATTRIBUTES))]
                truth, estimate, planted, others = np.mean(rows, axis=0)
                print(f"| {labels} | {content:g} | {bias:g} | {truth:.2f} | {estimate:.2f} | {planted:.1%} | {others:.1%} |",
                      flush=True)  # fmt: skip


def coverage_of(labels: int, content: float, bias: float, attribute: int, sets: int) -> tuple[float, ...]:
    rng = np.random.default_rng(attribute)
    people = ScriptedPeople.make(content, bias, attribute, rng)
    reference = rng.normal(size=(REFERENCE_TEXTS, len(ATTRIBUTES)))
    texts = rng.normal(size=(REFERENCE_TEXTS, FEATURES)) * people.spectrum + reference @ people.mixing
    scaler = AttributeScaler(reference)
    slopes = linear_slopes(texts, scaler(reference))

    def fitted(count: int, ridge: float | None = None) -> AttributeEffects:
        attributes, features = people.label(count, rng)
        attributes = scaler.differences(attributes)
        features = features - attributes @ slopes
        gram, targets = features @ features.T + attribute_gram(attributes), PreferenceTargets(np.zeros(count, bool))
        chosen = ridge or max(MIN_RIDGE, choose_ridge(gram, targets, list(range(count))))
        return attribute_effects(gram, fit_dual(gram, targets, chosen), targets, attributes)

    truth = np.mean([fitted(MANY_LABELS, 0.3).log_odds for _ in range(4)], axis=0)
    fits = [fitted(labels) for _ in range(sets)]
    covers = np.mean([(fit.low <= truth) & (truth <= fit.high) for fit in fits], axis=0)
    estimate = np.mean([fit.log_odds[attribute] for fit in fits])
    return truth[attribute], estimate, covers[attribute], np.delete(covers, attribute).mean()


def human_pairs(path: Path, model: str) -> None:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    backbone = load_backbone(model)
    adapters, names = Adapters(backbone), tuple(ATTRIBUTES)
    prompts = [backbone.encode_prompt(row["prompt"]) for row in rows]
    vectors, attributes = [], []
    for side in ("chosen", "rejected"):
        responses = [backbone.encode_response(row[side]) for row in rows]
        vectors.append(torch.from_numpy(feature_vectors(adapters, list(zip(prompts, responses, strict=True)))).float())
        attributes.append(token_attributes(backbone, prompts, responses, names))
    prompt_group = {text: i for i, text in enumerate(dict.fromkeys(row["prompt"] for row in rows))}
    groups = [prompt_group[row["prompt"]] for row in rows]
    folds = torch.tensor(assign_folds(groups, FOLDS))
    differences = attributes[0] - attributes[1]
    is_similar = differences[:, 0].abs() < SIMILAR
    print(
        f"{len(rows)} pairs, {int(is_similar.sum())} of similar length\n\n| ignored | all pairs | similar length |\n|---|---|---|"
    )
    for ignored in ((), ("length",), names):
        columns = [names.index(name) for name in ignored]
        chosen = PairAttributes(differences[:, columns], torch.cat(attributes)[:, columns]) if columns else None
        targets = PreferenceTargets(np.zeros(len(rows), bool))
        fitter = HeadFitter(
            vectors[0] - vectors[1], torch.cat(vectors), backbone.state_count, targets, groups, 0.0, chosen
        )
        hits, counts = torch.zeros(len(rows)), torch.ones(len(rows), dtype=torch.float64)
        for fold in range(FOLDS):
            train, held_out = ((folds != fold).nonzero()[:, 0].tolist(), (folds == fold).nonzero()[:, 0].tolist())
            scores = fitter.score_differences(fitter.fit(train, counts), held_out)
            hits[held_out] = (scores > 0).float()
        print(f"| {', '.join(ignored) or 'nothing'} | {hits.mean():.1%} | {hits[is_similar].mean():.1%} |", flush=True)
    fit = fitter.fit(list(range(len(rows))), counts)
    assert fit.effects is not None
    for i, name in enumerate(names):
        if not fitter.attributes[:, i].any():
            continue  # all texts end with a stop token
        low, odds, high = sorted(
            math.exp(float(v[i]) * ATTRIBUTES[name].step / fitter.attribute_sd[i]) for v in fit.effects
        )
        print(f"{ATTRIBUTES[name].step_text}: odds × {odds:.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", type=int, metavar="SETS")
    parser.add_argument("--human-pairs", type=Path)
    parser.add_argument("--model", default="embedded")
    args = parser.parse_args()
    if args.coverage:
        coverage(args.coverage)
    if args.human_pairs:
        human_pairs(args.human_pairs, args.model)


if __name__ == "__main__":
    main()
