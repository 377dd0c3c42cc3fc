"""The guide in the header: its step, what is missing and the next action, for each role; its numbers are those of the screens."""

import itertools
import re
from dataclasses import replace

import pytest
from fake_blind_tests import answer, finish_jobs, start

from rlhf_lab.common.enums import JobKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Role
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue, retraining
from rlhf_lab.jobs.project_setup import copy_project
from rlhf_lab.store.blind_tests import end_test
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run, update_run
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.header import api as header
from rlhf_lab.ui.header.guide import Step, guide_view, progress_of
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.page import SCREENS
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.api import Payload

GOOD = {"accuracy": 0.9, "accuracy_low": 0.7, "accuracy_high": 0.97}
EVEN = {"accuracy": 0.6, "accuracy_low": 0.4, "accuracy_high": 0.8}


def guide(ctx, role=Role.OPERATOR, annotator="ann", **options):
    return guide_view(progress_of(ctx), role, annotator, **options)


def shown(ctx, role=Role.OPERATOR, annotator="ann", **options):
    """The present step, what is missing, and the label of the button."""
    view = guide(ctx, role, annotator, **options)
    return view["present"], view["note"], view["button"]


def vote(ctx, *choices):
    for number, choice in enumerate(choices):
        pair = label.state(ctx, "ann")["pair"]["id"]
        payload = voting.VotePayload(uuid=f"{pair} {number}", pair_id=pair, choice=choice)
        voting.cast_vote(ctx, payload, "ann")


def add_model(ctx, source=Source.HUMAN, report=GOOD, votes=()):
    snapshot = LabelSnapshot(tuple(votes), "", source)
    return add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=report, snapshot=snapshot)


def add_run(ctx, status=RunStatus.DONE, step=40):
    config = PolicyConfig(steps=40).to_dict()
    run = create_run(ctx.db, ctx.project.id, None, "r", config=config, manifest={}, total_steps=40)
    with ctx.db.write() as conn:
        update_run(conn, run.id, status=status, step=step)
    return run


def test_the_steps_have_the_names_of_the_tabs():
    assert list(Step) == list(SCREENS)[:4] == ["Label", "Reward model", "Train", "Compare"]


def test_labels_are_counted_down_to_the_first_reward_model(ctx):
    assert shown(ctx) == ("Label", "10 more labels for a reward model", "Label pairs")
    vote(ctx, *["left"] * 8, "skip", "tie")
    assert shown(ctx)[1] == "1 more label for a reward model"
    assert (
        guide(ctx)["note"]
        == label.state(ctx, "ann")["guide_note"]
        == label.presence(ctx, Payload(annotator="ann"))["guide_note"]
    )
    vote(ctx, "right")
    assert shown(ctx)[:2] == ("Reward model", "a reward model is due and starts automatically")
    assert guide(ctx)["done"] == []


def test_the_note_says_what_the_reward_model_waits_for(ctx):
    """A run of the former class trains on, while the new one waits for its reward model."""
    run, former = add_run(ctx, RunStatus.RUNNING, 7), ctx.project
    engine = engine_process.record_heartbeat(ctx.db, "x")
    run_job = queue.submit(ctx.db, JobKind.TRAIN_POLICY, former.id, {"run_id": run.id})
    queue.claim(ctx.db, [JobKind.TRAIN_POLICY], engine)
    new = copy_project(ctx.db, former)
    vote(ctx, *["left"] * 10)
    retraining.submit_training(ctx.db, new.id, Source.HUMAN)
    assert guide(ctx)["note"] == f'a reward model waits until run {run.id} of "{former.name}" has ended'
    queue.finish(ctx.db, run_job.id, {})
    assert guide(ctx)["note"] == "a reward model waits for the engine"
    queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine)
    assert guide(ctx)["note"] == "a reward model is being trained"


def test_ten_ties_teach_nothing(ctx):
    vote(ctx, *["tie"] * 10, "left")
    assert shown(ctx)[:2] == ("Label", "no label prefers a text yet")


def test_a_failed_training_is_started_again_under_reward_model_and_a_cancelled_one_after_more_labels(ctx):
    vote(ctx, *["left"] * 10)
    job = retraining.submit_training(ctx.db, ctx.project.id, Source.HUMAN)
    assert shown(ctx)[0] == "Reward model"
    queue.fail(ctx.db, job.id, "no")
    assert shown(ctx) == ("Reward model", "the last training stopped before it was done", "Train again")
    retraining.submit_training(ctx.db, ctx.project.id, Source.HUMAN)
    retraining.cancel_training(ctx.db, ctx.project.id)
    assert shown(ctx) == ("Label", "10 more labels for a reward model", "Label pairs")


def test_a_reward_model_that_may_be_guessing_needs_more_labels(ctx):
    vote(ctx, *["left"] * 10)
    add_model(ctx, report=EVEN, votes=range(1, 11))
    assert shown(ctx) == ("Label", "20 more labels for a better reward model", "Label pairs")
    add_model(ctx, Source.SIMULATED, GOOD)
    assert shown(ctx) == ("Train", "no run yet", "Start a run")
    assert guide(ctx)["done"] == ["Label", "Reward model"]


@pytest.mark.parametrize(
    ("status", "step", "expected"),
    [
        (RunStatus.QUEUED, 0, ("Train", "run 1 is queued, step 0 of 40", "Watch the run")),
        (RunStatus.RUNNING, 7, ("Train", "run 1 step 7 of 40", "Watch the run")),
        (RunStatus.PAUSED, 7, ("Train", "run 1 is paused, step 7 of 40", "Watch the run")),
        (RunStatus.FAILED, 7, ("Train", "run 1 failed", "Show the run")),
        (RunStatus.STOPPED, 0, ("Train", "no run yet", "Start a run")),
        (RunStatus.STOPPED, 7, ("Compare", "run 1 has no blind test yet", "Compare")),
        (RunStatus.DONE, 40, ("Compare", "run 1 has no blind test yet", "Compare")),
    ],
)
def test_a_run_is_watched_then_compared(ctx, status, step, expected):
    add_model(ctx)
    add_run(ctx, status, step)
    assert shown(ctx) == expected


def test_hint_for_each_status_of_a_run(ctx):
    add_model(ctx)
    run = add_run(ctx, RunStatus.RUNNING, 7)
    hints = {}
    for status in (RunStatus.RUNNING, RunStatus.QUEUED, RunStatus.PAUSED):
        with ctx.db.write() as conn:
            update_run(conn, run.id, status=status)
        hints[status] = [guide(ctx)["hint"], guide(ctx, Role.VIEWER, "")["hint"]]
    assert hints == {
        RunStatus.RUNNING: ["Watch the curves, and how the samples change."] * 2,
        RunStatus.QUEUED: ["The line above its curves says what it waits for."] * 2,
        RunStatus.PAUSED: ["Press Resume to continue it.", "It waits until the operator resumes it."],
    }


def test_a_labeller_who_opens_train_is_not_asked_for_labels_while_a_run_trains(ctx):
    add_model(ctx)
    run = add_run(ctx, RunStatus.RUNNING, 7)
    assert shown(ctx, Role.LABELLER, tab="train") == ("Train", "run 1 step 7 of 40", "Watch the run")
    assert guide(ctx, Role.LABELLER, tab="train")["steps"] == ("Label", "Train", "Compare")
    assert shown(ctx, Role.LABELLER, tab="label")[0] == "Label"
    assert guide(ctx, Role.LABELLER, tab="label")["steps"] == ("Label", "Compare")
    with ctx.db.write() as conn:
        update_run(conn, run.id, status=RunStatus.DONE)
    assert shown(ctx, Role.LABELLER, tab="train")[0] == "Label"


def test_a_blind_test_is_judged_then_the_labels_go_on(ctx):
    add_model(ctx)
    add_run(ctx)
    started_test = start(ctx)
    assert shown(ctx) == ("Compare", "the texts are being written", "Show it")
    finish_jobs(ctx, started_test)
    assert shown(ctx) == ("Compare", "3 more pairs to judge", "Judge them")
    answer(ctx, "ann", test_id=started_test.id, choice="left")
    state = blind_test.state(ctx, None, "ann")
    assert (
        shown(ctx)[1] == f"{state['pair_count'] - state['judged_count']} more pairs to judge" == "2 more pairs to judge"
    )
    assert shown(ctx, Role.LABELLER)[0] == "Compare"
    assert shown(ctx, Role.LABELLER, "bea")[1] == "3 more pairs to judge"
    answer(ctx, "ann", test_id=started_test.id, choice="stop", token="")
    assert shown(ctx)[:2] == ("Label", "20 more labels for the next reward model")
    assert guide(ctx)["done"] == ["Reward model", "Train", "Compare"]
    assert shown(ctx, annotator="bea")[0] == "Label"  # the result has been shown in this lab
    run = add_run(ctx)  # nobody has compared this one
    assert shown(ctx) == ("Compare", f"run {run.id} has no blind test yet", "Compare")


def test_in_a_lab_of_several_people_the_operator_ends_the_test(ctx):
    add_model(ctx)
    add_run(ctx)
    started_test = start(ctx)
    finish_jobs(ctx, started_test)
    lab = replace(ctx, operator_secret="sesame").as_multi_user(open_to_all=False)
    answer(lab, "ann", test_id=started_test.id, choice="stop")
    assert shown(lab) == ("Compare", "you have judged every pair", "See the result")
    assert shown(lab, Role.LABELLER)[0] == "Label"
    assert shown(lab, Role.LABELLER, "bea")[1] == "3 more pairs to judge"
    end_test(ctx.db, started_test.id)
    assert shown(lab)[0] == "Label"


def test_labellers_and_viewers_see_their_own_steps_only(ctx):
    add_model(ctx)
    assert guide(ctx, Role.LABELLER)["steps"] == ("Label", "Compare")
    assert shown(ctx, Role.LABELLER) == ("Label", "20 more labels for the next reward model", "Label pairs")
    assert guide(ctx, Role.VIEWER, "")["steps"] == ("Label", "Train")
    assert shown(ctx, Role.VIEWER, "")[0] == "Label"
    add_run(ctx, RunStatus.RUNNING, 3)
    assert shown(ctx, Role.VIEWER, "") == ("Train", "run 1 step 3 of 40", "Watch the run")
    assert shown(ctx, Role.LABELLER)[0] == "Label"
    assert guide(ctx, Role.LABELLER, is_demo=True)["steps"] == tuple(Step)


def every_state(ctx):
    """The progress of a project in every combination of what it consists of."""
    add_model(ctx)
    run, test = add_run(ctx), start(ctx)
    finish_jobs(ctx, test)
    base = progress_of(ctx)
    yes_or_no = (False, True)
    axes = {
        "labels": [replace(base.labels, remaining=remaining) for remaining in (0, 3)],
        "has_preferences": yes_or_no, "has_model": yes_or_no, "is_guessing": yes_or_no, "training": yes_or_no,
        "runs": [(), *((replace(run, status=status, step=step),) for status in RunStatus for step in (0, 7))],
        "test": [None, replace(base.test, pairs=None), base.test, replace(base.test, has_ended=True)],
        "result_waits": yes_or_no,
    }  # fmt: skip
    return [replace(base, **dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]


def test_the_guide_names_only_buttons_that_its_visitor_has(ctx):
    """Those of the tabs; "Join" is that of the header. The button Start names the algorithm of the form, any of ALGORITHMS."""
    has = {
        (Role.OPERATOR, False): {"Start", "Resume", "Train reward model", "Start a blind test", "End the test"},
        (Role.LABELLER, True): {"Start", "Train reward model"},
        (Role.LABELLER, False): set(),
        (Role.VIEWER, False): set(),
    }
    named = {visitor: set() for visitor in has}
    for progress in every_state(ctx):
        for role, is_demo in has:
            annotator = "" if role is Role.VIEWER else "ann"
            view = guide_view(progress, role, annotator, is_demo=is_demo)
            named[role, is_demo].update(re.findall("Press (.+?)(?: when| to|[.])", view["hint"]))
            assert view["present"] in view["steps"]
    assert named == has


def test_the_guide_comes_with_the_state_of_the_header(ctx, calls):
    send = calls(header, ctx).status
    assert send()["guide"]["note"] == "10 more labels for a reward model"
    assert send({"guide": False})["guide"] is None
