"""Tournaments in the store: pairs on screens, answers, deletion."""

from functools import partial

import pytest

from rlhf_lab.common.enums import Choice, JobKind, JobStatus
from rlhf_lab.common.records import PairKey, Project
from rlhf_lab.errors import StaleVoteError, StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.quality.tournament import Contestant, choose_pair
from rlhf_lab.store import tournaments as store
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows, known_names
from rlhf_lab.store.visitor_data import remove_visitor_data

CONTESTANTS = [Contestant(model, [f"{model} {i}" for i in range(2)], None, [0.0] * 2) for model in ("base", "run/1/4")]


def chooser(annotator: str):
    return lambda answers, since: choose_pair(CONTESTANTS, answers, annotator, since)


@pytest.fixture
def tournament(db: Database, project: Project):
    return store.add_tournament(db, project.id, queue.submit(db, JobKind.TOURNAMENT, project.id, {}).id)


def lease(db, tournament, annotator, now=None):
    return store.lease_tournament_pair(db, tournament.id, annotator, chooser(annotator), now=now)


def test_nobody_gets_a_pair_that_another_person_looks_at(db, tournament):
    first = lease(db, tournament, "ann", 100.0)
    assert lease(db, tournament, "ann", 101.0) == first
    second = lease(db, tournament, "bob", 102.0)
    assert {first, second} == {PairKey(0, 0, 1), PairKey(1, 0, 1)}
    assert lease(db, tournament, "eve", 103.0) is None
    assert lease(db, tournament, "eve", 102.5 + store.LEASE_S) in (first, second)


def test_one_answer_of_a_person_to_a_pair(db, tournament):
    key = lease(db, tournament, "ann")
    other = PairKey(1 - key.position, 0, 1)
    give = partial(store.answer_tournament_pair, db, tournament.id)
    give("ann", key, Choice.SECOND)
    for annotator, pair in (("ann", key), ("ann", other), ("bob", key)):
        with pytest.raises(StaleVoteError, match="Nothing was recorded"):
            give(annotator, pair, Choice.FIRST)
    (answer,) = store.tournament_answers(db, tournament.id)
    assert (answer.annotator, answer.key, answer.choice) == ("ann", key, Choice.SECOND)


def test_deleting_a_tournament(db, project, tournament):
    other = store.add_tournament(db, project.id, tournament.job_id)
    lease(db, tournament, "ann")
    assert store.tournaments(db, project.id) == [other, tournament]
    store.delete_tournament(db, tournament.id)
    assert store.tournaments(db, project.id) == [other]
    assert store.tournament_answers(db, tournament.id) == []
    assert queue.get_job(db, tournament.job_id).status is JobStatus.CANCELLED
    with pytest.raises(StoreError, match="no tournament"):
        lease(db, tournament, "ann")


@pytest.mark.parametrize("with_answers", [False, True])
def test_an_erased_person_is_named_nowhere(db, tournament, with_answers):
    store.answer_tournament_pair(db, tournament.id, "ann", lease(db, tournament, "ann"), Choice.TIE)
    lease(db, tournament, "ann")
    assert known_names(db) == ["ann"]
    erase_person_rows(db, "ann", votes=with_answers)
    answers = store.tournament_answers(db, tournament.id)
    assert [answer.choice for answer in answers] == ([] if with_answers else [Choice.TIE])
    assert known_names(db) == []


def test_the_reset_of_a_demo_removes_visitors_answers_alone(db, tournament):
    for name in ("ann", "Olga"):
        store.answer_tournament_pair(db, tournament.id, name, lease(db, tournament, name), Choice.TIE)
    queue.cancel(db, tournament.job_id)
    assert remove_visitor_data(db, 0.0, {"Olga"})
    assert [answer.annotator for answer in store.tournament_answers(db, tournament.id)] == ["Olga"]
