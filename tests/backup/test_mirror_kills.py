"""A process that saves and restores is killed at random moments. The Hub is slow, fails, limits the rate and drops connections.

Every vote that was reported as saved is restored, and no home is restored partially.
"""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.mirror_hub import MirrorHub

from rlhf_lab.backup.hub_mirror import HubMirror
from rlhf_lab.backup.hub_repository import HubRepository
from rlhf_lab.backup.mirror_records import read_state
from rlhf_lab.store.database import Database, lab_exists

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 4.0  # from the start of a process to its end


def votes_of(database):
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {uuid for (uuid,) in connection.execute("SELECT uuid FROM votes")}


def stored_before(log, moment):
    """The votes that a process stored before a moment; its last line may be incomplete."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return {line[0] for line in lines if len(line) == 2 and float(line[1]) < moment}


def saved_votes(home, log):
    """The votes of a process that the state of the mirror reports as saved."""
    state = read_state(home)
    return stored_before(log, state.saved_at) if state is not None and state.saved_at is not None else set()


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_no_vote_that_was_reported_as_saved_is_lost(home, tmp_path, monkeypatch, kills):
    hub, rng = MirrorHub(tmp_path / "hub"), random.Random(f"{kills} kills")
    reported, restores, interrupted_restores, commits = set(), 0, 0, 0
    with hub.running():
        environment = os.environ | hub.environment(tmp_path / "cache") | {"PYTHONPATH": str(ROOT)}
        with monkeypatch.context() as patch:
            hub.use(patch, tmp_path / "cache")
            HubMirror(home, HubRepository("someone/lab")).save()
        reported |= votes_of(home / "lab.db")
        for kill in range(kills):
            hub.fault_share, hub.slow_s = rng.choice([(0.0, 0.0), (0.05, 0.02), (0.15, 0.05)])
            if is_new_machine := rng.random() < 0.5:
                shutil.rmtree(home, ignore_errors=True)
            log = tmp_path / f"votes-{kill}"
            command = [sys.executable, str(ROOT / "tests/support/saving_process.py"), str(home), str(log)]
            with (tmp_path / "output").open("wb") as output:
                process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
                try:
                    while not log.exists():
                        time.sleep(0.01)
                        assert process.poll() is None, (tmp_path / "output").read_text()[-2000:]
                    if kill == 0:  # at least one vote is reported as saved, on any machine
                        while not saved_votes(home, log):
                            time.sleep(0.05)
                            assert process.poll() is None, (tmp_path / "output").read_text()[-2000:]
                    time.sleep(rng.uniform(0.0, LONGEST_S))
                    assert process.poll() is None, (tmp_path / "output").read_text()[-2000:]
                finally:
                    process.kill()
                    process.wait()
            time.sleep(0.2)  # the Hub completes requests that it has received
            reported |= saved_votes(home, log)
            (tmp_path / "head.db").write_bytes(hub.content("lab.db"))
            assert reported <= votes_of(tmp_path / "head.db")
            if lab_exists(home):
                with Database.open(home):
                    assert reported <= votes_of(home / "lab.db")
            restores += is_new_machine and lab_exists(home)
            interrupted_restores += is_new_machine and not lab_exists(home)
            commits = hub.stages.count("commit")
    print(
        f"{kills} kills: {len(reported)} votes reported as saved, {commits} requests to commit, {restores} complete restores, "
        f"{interrupted_restores} interrupted ones; faults: {dict(hub.fault_counts)}"
    )
    assert len(reported) > 3
