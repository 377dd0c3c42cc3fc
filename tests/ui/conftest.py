"""A lab without an engine, for the screens."""

import asyncio
from types import SimpleNamespace

import pytest

from rlhf_lab.jobs import engine_process
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.ui.context import Context


@pytest.fixture
def ctx(tmp_path, monkeypatch):
    monkeypatch.setattr(
        engine_process, "ensure_engine", lambda db, home: None
    )  # no engine: the store alone is looked at
    with Database.open(tmp_path) as db:
        new_project(db)
        yield Context(tmp_path, db)


@pytest.fixture
def in_loop():
    """in_loop(make): what `make` makes, inside a running event loop: Gradio's blocks would open and leave one otherwise."""

    async def inside(make):
        return make()

    return lambda make: asyncio.run(inside(make))


@pytest.fixture
def calls(monkeypatch):
    """calls(module, ctx, *events): the first of the `reads` of a module's part, as `read`, and the handler of each event by the
    event's name, as the page calls them."""

    def of(module, ctx, *events):
        found = SimpleNamespace()

        def widget(name, *, server_functions=(), **_):
            found.read = next(iter(server_functions), None)

            def keeper(event):
                return lambda handler, *_, **__: setattr(found, event, handler)

            return SimpleNamespace(**{event: keeper(event) for event in events})

        monkeypatch.setattr(module, "widget", widget)
        module.build(ctx, None)
        return found

    return of
