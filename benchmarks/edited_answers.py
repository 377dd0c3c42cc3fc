"""What is worth more: 15 edited answers or 45 labelled pairs, about the same minutes of a person?

    python benchmarks/edited_answers.py --seeds 20
    python benchmarks/edited_answers.py --model FOLDER --prompt-set everyday --judges concrete --temperature 0.7 --length 64

A scripted person compares two texts for each prompt by a judge, without noise. A scripted editor also rewrites the better one:
the edit is the best of 8 further samples, a text that the model could write, or nothing where none is better. The head of the
instant reward model is fitted to the labels; an edit counts as "much" better. Accuracy: pairs of texts for other prompts that
the judge does not score alike, as mean and standard error over seeds, each with other prompts labelled.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import numpy as np
import torch
from sampled_states import repeat_shuffled

from rlhf_lab.common.bundled_assets import shipped_prompts, train_eval_split
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.preference_fit import LayerScaler, PreferenceTargets, choose_ridge, fit_dual
from rlhf_lab.engine.text_features import feature_vectors
from rlhf_lab.judges.builtin import Judge, load_judge
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.training.evaluation import sample_responses

PER_PROMPT, EDITED_FROM = 10, 8  # two texts to compare, and those of which the editor writes the best
PAIRS, EDITS, TRAIN_PROMPTS, HELD_OUT = 45, 15, 120, 150
MUCH = 2 * RewardConfig().margin


def sampled(adapters: Adapters, prompts: Sequence[str], args: argparse.Namespace) -> tuple[list[str], np.ndarray]:
    """PER_PROMPT texts for each prompt, one after the other, and their features."""
    repeated = [prompt for prompt in prompts for _ in range(PER_PROMPT)]
    samples = sample_responses(
        adapters.backbone, repeated, seed=0, purpose="edits", max_new_tokens=args.length, temperature=args.temperature
    )
    rows = list(zip(samples.prompts, samples.tokens, strict=True))
    return samples.texts, feature_vectors(adapters, rows).astype(np.float32)


def labels_of(gold: np.ndarray, order: Sequence[int], edits: bool) -> list[tuple[int, int, float]]:
    """(chosen, rejected, margin) of texts of the labelled prompts; gold: (P, PER_PROMPT)."""
    labels = []
    for prompt in order:
        first = prompt * PER_PROMPT
        better, worse = (first, first + 1) if gold[prompt, 0] >= gold[prompt, 1] else (first + 1, first)
        if gold[prompt, 0] != gold[prompt, 1]:
            labels.append((better, worse, 0.0))
        best = first + PER_PROMPT - EDITED_FROM + int(gold[prompt, -EDITED_FROM:].argmax())
        if edits and gold[prompt, best - first] > gold[prompt, better - first]:
            labels.append((best, better, MUCH))
    return labels


def accuracy(
    features: np.ndarray, layers: int, labels: Sequence[tuple[int, int, float]], held_out: tuple[np.ndarray, np.ndarray]
) -> float:
    scaler = LayerScaler(features[:128], layers)
    chosen, rejected, margins = (np.array(column) for column in zip(*labels, strict=True))
    differences = scaler(features[chosen] - features[rejected]).astype(np.float64)
    gram = differences @ differences.T
    targets = PreferenceTargets(np.zeros(len(labels), bool), margins.astype(np.float64))
    groups = [int(i) // PER_PROMPT for i in chosen]
    fit = fit_dual(gram, targets, choose_ridge(gram, targets, groups))
    weights = differences.T @ fit.coefficients
    texts, gold = held_out
    scores = (scaler(texts) @ weights).reshape(gold.shape)
    decided = gold[:, 0] != gold[:, 1]
    return float((((scores[:, 0] > scores[:, 1]) == (gold[:, 0] > gold[:, 1]))[decided]).mean())


def judge_rows(judge: Judge, prompts: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    scores = [judge.score(prompts[i // PER_PROMPT], text) for i, text in enumerate(texts)]
    return np.array(scores).reshape(-1, PER_PROMPT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--prompt-set", default="tales")
    parser.add_argument("--judges", default="cheerful,polite,dialogue")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    backbone = load_backbone(args.model)
    adapters = Adapters(backbone)
    split = train_eval_split(shipped_prompts(args.prompt_set))
    train, held_out = (
        repeat_shuffled([text for text, name in split if name == part], count)
        for part, count in (("train", TRAIN_PROMPTS), ("eval", HELD_OUT))
    )
    texts, features = sampled(adapters, train, args)
    test_texts, test_features = sampled(adapters, held_out, args)
    print("| judge | 45 pairs | 15 edits (30 labels) | 15 pairs |\n|---|---|---|---|")
    for name in args.judges.split(","):
        judge = load_judge(name)
        gold, test_gold = judge_rows(judge, train, texts), judge_rows(judge, held_out, test_texts)
        cells = []
        for count, edits in ((PAIRS, False), (EDITS, True), (EDITS, False)):
            values = []
            for seed in range(args.seeds):
                order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed)).tolist()[:count]
                labels = labels_of(gold, order, edits)
                values.append(accuracy(features, backbone.state_count, labels, (test_features, test_gold)))
            cells.append(f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) / args.seeds**0.5:.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
