"""`python -m rlhf_lab backup FILE` and `restore FILE`: write a whole lab to one file, and restore it."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from rlhf_lab.backup.archive import Manifest, read_manifest, restore_backup, write_backup
from rlhf_lab.cli.console import (
    add_command,
    full_path,
    open_existing_database,
    print_result,
    progress_reporter,
)
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import ConfigError
from rlhf_lab.store.database import lab_exists
from rlhf_lab.store.projects import projects
from rlhf_lab.store.runs import runs


def add_parser(subparsers: Any) -> None:
    backup = add_command(
        subparsers,
        "backup",
        "write the whole lab to one file, also while it is in use",
        "The file contains names and keys of the lab: keep it private.",
        run=run_backup,
    )
    backup.add_argument("file", metavar="FILE", type=full_path, help="the backup, such as lab.zip")
    backup.add_argument("--force", action="store_true", help="replace an existing file")
    restore = add_command(
        subparsers,
        "restore",
        "restore a backup into a home",
        "If the home has a lab already, the command asks first, and keeps the old data in a folder of the home.",
        run=run_restore,
    )
    restore.add_argument("file", metavar="FILE", type=full_path, help="a backup that `backup` or the page made")
    restore.add_argument(
        "--yes", action="store_true", help="replace the lab of the home without asking; its data are kept"
    )


def run_backup(args: argparse.Namespace) -> int:
    home, file = args.home, args.file
    with progress_reporter("backup") as report:
        manifest = write_backup(home, file, lambda fraction: report(fraction, None), force=args.force)
    text = (
        f"{file}: {file.stat().st_size / 1e6:,.1f} MB, {_describe(manifest)}.\nKeep it private: it contains names, notes and "
        "the keys of the lab. `restore` makes it a lab again."
    )
    print_result(args, _result(manifest) | {"file": str(file), "bytes": file.stat().st_size}, text)
    return 0


def run_restore(args: argparse.Namespace) -> int:
    home, file = args.home, args.file
    manifest = read_manifest(file)
    replace = args.yes or (lab_exists(home) and _confirms(home, manifest))
    with progress_reporter("restore") as report:
        old = restore_backup(file, home, lambda fraction: report(fraction, None), replace=replace)
    with open_existing_database(home) as db:
        counts = f"{pluralize(len(projects(db)), 'project')}, {pluralize(len(runs(db)), 'run')}"
    old_text = (
        f"\nThe data that were there before are kept in {old}; delete that folder when you do not need it."
        if old
        else ""
    )
    text = f"{home}: restored {_describe(manifest)}; {counts}.{old_text}"
    print_result(args, _result(manifest) | {"home": str(home), "old": str(old) if old else None}, text)
    return 0


def _confirms(home: Path, manifest: Manifest) -> bool:
    """Ask on the terminal whether to replace the lab. Raises ConfigError without a terminal, or if the answer is no."""
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{home} has a lab already. With --yes the backup takes its place (its data are kept in a folder of the home); or "
            "choose another folder with --home."
        )
    print(f"{home} has a lab already. Its data will be kept in a folder of the home.", file=sys.stderr)
    print(f"Replace it by {_describe(manifest)}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("Nothing was restored.")
    return True


def _describe(manifest: Manifest) -> str:
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.created_at))
    return f"the backup of {made} (lab {manifest.lab_version}, schema {manifest.schema_revision}, {len(manifest.files)} files)"


def _result(manifest: Manifest) -> dict[str, Any]:
    return {
        "created_at": manifest.created_at,
        "lab_version": manifest.lab_version,
        "schema": manifest.schema_revision,
        "files": len(manifest.files),
    }
