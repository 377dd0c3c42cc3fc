"""Part "Quality of the labels" without a browser: what it says, whom it lets the lab learn from, labels asked about again."""

import pytest

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.errors import LabError, NotAllowedError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import load_pairs
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.ui.screens.quality import QualityController


def votes(ctx, said):
    """said: {(pair number, annotator): choice}"""
    found = {}
    with ctx.db.read() as conn:
        pairs = load_pairs(conn, range(1, 40))
    for (number, who), choice in said.items():
        vote = Vote(f"{number}{who}", pairs[number].id, who, Source.HUMAN, choice, True, response_ms=2500)
        found[number, who] = cast_vote(ctx.db, vote)
    return found


@pytest.fixture
def three(ctx):
    """ann and bob agree on three pairs of four; cy says the opposite of ann."""
    said = {(i, "ann"): Choice.FIRST if i % 2 else Choice.SECOND for i in range(4)}
    said |= {(i, "bob"): said[i, "ann"] if i else Choice.FIRST for i in range(4)}
    said |= {(i, "cy"): Choice.SECOND if i % 2 else Choice.FIRST for i in range(4)}
    return votes(ctx, said)


def test_nothing_yet(ctx):
    shown = QualityController(ctx).get_state({})
    assert (shown["votes"], shown["alpha"], shown["people"], shown["models"], shown["doubts"]) == (
        0,
        None,
        [],
        [],
        None,
    )


def test_figures_of_all_and_of_each(ctx, three):
    desk = QualityController(ctx)
    shown = desk.get_state({})
    assert (shown["votes"], shown["source"], shown["agreement"][:1], shown["agreement"][3]) == (
        12,
        "human",
        [0.3333],
        12,
    )
    ann, bob, cy = shown["people"]
    assert [person["name"] for person in (ann, bob, cy)] == ["ann", "bob", "cy"]
    assert (ann["others"][0], bob["others"][0], cy["others"][0]) == (3 / 8, 0.5, 0.125)
    assert cy["without"] > 0 > shown["alpha"]
    assert (ann["seconds"], ann["left"][0], ann["self"][0]) == (2.5, 0.5, None)
    assert desk.get_state({"seen": shown["seen"]}) == {"same": True}
    votes(ctx, {(5, "ann"): Choice.TIE})
    assert desk.get_state({"seen": shown["seen"]})["votes"] == 13


def test_learn_from_some_and_from_some_more_than_others(ctx, three):
    said = QualityController(ctx).handle_action(
        {"do": "train", "source": "human", "weights": {"cy": 0, "bob": 3, "ann": 1}}
    )
    assert "2 of 3 annotators" in said["done"]
    (job,) = queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD])
    assert job.payload == {
        "source": "human", "config": {}, "labels": 8, "weights": {"bob": 3}, "annotators": ["ann", "bob"],
    }  # fmt: skip
    with pytest.raises(LabError, match="being trained already"):
        QualityController(ctx).handle_action({"do": "train", "source": "human", "weights": {}})


def test_everybody_is_no_choice_of_people(ctx, three):
    QualityController(ctx).handle_action({"do": "train", "source": "human", "weights": {}})
    (job,) = queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD])
    assert "annotators" not in job.payload


@pytest.mark.parametrize(
    "said",
    [
        {"do": "train", "source": "human", "weights": {"ann": 0, "bob": 0, "cy": 0}},
        {"do": "train", "source": "x", "weights": {}},
        {"do": "train", "source": "human", "weights": {"ann": 11}}, {"do": "train", "source": "human", "weights": {"ann": True}},
        {"do": "train", "source": "human", "weights": [1]}, {"do": "dance"}, {"do": "again", "vote": 99}, {"do": "again"},
    ],
)  # fmt: skip
def test_what_is_refused(ctx, three, said):
    with pytest.raises(LabError):
        QualityController(ctx).handle_action(said)
    assert queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD]) == []


def model(ctx, **report):
    pinned = snapshot_labels(ctx.db, ctx.project.id, Source.HUMAN, report.get("annotators"))
    return add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=report, snapshot=pinned)


def test_labels_that_the_model_doubts_are_shown_and_asked_about_again(ctx, three):
    row = model(ctx, disagreements=[{"index": 8, "probability": 0.04}, {"index": 1, "probability": 0.2}])
    desk = QualityController(ctx)
    found = desk.get_state({})["doubts"]
    assert (found["model"], [(one["annotator"], one["probability"]) for one in found["labels"]]) == (
        row.id, [("cy", 0.04), ("ann", 0.2)],
    )  # fmt: skip
    worst = found["labels"][0]
    assert (worst["vote"], worst["choice"], worst["open"]) == (row.snapshot.vote_ids[8], "first", False)
    assert desk.handle_action({"do": "again", "vote": worst["vote"]})["done"].endswith(
        "is asked about that pair again."
    )
    again = desk.get_state({})["doubts"]["labels"]
    assert [one["open"] for one in again] == [True, False]
    with pytest.raises(LabError, match="taken back meanwhile"):
        desk.handle_action({"do": "again", "vote": worst["vote"]})


def test_a_second_look_at_peoples_labels_shows_none_of_a_judge(ctx, three):
    assert label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 4)
    pinned = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    report = {"disagreements": [{"index": 0, "probability": 0.1}]}
    judged = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=report, snapshot=pinned)
    assert QualityController(ctx).get_state({"source": "human"})["doubts"] is None
    found = QualityController(ctx).get_state({"source": "simulated"})["doubts"]
    assert (found["model"], [one["annotator"] for one in found["labels"]]) == (judged.id, ["judge:cheerful"])


def test_reward_models_side_by_side_say_whose_labels_they_learnt_from(ctx, three):
    model(ctx, accuracy=0.6, accuracy_low=0.4, accuracy_high=0.8)
    model(ctx, accuracy=0.9, accuracy_low=0.7, accuracy_high=1.0, annotators=["ann", "bob"], weights={"bob": 3})
    newest, first = QualityController(ctx).get_state({})["models"]
    assert (newest["people"], newest["labels"], newest["chosen"]) == ([["ann", 1], ["bob", 3]], 8, True)
    assert (first["people"], first["labels"], first["chosen"]) == ([["ann", 1], ["bob", 1], ["cy", 1]], 12, False)


def test_only_the_operator_acts(ctx, three):
    import dataclasses
    from types import SimpleNamespace

    from rlhf_lab.ui.events import operator_action

    guarded = dataclasses.replace(ctx, operator_secret="s")
    event = SimpleNamespace(_data={"do": "train", "source": "human", "weights": {}, "at": 5})
    reply = operator_action(guarded, "wrong", event, QualityController(guarded).handle_action)
    assert reply["at"] == 5
    assert "Only the operator" in reply["error"]
    with pytest.raises(NotAllowedError):
        guarded.require_operator("")


def test_the_heaviest_weight_is_one(ctx, three):
    QualityController(ctx).handle_action({"do": "train", "source": "human", "weights": {"ann": 10}})
    (job,) = queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD])
    assert job.payload["weights"] == {"ann": 10}


def test_repeats_are_no_labels_to_learn_from(ctx, three):
    again = Vote("again", three[0, "ann"].pair_id, "ann", Source.HUMAN, Choice.FIRST, False, repeat=True)
    cast_vote(ctx.db, again)
    assert QualityController(ctx).get_state({})["votes"] == 13
    QualityController(ctx).handle_action({"do": "train", "source": "human", "weights": {}})
    (job,) = queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD])
    assert job.payload["labels"] == 12
