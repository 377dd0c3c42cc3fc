"""Helpers of the commands: their parsers, common arguments, progress display, JSON output, the engine lock."""

import argparse
import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rlhf_lab.common.bundled_assets import PROMPT_SETS
from rlhf_lab.common.paths import default_home
from rlhf_lab.common.person_names import is_blank
from rlhf_lab.common.private_files import make_private_folder
from rlhf_lab.common.records import ChatSettings, Project
from rlhf_lab.errors import ConfigError, EngineError, StoreError
from rlhf_lab.exporters.json_io import to_strict_json
from rlhf_lab.jobs.project_setup import parse_template_arguments
from rlhf_lab.store.database import Database, lab_exists
from rlhf_lab.store.projects import current_project, open_project

LAST_PROJECT = "the project opened last"  # that a command uses without --project
PROMPT_SET_HELP = f"prompts of a new project: {', '.join(PROMPT_SETS)} (default: chosen for the model)"
MAX_NEW_TOKENS_HELP = "longest text of a new project, in tokens (default 64)"
PROPOSED_TEMPERATURE = "default: the model's own, else 0.7 with a chat template and 1 without"


class ProgressReporter(Protocol):
    """Shows progress: fraction done, seconds left if known, a short message. A new phase is always printed."""

    def __call__(self, fraction: float, eta_s: float | None, message: str = "", *, new_phase: bool = False) -> None: ...


def full_path(text: str) -> Path:
    """The type of an argument that names a file or a folder."""
    return Path(text).expanduser().resolve()


def port_number(text: str) -> int:
    """The type of an argument that is a port; 0 takes a free one. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 65535")
    return int(text)


def number_from(low: int) -> Callable[[str], int]:
    """The type of an argument that is a whole number, at least `low`, which is 0 or more. It raises ArgumentTypeError."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {low} on")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """The type of an argument that is a duration. Raises ArgumentTypeError, and ValueError for no number."""
    if not 0 <= (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 on")
    return value


def name_of_person(text: str) -> str:
    """The type of an argument that is the name of a person. Raises ArgumentTypeError."""
    if is_blank(text):
        raise argparse.ArgumentTypeError("a name must not be empty")
    return text.strip()


def add_command(
    subparsers: Any, name: str, summary: str, details: str = "", *, run: Any, project: str = ""
) -> argparse.ArgumentParser:
    """Add a command with --home and --json. The list of commands shows the summary; its own --help starts with the summary and
    the details.

    project: adds --project, and says for the help which project, or which ones, the command uses without it.
    """
    parser = add_plain_command(subparsers, name, summary, details, run=run)
    home = default_home()
    parser.add_argument(
        "--home", type=full_path, default=full_path(str(home)), help=f"the lab's folder (default {home})"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output, nothing else")
    if project:
        parser.add_argument("--project", type=int, default=None, help=f"project id (default: {project})")
    return parser


def add_plain_command(
    subparsers: Any, name: str, summary: str, details: str, *, run: Any = None
) -> argparse.ArgumentParser:
    """Add a command that uses no lab."""
    description = f"{summary[:1].upper()}{summary[1:]}. {details}".rstrip()
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=summary, description=description)
    parser.set_defaults(run=run)
    return parser


def add_open_argument(parser: argparse.ArgumentParser) -> None:
    """Add --open, without which no command changes which project the page shows."""
    parser.add_argument(
        "--open", action="store_true", default=None, help="show this project on the page, to everybody who uses the lab"
    )


def show_project(args: argparse.Namespace, db: Database, project: Project) -> str:
    """Open the project if --open is given. Returns a note that begins with a space if it is new and not open, otherwise ""."""
    if args.open:
        open_project(db, project.id)
    current = current_project(db)
    if current is None or project.id in (current.id, args.project):
        return ""
    return (
        f' The page and commands without --project stay in project {current.id} ("{current.name}"): add --project '
        f"{project.id} to commands, and open it under Project, or with --open."
    )


def add_chat_arguments(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add the options for a system prompt and template arguments. help_text: help of the system prompt."""
    parser.add_argument("--system-prompt", default=None, metavar="TEXT", help=help_text)
    parser.add_argument(
        "--template-arguments", default=None, metavar="JSON",
        help='arguments of the model\'s chat template, such as \'{"enable_thinking": true}\' (default: thinking is off)',
    )  # fmt: skip


def chat_settings(args: argparse.Namespace) -> ChatSettings | None:
    """The settings of `add_chat_arguments`; None if neither is given. Raises ConfigError."""
    if args.system_prompt is None and args.template_arguments is None:
        return None
    return ChatSettings(args.system_prompt or "", parse_template_arguments(args.template_arguments or ""))


def open_existing_database(home: Path) -> Database:
    """Open the lab in a home. Raises StoreError if there is none, so that a mistyped home does not create an empty lab."""
    if not lab_exists(home):
        raise StoreError(f"There is no lab in {home}. Give its folder with --home.")
    return Database.open(home)


def reject_options(args: argparse.Namespace, names: Iterable[str], reason: str) -> None:
    """Raises ConfigError if options were given that would have no effect. names: of options without a default."""
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, "")]
    if given:
        raise ConfigError(f"{', '.join(given)}: {reason}")


def make_output_folder(folder: Path) -> None:
    """Create the folder of --out before a training, to be sure that the result can be saved. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be written ({error}). Give another --out.") from error
    if not is_empty:
        raise ConfigError(f"the folder {folder} is not empty. Give another --out, so that nothing is overwritten.")


def print_result(args: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    """Print the result as JSON with --json (null for NaN and infinities), otherwise the text."""
    print(json.dumps(to_strict_json(result), default=str) if args.json else text)


@contextlib.contextmanager
def progress_reporter(title: str) -> Iterator[ProgressReporter]:
    """A progress bar on a terminal, otherwise lines. Written to standard error, to keep the output of --json clean."""
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
            bar.update(task, completed=fraction, left=f"{_format_eta(eta_s)} {message}".strip())

        yield report


def _line_reporter(title: str) -> ProgressReporter:
    """Print a line at each new phase and at every tenth of the work."""
    last_tenth = -1

    def report(fraction: float, eta_s: float | None, message: str = "", *, new_phase: bool = False) -> None:
        nonlocal last_tenth
        tenth = int(10 * fraction + 1e-9)
        if new_phase or tenth > last_tenth:
            text = ", ".join(filter(None, (f"{100 * fraction:.0f} %", message, _format_eta(eta_s))))
            print(f"{title}: {text}", file=sys.stderr, flush=True)
        last_tenth = max(last_tenth, tenth)

    return report


def _format_eta(eta_s: float | None) -> str:
    if eta_s is None:
        return ""
    minutes, seconds = divmod(round(eta_s), 60)
    return f"{minutes} min {seconds} s left" if minutes else f"{seconds} s left"


@contextlib.contextmanager
def engine_lock(home: Path) -> Iterator[None]:
    """Hold the home's engine lock, so that this process can act as its engine. Raises EngineError while an engine runs."""
    make_private_folder(home)
    lock = FileLock(home / "engine.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise EngineError(
            f"an engine is already running on {home}, and a home can have only one. Wait for it, stop it, or give "
            "another --home."
        ) from error
    with lock:
        yield
