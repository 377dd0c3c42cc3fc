import dataclasses
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from support.databases import undo_vote

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Comparison, NewCompletion, Pair, Project, Vote
from rlhf_lab.errors import LabelError, StaleVoteError, StoreError
from rlhf_lab.store import label_snapshots, projects, votes
from rlhf_lab.store.database import Database

FIRST, SECOND, TIE, BOTH_BAD, SKIP = Choice


def vote(
    pair: Pair, annotator: str = "ann", choice: Choice = FIRST, source: Source = Source.HUMAN, uuid: str = ""
) -> Vote:
    return Vote(
        uuid or f"{annotator}-{pair.id}", pair.id, annotator, source, choice, first_on_left=False, response_ms=812
    )


def test_a_vote_comes_back_as_it_was_cast(db: Database, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    before = time.time()
    cast = votes.cast_vote(db, vote(pair, choice=TIE))
    assert dataclasses.replace(cast, id=0, created_at=0.0) == vote(pair, choice=TIE)
    assert cast.id > 0
    assert before <= cast.created_at <= time.time()


def test_an_imported_vote_keeps_its_time(db: Database, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    assert votes.cast_vote(db, dataclasses.replace(vote(pair), created_at=12.5)).created_at == 12.5


def test_the_same_uuid_again_changes_nothing(db: Database, project: Project, make_pairs: Callable) -> None:
    one, two = make_pairs(2)
    first = votes.cast_vote(db, vote(one, uuid="u"))
    assert votes.cast_vote(db, vote(one, uuid="u", choice=SECOND)) == first
    assert votes.cast_vote(db, vote(two, "bob", uuid="u")) == first
    assert votes.count_unvoted_pairs(db, project.id, "bob") == 2
    undone = undo_vote(db, project.id, "ann")
    assert votes.cast_vote(db, vote(one, uuid="u")) == undone
    assert votes.count_unvoted_pairs(db, project.id, "ann") == 2


def test_a_second_live_vote_is_stale(db: Database, project: Project, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    votes.cast_vote(db, vote(pair, uuid="1"))
    with pytest.raises(StaleVoteError, match="ann has already voted"):
        votes.cast_vote(db, vote(pair, uuid="2", choice=SECOND))
    votes.cast_vote(db, vote(pair, "bob", uuid="3"))
    undo_vote(db, project.id, "ann")
    assert votes.cast_vote(db, vote(pair, uuid="2", choice=SECOND)).choice is SECOND
    assert votes.vote_counts(db, project.id)[Source.HUMAN] == {FIRST: 1, SECOND: 1, TIE: 0, BOTH_BAD: 0, SKIP: 0}


def test_invalid_votes_are_refused(db: Database, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    with pytest.raises(StaleVoteError, match="Pair 99 does not exist"):
        votes.cast_vote(db, dataclasses.replace(vote(pair), pair_id=99))
    for missing in ("uuid", "annotator"):
        with pytest.raises(LabelError, match="uuid and the annotator"):
            votes.cast_vote(db, dataclasses.replace(vote(pair), **{missing: ""}))


def test_undo_starts_with_the_newest_vote(db: Database, project: Project, make_pairs: Callable) -> None:
    one, two, three = make_pairs(3)
    for pair in (two, one, three):
        votes.cast_vote(db, vote(pair))
    votes.cast_vote(db, vote(one, "bob"))
    other_project = projects.create_project(db, "other", "m", "h", "s", 0, [])
    assert undo_vote(db, other_project.id, "ann") is None
    undone = [undo_vote(db, project.id, "ann") for _ in range(4)]
    assert [v and v.pair_id for v in undone] == [three.id, one.id, two.id, None]
    assert all(v.undone_at is not None for v in undone[:3])
    assert votes.count_unvoted_pairs(db, project.id, "ann") == 3
    assert votes.count_unvoted_pairs(db, project.id, "bob") == 2


def test_the_next_pair_has_the_fewest_votes_then_is_the_oldest(
    db: Database, project: Project, make_pairs: Callable
) -> None:
    one, two, three = make_pairs(3)
    assert votes.next_unvoted_pair(db, project.id, "ann") == one
    votes.cast_vote(db, vote(one, "bob"))
    assert votes.next_unvoted_pair(db, project.id, "ann") == two
    votes.cast_vote(db, vote(two, "ann"))
    assert votes.next_unvoted_pair(db, project.id, "ann") == three
    votes.cast_vote(db, vote(three, "ann"))
    assert votes.next_unvoted_pair(db, project.id, "ann") == one
    votes.cast_vote(db, vote(one, "ann"))
    assert votes.next_unvoted_pair(db, project.id, "ann") is None
    assert votes.count_unvoted_pairs(db, project.id, "ann") == 0
    undo_vote(db, project.id, "ann")
    assert votes.next_unvoted_pair(db, project.id, "ann") == one
    assert votes.next_unvoted_pair(db, project.id, "bob") == two
    assert votes.next_unvoted_pair(db, project.id + 1, "bob") is None


def test_votes_of_judges_do_not_change_the_order_for_people(
    db: Database, project: Project, make_pairs: Callable
) -> None:
    one, two = make_pairs(2)
    votes.cast_vote(db, vote(one, "cheerful", source=Source.SIMULATED))
    assert votes.next_unvoted_pair(db, project.id, "ann") == one
    assert votes.next_unvoted_pair(db, project.id, "gloomy", Source.SIMULATED) == two
    votes.cast_vote(db, vote(two, "bob"))
    undo_vote(db, project.id, "bob")
    votes.cast_vote(db, vote(one, "bob"))
    assert votes.next_unvoted_pair(db, project.id, "ann") == two


def test_counts_by_source_and_choice(db: Database, project: Project, make_pairs: Callable) -> None:
    for pair, choice in zip(make_pairs(5), Choice, strict=True):
        votes.cast_vote(db, vote(pair, "ann", choice))
        votes.cast_vote(db, vote(pair, "cheerful", FIRST, Source.SIMULATED))
    undo_vote(db, project.id, "ann")
    assert votes.vote_counts(db, project.id) == {
        Source.HUMAN: {FIRST: 1, SECOND: 1, TIE: 1, BOTH_BAD: 1, SKIP: 0},
        Source.SIMULATED: {FIRST: 5, SECOND: 0, TIE: 0, BOTH_BAD: 0, SKIP: 0},
    }
    assert set(votes.vote_counts(db, 99)[Source.HUMAN].values()) == {0}


def test_comparisons_of_each_choice(db: Database, project: Project, make_pairs: Callable) -> None:
    pairs = make_pairs(5)
    for pair, choice in zip(pairs, Choice, strict=True):
        votes.cast_vote(db, vote(pair, "ann", choice))
    votes.cast_vote(db, vote(pairs[0], "cheerful", SECOND, Source.SIMULATED))
    snapshot = label_snapshots.snapshot_labels(db, project.id, Source.HUMAN)
    assert (snapshot.vote_ids, snapshot.source) == ((1, 2, 3, 4), Source.HUMAN)  # 5 is a skip, 6 a judge's
    group = pairs[0].prompt.id
    assert label_snapshots.load_comparisons(db, snapshot) == [
        Comparison("Once", "a0", "b0", (0, 1), (0, 2), group=group),
        Comparison("Once", "b1", "a1", (1, 2), (1, 1), group=group),
        Comparison("Once", "a2", "b2", (2, 1), (2, 2), tie=True, group=group),
        Comparison("Once", "a3", "b3", (3, 1), (3, 2), tie=True, group=group),
    ]
    simulated = label_snapshots.snapshot_labels(db, project.id, Source.SIMULATED)
    assert [c.chosen for c in label_snapshots.load_comparisons(db, simulated)] == ["b0"]


def test_a_snapshot_of_some_annotators(db: Database, project: Project, make_pairs: Callable) -> None:
    one, two = make_pairs(2)
    for who in ("ann", "bob", "eve"):
        votes.cast_vote(db, vote(one, who))
    votes.cast_vote(db, vote(two, "ann"))
    assert label_snapshots.snapshot_labels(db, project.id, Source.HUMAN, ["ann", "eve"]).vote_ids == (1, 3, 4)
    assert label_snapshots.snapshot_labels(db, project.id, Source.HUMAN, []).vote_ids == ()
    assert label_snapshots.snapshot_labels(db, project.id + 1, Source.HUMAN).vote_ids == ()
    assert label_snapshots.load_comparisons(db, label_snapshots.snapshot_labels(db, project.id, Source.HUMAN, [])) == []


def test_a_snapshot_outlives_undo(db: Database, project: Project, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    votes.cast_vote(db, vote(pair))
    pinned = label_snapshots.snapshot_labels(db, project.id, Source.HUMAN)
    undo_vote(db, project.id, "ann")
    assert [c.chosen for c in label_snapshots.load_comparisons(db, pinned)] == ["a0"]
    assert label_snapshots.snapshot_labels(db, project.id, Source.HUMAN).vote_ids == ()


def test_the_digest_depends_on_labels_not_on_ids(db: Database, project: Project, make_pairs: Callable) -> None:
    one, two = make_pairs(2)
    votes.cast_vote(db, vote(one, "ann"))
    votes.cast_vote(db, vote(one, "bob"))
    votes.cast_vote(db, vote(two, "eve"))
    votes.cast_vote(db, vote(one, "dan", SECOND))
    ann, bob, eve, dan = (
        label_snapshots.snapshot_labels(db, project.id, Source.HUMAN, [who]) for who in ("ann", "bob", "eve", "dan")
    )
    assert ann.vote_ids != bob.vote_ids
    assert ann.digest == bob.digest
    assert len({ann.digest, eve.digest, dan.digest}) == 3
    assert len(ann.digest) == 64


@pytest.mark.parametrize("change", ["UPDATE votes SET choice = 'second'", "UPDATE completions SET text = 'x'"])
def test_labels_changed_by_hand_are_noticed(db: Database, project: Project, make_pairs: Callable, change: str) -> None:
    (pair,) = make_pairs(1)
    votes.cast_vote(db, vote(pair))
    pinned = label_snapshots.snapshot_labels(db, project.id, Source.HUMAN)
    with db.write() as conn:
        conn.exec_driver_sql(change)
    with pytest.raises(StoreError, match="differ from the recorded ones"):
        label_snapshots.load_comparisons(db, pinned)


def test_more_labels_than_one_query_takes(
    db: Database, project: Project, make_pairs: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pair in make_pairs(7):
        votes.cast_vote(db, vote(pair))
    monkeypatch.setattr(label_snapshots, "in_chunks", lambda ids: [ids[:3], ids[3:6], ids[6:]])
    labels = label_snapshots.load_comparisons(db, label_snapshots.snapshot_labels(db, project.id, Source.HUMAN))
    assert [c.chosen for c in labels] == [f"a{i}" for i in range(7)]


def test_the_next_pair_comes_from_the_end_of_a_large_pool(db: Database, project: Project) -> None:
    prompt = projects.prompts(db, project.id, "train")[0]
    new = [NewCompletion(prompt.id, f"t{i}", (1,), "base", i) for i in range(3001)]
    added = projects.add_completions(db, new)
    pairs = projects.add_pairs(db, project.id, [(a.id, b.id, "r") for a, b in pairwise(added)])
    with db.write() as conn:
        conn.exec_driver_sql(
            "INSERT INTO votes (uuid, pair_id, annotator, source, choice, first_on_left, created_at) "
            "SELECT 'u' || id, id, 'ann', 'human', 'first', true, 0 FROM pairs WHERE id < 2990"
        )
    assert votes.next_unvoted_pair(db, project.id, "ann") == pairs[2989]
