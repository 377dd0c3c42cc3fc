"""Training while a judge labels against labelling first, at equal numbers of labels.

    python benchmarks/live_runs.py --seeds 0 1 2                                the embedded model
    python benchmarks/live_runs.py --model FOLDER --judge concrete --labels 20 40 60 --batch-size 16 --length 96

"live": the run starts with FIRST_LABELS labels; after each step the judge labels one pair of its texts, up to the number of
labels. "first": as many labels of pairs of the base, then a reward model is trained and a run of as many steps. Gold is the
judge's score in standard deviations of the base above the base, of fresh samples on prompts that were not trained on; gold at a
KL is interpolated along the run. Seconds are CPU time from the first label on, without evaluations.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

from algorithms import cell, gold_at, log

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Project
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.evidence_budget import evidence_budget
from rlhf_lab.engine import live_run
from rlhf_lab.engine.job_handlers import RewardRequest, train_reward_model
from rlhf_lab.engine.job_progress import JobProgress
from rlhf_lab.engine.live_run import JUDGE_KEY
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.engine.text_features import add_missing_features
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import Judge, load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import create_run
from rlhf_lab.training.evaluation import mean, sample_responses, sequence_kl

FIRST_LABELS = 12
COMPARED_KLS = (1.0, 2.0, 3.0)
RISE = 0.5  # sd of gold


#: The KL budget that held-out labels allow: of the full budget, the right ones, and all that prefer a text.
RULES: dict[str, Callable[[float, float, int], float]] = {
    "accuracy": evidence_budget,
    "fixed": lambda full, right, decided: full,  # noqa: ARG005
    "labels": lambda full, right, decided: full * decided / (decided + 40),  # noqa: ARG005
}


class Base(NamedTuple):
    """Mean and standard deviation of the judge's scores of the base's texts."""

    gold: float
    sd: float


class Measurement:
    """Evaluates a run along the way. points: (step, KL, gold); seconds: CPU time of each step since the start."""

    def __init__(self, judge: Judge, base: Base, eval_prompts: Sequence[str], every: int) -> None:
        self.judge, self.base, self.eval_prompts, self.every = judge, base, eval_prompts, every
        self.run: PolicyRun | None = None
        self.points: list[tuple[int, float, float]] = [(0, 0.0, 0.0)]
        self.seconds = [0.0]
        self.started_at = time.process_time()

    def on_progress(self, _: JobProgress) -> None:
        run = self.run
        if run is None or run.trainer.steps_done < 1 or run.trainer.steps_done < len(self.seconds):
            return
        self.seconds.append(time.process_time() - self.started_at)
        if run.trainer.steps_done % self.every == 0 or run.trainer.steps_done == run.config.steps:
            before = time.process_time()
            self.points.append((run.trainer.steps_done, *self.evaluate(run)))
            self.started_at += time.process_time() - before

    def evaluate(self, run: PolicyRun) -> tuple[float, float]:
        policy, config = run.trainer.state.policy, run.config
        texts = list(self.eval_prompts)
        with policy.adapters.using(policy.adapter, merged=True):
            samples = sample_responses(
                policy.backbone, texts, seed=config.seed, purpose="benchmark live", max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
            )  # fmt: skip
        gold = mean([(score - self.base.gold) / self.base.sd for score in map(self.judge.score, texts, samples.texts)])
        return round(sequence_kl(policy, samples, config.temperature).value, 3), round(gold.value, 3)


def run_seed(args: argparse.Namespace, seed: int, folder: Path) -> list[dict[str, Any]]:
    judge = load_judge(args.judge)
    rows = []
    for arm in args.arms:
        for labels in args.labels:
            home = folder / f"{arm}-{labels}-{seed}"
            with Database.open(home) as db:
                rows.append(run_arm(args, arm, labels, seed, judge, ModelCache(home, db)))
    return rows


def run_arm(
    args: argparse.Namespace, arm: str, labels: int, seed: int, judge: Judge, model_cache: ModelCache
) -> dict[str, Any]:
    db, is_live = model_cache.db, arm.startswith("live")
    project = new_project(db, model=args.model, prompt_set=judge.prompt_set, seed=seed, name=arm)
    base, eval_prompts = measure_base(args, model_cache, project, judge)
    measurement = Measurement(judge, base, eval_prompts, args.every)
    first = min(labels, FIRST_LABELS) if is_live else labels
    sample_pairs(model_cache, project, PairRequest(first))
    label_with_judge(db, project.id, judge, first, noise=args.noise, seed=seed)
    steps, reward_model_id, manifest = args.steps, None, {"judge": args.judge}
    if is_live:
        steps = args.steps + labels - first if args.more_steps else args.steps
        while add_missing_features(model_cache, project.id):
            pass
        manifest |= {JUDGE_KEY: {"every": 1, "noise": args.noise, "at_most": labels - first}}
    else:
        request = RewardRequest(RewardConfig(seed=seed), Source.SIMULATED)
        reward_model_id = train_reward_model(model_cache, project, request).id
    changes = dict(args.changes) | ({"live": True} if is_live else {})
    config = PolicyConfig.for_algorithm(
        args.algorithm, steps=steps, seed=seed, batch_size=args.batch_size, max_new_tokens=project.max_new_tokens,
        temperature=project.temperature, token_rows=0, sample_every=10_000, **changes,
    )  # fmt: skip
    row = create_run(
        db, project.id, reward_model_id, arm, config=config.to_dict(), manifest=manifest, total_steps=steps
    )
    measurement.run = run = PolicyRun(model_cache, row.id, report_progress=measurement.on_progress)
    run.execute()
    risen = next((step for step, _, gold in measurement.points if gold >= RISE), None)
    beta, budget = (
        [point[1] for point in metric_series(db, row.id, [name])[name]]
        for name in ("objective/kl_coef", "live/kl_budget")
    )
    result = {
        "arm": arm, "labels": labels, "seed": seed, "gold": measurement.points[-1][2], "KL": measurement.points[-1][1],
        "steps to +0.5": risen, "seconds to +0.5": None if risen is None else round(measurement.seconds[risen], 1),
        "points": measurement.points, "seconds": round(measurement.seconds[-1], 1), "steps": run.trainer.steps_done,
        "beta": beta, "budget": budget,
    } | {f"gold at KL {kl:g}": gold_at(measurement.points, kl) for kl in COMPARED_KLS}  # fmt: skip
    log(
        f"seed {seed} {arm:<6} {labels} labels  "
        + " ".join(f"{s}:{kl:.1f}:{gold:+.2f}" for s, kl, gold in measurement.points)
        + f"  beta {min(beta):.2f} to {max(beta):.2f}, within ten steps by a factor of {largest_swing(beta):.1f}"
    )
    return result


def largest_swing(values: Sequence[float], steps: int = 10) -> float:
    """The largest ratio of two values within so many steps."""
    windows = [values[i : i + steps] for i in range(max(1, len(values) - steps + 1))]
    return max(max(window) / min(window) for window in windows)


def measure_base(
    args: argparse.Namespace, model_cache: ModelCache, project: Project, judge: Judge
) -> tuple[Base, list[str]]:
    backbone, adapters = model_cache.load_project(project)
    unique = [prompt.text for prompt in prompts(model_cache.db, project.id, "eval")]
    eval_prompts = [unique[i % len(unique)] for i in range(args.eval_texts)]
    with adapters.using(None):
        samples = sample_responses(
            backbone, eval_prompts * 2, seed=1, purpose="benchmark base", max_new_tokens=project.max_new_tokens,
            temperature=project.temperature,
        )  # fmt: skip
    gold = [judge.score(prompt, text) for prompt, text in zip(eval_prompts * 2, samples.texts, strict=True)]
    return Base(statistics.fmean(gold), statistics.stdev(gold)), eval_prompts


def table(rows: list[dict[str, Any]]) -> str:
    columns = [
        *(f"gold at KL {kl:g}" for kl in COMPARED_KLS),
        "gold",
        "KL",
        "steps to +0.5",
        "seconds to +0.5",
        "seconds",
    ]
    lines = ["| arm | labels | " + " | ".join(columns) + " |", "|---" * (2 + len(columns)) + "|"]
    for arm, labels in dict.fromkeys((row["arm"], row["labels"]) for row in rows):
        own = [row for row in rows if (row["arm"], row["labels"]) == (arm, labels)]
        lines.append(f"| {arm} | {labels} | " + " | ".join(cell([row[name] for row in own]) for name in columns) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--judge", default="cheerful")
    parser.add_argument("--noise", type=float, default=0.0, help="of the judge, in sd; 100: its labels are coin flips")
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--arms", nargs="+", default=["live", "first"])
    parser.add_argument("--labels", type=int, nargs="+", default=[20, 40, 60])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--more-steps", action="store_true", help="a live run also trains while it is labelled")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--rule", choices=RULES, default="accuracy", help="how the KL budget grows with evidence")
    parser.add_argument("--eval-texts", type=int, default=128)
    parser.add_argument("--set", dest="changes", action="append", default=[], type=lambda text: tuple(text.split("=")))
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    setattr(live_run, "evidence_budget", RULES[args.rule])  # noqa: B010  for mypy
    rows = []
    for seed in args.seeds:
        with tempfile.TemporaryDirectory(prefix="rlhf-lab-live-") as folder:
            rows += run_seed(args, seed, Path(folder))
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
