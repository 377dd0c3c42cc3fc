"""Which two of several responses to a prompt to label: accuracy of the reward model at 20, 40 and 60 labels, by rule.

    python benchmarks/teaching_pairs.py --seeds 16
    python benchmarks/teaching_pairs.py --model FOLDER --prompt-set everyday --judges concrete,varied,relevant,plain \
        --temperature 0.7 --length 128 --system-prompt "Answer in one or two sentences." \
        --prompts 70 --held-out 60 --responses 4

Simulated judges read the first 25 words of a response, so that their scores do not grow with its length. The labeller answers
"both bad" (a tie) where both scores are below the median of the judge's scores. A head is fitted anew after every ten labels, as
the instant reward model is. Accuracy: all pairs of responses to other prompts that the judge does not score alike.
"""

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import numpy as np
import torch
from sampled_states import pooled_states, repeat_shuffled

from rlhf_lab.common.bundled_assets import shipped_prompts, train_eval_split
from rlhf_lab.common.records import ChatSettings
from rlhf_lab.common.stats import cross_validated_interval, hit
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.preference_fit import (
    Float32,
    Float64,
    LayerScaler,
    PreferenceTargets,
    choose_ridge,
    fit_dual,
    held_out_scores,
)
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.models.backbone import Backbone, load_backbone
from rlhf_lab.training.evaluation import sample_responses
from rlhf_lab.training.reward.active_selection import greedy_selection, select_teaching_pair

READ_WORDS = 25
REFIT_EVERY = 10
EXPLORED = 5  # as in engine/pair_sampling.py
SIZES = (20, 40, 60)


@dataclass(frozen=True)
class Texts:
    """`per_prompt` responses to each prompt, one after the other. features: (N, D) of `layers` layers."""

    prompts: list[str]
    texts: list[str]
    tokens: list[list[int]]
    ended: list[bool]
    features: Float32
    layers: int
    per_prompt: int

    def groups(self) -> list[np.ndarray]:
        return list(np.arange(len(self.texts)).reshape(-1, self.per_prompt))

    def scores(self, judge: str) -> Float64:
        read = [" ".join(text.split()[:READ_WORDS]) for text in self.texts]
        return np.array([JUDGES[judge].score(*row) for row in zip(self.prompts, read, strict=True)])


def sample_texts(backbone: Backbone, prompts: Sequence[str], args: argparse.Namespace, per_prompt: int) -> Texts:
    repeated = [prompt for prompt in prompts for _ in range(per_prompt)]
    samples = sample_responses(
        backbone, repeated, seed=0, purpose=f"{prompts[0]} {per_prompt}", max_new_tokens=args.length,
        temperature=args.temperature,
    )  # fmt: skip
    states = pooled_states(backbone, samples.prompts, samples.tokens)
    last_weight = RewardConfig().last_weight
    pooled = ((1 - last_weight) * states[:, :, 0] + last_weight * states[:, :, 1]).flatten(1).float().numpy()
    ended = [row[-1] in backbone.eos_ids for row in samples.tokens]
    return Texts(repeated, samples.texts, samples.tokens, ended, pooled, states.shape[1], per_prompt)


class Head:
    """Fitted to labels: rows (N, D) scaled chosen minus rejected, ties (N,), groups: the prompt of each label."""

    def __init__(self, rows: Float32, ties: Sequence[bool], groups: Sequence[int]) -> None:
        gram, targets = (rows @ rows.T).astype(np.float64), PreferenceTargets(np.array(ties))
        fit = fit_dual(gram, targets, choose_ridge(gram, targets, groups))
        self.rows, self.ridge, self.curvature = rows, fit.ridge, fit.curvature
        self.weights: Float32 = (rows.T @ fit.coefficients).astype(np.float32)
        hits = hit(held_out_scores(gram, fit, groups))
        decided = [(g, float(h)) for g, h, tie in zip(groups, hits, ties, strict=True) if not tie]
        self.has_learned = len({g for g, _ in decided}) > 1 and cross_validated_interval(decided)[0] > 0.5

    def drawn_scores(self, features: Float32, random: np.random.Generator) -> Float64:
        """Scores of one prompt's texts, drawn from the posterior distribution of the weights (Laplace approximation)."""
        x = (features - features.mean(0)).astype(np.float64)
        weighted = self.rows * np.sqrt(self.curvature)[:, None]
        cross = x @ weighted.T
        inverse = np.linalg.inv(self.ridge * np.eye(len(weighted)) + weighted @ weighted.T)
        values, vectors = np.linalg.eigh((x @ x.T - cross @ inverse @ cross.T) / self.ridge)
        noise: Float64 = vectors @ (np.sqrt(np.maximum(values, 0)) * random.standard_normal(len(x)))
        scores: Float64 = noise + x @ self.weights
        return scores


@dataclass(frozen=True)
class Choice:
    """What a rule selects a pair from: the responses to one prompt. head: None before it has learned something."""

    tokens: list[list[int]]
    ended: list[bool]
    raw: Float32
    scaled: Float32
    layers: int
    head: Head | None
    random: np.random.Generator

    def teaching(self, scores: Float64 | None, *, any_length: bool = False) -> tuple[int, int]:
        tokens = [[hash(tuple(row))] for row in self.tokens] if any_length else self.tokens
        return select_teaching_pair(
            tokens, self.ended, self.raw, self.layers, None if scores is None else scores.tolist()
        )

    def scores(self) -> Float64 | None:
        explores = self.random.integers(EXPLORED) == 0
        return None if self.head is None or explores else (self.scaled @ self.head.weights).astype(np.float64)

    def pairs(self) -> list[tuple[int, int]]:
        return [
            (i, j) for i, j in itertools.combinations(range(len(self.tokens)), 2) if self.tokens[i] != self.tokens[j]
        ]


def most_informative(choice: Choice) -> tuple[int, int]:
    pairs, head = choice.pairs(), choice.head
    if head is None:
        return choice.teaching(None, any_length=True)
    rows = torch.from_numpy(np.stack([choice.scaled[i] - choice.scaled[j] for i, j in pairs])).double()
    weights = torch.from_numpy(head.weights).double()
    return pairs[greedy_selection(torch.from_numpy(head.rows).double(), rows, weights, head.ridge, 1)[0]]


def highest_scores(choice: Choice) -> tuple[int, int]:
    scores = choice.scores()
    return choice.pairs()[0] if scores is None else max(choice.pairs(), key=lambda p: scores[p[0]] + scores[p[1]])


def drawn_scores(choice: Choice) -> tuple[int, int]:
    return choice.teaching(None if choice.head is None else choice.head.drawn_scores(choice.scaled, choice.random))


Rule = Callable[[Choice], tuple[int, int]]
#: Name -> the rule, and the number of responses to a prompt.
RULES: dict[str, tuple[Rule, int]] = {
    "random": (lambda choice: choice.pairs()[0], 2),
    "teaching": (lambda choice: choice.teaching(choice.scores()), 4),
    "teaching, of six": (lambda choice: choice.teaching(choice.scores()), 6),
    "never by scores": (lambda choice: choice.teaching(None), 4),
    "by drawn scores": (drawn_scores, 4),
    "of any length": (lambda choice: choice.teaching(choice.scores(), any_length=True), 4),
    "highest scores": (highest_scores, 4),
    "most informative": (most_informative, 4),
}


@dataclass(frozen=True)
class Result:
    """accuracy: after each of SIZES. The others are means over the labelled pairs; late: over the last 20."""

    accuracy: list[float]
    both_bad: float
    both_bad_late: float
    length_gap: float
    complete: float
    score_length: float


@dataclass(frozen=True)
class Setting:
    """Texts to label and of other prompts, their features scaled on the former, and a judge's scores."""

    pool: Texts
    held_out: Texts
    pool_scaled: Float32
    held_out_scaled: Float32
    pool_scores: Float64
    held_out_scores: Float64


def label(setting: Setting, rule: Rule, responses: int, seed: int, teaches_average: bool) -> Result:
    pool, scores, random = setting.pool, setting.pool_scores, np.random.default_rng([seed, 1])
    bad, average = np.median(scores), setting.pool_scaled.mean(0)
    rows, ties, groups, pairs, accuracy = (
        list[Float32](),
        list[bool](),
        list[int](),
        list[tuple[int, int]](),
        list[float](),
    )
    head: Head | None = None
    for prompt in np.random.default_rng(seed).permutation(len(pool.groups())).tolist():
        of_prompt = np.random.default_rng([seed, 2, prompt]).permutation(pool.groups()[prompt])[:responses]
        tokens = [pool.tokens[i] for i in of_prompt]
        if len(set(map(tuple, tokens))) < 2 or len(pairs) == max(SIZES):
            continue
        learned = head if head is not None and head.has_learned else None
        ended = [pool.ended[i] for i in of_prompt]
        scaled = setting.pool_scaled[of_prompt]
        i, j = of_prompt[
            list(rule(Choice(tokens, ended, pool.features[of_prompt], scaled, pool.layers, learned, random)))
        ]
        both_bad, gap = bool(max(scores[i], scores[j]) < bad), scores[i] - scores[j]
        difference = setting.pool_scaled[i] - setting.pool_scaled[j]
        rows, ties = [*rows, difference if gap >= 0 else -difference], [*ties, bool(both_bad or gap == 0)]
        groups, pairs = [*groups, prompt], [*pairs, (int(i), int(j))]
        if both_bad and teaches_average:
            mean = (setting.pool_scaled[i] + setting.pool_scaled[j]) / 2
            rows, ties, groups = [*rows, average - mean], [*ties, False], [*groups, prompt]
        if len(pairs) % REFIT_EVERY == 0:
            head = Head(np.stack(rows), ties, groups)
        if len(pairs) in SIZES:
            assert head is not None
            held_out = setting.held_out_scaled @ head.weights
            accuracy.append(ranking_accuracy(setting.held_out, setting.held_out_scores, held_out))
    bad_pairs = [max(scores[i], scores[j]) < bad for i, j in pairs]
    lengths = [len(row) for row in setting.held_out.tokens]
    return Result(
        accuracy, statistics.fmean(bad_pairs), statistics.fmean(bad_pairs[-20:]),
        statistics.fmean(abs(math.log(len(pool.tokens[i]) / len(pool.tokens[j]))) for i, j in pairs),
        statistics.fmean((pool.ended[i] + pool.ended[j]) / 2 for i, j in pairs),
        float(np.corrcoef(held_out, lengths)[0, 1]),
    )  # fmt: skip


def ranking_accuracy(texts: Texts, gold: Float64, scores: Float32) -> float:
    """Over all pairs of responses to one prompt whose gold scores differ; equal scores count half."""
    pairs = [pair for group in texts.groups() for pair in itertools.combinations(group, 2)]
    first, second = np.array(pairs).T
    gaps = gold[first] - gold[second]
    return float(hit(((scores[first] - scores[second]) * np.sign(gaps))[gaps != 0]).mean())


def settings(backbone: Backbone, args: argparse.Namespace) -> Iterator[tuple[str, Setting]]:
    """The setting of each judge."""
    splits = train_eval_split(shipped_prompts(args.prompt_set))
    train, held_out = (
        repeat_shuffled(texts, min(count, len(texts)))
        for texts, count in (
            ([text for text, split in splits if split == "train"], args.prompts),
            ([text for text, split in splits if split == "eval"], args.held_out),
        )
    )
    pool, other = (sample_texts(backbone, *side) for side in ((train, args, args.responses), (held_out, args, 4)))
    scaler = LayerScaler(pool.features, pool.layers)
    pool_scaled, other_scaled = (scaler(texts.features - scaler.mean) for texts in (pool, other))
    for judge in args.judges.split(","):
        gold = pool.scores(judge), other.scores(judge)
        correlation = np.corrcoef(gold[0], [len(row) for row in pool.tokens])[0, 1]
        print(f"{judge}: correlation with length {correlation:+.2f}; complete {statistics.fmean(pool.ended):.2f}")
        yield judge, Setting(pool, other, pool_scaled, other_scaled, *gold)


def print_seconds(backbone: Backbone, args: argparse.Namespace) -> None:
    """CPU seconds of sampling a job of 16 pairs, by the number of responses to a prompt, and of the features."""
    for count in (2, 4, 6):
        texts = shipped_prompts(args.prompt_set)[:16]
        repeated = [text for text in texts for _ in range(count)]
        start_time = time.process_time()
        samples = sample_responses(
            backbone, repeated, seed=1, purpose="seconds", max_new_tokens=args.length, temperature=args.temperature
        )
        sampled_at = time.process_time()
        pooled_states(backbone, samples.prompts, samples.tokens)
        seconds = [(sampled_at - start_time) / 16, (time.process_time() - sampled_at) / 16]
        print(
            f"{count} responses to a prompt: {seconds[0]:.3f} s of CPU a pair to sample, {seconds[1]:.3f} s for features"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help='"embedded", a model folder, or a Hub id')
    parser.add_argument("--prompt-set", default="tales")
    parser.add_argument("--system-prompt", default="")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--length", type=int, default=64, help="longest response, in tokens")
    parser.add_argument("--judges", default="cheerful,vivid,concrete,gloomy")
    parser.add_argument("--prompts", type=int, default=300, help="prompts to label")
    parser.add_argument("--held-out", type=int, default=256, help="prompts to test on, with four responses each")
    parser.add_argument("--responses", type=int, default=8, help="sampled to each prompt, of which a seed draws some")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rules", default=";".join(RULES), help="separated by ;")
    parser.add_argument("--average", action="store_true", help='"both bad" also means: worse than the average text')
    parser.add_argument("--seconds", action="store_true", help="measure only what a pair costs")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    backbone = load_backbone(args.model, device="cpu")
    backbone.chat_settings = ChatSettings(args.system_prompt, {})
    if args.seconds:
        print_seconds(backbone, args)
        return
    by_judge = dict(settings(backbone, args))
    for name in args.rules.split(";"):
        rule, responses = RULES[name]
        if responses > args.responses:
            continue
        results = {
            judge: [label(setting, rule, responses, seed, args.average) for seed in range(args.seeds)]
            for judge, setting in by_judge.items()
        }
        print_row(name, results)


def print_row(name: str, results: dict[str, list[Result]]) -> None:
    every = [result for of_judge in results.values() for result in of_judge]
    by_seed = [[row.accuracy for row in rows] for rows in zip(*results.values(), strict=True)]  # [seed][judge][size]
    columns = []
    for k, size in enumerate(SIZES):
        means = [statistics.fmean(accuracy[k] for accuracy in of_seed) for of_seed in by_seed]
        error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
        columns.append(f"{size}: {statistics.fmean(means):.3f} ± {error:.3f}")
    rest = ", ".join(
        f"{field} {statistics.fmean(getattr(result, field) for result in every):.2f}"
        for field in ("both_bad", "both_bad_late", "length_gap", "complete", "score_length")
    )
    judges = " ".join(f"{j} {statistics.fmean(row.accuracy[-1] for row in rows):.3f}" for j, rows in results.items())
    print(f"{name:18s} {' | '.join(columns)} | {rest} | {judges}", flush=True)


if __name__ == "__main__":
    main()
