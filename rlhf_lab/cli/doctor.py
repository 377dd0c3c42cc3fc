"""`python -m rlhf_lab doctor`: versions, device, disk, memory, port, store, engine: what is wrong and how to mend it."""

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

from rlhf_lab.assets import embedded_folder, weights_digest
from rlhf_lab.cli.common import add_common, answer, home_of
from rlhf_lab.counted import counted
from rlhf_lab.errors import EngineError, LabError
from rlhf_lab.home import store_elsewhere
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.supervisor import OUTPUT, engine_state, is_gone
from rlhf_lab.kinds import OPEN, EngineState
from rlhf_lab.records import EngineRow
from rlhf_lab.store.database import Database, is_there
from rlhf_lab.store.projects import projects
from rlhf_lab.store.runs import runs

PACKAGES = ("torch", "transformers", "peft", "gradio", "SQLAlchemy")
LEAST_FREE_MB = 500
PORT = 7860
TORCH_TIMEOUT_S = 120.0
SAID_WRONGLY = 78  # sysexits' EX_CONFIG: nothing but a person's setting is wrong
TWICE = "; with RLHF_LAB_DTYPE=bfloat16 PPO takes half the time on this processor, which has tiles for it (AMX)"
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
#: In a process of its own: torch takes seconds to import, and a broken installation may end the process that imports it.
_DEVICE = f"""
import sys, torch
from rlhf_lab.errors import ModelError
from rlhf_lab.fused.library import described, layers_by
from rlhf_lab.precision import usual
has = torch.cuda.is_available()
try:
    dtype = usual(gpu=has and torch.cuda.is_bf16_supported(including_emulation=False))
except ModelError as error:
    print(error, file=sys.stderr)
    sys.exit({SAID_WRONGLY})
if has:
    free, total = torch.cuda.mem_get_info()
    print(f"{{torch.cuda.get_device_name()}}, {{free // 10**6}} of {{total // 10**6}} MB free, trains in {{dtype}}")
else:
    twice = dtype == "float32" and layers_by(torch.bfloat16) == "tiles"
    kernels = described(getattr(torch, dtype))
    print(f"CPU, {{torch.get_num_threads()}} threads, trains in {{dtype}}, {{kernels}}" + "{TWICE}" * twice)
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="look for what is wrong with this installation and this home")
    add_common(parser)
    parser.add_argument("--port", type=int, default=PORT, help=f"the port the page is to be served on (default {PORT})")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit status 1 when something is wrong."""
    home = home_of(args)
    checks: dict[str, Callable[[], str]] = {
        "system": lambda: f"Python {platform.python_version()} on {platform.platform()}",
        "packages": lambda: ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "embedded model": lambda: weights_digest(embedded_folder())[:16],
        "device": device,
        "browser": browser,
        "port": lambda: port(args.port),
        "disk": lambda: _enough(
            shutil.disk_usage(_existing(home)).free, "disk space", "Delete old runs or give another --home."
        ),
        "memory": lambda: _enough(psutil.virtual_memory().available, "memory", "Close other programs."),
    }
    results = {name: _look(check) for name, check in checks.items()} | dict(_look_at_home(home))
    healthy = all(ok for ok, _ in results.values())
    report = {name: {"ok": ok, "what": what} for name, (ok, what) in results.items()}
    lines = "\n".join(f"{'ok     ' if ok else 'PROBLEM'} {name}: {what}" for name, (ok, what) in results.items())
    answer(args, {"ok": healthy, "checks": report}, lines)
    return 0 if healthy else 1


def _look(check: Callable[[], str]) -> tuple[bool, str]:
    try:
        return True, check()
    except (LabError, OSError, ImportError) as error:
        return False, str(error)


def _look_at_home(home: Path) -> Iterator[tuple[str, tuple[bool, str]]]:
    """The home, and the engine where the home can be opened."""
    name = f"home {home}"
    if not is_there(home):
        yield name, _look(lambda: f"{writable(_existing(home))}; no lab there yet: python app.py makes one")
        return
    try:
        with Database.open(home) as db:
            yield name, _look(lambda: store(db, home))
            yield "engine", _look(lambda: engine(db, home))
    except LabError as error:
        yield name, (False, str(error))


def store(db: Database, home: Path) -> str:
    """Raises OSError or StoreError when the folder or the database does not take what is written."""
    with db.write():
        pass
    elsewhere = f"its tables in {db.where}; " if store_elsewhere() else ""
    return f"{writable(home)}; {elsewhere}{counted(len(projects(db)), 'project')}, {counted(len(runs(db)), 'run')}"


def writable(folder: Path) -> str:
    """Raises OSError where no file can be made."""
    with tempfile.TemporaryFile(dir=folder):
        return "writable"


def device() -> str:
    """What torch will work on. Raises OSError when torch cannot be used, or the precision is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DEVICE], capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False,
            cwd=_PACKAGE_ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(
            f"torch could not be imported within {TORCH_TIMEOUT_S:.0f} s. The machine is very busy, or its disk very slow."
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        if done.returncode == SAID_WRONGLY:
            raise OSError(last)
        raise OSError(f"torch cannot be used: {last}. Install it again: pip install -r requirements.txt")
    return done.stdout.strip()


def browser() -> str:
    there = "is installed" if importlib.util.find_spec("playwright") else "is not installed"
    return f"any recent one shows the page; playwright and its Chromium are for the project's own tests only ({there})"


def port(number: int) -> str:
    """Whether the page can be served on a port of this machine. Raises OSError when another program has it."""
    with socket.socket() as tried:
        if os.name == "posix":
            tried.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as servers do: a closed one's leftovers do not count
        try:
            tried.bind(("127.0.0.1", number))
        except (OSError, OverflowError) as error:
            if _is_the_lab(number):
                return f"{number} serves the lab's page already: http://127.0.0.1:{number}"
            raise OSError(
                f"{number} cannot be used ({error}). Give another: python app.py --port {number + 1}"
            ) from error
    return f"{number} is free"


def _is_the_lab(number: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", number, timeout=3)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            return b"RLHF Lab" in connection.getresponse().read(1 << 20)
    except (OSError, http.client.HTTPException):
        return False


def engine(db: Database, home: Path) -> str:
    """How the engine is. Raises EngineError with the remedy when it is not as it should be."""
    status = engine_state(db)
    waiting = len(queue.jobs(db, statuses=OPEN))
    jobs = f"{waiting} {'job waits' if waiting == 1 else 'jobs wait'}" if waiting else "nothing waits"
    row = status.row
    if row is None or status.state is EngineState.ABSENT:
        return f"none runs and {jobs}; the page, and each command that needs one, starts it"
    who = f"pid {row.process.pid} on {row.process.host}"
    if status.state is EngineState.STARTING:
        return f"starts since {_ago(row.started_at)} ({who})"
    if status.state is EngineState.ALIVE:
        memory = f", {row.memory_mb * 2**20 / 1e6:.0f} MB" if row.memory_mb is not None else ""
        return f"alive ({who}): {row.state}; last heartbeat {_beat(row)}; {row.device or 'no model loaded'}{memory}; {jobs}"
    if not is_gone(row):
        raise EngineError(
            f"{who} is there but silent, last heartbeat {_beat(row)}; {jobs}. If that lasts, end it with "
            f"`python -m rlhf_lab stop-engine`: a run goes on from its last checkpoint. See {home / OUTPUT}."
        )
    gone = f"{who} ended without a word, last heartbeat {_beat(row)}"
    if waiting == 0:
        return f"{gone}; nothing waits for it, and the next one starts by itself"
    raise EngineError(
        f"{gone}; {jobs}. Open the page (python app.py) or give a command that trains: the next engine takes up what waits, a "
        f"run from its last checkpoint. Its last words are in {home / OUTPUT}."
    )


def _beat(row: EngineRow) -> str:
    return "never" if row.beat_at is None else f"{_ago(row.beat_at)} ago"


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there: its disk is the one that will be written to."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _enough(free: int, what: str, remedy: str) -> str:
    """free: bytes."""
    free_mb = free // 10**6
    if free_mb < LEAST_FREE_MB:
        raise OSError(f"only {free_mb} MB of {what} are free. {remedy}")
    return f"{free_mb} MB free"
