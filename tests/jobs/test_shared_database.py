"""A lab whose tables are not in its home: page, commands, imports and engine use the database of RLHF_LAB_STORE."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.databases import POSTGRES, ROOT, empty_database

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import EngineState, JobKind, JobStatus, Source
from rlhf_lab.common.paths import STORE_VARIABLE
from rlhf_lab.errors import EngineError, StoreError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store.database import Database, lab_exists
from rlhf_lab.store.votes import vote_counts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.import_process import run_in_subprocess


@pytest.fixture(params=["sqlite", *(["postgresql"] if POSTGRES else [])])
def other_database(request, tmp_path, monkeypatch):
    url = (
        empty_database("elsewhere")
        if request.param == "postgresql"
        else f"sqlite:///{tmp_path / 'other' / 'tables.sqlite'}"
    )
    monkeypatch.setenv(STORE_VARIABLE, url)
    return url


def names(home: Path) -> set[str]:
    return {path.name for path in home.iterdir()}


@pytest.mark.parametrize("other_database", ["postgresql" if POSTGRES else "sqlite"], indirect=True)
def test_page_commands_imports_and_engine_share_one_database(other_database, home, tmp_path, capsys):
    assert not lab_exists(home)
    ctx = Context.open(home)
    assert lab_exists(home)
    project = ctx.project
    assert main(["label", "--judge", "cheerful", "--count", "3", "--home", str(home), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == 3
    assert sum(vote_counts(ctx.db, project.id)[Source.SIMULATED].values()) == 3

    votes = tmp_path / "votes.csv"
    votes.write_text("prompt,chosen,rejected\nOnce,a cat,a dog\n")
    requests = {"what": str(votes), "home": str(home), "project": project.id, "save": True, "annotator": "ann"}
    assert run_in_subprocess(requests)["saved"]["votes"] == 1
    assert sum(vote_counts(ctx.db, project.id)[Source.HUMAN].values()) == 1

    expected = {"prompts": ["Once"], "max_new_tokens": 4}
    job = queue.submit(ctx.db, JobKind.COMPLETE, project.id, expected)
    engine = [sys.executable, "-m", "rlhf_lab.engine", "--home", str(home), "--idle-exit", "0.2", "--threads", "1"]
    subprocess.run(engine, cwd=ROOT, check=True, timeout=300)
    done = queue.get_job(ctx.db, job.id)
    assert (done.status, len(done.result["texts"])) == (JobStatus.DONE, 1)
    assert engine_process.engine_state(ctx.db).row.stopped_at is not None

    main(["doctor", "--home", str(home), "--json"])
    outputs = json.loads(capsys.readouterr().out)["checks"][f"home {home}"]
    assert outputs["ok"]
    assert f"its tables in {ctx.db.location}; 1 project" in outputs["what"]
    assert "lab.db" not in names(home)
    assert {"engine.log"} <= names(home)
    ctx.db.close()


def test_two_homes_with_one_database_are_one_lab(other_database, home):
    with Database.open(home) as one, Database.open(str(home)) as two, Database.open(other_database) as three:
        queue.submit(one, JobKind.COMPLETE, None, {"n": 7})
        assert [[job.payload for job in queue.jobs(db)] for db in (two, three)] == [[{"n": 7}]] * 2


def test_an_engine_of_another_machine_is_replaced_after_a_minute_without_heartbeat(db, home, engine_row, monkeypatch):
    engine_id = engine_row(host="elsewhere", pid=42)
    now = engine_process.time.time()
    started = []
    monkeypatch.setattr(
        engine_process, "start_engine", lambda *_: started.append(1) or engine_process.ProcessIdentity("here", 1, now)
    )
    monkeypatch.setattr(engine_process.time, "time", lambda: now + engine_process.GONE_AFTER_S - 1)
    assert engine_process.ensure_engine(db, home).state is EngineState.DEAD
    assert not started
    monkeypatch.setattr(engine_process.time, "time", lambda: now + engine_process.GONE_AFTER_S + 1)
    assert engine_process.ensure_engine(db, home).row.id != engine_id
    assert started == [1]


def test_stop_engine_says_on_which_machine_to_stop_it(other_database, home, capsys):
    with Database.open(home) as db, db.write() as conn:
        conn.execute(engine_process.t.engines.insert().values(
            host="gpu-box", pid=42, process_started=1.0, started_at=1.0, beat_at=engine_process.time.time(), state="idle",
            device="cuda",
        ))  # fmt: skip
    assert main(["stop-engine", "--home", str(home), "--json"]) == 1
    outputs = json.loads(capsys.readouterr().out)
    assert outputs == {"error": "The engine runs on gpu-box (pid 42): stop it there.", "kind": EngineError.__name__}


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("mysql://lab@host/lab", "SQLite or PostgreSQL, not in mysql"),
        ("/data/lab.db", "database URL cannot be read"),
        ("sqlite:///lab.db", "absolute path"),
    ],
)
def test_invalid_database_urls_are_refused(home, monkeypatch, url, match):
    monkeypatch.setenv(STORE_VARIABLE, url)
    with pytest.raises(StoreError, match=match):
        Database.open(home)


def test_a_home_that_cannot_be_created_is_an_error(other_database, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Check that it is a folder"):
        Database.open(tmp_path / "file" / "home")


def test_an_empty_variable_counts_as_unset(home, monkeypatch):
    monkeypatch.setenv(STORE_VARIABLE, "")
    Database.open(home).close()
    assert "lab.db" in names(home)
    assert os.environ[STORE_VARIABLE] == ""
