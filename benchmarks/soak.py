"""A lab under load for an hour: 30 programs label, PPO runs follow one another, page and engine are killed repeatedly, and
the lab saves itself to a simulated Hub on this machine that is slow and sometimes fails.

    python benchmarks/soak.py --minutes 60 --json
    python benchmarks/soak.py --minutes 4 --kill-page 1 --kill-engine 1.4 --settle 1 --json     a trial of the program itself

At the end every vote is reconciled with the replies that the programs got, and a new home is restored from the Hub and compared
with the old one. Every 10 s the resident memory and the open descriptors of page and engine are measured. A killed process
starts again, so each process is represented by its last minute: `rss_slope_mib_per_10min` is the slope of these medians over
the time after --settle, and `rss_slope_within` the median of the slopes within a process's life, without its first minute.
`descriptors_spread` is the difference between the most and the fewest descriptors in these last minutes (medians).
`mirror_lag`: how old the copy on the Hub was, in seconds, while the page had been running for a minute at least.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from labellers import Client, Page, reconcile, wait_for_job

from rlhf_lab.backup.hub_mirror import HubMirror
from rlhf_lab.backup.hub_repository import HubRepository
from rlhf_lab.backup.mirror_records import read_state
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, JobKind
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.mirror_loop import MIRROR_VARIABLE
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import set_labelling_config
from rlhf_lab.store.runs import runs

REPOSITORY, TOKEN = "someone/lab", "hf_test_write"  # tests/support/mirror_hub.py accepts this token
MEASURE_INTERVAL_S, LAST_MINUTE_S, WARM_UP_S = 10.0, 60.0, 60.0


class Sample(NamedTuple):
    """at: seconds since the programs began. age: seconds since the process began. rss: MiB."""

    at: float
    age: float
    rss: float
    descriptors: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--kill-page", type=float, default=5.0, help="minutes from one kill of the page to the next")
    parser.add_argument(
        "--kill-engine", type=float, default=7.0, help="minutes from one kill of the engine to the next"
    )
    parser.add_argument("--settle", type=float, default=10.0, help="minutes before the memory counts")
    parser.add_argument("--run-steps", type=int, default=60, help="steps of each PPO run")
    parser.add_argument("--pairs", type=int, default=256, help="pairs written before the programs come")
    parser.add_argument("--hub-slow", type=float, default=0.1, help="seconds before each answer of the Hub")
    parser.add_argument("--hub-faults", type=float, default=0.02, help="share of requests to the Hub that fail")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(running_hub(folder, args))
        result = measure(folder, args)
    print(json.dumps(result) if args.json else "\n".join(f"{key:36} {value}" for key, value in result.items()))
    return int(any(result[name] for name in ("lost", "doubled", "pair_twice_to_one", "failed", "restored_differs")))


@contextmanager
def running_hub(folder: Path, args: argparse.Namespace) -> Iterator[None]:
    """The Hub as a process; this process and those that it starts talk to it from now on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {
        "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(folder / "cache"), "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1", MIRROR_VARIABLE: REPOSITORY,
    }  # fmt: skip
    command = [
        sys.executable, str(ROOT / "tests/support/mirror_hub.py"), str(folder / "hub"), "--port", str(port),
        "--slow", str(args.hub_slow), "--fault-share", str(args.hub_faults),
    ]  # fmt: skip
    hub = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        hub.kill()
        hub.wait()


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    home = folder / "home"
    with Database.open(home) as db:
        project = new_project(db)
        set_labelling_config(db, project.id, LabellingConfig(overlap=args.clients, hold_s=60))
        page = Page(home)
        page.start()
        try:
            wait_for_job(db, home, queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": args.pairs}))
            label_with_judge(db, project.id, load_judge("cheerful"), 60)
            payload = {"source": "simulated", "labels": 60}
            wait_for_job(db, home, queue.submit(db, JobKind.TRAIN_REWARD, project.id, payload))
            lab = LoadedLab(db, home, project.id, page, args)
            result = lab.run()
            assert page.process is not None
            page.process.send_signal(signal.SIGTERM)  # it saves once more
            page.process.wait(120)
        finally:
            page.kill()
            engine_process.stop_engine(db, home)
        restored = folder / "restored"
        for _ in range(20):
            with suppress(Exception):  # the Hub fails sometimes
                HubMirror(restored, HubRepository(REPOSITORY)).restore()
                break
        return result | {"restored_differs": votes_of(restored) != votes_of(home)}


def votes_of(home: Path) -> list[tuple[Any, ...]]:
    with Database.open(home) as db, db.read() as conn:
        return [tuple(row) for row in conn.exec_driver_sql("SELECT * FROM votes ORDER BY id")]


class LoadedLab:
    """The programs, and what happens to the lab meanwhile."""

    def __init__(self, db: Database, home: Path, project_id: int, page: Page, args: argparse.Namespace) -> None:
        self.db, self.home, self.project_id, self.page, self.args = db, home, project_id, page, args
        self.start = time.monotonic()
        self.samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)  # by "page" or "engine", and process id
        self.lags: list[float] = []
        self.page_kills = self.engine_kills = 0

    def run(self) -> dict[str, Any]:
        end = self.start + 60 * self.args.minutes
        clients = [Client(number, self.page.url, end) for number in range(self.args.clients)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        next_page_kill = self.start + 60 * self.args.kill_page
        next_engine_kill = self.start + 60 * self.args.kill_engine
        next_measurement = self.start
        while (now := time.monotonic()) < end:
            self.continue_training()
            if now >= next_measurement:
                self.take_samples()
                next_measurement += MEASURE_INTERVAL_S
            if now >= next_page_kill:
                self.page.kill()
                self.page.start()
                self.page_kills += 1
                next_page_kill += 60 * self.args.kill_page
            if now >= next_engine_kill:
                self.kill_engine()
                next_engine_kill += 60 * self.args.kill_engine
            time.sleep(1.0)
        for thread in threads:
            thread.join()
        return reconcile(self.db, clients) | self.figures()

    def continue_training(self) -> None:
        if not any(run.status in ACTIVE_RUN_STATUSES for run in runs(self.db, self.project_id)):
            run_control.start_run(self.db, self.home, self.project_id, PolicyConfig(steps=self.args.run_steps), None)

    def kill_engine(self) -> None:
        row = engine_process.engine_state(self.db).row
        if row is not None:
            with suppress(ProcessLookupError):
                os.kill(row.process.pid, signal.SIGKILL)
                self.engine_kills += 1

    def take_samples(self) -> None:
        assert self.page.process is not None
        engine = engine_process.engine_state(self.db).row
        processes = {"page": self.page.process.pid} | ({"engine": engine.process.pid} if engine is not None else {})
        for name, pid in processes.items():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                age = time.time() - process.create_time()
                rss = process.memory_info().rss / 2**20
                at = time.monotonic() - self.start
                self.samples[name, pid].append(Sample(at, age, rss, process.num_fds()))
                state = read_state(self.home)
                if name == "page" and age > LAST_MINUTE_S and state is not None and state.saved_at is not None:
                    self.lags.append(time.time() - state.saved_at)

    def figures(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "minutes": self.args.minutes, "page_kills": self.page_kills, "engine_kills": self.engine_kills,
            "runs": len(runs(self.db, self.project_id)), "run_states": sorted({run.status.value for run in runs(self.db)}),
        }  # fmt: skip
        if self.lags:
            result |= {"mirror_lag_p50_s": statistics.median(self.lags), "mirror_lag_max_s": max(self.lags)}
        for name in ("page", "engine"):
            lives = [samples for (kind, _), samples in self.samples.items() if kind == name]
            result |= {f"{name}_{key}": value for key, value in life_figures(lives, 60 * self.args.settle).items()}
        return {key: round(value, 2) if isinstance(value, float) else value for key, value in result.items()}


def life_figures(lives: list[list[Sample]], settle_s: float) -> dict[str, float]:
    """lives: the samples of each process, in order. Nothing where there is too little to measure."""
    figures: dict[str, float] = {}
    ends, trends = [], []
    for samples in lives:
        last = [
            sample for sample in samples if sample.at > samples[-1].at - LAST_MINUTE_S and sample.age > WARM_UP_S / 2
        ]
        if last and last[-1].at > settle_s:
            ends.append(
                (last[-1].at, statistics.median(s.rss for s in last), statistics.median(s.descriptors for s in last))
            )
        warm = [sample for sample in samples if sample.age > WARM_UP_S and sample.at > settle_s]
        if len(warm) > 5:
            trends.append(600 * float(np.polyfit([s.at for s in warm], [s.rss for s in warm], 1)[0]))
    if len(ends) > 1:
        at, rss, descriptors = np.array(ends).T
        figures |= {
            "rss_slope_mib_per_10min": 600 * float(np.polyfit(at, rss, 1)[0]),
            "rss_first_mib": float(rss[0]), "rss_last_mib": float(rss[-1]),
            "descriptors_median": float(np.median(descriptors)),
            "descriptors_spread": float(descriptors.max() - descriptors.min()),
        }  # fmt: skip
    if trends:
        figures["rss_slope_within"] = statistics.median(trends)
    return figures


if __name__ == "__main__":
    sys.exit(main())
