"""A home whose engine is a real process on the embedded model."""

import contextlib
import os
import sys
import time
from pathlib import Path

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import metrics_since
from rlhf_lab.store.runs import create_run

ROOT = Path(__file__).resolve().parents[2]
CONFIG = PolicyConfig(
    steps=5, batch_size=4, minibatches=2, epochs=1, checkpoint_every=2, max_new_tokens=24, sample_every=5
)
PATIENCE_S = 120


class Home:
    """A lab's home, with the actions of a page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = Database.open(folder)
        self.project = new_project(self.db)

    def engine(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, "-m", "rlhf_lab.engine", "--home", str(self.folder)]
        engine_process.ensure_engine(self.db, self.folder, command)

    def done(self, job):
        """Wait until a job has ended and return it; the engine is restarted whenever it has died."""
        for _ in range(PATIENCE_S * 10):
            self.engine()
            now = queue.get_job(self.db, job.id)
            if now.status not in UNFINISHED_JOB_STATUSES:
                return now
            time.sleep(0.1)
        raise AssertionError(f"job {job.id} did not end: {(self.folder / 'engine.log').read_text()[-2000:]}")

    def submit(self, kind, **payload):
        return queue.submit(self.db, kind, self.project.id, payload)

    def run(self, reward_model_id, **changes):
        config = CONFIG.replace(**changes)
        run = create_run(
            self.db,
            self.project.id,
            reward_model_id,
            "a run",
            config=config.to_dict(),
            manifest={},
            total_steps=config.steps,
        )
        return run, self.submit(JobKind.TRAIN_POLICY, run_id=run.id)

    def curve(self, run):
        return {
            step: {k: v for k, v in metrics.items() if not k.startswith(("time/", "memory/")) and k != "eps"}
            for step, metrics in metrics_since(self.db, run.id, 0)
        }

    def times(self, run):
        return [metrics for _, metrics in metrics_since(self.db, run.id, 0)]

    def await_steps(self, run, count):
        for i in range(PATIENCE_S * 20):
            if i % 20 == 0:
                self.engine()  # as the page does: a killed engine may take a moment to end
            if len(metrics_since(self.db, run.id, 0)) >= count:
                return
            time.sleep(0.05)
        raise AssertionError("the run made no step")

    def kill(self):
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(engine_process.engine_state(self.db).row.process.pid, 9)
