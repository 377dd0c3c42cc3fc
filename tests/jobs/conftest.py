"""An empty lab, scripts in processes of their own, and engines that only pretend."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def db(home: Path) -> Iterator[Database]:
    with Database.open(home) as opened:
        yield opened


@pytest.fixture
def script(home: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python script in a new process; it finds the lab at sys.argv[1]. None outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", source, str(home), *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def engine_row(db: Database) -> Callable[..., int]:
    """Write a row as an engine would; by default one of this very process that beat just now."""

    def write(**changes: object) -> int:
        me = psutil.Process()
        values = {
            "host": socket.gethostname(),
            "pid": me.pid,
            "process_started": me.create_time(),
            "started_at": time.time() - 60,
            "beat_at": time.time(),
            "state": "idle",
            "device": "cpu",
        }
        with db.write() as conn:
            return insert_row(conn, t.engines, {**values, **changes})

    return write
