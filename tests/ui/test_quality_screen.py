"""Section "Quality of the labels" without a browser: agreement, training on selected annotators, unlikely labels."""

import dataclasses

import pytest

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import load_pairs, set_labelling_config
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.ui.runs.quality import api as quality


def votes(ctx, choices):
    """choices: {(pair number, annotator): choice}"""
    cast = {}
    with ctx.db.read() as conn:
        pairs = load_pairs(conn, range(1, 40))
    for (number, annotator), choice in choices.items():
        vote = Vote(f"{number}{annotator}", pairs[number].id, annotator, Source.HUMAN, choice, True, response_ms=2500)
        cast[number, annotator] = cast_vote(ctx.db, vote)
    return cast


@pytest.fixture
def three(ctx):
    """ann and bob agree on three pairs of four; cy says the opposite of ann."""
    choices = {(i, "ann"): Choice.FIRST if i % 2 else Choice.SECOND for i in range(4)}
    choices |= {(i, "bob"): choices[i, "ann"] if i else Choice.FIRST for i in range(4)}
    choices |= {(i, "cy"): Choice.SECOND if i % 2 else Choice.FIRST for i in range(4)}
    return votes(ctx, choices)


@pytest.fixture
def screen(ctx, calls):
    return calls(quality, ctx)


def figures(screen, **query):
    return screen.state(query)["figures"]


def test_a_project_without_votes(screen):
    state = figures(screen)
    assert (state["votes"], state["alpha"], state["people"], state["reward_models"], state["unlikely_labels"]) == (
        0,
        None,
        [],
        [],
        None,
    )


def test_agreement_of_all_and_of_each_annotator(ctx, screen, three):
    state = figures(screen)
    assert (state["votes"], state["source"], state["agreement"]["share"], state["agreement"]["count"]) == (
        12,
        "human",
        0.3333,
        12,
    )
    ann, bob, cy = state["people"]
    assert [person["name"] for person in (ann, bob, cy)] == ["ann", "bob", "cy"]
    assert (ann["with_others"]["share"], bob["with_others"]["share"], cy["with_others"]["share"]) == (3 / 8, 0.5, 0.125)
    assert cy["alpha_without"] > 0 > state["alpha"]
    assert (ann["seconds"], ann["left"]["share"], ann["with_self"]["share"]) == (2.5, 0.5, None)
    votes(ctx, {(5, "ann"): Choice.TIE})
    assert figures(screen)["votes"] == 13


def test_training_on_weighted_annotators(ctx, screen, three):
    message = screen.train({"source": "human", "weights": {"cy": 0, "bob": 3, "ann": 1}})
    assert "2 of 3 annotators" in message
    (job,) = queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD])
    assert job.payload == {
        "source": "human", "config": {}, "labels": 8, "weights": {"bob": 3}, "annotators": ["ann", "bob"],
    }  # fmt: skip
    assert "already being trained" in screen.train({"source": "human", "weights": {}})["error"]
    assert figures(screen)["is_training"]


def test_training_on_everybody_names_no_annotators(ctx, screen, three):
    screen.train({"source": "human", "weights": {}})
    (job,) = queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD])
    assert "annotators" not in job.payload


@pytest.mark.parametrize(
    "payload",
    [
        {"source": "human", "weights": {"ann": 0, "bob": 0, "cy": 0}},
        {"source": "x", "weights": {}},
        {"source": "human"},
        {"weights": {}},
        {"source": "human", "weights": {"ann": 11}},
        {"source": "human", "weights": {"ann": 0.5}},
        {"source": "human", "weights": {"ann": True}},
        {"source": "human", "weights": {"ann": -1}},
        {"source": "human", "weights": [1]},
    ],
)
def test_training_without_usable_weights_is_refused(ctx, screen, three, payload):
    assert screen.train(payload)["error"]
    assert queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD]) == []


@pytest.mark.parametrize("payload", [{}, {"vote_id": 99}, {"vote_id": "x"}])
def test_a_vote_that_does_not_exist_is_not_set_aside(ctx, screen, three, payload):
    assert screen.ask_again(payload)["error"]
    assert figures(screen)["votes"] == 12


def model(ctx, **report):
    snapshot = snapshot_labels(ctx.db, ctx.project.id, Source.HUMAN, report.get("annotators"))
    return add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=report, snapshot=snapshot)


def test_unlikely_labels_are_listed_and_can_be_set_aside(ctx, screen, three):
    row = model(ctx, disagreements=[{"index": 8, "probability": 0.04}, {"index": 1, "probability": 0.2}])
    unlikely = figures(screen)["unlikely_labels"]
    assert (unlikely["reward_model_id"], [(label["annotator"], label["probability"]) for label in unlikely["labels"]]) == (
        row.id, [("cy", 0.04), ("ann", 0.2)],
    )  # fmt: skip
    worst = unlikely["labels"][0]
    assert (worst["vote_id"], worst["choice"], worst["is_set_aside"]) == (row.snapshot.vote_ids[8], "first", False)
    assert screen.ask_again({"vote_id": worst["vote_id"]}).endswith("will see the pair again.")
    again = figures(screen)["unlikely_labels"]["labels"]
    assert [label["is_set_aside"] for label in again] == [True, False]
    assert "changed or undone" in screen.ask_again({"vote_id": worst["vote_id"]})["error"]


def test_unlikely_labels_of_people_include_none_of_a_judge(ctx, screen, three):
    assert label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 4)
    snapshot = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    report = {"disagreements": [{"index": 0, "probability": 0.1}]}
    judged = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=report, snapshot=snapshot)
    assert figures(screen, source="human")["unlikely_labels"] is None
    unlikely = figures(screen, source="simulated")["unlikely_labels"]
    assert (unlikely["reward_model_id"], [label["annotator"] for label in unlikely["labels"]]) == (
        judged.id,
        ["judge:cheerful"],
    )


def test_reward_models_name_the_annotators_they_were_trained_on(ctx, screen, three):
    model(ctx, accuracy=0.6, accuracy_low=0.4, accuracy_high=0.8)
    model(ctx, accuracy=0.9, accuracy_low=0.7, accuracy_high=1.0, annotators=["ann", "bob"], weights={"bob": 3})
    newest, first = figures(screen)["reward_models"]
    assert (newest["people"], newest["labels"], newest["has_selection"]) == ([["ann", 1], ["bob", 3]], 8, True)
    assert (first["people"], first["labels"], first["has_selection"]) == (
        [["ann", 1], ["bob", 1], ["cy", 1]],
        12,
        False,
    )


def test_only_the_operator_acts(ctx, three, calls):
    visitor = calls(quality, dataclasses.replace(ctx, operator_secret="s"))
    vote_id = three[0, "ann"].id
    for reply in (visitor.train({"source": "human", "weights": {}}), visitor.ask_again({"vote_id": vote_id})):
        assert "Only the operator" in reply["error"]
    assert queue.jobs(ctx.db, kinds=[JobKind.TRAIN_REWARD]) == []
    assert figures(visitor)["votes"] == 12


def test_only_the_operator_sees_agreement_in_a_lab_with_gold_pairs(ctx, three, calls):
    set_labelling_config(ctx.db, ctx.project.id, LabellingConfig(gold_rate=0.5))
    labeller = calls(quality, ctx.as_multi_user(open_to_all=True))
    assert labeller.state() == {"closed_text": quality.CLOSED_TEXT, "figures": None}
    assert figures(calls(quality, ctx))["votes"] == 12


def test_the_largest_weight_is_accepted(ctx, screen, three):
    screen.train({"source": "human", "weights": {"ann": 10}})
    (job,) = queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD])
    assert job.payload["weights"] == {"ann": 10}


def test_repeats_are_not_counted_as_training_labels(ctx, screen, three):
    again = Vote("again", three[0, "ann"].pair_id, "ann", Source.HUMAN, Choice.FIRST, False, repeat=True)
    cast_vote(ctx.db, again)
    assert figures(screen)["votes"] == 13
    screen.train({"source": "human", "weights": {}})
    (job,) = queue.jobs(ctx.db, project_id=ctx.project.id, kinds=[JobKind.TRAIN_REWARD])
    assert job.payload["labels"] == 12
