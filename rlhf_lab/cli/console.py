"""What the commands share: the home, the progress line, the JSON answer."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rlhf_lab.common.paths import default_home
from rlhf_lab.errors import EngineError, StoreError
from rlhf_lab.store.database import Database, lab_exists


class ProgressReporter(Protocol):
    """show(share done, seconds left or None, a few words); begins: a new part of the work does, which is always told"""

    def __call__(self, fraction: float, eta_s: float | None, message: str = "", *, new_phase: bool = False) -> None: ...


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, default=None, help=f"the lab's folder (default {default_home()})")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")


def resolve_home(args: argparse.Namespace) -> Path:
    return (args.home or default_home()).expanduser().resolve()


def open_existing_database(home: Path) -> Database:
    """The lab in a home. A mistyped home would otherwise become an empty lab. Raises StoreError where there is none."""
    if not lab_exists(home):
        raise StoreError(f"There is no lab in {home}. Say where it is with --home.")
    return Database.open(home)


def print_result(args: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    """Print the result as JSON, or the text for people."""
    print(json.dumps(result, default=str) if args.json else text)


@contextlib.contextmanager
def progress_reporter(title: str) -> Iterator[ProgressReporter]:
    """A progress bar with time left on a terminal, lines elsewhere. Goes to standard error, so that --json stays clean."""
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stderr.isatty():
        yield _line_reporter(title)
        return
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0, left="")

        def report(fraction: float, eta_s: float | None, message: str = "", *, new_phase: bool = False) -> None:
            remaining = "" if eta_s is None else f"{_format_duration(eta_s)} left"
            bar.update(task, completed=fraction, left=f"{remaining} {message}".strip())

        yield report


def _line_reporter(title: str) -> ProgressReporter:
    """A line where a part begins and at every tenth of the work."""
    last_tenth = -1

    def report(fraction: float, eta_s: float | None, message: str = "", *, new_phase: bool = False) -> None:
        nonlocal last_tenth
        tenth = int(10 * fraction + 1e-9)
        if new_phase or tenth > last_tenth:
            remaining = "" if eta_s is None else f"{_format_duration(eta_s)} left"
            text = ", ".join(filter(None, (f"{100 * fraction:.0f} %", message, remaining)))
            print(f"{title}: {text}", file=sys.stderr, flush=True)
        last_tenth = max(last_tenth, tenth)

    return report


def _format_duration(seconds: float) -> str:
    rounded = round(seconds)
    return f"{rounded // 60} min {rounded % 60} s" if rounded >= 60 else f"{rounded} s"


@contextlib.contextmanager
def engine_lock(home: Path) -> Iterator[None]:
    """Hold the home's engine lock: work in this process as its engine. Raises EngineError while an engine is there."""
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home / "engine.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise EngineError(
            f"an engine is at work on {home}, and one home has one engine. Wait for it, stop it, or give another --home."
        ) from error
    with lock:
        yield
