"""`python -m rlhf_lab doctor`: versions, disk, memory, store, engine, model: what is wrong and how to mend it."""

import argparse
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import psutil

from rlhf_lab.assets import embedded_folder, weights_digest
from rlhf_lab.cli.common import add_common, answer, home_of
from rlhf_lab.errors import LabError
from rlhf_lab.jobs.supervisor import engine_state
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import projects
from rlhf_lab.store.runs import runs

PACKAGES = ("torch", "transformers", "peft", "gradio", "SQLAlchemy")
LEAST_FREE_MB = 500


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="look for what is wrong with this installation and this home")
    add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit status 1 when something is wrong."""
    home = home_of(args)

    def store() -> str:
        with Database.open(home) as db:
            engine = engine_state(db)
            pid = f" (pid {engine.row.process.pid})" if engine.row is not None else ""
            return f"{len(projects(db))} projects, {len(runs(db))} runs; engine {engine.state.value}{pid}"

    def disk() -> str:
        free = shutil.disk_usage(home if home.exists() else home.anchor).free >> 20
        return _enough(free, "disk space", "Delete old runs or give another --home.")

    def memory() -> str:
        return _enough(psutil.virtual_memory().available >> 20, "memory", "Close other programs.")

    checks: dict[str, Callable[[], str]] = {
        "system": lambda: f"Python {platform.python_version()} on {platform.platform()}",
        "packages": lambda: ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "embedded model": lambda: weights_digest(embedded_folder())[:16],
        "disk": disk,
        "memory": memory,
        f"home {home}": store,
    }
    results = {name: _look(check) for name, check in checks.items()}
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


def _enough(free_mb: int, what: str, remedy: str) -> str:
    if free_mb < LEAST_FREE_MB:
        raise OSError(f"only {free_mb} MB of {what} are free. {remedy}")
    return f"{free_mb} MB free"
