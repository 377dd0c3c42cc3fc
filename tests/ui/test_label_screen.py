"""Screen "Label" without a browser: what is stored for what was said, and what is refused."""

import gradio as gr
import pytest

from rlhf_lab.common.enums import Choice, JobKind
from rlhf_lab.errors import LabelError, NotAllowedError, StaleVoteError
from rlhf_lab.jobs import engine_process, queue, scheduler
from rlhf_lab.jobs.project_setup import copy_project, new_project, remove_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import open_project
from rlhf_lab.ui.context import OPERATOR_SECRET_ENV_VAR, Context
from rlhf_lab.ui.screens import label
from rlhf_lab.ui.services import voting


@pytest.fixture
def ctx(tmp_path):
    with Database.open(tmp_path) as db:
        new_project(db)
        yield Context(tmp_path, db)


def say(ctx, choice, more=None):
    pair = label.state(ctx, "ann")["pair"]
    said = {"uuid": f"u{pair['id']}-{choice}", "pair_id": pair["id"], "annotator": "ann", "choice": choice, "ms": 1200}
    return pair, label.cast_vote(ctx, said | (more or {}))


def test_left_and_right_are_turned_into_first_and_second_by_the_recorded_sides(ctx):
    found = set()
    for _ in range(10):
        _, vote = say(ctx, "left")
        assert vote.choice is (Choice.FIRST if vote.first_on_left else Choice.SECOND)
        found.add(vote.first_on_left)
    assert found == {True, False}


def test_the_text_on_the_left_is_the_one_the_vote_names(ctx):
    from rlhf_lab.store.projects import get_pair

    for _ in range(6):
        pair, vote = say(ctx, "right")
        row = get_pair(ctx.db, pair["id"])
        chosen = row.first if vote.choice is Choice.FIRST else row.second
        assert pair["right"] == chosen.text.strip()


@pytest.mark.parametrize(
    "broken",
    [{"choice": "first"}, {"choice": "second"}, {"choice": "best"}, {"pair_id": "x"}, {"ms": "fast"}],
    ids=str,
)
def test_what_cannot_be_read_is_refused_and_nothing_is_stored(ctx, broken):
    with pytest.raises(LabelError, match="could not be read"):
        say(ctx, "left", broken)
    assert label.state(ctx, "ann")["labels"] == 0


def test_the_pair_that_comes_next_is_told_with_its_sides(ctx):
    shown = label.state(ctx, "ann")
    label.cast_vote(ctx, {"uuid": "u", "pair_id": shown["pair"]["id"], "annotator": "ann", "choice": "left"})
    following = label.state(ctx, "ann")
    assert following["pair"] == shown["after"]
    assert following["after"]["id"] not in (shown["pair"]["id"], shown["after"]["id"])


def test_a_response_time_is_kept_within_an_hour(ctx):
    assert say(ctx, "left", {"ms": 10**9})[1].response_ms == 3_600_000
    assert say(ctx, "left", {"ms": -5})[1].response_ms == 0


def test_a_pair_of_another_project_is_stale(ctx):
    old = label.state(ctx, "ann")["pair"]["id"]
    new_project(ctx.db, prompt_set="reviews")
    said = {"uuid": "u", "pair_id": old, "annotator": "ann", "choice": "left"}
    with pytest.raises(StaleVoteError, match="Another project"):
        label.cast_vote(ctx, said)
    open_project(ctx.db, 1)
    vote = label.cast_vote(ctx, said)
    open_project(ctx.db, 2)
    assert label.cast_vote(ctx, said) == vote  # sent again, its answer was lost


@pytest.mark.parametrize("via", ["page", "api"])
def test_what_still_shows_a_deleted_project_says_nothing_about_the_next(ctx, via):
    new_project(ctx.db, prompt_set="reviews")
    shown = label.state(ctx, "ann")
    said = {"annotator": "ann", "uuid": "first", "pair_id": shown["pair"]["id"], "choice": "left"}
    first = voting.cast_vote(ctx, said, via)
    open_project(ctx.db, 1)
    remove_project(ctx.db, ctx.home, 2)
    new_project(ctx.db, prompt_set="support")
    now = label.state(ctx, "ann")
    with pytest.raises(StaleVoteError, match="not there any more"):
        voting.cast_vote(ctx, said | {"uuid": "stale"}, via)
    mine = voting.cast_vote(ctx, said | {"uuid": "mine", "pair_id": now["pair"]["id"]}, via)
    assert mine.id > first.id
    change = {"annotator": "ann", "uuid": "changed", "choice": "tie"}
    with pytest.raises(LabelError):
        voting.change_vote(ctx, change | {"vote_id": first.id})
    with pytest.raises(StaleVoteError, match="Another project"):
        voting.change_vote(ctx, change | {"vote_id": mine.id, "made": shown["project"]["made"]})
    assert voting.change_vote(ctx, change | {"vote_id": mine.id, "made": now["project"]["made"]}).choice is Choice.TIE


def test_a_page_of_another_project_takes_nothing_back_in_this_one(ctx):
    act, old = label.voting_handlers(ctx), label.state(ctx, "ann")["project"]["made"]
    new_project(ctx.db, prompt_set="reviews")
    say(ctx, "left")

    def press(name, made):
        answer = act[name](gr.EventData(None, {"annotator": "ann", "made": made}))
        return answer["labels"], answer["notice"].split(";")[0]

    now = label.state(ctx, "ann")["project"]["made"]
    assert press("undo", old) == (1, "Another project was opened meanwhile")
    assert press("undo", now) == (0, "Your last answer is taken back.")
    assert press("redo", old) == (0, "Another project was opened meanwhile")
    assert press("redo", now) == (1, "The vote you had undone counts again.")


def test_a_vote_is_answered_by_name_also_when_its_pair_is_gone(ctx):
    vote = label.voting_handlers(ctx)["vote"]
    pair = label.state(ctx, "ann")["pair"]["id"]
    for pair_id, words in ((pair, ""), (9999, "not there any more"), (pair, "already voted")):
        said = {"annotator": "ann", "pair_id": pair_id, "choice": "left", "uuid": f"{pair_id}{words}"}
        answer = vote(gr.EventData(None, said))
        assert answer["vote"] == said["uuid"]
        assert words in answer["notice"]
    assert answer["labels"] == 1
    assert label.state(ctx, "ann")["vote"] is None


def test_the_counter_names_the_next_reward_model(ctx):
    for _ in range(3):
        say(ctx, "left")
    say(ctx, "skip")
    shown = label.state(ctx, "ann")
    assert (shown["labels"], shown["goal"], shown["left"]) == (3, 10, 7)


def test_enough_labels_are_said_to_wait_until_the_model_learns_from_them(ctx):
    for _ in range(9):
        say(ctx, "left")
    assert label.state(ctx, "ann")["learning"] == ""
    say(ctx, "right")
    assert label.state(ctx, "ann")["learning"] == "A reward model from people's labels is due and begins by itself."
    queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, {"source": "human"})
    assert label.state(ctx, "ann")["learning"] == "A reward model from people's labels waits for the engine."
    queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine_process.record_heartbeat(ctx.db, "x"))
    assert label.state(ctx, "ann")["learning"] == "A reward model learns from people's labels."


def test_of_two_counts_the_newer_one_is_known(ctx):
    before = label.label_progress(ctx)
    say(ctx, "left")
    after = label.state(ctx, "ann")
    assert (before["labels"], after["labels"]) == (0, 1)
    assert before["counted"] < after["counted"] < label.label_progress(ctx)["counted"]


def test_a_judge_labels_what_is_there_and_the_rest_later(ctx):
    words = ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 40)
    shown = label.state(ctx, "ann")
    assert shown["labels"] == 0
    assert 0 < shown["simulated"] < 40
    assert f"{40 - shown['simulated']} more" in words


def test_a_fresh_copy_keeps_the_old_project(ctx):
    before = ctx.project
    say(ctx, "left")
    after = copy_project(ctx.db, before)
    assert after.id != before.id
    assert ctx.project.id == after.id
    assert label.state(ctx, "ann")["labels"] == 0


@pytest.mark.parametrize("space", [True, False])
def test_the_operator_is_asked_for_where_a_secret_is_set(tmp_path, monkeypatch, space):
    if space:
        monkeypatch.setenv("SPACE_ID", "someone/lab")
    monkeypatch.setenv(OPERATOR_SECRET_ENV_VAR, "sesame")
    ctx = Context.open(tmp_path)
    ctx.require_operator("sesame")
    for wrong in ("", None, "Sesame"):
        with pytest.raises(NotAllowedError, match="operator"):
            ctx.require_operator(wrong)
    ctx.db.close()


def test_a_space_without_a_secret_refuses_everybody_and_a_laptop_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv(OPERATOR_SECRET_ENV_VAR, raising=False)
    laptop = Context.open(tmp_path)
    laptop.require_operator(None)
    monkeypatch.setenv("SPACE_ID", "someone/lab")
    space = Context.open(tmp_path)
    with pytest.raises(NotAllowedError):
        space.require_operator("")
    laptop.db.close()
    space.db.close()
