"""The vote columns in memory equal those of the database after every kind of change, by any connection."""

import math
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import delete, insert, update
from support.databases import undo_vote

from rlhf_lab.common.enums import VIA_SIDES_UNKNOWN, Choice, Source
from rlhf_lab.common.records import LabelSnapshot, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.quality.queries import vote_columns
from rlhf_lab.store import annotators, pair_leases, vote_table, votes
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows
from rlhf_lab.store.gold_pairs import mark_gold
from rlhf_lab.store.projects import create_project
from rlhf_lab.store.reward_model_list import list_reward_models
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.vote_table import current_votes

F, S, T, B, SKIP = Choice
HUMAN, SIMULATED = Source


def cast(db, pair, annotator, choice, source=HUMAN, **values):
    vote = Vote(
        f"{pair.id} {annotator} {values.get('repeat', '')}", pair.id, annotator, source, choice, True, created_at=1.0
    )
    return votes.cast_vote(db, replace(vote, **values))


def from_scratch(db, project_id):
    return vote_table._Reader(project_id).refresh(db)


def rows(table):
    """(pair, annotator, choice, live) of each vote, and (pair, live, gold) of each pair."""
    by_vote = zip(table.pair, table.annotator, table.choice, table.live, strict=True)
    pairs = zip(table.pair_id.tolist(), table.pair_live.tolist(), table.gold.tolist(), strict=True)
    votes_ = [(int(table.pair_id[p]), table.names[a], vote_table.CHOICES[c], bool(live)) for p, a, c, live in by_vote]
    return votes_, list(pairs)


def test_a_pair_added_during_a_read_is_read_once(db, project, make_pairs, monkeypatch):
    read_pairs, made = vote_table._Reader._read_pairs, make_pairs(2)

    def and_one_more(*args):
        if len(made) == 2:
            made.extend(make_pairs(1))
        return read_pairs(*args)

    monkeypatch.setattr(vote_table._Reader, "_read_pairs", and_one_more)
    assert current_votes(db, project.id).pair_id.tolist() == [pair.id for pair in made[:2]]
    assert current_votes(db, project.id).pair_id.tolist() == [pair.id for pair in made]


def test_every_change_is_seen(db, project, make_pairs):
    """Inserted, undone, redone, changed and deleted votes, pairs that are taken back or gold, and an erased person."""
    one, two = make_pairs(2)
    assert rows(current_votes(db, project.id)) == ([], [(one.id, True, False), (two.id, True, False)])
    ann = cast(db, one, "ann", F)
    cast(db, one, "bob", S)
    expected = [(one.id, "ann", F, True), (one.id, "bob", S, True)]
    assert rows(current_votes(db, project.id))[0] == expected
    assert current_votes(db, project.id) is current_votes(db, project.id)
    undo_vote(db, project.id, "bob")
    assert rows(current_votes(db, project.id))[0] == [expected[0], (one.id, "bob", S, False)]
    pair_leases.redo_last_vote(db, project.id, "bob")
    assert rows(current_votes(db, project.id))[0] == expected
    pair_leases.change_vote(db, project.id, ann.id, Vote("new", one.id, "ann", HUMAN, T, True))
    expected = [(one.id, "ann", F, False), (one.id, "bob", S, True), (one.id, "ann", T, True)]
    assert rows(current_votes(db, project.id))[0] == expected
    mark_gold(db, project.id, "bob", 2, True)
    assert rows(current_votes(db, project.id))[1] == [(one.id, True, True), (two.id, True, False)]
    mark_gold(db, project.id, "bob", 2, False)
    with db.write() as conn:
        conn.execute(update(t.pairs).where(t.pairs.c.id == two.id).values(taken_back_at=5.0))
    assert rows(current_votes(db, project.id))[1] == [(one.id, True, False), (two.id, False, False)]
    erase_person_rows(db, "ann", votes=False)
    cast(db, one, "ann", B, uuid="another")  # another person under the name that is free again
    (visitor,) = {name for _, name, _, _ in rows(current_votes(db, project.id))[0]} - {"ann", "bob"}
    expected = [(pair, visitor if who == "ann" else who, *rest) for pair, who, *rest in expected]
    assert rows(current_votes(db, project.id))[0] == [*expected, (one.id, "ann", B, True)]
    with db.write() as conn:
        conn.execute(delete(t.votes).where(t.votes.c.annotator == "bob"))
    assert rows(current_votes(db, project.id)) == rows(from_scratch(db, project.id))
    assert len(current_votes(db, project.id).vote_id) == 3


def test_one_vote_undone_while_another_counts_again(db, project, make_pairs):
    """The number of undone votes stays the same."""
    one, two = make_pairs(2)
    cast(db, one, "ann", F)
    cast(db, two, "ann", F)
    with db.write() as conn:
        conn.execute(update(t.votes).where(t.votes.c.id == 1).values(undone_at=9.0))
    assert current_votes(db, project.id).live.tolist() == [False, True]
    with db.write() as conn:
        conn.execute(update(t.votes).where(t.votes.c.id == 1).values(undone_at=None))
        conn.execute(update(t.votes).where(t.votes.c.id == 2).values(undone_at=9.0))
    assert current_votes(db, project.id).live.tolist() == [True, False]


@pytest.mark.sqlite
def test_changes_of_another_process_are_seen(db, project, make_pairs):
    (pair,) = make_pairs(1)
    assert votes.vote_counts(db, project.id)[HUMAN][F] == 0
    with Database.open(db.location.removesuffix("/lab.db")) as other:
        cast(other, pair, "ann", F)
        assert votes.vote_counts(db, project.id)[HUMAN][F] == 1
        undo_vote(other, project.id, "ann")
    assert votes.vote_counts(db, project.id)[HUMAN][F] == 0


def test_votes_of_other_projects_are_left_out(db, project, make_pairs):
    (pair,) = make_pairs(1)
    other = create_project(db, "other", "embedded", "", "own", 0, [("Once", "train")])
    cast(db, pair, "ann", F)
    assert len(current_votes(db, other.id).vote_id) == 0
    assert len(current_votes(db, project.id).vote_id) == 1


def test_the_rows_of_a_large_table_are_never_all_in_memory(db, project, make_pairs):
    """They would leave a hole in the heap of the page's process: 6 MiB for 50,000 votes. SQLite only: psycopg reads all rows."""
    with db.read() as conn:
        if conn.dialect.name != "sqlite":
            pytest.skip("psycopg reads all rows of a reply")
    pairs, count = make_pairs(20), 20_000
    values = {"source": HUMAN, "choice": F, "first_on_left": True, "created_at": time.time(), "response_ms": 700}
    votes_ = [
        {"uuid": f"{i}", "pair_id": pairs[i % 20].id, "annotator": f"person {i // 20}", **values} for i in range(count)
    ]
    with db.write() as conn:
        conn.execute(insert(t.votes), votes_)
    del votes_
    from_scratch(db, project.id)  # imports and SQLAlchemy's caches
    tracemalloc.start()
    table = from_scratch(db, project.id)
    peak_bytes = tracemalloc.get_traced_memory()[1] / count
    tracemalloc.stop()
    assert len(table.vote_id) == count
    assert peak_bytes < 300, peak_bytes  # 46 for the columns, twice that with room for growth; all rows at once: 420


def test_a_state_stays_as_it_was(db, project, make_pairs):
    pairs = make_pairs(3)
    cast(db, pairs[0], "ann", F)
    before = current_votes(db, project.id)
    cast(db, pairs[1], "ann", S)
    undo_vote(db, project.id, "ann")
    current_votes(db, project.id)
    assert (before.choice.tolist(), before.live.tolist()) == ([0], [True])


def test_counts_by_pair_grow_with_new_votes_and_fall_with_undone_ones(db, project, make_pairs):
    """Counts of an earlier state are also requested after those of a later one."""
    one, two = make_pairs(2)

    def human_answers(table):
        return table.count_by_pair("human answers", lambda some: some.answers_of(HUMAN)).tolist()

    cast(db, one, "ann", F)
    first = current_votes(db, project.id)
    assert human_answers(first) == [1, 0]
    cast(db, one, "bob", T)
    cast(db, two, "bob", SKIP)
    cast(db, two, "judge:x", F, SIMULATED)
    second = current_votes(db, project.id)
    (three,) = make_pairs(1)
    cast(db, three, "ann", B)
    third = current_votes(db, project.id)
    assert human_answers(third) == [2, 0, 1]
    assert human_answers(second) == [2, 0]
    assert human_answers(first) == [1, 0]
    undo_vote(db, project.id, "bob")
    undo_vote(db, project.id, "ann")
    assert human_answers(current_votes(db, project.id)) == [2, 0, 0]
    assert human_answers(third) == [2, 0, 1]


def test_an_earlier_state_counts_after_new_pairs_were_counted(db, project, make_pairs):
    """As in a thread that read its state before another one stored pairs."""
    (one,) = make_pairs(1)
    cast(db, one, "ann", F)
    earlier = current_votes(db, project.id)
    make_pairs(2)
    later = current_votes(db, project.id)
    for table, expected in ((later, [1, 0, 0]), (earlier, [1]), (later, [1, 0, 0])):
        assert table.count_by_pair("human answers", lambda some: some.answers_of(HUMAN)).tolist() == expected


def test_positions_of_pairs_leave_out_unknown_ids(db, project, make_pairs):
    ids = [pair.id for pair in make_pairs(3)]
    table = current_votes(db, project.id)
    assert table.positions_of_pairs([ids[2], -1, ids[0], ids[2] + 1]).tolist() == [2, 0]
    assert table.positions_of_pairs([]).tolist() == []


def test_figures_follow_the_votes_by_hand(db, project, make_pairs):
    one, two = make_pairs(2)
    cast(db, one, "ann", F)
    cast(db, one, "bob", F)
    cast(db, two, "ann", SKIP)
    cast(db, one, "ann", S, repeat=True)
    cast(db, two, "judge:x", T, SIMULATED)
    counts = votes.vote_counts(db, project.id)
    assert counts == {HUMAN: {F: 2, S: 0, T: 0, B: 0, SKIP: 1}, SIMULATED: {F: 0, S: 0, T: 1, B: 0, SKIP: 0}}
    stats = annotators.annotator_stats(db, project.id)
    assert [(s.annotator, s.labels, s.repeated, s.same, s.shared, s.agreed) for s in stats] == [
        ("ann", 1, 1, 0, 1, 1), ("bob", 1, 0, 0, 1, 1),
    ]  # fmt: skip
    assert annotators.latest_annotators(db, project.id, 5) == ["ann", "bob"]
    assert votes.count_unvoted_pairs(db, project.id, "bob") == 1
    assert pair_leases.count_free_pairs(db, project.id, "bob", LabellingConfig()) == 1
    pair_leases.undo_last_vote(db, project.id, "ann")  # the repeat
    assert annotators.annotator_stats(db, project.id)[0].repeated == 0


def test_quality_reads_the_votes_as_they_are(db, project, make_pairs):
    """First on the left, second on the left, both bad, and a vote with unknown sides."""
    pairs = make_pairs(5)
    cast(db, pairs[0], "ann", F, response_ms=1500)
    cast(db, pairs[1], "ann", S, first_on_left=False)
    cast(db, pairs[2], "ann", B)
    cast(db, pairs[3], "ann", F, via=VIA_SIDES_UNKNOWN)
    cast(db, pairs[4], "ann", S)
    columns = vote_columns(db, project.id, HUMAN)
    assert columns.value.tolist() == [0, 1, 2, 0, 1]
    assert columns.left_won.tolist() == [1, 1, -1, -1, 0]
    assert (columns.response_ms[0], math.isnan(columns.response_ms[1])) == (1500.0, True)


def test_listed_models_follow_an_erasure(db, project, make_pairs):
    pairs = make_pairs(2)
    ids = [cast(db, pair, "ann", choice).id for pair, choice in zip(pairs, (F, T), strict=True)]
    report = {"chosen_scores": [0.123, 0.124, 1.0], "rejected_scores": [], "disagreements": [{"index": 1, "probability": 0.2}],
              "weights": {"ann": 2}}  # fmt: skip
    add_reward_model(db, project.id, "x", config={}, report=report, snapshot=LabelSnapshot(tuple(ids), "", HUMAN))
    (model,) = list_reward_models(db, project.id)
    assert (model.label_count, model.newest_vote_id, model.annotators) == (2, ids[1], ("ann",))
    assert (model.chosen_scores, model.disagreements) == ([(0.12, 2), (1.0, 1)], ((ids[1], 0.2),))
    assert (model.examples, np.array(model.trained_pairs).tolist()) == ((ids[0],), [0, 1])
    erase_person_rows(db, "ann", votes=False)
    (model,) = list_reward_models(db, project.id)
    assert model.annotators[0].startswith("visitor-")
    assert list(model.report["weights"]) == list(model.annotators)
