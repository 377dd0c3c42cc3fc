"""Screen "Reward model" without a browser: state, details of a model, training and explanations."""

import base64

import numpy as np
import pytest
from sqlalchemy import select

from rlhf_lab.common.enums import Choice, JobKind, JobStatus, Source
from rlhf_lab.common.records import LabelSnapshot, RewardPredictionStats, Role, Vote
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import engine_process, queue, retraining
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.quality.queries import labels_of_same_pair
from rlhf_lab.store import tables as t
from rlhf_lab.store.features import TextFeatures, add_features, newest_labels, texts_without_features
from rlhf_lab.store.label_snapshots import comparisons_by_vote, load_comparisons, snapshot_labels
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run
from rlhf_lab.store.votes import cast_vote, next_unvoted_pair
from rlhf_lab.ui.auth.visitors import Access, Visitor
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.shared import generation_requests
from rlhf_lab.ui.shared.api import Payload, parse_payload
from rlhf_lab.ui.train.start_run import api as start_run

REPORT = {
    "labels": 14, "ties": 1, "folds": 5, "accuracy": 0.8, "accuracy_low": 0.6, "accuracy_high": 0.92, "train_accuracy": 0.95,
    "loss": [0.7, 0.5], "chosen_scores": [1.0], "rejected_scores": [-1.0], "length_correlation": 0.4, "seconds": 3.0,
}  # fmt: skip


def explain(ctx, model, prompt, text):
    return reward.submit_explanation(ctx, reward.ExplainText(model=model, prompt=prompt, text=text), "ann")


def add(ctx, report=REPORT):
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    snapshot = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    return add_reward_model(ctx.db, ctx.project.id, "x", config={"pooling": "mean"}, report=report, snapshot=snapshot)


def test_an_empty_project_has_label_goals(ctx):
    state = reward.screen_state(ctx)
    assert (state["models"], state["job"], state["failed"]) == ([], None, "")
    assert state["labels"] == {"human": 0, "simulated": 0, "goals": {"human": 10, "simulated": 10}}


def test_a_model_summary_has_accuracy_and_label_source(ctx):
    row = add(ctx)
    state = reward.screen_state(ctx)
    model = state["models"][0]
    summary = {name: model[name] for name in ("id", "labels", "accuracy", "low", "high", "source", "source_text")}
    assert summary == {
        "id": row.id, "labels": 14, "accuracy": 0.8, "low": 0.6, "high": 0.92, "source": "simulated",
        "source_text": "simulated by cheerful",
    }  # fmt: skip
    assert state["labels"]["goals"] == {"human": 10, "simulated": 34}
    assert state["prediction_stats"]["simulated"] == RewardPredictionStats(right=0, decided=0, low=0.0, high=1.0)


def test_the_instant_reward_model_stands_beside(ctx):
    """Its accuracy is on the labels that it learned from, here simulated ones."""
    assert reward.screen_state(ctx)["instant"] is None
    texts = texts_without_features(ctx.db, ctx.project.id, 1000)
    vectors = np.random.default_rng(0).normal(size=(len(texts), 4)).astype(np.float16)
    add_features(ctx.db, {text.id: TextFeatures(1, vector) for (_, text), vector in zip(texts, vectors, strict=True)})
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    ctx.instant_reward.run_once()
    figures, state = ctx.instant_reward.figures(ctx.project.id), reward.screen_state(ctx)["instant"]
    assert (state["source"], state["decided"]) == ("simulated", figures.decided)
    assert state["accuracy"] == figures.right / figures.decided
    assert (state["low"], state["high"], state["ignores"]) == (round(figures.low, 2), round(figures.high, 2), "")
    retraining.submit_training(ctx.db, ctx.project.id, Source.SIMULATED, RewardConfig(length="ignore", cut="ignore"))
    ctx.instant_reward.run_once()
    assert reward.screen_state(ctx)["instant"]["ignores"] == "length, being cut off"


def test_each_model_has_its_own_report(ctx):
    first, second = add(ctx), add(ctx, REPORT | {"train_accuracy": 0.99, "length_correlation": None})
    detail = reward.model_detail(ctx, first.id)
    assert (detail["train_accuracy"], detail["length_correlation"], detail["ties"]) == (0.95, 0.4, 1)
    assert (detail["chosen_scores"], detail["rejected_scores"], detail["loss"]) == ([(1.0, 1)], [(-1.0, 1)], [0.7, 0.5])
    assert reward.model_detail(ctx, second.id)["length_correlation"] is None
    with pytest.raises(LabError):
        reward.model_detail(ctx, 99)


def test_a_report_says_what_else_the_labels_prefer(ctx):
    """As odds ratios: of log-odds 0.5, 1.65; beyond about 10^8 an exact number would claim too much. Older reports have none."""
    effects = [
        {"name": "length", "log_odds": 0.5, "low": -800.0, "high": 1.0},
        {"name": "copied", "log_odds": -0.5, "low": -1.0, "high": 900.0},
    ]
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    snapshot = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    config = RewardConfig(length="ignore", lists="ignore").to_dict()
    row = add_reward_model(
        ctx.db, ctx.project.id, "x", config=config, report=REPORT | {"attribute_effects": effects}, snapshot=snapshot
    )
    length, lists, copied = reward.model_detail(ctx, row.id)["attributes"]
    assert (length["name"], length["step_text"], length["is_ignored"]) == ("length", "Texts half as long", True)
    assert (length["odds"], length["low"], length["high"]) == (1.65, 1.52e-8, 2.72)
    assert (lists["name"], lists["odds"], lists["low"], lists["is_ignored"]) == ("lists", None, None, True)
    assert (
        reward.screen_state(ctx)["models"][0]["source_text"]
        == "simulated by cheerful; ignores length, lists and headings"
    )
    assert (copied["name"], copied["odds"], copied["high"], copied["is_ignored"]) == ("copied", 0.607, 6.57e7, False)
    assert reward.model_detail(ctx, add(ctx).id)["attributes"] == []


def test_choosing_an_attribute_trains_with_the_other_settings_of_the_model(ctx, calls):
    """All later trainings keep the choice, whoever starts them."""
    row, screen = add(ctx), calls(reward, ctx)
    job = queue.get_job(
        ctx.db, screen.choose_attribute({"model": row.id, "attribute": "length", "ignore": True})["job"]
    )
    assert job.payload["source"] == "simulated"
    assert job.payload["config"] == RewardConfig(length="ignore").to_dict()
    queue.cancel(ctx.db, job.id)
    snapshot = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    newest = add_reward_model(
        ctx.db, ctx.project.id, "y", config=job.payload["config"] | {"epochs": 7}, report=REPORT, snapshot=snapshot
    )
    chosen = retraining.next_config(ctx.db, ctx.project.id, Source.SIMULATED, {"length": "as_labelled"})
    assert chosen.ignored == ()  # what is said now counts more than the earlier choice
    settings = {"settings": {"epochs": "3"}, "source": "simulated"}
    for trained in (
        queue.get_job(ctx.db, screen.train(settings)["job"]),
        retraining.submit_training(ctx.db, ctx.project.id, Source.SIMULATED),
    ):
        assert trained.payload["config"]["length"] == "ignore"
        assert trained.payload["config"]["epochs"] in (2, 3)
        queue.cancel(ctx.db, trained.id)
    again = screen.choose_attribute({"model": newest.id, "attribute": "length", "ignore": False})
    assert queue.get_job(ctx.db, again["job"]).payload["config"] == RewardConfig(epochs=7).to_dict()


def test_an_unknown_attribute_is_refused(ctx, calls):
    row = add(ctx)
    reply = calls(reward, ctx).choose_attribute({"model": row.id, "attribute": "colour", "ignore": True})
    assert 'no attribute "colour"' in reply["error"]


@pytest.fixture
def explained(ctx):
    """A job that explained a text of a project with 14 labels, with random features."""
    texts = texts_without_features(ctx.db, ctx.project.id, 1000)
    vectors = np.random.default_rng(0).normal(size=(len(texts), 4)).astype(np.float16)
    add_features(ctx.db, {text.id: TextFeatures(1, vector) for (_, text), vector in zip(texts, vectors, strict=True)})
    row = add(ctx)

    def job_with(features):
        job = explain(ctx, row.id, "a prompt", "a text")
        queue.claim(ctx.db, [JobKind.EXPLAIN], engine_process.record_heartbeat(ctx.db, "x"))
        item = {"score": 0.5, "tokens": ["a text", ""], "token_scores": [0.4, 0.6], "features": features}
        queue.finish(ctx.db, job.id, {"items": [item]})
        return queue.get_job(ctx.db, job.id)

    return job_with


def encoded(*numbers):
    return base64.b64encode(np.array(numbers, "<f2").tobytes()).decode()


def test_an_explanation_names_the_labels_behind_the_score(ctx, explained):
    """At most three that raise it, the strongest first, and three that lower it."""
    reply = reward.explanation_view(ctx, explained(encoded(0.5, -1.0, 2.0, 0.25)))
    assert "features" not in reply
    influences = [label["influence"] for label in reply["instant"]["labels"]]
    raising, lowering = [x for x in influences if x > 0], [x for x in influences if x < 0]
    assert influences == sorted(raising, reverse=True) + sorted(lowering)
    assert 0 < len(raising) <= 3
    assert 0 < len(lowering) <= 3
    assert reply["instant"]["low"] < reply["instant"]["score"] < reply["instant"]["high"]
    label = reply["instant"]["labels"][0]
    stored = comparisons_by_vote(ctx.db, [label["vote"]])[label["vote"]]
    assert (label["chosen"], label["rejected"]) == (stored.chosen.strip(), stored.rejected.strip())


@pytest.mark.parametrize("features", ["", encoded(1.0, 2.0), encoded(float("inf"), 0, 0, 0)])
def test_texts_without_usable_features_have_no_labels_behind_their_score(ctx, explained, features):
    reply = reward.explanation_view(ctx, explained(features))
    assert (reply["score"], reply["instant"]) == (0.5, None)


def test_only_the_operator_sees_the_labels_behind_a_score(ctx, explained, monkeypatch):
    """They show how people labelled pairs that others may still have to judge."""
    job = explained(encoded(0.5, -1.0, 2.0, 0.25))
    assert reward.explanation_view(ctx, job)["instant"]["labels"]
    monkeypatch.setattr(type(ctx), "is_operator", lambda *_: False)
    reply = reward.explanation_view(ctx, job)
    assert (reply["score"], reply["instant"]) == (0.5, None)


def test_a_label_that_is_taken_out_can_be_put_back(ctx, explained, calls):
    screen, job = calls(reward, ctx), explained(encoded(0.5, -1.0, 2.0, 0.25))
    before = reward.explanation_view(ctx, job)["instant"]
    vote = before["labels"][0]["vote"]
    screen.take_out_label({"vote": vote})
    after = reward.explanation_view(ctx, job)["instant"]
    assert vote not in [label["vote"] for label in after["labels"]]
    assert after["score"] != pytest.approx(before["score"], abs=1e-6)
    assert "error" in screen.take_out_label({"vote": vote})
    screen.take_out_label({"put_back": [vote]})
    assert reward.explanation_view(ctx, job)["instant"]["score"] == pytest.approx(before["score"], abs=1e-5)


def test_all_labels_of_a_pair_are_taken_out_and_put_back(ctx, explained, calls):
    """Of several judges, one of whom judged otherwise; not those of people on the same pair, from which nothing learns here."""
    screen, job = calls(reward, ctx), explained(encoded(0.5, -1.0, 2.0, 0.25))
    (first, *_) = reward.explanation_view(ctx, job)["instant"]["labels"]
    pair = ctx.db.fetch(select(t.votes.c.pair_id).where(t.votes.c.id == first["vote"])).scalar_one()
    others = [
        cast_vote(ctx.db, Vote(f"u{i}", pair, name, Source.SIMULATED, choice, first_on_left=True)).id
        for i, (name, choice) in enumerate([("judge:gloomy", Choice.FIRST), ("judge:x", Choice.SECOND)])
    ]
    cast_vote(ctx.db, Vote("skip", pair, "judge:y", Source.SIMULATED, Choice.SKIP, first_on_left=True))
    before = reward.explanation_view(ctx, job)["instant"]
    shown = {label["vote"]: label["votes"] for label in before["labels"]}
    assert {shown[vote] for vote in shown if vote in (first["vote"], *others)} == {3}
    assert {shown[vote] for vote in shown if vote not in (first["vote"], *others)} == {1}
    assert screen.take_out_label({"vote": others[0]}) == [first["vote"], *others]
    after = reward.explanation_view(ctx, job)["instant"]
    assert not {first["vote"], *others} & {label["vote"] for label in after["labels"]}
    assert pair not in {label.pair_id for label in newest_labels(ctx.db, ctx.project.id, Source.SIMULATED)}
    cast_vote(ctx.db, Vote("again", pair, "judge:x", Source.SIMULATED, Choice.SECOND, first_on_left=True))
    assert screen.take_out_label({"put_back": [first["vote"], *others]}) == [first["vote"], others[0]]
    assert len(labels_of_same_pair(ctx.db, ctx.project.id, [first["vote"]])[first["vote"]]) == 3


def test_with_an_experts_decision_the_labels_that_it_overruled_are_taken_out(ctx, calls):
    """Otherwise one of them would take its place."""
    pair = next_unvoted_pair(ctx.db, ctx.project.id, "ann")
    votes = [
        cast_vote(ctx.db, Vote(f"u{name}", pair.id, name, Source.HUMAN, choice, True, adjudication=name == "eve"))
        for name, choice in (("ann", Choice.FIRST), ("bob", Choice.TIE), ("eve", Choice.SECOND))
    ]
    assert [label.vote_id for label in newest_labels(ctx.db, ctx.project.id, Source.HUMAN)] == [votes[2].id]
    assert calls(reward, ctx).take_out_label({"vote": votes[2].id}) == [vote.id for vote in votes]
    assert newest_labels(ctx.db, ctx.project.id, Source.HUMAN) == []


def test_a_second_press_of_the_same_button_changes_nothing(ctx, calls):
    """Also if the pair was labelled again in between."""
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 3)
    screen, vote = calls(reward, ctx), int(snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED).vote_ids[0])

    def all_votes():
        with ctx.db.read() as conn:
            return conn.execute(select(t.votes).order_by(t.votes.c.id)).all()

    before = all_votes()
    for put_back in (False, True):
        request = {"put_back": [vote]} if put_back else {"vote": vote}
        screen.take_out_label(request)
        once = all_votes()
        screen.take_out_label(request)
        assert all_votes() == once
    assert once == before
    screen.take_out_label({"vote": vote})
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 1)
    again = all_votes()
    assert "changed or undone" in screen.take_out_label({"vote": vote})["error"]
    assert all_votes() == again


def test_a_label_whose_pair_was_labelled_again_is_not_put_back(ctx, calls):
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 1)
    screen, vote = calls(reward, ctx), int(snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED).vote_ids[0])
    screen.take_out_label({"vote": vote})
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 1)
    assert "labelled again" in screen.take_out_label({"put_back": [vote]})["error"]
    assert "error" in screen.take_out_label({"put_back": [10**6]})


def test_a_model_has_the_note_about_labels_left_out(ctx):
    with_note, plain = add(ctx, REPORT | {"note": "2 labels are left out"}), add(ctx)
    assert [reward.model_detail(ctx, row.id)["note"] for row in (with_note, plain)] == ["2 labels are left out", ""]


def test_the_newest_model_stands_first(ctx):
    first, second = add(ctx), add(ctx)
    assert [model["id"] for model in reward.screen_state(ctx)["models"]] == [second.id, first.id]


def test_example_texts_are_the_training_labels_newest_first(ctx):
    row = add(ctx)
    trained_on = [item for item in load_comparisons(ctx.db, row.snapshot) if not item.tie]
    texts = [item for item in reward.model_detail(ctx, row.id)["example_texts"] if item["tag"] != "waits for a label"]
    assert len(texts) == 8
    newest = trained_on[-1]
    prompt = {"prompt": newest.prompt, "turns": [{"role": "user", "content": newest.prompt}]}
    assert texts[0] == prompt | {"text": newest.chosen.strip(), "tag": "preferred"}
    assert texts[1] == prompt | {"text": newest.rejected.strip(), "tag": "not preferred"}


def test_a_model_whose_labels_are_gone_can_still_be_shown(ctx):
    snapshot = LabelSnapshot((98, 99), "another digest", Source.SIMULATED)
    row = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=REPORT, snapshot=snapshot)
    assert all(item["tag"] == "waits for a label" for item in reward.model_detail(ctx, row.id)["example_texts"])


@pytest.mark.parametrize(
    ("count", "length", "first"), [(0, 0, None), (2, 2, 1.0), (300, 300, 1.0), (301, 300, 1.0), (600, 300, 1.0)]
)
def test_a_long_loss_curve_is_downsampled_and_keeps_its_end(count, length, first):
    thinned = reward.thin_and_round([float(i + 1) for i in range(count)])
    assert len(thinned) == length
    if count:
        assert (thinned[0], thinned[-1]) == (first, float(count))


def test_of_two_simultaneous_trainings_the_other_config_is_refused(ctx, monkeypatch):
    """Both requests found no training; a request with the same config gets the same job."""
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    job = reward.start_training(ctx, Source.SIMULATED, RewardConfig(epochs=1))
    monkeypatch.setattr(queue, "jobs", lambda *_, **__: [])
    assert reward.start_training(ctx, Source.SIMULATED, RewardConfig(epochs=1)).id == job.id
    with pytest.raises(LabError, match="already"):
        reward.start_training(ctx, Source.SIMULATED, RewardConfig(epochs=2))


def test_two_people_who_press_train_at_the_same_moment_get_one_reward_model(ctx):
    """Both pages showed no training; the first one has finished before the second press arrives."""
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    shown = reward.screen_state(ctx)["last_training"]
    assert shown == 0
    job = reward.start_training(ctx, Source.SIMULATED, RewardConfig(epochs=1), shown)
    queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine_process.record_heartbeat(ctx.db, "x"))
    queue.finish(ctx.db, job.id, {})
    assert reward.start_training(ctx, Source.SIMULATED, RewardConfig(epochs=1), shown).id == job.id
    with pytest.raises(LabError, match="Somebody else has just trained a reward model"):
        reward.start_training(ctx, Source.SIMULATED, RewardConfig(epochs=2), shown)
    assert [one.id for one in queue.jobs(ctx.db, kinds=[JobKind.TRAIN_REWARD])] == [job.id]
    shown = reward.screen_state(ctx)["last_training"]
    assert shown == job.id
    assert reward.start_training(ctx, Source.SIMULATED, RewardConfig(epochs=1), shown).id > job.id


def test_a_training_has_loss_and_stage_and_a_second_one_is_refused(ctx):
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    job = reward.start_training(ctx, Source.SIMULATED, RewardConfig(epochs=1))
    assert not reward.screen_state(ctx)["job"]["running"]
    engine = engine_process.record_heartbeat(ctx.db, "x")
    assert queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine).payload["config"]["epochs"] == 1
    queue.update_progress(ctx.db, job.id, 0.5, 4.0, {"loss": [0.7, 0.61234567], "stage": "validation"})
    assert reward.screen_state(ctx)["job"] == {
        "id": job.id, "running": True, "stage": "validation", "loss": [0.7, 0.6123], "progress": 0.5, "eta_s": 4.0, "note": "",
        "status_text": "A reward model from labels simulated by cheerful is being trained.",
    }  # fmt: skip
    with pytest.raises(LabError, match="already"):
        reward.start_training(ctx, Source.SIMULATED, RewardConfig())
    queue.fail(ctx.db, job.id, "all labels are ties")
    state = reward.screen_state(ctx)
    assert state["job"] is None
    assert state["failed"] == "all labels are ties"


def test_a_training_queued_behind_a_run_names_it(ctx):
    row = add(ctx)
    assert retraining.training_status(ctx.db, ctx.project.id) == ""
    run = create_run(ctx.db, ctx.project.id, row.id, "r", config={}, manifest={}, total_steps=5)
    first = queue.submit(ctx.db, JobKind.TRAIN_POLICY, ctx.project.id, {"run_id": run.id})
    job = retraining.submit_training(ctx.db, ctx.project.id, Source.SIMULATED)
    status_text = reward.screen_state(ctx)["job"]["status_text"]
    assert status_text == f"A reward model from labels simulated by cheerful waits until run {run.id} has ended."
    assert start_run.options(ctx, Payload())["training_text"] == status_text
    queue.cancel(ctx.db, first.id)
    queue.submit(ctx.db, JobKind.TRAIN_POLICY, ctx.project.id, {"run_id": run.id + 1})  # behind it: no matter
    assert reward.screen_state(ctx)["job"]["status_text"].endswith(" waits for the engine.")
    queue.cancel(ctx.db, job.id)
    retraining.submit_training(ctx.db, ctx.project.id, Source.HUMAN)
    assert reward.screen_state(ctx)["job"]["status_text"].startswith("A reward model from people's labels waits ")


def test_enough_labels_make_a_training_due(ctx):
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    assert retraining.training_status(ctx.db, ctx.project.id) == (
        "A reward model from labels simulated by cheerful is due and starts automatically."
    )


def test_too_few_labels_submit_no_training(ctx):
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    with pytest.raises(LabError, match="fewer than 2 decided labels by people"):
        reward.start_training(ctx, Source.HUMAN, RewardConfig())
    assert queue.jobs(ctx.db, kinds=[JobKind.TRAIN_REWARD]) == []
    with pytest.raises(LabError, match="no usable source"):
        parse_payload(reward.TrainReward, {"source": "aliens", "settings": {}})


def test_words_of_a_text_are_explained(ctx, calls):
    row, screen = add(ctx), calls(reward, ctx)
    query = {"model": row.id, "prompt": "p", "text": "a text", "annotator": "ann"}
    job = queue.get_job(ctx.db, screen.explain(query | {"tokens": [1, 3]})["job"])
    assert job.payload["items"] == [{"prompt": "p", "text": "a text", "first": 1, "end": 3}]
    for tokens in ([-1, 2], [2, 2], [3, 1]):
        assert "no such words" in screen.explain(query | {"tokens": tokens})["error"]


def test_an_explanation_says_whether_there_is_an_adapter(ctx, explained):
    """Old jobs do not say it. What a part of a text adds is less than its score would be alone."""
    job = explained(encoded(0.5, -1.0, 2.0, 0.25))
    whole = reward.explanation_view(ctx, job)
    assert whole["has_adapter"] is False
    job.result["has_adapter"], job.result["items"][0]["share"] = True, 0.25
    part = reward.explanation_view(ctx, job)
    assert part["has_adapter"] is True
    assert part["instant"]["score"] != whole["instant"]["score"]


def test_an_explanation_is_a_job_of_the_engine(ctx):
    row = add(ctx)
    job = explain(ctx, row.id, "a prompt", "a text")
    assert reward.explanation_view(ctx, queue.get_job(ctx.db, job.id)) == {"is_waiting": True, "running": False}
    engine = engine_process.record_heartbeat(ctx.db, "x")
    queue.claim(ctx.db, [JobKind.EXPLAIN], engine)
    item = {"score": 0.5, "tokens": ["a", ""], "token_scores": [1.0, 0.0]}
    queue.finish(ctx.db, job.id, {"items": [item]})
    assert reward.explanation_view(ctx, queue.get_job(ctx.db, job.id)) == {
        "is_waiting": False, **item, "has_adapter": False, "instant": None,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "   ", "\u200b", "x" * 5000], ids=["empty", "blank", "invisible", "long"])
def test_empty_and_long_texts_are_not_explained(ctx, text):
    row = add(ctx)
    with pytest.raises(LabError, match="1 to 4000"):
        explain(ctx, row.id, "a prompt", text)


def test_a_failed_explanation_has_its_error(ctx):
    row = add(ctx)
    job = explain(ctx, row.id, "p", "t")
    queue.fail(ctx.db, job.id, "the weights are not those")
    assert reward.explanation_view(ctx, queue.get_job(ctx.db, job.id))["failure"] == "the weights are not those"


def test_explanations_need_an_existing_model_and_a_queue_that_is_not_full(ctx):
    row = add(ctx)
    with pytest.raises(LabError):
        explain(ctx, row.id + 1, "p", "t")
    for _ in range(generation_requests.MAX_QUEUED_JOBS):
        explain(ctx, row.id, "p", "t")
    with pytest.raises(LabError, match="can wait for the engine"):
        explain(ctx, row.id, "p", "t")


def test_the_result_of_another_kind_of_job_is_refused(ctx):
    job = queue.submit(ctx.db, JobKind.SAMPLE_PAIRS, ctx.project.id, {"count": 1})
    with pytest.raises(LabError, match="belongs to somebody else"):
        generation_requests.own_job(ctx, job.id, JobKind.EXPLAIN, "ann")
    with pytest.raises(LabError, match="no usable job"):
        parse_payload(reward.JobQuery, {"job": None})


def test_detail_says_whether_an_adapter_was_trained_and_rejected(ctx):
    for adapter, rejected in ((None, False), ({"used": True}, False), ({"used": False}, True)):
        assert reward.model_detail(ctx, add(ctx, REPORT | {"adapter": adapter}).id)["adapter_rejected"] is rejected
    assert reward.model_detail(ctx, add(ctx).id)["adapter_rejected"] is False  # reports of older versions


def test_calibration_and_disagreements_of_a_model(ctx):
    figures = {"calibration": [[0.6, 0.5, 4], [0.9, 1.0, 3]], "expected_calibration_error": 0.1}
    row = add(
        ctx, REPORT | figures | {"disagreements": [{"index": 2, "probability": 0.1}, {"index": 99, "probability": 0.2}]}
    )
    detail, label = reward.model_detail(ctx, row.id), load_comparisons(ctx.db, row.snapshot)[2]
    assert (detail["calibration"], detail["calibration_error"]) == ([(0.6, 0.5, 4), (0.9, 1.0, 3)], 0.1)
    turns = [{"role": "user", "content": label.prompt}]
    assert detail["disagreements"] == [
        {"turns": turns, "chosen": label.chosen.strip(), "rejected": label.rejected.strip(), "probability": 0.1}
    ]


def test_reports_of_older_models_have_no_calibration(ctx):
    detail = reward.model_detail(ctx, add(ctx).id)
    assert (detail["calibration"], detail["calibration_error"], detail["disagreements"]) == ([], None, [])


@pytest.mark.parametrize("is_running", [False, True])
def test_a_training_is_cancelled_and_begins_again_when_asked(ctx, calls, is_running, monkeypatch):
    monkeypatch.setattr(engine_process, "ensure_engine", lambda *_: None)
    db, project_id = ctx.db, ctx.project.id
    label_with_judge(db, project_id, load_judge("cheerful"), 14)
    assert retraining.is_retraining_due(db, project_id, Source.SIMULATED)
    job = reward.start_training(ctx, Source.SIMULATED, RewardConfig())
    if is_running:
        queue.claim(db, [JobKind.TRAIN_REWARD], engine_process.record_heartbeat(db, "train reward"))
    screen = calls(reward, ctx)
    assert "nothing to cancel" in screen.cancel({"job": job.id + 1})["error"]
    assert screen.cancel({"job": job.id}) is None
    assert queue.get_job(db, job.id).status is JobStatus.CANCELLED
    state = reward.screen_state(ctx)
    assert (state["job"], state["cancelled"], state["failed"], state["labels"]["simulated"]) == (None, True, "", 14)
    assert state["labels"]["goals"] == {"human": 10, "simulated": 24}
    assert not retraining.is_retraining_due(db, project_id, Source.SIMULATED)  # it would start again at once
    assert "nothing to cancel" in screen.cancel({"job": job.id})["error"]
    reward.start_training(ctx, Source.SIMULATED, RewardConfig())
    state = reward.screen_state(ctx)
    assert (state["cancelled"], "waits" in state["job"]["status_text"]) == (False, True)


def test_only_the_operator_cancels_a_training(ctx, calls, monkeypatch):
    job = queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, {"source": "human"})
    monkeypatch.setattr(Access, "visitor", lambda *_: Visitor(Role.LABELLER, "Ann"))
    screen = calls(reward, ctx.as_multi_user(open_to_all=False))
    assert "Only the operator" in screen.cancel({"job": job.id})["error"]
    assert queue.get_job(ctx.db, job.id).status is JobStatus.QUEUED


def test_a_training_uses_the_settings_of_the_form(ctx, calls):
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    screen = calls(reward, ctx)
    reply = screen.train({"source": "simulated", "settings": {"epochs": "many"}})
    assert reply["error"].startswith('epochs = "many" is not a whole number')
    assert queue.jobs(ctx.db, kinds=[JobKind.TRAIN_REWARD]) == []
    job = queue.get_job(ctx.db, screen.train({"source": "simulated", "settings": {"epochs": "3"}})["job"])
    assert job.payload["config"] == RewardConfig(epochs=3).to_dict()
