"""Rows of engines without a process."""

import socket
import time
from collections.abc import Callable

import psutil
import pytest
from support.databases import *  # noqa: F403

from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row


@pytest.fixture
def engine_row(db: Database) -> Callable[..., int]:
    """Write a row as an engine would; by default that of this process, with a heartbeat of just now."""

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
