"""The experiments of the screen Learn, by seed: gold at the start, at its best and at the end, KL, clip fraction, CPU seconds.

    python benchmarks/experiments.py --seeds 0 1 2 3 4

Gold is the judge's score of the step's own samples, in standard deviations of its scores of the shipped pairs; "best" and "end"
are means of five steps. Seconds are those of reward model and run together.
"""

import argparse
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

from algorithms import log

from rlhf_lab.common.enums import JobKind
from rlhf_lab.engine.job_handlers import reward_job
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.experiments import EXPERIMENTS, JUDGE, start_experiment
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import newest_pairs
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import runs

METRICS = {"gold": "objective/gold", "score": "objective/scores", "KL": "objective/kl", "clip": "policy/clipfrac_avg"}
WINDOW = 5


def measure(name: str, seed: int, home: Path) -> str:
    with Database.open(home) as db:
        cache = ModelCache(home, db)
        project = start_experiment(db, home, name, seed)
        judge = load_judge(JUDGE)
        pairs = newest_pairs(db, project.id, 100)
        sd = statistics.stdev(judge.score(p.prompt.text, side.text) for p in pairs for side in (p.first, p.second))
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
    parser.add_argument("--names", nargs="+", default=list(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    for name in args.names:
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as folder:
                log(measure(name, seed, Path(folder)))


if __name__ == "__main__":
    main()
