"""Concurrent labellers: N clients label through the API while PPO trains; every vote is reconciled at the end.

    python benchmarks/labellers.py --clients 30 --seconds 180 --json
    python benchmarks/labellers.py --clients 30 --seconds 180 --restart --json     the page is killed and restarted halfway
    python benchmarks/labellers.py --model FOLDER --judge concise --batch-size 16 --seconds 300 --quiet-steps 5 --browser

Each client asks for a pair, thinks 2 ± 1 s, and votes; one vote in ten is sent twice. Failed requests are repeated with the
same uuid until they are answered. Prints how many votes were counted, whether any was lost, doubled or given to one person
twice, and the latency of the page (median, 95th percentile, worst, in ms), and the median seconds of a PPO step before the
clients came and while they label. --browser: one more person labels in Chromium, and the time from each of their votes to the
figures of the instant reward model that include it is measured.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.common.records import Job
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import set_labelling_config
from rlhf_lab.store.run_metrics import metrics_since
from rlhf_lab.store.runs import get_run

CHOICES = ("left", "right", "left", "right", "tie", "both_bad", "skip")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--pairs", type=int, default=256, help="pairs written before the clients come")
    parser.add_argument("--overlap", type=int, default=5, help="votes wanted for each pair")
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="a model folder instead of the embedded model")
    parser.add_argument("--judge", default="cheerful", help="whose 60 labels the reward model learns from")
    parser.add_argument("--batch-size", type=int, default=PolicyConfig().batch_size, help="responses of a PPO step")
    parser.add_argument("--quiet-steps", type=int, default=1, help="steps of PPO before the clients come")
    parser.add_argument("--browser", action="store_true", help="one more person labels in Chromium")
    parser.add_argument("--restart", action="store_true", help="kill the page in the middle and start it again")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder) / "home", args)
    print(json.dumps(result) if args.json else "\n".join(f"{key:32} {value}" for key, value in result.items()))
    failure_keys = ["lost", "doubled", "pair_twice_to_one", "failed"]
    if not args.restart:  # with a restart a client may end without the reply to a vote that was stored
        failure_keys.append("not_told")
    return int(any(result[name] for name in failure_keys))


def measure(home: Path, args: argparse.Namespace) -> dict[str, Any]:
    with Database.open(home) as db:
        project = new_project(db, model=args.model)
        set_labelling_config(db, project.id, LabellingConfig(overlap=args.overlap, hold_s=60))
        page = Page(home)
        page.start()
        try:
            wait_for_job(db, home, queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": args.pairs}))
            label_with_judge(db, project.id, load_judge(args.judge), 60)
            wait_for_job(
                db, home, queue.submit(db, JobKind.TRAIN_REWARD, project.id, {"source": "simulated", "labels": 60})
            )
            config = PolicyConfig(steps=5_000, batch_size=args.batch_size, temperature=project.temperature)
            run_id = run_control.start_run(db, home, project.id, config, None).id
            while (start_step := get_run(db, run_id).step) < args.quiet_steps:
                time.sleep(0.2)
            clients, figures_ms = run_clients(
                page, args.clients, args.seconds, restart=args.restart, browser=args.browser
            )
            end_step = get_run(db, run_id).step
        finally:
            page.kill()
            engine_process.stop_engine(db, home)
        seconds = {step: sum(m[f"time/{part}"] for part in ("rollout", "score", "update"))
                   for step, m in metrics_since(db, run_id, 0)}  # fmt: skip
        quiet = [s for step, s in seconds.items() if step <= start_step]
        # the step during which the clients started counts for neither
        busy = [s for step, s in seconds.items() if start_step + 1 < step <= end_step]
        return reconcile(db, clients) | latency_summary("instant_figures", figures_ms) | {
            "clients": args.clients,
            "seconds": args.seconds,
            "ppo_steps_meanwhile": end_step - start_step,
            "ppo_step_before_s": round(statistics.median(quiet), 2),
            "ppo_step_meanwhile_s": round(statistics.median(busy), 2) if busy else None,
        }  # fmt: skip


def wait_for_job(db: Database, home: Path, job: Job) -> None:
    while (current := queue.get_job(db, job.id)).status not in (JobStatus.DONE, JobStatus.FAILED):
        engine_process.ensure_engine(db, home)
        time.sleep(0.2)
    assert current.status is JobStatus.DONE, current.error


def run_clients(
    page: "Page", count: int, seconds: float, *, restart: bool = False, browser: bool = False
) -> tuple[list["Client"], list[float]]:
    """The clients after their time, and ms from a vote in the browser to the figures that include it."""
    end = time.monotonic() + seconds
    clients = [Client(n, page.url, end) for n in range(count)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    if restart:
        time.sleep(seconds / 2)
        page.kill()
        page.start()
    figures_ms = vote_in_browser(page.url, end) if browser else []
    for thread in threads:
        thread.join()
    return clients, figures_ms


def vote_in_browser(url: str, end: float) -> list[float]:
    """Votes every few seconds with the keyboard; ms from each key press to the reward model's figures that include it.

    Infinite if they did not arrive within a minute.
    """
    from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
    from playwright.sync_api import sync_playwright

    waits = []
    with sync_playwright() as playwright:
        chromium = os.environ.get("RLHF_LAB_CHROMIUM") or shutil.which("chromium")
        page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        page.goto(url)
        page.set_default_timeout(60_000)
        page.wait_for_function("document.querySelector('.lab-label .instant')?.dataset.right")  # fitted once
        while time.monotonic() < end:
            try:
                page.wait_for_selector(".lab-label[data-pair]:not([data-pair=''])")
                start_time = time.perf_counter()
                page.keyboard.press("1")
                page.wait_for_function(
                    "document.querySelector('.instant .guess').innerText.includes('is being trained on your answer')"
                )
                page.wait_for_function(
                    "!document.querySelector('.instant .guess').innerText.includes('is being trained on your answer')",
                    polling=20,
                )
                waits.append(1000 * (time.perf_counter() - start_time))
            except PlaywrightTimeoutError:
                print("no figures within a minute; the page shows:", page.inner_text("body")[:2000], file=sys.stderr)
                waits.append(float("inf"))
            time.sleep(2.0)
    return waits


class Page:
    """app.py as a process of its own, on one port."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.home, self.url = home, f"http://127.0.0.1:{self.port}/"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "app.py", "--port", str(self.port), "--home", str(self.home)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
                return
            except OSError:
                time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, so that no request is finished."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Client:
    """One labeller. votes: uuid -> (vote id, pair id) of the counted votes."""

    number: int
    url: str
    end: float
    votes: dict[str, tuple[int, int]] = field(default_factory=dict)
    pair_ids: list[int] = field(default_factory=list)
    refused: int = 0
    empty_polls: int = 0
    duplicates_sent: int = 0
    retries: int = 0
    duplicate_mismatches: int = 0
    error: str = ""
    latencies_ms: dict[str, list[float]] = field(default_factory=lambda: {"next_pair": [], "submit_vote": []})

    def run(self) -> None:
        rng, name = random.Random(self.number), f"client {self.number}"
        try:
            time.sleep(rng.uniform(0, 2))
            while time.monotonic() < self.end:
                pair = self.call("next_pair", {"name": name})
                if pair["id"] is None:
                    self.empty_polls += 1
                    time.sleep(1.0)
                    continue
                self.pair_ids.append(pair["id"])
                think_s = max(0.1, rng.gauss(2.0, 1.0))
                time.sleep(think_s)
                uuid = f"{self.number}-{len(self.pair_ids)}"
                vote = {
                    "name": name, "pair_id": pair["id"], "choice": rng.choice(CHOICES), "uuid": uuid,
                    "ms": round(1000 * think_s),
                }  # fmt: skip
                answer = self.call("submit_vote", vote)
                if rng.random() < 0.1:
                    self.duplicates_sent += 1
                    self.duplicate_mismatches += self.call("submit_vote", vote) != answer
                if answer["counted"]:
                    self.votes[uuid] = (answer["vote_id"], pair["id"])
                else:
                    self.refused += 1
        except Exception as error:  # a failed client is a result, and must not end the others
            self.error = f"{type(error).__name__}: {error}"

    def call(self, endpoint: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The reply of the page, with retries."""
        body = json.dumps(arguments | {"session": f"labeller-{self.number}"}).encode()
        request = urllib.request.Request(f"{self.url}api/{endpoint}", body, {"Content-Type": "application/json"})
        while True:
            start_time = time.perf_counter()
            try:
                with urllib.request.urlopen(request, timeout=30) as reply:
                    payload: dict[str, Any] = json.load(reply)
                self.latencies_ms[endpoint].append(1000 * (time.perf_counter() - start_time))
                return payload
            except urllib.error.HTTPError as error:
                raise RuntimeError(error.read().decode()[:300]) from error
            except (OSError, http.client.HTTPException):  # the page was killed; the vote may or may not be stored
                self.retries += 1
                time.sleep(0.5)


def reconcile(db: Database, clients: list[Client]) -> dict[str, Any]:
    """Compare the replies of the page with the stored votes."""
    with db.read() as conn:
        stored = conn.exec_driver_sql(
            "SELECT uuid, id, pair_id, annotator FROM votes WHERE via = 'api' AND undone_at IS NULL"
        ).all()
    stored_votes = {row[0]: (row[1], row[2]) for row in stored}
    reported_votes = {uuid: vote for client in clients for uuid, vote in client.votes.items()}
    repeat_pairs = sum(count > 1 for count in Counter((row[3], row[2]) for row in stored).values())
    result: dict[str, Any] = {
        "votes": len(reported_votes),
        "lost": sum(stored_votes.get(uuid) != vote for uuid, vote in reported_votes.items()),
        "not_told": len(set(stored_votes) - set(reported_votes)),
        "doubled": len(stored) - len(stored_votes) + sum(client.duplicate_mismatches for client in clients),
        "pair_twice_to_one": repeat_pairs,
        "sent_twice_on_purpose": sum(client.duplicates_sent for client in clients),
        "sent_again_after_a_failure": sum(client.retries for client in clients),
        "refused": sum(client.refused for client in clients),
        "waited_for_pairs": sum(client.empty_polls for client in clients),
        "failed": sum(bool(client.error) for client in clients),
        "why": next((client.error for client in clients if client.error), ""),
    }
    for name in ("next_pair", "submit_vote"):
        result |= latency_summary(name, [latency for client in clients for latency in client.latencies_ms[name]])
    return result


def latency_summary(name: str, latencies_ms: list[float]) -> dict[str, float]:
    """Median, 95th percentile and worst; nothing of fewer than two."""
    if len(latencies_ms) < 2:
        return {}
    return {
        f"{name}_p50_ms": round(statistics.median(latencies_ms), 1),
        f"{name}_p95_ms": round(statistics.quantiles(latencies_ms, n=20, method="inclusive")[-1], 1),
        f"{name}_max_ms": round(max(latencies_ms), 1),
    }


if __name__ == "__main__":
    sys.exit(main())
