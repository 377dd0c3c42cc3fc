"""What the page shows of a live run: the offer to start one, who wrote the texts of a judged pair, and the state of its brake."""

import uuid

import numpy as np
import pytest

from rlhf_lab.common.enums import BrakeState, Choice, EventKind, Opponent, RunStatus, Source
from rlhf_lab.common.records import NewCompletion, StepResult, Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import LabelError
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.jobs.retraining import IGNORED_KEY
from rlhf_lab.store import tables as t
from rlhf_lab.store.features import TextFeatures, add_features
from rlhf_lab.store.live_runs import LivePair, add_live_pairs
from rlhf_lab.store.projects import add_completions, add_pairs, prompts
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import add_event, create_run, get_run, mark_event_applied, set_manifest, set_run_status
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.ui.run_views.brake_view import brake_view
from rlhf_lab.ui.run_views.run_comparison import run_settings
from rlhf_lab.ui.run_views.run_feed import FeedQuery, RunFeed
from rlhf_lab.ui.run_views.run_summary import RunView, change_markers, ignored_by_heads, label_source_text
from rlhf_lab.ui.shared.api import Payload
from rlhf_lab.ui.shared.instant_view import instant_view
from rlhf_lab.ui.train.start_run import api as start_run


@pytest.fixture
def run(ctx):
    """A live run of 40 steps that has done ten."""
    config = PolicyConfig.for_algorithm("ppo", live=True).to_dict()
    run = create_run(ctx.db, ctx.project.id, None, "live", config=config, manifest={"labels": LABELS}, total_steps=40)
    metrics = {"objective/scores": 0.1, "objective/kl": 0.1, "live/kl_budget": 0.5}
    for step in range(1, 11):
        record_step(ctx.db, run.id, StepResult(step, metrics))
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    return run


LABELS = {"vote_ids": [], "digest": "", "source": "human", "weights": []}


def add_pair(ctx, run=None, opponent=Opponent.BASE, step=None, policy_side=Choice.FIRST):
    """A new pair with features; of a run if one is given."""
    prompt = prompts(ctx.db, ctx.project.id, "train")[0]
    number = uuid.uuid4().int % 10**9
    texts = [NewCompletion(prompt.id, f"text {number} {i}", (i,), "base", 0) for i in range(2)]
    first, second = add_completions(ctx.db, texts)
    vectors = [[1.0, number % 7 / 7], [-1.0, number % 5 / 5]]
    rows = zip((first, second), vectors, strict=True)
    add_features(ctx.db, {text.id: TextFeatures(1, np.array(vector, np.float16)) for text, vector in rows})
    pair = add_pairs(ctx.db, ctx.project.id, [(first.id, second.id, "live")])[0]
    if run is not None:
        side = None if opponent is None else policy_side
        add_live_pairs(ctx.db, [LivePair(pair.id, run.id, 9, opponent, step, side)])
    return pair.id


def vote(ctx, pair_id, choice=Choice.FIRST, annotator="ann", first_on_left=True):
    given = Vote(str(uuid.uuid4()), pair_id, annotator, Source.HUMAN, choice, first_on_left)
    cast_vote(ctx.db, given)
    ctx.instant_reward.predict_vote(given)
    ctx.instant_reward.run_once()
    return given.uuid


def label(ctx, count):
    for _ in range(count):
        vote(ctx, add_pair(ctx))


def test_the_best_checkpoint_is_that_of_the_allowed_budget(ctx, run):
    values = {"eval/best_step": 11.0, "eval/scores": 0.5, "eval/kl": 1.0, "live/kl_budget": 1.0}
    record_step(ctx.db, run.id, StepResult(11, values))
    set_run_status(ctx.db, run.id, RunStatus.DONE)
    text = RunFeed(ctx).poll(FeedQuery(run=run.id))["best_text"]
    assert "a KL of at most 1.3 and" in text  # 1.3 times the 1 nat that the labels allow; all labels together: 5.2


def test_the_offer_comes_with_the_sixth_label_and_ends_with_a_run(ctx):
    label(ctx, 5)
    assert not instant_view(ctx, "ann", "")["offers_live_run"]
    assert start_run.options(ctx, Payload())["models"] == []
    with pytest.raises(LabelError, match="1 more, please"):
        start_run.start_live(ctx, Payload())
    label(ctx, 1)
    ctx.instant_reward.update()
    assert instant_view(ctx, "ann", "")["offers_live_run"]
    shown = start_run.options(ctx, Payload())
    assert (shown["models"], shown["default_id"]) == ([start_run.LIVE_OPTION], start_run.LIVE_LABELS)
    assert not instant_view(ctx, "ann", "")["trains_live"]
    started = get_run(ctx.db, start_run.start_live(ctx, Payload())["run"])
    assert (started.config["live"], started.config["lr_schedule"], started.total_steps) == (True, "constant", 200)
    assert started.reward_model_id is None
    assert not instant_view(ctx, "ann", "")["offers_live_run"]
    assert instant_view(ctx, "ann", "")["trains_live"]


def test_only_a_live_run_of_the_open_project_trains_now(ctx, run):
    statuses = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED, RunStatus.STOPPED, RunStatus.DONE)
    shown = {}
    for status in statuses:
        set_run_status(ctx.db, run.id, status)
        shown[status] = instant_view(ctx, "ann", "")["trains_live"]
    assert [status for status in statuses if shown[status]] == [RunStatus.QUEUED, RunStatus.RUNNING]
    ordinary = create_run(
        ctx.db, ctx.project.id, None, "x", config=PolicyConfig().to_dict(), manifest={}, total_steps=1
    )
    set_run_status(ctx.db, ordinary.id, RunStatus.RUNNING)
    assert not instant_view(ctx, "ann", "")["trains_live"]
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    new_project(ctx.db)
    assert not instant_view(ctx, "ann", "")["trains_live"]


def test_the_form_starts_a_live_run_with_its_own_settings(ctx):
    label(ctx, 6)
    settings = start_run.recommended(ctx, start_run.PresetQuery(preset="lab", algorithm="grpo")) | {"steps": "7"}
    payload = start_run.StartRun(settings=settings, reward_model=start_run.LIVE_LABELS)
    started = get_run(ctx.db, start_run.start(ctx, payload)["run"])
    assert (started.config["algorithm"], started.config["live"], started.total_steps) == ("grpo", True, 7)


@pytest.mark.parametrize(
    ("opponent", "step", "side", "on_left", "writers"),
    [
        (Opponent.BASE, None, Choice.FIRST, True, ("the policy at step 9", "the base model")),
        (Opponent.BASE, None, Choice.FIRST, False, ("the base model", "the policy at step 9")),
        (Opponent.BEST, 5, Choice.SECOND, True, ("the checkpoint of step 5", "the policy at step 9")),
        (None, None, None, True, ("the policy at step 9 or 10", "the policy at step 9 or 10")),
    ],
)
def test_who_wrote_the_texts_is_told_only_to_those_who_have_judged_them(
    ctx, run, opponent, step, side, on_left, writers
):
    label(ctx, 6)
    given = vote(ctx, add_pair(ctx, run, opponent, step, side), first_on_left=on_left)
    assert instant_view(ctx, "ann", given)["writers"] == writers
    assert instant_view(ctx, "bob", given)["writers"] is None
    ordinary = vote(ctx, add_pair(ctx))
    assert instant_view(ctx, "ann", ordinary)["writers"] is None


def test_the_brake_is_part_of_what_train_shows(ctx, run):
    feed = RunFeed(ctx)
    shown = feed.poll(FeedQuery())
    assert shown["brake"] == {
        "state": BrakeState.UNKNOWN, "step": None,
        "text": "none yet. Some of the next pairs compare the policy with another model.",
    }  # fmt: skip
    set_run_status(ctx.db, run.id, RunStatus.STOPPED)
    assert feed.poll(FeedQuery())["brake"]["text"] == "none."
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    for _ in range(3):
        vote(ctx, add_pair(ctx, run), Choice.SECOND)
    after = feed.poll(FeedQuery(run=run.id, epoch=shown["epoch"], after_step=10, revision=shown["revision"]))
    assert after["brake"]["text"].startswith("0 of 3 for the policy. Not yet known which texts people prefer (about ")
    for _ in range(13):
        vote(ctx, add_pair(ctx, run), Choice.SECOND)
    after = feed.poll(FeedQuery())["brake"]
    assert after == {
        "state": BrakeState.DECLINED,
        "text": "0 of 16 for the policy. People prefer the texts of the base model.",
        "step": None,
    }


@pytest.mark.parametrize(
    ("opponent", "choice", "state", "text", "step"),
    [
        (Opponent.BASE, Choice.FIRST, BrakeState.PREFERRED,
         "16 of 16 for the policy against the base. People prefer the policy.", None),
        (Opponent.BEST, Choice.SECOND, BrakeState.DECLINED, "0 of 16 for the policy. People prefer the texts of step 5.", 5),
    ],
)  # fmt: skip
def test_states_of_the_brake(ctx, run, opponent, choice, state, text, step):
    for _ in range(16):
        vote(ctx, add_pair(ctx, run, opponent, 5), choice)
    assert brake_view(ctx.db, run) == {"state": state, "text": text, "step": step}


def test_the_brake_names_the_winning_checkpoint(ctx, run):
    """After two wins against step 9 the defeats against step 5 suffice. After the stop, answers say nothing more."""
    for step, choice, count in ((5, Choice.SECOND, 12), (9, Choice.FIRST, 2), (5, Choice.SECOND, 20)):
        for _ in range(count):
            vote(ctx, add_pair(ctx, run, Opponent.BEST, step), choice)
    shown = brake_view(ctx.db, run)
    assert (shown["state"], shown["step"]) == (BrakeState.DECLINED, 5)
    assert shown["text"].endswith(" for the policy. People prefer the texts of step 5.")
    for _ in range(40):
        vote(ctx, add_pair(ctx, run, Opponent.BEST, 9), Choice.SECOND)
    assert brake_view(ctx.db, run) == shown


def test_the_brake_says_if_several_checkpoints_won(ctx, run):
    for step in (5, 9) * 9:
        vote(ctx, add_pair(ctx, run, Opponent.BEST, step), Choice.SECOND)
    text = "0 of 16 for the policy. People prefer the texts of earlier checkpoints, most often those of step 9."
    assert brake_view(ctx.db, run) == {"state": BrakeState.DECLINED, "text": text, "step": 9}


def test_an_answer_counts_also_if_it_is_taken_back_and_its_pair_has_no_other(ctx, run):
    """Whoever saw whose texts they were could otherwise take back every win."""
    pair_id = add_pair(ctx, run)
    vote(ctx, pair_id, Choice.FIRST)
    with ctx.db.write() as conn:
        conn.execute(t.votes.update().where(t.votes.c.pair_id == pair_id).values(undone_at=1.0))
    vote(ctx, pair_id, Choice.SECOND)
    assert brake_view(ctx.db, run)["text"].startswith("1 of 1 for the policy.")


def test_a_run_without_blind_pairs_has_no_brake(ctx):
    run = create_run(ctx.db, ctx.project.id, None, "r", config=PolicyConfig().to_dict(), manifest={}, total_steps=1)
    assert brake_view(ctx.db, run) is None


def test_curves_mark_where_labels_arrived(ctx, run):
    for step in (0, 4):
        mark_event_applied(ctx.db, add_event(ctx.db, run.id, EventKind.HEAD, {"version": 1 + step}).id, step)
    view = RunView.load(ctx.db, run)
    assert change_markers(view) == [{"step": 0, "text": ""}, {"step": 4, "text": ""}]
    assert change_markers(view, only_settings=True) == []


def test_curves_and_summary_say_what_scores_ignore(ctx, run):
    """The choice at the start is no change; heads without a record of it ignore nothing."""
    set_manifest(ctx.db, run.id, {**run.manifest, IGNORED_KEY: ["length"]})
    for step, ignored in ((0, ["length"]), (2, ["length", "copied"]), (4, ["length", "copied"]), (6, [])):
        payload = {"version": step + 1, IGNORED_KEY: ignored}
        mark_event_applied(ctx.db, add_event(ctx.db, run.id, EventKind.HEAD, payload).id, step)
    view = RunView.load(ctx.db, get_run(ctx.db, run.id))
    markers = [(2, "scores ignore length, words copied from the prompt"), (6, "scores ignore nothing")]
    assert [(one["step"], one["text"]) for one in change_markers(view, only_settings=True)] == markers
    assert ignored_by_heads(view) == ()
    two = RunView(view.run, view.events[:2])
    assert label_source_text(ctx.db, view.run, None, ignored_by_heads(two)) == (
        "PPO learns from people's labels, while people label; scores ignore length, words copied from the prompt"
    )
    assert run_settings(ctx.db, view.run)["scores ignore"] == "length"


def test_a_live_run_is_diagnosed_as_one_with_a_reward_model(ctx, run):
    """The labels decide what it learns, so more of them help. Beta is set by hand, so that advice is given."""
    assert add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.2}, 1)
    for step in range(11, 31):
        metrics = {"objective/scores": 0.1, "objective/kl": 0.1, "live/kl_budget": 0.5, "objective/kl_coef": 0.2}
        record_step(ctx.db, run.id, StepResult(step, metrics))
    flat = RunFeed(ctx).poll(FeedQuery())["verdicts"]["objective/scores"]["message"]
    assert flat.endswith("no clear gain so far; raise lr, lower beta, or label more pairs.")
    for step in range(31, 41):
        record_step(ctx.db, run.id, StepResult(step, {"objective/scores": 0.1 * (step - 30)}))
    rising = RunFeed(ctx).poll(FeedQuery())["verdicts"]["objective/scores"]["message"]
    assert rising.endswith("the policy learns what the reward model likes.")
