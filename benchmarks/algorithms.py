"""Comparison of all algorithms on the same labels; of ppo and best-of-n; and overoptimisation without a KL penalty.

    python benchmarks/algorithms.py --seeds 5                         gold, KL and seconds of each, with its recommended settings
    python benchmarks/algorithms.py --model FOLDER --judge concise --set batch_size=16        the same on a model of a folder
    python benchmarks/algorithms.py --frontier --seeds 5              gold over sqrt(KL): ppo along its run, best-of-n of the base
    python benchmarks/algorithms.py --overoptimise --steps 400        proxy and gold with KL (and clip) off, beside the preset
    python benchmarks/algorithms.py --algorithms ppo --dtype bfloat16 --seeds 5     the same labels in half precision
    python benchmarks/algorithms.py --algorithms trpo --set max_kl=0.02 --set cg_iters=5
    python benchmarks/algorithms.py --algorithms ppo --seeds 5 --health               whether clipping and values do anything

Each mode prints a table, and writes a JSON file with --out. A simulated judge labels the pairs; its score is the gold, in
standard deviations of the base above the base. Evaluation samples are fresh, on prompts that were not trained on. Gold at a KL
is interpolated between the evaluations, --every steps apart, before and after the run first reaches that KL. Seconds are those
of the training alone, in CPU time.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import algorithm_figures
import torch

from rlhf_lab.common.algorithms import ALGORITHMS, spec_of
from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Comparison
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.embedded_model.corpus import generate_documents
from rlhf_lab.engine.job_handlers import RewardRequest, train_reward_model
from rlhf_lab.engine.label_preparation import prepare_labels
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import Judge, load_judge
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import prompts
from rlhf_lab.training.evaluation import (
    Mean,
    best_of_n,
    best_of_n_kl,
    distinct_2,
    mean,
    sample_responses,
    sequence_kl,
)
from rlhf_lab.training.offline.trainer import OfflineTrainer
from rlhf_lab.training.policy.metrics import UpdateStats
from rlhf_lab.training.policy.rollout import Rollout
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

SAMPLES_PER_PROMPT = 16  # base samples
COMPARED_KLS = (2.0, 4.0)  # nats per response
#: 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Experiment(NamedTuple):
    """Shared by all runs of a seed: labels, reward model, scores of the base.

    Attributes:
        base_scores, base_gold: of the base's samples, one row per prompt.
        gold_sd: standard deviation of the base's gold.
    """

    seed: int
    backbone: Backbone
    adapters: Adapters
    reward_model: RewardModel
    judge: Judge
    temperature: float
    labels: list[Comparison]
    train_prompts: list[str]
    eval_prompts: list[str]
    base_scores: list[list[float]]
    base_gold: list[list[float]]
    gold_sd: float

    def gold_gain(self, gold: float) -> float:
        """A gold score relative to the base's mean, in its sd."""
        return (gold - statistics.fmean(map(statistics.fmean, self.base_gold))) / self.gold_sd


def prepare_experiment(args: argparse.Namespace, model_cache: ModelCache, db: Database, seed: int) -> Experiment:
    """Label pairs, train the reward model, sample the base."""
    judge = load_judge(args.judge)
    project = new_project(db, model=args.model, prompt_set=judge.prompt_set, seed=seed, name=f"seed {seed}")
    sample_pairs(model_cache, project, PairRequest(args.labels))
    label_with_judge(db, project.id, judge, args.labels, noise=0.0, seed=seed)
    reward_config = RewardConfig(seed=seed, last_weight=args.last_weight)
    row = train_reward_model(model_cache, project, RewardRequest(reward_config, Source.SIMULATED))
    backbone, adapters = model_cache.load_project(project)
    reward_model = model_cache.reward_model(row.id, "reward")
    unique_prompts = [prompt.text for prompt in prompts(db, project.id, "eval")]
    eval_prompts = [unique_prompts[i % len(unique_prompts)] for i in range(args.eval_prompts)]
    repeated_prompts = [text for text in eval_prompts for _ in range(SAMPLES_PER_PROMPT)]
    with adapters.using(None):
        base_samples = sample_responses(
            backbone,
            repeated_prompts,
            seed=seed,
            purpose="benchmark base",
            max_new_tokens=args.length,
            temperature=project.temperature,
        )
    scores = reward_model.scores(base_samples.prompts, base_samples.tokens).tolist()
    gold = list(map(judge.score, repeated_prompts, base_samples.texts))
    prompt_slices = [slice(i, i + SAMPLES_PER_PROMPT) for i in range(0, len(repeated_prompts), SAMPLES_PER_PROMPT)]
    train_prompts = [prompt.text for prompt in prompts(db, project.id, "train")]
    return Experiment(
        seed,
        backbone,
        adapters,
        reward_model,
        judge,
        project.temperature,
        prepare_labels(db, row.snapshot, backbone, {}).labels,
        train_prompts,
        eval_prompts,
        [scores[i] for i in prompt_slices],
        [gold[i] for i in prompt_slices],
        statistics.stdev(gold),
    )


def make_config(args: argparse.Namespace, experiment: Experiment, algorithm: str, **changes: Any) -> PolicyConfig:
    """The recommended config of the algorithm with `changes`, then those of the command line."""
    shared: dict[str, Any] = {
        "steps": args.steps, "max_new_tokens": args.length, "temperature": experiment.temperature, "seed": experiment.seed,
    } | ({} if spec_of(algorithm).is_offline else {"token_rows": 0, "sample_every": 10_000})  # fmt: skip
    return PolicyConfig.for_algorithm(algorithm, **(shared | changes | args.changes))


def make_trainer(experiment: Experiment, config: PolicyConfig) -> PolicyTrainer:
    texts = generate_documents(experiment.seed, 512, 0) if config.ptx_coef > 0 else []
    task = PolicyTask(
        experiment.train_prompts, experiment.reward_model, gold=experiment.judge.score, ptx_texts=texts,
        labels=experiment.labels,
    )  # fmt: skip
    trainer = OfflineTrainer if config.is_offline else PolicyTrainer
    return trainer(experiment.backbone, experiment.adapters, task, config)


def evaluate_policy(experiment: Experiment, trainer: PolicyTrainer) -> tuple[Mean, Mean]:
    """(gold gain, KL) of the current policy on fresh samples for the evaluation prompts."""
    config = trainer.state.config
    with experiment.adapters.using(trainer.state.policy.adapter, merged=True):
        prompts = experiment.eval_prompts * 2
        samples = sample_responses(
            experiment.backbone, prompts, seed=experiment.seed, purpose="benchmark policy",
            max_new_tokens=config.max_new_tokens, temperature=config.temperature,
        )  # fmt: skip
    gold = mean([experiment.gold_gain(score) for score in map(experiment.judge.score, prompts, samples.texts)])
    return gold, sequence_kl(trainer.state.policy, samples, config.temperature)


HEALTH_COLUMNS = (
    "clip fraction, steps 4 to 25", "explained variance", "ridge", "scores clipped", "highest KL", "variety",
)  # fmt: skip


class Health:
    """Whether clipping and values do anything in a run: measurements of each step, for the table of `--health`.

    clipfracs: of the last update of each step. explained: (values, ridge), the explained variance of the rewards-to-go.
    """

    def __init__(self, trainer: PolicyTrainer) -> None:
        self.trainer, self.update = trainer, trainer.update
        self.clipfracs: list[float] = []
        self.explained: list[tuple[float, float]] = []
        trainer.update = self.measured_update  # type: ignore[method-assign]

    def measured_update(self, rollout: Rollout, lr: float) -> UpdateStats:
        mask = rollout.batch.mask
        with torch.no_grad():
            states = self.trainer.state.policy.prediction_states(rollout.batch)[mask].double()
        targets = rollout.rewards.double().flip(1).cumsum(1).flip(1)[mask]
        rows = torch.arange(len(mask))[:, None].expand(mask.shape)[mask]
        ridge = max(explained_by_ridge(states, targets, rows, penalty) for penalty in (0.01, 0.1, 1.0, 10.0))
        self.explained.append((explained_variance(rollout.values[mask].double(), targets), ridge))
        stats = self.update(rollout, lr)
        self.clipfracs.append(float(stats.history[-1].get("clipfrac", 0.0)))
        return stats

    def columns(self, metrics: list[dict[str, float]], texts: list[str], base_texts: list[str]) -> dict[str, Any]:
        values, ridge = (statistics.fmean(column) for column in zip(*self.explained[-10:], strict=True))
        clipped = statistics.fmean(row.get("objective/score_clipfrac", 0.0) for row in metrics[-10:])
        highest_kl, variety = max(row["objective/kl"] for row in metrics), distinct_2(texts) / distinct_2(base_texts)
        measured = (statistics.fmean(self.clipfracs[3:25]), values, ridge, clipped, highest_kl, variety)
        return dict(zip(HEALTH_COLUMNS, measured, strict=True))


def explained_variance(predictions: torch.Tensor, targets: torch.Tensor) -> float:
    return float(1 - (targets - predictions).var() / targets.var())


def explained_by_ridge(states: torch.Tensor, targets: torch.Tensor, rows: torch.Tensor, penalty: float) -> float:
    """Explained variance of ridge predictions, each from a fit to three quarters of the responses without its own.

    states: (N, H) of N tokens; rows: (N,) the response of each; penalty: for states of mean variance 1.
    """
    predictions = torch.zeros_like(targets)
    for fold in range(4):
        held_out, fitted = rows % 4 == fold, rows % 4 != fold
        center, mean_target = states[fitted].mean(0), targets[fitted].mean()
        x = states[fitted] - center
        gram = x.T @ x / len(x)
        gram.diagonal().add_(penalty * gram.diagonal().mean())
        weights = torch.linalg.solve(gram, x.T @ (targets[fitted] - mean_target) / len(x))
        predictions[held_out] = (states[held_out] - center) @ weights + mean_target
    return explained_variance(predictions, targets)


def sampled_texts(experiment: Experiment, config: PolicyConfig, adapter: str | None) -> list[str]:
    """A text of the policy, or of the base (None), for each evaluation prompt."""
    with experiment.adapters.using(adapter, merged=adapter is not None):
        return sample_responses(
            experiment.backbone, experiment.eval_prompts, seed=experiment.seed, purpose="variety",
            max_new_tokens=config.max_new_tokens, temperature=config.temperature,
        ).texts  # fmt: skip


def run_algorithms(args: argparse.Namespace, experiment: Experiment) -> list[dict[str, Any]]:
    """One run of each algorithm, evaluated along the way."""
    rows = []
    for name in args.algorithms:
        trainer, seconds = make_trainer(experiment, make_config(args, experiment, name)), 0.0
        health, metrics = Health(trainer) if args.health else None, []
        evaluations = [(0, 0.0, 0.0)]  # step, KL, gold
        while trainer.steps_done < args.steps:
            start_time = time.process_time()
            result = trainer.run_step()
            seconds += time.process_time() - start_time
            metrics.append(result.metrics)
            if result.step % args.every == 0 or result.step == args.steps:
                gold, kl = evaluate_policy(experiment, trainer)
                evaluations.append((result.step, round(kl.value, 4), round(gold.value, 4)))
        row = {
            "algorithm": name, "seed": experiment.seed, "gold": gold.value, "gold_se": gold.standard_error, "kl": kl.value,
            "proxy": result.metrics["objective/scores"], "seconds": seconds, "evaluations": evaluations,
        } | {f"gold at KL {target:g}": gold_at(evaluations, target) for target in COMPARED_KLS}  # fmt: skip
        if health is not None:
            config, adapter = trainer.state.config, trainer.state.policy.adapter
            texts = [sampled_texts(experiment, config, source) for source in (adapter, None)]
            row |= health.columns(metrics, *texts)
        rows.append(row)
        log(f"seed {experiment.seed} {name:<12} gold {gold.value:+.2f} (se {gold.standard_error:.2f})  KL {kl.value:6.2f}  "
            f"{seconds:6.1f} s  " + " ".join(f"{kl:.1f}:{gold:+.2f}" for _, kl, gold in evaluations))  # fmt: skip
    return rows


def gold_at(evaluations: list[tuple[int, float, float]], kl: float) -> float | None:
    """Gold where a run first reaches the KL, linear between two evaluations (step, KL, gold); none where it does not."""
    for (_, kl_before, gold_before), (_, kl_after, gold_after) in itertools.pairwise(evaluations):
        if kl_before < kl <= kl_after:
            return gold_before + (gold_after - gold_before) * (kl - kl_before) / (kl_after - kl_before)
    return None


def frontier(args: argparse.Namespace, experiment: Experiment) -> list[dict[str, Any]]:
    """ppo at several steps of its run, and best-of-n of the base."""
    rows = []
    for n in (1, 2, 4, 8, 16):
        best = best_of_n(n, experiment.base_scores, experiment.base_gold)
        rows.append(
            {
                "what": f"best of {n}",
                "seed": experiment.seed,
                "kl": best_of_n_kl(n),
                "gold": experiment.gold_gain(best.value),
            }
        )
    trainer = make_trainer(experiment, make_config(args, experiment, "ppo"))
    for _ in range(args.steps):
        step = trainer.run_step().step
        if step % args.every == 0 or step == args.steps:
            gold, kl = evaluate_policy(experiment, trainer)
            rows.append({"what": f"ppo step {step}", "seed": experiment.seed, "kl": kl.value, "gold": gold.value})
            log(f"seed {experiment.seed} ppo step {step:>3}  gold {gold.value:+.2f}  KL {kl.value:6.2f}")
    return rows


def overoptimise(args: argparse.Namespace, experiment: Experiment) -> list[dict[str, Any]]:
    """The same long run without KL penalty and score clip, without KL penalty, and with the preset."""
    rows = []
    arms: dict[str, dict[str, Any]] = {
        "KL and clip off": {"beta": 0.0, "score_clip": None},
        "KL off": {"beta": 0.0},
        "preset": {},
    }
    for arm, changes in arms.items():
        config = make_config(args, experiment, "ppo", lr_schedule="constant", **changes)
        trainer, window = make_trainer(experiment, config), max(1, args.every)
        steps = [trainer.run_step().metrics for _ in range(args.steps)]
        for end in range(window, args.steps + 1, window):
            window_steps = steps[end - window : end]
            proxy, kl = (
                statistics.fmean(step[key] for step in window_steps) for key in ("objective/scores", "objective/kl")
            )
            gold = experiment.gold_gain(statistics.fmean(step["objective/gold"] for step in window_steps))
            rows.append(
                {
                    "what": f"{arm}, to step {end}",
                    "run": arm,
                    "step": end,
                    "seed": experiment.seed,
                    "kl": kl,
                    "gold": gold,
                    "proxy": proxy,
                }
            )
            log(f"seed {experiment.seed} {arm:<7} to step {end:>4}  proxy {proxy:+.2f}  gold {gold:+.2f}  KL {kl:6.1f}")
    return rows


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: list[dict[str, Any]], key: str, columns: list[str]) -> str:
    """A Markdown table of the mean over the seeds and half of its 95 % interval, one row for each value of `key`."""
    lines = [f"| {key} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(row[key] for row in rows):
        cells = [cell([row[column] for row in rows if row[key] == name]) for column in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(values: list[float | None]) -> str:
    """Mean ± half of its 95 % interval, and of how many seeds where not all have a value."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return "not reached"
    half = STUDENT_T[len(known) - 2] * statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    share = f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
    return f"{statistics.fmean(known):.2f}{'' if half is None else f' ± {half:.2f}'}{share}"


MODES: dict[str, tuple[Callable[[argparse.Namespace, Experiment], list[dict[str, Any]]], str, list[str]]] = {
    "algorithms": (run_algorithms, "algorithm", ["gold at KL 2", "gold at KL 4", "gold", "kl", "proxy", "seconds"]),
    "frontier": (frontier, "what", ["sqrt_kl", "kl", "gold"]),
    "overoptimise": (overoptimise, "what", ["proxy", "gold", "kl"]),
}


def parse_changes(assignments: list[str]) -> dict[str, Any]:
    """["name=value", …] as typed settings of PolicyConfig."""
    settings = {item.name: item for item in fields_of(PolicyConfig)}
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        setting_type = settings[name].type
        changes[name] = None if value == "none" else value == "true" if setting_type is bool else setting_type(value)
    return changes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    for name in ("frontier", "overoptimise"):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name, default="algorithms")
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=PolicyConfig().steps)
    parser.add_argument("--every", type=int, default=5, help="steps between points of a curve")
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument("--last-weight", type=float, default=RewardConfig().last_weight, help="of the reward head")
    parser.add_argument("--judge", default="cheerful")
    parser.add_argument("--model", default="embedded")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default=None, help="of the frozen weights (default: as usual)"
    )
    parser.add_argument("--eval-prompts", type=int, default=128, help="prompts to evaluate on, twice each")
    parser.add_argument("--length", type=int, default=PolicyConfig().max_new_tokens, help="longest response, in tokens")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--health", action="store_true", help="also measure clipping, values and variety (ppo)")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None, help="FILE.html for the curves of the two other modes")
    args = parser.parse_args()
    args.changes = parse_changes(args.changes)
    function, key, columns = MODES[args.mode]
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        with tempfile.TemporaryDirectory(prefix="algorithms-") as home, Database.open(Path(home)) as db:
            model_cache = ModelCache(Path(home), db, dtype=getattr(torch, args.dtype) if args.dtype else None)
            rows += function(args, prepare_experiment(args, model_cache, db, seed))
    for row in rows:
        row["sqrt_kl"] = math.sqrt(max(0.0, row["kl"]))
    if args.health:
        columns = [*columns, *HEALTH_COLUMNS]
    text = table(rows, key, columns)
    if args.out is not None:
        args.out.write_text(json.dumps({"mode": args.mode, "rows": rows, "table": text}, indent=1), encoding="utf-8")
    if args.plot is not None and args.mode != "algorithms":
        algorithm_figures.write_figure(args.mode, rows, args.plot)
    print(text)


if __name__ == "__main__":
    main()
