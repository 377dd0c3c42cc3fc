"""A lab with a few texts in it, and scripts run in processes of their own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_lab.records import NewCompletion, Pair, Project
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def db(home: Path) -> Iterator[Database]:
    with Database.open(home) as opened:
        yield opened


@pytest.fixture
def project(db: Database) -> Project:
    return projects.create_project(
        db, "tales", "assets/model", "abc", "tiny tales", 7, [("Once", "train"), ("There", "train"), ("Far", "eval")]
    )


@pytest.fixture
def make_pairs(db: Database, project: Project) -> Callable[[int], list[Pair]]:
    """n pairs of texts "a0"/"b0", "a1"/"b1" … for the prompt "Once"; token ids [i, 1] and [i, 2]."""

    def make(n: int) -> list[Pair]:
        prompt = projects.prompts(db, project.id, "train")[0]
        new = [
            NewCompletion(prompt.id, f"{side}{i}", (i, 1 + (side == "b")), "base", i) for i in range(n) for side in "ab"
        ]
        added = projects.add_completions(db, new)
        return projects.add_pairs(db, project.id, [(added[2 * i].id, added[2 * i + 1].id, "random") for i in range(n)])

    return make


@pytest.fixture
def script(home: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
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
