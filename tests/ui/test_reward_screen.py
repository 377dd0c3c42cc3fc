"""Screen "Reward model" without a browser: what it says in every state, and what it refuses."""

import pytest

from rlhf_lab.config import RewardConfig
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import queue, supervisor
from rlhf_lab.jobs.labelling import label_with_judge
from rlhf_lab.judges import load_judge
from rlhf_lab.records import JobKind, Source
from rlhf_lab.store.comparisons import snapshot
from rlhf_lab.store.runs import add_reward_model
from rlhf_lab.ui import reward

REPORT = {
    "labels": 14, "ties": 1, "folds": 5, "accuracy": 0.8, "accuracy_low": 0.6, "accuracy_high": 0.92, "train_accuracy": 0.95,
    "loss": [0.7, 0.5], "chosen_scores": [1.0], "rejected_scores": [-1.0], "length_correlation": 0.4, "seconds": 3.0,
}  # fmt: skip


def add(ctx, report=REPORT):
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    pinned = snapshot(ctx.db, ctx.project.id, Source.SIMULATED)
    return add_reward_model(ctx.db, ctx.project.id, "x", config={"pooling": "mean"}, report=report, snapshot=pinned)


def test_an_empty_project_names_the_missing_labels_and_has_an_example(ctx):
    seen = reward.seen(ctx, None)
    assert (seen["model"], seen["models"], seen["job"], seen["failed"]) == (None, [], None, "")
    assert seen["labels"]["left"] == 10
    assert seen["example"]["text"]


def test_a_model_with_its_figures_and_whose_labels(ctx):
    row = add(ctx)
    seen = reward.seen(ctx, None)
    assert seen["model"]["id"] == row.id
    assert seen["model"]["accuracy"] == 0.8
    assert seen["model"]["source"] == "simulated by cheerful"
    assert seen["model"]["foresight"] == {"right": 0, "decided": 0, "low": 0.0, "high": 1.0}
    assert seen["model"]["newest"]


def test_an_older_model_can_be_looked_at(ctx):
    first, second = add(ctx), add(ctx, REPORT | {"accuracy": 0.9})
    assert reward.seen(ctx, first.id)["model"]["accuracy"] == 0.8
    assert reward.seen(ctx, None)["model"]["id"] == second.id
    assert not reward.seen(ctx, first.id)["model"]["newest"]


def test_training_shows_loss_and_stage_and_a_second_one_is_refused(ctx):
    job = reward.begin(ctx, Source.SIMULATED, RewardConfig(epochs=1))
    engine = supervisor.beat(ctx.db, "x")
    assert queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine).payload["config"]["epochs"] == 1
    queue.update_progress(ctx.db, job.id, 0.5, 4.0, {"loss": [0.7, 0.61234567], "stage": "fold 2 of 5"})
    shown = reward.seen(ctx, None)["job"]
    assert (shown["stage"], shown["loss"], shown["progress"], shown["eta_s"]) == (
        "fold 2 of 5",
        [0.7, 0.6123],
        0.5,
        4.0,
    )
    with pytest.raises(LabError, match="already"):
        reward.begin(ctx, Source.HUMAN, RewardConfig())
    queue.fail(ctx.db, job.id, "all labels are ties")
    seen = reward.seen(ctx, None)
    assert seen["job"] is None
    assert seen["failed"] == "all labels are ties"


def test_words_are_asked_of_the_engine(ctx):
    row = add(ctx)
    job = reward.ask(ctx, row.id, "a prompt", "a text")
    assert reward.answer_of(queue.get_job(ctx.db, job.id)) == {"waiting": True}
    engine = supervisor.beat(ctx.db, "x")
    queue.claim(ctx.db, [JobKind.EXPLAIN], engine)
    item = {"score": 0.5, "tokens": ["a", ""], "token_scores": [1.0, 0.0]}
    queue.finish(ctx.db, job.id, {"items": [item]})
    assert reward.answer_of(queue.get_job(ctx.db, job.id)) == {"waiting": False, **item}


@pytest.mark.parametrize("text", ["", "   ", "x" * 5000], ids=["empty", "blank", "long"])
def test_texts_that_cannot_be_explained(ctx, text):
    row = add(ctx)
    with pytest.raises(LabError, match="1 to 4000"):
        reward.ask(ctx, row.id, "a prompt", text)


def test_a_failed_explanation_says_why(ctx):
    row = add(ctx)
    job = reward.ask(ctx, row.id, "p", "t")
    queue.fail(ctx.db, job.id, "the weights are not those")
    assert reward.answer_of(queue.get_job(ctx.db, job.id))["failed"] == "the weights are not those"
