"""`python -m rlhf_lab doctor`: checks versions, device, disk, memory, port, store and engine, and suggests remedies."""

import argparse
import contextlib
import http.client
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from rlhf_lab.cli.console import add_command, port_number, print_result
from rlhf_lab.common.bundled_assets import embedded_model_folder, weights_digest
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, EngineState
from rlhf_lab.common.paths import database_url_override
from rlhf_lab.common.program_names import lab_command, page_command
from rlhf_lab.common.records import EngineRow
from rlhf_lab.common.storage import storage_note
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import EngineError, LabError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.engine_process import OUTPUT_FILE, engine_state, is_gone, start_failure
from rlhf_lab.store.database import Database, lab_exists
from rlhf_lab.store.projects import projects
from rlhf_lab.store.runs import runs

PACKAGES = ("torch", "transformers", "peft", "gradio", "SQLAlchemy")
MIN_FREE_MB = 500
DEFAULT_PORT = 7860
TORCH_TIMEOUT_S = 120.0
EXIT_CONFIG_ERROR = 78  # EX_CONFIG of sysexits.h: a setting is invalid, torch itself works
BFLOAT16_HINT = "; with RLHF_LAB_DTYPE=bfloat16 PPO takes half the time on this processor, which has AMX tiles"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
#: Runs in a subprocess: importing torch takes seconds, and a broken installation may crash the process.
_DEVICE_SCRIPT = f"""
import sys, torch
from rlhf_lab.errors import ModelError
from rlhf_lab.kernels.compile import describe, layer_backend
from rlhf_lab.config.dtype import default_dtype
has_gpu = torch.cuda.is_available()
try:
    dtype = default_dtype(gpu=has_gpu and torch.cuda.is_bf16_supported(including_emulation=False))
except ModelError as error:
    print(error, file=sys.stderr)
    sys.exit({EXIT_CONFIG_ERROR})
if has_gpu:
    free, total = torch.cuda.mem_get_info()
    print(f"{{torch.cuda.get_device_name()}}, {{free // 10**6}} of {{total // 10**6}} MB free, trains in {{dtype}}")
else:
    hint = "{BFLOAT16_HINT}" if dtype == "float32" and layer_backend(torch.bfloat16) == "tiles" else ""
    kernels = describe(getattr(torch, dtype))
    print(f"CPU, {{torch.get_num_threads()}} threads, trains in {{dtype}}, {{kernels}}{{hint}}")
"""


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "doctor",
        "check this installation and this home",
        "It suggests a remedy for each problem. The exit status is 1 if there is one.",
        run=run,
    )
    parser.add_argument(
        "--port", type=port_number, default=DEFAULT_PORT, help=f"port of the page (default {DEFAULT_PORT})"
    )


def run(args: argparse.Namespace) -> int:
    """Run all checks. The exit status is 1 if one fails."""
    home: Path = args.home
    checks: dict[str, Callable[[], str]] = {
        "system": lambda: f"Python {platform.python_version()} on {platform.platform()}",
        "packages": lambda: ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "embedded model": lambda: weights_digest(embedded_model_folder())[:16],
        "device": check_device,
        "browser": check_browser,
        "port": lambda: check_port(args.port),
        "disk": lambda: _check_free(
            shutil.disk_usage(_nearest_existing(home)).free, "disk space", "Delete old runs or give another --home."
        ),
        "memory": lambda: _check_free(psutil.virtual_memory().available, "memory", "Close other programs."),
    }
    results = {name: _run_check(check) for name, check in checks.items()} | dict(_check_home(home))
    healthy = all(ok for ok, _ in results.values())
    report = {name: {"ok": ok, "what": message} for name, (ok, message) in results.items()}
    lines = "\n".join(f"{'ok     ' if ok else 'PROBLEM'} {name}: {message}" for name, (ok, message) in results.items())
    print_result(args, {"ok": healthy, "checks": report}, lines)
    return 0 if healthy else 1


def _run_check(check: Callable[[], str]) -> tuple[bool, str]:
    """Run a check; returns (passed, message)."""
    try:
        return True, check()
    except (LabError, OSError, ImportError) as error:
        return False, str(error)


def _check_home(home: Path) -> Iterator[tuple[str, tuple[bool, str]]]:
    """Checks of the home and, if it can be opened, of the engine."""
    name = f"home {home}"
    if not lab_exists(home):
        parent = _nearest_existing(home)
        yield name, _run_check(lambda: f"{check_writable(parent)}; there is no lab yet: {page_command()} creates one")
        return
    try:
        with Database.open(home) as db:
            yield name, _run_check(lambda: check_store(db, home))
            yield "engine", _run_check(lambda: check_engine(db, home))
    except LabError as error:
        yield name, (False, str(error))


def check_store(db: Database, home: Path) -> str:
    """A description of the store. Raises OSError or StoreError if the folder or the database cannot be written."""
    with db.write():
        pass
    database_note = f"its tables in {db.location}; " if database_url_override() else ""
    journal_note = (
        f"a rollback journal instead of a write-ahead log, because {db.wal_problem}; " if db.wal_problem else ""
    )
    counts = f"{pluralize(len(projects(db)), 'project')}, {pluralize(len(runs(db)), 'run')}"
    return f"{check_writable(home)}{storage_note(home)}; {journal_note}{database_note}{counts}"


def check_writable(folder: Path) -> str:
    """A message that files can be created. Raises OSError if they cannot."""
    with tempfile.TemporaryFile(dir=folder):
        return "writable"


def check_device() -> str:
    """The device that torch uses. Raises OSError if torch cannot be used, or for an invalid RLHF_LAB_DTYPE."""
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _DEVICE_SCRIPT], capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False,
            cwd=_PACKAGE_ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(
            f"torch could not be imported within {TORCH_TIMEOUT_S:.0f} s. The machine is very busy, or its disk very "
            "slow."
        ) from None
    if completed.returncode != 0:
        last_line = (completed.stderr.strip().splitlines() or [f"it ended with exit status {completed.returncode}"])[-1]
        if completed.returncode == EXIT_CONFIG_ERROR:
            raise OSError(last_line)
        raise OSError(f"torch cannot be used: {last_line}. Install it again: pip install -r requirements.txt")
    return completed.stdout.strip()


def check_browser() -> str:
    playwright = "is installed" if importlib.util.find_spec("playwright") else "is not installed"
    return f"any recent browser shows the page; playwright, which only the tests need, {playwright}"


def check_port(port: int) -> str:
    """Whether the page can be served on a port. Raises OSError if another program uses it."""
    with socket.socket() as probe:
        if os.name == "posix":  # like servers, so that connections in TIME_WAIT do not block the port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            if _serves_lab(port):
                return f"{port} serves the lab's page already: http://127.0.0.1:{port}"
            raise OSError(
                f"{port} cannot be used ({error}). Give another: {page_command()} --port {port + 1}"
            ) from error
    return f"{port} is free: the page can use it"


def _serves_lab(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            return b"RLHF Lab" in connection.getresponse().read(1 << 20)
    except (OSError, http.client.HTTPException):
        return False


def check_engine(db: Database, home: Path) -> str:
    """The state of the engine. Raises EngineError with advice if it hangs, or if it died with unfinished jobs."""
    status = engine_state(db)
    waiting_count = len(queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES))
    jobs_text = "nothing waits"
    if waiting_count:
        jobs_text = f"{waiting_count} {'job waits' if waiting_count == 1 else 'jobs wait'}"
    row = status.row
    if row is None or status.state is EngineState.ABSENT:
        return f"none is running and {jobs_text}; the page, and each command that needs an engine, starts one"
    process_label = f"pid {row.process.pid} on {row.process.host}"
    if status.state is EngineState.STARTING:
        return f"starting for {_format_age(row.started_at)} ({process_label})"
    if status.state is EngineState.ALIVE:
        memory = f", {row.memory_mib * 2**20 / 1e6:.0f} MB" if row.memory_mib is not None else ""
        activity = f"{row.state}; last heartbeat {_heartbeat_age(row)}"
        return f"alive ({process_label}): {activity}; {row.device or 'no model loaded'}{memory}; {jobs_text}"
    if not is_gone(row):
        raise EngineError(
            f"{process_label} does not respond, last heartbeat {_heartbeat_age(row)}; {jobs_text}. If this persists, "
            f"stop it with `{lab_command()} stop-engine`: a run continues from its last checkpoint. See "
            f"{home / OUTPUT_FILE}."
        )
    if failure := start_failure(status, home):
        raise EngineError(failure)
    message = f"{process_label} ended unexpectedly, last heartbeat {_heartbeat_age(row)}"
    if waiting_count == 0:
        return f"{message}; no job is waiting, and the next engine starts automatically"
    raise EngineError(
        f"{message}; {jobs_text}. Open the page ({page_command()}) or run a command that trains: the next engine takes "
        f"the waiting jobs, a run from its last checkpoint. Its last output is in {home / OUTPUT_FILE}."
    )


def _heartbeat_age(row: EngineRow) -> str:
    return "never" if row.beat_at is None else f"{_format_age(row.beat_at)} ago"


def _format_age(timestamp: float) -> str:
    seconds = max(0.0, time.time() - timestamp)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _nearest_existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent if it does not exist yet."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _check_free(free_bytes: int, resource: str, remedy: str) -> str:
    """Raises OSError if less than MIN_FREE_MB are free."""
    free_mb = free_bytes // 10**6
    if free_mb < MIN_FREE_MB:
        raise OSError(f"only {free_mb} MB of {resource} are free. {remedy}")
    return f"{free_mb} MB free"
