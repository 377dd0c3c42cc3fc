"""A lab without an engine, for the screens."""

import asyncio

import pytest

from rlhf_lab.jobs import supervisor
from rlhf_lab.jobs.setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.ui.context import Context


@pytest.fixture
def ctx(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "ensure_engine", lambda db, home: None)  # no engine: the store alone is looked at
    with Database.open(tmp_path) as db:
        new_project(db)
        yield Context(tmp_path, db)


@pytest.fixture
def in_loop():
    """in_loop(make): what `make` makes, inside a running event loop: Gradio's blocks would open and leave one otherwise."""

    async def inside(make):
        return make()

    return lambda make: asyncio.run(inside(make))
