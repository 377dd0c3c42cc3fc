"""A lab with 10,000 pairs and 200,000 votes: the costs of page loads, the wait for a pair, and the export.

    python benchmarks/large_lab.py loads        CPU ms of what each screen reads
    python benchmarks/large_lab.py clients --clients 60 --seconds 120        programs label while PPO trains
    python benchmarks/large_lab.py memory --pairs 3000 --votes 52000 --clients 30 --seconds 60    memory of the page's process
    python benchmarks/large_lab.py export --formats jsonl,csv,parquet        time and memory of each, in processes of their own

40 people with very different numbers of votes, ties, strengths, skips, hidden repeats, notes and undone votes; ten
reward models, the newest on all labels but 20. `loads` calls what a page calls, in one process, and counts the CPU time of the
calling thread: the first time in the process, again, after a vote, and after an undone vote. Background: a round of the
scheduler, which runs every second. --home keeps the lab for another call.
"""

import argparse
import contextlib
import json
import multiprocessing
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import insert, update

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from labellers import Client, Page, latency_summary, reconcile, run_clients, wait_for_job

from rlhf_lab.common.enums import Choice, JobKind, Source, Strength
from rlhf_lab.common.records import LabelSnapshot, Project, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.exporters.label_export import LabelExportOptions, export_labels
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import TextFeatures, add_features
from rlhf_lab.store.pair_leases import lease_pair, undo_last_vote, vote_on_lease
from rlhf_lab.store.projects import prompts, set_labelling_config
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import get_run

PEOPLE, REWARD_MODELS, SECONDS_PER_VOTE = 40, 10, 5.0
OVERLAP = 25  # above the votes of a pair, so that every pair is open
WORDS = [
    "the",
    "fox",
    "went",
    "home",
    "and",
    "saw",
    "a",
    "small",
    "red",
    "boat",
    "near",
    "old",
    "trees",
    "while",
    "rain",
    "fell",
    "softly",
    "on",
    "grey",
    "stones",
]
PREFIX = "big-"  # of the uuids


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("loads", "clients", "memory", "export"))
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--votes", type=int, default=200_000)
    parser.add_argument("--home", type=Path, help="build the lab here, or use the one that is there")
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--no-ppo", action="store_true", help="clients: without PPO beside them")
    parser.add_argument(
        "--browser", action="store_true", help="clients: one more person labels in Chromium beside them"
    )
    parser.add_argument("--formats", default="jsonl,jsonl.gz,json,csv,parquet")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        home = args.home or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "home"
        measure = {
            "loads": measure_loads,
            "clients": measure_clients,
            "memory": measure_memory,
            "export": measure_export,
        }
        result = measure[args.what](home, args)
    print(json.dumps(result) if args.json else "\n".join(f"{key:44} {value}" for key, value in result.items()))
    return 0


def open_lab(home: Path, args: argparse.Namespace) -> Database:
    is_new = not (home / "lab.db").exists()
    db = Database.open(home)
    if is_new:
        project = new_project(db)
        fill_project(db, project, args.pairs, args.votes)
        add_reward_models(db, project)
    return db


# ---- the lab


def fill_project(db: Database, project: Project, pair_count: int, vote_count: int) -> None:
    """Completions, pairs and votes of a project, written in bulk."""
    rng = random.Random(1)
    set_labelling_config(db, project.id, LabellingConfig(overlap=OVERLAP, hold_s=60))
    prompt_ids = [prompt.id for prompt in prompts(db, project.id, "train")]
    now = time.time()
    start = now - vote_count * SECONDS_PER_VOTE
    with db.write() as conn:
        first_completion = 1 + (conn.exec_driver_sql("SELECT max(id) FROM completions").scalar() or 0)
        first_pair = 1 + (conn.exec_driver_sql("SELECT max(id) FROM pairs").scalar() or 0)
        conn.execute(insert(t.completions), [
            {"id": first_completion + i, "prompt_id": prompt_ids[i // 2 % len(prompt_ids)], "seed": i, "created_at": start,
             "text": " ".join(rng.choices(WORDS, k=30)), "token_ids": tuple(rng.choices(range(4000), k=40)), "checkpoint": "base"}
            for i in range(2 * pair_count)
        ])  # fmt: skip
        conn.execute(insert(t.pairs), [
            {"id": first_pair + i, "project_id": project.id, "first_id": first_completion + 2 * i,
             "second_id": first_completion + 2 * i + 1, "created_at": start,
             "reason": "random" if i % 4 else "uncertainty: 0.10"}
            for i in range(pair_count)
        ])  # fmt: skip
        conn.execute(insert(t.people), [{"name": f"person {i}", "joined_at": start} for i in range(PEOPLE)])
        rows = list(vote_rows(rng, range(first_pair, first_pair + pair_count), vote_count, start))
        for begin in range(0, len(rows), 10_000):
            conn.execute(insert(t.votes), rows[begin : begin + 10_000])
    pairs_with_features = {*range(min(pair_count, 1000)), *(row["pair_id"] - first_pair for row in rows[-1100:])}
    labelled = {first_completion + 2 * i + side for i in pairs_with_features for side in (0, 1)}
    vectors = np.random.default_rng(1).normal(size=(len(labelled), 1280)).astype(np.float16)
    add_features(db, {i: TextFeatures(5, vector) for i, vector in zip(sorted(labelled), vectors, strict=True)})


def vote_rows(rng: random.Random, pair_ids: range, vote_count: int, start: float) -> Iterator[dict[str, Any]]:
    """Votes in order of time: nobody votes twice on a pair, except for hidden repeats."""
    quality = {pair_id: rng.gauss(0.0, 1.2) for pair_id in pair_ids}
    voted: dict[str, list[int]] = {f"person {i}": [] for i in range(PEOPLE)}
    queues = {name: iter(rng.sample(pair_ids, len(pair_ids))) for name in voted}
    repeated: set[tuple[str, int]] = set()
    names, weights = list(voted), [1.0 / (4 + i) for i in range(PEOPLE)]
    count = 0
    while count < vote_count:
        name = rng.choices(names, weights)[0]
        repeat = len(voted[name]) > 20 and rng.random() < 0.05
        pair_id = rng.choice(voted[name][:-10]) if repeat else next(queues[name], None)
        if pair_id is None or (repeat and (name, pair_id) in repeated):
            weights[names.index(name)] *= pair_id is not None
            continue
        undone = not repeat and rng.random() < 0.02
        if repeat:
            repeated.add((name, pair_id))
        elif not undone:
            voted[name].append(pair_id)
        drawn = rng.random()
        decided = Choice.FIRST if rng.gauss(quality[pair_id], 1.0) > 0 else Choice.SECOND
        choice = (
            Choice.SKIP if drawn < 0.03 else Choice.TIE if drawn < 0.1 else Choice.BOTH_BAD if drawn < 0.12 else decided
        )
        created_at = start + count * SECONDS_PER_VOTE
        yield {
            "uuid": f"{PREFIX}{count}", "pair_id": pair_id, "annotator": name, "source": Source.HUMAN, "choice": choice,
            "first_on_left": rng.random() < 0.5, "response_ms": round(1000 * rng.lognormvariate(1.5, 0.6)),
            "created_at": created_at, "undone_at": created_at + 3.0 if undone else None,
            "strength": rng.choice([*Strength, None]) if choice is decided else None,
            "note": "I am not sure about this one." if rng.random() < 0.02 else "", "repeat": repeat, "via": "page",
        }  # fmt: skip
        count += 1


def add_reward_models(db: Database, project: Project) -> None:
    """Reward models of growing snapshots, with scores of half of the texts."""
    with db.read() as conn:
        votes = conn.exec_driver_sql(
            "SELECT id, choice FROM votes WHERE undone_at IS NULL AND NOT repeat AND choice <> 'skip' ORDER BY id"
        ).all()
        completion_ids = list(conn.exec_driver_sql("SELECT id FROM completions").scalars())
        times = {row[0]: row[1] for row in conn.exec_driver_sql("SELECT id, created_at FROM votes")}
    rng = random.Random(2)
    for i in range(REWARD_MODELS):
        labels = votes[: round((len(votes) - 20) * (i + 1) / REWARD_MODELS)]
        decided = sum(row[1] in ("first", "second") for row in labels)
        report = {
            "accuracy": 0.8, "accuracy_low": 0.79, "accuracy_high": 0.81, "ties": len(labels) - decided, "folds": 1,
            "train_accuracy": 0.85, "loss": [0.5] * 200, "length_correlation": 0.1, "calibration": [[0.7, 0.7, 10]],
            "chosen_scores": [round(rng.gauss(0.5, 1), 4) for _ in range(decided)],
            "rejected_scores": [round(rng.gauss(-0.5, 1), 4) for _ in range(decided)],
            "disagreements": [{"index": len(labels) - 1 - j, "probability": 0.1} for j in range(20)],
        }  # fmt: skip
        snapshot = LabelSnapshot(tuple(row[0] for row in labels), "", Source.HUMAN)
        row = add_reward_model(db, project.id, f"none-{i}", config={}, report=report, snapshot=snapshot)
        scores = [
            {"reward_model_id": row.id, "completion_id": c, "score": rng.gauss(0, 1)} for c in completion_ids[::2]
        ]
        with db.write() as conn:
            conn.execute(insert(t.scores), scores)
            values = update(t.reward_models).where(t.reward_models.c.id == row.id)
            conn.execute(values.values(created_at=times[labels[-1][0]] + 1.0))


# ---- page loads


def measure_loads(home: Path, args: argparse.Namespace) -> dict[str, Any]:
    """CPU ms of what each screen reads, in the order: first of the process, again, after a vote, after an undone vote."""
    with open_lab(home, args) as db:
        page = PageCalls(home, db)
        result: dict[str, Any] = {}
        times: dict[str, list[float]] = {name: [] for name in page.calls}
        for change in (None, None, page.vote, page.undo, None):
            for name, call in page.calls.items():
                if change is not None:
                    change()
                times[name].append(cpu_ms(call))
        for name, (cold, again, voted, undone, last) in times.items():
            result[name] = (
                f"cold {cold:7.0f}   again {min(again, last):7.0f}   after a vote {voted:7.0f}   after undo {undone:7.0f}"
            )
        result["peak memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return result


def cpu_ms(call: Callable[[], Any]) -> float:
    """CPU time of this thread, without the caches that keep a reply for a second or three."""
    start = time.thread_time()
    call()
    return 1000 * (time.thread_time() - start)


class PageCalls:
    """What each screen calls when it is opened."""

    def __init__(self, home: Path, db: Database) -> None:
        from rlhf_lab.ui.context import Context
        from rlhf_lab.ui.label import api as label
        from rlhf_lab.ui.page import APIS
        from rlhf_lab.ui.run_views.stage_estimates import reward_sentences
        from rlhf_lab.ui.shared.api import Requests

        self.ctx = ctx = Context(home, db)
        ctx.cache.get = lambda key, seconds, compute: compute()  # type: ignore[method-assign]  # noqa: ARG005
        self.answers = Requests(ctx, APIS)
        with db.read() as conn:
            newest = conn.exec_driver_sql("SELECT max(id) FROM reward_models").scalar()
        me = {"annotator": "person 0"}
        self.calls: dict[str, Callable[[], Any]] = {
            "background: scheduler, one round": ctx.scheduler.run_once,  # as in a page process, before a visitor comes
            "Header": lambda: self.requests("header/status", **me),
            "Label: first pair": lambda: label.state(ctx, "person 0"),
            "Label: earlier votes, people, instant": lambda: self.requests(
                "label/recent_votes", "label/presence", "label/instant", **me
            ),
            "Reward model": lambda: self.requests("reward/state"),
            "Reward model: details of the newest": lambda: self.requests("reward/report", model=newest),
            "Reward model: time estimate": lambda: reward_sentences(ctx, RewardConfig()),
            "Train": lambda: self.requests("train/points", "start_run/options"),
            "Compare": lambda: self.requests("compare/options", "blind_test/get_state", "tournament/get_state", **me),
            "Chat": lambda: self.requests("chat/options", **me),
            "Runs & data": lambda: self.requests("runs/overview"),
            "Runs & data: quality": lambda: self.requests("quality/state"),
            "Runs & data: imports": lambda: self.requests("import_data/imports"),
            "People": lambda: self.requests("people/state", **me),
            "Project": lambda: self.requests("project/state"),
            "background: instant reward, one round": ctx.instant_reward.run_once,
        }
        engine_process.ensure_engine = lambda *_: None  # type: ignore[assignment]  # no engine beside the measurement

    def requests(self, *paths: str, **query: Any) -> None:
        """Answer requests of the page."""
        for path in paths:
            answer = self.answers.answer(self.answers.endpoints[path], query)
            if answer.startswith(b'{"error"'):
                print(f"{path}: {answer.decode()}", file=sys.stderr)

    def vote(self) -> None:
        db, project = self.ctx.db, self.ctx.project
        config = LabellingConfig(overlap=OVERLAP)
        lease = lease_pair(db, project.id, "person 39", config)
        assert lease is not None
        vote_on_lease(
            db, Vote(f"b-{time.time_ns()}", lease.pair.id, "person 39", Source.HUMAN, Choice.FIRST, True, 900), config
        )

    def undo(self) -> None:
        undo_last_vote(self.ctx.db, self.ctx.project.id, "person 39", LabellingConfig(overlap=OVERLAP))


# ---- programs that label


def measure_clients(home: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Latency of the page while programs label and PPO trains."""
    with Database.open(home) as db:
        project, page = new_project(db), Page(home)
        set_labelling_config(db, project.id, LabellingConfig(overlap=OVERLAP, hold_s=60))
        run_id = None
        try:
            if not args.no_ppo:
                wait_for_job(db, home, queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": 64}))
                label_with_judge(db, project.id, load_judge("cheerful"), 60)
                wait_for_job(
                    db, home, queue.submit(db, JobKind.TRAIN_REWARD, project.id, {"source": "simulated", "labels": 60})
                )
            fill_project(db, project, args.pairs, args.votes)
            add_reward_models(db, project)
            if not args.no_ppo:
                scorer = min(row_id for row_id in reward_model_ids(db))
                run_id = run_control.start_run(db, home, project.id, PolicyConfig(steps=5_000), scorer).id
                while get_run(db, run_id).step < 1:
                    time.sleep(0.2)
            page.start()
            time.sleep(5.0)
            start_step = get_run(db, run_id).step if run_id is not None else 0
            assert page.process is not None
            cpu_before = process_cpu_s(page.process.pid)
            clients, figures_ms = run_clients(page, args.clients, args.seconds, browser=args.browser)
            cores = (process_cpu_s(page.process.pid) - cpu_before) / args.seconds
            steps = get_run(db, run_id).step - start_step if run_id is not None else 0
        finally:
            page.kill()
            engine_process.stop_engine(db, home)
        warm = [latency for client in clients for latency in client.latencies_ms["next_pair"][1:]]
        return reconcile(db, clients) | latency_summary("next_pair_but_the_first_of_each", warm) | {
            "clients": args.clients, "seconds": args.seconds, "ppo_steps_meanwhile": steps, "page_cores": round(cores, 2),
        } | (latency_summary("instant_figures", figures_ms) if args.browser else {})  # fmt: skip


def measure_memory(home: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Resident memory of the page's process while each client asks for a pair once a second and nobody votes."""
    import psutil

    page = Page(home)
    with Database.open(home) as db:
        project = new_project(db)
        fill_project(db, project, args.pairs, args.votes)
        set_labelling_config(db, project.id, LabellingConfig(overlap=90, hold_s=60))
        try:
            page.start()
            assert page.process is not None
            end = time.monotonic() + args.seconds
            clients = [Client(number, page.url, end) for number in range(args.clients)]

            def ask(client: Client) -> None:
                while time.monotonic() < end:
                    client.call("next_pair", {"name": f"client {client.number}"})
                    time.sleep(1.0)

            threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            memory = psutil.Process(page.process.pid).memory_info().rss / 2**20
        finally:
            page.kill()
            engine_process.stop_engine(db, home)
    request_count = sum(len(client.latencies_ms["next_pair"]) for client in clients)
    return {"pairs": args.pairs, "votes": args.votes, "requests": request_count, "page_rss_mib": round(memory, 1)}


def reward_model_ids(db: Database) -> list[int]:
    with db.read() as conn:
        return list(conn.exec_driver_sql("SELECT id FROM reward_models").scalars())


def process_cpu_s(pid: int) -> float:
    import psutil

    return float(sum(psutil.Process(pid).cpu_times()[:2]))


# ---- export


def measure_export(home: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Each format in a process of its own."""
    open_lab(home, args).close()
    result: dict[str, Any] = {}
    for format_ in args.formats.split(","):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            result[format_] = pool.submit(export_figures, home, format_).result()
    return result


def export_figures(home: Path, format_: str) -> str:
    """Seconds of an export, when its first progress came, and how far its memory rose above that at its start. Linux only."""
    progress: list[float] = []
    with Database.open(home) as db, tempfile.TemporaryDirectory() as out:
        memory, start, cpu_start = memory_mib("VmRSS"), time.monotonic(), time.process_time()
        path = export_labels(
            db, 1, Path(out) / format_, LabelExportOptions(format=format_),
            on_progress=lambda _: progress.append(time.monotonic() - start),
        )  # fmt: skip
        seconds, cpu = time.monotonic() - start, time.process_time() - cpu_start
        return (
            f"{seconds:6.1f} s, {cpu:6.1f} s of CPU, first progress after {progress[0]:4.1f} s   "
            f"{path.stat().st_size / 2**20:6.1f} MiB   peak memory +{memory_mib('VmHWM') - memory:.0f} MiB"
        )


def memory_mib(name: str) -> float:
    """VmRSS (now) or VmHWM (the peak) of this process. `ru_maxrss` would begin with the memory of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return float(next(line.split()[1] for line in status.splitlines() if line.startswith(f"{name}:"))) / 1024


if __name__ == "__main__":
    sys.exit(main())
