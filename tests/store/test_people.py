"""The people of a lab that is full."""

from collections.abc import Callable

import pytest
from sqlalchemy import update

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, Project, Vote
from rlhf_lab.errors import LabelError
from rlhf_lab.store import annotators, pair_leases, votes
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import known_names
from rlhf_lab.store.project_people import set_expert


def test_a_full_lab_forgets_those_who_did_nothing(
    db: Database, project: Project, make_pairs: Callable[[int], list[Pair]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody with the join code may fill it with names."""
    monkeypatch.setattr(annotators, "MAX_LAB_PEOPLE", 5)
    (pair, _) = make_pairs(2)
    for name in ("Voter", "Reader", "Expert", "Idle"):
        annotators.add_person(db, name)
    votes.cast_vote(db, Vote("u", pair.id, "Voter", Source.HUMAN, Choice.FIRST, True))
    pair_leases.lease_pair(db, project.id, "Reader")
    set_expert(db, project.id, "Expert", True)
    with db.write() as conn:
        conn.execute(update(t.people).values(joined_at=t.people.c.joined_at - annotators.IDLE_S - 1))
    for name in ("New", "Newer"):
        annotators.add_person(db, name)
    assert known_names(db) == ["Expert", "New", "Newer", "Reader", "Voter"]
    with pytest.raises(LabelError, match="maximum number of people"):
        annotators.add_person(db, "Newest")
