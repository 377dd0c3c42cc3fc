"""The cost of viewers of a long run: bytes on the wire per step, and CPU time of the page server.

    python benchmarks/polling.py --viewers 30 --steps 10000 --seconds 30 --json

A run with many stored steps records one step per second; every viewer polls once per second, as a browser does (compressed
replies). No model is loaded: only the store and the server are measured.
"""

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from ui_latency import free_port, wait_for_port

from rlhf_lab.common.enums import RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, set_run_status
from rlhf_lab.ui.run_views.run_feed import FEED_METRICS

OTHER_METRICS = tuple(f"val/other_{i}" for i in range(25))  # a run records about 40 metrics


def metrics(step: int) -> dict[str, float]:
    return {name: math.sin(step / 50 + i) + i for i, name in enumerate((*FEED_METRICS, *OTHER_METRICS))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=30)
    parser.add_argument("--steps", type=int, default=10_000, help="steps that are stored when the viewers come")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder) / "home", args.viewers, args.steps, args.seconds)
    print(json.dumps(result) if args.json else "\n".join(f"{key:32} {value}" for key, value in result.items()))
    return 0


def measure(home: Path, viewers: int, steps: int, seconds: int) -> dict[str, Any]:
    port = free_port()
    with Database.open(home) as db:
        run_id = long_run(db, steps)
        server = subprocess.Popen(
            [sys.executable, "app.py", "--port", str(port), "--home", str(home)], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        try:
            wait_for_port(port)
            result = asyncio.run(watch(f"http://127.0.0.1:{port}", viewers, seconds, db, run_id, steps, server.pid))
        finally:
            server.terminate()
            server.wait()
    return {"viewers": viewers, "steps": steps, **result}


def long_run(db: Database, steps: int) -> int:
    project = pick_project(db, None)
    row = add_reward_model(
        db, project.id, "none", config={}, report={"accuracy": 0.8}, snapshot=LabelSnapshot((), "", Source.HUMAN)
    )
    config = PolicyConfig(steps=10 * steps).to_dict()
    run = create_run(db, project.id, row.id, "long", config=config, manifest={}, total_steps=10 * steps)
    for step in range(1, steps + 1):
        record_step(db, run.id, StepResult(step, metrics(step)))
    set_run_status(db, run.id, RunStatus.RUNNING)
    return run.id


async def watch(
    url: str, viewers: int, seconds: int, db: Database, run_id: int, steps: int, pid: int
) -> dict[str, Any]:
    """Let the viewers load the curves, then measure while the run records steps."""
    async with httpx.AsyncClient(base_url=url, timeout=60, headers={"accept-encoding": "br, gzip"}) as client:
        open_viewers = [Viewer(client, run_id) for _ in range(viewers)]
        await asyncio.gather(*(viewer.poll() for viewer in open_viewers))
        first_replies = [viewer.wire_bytes[-1] for viewer in open_viewers]
        process = psutil.Process(pid)
        cpu_before, start_time = sum(process.cpu_times()[:2]), time.perf_counter()
        for second in range(seconds):
            record_step(db, run_id, StepResult(steps + second + 1, metrics(steps + second + 1)))
            await asyncio.gather(*(viewer.poll() for viewer in open_viewers))
            await asyncio.sleep(max(0.0, start_time + second + 1 - time.perf_counter()))
        elapsed = time.perf_counter() - start_time
        cores = (sum(process.cpu_times()[:2]) - cpu_before) / elapsed
    wire_bytes = [size for viewer in open_viewers for size in viewer.wire_bytes[1:]]
    return {
        "first_reply_kib": round(statistics.median(first_replies) / 1024, 1),
        "bytes_a_step_on_the_wire": round(statistics.median(wire_bytes)),
        "bytes_a_step_unpacked": round(statistics.median(size for viewer in open_viewers for size in viewer.body_bytes[1:])),
        "server_cores": round(cores, 3), "polls_a_second": round(len(wire_bytes) / elapsed, 1),
        "reply_p95_ms": round(sorted(t for v in open_viewers for t in v.latencies[1:])[int(0.95 * len(wire_bytes))] * 1000),
    }  # fmt: skip


class Viewer:
    """One open Train screen: polls for what is new since its last reply."""

    def __init__(self, client: httpx.AsyncClient, run_id: int) -> None:
        self.client = client
        self.request: dict[str, Any] = {"run": run_id, "epoch": None, "after_step": -1, "static_id": None}
        self.wire_bytes: list[int] = []
        self.body_bytes: list[int] = []
        self.latencies: list[float] = []

    async def poll(self) -> None:
        start_time = time.perf_counter()
        response = await self.client.post("/lab-api/train/points", json=self.request)
        self.latencies.append(time.perf_counter() - start_time)
        response.raise_for_status()
        self.wire_bytes.append(response.num_bytes_downloaded)
        self.body_bytes.append(len(response.content))
        reply = response.json()["reply"]["state"]
        if not reply.get("unchanged"):
            self.request |= {
                "epoch": reply["epoch"],
                "after_step": reply["last_step"],
                "revision": reply["revision"],
                "static_id": reply["static_id"],
            }


if __name__ == "__main__":
    sys.exit(main())
