"""`python -m rlhf_lab import-run FILE`: the metrics of a run that was made elsewhere, to compare them with the lab's runs."""

import argparse
from pathlib import Path
from typing import Any

from rlhf_lab.cli.console import (
    LAST_PROJECT,
    add_command,
    full_path,
    open_existing_database,
    print_result,
)
from rlhf_lab.errors import ConfigError
from rlhf_lab.importers.run_metrics import read_metrics, visible
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.jobs.run_control import MAX_RUN_NAME_CHARS, check_name, delete
from rlhf_lab.store.runs import get_run


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "import-run",
        "import the metrics of a run that was made elsewhere, to compare it under Runs & data",
        "The lab has no model of such a run: it can be compared, renamed and deleted, and nothing else.",
        run=run,
        project=LAST_PROJECT,
    )
    add = parser.add_argument
    add("file", metavar="FILE|FOLDER", type=full_path, nargs="?",
        help="trainer_state.json of TRL or the folder with it, or a JSON Lines, JSON, CSV or Parquet file with a row for each "
             "step")  # fmt: skip
    add("--name", default=None, help="its name in the lab (default: that of the file's folder)")
    add("--updates-per-step", type=int, default=1, metavar="N",
        help="combine N steps of the file into one, with the means of their values (default 1; the README of a recipe gives "
             "N)")  # fmt: skip
    add("--undo", type=int, default=None, metavar="RUN", help="delete a run that was imported")


def run(args: argparse.Namespace) -> int:
    """Raises LabError."""
    if (args.file is None) == (args.undo is None):
        raise ConfigError("Give the file with the metrics, or --undo with the id of a run.")
    if args.undo is not None:
        with open_existing_database(args.home) as db:
            if not get_run(db, args.undo, made_elsewhere=True).outside_file:
                raise ConfigError(f"Run {args.undo} is one of the lab's own. Delete it on the page under Runs & data.")
            delete(db, args.home, args.undo)
        print_result(args, {"deleted": args.undo}, f"run {args.undo} was deleted")
        return 0
    path: Path = args.file
    metrics = read_metrics(path, args.updates_per_step)
    folder = path if path.is_dir() else path.parent
    name = check_name(args.name or visible(f"{folder.name}/{metrics.file}")[-MAX_RUN_NAME_CHARS:])
    with open_existing_database(args.home) as db:
        run_id = metrics.add_run(db, pick_project(db, args.project).id, name)
    result = {
        "run": run_id, "name": name, "steps": len(metrics.steps), "metrics": metrics.names, "ignored": list(metrics.ignored),
        "texts": metrics.text_count, "replaced": metrics.replaced_count,
    }  # fmt: skip
    print_result(args, result, f"run {run_id}: {metrics.summary()}")
    return 0
