"""Scores of completions, and how often reward models predicted the votes; expected counts worked by hand."""

import math
import uuid
from collections.abc import Callable

import pytest
from support.databases import undo_vote

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import LabelSnapshot, Pair, Project, RewardPredictionStats, Vote
from rlhf_lab.common.stats import clustered_interval
from rlhf_lab.errors import StoreError
from rlhf_lab.store import reward_models, votes
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_scores import _scores_of, add_scores, prediction_accuracy, unjudged_pairs

HUMAN, SIMULATED = Source.HUMAN, Source.SIMULATED


def vote(db: Database, pair: Pair, choice: Choice, at: float, source: Source = HUMAN, annotator: str = "ann") -> Vote:
    created = Vote(str(uuid.uuid4()), pair.id, annotator, source, choice, True, created_at=at)
    return votes.cast_vote(db, created)


def model(db: Database, project: Project, at: float, trained_on: list[Vote], source: Source = HUMAN) -> int:
    pinned = LabelSnapshot(tuple(one.id for one in trained_on), "", source)
    row = reward_models.add_reward_model(db, project.id, "", config={}, report={}, snapshot=pinned)
    with db.write() as conn:
        conn.execute(t.reward_models.update().where(t.reward_models.c.id == row.id).values(created_at=at))
    return row.id


def scores_of(db: Database, reward_model_id: int, completion_ids: list[int]) -> dict[int, float]:
    with db.read() as conn:
        return _scores_of(conn, reward_model_id, completion_ids)


def test_scores_come_back_replaced_and_with_nan(db: Database, project: Project, make_pairs: Callable) -> None:
    pair = make_pairs(1)[0]
    first, second = model(db, project, 1.0, []), model(db, project, 2.0, [])
    add_scores(db, first, {pair.first.id: 0.5, pair.second.id: math.nan})
    add_scores(db, first, {pair.first.id: -1.5})
    add_scores(db, second, {pair.first.id: 9.0})
    add_scores(db, second, {})
    actual = scores_of(db, first, [pair.first.id, pair.second.id, 999])
    assert actual[pair.first.id] == -1.5
    assert math.isnan(actual[pair.second.id])
    assert actual.keys() == {pair.first.id, pair.second.id}
    with pytest.raises(StoreError):
        add_scores(db, 999, {pair.first.id: 0.0})


def test_prediction_accuracy_by_hand(db: Database, project: Project, make_pairs: Callable) -> None:
    """Seven pairs; every side "first" scores 1 and "second" 0 under the old model, the opposite under the new one."""
    p = make_pairs(7)
    before_model = vote(db, p[0], Choice.FIRST, 5.0)
    old = model(db, project, 10.0, [before_model])
    other_source = model(db, project, 12.0, [], SIMULATED)
    vote(db, p[0], Choice.FIRST, 15.0, annotator="bob")  # the old model was trained on this pair
    vote(db, p[1], Choice.FIRST, 15.0)  # right
    vote(db, p[2], Choice.SECOND, 15.0)  # wrong
    vote(db, p[3], Choice.TIE, 15.0)  # not decided
    vote(db, p[4], Choice.FIRST, 15.0)  # scored on one side only
    new = model(db, project, 20.0, [])
    vote(db, p[5], Choice.SECOND, 25.0)  # right for the new model, wrong for the old
    vote(db, p[6], Choice.FIRST, 25.0, SIMULATED, "judge:x")
    undone = vote(db, p[6], Choice.SECOND, 25.0)
    undo_vote(db, project.id, "ann")
    assert undone.id
    for i, pair in enumerate(p):
        add_scores(db, old, {pair.first.id: 1.0} | ({} if i == 4 else {pair.second.id: 0.0}))
        add_scores(db, new, {pair.first.id: 0.0, pair.second.id: 1.0})
        add_scores(db, other_source, {pair.first.id: 2.0, pair.second.id: 2.0})
    actual = prediction_accuracy(db, project.id, HUMAN)
    assert (actual.right, actual.decided) == (2, 3)
    # Wilson by hand, z = 1.96, 2 of 3: 0.2077 to 0.9385
    assert (actual.low, actual.high) == pytest.approx((0.2077, 0.9385), abs=5e-4)
    simulated = prediction_accuracy(db, project.id, SIMULATED)  # equal scores are half right
    assert (simulated.right, simulated.decided) == (0.5, 1)


def test_votes_of_several_people_on_a_pair_are_a_cluster(db: Database, project: Project, make_pairs: Callable) -> None:
    """Three people agree about each of six pairs, and the model is right about four of these."""
    created = model(db, project, 10.0, [])
    for i, pair in enumerate(make_pairs(6)):
        add_scores(db, created, {pair.first.id: 1.0, pair.second.id: 0.0})
        for annotator in ("ann", "bob", "cy"):
            vote(db, pair, Choice.FIRST if i < 4 else Choice.SECOND, 15.0, annotator=annotator)
    actual = prediction_accuracy(db, project.id, HUMAN)
    assert (actual.right, actual.decided) == (12, 18)
    assert (actual.low, actual.high) == clustered_interval([(3, 3)] * 4 + [(0, 3)] * 2)


def test_actively_selected_pairs_are_counted_apart(db: Database, project: Project, make_pairs: Callable) -> None:
    reasons = (
        "random",
        "shipped",
        "import of uncertainty",
        "uncertainty: gap",
        "uncertainty: ensemble",
        "information",
        "diversity",
    )
    p = make_pairs(len(reasons))
    created = model(db, project, 10.0, [])
    for pair, reason in zip(p, reasons, strict=True):
        with db.write() as conn:
            conn.execute(t.pairs.update().where(t.pairs.c.id == pair.id).values(reason=reason))
        add_scores(db, created, {pair.first.id: 1.0, pair.second.id: 0.0})
        vote(db, pair, Choice.SECOND if reason in ("shipped", "diversity") else Choice.FIRST, 15.0)
    actual = prediction_accuracy(db, project.id, HUMAN)
    assert (actual.right, actual.decided, actual.chosen_right, actual.chosen_decided) == (2, 3, 3, 4)
    # Wilson by hand, z = 1.96, 2 of 3: 0.2077 to 0.9385
    assert (actual.low, actual.high) == pytest.approx((0.2077, 0.9385), abs=5e-4)


def test_a_vote_at_the_time_of_the_model_is_not_predicted_by_it(
    db: Database, project: Project, make_pairs: Callable
) -> None:
    (pair,) = make_pairs(1)
    add_scores(db, model(db, project, 10.0, []), {pair.first.id: 1.0, pair.second.id: 0.0})
    vote(db, pair, Choice.FIRST, 10.0)
    assert prediction_accuracy(db, project.id, HUMAN) == RewardPredictionStats(0, 0, 0.0, 1.0)
    vote(db, pair, Choice.FIRST, 10.5, annotator="bob")
    assert prediction_accuracy(db, project.id, HUMAN).right == 1
    assert prediction_accuracy(db, project.id, HUMAN).high == 1.0


def test_unjudged_are_the_newest_pairs_without_a_live_vote_of_a_person(
    db: Database, project: Project, make_pairs: Callable
) -> None:
    p = make_pairs(5)
    vote(db, p[4], Choice.FIRST, 1.0)
    vote(db, p[3], Choice.SECOND, 2.0, SIMULATED, "judge:x")
    vote(db, p[2], Choice.FIRST, 3.0)
    undo_vote(db, project.id, "ann")
    assert [pair.id for pair in unjudged_pairs(db, project.id, 3)] == [p[1].id, p[2].id, p[3].id]
    assert len(unjudged_pairs(db, project.id, 400)) == 4
    assert unjudged_pairs(db, project.id + 1, 400) == []


def test_scores_go_with_their_reward_model(db: Database, project: Project, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    created = model(db, project, 1.0, [])
    add_scores(db, created, {pair.first.id: 1.0})
    with db.write() as conn:
        conn.execute(t.reward_models.delete().where(t.reward_models.c.id == created))
    assert scores_of(db, created, [pair.first.id]) == {}
