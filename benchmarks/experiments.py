"""The experiments of the screen Learn, by seed: gold at the start, at its best and at the end, KL, clip fraction, CPU seconds.

    python benchmarks/experiments.py --seeds 0 1 2 3 4
    python benchmarks/experiments.py --seeds 0 1 2 3 4 --names no-penalty random-labels --brake --steps 400
    python benchmarks/experiments.py --seeds 0 1 2 3 4 --names flaw --brake --steps 90

Gold is the judge's score of the step's own samples, in standard deviations of its scores of the shipped pairs; "best" and "end"
are means of five steps. Seconds are those of reward model and run together. With --brake nothing holds the policy near the
base, the run has a brake, and the judge answers one blind pair after each step, until the brake stops the run or --steps are
over. "flaw" (with --brake) has the settings and the KL budget of the form, and a planted flaw: beside the reward model, the
reward pays 6 for each "grief", up to three in a text, a word that the judge dislikes.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

from algorithms import log

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import JobKind, Source
from rlhf_lab.common.records import Project
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.job_handlers import RewardRequest, reward_job, train_reward_model
from rlhf_lab.engine.live_run import JUDGE_KEY
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.experiments import EXPERIMENTS, JUDGE, MAX_LABELS, Experiment, start_experiment
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import builtin_judge
from rlhf_lab.quality.brake import pause_payload, pause_text
from rlhf_lab.rewards.terms import REWARDS_FOLDER, TERMS_KEY, parse_lines, term_records
from rlhf_lab.store.database import Database
from rlhf_lab.store.live_runs import live_answers
from rlhf_lab.store.projects import newest_pairs
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import create_run, runs

METRICS = {"gold": "objective/gold", "score": "objective/scores", "KL": "objective/kl", "clip": "policy/clipfrac_avg"}
WINDOW = 5
FLAW = "flaw"
FLAW_TERM = """def reward(prompt, response):
    return 6.0 * min(3, response.lower().count("grief"))
"""


def measure_brake(name: str, seed: int, home: Path, steps: int) -> str:
    """Answers and steps from gold's best to the stop by the brake, and the gold lost until then."""
    with Database.open(home) as db:
        cache = ModelCache(home, db)
        experiment = Experiment(FLAW, "", "") if name == FLAW else EXPERIMENTS[name]
        project = new_project(db, model=EMBEDDED_MODEL, prompt_set="tales", seed=seed, name=name)
        label_with_judge(db, project.id, builtin_judge(JUDGE), MAX_LABELS, noise=experiment.noise, seed=seed)
        reward_model = train_reward_model(cache, project, RewardRequest(RewardConfig(seed=seed), Source.SIMULATED))
        settings = {} if name == FLAW else EXPERIMENTS["no-penalty"].settings
        config = replace(experiment, settings={**settings, "steps": steps, "brake_every": 1}).config(project)
        manifest: dict[str, Any] = {"judge": JUDGE, JUDGE_KEY: {"every": 1, "noise": 0.0}}
        if name == FLAW:
            (home / REWARDS_FOLDER).mkdir()
            (home / REWARDS_FOLDER / "flaw.py").write_text(FLAW_TERM, encoding="utf-8")
            manifest[TERMS_KEY] = term_records(parse_lines("flaw.py", home, with_model=True))
        run = create_run(
            db, project.id, reward_model.id, name, config=config.to_dict(), total_steps=steps, manifest=manifest
        )
        PolicyRun(cache, run.id).execute()
        sd = judge_sd(db, project)
        gold = [point[1] / sd for point in metric_series(db, run.id, [METRICS["gold"]])[METRICS["gold"]]]
        answers = live_answers(db, run.id)
        stop = pause_payload(db, run.id)
    means = [statistics.fmean(gold[i : i + WINDOW]) for i in range(len(gold) - WINDOW + 1)]
    best = max(range(len(means)), key=means.__getitem__)
    best_step = best + WINDOW // 2 + 1
    decided = [step for step, answer in enumerate(answers, 1) if answer.won is not None]  # one answer after each step
    after = [step for step in decided if step > best_step]
    end = "not stopped" if stop is None else f"stopped ({pause_text(stop)})"
    return (
        f"{name:<14} seed {seed}: gold best {means[best]:+.2f} at step {best_step}, end {means[-1]:+.2f}, lost "
        f"{means[best] - means[-1]:.2f}; {end} after {len(gold)} steps, {len(gold) - best_step} after the best; "
        f"{len(decided)} decided answers, {len(after)} of them after the best"
    )


def judge_sd(db: Database, project: Project) -> float:
    """The standard deviation of the judge's scores of the shipped pairs."""
    judge, pairs = builtin_judge(JUDGE), newest_pairs(db, project.id, 100)
    return statistics.stdev(judge.score(p.prompt.text, side.text) for p in pairs for side in (p.first, p.second))


def measure(name: str, seed: int, home: Path) -> str:
    with Database.open(home) as db:
        cache = ModelCache(home, db)
        project = start_experiment(db, home, name, seed)
        sd = judge_sd(db, project)
        started_at = time.process_time()
        for job in queue.jobs(db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD]):
            reward_job(cache, job)
        (run,) = runs(db, project.id)
        PolicyRun(cache, run.id).execute()
        seconds = time.process_time() - started_at
        curves = {
            short: [point[1] for point in metric_series(db, run.id, [full])[full]] for short, full in METRICS.items()
        }
    gold = [value / sd for value in curves["gold"]]
    means = [statistics.fmean(gold[i : i + WINDOW]) for i in range(len(gold) - WINDOW + 1)]
    best = max(range(len(means)), key=means.__getitem__)
    rises = sum(later > earlier for earlier, later in pairwise(curves["score"]))
    return (
        f"{name:<14} seed {seed}: gold {gold[0]:+.2f}, best {means[best]:+.2f} at step {best + 1}, end {means[-1]:+.2f}; "
        f"score {curves['score'][0]:+.1f} to {curves['score'][-1]:+.1f} ({rises} rises); KL {curves['KL'][-1]:.1f}; "
        f"clip fraction up to {max(curves['clip']):.2f}, last {curves['clip'][-1]:.2f}; {seconds:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", choices=[*EXPERIMENTS, FLAW], default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--brake", action="store_true")
    parser.add_argument("--steps", type=int, default=400, help="with --brake: at most")
    args = parser.parse_args()
    if FLAW in args.names and not args.brake:
        parser.error(f"{FLAW} is measured with --brake only")
    for name in args.names:
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder)
                log(measure_brake(name, seed, home, args.steps) if args.brake else measure(name, seed, home))


if __name__ == "__main__":
    main()
