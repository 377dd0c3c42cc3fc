"""A lab without an engine, for the screens."""

import asyncio
import shutil
import traceback
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from gradio.context import LocalContext
from support.page_requests import requests_of

from rlhf_lab.common import passwords
from rlhf_lab.jobs import engine_process
from rlhf_lab.store.database import Database
from rlhf_lab.ui import body_limits
from rlhf_lab.ui.auth import ended_sessions
from rlhf_lab.ui.context import OPERATOR_HEADER, Context
from rlhf_lab.ui.shared.presence import PRESENCE


@pytest.fixture
def ctx(tmp_path, project_home, monkeypatch):
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: None)
    with Database.open(shutil.copytree(project_home, tmp_path, dirs_exist_ok=True)) as db:
        PRESENCE.clear()  # shared in this process: it contains visitors of earlier tests
        yield Context(tmp_path, db)


@pytest.fixture
def in_loop():
    """in_loop(make): call `make` in a running event loop; otherwise gr.Blocks would open a loop and not close it."""

    async def inside(make):
        return make()

    return lambda make: asyncio.run(inside(make))


@pytest.fixture
def blocking_calls(monkeypatch):
    """Calls that can wait for the database or the disk, made in an event loop's thread: meanwhile nobody is answered."""
    found = []

    def watch(owner, name):
        function = getattr(owner, name)

        def watched(*arguments, **options):
            if asyncio._get_running_loop() is not None:
                found.append(f"{name} at {''.join(traceback.format_stack(limit=8)[:-1])}")
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    for name in ("read", "write"):
        watch(Database, name)
    watch(body_limits, "folder_size")
    watch(ended_sessions, "write_file_atomically")
    watch(passwords, "verify_password")
    return found


@pytest.fixture
def send_secret():
    """send_secret(secret): from now on the current request is that of a browser which stores this operator's secret."""
    tokens = []

    def send(secret):
        headers = {"host": "lab.example", OPERATOR_HEADER: quote(secret)}
        tokens.append(LocalContext.request.set(SimpleNamespace(cookies={}, headers=headers)))

    yield send
    for token in reversed(tokens):
        LocalContext.request.reset(token)


@pytest.fixture
def calls():
    """calls(module, ctx): the requests of a screen by name, as the page sends them."""
    return lambda module, ctx: requests_of(ctx, module.api)
