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

from rlhf_lab.errors import EngineError, StoreError
from rlhf_lab.home import default_home
from rlhf_lab.store.database import Database, is_there


class Show(Protocol):
    """show(share done, seconds left or None, a few words); begins: a new part of the work does, which is always told"""

    def __call__(self, share: float, left: float | None, words: str = "", *, begins: bool = False) -> None: ...


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, default=None, help=f"the lab's folder (default {default_home()})")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")


def home_of(args: argparse.Namespace) -> Path:
    return (args.home or default_home()).expanduser().resolve()


def lab_there(home: Path) -> Database:
    """The lab in a home. A mistyped home would otherwise become an empty lab. Raises StoreError where there is none."""
    if not is_there(home):
        raise StoreError(f"There is no lab in {home}. Say where it is with --home.")
    return Database.open(home)


def answer(args: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    """Print the result as JSON, or the text for people."""
    print(json.dumps(result, default=str) if args.json else text)


@contextlib.contextmanager
def progress_line(title: str) -> Iterator[Show]:
    """A progress bar with time left on a terminal, lines elsewhere. Goes to standard error, so that --json stays clean."""
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stderr.isatty():
        yield _lines(title)
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

        def show(share: float, left: float | None, words: str = "", *, begins: bool = False) -> None:
            remaining = "" if left is None else f"{_minutes(left)} left"
            bar.update(task, completed=share, left=f"{remaining} {words}".strip())

        yield show


def _lines(title: str) -> Show:
    """A line where a part begins and at every tenth of the work."""
    told = -1

    def show(share: float, left: float | None, words: str = "", *, begins: bool = False) -> None:
        nonlocal told
        tenth = int(10 * share + 1e-9)
        if begins or tenth > told:
            remaining = "" if left is None else f"{_minutes(left)} left"
            said = ", ".join(filter(None, (f"{100 * share:.0f} %", words, remaining)))
            print(f"{title}: {said}", file=sys.stderr, flush=True)
        told = max(told, tenth)

    return show


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


@contextlib.contextmanager
def alone_on(home: Path) -> Iterator[None]:
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
