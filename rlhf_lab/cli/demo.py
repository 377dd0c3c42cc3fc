"""`python -m rlhf_lab demo`: the whole loop headless, in this process: pairs, labels, reward model, PPO, and what it is worth."""

import argparse
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlhf_lab.cli.common import Show, add_common, alone_on, answer, progress_line
from rlhf_lab.config import PolicyConfig, RewardConfig, add_arguments, from_args
from rlhf_lab.counted import counted
from rlhf_lab.engine.fitting import fitting
from rlhf_lab.engine.lab import Lab
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.engine.work import sample_pairs, train_reward_model
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.claims import claimed
from rlhf_lab.jobs.labelling import label_with_judge
from rlhf_lab.jobs.setup import new_project
from rlhf_lab.judges import Judge, load_judge
from rlhf_lab.kinds import Choice, Source
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.records import Project
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.runs import create_run
from rlhf_lab.trainers.evaluation import (
    above_base,
    best_of,
    best_of_kl,
    difference,
    distinct_2,
    mean,
    picked,
    ranking_accuracy,
    sequence_kl,
    write,
)  # fmt: skip

T = TypeVar("T")

#: Base samples of each evaluated prompt: 16 where best-of-16 is measured, 4 for the others (best-of-4, gold, spread).
SAMPLES = [16] * 128 + [4] * 128
ACCURACY_PAIRS = 300
#: Whose gold is told less whose, prompt by prompt.
PAIRED = (
    ("policy", "base"), ("best_of_4", "base"), ("best_of_16", "base"), ("policy", "best_of_4"), ("policy", "best_of_16"),
)  # fmt: skip


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("demo", help="the whole loop headless, with simulated labels; prints what it is worth")
    add_common(parser)
    parser.add_argument("--labels", type=int, default=60, help="pairs the judge labels (default 60)")
    parser.add_argument("--judge", default="cheerful", help="a simulated judge, or FILE.py:NAME (default cheerful)")
    parser.add_argument("--noise", type=float, default=0.0, help="the judge's noise, in its own spread (default 0)")
    parser.add_argument("--model", default="embedded", help='"embedded", a model folder, or a Hub id')
    parser.add_argument("--prompt-set", default=None, help="tales, support or reviews (default: what the judge suits)")
    parser.add_argument("--prompts", type=Path, default=None, help="a file of your own prompts, a prompt a line")
    parser.add_argument("--pooling", default=None, help="mean or last: what the reward head reads")
    add_arguments(parser, PolicyConfig)
    parser.set_defaults(run=run, home=None)


def run(args: argparse.Namespace) -> int:
    """Works in a temporary home unless --home is given. Raises LabError."""
    if args.home is not None:
        result = demo(args, args.home.expanduser().resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="rlhf-lab-demo-") as home:
            result = demo(args, Path(home))
    answer(args, result, describe(result))
    return 0


def demo(args: argparse.Namespace, home: Path) -> dict[str, Any]:
    if args.labels < 2:
        raise ConfigError(
            f"--labels {args.labels}: a reward model needs at least 2 labels, and some 30 to learn anything."
        )
    judge = load_judge(args.judge)
    policy_config: PolicyConfig = from_args(PolicyConfig, args, seed=args.seed or 0)
    reward_config: RewardConfig = from_args(RewardConfig, argparse.Namespace(pooling=args.pooling, seed=args.seed or 0))
    with alone_on(home), Database.open(home) as db, progress_line("demo") as show:
        clock = _Clock(show)
        lab = Lab(home, db)
        project = new_project(
            db, model=args.model, prompt_set=args.prompt_set or judge.prompt_set, prompts_file=args.prompts,
            seed=policy_config.seed, name=f"demo: {judge.name}, seed {policy_config.seed}",
        )  # fmt: skip
        show(0.0, None, "sampling pairs", begins=True)
        left_out: list[str] = []
        sample_pairs(lab, project, args.labels, note=left_out.append)
        show(0.08, None, f"the judge {judge.name} labels", begins=True)
        said = label_with_judge(db, project.id, judge, args.labels, noise=args.noise, seed=policy_config.seed)
        clock.done("sample", 0.1, "training the reward model")
        row = train_reward_model(lab, project, reward_config, Source.SIMULATED)
        clock.done("reward", 0.25, "training the policy")
        stored = create_run(
            db, project.id, row.id, f"demo {judge.name}", config=policy_config.to_dict(),
            manifest={"judge": args.judge, "labels": dataclasses.asdict(row.snapshot)}, total_steps=policy_config.steps,
        )  # fmt: skip
        steps = policy_config.steps

        def advance(share: float, left: float | None, _: object) -> None:
            show(0.25 + 0.5 * share, left, f"step {round(share * steps)} of {steps}")

        with claimed(home, stored.id):
            run = PolicyRun(lab, stored.id, progress=advance)
            run.execute()
        clock.done("policy", 0.75, "evaluating")
        scorer = lab.reward_model(row.id, "reward")
        figures = evaluate(lab, project, run, scorer, judge, policy_config)
        clock.done("evaluate", 1.0, "done")
    return {
        "labels": sum(said.values()), "label_ties": said.get(Choice.TIE, 0), "judge": judge.name,
        "seed": policy_config.seed, "algorithm": policy_config.algorithm, "model": args.model,
        "prompt_set": project.prompt_set, "simulated": True, "note": "".join(left_out),
        "cross_validated_accuracy": row.report["accuracy"], **figures, "seconds": clock.seconds(),
    }  # fmt: skip


class _Clock:
    """Seconds of each part of the demo."""

    def __init__(self, show: Show) -> None:
        self.show = show
        self.begun = self.last = time.monotonic()
        self.parts: dict[str, float] = {}

    def done(self, part: str, share: float, now_comes: str) -> None:
        now = time.monotonic()
        self.parts[part], self.last = now - self.last, now
        self.show(share, None, now_comes, begins=True)

    def seconds(self) -> dict[str, float]:
        return {k: round(v, 2) for k, v in (self.parts | {"total": time.monotonic() - self.begun}).items()}


def evaluate(
    lab: Lab, project: Project, run: PolicyRun, scorer: RewardModel, judge: Judge, config: PolicyConfig
) -> dict[str, Any]:
    """Base, best-of-n and policy on prompts that nothing was trained on. Gold is in units of the base's sd.

    The standard errors of gold_gain and of best-of-n (best_of_n_se) are those of the distance to the base; paired: differences
    by prompt with their 95 % intervals, best of 16 on the prompts that have as many samples.
    """
    backbone, adapters = lab.open(project)
    held = [
        prompt.text for prompt in fitting(backbone, prompts(lab.db, project.id, "eval"), config.max_new_tokens).prompts
    ]
    texts = [held[i % len(held)] for i in range(len(SAMPLES))]
    many = [text for text, count in zip(texts, SAMPLES, strict=True) for _ in range(count)]
    length = config.max_new_tokens
    with adapters.using(None):
        base = write(backbone, many, seed=config.seed, purpose="evaluate base", max_new_tokens=length)
    policy = run.trainer.policy
    with adapters.using(policy.adapter, merged=True):
        now = write(
            backbone, texts, seed=config.seed, purpose="evaluate policy", max_new_tokens=length,
            temperature=config.temperature,
        )  # fmt: skip
    scores_base = scorer.scores(base.prompts, base.tokens).tolist()
    scores_policy = scorer.scores(now.prompts, now.tokens).tolist()
    raw_base = [judge.score(text) for text in base.texts]
    spread = _sd(raw_base)
    gold = [score / spread for score in raw_base]
    gold_now = [judge.score(text) / spread for text in now.texts]
    kl = sequence_kl(policy, now, config.temperature)
    rows_scores, rows_gold = _rows(scores_base), _rows(gold)
    best = {n: best_of(n, rows_scores, rows_gold) for n in (4, 16)}
    accuracy = ranking_accuracy(_pairs(rows_gold), _pairs(rows_scores), ACCURACY_PAIRS)
    gold_base, gold_policy, gain = _mean_of(rows_gold), mean(gold_now), above_base(gold_now, rows_gold)
    first = [row[0] for row in _rows(base.texts)]
    arms = {"policy": [[one] for one in gold_now], "base": rows_gold}
    arms |= {f"best_of_{n}": picked(n, rows_scores, rows_gold) for n in best}
    paired = {f"{one}_over_{other}": difference(texts, arms[one], arms[other])._asdict() for one, other in PAIRED}
    return {
        "reward_accuracy": accuracy.value, "reward_accuracy_low": accuracy.low, "reward_accuracy_high": accuracy.high,
        "accuracy_pairs": accuracy.pairs, "tie_share": accuracy.tie_share,
        "gold_base": gold_base, "gold_base_sd": spread,
        "gold_policy": gold_policy.value, "gold_policy_se": gold_policy.standard_error,
        "gold_gain": gain.value, "gold_gain_se": gain.standard_error, "kl": kl.value, "kl_se": kl.standard_error,
        "scores_base": _mean_of(rows_scores), "scores_policy": mean(scores_policy).value,
        "response_len_base": _mean_of(_rows([float(len(row)) for row in base.tokens])),
        "response_len_policy": mean([float(len(row)) for row in now.tokens]).value,
        "distinct2_base": distinct_2(first), "distinct2_policy": distinct_2(now.texts),
        "best_of_4_gold": best[4].value, "best_of_4_se": best[4].standard_error,
        "best_of_16_gold": best[16].value, "best_of_16_se": best[16].standard_error,
        "best_of_4_kl": best_of_kl(4), "best_of_16_kl": best_of_kl(16), "paired": paired,
        "samples": [
            {"prompt": texts[i], "base": first[i], "policy": now.texts[i]} for i in range(min(3, len(texts)))
        ],
    }  # fmt: skip


def _sd(values: list[float]) -> float:
    """Sample sd; 1 where nothing varies, so that gold stays defined."""
    average = sum(values) / len(values)
    variance = sum((x - average) ** 2 for x in values) / max(1, len(values) - 1)
    return variance**0.5 or 1.0


def _rows(flat: Sequence[T]) -> list[list[T]]:
    """One list of samples a prompt."""
    ends = list(itertools.accumulate(SAMPLES))
    return [list(flat[end - count : end]) for end, count in zip(ends, SAMPLES, strict=True)]


def _mean_of(rows: list[list[float]]) -> float:
    """Mean over the prompts, each of which counts once."""
    return mean([sum(row) / len(row) for row in rows]).value


def _pairs(rows: list[list[float]]) -> list[tuple[float, float]]:
    """Disjoint pairs of samples of one prompt: first all (0, 1), then all (2, 3), and so on."""
    return [(row[i], row[i + 1]) for i in range(0, max(SAMPLES), 2) for row in rows if i < len(row)]


def _in_words(name: str, of: dict[str, Any]) -> str:
    """ "policy over best of 4 +0.12 (-0.03 to +0.27)"; the interval stands where there are prompts enough for one."""
    between = "" if of["low"] is None else f" ({of['low']:+.2f} to {of['high']:+.2f})"
    return f"{name.replace('_', ' ')} {of['difference']:+.2f}{between}"


def describe(result: dict[str, Any]) -> str:
    """The figures for people."""
    r = result
    base = r["gold_base"]
    lines = [
        f'{counted(r["labels"], "simulated label")} by the judge "{r["judge"]}" '
        f"({counted(r['label_ties'], 'tie')}), seed {r['seed']}" + (f"; {r['note']}" if r["note"] else ""),
        f"reward model: {r['reward_accuracy']:.0%} of {counted(r['accuracy_pairs'], 'unseen pair')} ranked as the judge does "
        f"(95 %: {r['reward_accuracy_low']:.0%} to {r['reward_accuracy_high']:.0%}; {r['tie_share']:.0%} of pairs were ties)",
        f"gold above the base, in its sd: policy {r['gold_gain']:+.2f} ± {r['gold_gain_se']:.2f} at KL {r['kl']:.1f}; "
        f"best of 4 {r['best_of_4_gold'] - base:+.2f} ± {r['best_of_4_se']:.2f} at {r['best_of_4_kl']:.1f}; "
        f"best of 16 {r['best_of_16_gold'] - base:+.2f} ± {r['best_of_16_se']:.2f} at {r['best_of_16_kl']:.1f}",
        "prompt by prompt (95 %): " + "; ".join(_in_words(name, of) for name, of in r["paired"].items()),
        f"length {r['response_len_base']:.1f} → {r['response_len_policy']:.1f} tokens, "
        f"distinct-2 {r['distinct2_base']:.2f} → {r['distinct2_policy']:.2f}",
        f"{r['seconds']['total']:.0f} s: " + ", ".join(f"{k} {v:.0f}" for k, v in r["seconds"].items() if k != "total"),
    ]
    for sample in r["samples"]:
        lines += [
            "",
            f"  {sample['prompt']}",
            f"    base:   {sample['base'].strip()}",
            f"    policy: {sample['policy'].strip()}",
        ]
    return "\n".join(lines)
