"""A lab with a few texts in it."""

from collections.abc import Callable

import pytest
from support.databases import *  # noqa: F403

from rlhf_lab.common.records import NewCompletion, Pair, Project
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database


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
