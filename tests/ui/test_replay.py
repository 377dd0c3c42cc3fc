"""A recorded run says at each step what the page showed when the run was there."""

import json
import time

import pytest
from fake_blind_tests import finish_jobs, start
from fake_runs import KL, SCORE, a_run

from rlhf_lab.common.enums import Choice, EventKind, RunStatus
from rlhf_lab.common.records import Sample, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.rewards.terms import TERMS_KEY, RewardTerm, term_records
from rlhf_lab.store.blind_tests import add_answers
from rlhf_lab.store.projects import open_project
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import add_event, create_run, get_run, mark_event_applied, pending_events, set_run_status
from rlhf_lab.ui.limits import LIMITS, RequestLimiter
from rlhf_lab.ui.page import APIS
from rlhf_lab.ui.run_views.run_feed import RunFeed
from rlhf_lab.ui.share import api as share
from rlhf_lab.ui.share import recording
from rlhf_lab.ui.share.recording import SHIPPED, record_replay, shipped
from rlhf_lab.ui.shared.api import Requests, act_limits

STEPS = 14
TERM = "objective/reward/length"
#: What depends on the lab at that moment, and not on the run.
OF_THE_LAB = {"status_text", "pending_changes", "static"}


def live_state(ctx, run_id):
    """What the page shows now."""
    reply = RunFeed(ctx).full_reply(get_run(ctx.db, run_id))
    return {name: value for name, value in reply.items() if name not in OF_THE_LAB}


def steps_of(ctx, run, count, seen=None):
    """The run makes its steps; a person sets beta to 0.3 after step 5. `seen` collects what the page showed after each."""
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    record_step(ctx.db, run.id, StepResult(0, {}, samples=[Sample("p", 1, "base", 0.0)]))
    for at in range(1, count + 1):
        score = at if at < 8 else 16 - at  # rises, and falls again
        metrics = {
            SCORE: score,
            KL: at * at / 9,
            "objective/kl_coef": 0.1 if at < 6 else 0.3,
            "time/rollout": 1.5,
            "time/update": at,
        }
        samples = [Sample("p", 1, f"text {at}", score)] if at % 5 == 0 else []
        record_step(ctx.db, run.id, StepResult(at, metrics | {TERM: -at}, samples=samples))
        if at == 5:
            add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.3})
            (event,) = pending_events(ctx.db, run.id)
            mark_event_applied(ctx.db, event.id, 5)
        if seen is not None:
            seen[at] = live_state(ctx, run.id)
    set_run_status(ctx.db, run.id, RunStatus.DONE if count == run.total_steps else RunStatus.STOPPED)


def test_each_frame_is_what_the_page_showed_then(ctx):
    run, seen = a_run(ctx, steps=STEPS), {}
    steps_of(ctx, run, STEPS, seen)
    frames = record_replay(ctx, run.id)["frames"]
    assert [frame["run"]["step"] for frame in frames] == list(range(1, STEPS + 1))
    messages = [frame["verdicts"][SCORE]["message"] for frame in frames]
    assert len(set(messages)) > 2
    for frame in frames[:-1]:
        then = seen[frame["run"]["step"]]
        shared = frame.keys() & then.keys()
        assert {name: frame[name] for name in shared} == {name: then[name] for name in shared}
    assert frames[-1]["run"]["status"] is RunStatus.DONE
    assert {frame["status_text"] for frame in frames} == {""}


def test_a_frame_lasts_as_long_as_its_steps_took(ctx, monkeypatch):
    run = a_run(ctx, steps=STEPS)
    steps_of(ctx, run, 9)
    assert [frame["seconds"] for frame in record_replay(ctx, run.id)["frames"]] == [1.5 + at for at in range(1, 10)]
    monkeypatch.setattr(recording, "MAX_FRAMES", 3)
    frames = record_replay(ctx, run.id)["frames"]
    assert [frame["run"]["step"] for frame in frames] == [1, 5, 9]
    assert [frame["seconds"] for frame in frames] == [2.5, 4 * 1.5 + 2 + 3 + 4 + 5, 4 * 1.5 + 6 + 7 + 8 + 9]


def test_curves_samples_and_terms_are_those_of_the_run(ctx):
    config = PolicyConfig(steps=STEPS).to_dict()
    manifest = {TERMS_KEY: term_records((RewardTerm("length", 0.5, {"min_words": 5, "max_words": 20}),))}
    run = create_run(ctx.db, ctx.project.id, None, "with a term", config=config, manifest=manifest, total_steps=STEPS)
    steps_of(ctx, run, 11)
    replay = record_replay(ctx, run.id)
    assert replay["feed"]["points"][SCORE] == [[at, at if at < 8 else 16 - at] for at in range(1, 12)]
    assert replay["feed"]["points"][TERM] == [[at, -at] for at in range(1, 12)]
    assert {at: item["rows"][0]["text"] for at, item in replay["samples"].items()} == {
        0: "base",
        5: "text 5",
        10: "text 10",
    }
    assert abs(replay["recorded_at"] - time.time()) < 3600


def test_a_replay_has_no_more_than_everybody_may_see(ctx, calls):
    run = a_run(ctx, name="a run")
    a_run(ctx, name="a secret plan")
    steps_of(ctx, run, 2)
    test = start(ctx)
    finish_jobs(ctx, test)
    add_answers(ctx.db, test.id, "Ann", {0: Choice.SECOND})
    text = json.dumps(calls(share, ctx).replay({"run": run.id}))
    assert '"title": "a run"' in text
    for secret in ("a secret plan", "Ann", "blind_test", "accuracy"):
        assert secret not in text


def test_a_run_without_a_step_has_nothing_to_replay(ctx):
    with pytest.raises(ConfigError, match="has made no step"):
        record_replay(ctx, a_run(ctx).id)


def test_every_lab_has_one_recording_of_a_real_run(ctx, calls):
    assert SHIPPED.stat().st_size < 1_000_000
    about = shipped()["about"]
    replay = calls(share, ctx).replay({})
    frames, points = replay["frames"], replay["feed"]["points"]
    assert replay["model"] == "embedded"
    assert time.strftime("%Y-%m-%d", time.gmtime(replay["recorded_at"])) == about["date"]
    assert [frame["run"]["step"] for frame in frames] == list(range(1, len(frames) + 1))
    assert all(frame["seconds"] > 0 for frame in frames)
    assert points[SCORE][-1][1] > points[SCORE][0][1] + 0.5  # it learned
    last = replay["samples"][str(max(int(at) for at in replay["samples"]))]["rows"]
    assert any(row["text"] != row["base_text"] for row in last)
    assert sorted(replay["tokens"], key=int)[-1] == str(frames[-1]["run"]["step"])


def test_one_replay_is_recorded_at_a_time(ctx, calls, monkeypatch):
    held = []
    monkeypatch.setattr(share, "record_replay", lambda ctx, run_id: held.append(share._one_at_a_time.locked()) or {})
    calls(share, ctx).replay({"run": a_run(ctx).id})
    calls(share, ctx).replay({})  # the shipped one is read, not recorded
    assert held == [True]
    assert not share._one_at_a_time.locked()


def test_replays_have_a_limit_of_their_own(ctx):
    """A visitor who asks for too many can still read everything else."""
    requests = Requests(ctx, APIS)
    limiter = RequestLimiter({**LIMITS, **act_limits(APIS)})

    def waits(path, count, visitor="ann"):
        return [limiter.wait_s(requests.act(path), visitor, "10.0.0.7") > 0 for _ in range(count)]

    assert waits("share/replay", 22) == [False] * 20 + [True] * 2
    assert waits("share/replay", 1, "ben") == [False]
    assert waits("train/points", 50) == [False] * 50


def test_runs_of_other_projects_are_not_replayed(ctx, calls):
    run = a_run(ctx)
    steps_of(ctx, run, 2)
    assert calls(share, ctx).replay({"run": run.id})["title"] == "a run"
    open_project(ctx.db, new_project(ctx.db, custom_prompts={"Hi": "train"}, prompt_set="own").id)
    assert f"Run {run.id} is not in the open project" in calls(share, ctx).replay({"run": run.id})["error"]
