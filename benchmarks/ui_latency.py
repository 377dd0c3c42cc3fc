"""Latency of the page in Chromium: start → page, and vote → next pair, idle and while PPO trains.

    python benchmarks/ui_latency.py --votes 60 --json
    python benchmarks/ui_latency.py --live --votes 40 --think 4       a person who presses *Train while I label*

Prints seconds from process start to the served page and to the first pair on screen; idle, and while a run trains on the same
cores, milliseconds from key press to the next pair and until it can be answered, which is when the vote is stored and 0.3 s have
passed (median, 95th percentile, worst); and the memory of the page process. With --live: from an empty home, seconds from opening
the page until the button appears and until samples have changed, and milliseconds to the next pair while the live run trains.
Needs tests/requirements.txt and a Chromium (RLHF_LAB_CHROMIUM or on the PATH).
"""

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus, Source
from rlhf_lab.common.records import Job
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue, retraining
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import count_pairs
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.run_metrics import metrics_since, sample_steps, samples_at
from rlhf_lab.store.runs import create_run, runs

# Press a key; time until another pair is drawn, and until it can be answered because the vote is stored.
VOTE_SCRIPT = """key => new Promise((done) => {
  const root = document.querySelector('.lab-label'), before = root.dataset.pair, start = performance.now();
  let drawn = null;
  const watcher = new MutationObserver(() => {
    if (drawn === null && root.dataset.pair && root.dataset.pair !== before) drawn = performance.now() - start;
    if (drawn !== null && root.dataset.open) { watcher.disconnect(); done([drawn, performance.now() - start]); }
  });
  watcher.observe(root, {attributes: true});
  document.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
})"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--votes", type=int, default=60, help="votes in each of the two parts")
    parser.add_argument("--think", type=float, default=0.5, help="mean seconds between votes")
    parser.add_argument("--live", action="store_true", help="train while labelling, from an empty home")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    random.seed(0)
    with tempfile.TemporaryDirectory() as folder:
        scenario = measure_live if args.live else measure
        result = scenario(Path(folder) / "home", args.votes, args.think)
    print(json.dumps(result) if args.json else "\n".join(f"{key:32} {value}" for key, value in result.items()))
    return 0


@contextmanager
def page_of_lab(home: Path) -> Iterator[tuple[Page, Database, dict[str, float]]]:
    """A page of a new lab whose first pair is on screen, its store, and what was measured, which gains the memory at the end."""
    port = free_port()
    start_time = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "app.py", "--port", str(port), "--home", str(home)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        wait_for_port(port)
        result = {"page_served_s": round(time.perf_counter() - start_time, 2)}
        with sync_playwright() as playwright, Database.open(home) as db:
            chromium = os.environ.get("RLHF_LAB_CHROMIUM") or shutil.which("chromium")
            page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector(".lab-label .side")
            result["first_pair_on_screen_s"] = round(time.perf_counter() - start_time, 2)
            yield page, db, result
            result["page_process_mib"] = round(psutil.Process(server.pid).memory_info().rss / 2**20)
            engine_process.stop_engine(db, home)
    finally:
        server.terminate()
        server.wait()


def measure(home: Path, votes: int, think: float) -> dict[str, Any]:
    with page_of_lab(home) as (page, db, result):
        prepare_project(db, home, 2 * votes + 40)
        idle_waits = cast_votes(page, votes, think)
        run_id, changed_after_s = start_run(db, home)
        busy_waits = cast_votes(page, votes, think)
        training_job = queue.jobs(db, kinds=[JobKind.TRAIN_POLICY])[0]
        result.update(
            {
                **summary("next_pair_at_rest", [drawn for drawn, _ in idle_waits]),
                **summary("stored_at_rest", [done for _, done in idle_waits]),
                **summary("next_pair_while_ppo_trains", [drawn for drawn, _ in busy_waits]),
                **summary("stored_while_ppo_trains", [done for _, done in busy_waits]),
                "start_to_changed_samples_s": round(changed_after_s, 1),
                "ppo_step_while_voting_s": round(statistics.median(step_seconds(db, run_id)), 2),
                "ppo_was_running": training_job.status is JobStatus.RUNNING,
            }
        )
    return result


def measure_live(home: Path, votes: int, think: float) -> dict[str, Any]:
    with page_of_lab(home) as (page, db, result):
        opened_time = time.perf_counter()
        live_waits: list[float] = []
        start_button = page.locator("[data-do=start-live]")
        for answer_count in range(1, votes + 1):
            [(drawn, _)] = cast_votes(page, 1, think, keys="12")
            live_runs = runs(db)
            if live_runs:
                live_waits.append(drawn)
                if "changed_samples_s" not in result and samples_changed(db, live_runs[0].id):
                    result["changed_samples_s"] = round(time.perf_counter() - opened_time, 1)
                    result["changed_samples_answers"] = answer_count
            elif start_button.count():
                start_button.click()
                result["start_pressed_s"] = round(time.perf_counter() - opened_time, 1)
        result.update(summary("next_pair_in_a_live_run", live_waits))
    return result


def prepare_project(db: Database, home: Path, pairs: int) -> None:
    project = pick_project(db, None)
    while (missing := pairs - count_pairs(db, project.id)) > 0:
        wait_for_job(db, home, queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": min(missing, 64)}))
    label_with_judge(db, project.id, load_judge("cheerful"), 30)
    wait_for_job(db, home, retraining.submit_training(db, project.id, Source.SIMULATED))


def start_run(db: Database, home: Path) -> tuple[int, float]:
    project = pick_project(db, None)
    row = latest_reward_model(db, project.id)
    assert row is not None
    config = PolicyConfig(steps=400)
    run = create_run(db, project.id, row.id, "latency", config=config.to_dict(), manifest={}, total_steps=400)
    queue.submit(db, JobKind.TRAIN_POLICY, project.id, {"run_id": run.id})
    engine_process.ensure_engine(db, home)
    start_time = time.perf_counter()
    while not samples_changed(db, run.id):
        time.sleep(0.2)
    return run.id, time.perf_counter() - start_time


def step_seconds(db: Database, run_id: int) -> list[float]:
    return [
        sum(step[f"time/{phase}"] for phase in ("rollout", "score", "update"))
        for _, step in metrics_since(db, run_id, 0)
    ]


def samples_changed(db: Database, run_id: int) -> bool:
    """Whether the newest samples of the run differ from those of the base model."""
    steps = sample_steps(db, run_id)
    if not steps:
        return False
    first, last = ([sample.text for sample in samples_at(db, run_id, step)] for step in (steps[0], steps[-1]))
    return first != last


def wait_for_job(db: Database, home: Path, job: Job) -> None:
    while queue.get_job(db, job.id).status in UNFINISHED_JOB_STATUSES:
        engine_process.ensure_engine(db, home)
        time.sleep(0.3)


def cast_votes(page: Page, votes: int, think: float, keys: str = "120xs") -> list[tuple[float, float]]:
    waits = []
    for _ in range(votes):
        time.sleep(random.uniform(0.5, 1.5) * think)
        page.wait_for_selector(".lab-label[data-open]")
        waits.append(tuple(page.evaluate(VOTE_SCRIPT, random.choice(keys))))
    return waits


def summary(name: str, waits: list[float]) -> dict[str, float]:
    ordered = sorted(waits)
    return {
        f"{name}_median_ms": round(statistics.median(ordered)),
        f"{name}_p95_ms": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]),
        f"{name}_worst_ms": round(ordered[-1]),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
