"""Disputed pairs: their definition, the decision of an expert, and the decision as the label of the pair."""

import itertools

import pytest
from support.exported_rows import label_rows

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, Project, Vote
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.exporters.label_export import LabelExportOptions
from rlhf_lab.jobs import retraining
from rlhf_lab.store import pair_leases, project_people, votes
from rlhf_lab.store.adjudication import disputed_pairs, stop_adjudicating
from rlhf_lab.store.annotators import annotator_stats
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows
from rlhf_lab.store.features import newest_labels
from rlhf_lab.store.label_snapshots import load_comparisons, snapshot_labels
from rlhf_lab.store.reward_models import add_reward_model

CLICK = itertools.count()
FIRST, SECOND, TIE, BOTH_BAD, SKIP = Choice


def cast(db: Database, pair: Pair, annotator: str, choice: Choice, repeat: bool = False) -> Vote:
    vote = Vote(f"{annotator}-{next(CLICK)}", pair.id, annotator, Source.HUMAN, choice, True, repeat=repeat)
    return votes.cast_vote(db, vote)


def answer(db: Database, pair_id: int, annotator: str, choice: Choice) -> Vote:
    return pair_leases.vote_on_lease(
        db, Vote(f"{annotator}-{next(CLICK)}", pair_id, annotator, Source.HUMAN, choice, True), now=0.0
    )


def start(db: Database, project: Project, annotator: str) -> int | None:
    lease = pair_leases.start_adjudicating(db, project.id, annotator, now=0.0)
    return lease and lease.pair.id


def on_screen(db: Database, project: Project, annotator: str) -> list[tuple[int, bool]]:
    return [
        (lease.pair.id, lease.adjudication) for lease in pair_leases.lease_pairs(db, project.id, annotator, now=0.0)
    ]


def disputed(db: Database, project: Project, annotator: str = "eve") -> list[int]:
    count, pairs = disputed_pairs(db, project.id, annotator)
    assert count == len(pairs)
    return [pair.id for pair in pairs]


def disagree(db: Database, *pairs: Pair) -> None:
    for pair in pairs:
        cast(db, pair, "ann", FIRST)
        cast(db, pair, "bob", SECOND)


def test_a_pair_is_disputed_where_votes_of_people_differ(db, project, make_pairs):
    differ, equal, ties, skipped, alone, tie_or_first, judged = make_pairs(7)
    disagree(db, differ)
    for pair, first, second in (
        (equal, FIRST, FIRST), (ties, TIE, BOTH_BAD), (skipped, FIRST, SKIP), (tie_or_first, TIE, FIRST),
    ):  # fmt: skip
        cast(db, pair, "ann", first)
        cast(db, pair, "bob", second)
    cast(db, alone, "ann", FIRST)
    cast(db, alone, "ann", SECOND, repeat=True)  # with themselves: no dispute
    cast(db, judged, "ann", FIRST)
    votes.cast_vote(db, Vote("judge", judged.id, "judge:x", Source.SIMULATED, SECOND, True))
    assert disputed(db, project) == [differ.id, tie_or_first.id]


def test_an_expert_decides_one_pair_after_the_other_and_then_labels_on(db, project, make_pairs):
    one, two, open_pair, *_ = make_pairs(8)
    disagree(db, one, two)
    assert on_screen(db, project, "eve")[0] == (open_pair.id, False)
    assert start(db, project, "eve") == one.id
    assert on_screen(db, project, "eve") == [(one.id, True), (two.id, True)]
    decision = answer(db, one.id, "eve", SECOND)
    assert (decision.adjudication, decision.repeat) == (True, False)
    assert on_screen(db, project, "eve")[0] == (two.id, True)
    answer(db, two.id, "eve", TIE)
    assert disputed(db, project) == []
    assert start(db, project, "eve") is None
    assert on_screen(db, project, "eve")[0] == (open_pair.id, False)


def test_two_experts_do_not_decide_the_same_pair(db, project, make_pairs):
    one, two = make_pairs(2)
    disagree(db, one, two)
    assert start(db, project, "eve") == one.id
    assert start(db, project, "fay") == two.id  # eve has the first one on screen
    on_screen(db, project, "eve")
    pair_leases.start_adjudicating(db, project.id, "fay", now=1000.0)  # eve's lease has expired
    assert answer(db, one.id, "fay", FIRST).adjudication
    with pytest.raises(StaleVoteError, match="Another expert has already decided"):
        answer(db, one.id, "eve", SECOND)


def test_an_expert_who_skips_leaves_the_pair_to_others(db, project, make_pairs):
    (pair,) = make_pairs(1)
    disagree(db, pair)
    start(db, project, "eve")
    answer(db, pair.id, "eve", SKIP)
    assert disputed(db, project, "eve") == []
    assert disputed(db, project, "fay") == [pair.id]
    assert len(snapshot_labels(db, project.id, Source.HUMAN).vote_ids) == 2


def test_giving_up_brings_ordinary_pairs_back(db, project, make_pairs):
    one, open_pair, *_ = make_pairs(8)
    disagree(db, one)
    start(db, project, "eve")
    stop_adjudicating(db, project.id, "eve")
    assert on_screen(db, project, "eve")[0] == (open_pair.id, False)
    assert disputed(db, project) == [one.id]


def test_the_decision_is_the_label_and_the_votes_stay(db, project, make_pairs):
    one, two = make_pairs(2)
    disagree(db, one)
    other = cast(db, two, "ann", FIRST)
    start(db, project, "eve")
    decision = answer(db, one.id, "eve", SECOND)
    snapshot = snapshot_labels(db, project.id, Source.HUMAN)
    assert snapshot.vote_ids == (other.id, decision.id)
    assert [label.chosen for label in load_comparisons(db, snapshot)] == ["a1", "b0"]
    assert [label.vote_id for label in newest_labels(db, project.id, Source.HUMAN)] == [other.id, decision.id]
    assert sum(votes.vote_counts(db, project.id)[Source.HUMAN].values()) == 3
    add_reward_model(db, project.id, "x", config={}, report={}, snapshot=snapshot)
    progress = retraining.get_label_progress(db, project.id)
    assert (progress.human, progress.goal, progress.remaining) == (3, 23, 20)


def test_the_leaderboard_compares_votes_with_the_decision(db, project, make_pairs):
    one, two = make_pairs(2)
    disagree(db, one)
    cast(db, two, "ann", FIRST)
    cast(db, two, "bob", FIRST)
    start(db, project, "eve")
    answer(db, one.id, "eve", SECOND)
    figures = {row.annotator: (row.labels, row.shared, row.agreed) for row in annotator_stats(db, project.id)}
    assert figures == {"ann": (2, 2, 1), "bob": (2, 2, 2)}


def test_an_export_holds_the_votes_and_the_decision(db, project, make_pairs):
    (pair,) = make_pairs(1)
    disagree(db, pair)
    start(db, project, "eve")
    answer(db, pair.id, "eve", SECOND)
    rows = label_rows(db, project, LabelExportOptions())
    assert [(row["annotator"], row["choice"], row["adjudication"]) for row in rows] == [
        ("ann", "first", False), ("bob", "second", False), ("eve", "second", True),
    ]  # fmt: skip
    assert label_rows(db, project, LabelExportOptions(layout="explicit")) == [
        {"prompt": "Once", "chosen": "b0", "rejected": "a0"}
    ]


def test_labels_of_chosen_people_are_overruled_by_chosen_experts_only(db, project, make_pairs):
    (pair,) = make_pairs(1)
    disagree(db, pair)
    expert_vote = cast(db, pair, "eve", FIRST)  # an expert who voted too decides again
    start(db, project, "eve")
    decision = answer(db, pair.id, "eve", FIRST)
    assert decision.id != expert_vote.id
    ann = snapshot_labels(db, project.id, Source.HUMAN, ["ann"]).vote_ids
    assert ann == (1,)
    assert snapshot_labels(db, project.id, Source.HUMAN, ["ann", "eve"]).vote_ids == (decision.id,)


def test_a_decision_can_be_undone_redone_and_changed(db, project, make_pairs):
    (pair,) = make_pairs(1)
    disagree(db, pair)
    start(db, project, "eve")
    decision = answer(db, pair.id, "eve", SECOND)
    undone = pair_leases.undo_last_vote(db, project.id, "eve", now=0.0)
    assert undone is not None
    assert undone.adjudication
    assert disputed(db, project) == [pair.id]
    assert pair_leases.redo_last_vote(db, project.id, "eve") == decision
    new = Vote("new", pair.id, "eve", Source.HUMAN, TIE, True)
    assert pair_leases.change_vote(db, project.id, decision.id, new).adjudication
    assert disputed(db, project) == []


def test_erasing_an_expert_removes_the_name(db, project, make_pairs):
    (pair,) = make_pairs(1)
    cast(db, pair, "eve", FIRST)
    project_people.set_expert(db, project.id, "eve", True)
    project_people.end_pause(db, project.id, "eve")
    assert project_people.experts(db, project.id) == ["eve"]
    erase_person_rows(db, "eve", votes=False)
    assert project_people.experts(db, project.id) == []
