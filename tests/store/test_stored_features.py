"""Features of texts: stored in half precision, replaced, deleted with their texts, and computed for the texts that need them."""

from collections.abc import Callable

import numpy as np
import pytest
from support.databases import undo_vote

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import Pair, Project, Vote
from rlhf_lab.store import features, votes
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import (
    PairLabel,
    TextFeatures,
    add_features,
    load_features,
    newest_labels,
    texts_without_features,
)


def vote(db: Database, pair: Pair, choice: Choice = Choice.FIRST, annotator: str = "ann", **fields: object) -> Vote:
    source = Source.SIMULATED if annotator.startswith("judge:") else Source.HUMAN
    new_vote = Vote(f"{annotator} {pair.id} {choice}", pair.id, annotator, source, choice, True, **fields)
    return votes.cast_vote(db, new_vote)


def store(db: Database, *completion_ids: int) -> None:
    add_features(db, {i: TextFeatures(2, np.array([i, -0.5], np.float16)) for i in completion_ids})


def missing(db: Database, project: Project, limit: int = 100) -> list[str]:
    return [completion.text for _, completion in texts_without_features(db, project.id, limit)]


def test_features_come_back_in_half_precision(db: Database, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    vector = np.array([0.1, -65504.0, 6e-8, 2049.0], np.float16)  # 2 bytes each: 2049 rounds to 2048
    add_features(db, {pair.first.id: TextFeatures(2, vector), pair.second.id: TextFeatures(2, vector[:0])})
    found = load_features(db, [pair.first.id, pair.second.id, 999])
    assert found[pair.first.id].layers == 2
    assert found[pair.first.id].vector.tolist() == vector.tolist()
    assert found[pair.first.id].vector[3] == 2048
    assert found[pair.second.id].vector.shape == (0,)
    assert found.keys() == {pair.first.id, pair.second.id}
    with db.read() as conn:
        stored = conn.execute(t.features.select().where(t.features.c.completion_id == pair.first.id)).one()
    assert len(stored.vector) == 8


def test_features_are_replaced_and_deleted_completions_get_none(db: Database, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    store(db, pair.first.id)
    add_features(
        db, {pair.first.id: TextFeatures(1, np.array([7.0], np.float16)), 999: TextFeatures(1, np.zeros(1, np.float16))}
    )
    found = load_features(db, [pair.first.id, 999])
    assert {i: one.vector.tolist() for i, one in found.items()} == {pair.first.id: [7.0]}


def test_features_go_with_their_text(db: Database, make_pairs: Callable) -> None:
    first, second = make_pairs(2)
    store(db, first.first.id, second.first.id)
    with db.write() as conn:
        conn.execute(t.pairs.delete().where(t.pairs.c.id == first.id))
        conn.execute(t.completions.delete().where(t.completions.c.id == first.first.id))
    assert load_features(db, [first.first.id, second.first.id]).keys() == {second.first.id}


def test_features_of_another_version_are_computed_again(
    db: Database, project: Project, make_pairs: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pair,) = make_pairs(1)
    store(db, pair.first.id, pair.second.id)
    assert missing(db, project) == []
    monkeypatch.setattr(features, "FEATURE_VERSION", features.FEATURE_VERSION + 1)
    assert missing(db, project) == ["a0", "b0"]
    assert load_features(db, [pair.first.id]) == {}
    store(db, pair.first.id)
    assert missing(db, project) == ["b0"]
    assert load_features(db, [pair.first.id, pair.second.id]).keys() == {pair.first.id}


def test_newest_labels_are_live_decided_or_ties_and_no_repeats(
    db: Database, project: Project, make_pairs: Callable
) -> None:
    p = make_pairs(6)
    old = vote(db, p[0], Choice.SECOND, strength=Strength.MUCH)
    vote(db, p[1], Choice.SKIP)
    vote(db, p[2], Choice.TIE)
    vote(db, p[0], Choice.FIRST, repeat=True)
    vote(db, p[3], Choice.FIRST, "judge:x")
    vote(db, p[4])
    undo_vote(db, project.id, "ann")
    other = vote(db, p[0], Choice.FIRST, "bob")
    labels = newest_labels(db, project.id, Source.HUMAN)
    prompt_id = p[0].prompt.id
    assert labels[0] == PairLabel(old.id, p[0].id, prompt_id, p[0].first.id, p[0].second.id, Choice.SECOND, 2.0)
    assert [(label.pair_id, label.choice, label.strength) for label in labels[1:]] == [
        (p[2].id, Choice.TIE, 0.0),
        (p[0].id, Choice.FIRST, 0.0),
    ]
    assert [label.vote_id for label in newest_labels(db, project.id, Source.HUMAN, 1)] == [other.id]
    assert [label.pair_id for label in newest_labels(db, project.id, Source.SIMULATED)] == [p[3].id]
    assert newest_labels(db, project.id + 1, Source.HUMAN) == []


def test_labelled_texts_come_first_the_newest_before_older_ones(
    db: Database, project: Project, make_pairs: Callable
) -> None:
    p = make_pairs(5)
    for pair in (p[1], p[3]):
        vote(db, pair)
    vote(db, p[3], annotator="judge:x")
    store(db, p[3].second.id, p[4].first.id, p[4].second.id)
    assert missing(db, project) == ["a3", "a1", "b1", "a0", "b0", "a2", "b2"]
    assert missing(db, project, 3) == ["a3", "a1", "b1"]
    prompt, completion = texts_without_features(db, project.id, 1)[0]
    assert (prompt.text, completion) == ("Once", p[3].first)
    assert texts_without_features(db, project.id + 1, 9) == []
    store(db, p[3].first.id, p[1].first.id, p[1].second.id, p[0].first.id, p[0].second.id)
    assert missing(db, project, 1) == ["a2"]


def test_only_texts_that_can_be_used_are_computed(
    db: Database, project: Project, make_pairs: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest labels, and the pairs that are shown next; none of pairs whose import was undone."""
    monkeypatch.setattr(features, "MAX_INSTANT_LABELS", 2)
    monkeypatch.setattr(features, "MAX_UNLABELLED_PAIRS", 1)
    p = make_pairs(6)
    for pair in p[:3]:
        vote(db, pair)
    with db.write() as conn:
        conn.execute(t.pairs.update().where(t.pairs.c.id == p[3].id).values(taken_back_at=1.0))
    assert missing(db, project) == ["a2", "b2", "a1", "b1", "a4", "b4"]
