"""A lab with votes, a reward model and a run with three checkpoints, whose files are written by the fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.backup_homes import add_checkpoint, add_reward_model

from rlhf_lab.common.enums import Choice, RunStatus, Source
from rlhf_lab.common.records import NewCompletion, StepResult, Vote
from rlhf_lab.store import projects, runs, votes
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import record_step


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """3 votes of Ann; reward model "m"; run 1 at step 3, running, with checkpoints 1 (the adapter alone), 2 and 3; keys, own
    reward functions, and files that belong to no snapshot."""
    home = tmp_path / "home"
    with Database.open(home) as db:
        project = projects.create_project(
            db, "tales", "embedded", "abc", "tales", 7, [("Once", "train"), ("Far", "eval")]
        )
        prompt = projects.prompts(db, project.id, "train")[0]
        texts = projects.add_completions(
            db, [NewCompletion(prompt.id, f"text {n}", (n, 1), "base", n) for n in range(6)]
        )
        pairs = projects.add_pairs(db, project.id, [(texts[n].id, texts[n + 1].id, "random") for n in (0, 2, 4)])
        for pair in pairs:
            votes.cast_vote(db, Vote(f"uuid-{pair.id}", pair.id, "Ann", Source.HUMAN, Choice.FIRST, True))
        add_reward_model(db, home, "m")
        run = runs.create_run(db, project.id, 1, "first", config={}, manifest={}, total_steps=6)
        for step in (1, 2, 3):
            record_step(db, run.id, StepResult(step, {"kl": float(step)}))
            add_checkpoint(home, run.id, step, resumable=step > 1, best=1)
        runs.set_run_status(db, run.id, RunStatus.RUNNING)
    for name, content in {
        "access.json": '{"key": "00"}',
        "ended_sessions.json": "{}",
        "speed.json": "[]",
        "rewards/mine.py": "def reward(text): return 1.0",
        "rewards/__pycache__/mine.pyc": "cache",
        "engine.log": "a line",
        "engine.lock": "",
        "runs/1/writer.json": "{}",
        "runs/1/.building-step-000004-1/state.json": "{}",
        "exports/1/labels.jsonl": "{}",
        "lab.db.corrupt-20260101T000000Z": "broken",
    }.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return home


@pytest.fixture
def db(home: Path) -> Iterator[Database]:
    with Database.open(home) as opened:
        yield opened
