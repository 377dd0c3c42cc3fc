"""Concurrent labellers: N clients label through the API while PPO trains; every vote is reconciled at the end.

    python benchmarks/labellers.py --clients 30 --seconds 180 --json
    python benchmarks/labellers.py --clients 30 --seconds 180 --restart --json     the page is killed and restarted halfway

Each client asks for a pair, thinks 2 ± 1 s, and votes; one vote in ten is sent twice. Failed requests are repeated with the same
uuid until they are answered. Prints how many votes were counted, whether any was lost, doubled or given to one person twice, and
the latency of the page (median, 95th percentile, worst, in ms).
"""

import argparse
import http.client
import json
import random
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

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.common.records import Job
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import set_labelling_config
from rlhf_lab.store.runs import get_run

CHOICES = ("left", "right", "left", "right", "tie", "both_bad", "skip")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--pairs", type=int, default=256, help="pairs written before the clients come")
    parser.add_argument("--overlap", type=int, default=5, help="votes wanted for each pair")
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
        project = pick_project(db, None)
        set_labelling_config(db, project.id, LabellingConfig(overlap=args.overlap, hold_s=60))
        page = Page(home)
        page.start()
        try:
            wait_for_job(db, home, queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": args.pairs}))
            label_with_judge(db, project.id, load_judge("cheerful"), 60)
            wait_for_job(
                db, home, queue.submit(db, JobKind.TRAIN_REWARD, project.id, {"source": "simulated", "labels": 60})
            )
            run = run_control.start_run(db, home, project.id, PolicyConfig(steps=5_000), None)
            while get_run(db, run.id).step < 1:
                time.sleep(0.2)
            start_step = get_run(db, run.id).step
            clients = run_clients(page, args)
            steps_trained = get_run(db, run.id).step - start_step
        finally:
            page.kill()
            engine_process.stop_engine(db, home)
        return reconcile(db, clients) | {
            "clients": args.clients,
            "seconds": args.seconds,
            "ppo_steps_meanwhile": steps_trained,
        }


def wait_for_job(db: Database, home: Path, job: Job) -> None:
    while (current := queue.get_job(db, job.id)).status not in (JobStatus.DONE, JobStatus.FAILED):
        engine_process.ensure_engine(db, home)
        time.sleep(0.2)
    assert current.status is JobStatus.DONE, current.error


def run_clients(page: "Page", args: argparse.Namespace) -> list["Client"]:
    end = time.monotonic() + args.seconds
    clients = [Client(n, page.url, end) for n in range(args.clients)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    if args.restart:
        time.sleep(args.seconds / 2)
        page.kill()
        page.start()
    for thread in threads:
        thread.join()
    return clients


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
                pair = self.call("next_pair", [name, ""])
                if pair["id"] is None:
                    self.empty_polls += 1
                    time.sleep(1.0)
                    continue
                self.pair_ids.append(pair["id"])
                think_s = max(0.1, rng.gauss(2.0, 1.0))
                time.sleep(think_s)
                uuid = f"{self.number}-{len(self.pair_ids)}"
                vote = [name, pair["id"], rng.choice(CHOICES), uuid, "", "", "", round(1000 * think_s)]
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

    def call(self, endpoint: str, data: list[Any]) -> dict[str, Any]:
        """The reply of the page, with retries."""
        # a session per client, as in gradio_client: without one Gradio sets up a whole page for each request (10 ms)
        body = json.dumps({"data": data, "session_hash": f"labeller-{self.number}"}).encode()
        request = urllib.request.Request(
            f"{self.url}gradio_api/run/{endpoint}", body, {"Content-Type": "application/json"}
        )
        while True:
            start_time = time.perf_counter()
            try:
                with urllib.request.urlopen(request, timeout=30) as reply:
                    payload: dict[str, Any] = json.load(reply)["data"][0]
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
        latencies = sorted(latency for client in clients for latency in client.latencies_ms[name])
        if len(latencies) > 1:
            result |= {
                f"{name}_p50_ms": round(statistics.median(latencies), 1),
                f"{name}_p95_ms": round(statistics.quantiles(latencies, n=20)[-1], 1),
                f"{name}_max_ms": round(latencies[-1], 1),
            }
    return result


if __name__ == "__main__":
    sys.exit(main())
