"""The screen Train without a browser: its controls, invalid requests, and no import of torch."""

import pytest
from fake_runs import SCORE, a_run, reward_model, step

from rlhf_lab.common.enums import EventKind, JobKind, RunStatus
from rlhf_lab.errors import LabError, StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.runs import events, set_run_status
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import parse_payload
from rlhf_lab.ui.train import api as train

# ---- controls


def control(ctx, payload):
    train.control(ctx, parse_payload(train.RunControl, payload))


def test_controls_leave_events_for_the_engine(ctx):
    run, other = a_run(ctx), reward_model(ctx)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    control(ctx, {"action": "set", "run": run.id, "setting": "beta", "value": " 0,25 "})
    control(ctx, {"action": "set", "run": run.id, "setting": "lr", "value": "3e-4"})
    control(ctx, {"action": "switch", "run": run.id, "reward_model": other.id})
    control(ctx, {"action": "pause", "run": run.id})
    control(ctx, {"action": "stop", "run": run.id})
    assert [(event.kind.value, event.payload) for event in events(ctx.db, run.id)] == [
        ("set", {"name": "beta", "value": 0.25}), ("set", {"name": "lr", "value": 3e-4}),
        ("switch_reward", {"reward_model_id": other.id}), ("pause", {}), ("stop", {}),
    ]  # fmt: skip


def test_resume_of_a_failed_run_is_a_new_job(ctx):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, RunStatus.FAILED, "why")
    control(ctx, {"action": "resume", "run": run.id})
    assert [job.payload for job in queue.jobs(ctx.db, kinds=[JobKind.TRAIN_POLICY])] == [{"run_id": run.id}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "set", "setting": "beta", "value": "much"}, 'beta = "much" is not a number'),
        ({"action": "set", "setting": "beta", "value": "nan"}, "not a finite number"),
        ({"action": "set", "setting": "beta", "value": "99"}, "above the maximum"),
        ({"action": "set", "setting": "lr", "value": None}, "not a number"),
        ({"action": "set", "setting": "seed", "value": "1"}, "cannot be changed during a run"),
        ({"action": "switch", "reward_model": "x"}, "no usable reward model"),
        ({"action": "switch"}, "no usable reward model"),
        ({"action": "switch", "reward_model": 99}, "no reward model 99"),
        ({"action": "delete"}, 'no action "delete"'),
        ({"action": "pause", "run": None}, "no usable run"),
        ({"action": "pause", "run": 99}, "no run 99"),
        ({}, "no action"),
    ],
    ids=str,
)
def test_an_impossible_control_is_refused_and_nothing_is_recorded(ctx, fields, message):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    with pytest.raises(LabError, match=message):
        control(ctx, {"run": run.id} | fields)
    assert events(ctx.db, run.id) == []


def test_a_run_that_is_done_cannot_be_paused(ctx):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, RunStatus.DONE)
    for action in ("pause", "stop", "resume"):
        with pytest.raises(StoreError, match="done"):
            control(ctx, {"action": action, "run": run.id})


def test_only_the_operator_controls_runs(ctx, calls):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    pause = {"action": "pause", "run": run.id}
    guarded = calls(train, Context(ctx.home, ctx.db, operator_secret="sesame"))
    assert "Only the operator" in guarded.control(pause)["error"]
    assert events(ctx.db, run.id) == []
    assert guarded.samples({"run": run.id, "step": 0}) == {"run": run.id, "step": 0, "rows": []}
    assert calls(train, ctx).control(pause) is None
    assert [event.kind for event in events(ctx.db, run.id)] == [EventKind.PAUSE]


def test_the_page_polls_with_what_it_knows(ctx, calls):
    """One feed for all requests of a server, whose curves are cached between them."""
    screen, run = calls(train, ctx), a_run(ctx)
    step(ctx, run, 1, score=0.5)
    first = screen.points()["state"]
    assert (first["points"][SCORE], first["static"]["runs"]) == ([[1, 0.5]], [[run.id, "a run", "queued"]])
    step(ctx, run, 2, score=1.5)
    known = {name: first[name] for name in ("epoch", "static_id", "revision")} | {"after_step": first["last_step"]}
    second = screen.points({"run": run.id} | known)["state"]
    assert (second["reset"], second["points"][SCORE], "static" in second) == (False, [[2, 1.5]], False)
    known |= {"revision": second["revision"], "after_step": 2}
    assert screen.points({"run": run.id} | known) == {}
    assert screen.metric_points({"run": run.id, "metric": SCORE}) == {"points": [[1, 0.5], [2, 1.5]]}
    elsewhere = {"id": run.id, "name": "a run", "status": "queued", "project": ctx.project.name}
    new_project(ctx.db)
    assert screen.points() == {"elsewhere": [elsewhere]}
