"""Page and engine are killed: no data is lost, the page reports what happened, and the run continues."""

import os
import signal
import sqlite3

import pytest
from browser_lab import press_key
from helpers import ENGINE_TIMEOUT_MS, open_tab, wait_status, wait_step
from prepared_labs import FAST_CONFIG, lab_with_reward_models
from test_full_journey import open_training

from rlhf_lab.common.enums import Source
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import run_control
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project


@pytest.fixture
def lab(tmp_path):
    """Also has the labels of a judge and a reward model."""
    with lab_with_reward_models(tmp_path / "home", Source.SIMULATED, FAST_CONFIG) as lab:
        yield lab


def test_killed_engine_and_killed_page_lose_nothing(lab, open_page):
    with Database.open(lab.home) as db:
        config = PolicyConfig(steps=400, batch_size=8, checkpoint_every=1)
        run_control.start_run(db, lab.home, current_project(db).id, config)
    page = open_training(lab, open_page)
    wait_step(page, 3)

    os.kill(lab.engine_pid(), signal.SIGKILL)  # the page's process restarts it
    page.wait_for_function(
        "() => /engine (lost|starts|idle)/.test(document.querySelector('.lab-header').innerText)",
        timeout=ENGINE_TIMEOUT_MS,
    )
    with sqlite3.connect(lab.home / "lab.db") as db:
        at = db.execute("SELECT step FROM runs").fetchone()[0]
    wait_step(page, at + 2)

    open_tab(page, "Label")
    press_key(page, "1")
    lab.kill()  # the engine continues without the page
    open_page.console_messages.clear()
    page.wait_for_function("() => document.body.classList.contains('lab-offline')", timeout=ENGINE_TIMEOUT_MS)
    open_page.console_messages.clear()  # connection errors while the server is down are expected
    lab.start()
    with sqlite3.connect(lab.home / "lab.db") as db:
        assert db.execute("SELECT count(*) FROM votes WHERE source = 'human'").fetchone() == (1,)
        at = db.execute("SELECT step FROM runs").fetchone()[0]
    page.context.close()
    open_page.console_messages.clear()
    reopened = open_training(lab, open_page)
    wait_step(reopened, at + 1)
    reopened.click("[data-do=stop]")
    wait_status(reopened, "stopped")
