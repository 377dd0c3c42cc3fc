"""`python -m rlhf_lab track RUN --to trackio`: log a run to a tracker, or with --reward-model the training of a reward model; the
engine starts it for runs with --track."""

import argparse
import contextlib
import os
import sys
from dataclasses import asdict
from typing import Any

from rlhf_lab.cli.console import add_command, open_existing_database, print_result, seconds
from rlhf_lab.common.process_env import hide_environment
from rlhf_lab.common.records import TRACKER_KEY, Run
from rlhf_lab.errors import ClaimedError, ConfigError
from rlhf_lab.jobs.run_tracking import Tracker
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import add_note, get_run


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "track",
        "log a run or a reward model to trackio, Weights & Biases or TensorBoard",
        "It sends the steps that the tracker lacks, and follows a run in progress until it ends. What is started with --track "
        "needs no such command (docs/COMMAND_LINE.md).",
        run=run,
    )
    parser.add_argument("run_id", metavar="RUN", type=int, nargs="?", help="id of the run")
    parser.add_argument(
        "--reward-model", type=int, default=None, metavar="ID", help="log the training of this reward model, not a run"
    )
    parser.add_argument(
        "--to", required=True, metavar="TRACKER", help="trackio, wandb or tensorboard; trackio:PROJECT, wandb:PROJECT"
    )
    parser.add_argument(
        "--wait", type=seconds, default=0.0, metavar="SECONDS",
        help="how long to wait for another process that logs the same to this tracker (default 0)",
    )  # fmt: skip


def set_route(run: Run | None, to: str) -> Tracker:
    """The tracker of --to; this process keeps only the variables that it needs. If the run recorded this tracker, its data go
    where the run began to send them, whatever the environment says. run: None for a reward model. Raises ConfigError."""
    recorded, variables = run.manifest.get(TRACKER_KEY) if run is not None else None, dict(os.environ)
    if isinstance(recorded, dict) and recorded.get("name") == to.partition(":")[0]:
        variables = dict(Tracker.from_record(recorded).route)
    tracker = Tracker.parse(to, variables)
    environment = tracker.environment()
    os.environ.clear()
    os.environ.update(environment)
    return tracker


def run(args: argparse.Namespace) -> int:
    """Raises LabError."""
    hide_environment()
    if (args.run_id is None) == (args.reward_model is None):
        raise ConfigError("Give the id of a run, or --reward-model with the id of a reward model.")
    if hasattr(os, "nice"):
        os.nice(10)  # the training comes first
    with open_existing_database(args.home) as db, contextlib.redirect_stdout(sys.stderr):  # trackers print
        result, text = _log_run(args, db) if args.reward_model is None else _log_reward_model(args, db)
    print_result(args, result, text)
    sys.stdout = sys.stderr  # trackio prints again at the exit
    return 0


def _log_run(args: argparse.Namespace, db: Database) -> tuple[dict[str, Any], str]:
    from rlhf_lab.engine.tracker_process import RunLogger

    try:
        tracker = set_route(get_run(db, args.run_id), args.to)
        position = RunLogger(db, args.home, args.run_id, tracker).execute(args.wait)
    except (ConfigError, ClaimedError) as error:
        if args.wait:  # of the engine, which does not read what this process prints
            add_note(db, args.run_id, f"not logged to {args.to}: {error}", 0, tracker=1, failed=1)
        raise
    text = f"{tracker.name} has run {args.run_id} up to step {position.step}"
    return {"run": args.run_id, "to": tracker.name} | asdict(position), text


def _log_reward_model(args: argparse.Namespace, db: Database) -> tuple[dict[str, Any], str]:
    from rlhf_lab.engine.tracker_process import RewardModelLogger

    tracker = set_route(None, args.to)
    logger = RewardModelLogger(db, args.home, args.reward_model, tracker)
    position = logger.execute(args.wait)
    text = (
        tracker.success(position.name, logger.look) if logger.look else f"{tracker.name} has {logger.subject} already"
    )
    result = {"reward_model": args.reward_model, "to": tracker.name, "look": logger.look}
    return result | asdict(position), text
