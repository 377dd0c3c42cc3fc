"""Screen "Label" without a browser: votes that are stored, and votes that are refused."""

import numpy as np
import pytest
from support.page_requests import requests_of

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.errors import ConfigError, LabelError, NotAllowedError, StaleVoteError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.instant_reward import Prediction
from rlhf_lab.jobs.project_setup import copy_project, new_project, remove_project
from rlhf_lab.store.features import TextFeatures, add_features, texts_without_features
from rlhf_lab.store.projects import open_project
from rlhf_lab.store.votes import label_count, vote_counts
from rlhf_lab.ui.context import OPERATOR_SECRET_ENV_VAR, Context
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.api import parse_payload
from rlhf_lab.ui.shared.instant_view import instant_view, prediction_view
from rlhf_lab.ui.shared.presence import Presence


def cast(ctx, payload, via="page"):
    return voting.cast_vote(ctx, parse_payload(voting.VotePayload, payload), "ann", via)


def change(ctx, **payload):
    answer = {"uuid": "changed", "choice": "tie"} | payload
    return voting.change_vote(ctx, parse_payload(voting.ChangePayload, answer), "ann")


def vote(ctx, choice, more=None):
    """Vote on the pair that is shown; returns the pair and the vote."""
    pair = label.state(ctx, "ann")["pair"]
    payload = {"uuid": f"u{pair['id']}-{choice}", "pair_id": pair["id"], "choice": choice, "duration_ms": 1200}
    return pair, cast(ctx, payload | (more or {}))


def test_left_and_right_are_turned_into_first_and_second_by_the_recorded_sides(ctx):
    sides = set()
    for _ in range(10):
        _, stored = vote(ctx, "left")
        assert stored.choice is (Choice.FIRST if stored.first_on_left else Choice.SECOND)
        sides.add(stored.first_on_left)
    assert sides == {True, False}


def test_the_text_on_the_left_is_the_one_the_vote_names(ctx):
    from rlhf_lab.store.projects import get_pair

    for _ in range(6):
        pair, stored = vote(ctx, "right")
        row = get_pair(ctx.db, pair["id"])
        chosen = row.first if stored.choice is Choice.FIRST else row.second
        assert pair["right"] == chosen.text.strip()


@pytest.mark.parametrize(
    "broken",
    [{"choice": "first"}, {"choice": "second"}, {"choice": "best"}, {"pair_id": "x"}, {"duration_ms": "fast"}],
    ids=str,
)
def test_a_malformed_vote_is_refused_and_nothing_is_stored(ctx, broken):
    with pytest.raises(ConfigError, match="no usable"):
        vote(ctx, "left", broken)
    assert label.state(ctx, "ann")["labels"] == 0


def test_the_next_pair_is_sent_with_its_sides(ctx):
    shown = label.state(ctx, "ann")
    cast(ctx, {"uuid": "u", "pair_id": shown["pair"]["id"], "choice": "left"})
    following = label.state(ctx, "ann")
    assert following["pair"] == shown["next_pair"]
    assert following["next_pair"]["id"] not in (shown["pair"]["id"], shown["next_pair"]["id"])


def test_a_response_time_is_kept_within_an_hour(ctx):
    assert vote(ctx, "left", {"duration_ms": 10**9})[1].response_ms == 3_600_000
    assert vote(ctx, "left", {"duration_ms": -5})[1].response_ms == 0


def test_a_pair_of_another_project_is_stale(ctx):
    old = label.state(ctx, "ann")["pair"]["id"]
    new_project(ctx.db, prompt_set="reviews")
    payload = {"uuid": "u", "pair_id": old, "choice": "left"}
    with pytest.raises(StaleVoteError, match="Another project"):
        cast(ctx, payload)
    open_project(ctx.db, 1)
    stored = cast(ctx, payload)
    open_project(ctx.db, 2)
    assert cast(ctx, payload) == stored  # sent again, because the reply was lost


@pytest.mark.parametrize("via", ["page", "api"])
def test_a_page_that_still_shows_a_deleted_project_cannot_vote_in_the_next(ctx, via):
    new_project(ctx.db, prompt_set="reviews")
    shown = label.state(ctx, "ann")
    payload = {"uuid": "first", "pair_id": shown["pair"]["id"], "choice": "left"}
    first = cast(ctx, payload, via)
    open_project(ctx.db, 1)
    remove_project(ctx.db, ctx.home, 2)
    new_project(ctx.db, prompt_set="support")
    now = label.state(ctx, "ann")
    with pytest.raises(StaleVoteError, match="was deleted"):
        cast(ctx, payload | {"uuid": "stale"}, via)
    second = cast(ctx, payload | {"uuid": "second", "pair_id": now["pair"]["id"]}, via)
    assert second.id > first.id
    before, after = (state["project"]["project_created_at"] for state in (shown, now))
    with pytest.raises(LabelError):
        change(ctx, vote_id=first.id)
    with pytest.raises(StaleVoteError, match="Another project"):
        change(ctx, vote_id=second.id, project_created_at=before)
    assert change(ctx, vote_id=second.id, project_created_at=after).choice is Choice.TIE


def test_a_page_of_another_project_undoes_nothing_in_this_one(ctx):
    old = label.state(ctx, "ann")["project"]["project_created_at"]
    new_project(ctx.db, prompt_set="reviews")
    vote(ctx, "left")

    def press_on_page_of(name, created_at):
        reply = press(ctx, name, project_created_at=created_at)
        return reply["labels"], reply["notice"].split(";")[0]

    now = label.state(ctx, "ann")["project"]["project_created_at"]
    assert press_on_page_of("undo", old) == (1, "Another project has been opened")
    assert press_on_page_of("undo", now) == (0, "Your last answer was undone.")
    assert press_on_page_of("redo", old) == (0, "Another project has been opened")
    assert press_on_page_of("redo", now) == (1, "The undone vote counts again.")


def test_the_reply_to_a_vote_that_does_not_count_says_why_and_has_the_next_pair(ctx):
    pair = label.state(ctx, "ann")["pair"]["id"]
    for pair_id, words in ((pair, ""), (9999, "was deleted"), (pair, "already voted")):
        reply = press(ctx, "vote", pair_id=pair_id, choice="left", uuid=f"{pair_id}{words}", note="warm")
        assert words in reply["notice"]
        assert (' Your note was: "warm"' in reply["notice"]) is bool(words)
        assert reply["pair"]["id"] != pair
    assert reply["labels"] == 1


def test_the_counter_names_the_next_reward_model(ctx):
    for _ in range(3):
        vote(ctx, "left")
    vote(ctx, "skip")
    shown = label.state(ctx, "ann")
    assert (shown["labels"], shown["next_training_at"], shown["labels_to_next"]) == (3, 10, 7)


def test_the_training_text_follows_the_due_queued_and_running_job(ctx):
    for _ in range(9):
        vote(ctx, "left")
    assert label.state(ctx, "ann")["training_text"] == ""
    vote(ctx, "right")
    assert (
        label.state(ctx, "ann")["training_text"]
        == "A reward model from people's labels is due and starts automatically."
    )
    queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, {"source": "human"})
    assert label.state(ctx, "ann")["training_text"] == "A reward model from people's labels waits for the engine."
    queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine_process.record_heartbeat(ctx.db, "x"))
    assert label.state(ctx, "ann")["training_text"] == "A reward model from people's labels is being trained."


def test_newer_progress_has_a_greater_timestamp(ctx):
    before = label.label_progress(ctx)
    vote(ctx, "left")
    after = label.state(ctx, "ann")
    assert (before["labels"], after["labels"]) == (0, 1)
    assert before["counted_at"] < after["counted_at"] < label.label_progress(ctx)["counted_at"]


def test_a_judge_labels_existing_pairs_and_the_rest_later(ctx):
    words = ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 40)
    shown = label.state(ctx, "ann")
    assert shown["labels"] == 0
    assert 0 < shown["simulated"] < 40
    assert f"{40 - shown['simulated']} more" in words


def test_a_fresh_copy_keeps_the_old_project(ctx):
    before = ctx.project
    vote(ctx, "left")
    after = copy_project(ctx.db, before)
    assert after.id != before.id
    assert ctx.project.id == after.id
    assert label.state(ctx, "ann")["labels"] == 0


@pytest.mark.parametrize("space", [True, False])
def test_the_operator_is_asked_for_where_a_secret_is_set(tmp_path, monkeypatch, send_secret, space):
    if space:
        monkeypatch.setenv("SPACE_ID", "someone/lab")
    monkeypatch.setenv(OPERATOR_SECRET_ENV_VAR, "sesame")
    ctx = Context.open(tmp_path)
    for wrong in ("", "Sesame"):
        send_secret(wrong)
        with pytest.raises(NotAllowedError, match="operator"):
            ctx.require_operator()
    send_secret("sesame")
    ctx.require_operator()
    ctx.db.close()


def test_a_space_without_a_secret_refuses_everybody_and_a_laptop_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv(OPERATOR_SECRET_ENV_VAR, raising=False)
    laptop = Context.open(tmp_path)
    laptop.require_operator()
    monkeypatch.setenv("SPACE_ID", "someone/lab")
    space = Context.open(tmp_path)
    with pytest.raises(NotAllowedError):
        space.require_operator()
    laptop.db.close()
    space.db.close()


@pytest.mark.parametrize("name", [None, "", " ", "judge:vivid", "api:tool", "x" * 61, "bell\x07", "\ud800"], ids=repr)
def test_judge_does_nothing_for_a_caller_without_a_usable_name(ctx, name):
    assert "no usable" in press(ctx, "judge", annotator=name, judge="cheerful", count=3)["error"]
    assert vote_counts(ctx.db, ctx.project.id)[Source.SIMULATED] == dict.fromkeys(Choice, 0)


def test_judge_acts_for_a_caller_with_a_name(ctx):
    press(ctx, "judge", judge="cheerful", count=3)
    assert label_count(vote_counts(ctx.db, ctx.project.id)[Source.SIMULATED]) == 3


def test_only_the_operator_lets_a_judge_label(ctx):
    lab = ctx.as_multi_user(open_to_all=True)
    assert "Only the operator" in press(lab, "judge", judge="cheerful", count=3)["error"]
    assert vote_counts(ctx.db, ctx.project.id)[Source.SIMULATED] == dict.fromkeys(Choice, 0)


def test_the_figures_that_a_page_polls(ctx, monkeypatch):
    monkeypatch.setattr(label, "PRESENCE", Presence())  # visitors of earlier tests would leave during this one
    screen = requests_of(ctx, label.api)
    here = screen.presence({"annotator": "ann"})
    assert here["you"] == {"name": "", "role": "operator"}
    assert screen.presence({"annotator": "bob"})["people_here"] == here["people_here"] + 1  # not part of the cache
    assert here["project_created_at"] == ctx.project.created_at
    assert (here["labels"], here["next_training_at"]) == (0, 10)
    assert screen.disputed({"annotator": "ann"}) == {"count": 0, "prompts": []}
    new_project(ctx.db)
    assert (
        screen.presence({"annotator": "ann"})["project_created_at"]
        == ctx.project.created_at
        > here["project_created_at"]
    )


def test_disputes_are_shown_to_experts_only(ctx, monkeypatch):
    lab = ctx.as_multi_user(open_to_all=True)
    shown = {"count": 1, "prompts": [[]]}
    monkeypatch.setattr(label, "disputed_view", lambda *_: shown)
    monkeypatch.setattr(Context, "annotator_or_empty", lambda _, name: name)
    monkeypatch.setattr(label, "is_expert", lambda _, name: name == "Eve")
    screen = requests_of(lab, label.api)
    assert [screen.disputed({"annotator": name})["count"] for name in ("Eve", "Ann", "")] == [1, 0, 0]


def press(ctx, name, **payload):
    """The reply to a request of the page, or its error."""
    return getattr(requests_of(ctx, label.api), name)({"annotator": "ann"} | payload)


def give_features(ctx):
    """Store features of all texts of the project: their length, and noise."""
    texts = texts_without_features(ctx.db, ctx.project.id, 1000)
    noise = np.random.default_rng(0).normal(size=(len(texts), 4))
    vectors = {text.id: [len(text.text) / 10, *row] for (_, text), row in zip(texts, noise, strict=True)}
    add_features(ctx.db, {i: TextFeatures(1, np.array(vector, np.float16)) for i, vector in vectors.items()})


def answer(ctx, annotator="ann", choice=None):
    """Vote for the shorter text by the event, as the page does; returns the uuid."""
    pair = label.state(ctx, annotator)["pair"]
    choice = choice or ("left" if len(pair["left"]) < len(pair["right"]) else "right")
    payload = {"annotator": annotator, "pair_id": pair["id"], "choice": choice, "uuid": f"{annotator} {pair['id']}"}
    assert press(ctx, "vote", **payload)["notice"] == ""
    return payload["uuid"]


def test_the_reply_to_a_vote_does_not_wait_for_the_instant_reward_model(ctx):
    give_features(ctx)
    uuids = [answer(ctx) for _ in range(7)]
    view = instant_view(ctx, "ann", uuids[-1])
    assert (view["pending"], view["prediction"], view["right"]) == (True, None, None)
    ctx.instant_reward.run_once()
    view = instant_view(ctx, "ann", uuids[-1])
    assert (view["pending"], view["labels"], view["decided"], view["needed"]) == (False, 7, 7, 6)
    assert 0 <= view["right"] <= 7
    assert view["low"] < view["right"] / 7 < view["high"] or view["right"] in (0, 7)
    last = answer(ctx)
    ctx.instant_reward.run_once()
    prediction = instant_view(ctx, "ann", last)["prediction"]
    chosen, other = prediction["scores"]
    assert prediction["expected"] is (chosen > other)


def test_scores_of_a_pair_are_shown_to_its_voter_alone(ctx):
    give_features(ctx)
    for _ in range(7):
        answer(ctx)
    ctx.instant_reward.run_once()
    vote_uuid = answer(ctx, "bob")
    ctx.instant_reward.run_once()
    assert instant_view(ctx, "bob", vote_uuid)["prediction"] is not None
    for other in ("ann", ""):
        view = instant_view(ctx, other, vote_uuid)
        assert view["prediction"] is None
        assert view["right"] is not None


def test_the_figures_do_not_name_a_pair_that_is_open(ctx):
    """There are no scores before the vote and after an undo."""
    give_features(ctx)
    for _ in range(8):
        uuid = answer(ctx)
    ctx.instant_reward.run_once()
    assert instant_view(ctx, "ann", uuid)["prediction"] is not None
    assert instant_view(ctx, "ann", "")["prediction"] is None
    press(ctx, "undo")
    ctx.instant_reward.run_once()
    view = instant_view(ctx, "ann", uuid)
    assert (view["pending"], view["prediction"], view["labels"]) == (False, None, 7)
    press(ctx, "redo")
    ctx.instant_reward.run_once()
    assert instant_view(ctx, "ann", "")["labels"] == 8


def test_a_skipped_pair_is_not_predicted(ctx):
    give_features(ctx)
    for _ in range(8):
        answer(ctx)
    uuid = answer(ctx, choice="skip")
    assert not ctx.instant_reward.is_pending(uuid)
    ctx.instant_reward.run_once()
    view = instant_view(ctx, "ann", uuid)
    assert (view["labels"], view["prediction"]) == (8, None)


def test_a_vote_without_a_winner_shows_the_scores_of_both_sides():
    """Sides as the person saw them; nothing was right or wrong."""
    prediction = Prediction(1.5, -0.5)
    for choice in (Choice.TIE, Choice.BOTH_BAD):
        vote = Vote("u", 1, "ann", Source.HUMAN, choice, first_on_left=False)
        assert prediction_view(vote, prediction) == {"decided": False, "scores": (-0.5, 1.5), "expected": None}
    second = Vote("u", 1, "ann", Source.HUMAN, Choice.SECOND, first_on_left=True)
    assert prediction_view(second, prediction) == {"decided": True, "scores": (-0.5, 1.5), "expected": False}
    assert prediction_view(second, Prediction(2.0, 2.0))["expected"] is False


def test_undo_and_redo_are_offered_where_there_is_something(ctx):
    def offered(reply):
        return reply["can_undo"], reply["can_redo"]

    assert offered(label.state(ctx, "ann")) == (False, False)
    answer(ctx, "ann", "left")
    assert offered(label.state(ctx, "ann")) == (True, False)
    assert offered(label.state(ctx, "bob")) == (False, False)
    assert offered(press(ctx, "undo")) == (False, True)
    assert offered(press(ctx, "redo")) == (True, False)
    press(ctx, "undo")
    vote(ctx, "tie")
    assert offered(label.state(ctx, "ann")) == (True, False)
