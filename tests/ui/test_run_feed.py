"""The feed of a run, polled once a second: every point is sent exactly once."""

import itertools
import json
import math
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
from fake_runs import SCORE, a_run, reward_model, step

from rlhf_lab.common.enums import JobKind, RunStatus
from rlhf_lab.common.records import Sample, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.rewards.terms import TERMS_KEY, RewardTerm, term_records
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import insert_row
from rlhf_lab.store.run_metrics import delete_steps_after, record_step
from rlhf_lab.store.runs import add_note, create_run, delete_run, get_run, set_run_status
from rlhf_lab.ui.run_views import run_feed
from rlhf_lab.ui.shared import charts


def new_feed(ctx):
    """A feed without what is cached for others. Its `poll` takes the query as the page sends it."""
    feed = run_feed.RunFeed(ctx)
    return SimpleNamespace(poll=lambda query: feed.poll(run_feed.FeedQuery.model_validate(query)))


def follow(page, reply):
    """Update a page with a reply as the script does: append, or replace after a reset."""
    for name, points in reply.get("points", {}).items():
        curves = page.setdefault("curves", {})
        curves[name] = points if reply["reset"] else curves.get(name, []) + points
    if "sample_steps" in reply:
        earlier = [] if reply["reset"] else page.get("sample_steps", [])
        page["sample_steps"] = earlier + reply["sample_steps"]
    if "epoch" in reply:
        page["query"] = {name: reply[name] for name in ("epoch", "revision", "static_id")}
        page["query"] |= {"run": reply["run"]["id"], "after_step": reply["last_step"]}
    return page


def test_a_project_without_runs(ctx):
    assert new_feed(ctx).poll({}) == {"run": None, "elsewhere": []}


def test_a_page_that_polls_ends_up_with_every_point_once(ctx):
    run, feed, page = a_run(ctx), new_feed(ctx), {"query": {}}
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    follow(page, feed.poll(page["query"]))
    for at in range(13):
        step(ctx, run, at, score=at / 4, samples=[Sample("p", 1, "t", 0.0)] if at % 5 == 0 else [])
        if at % 3 == 0:
            reply = feed.poll(page["query"])
            assert reply["reset"] is False
            follow(page, reply)
    follow(page, feed.poll(page["query"]))
    assert page["curves"][SCORE] == [[at, at / 4] for at in range(1, 13)]
    assert page["sample_steps"] == [0, 5, 10]
    assert feed.poll(page["query"]) == {"unchanged": True}


def test_rows_of_a_step_beyond_the_runs_step_are_sent_once(ctx, monkeypatch):
    """A step may be committed between two reads of one poll."""
    run, feed, page = a_run(ctx), new_feed(ctx), {"query": {}}
    step(ctx, run, 1, score=1.0)
    real = run_feed.metric_series

    def commit_a_step_first(*args, **kwargs):
        if get_run(ctx.db, run.id).step == 1:
            step(ctx, run, 2, score=2.0)
        return real(*args, **kwargs)

    monkeypatch.setattr(run_feed, "metric_series", commit_a_step_first)
    follow(page, feed.poll(page["query"]))
    assert page["curves"][SCORE] == [[1, 1.0]]
    follow(page, feed.poll(page["query"]))
    assert page["curves"][SCORE] == [[1, 1.0], [2, 2.0]]


def test_rolled_back_and_rewritten_steps_reset_the_page(ctx):
    run, feed, page = a_run(ctx), new_feed(ctx), {"query": {}}
    for at in range(1, 9):
        step(ctx, run, at, score=1.0)
    follow(page, feed.poll(page["query"]))
    delete_steps_after(ctx.db, run.id, 5)
    for at in range(6, 10):  # beyond the step before, between two polls
        step(ctx, run, at, score=2.0)
    reply = feed.poll(page["query"])
    assert reply["reset"] is True
    assert follow(page, reply)["curves"][SCORE] == [[at, 1.0 if at < 6 else 2.0] for at in range(1, 10)]


def test_rolled_back_steps_disappear_from_the_page(ctx):
    run, feed, page = a_run(ctx), new_feed(ctx), {"query": {}}
    for at in range(1, 9):
        step(ctx, run, at)
    follow(page, feed.poll(page["query"]))
    delete_steps_after(ctx.db, run.id, 5)
    assert [at for at, _ in follow(page, feed.poll(page["query"]))["curves"][SCORE]] == [1, 2, 3, 4, 5]


def test_a_restarted_server_sends_everything_again(ctx):
    run, page = a_run(ctx), {"query": {}}
    step(ctx, run, 1)
    follow(page, new_feed(ctx).poll(page["query"]))
    step(ctx, run, 2)
    assert follow(page, new_feed(ctx).poll(page["query"]))["curves"][SCORE] == [[1, 0.0], [2, 0.0]]


def test_a_long_history_is_downsampled_with_its_peak_and_end(ctx, monkeypatch):
    monkeypatch.setattr(run_feed, "MAX_POINTS", 60)
    run, feed, page = a_run(ctx, steps=300), new_feed(ctx), {"query": {}}
    for at in range(1, 151):
        step(ctx, run, at, score=9.0 if at == 77 else 0.0)
    follow(page, feed.poll(page["query"]))
    points = page["curves"][SCORE]
    assert len(points) <= 60
    assert [77, 9.0] in points
    assert points[-1] == [150, 0.0]
    step(ctx, run, 151)
    step(ctx, run, 152)
    reply = feed.poll(page["query"])
    assert reply["points"][SCORE] == [[151, 0.0], [152, 0.0]]


def test_a_poll_for_one_step_is_small(ctx):
    run, feed, page = a_run(ctx), new_feed(ctx), {"query": {}}
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    offline = ("rewards/", "loss/dpo_avg", "loss/sft_avg")  # no run has these and those of rollouts
    values = {curve.metric: 1.2345678 for curve in charts.CURVES if not curve.metric.startswith(offline)}
    for at in range(1, 31):
        record_step(ctx.db, run.id, StepResult(at, values))
        reply = feed.poll(page["query"])
        follow(page, reply)
    assert "static" not in reply
    assert len(json.dumps(reply)) < 2000
    assert len(json.dumps(reply["points"])) < 400


def test_scores_mostly_beyond_the_clip_are_diagnosed(ctx):
    run = a_run(ctx)
    for at in range(1, 11):
        record_step(ctx.db, run.id, StepResult(at, {SCORE: 0.2 * at, "objective/score_clipfrac": 0.95}))
    assert "score_clip clips 95 % of the scores" in new_feed(ctx).poll({})["verdicts"][SCORE]["message"]


def test_values_in_use_are_those_of_the_newest_step(ctx):
    """A KL budget or a schedule changes beta and lr while the settings stay as they are."""
    run, feed = a_run(ctx), new_feed(ctx)
    assert feed.poll({})["in_use"] == {}
    record_step(ctx.db, run.id, StepResult(1, {"objective/kl_coef": 0.11, "lr": 3e-4}))
    record_step(ctx.db, run.id, StepResult(2, {"objective/kl_coef": 0.019, "lr": 1e-4}))
    assert feed.poll({})["in_use"] == {"beta": 0.019, "lr": 1e-4}


def test_nan_is_a_gap_and_not_broken_json(ctx):
    run, feed = a_run(ctx), new_feed(ctx)
    step(ctx, run, 1, score=1.0)
    step(ctx, run, 2, score=math.nan)
    reply = feed.poll({})
    assert reply["points"][SCORE] == [[1, 1.0], [2, None]]
    assert reply["verdicts"][SCORE]["level"] == "alert"
    json.dumps(reply, allow_nan=False)
    step(ctx, run, 3, score=1.0)  # NaN does not equal itself: the history must continue nevertheless
    again = feed.poll({"run": run.id, "epoch": reply["epoch"], "after_step": 2})
    assert (again["reset"], again["points"][SCORE]) == (False, [[3, 1.0]])


def test_static_state_is_sent_when_it_changed(ctx):
    run, feed, page = a_run(ctx), new_feed(ctx), {"query": {}}
    step(ctx, run, 1)
    first = feed.poll(page["query"])
    assert first["static"]["runs"] == [(run.id, "a run", "queued")]
    assert first["static"]["other_metrics"] == ["grad_norm", "val/first_ratio_deviation"]
    follow(page, first)
    step(ctx, run, 2)
    assert "static" not in feed.poll(page["query"])
    a_run(ctx, "another")
    assert [name for _, name, _ in feed.poll(page["query"])["static"]["runs"]] == ["another", "a run"]


def test_a_page_that_chooses_another_run_gets_its_static_state_where_both_are_equal(ctx):
    """The page discards the state of the previous run."""
    model, feed, config = reward_model(ctx), new_feed(ctx), PolicyConfig().to_dict()
    one, other = (
        create_run(ctx.db, ctx.project.id, model.id, "a run", config=config, manifest={}, total_steps=4)
        for _ in range(2)
    )
    shown = feed.poll({"run": other.id})
    reply = feed.poll({"run": one.id} | {name: shown[name] for name in ("epoch", "revision", "static_id")})
    assert reply["static"] == shown["static"]


@pytest.mark.parametrize("with_model", [True, False])
def test_a_sum_of_terms_without_a_budget_has_no_unit(ctx, with_model):
    terms = term_records([RewardTerm("json"), *([RewardTerm("reward_model", 0.5)] if with_model else [])])
    row = reward_model(ctx).id if with_model else None
    config = PolicyConfig(kl_budget=None).to_dict()
    run = create_run(ctx.db, ctx.project.id, row, "a", config=config, manifest={TERMS_KEY: terms}, total_steps=4)
    record_step(ctx.db, run.id, StepResult(1, {"objective/scores": 1.0}))
    state = new_feed(ctx).poll({"run": run.id})
    assert state["static"]["without_unit"] == ["objective/scores", "objective/rlhf_reward"]
    assert state["verdicts"]["objective/scores"]["message"].startswith("Mean score 1.00: too early")


def test_what_a_run_has_besides_the_usual_curves(ctx):
    """Reward terms in the order of the run, also before they have a value; settings that its algorithm reads."""
    terms = term_records([RewardTerm("json"), RewardTerm("reward_model", 0.5)])
    ids = {}
    for algorithm, manifest in (("ppo", {TERMS_KEY: terms}), ("dpo", {}), ("sft", {})):
        config = PolicyConfig.for_algorithm(algorithm).to_dict()
        row = reward_model(ctx)
        ids[algorithm] = create_run(
            ctx.db, ctx.project.id, row.id, algorithm, config=config, manifest=manifest, total_steps=4
        ).id
    record_step(ctx.db, ids["ppo"], StepResult(1, {"objective/reward/json": 1.0, "grad_norm": 1.0}))
    static = {name: new_feed(ctx).poll({"run": run_id})["static"] for name, run_id in ids.items()}
    assert static["ppo"]["reward_terms"] == [("objective/reward/json", 1.0), ("objective/reward/reward_model", 0.5)]
    assert static["ppo"]["other_metrics"] == ["grad_norm"]
    assert {name: state["without_unit"] for name, state in static.items()} == {"ppo": [], "dpo": [], "sft": []}
    assert {name: state["live_settings"] for name, state in static.items()} == {
        "ppo": ["beta", "lr"], "dpo": ["beta", "lr"], "sft": ["lr"],
    }  # fmt: skip
    assert [state["has_rollouts"] for state in static.values()] == [True, False, False]


def test_where_a_run_is_logged_is_a_sentence_and_no_change_on_the_curves(ctx):
    run, feed = a_run(ctx), new_feed(ctx)
    plain = feed.poll({"run": run.id})["static"]["label_source"]
    for words in ("logged to wandb", "wandb failed"):
        add_note(ctx.db, run.id, words, 1, tracker=1)
    static = feed.poll({"run": run.id})["static"]
    assert (static["label_source"], static["tracking"], static["events"]) == (plain, "wandb failed", [])


@pytest.mark.parametrize("requested_id", [None, "", 999, "x"])
def test_without_a_requested_run_the_active_one_is_shown_else_the_newest(ctx, requested_id):
    old, new = a_run(ctx, "old"), a_run(ctx, "new")
    feed = new_feed(ctx)
    set_run_status(ctx.db, old.id, RunStatus.DONE)
    set_run_status(ctx.db, new.id, RunStatus.FAILED)
    assert feed.poll({"run": requested_id})["run"]["id"] == new.id
    set_run_status(ctx.db, old.id, RunStatus.RUNNING)
    assert feed.poll({"run": requested_id})["run"]["id"] == old.id
    assert feed.poll({"run": new.id})["run"]["id"] == new.id


def test_of_several_active_runs_the_one_that_trains_is_shown_else_the_next_in_the_queue(ctx):
    first, second, third = (a_run(ctx, name) for name in ("first", "second", "third"))
    feed = new_feed(ctx)
    assert feed.poll({})["run"]["id"] == first.id
    set_run_status(ctx.db, second.id, RunStatus.PAUSED)
    assert feed.poll({})["run"]["id"] == second.id
    set_run_status(ctx.db, second.id, RunStatus.DONE)
    set_run_status(ctx.db, third.id, RunStatus.RUNNING)
    assert feed.poll({})["run"]["id"] == third.id


def test_a_deleted_run_is_replaced_by_the_newest(ctx):
    old, new = a_run(ctx, "old"), a_run(ctx, "new")
    delete_run(ctx.db, old.id)
    assert new_feed(ctx).poll({"run": old.id, "after_step": 30})["run"]["id"] == new.id


def test_a_deleted_run_disappears_from_the_picker(ctx):
    old, new = a_run(ctx, "old"), a_run(ctx, "new")
    feed = new_feed(ctx)
    revision = feed.poll({"run": new.id})["revision"]
    delete_run(ctx.db, old.id)
    assert feed.poll({"run": new.id, "revision": revision})["static"]["runs"] == [(new.id, "new", "queued")]


def test_the_shown_run_is_in_the_picker_however_old_it_is(ctx, monkeypatch):
    monkeypatch.setattr(run_feed, "MAX_LISTED", 2)
    monkeypatch.setattr(run_feed, "MAX_MODELS", 1)
    old, _, third, fourth = (a_run(ctx, name) for name in ("old", "second", "third", "fourth"))
    feed = new_feed(ctx)
    static = feed.poll({"run": old.id})["static"]
    assert [at for at, *_ in static["runs"]] == [fourth.id, third.id, old.id]
    assert [at for at, _ in static["reward_models"]] == [fourth.reward_model_id, old.reward_model_id]
    static = feed.poll({"run": third.id})["static"]
    assert [at for at, *_ in static["runs"]] == [fourth.id, third.id]
    assert [at for at, _ in static["reward_models"]] == [fourth.reward_model_id, third.reward_model_id]


def test_the_eta_is_that_of_the_running_job(ctx):
    run, feed = a_run(ctx), new_feed(ctx)
    job = queue.submit(ctx.db, JobKind.TRAIN_POLICY, ctx.project.id, {"run_id": run.id})
    assert feed.poll({})["eta_s"] is None
    queue.claim(ctx.db, [JobKind.TRAIN_POLICY], engine_process.record_heartbeat(ctx.db, "working"))
    queue.update_progress(ctx.db, job.id, 0.25, 30.0)
    assert feed.poll({})["eta_s"] == 30.0


def test_the_curves_of_the_eight_last_polled_runs_are_cached(ctx):
    feed, epochs = new_feed(ctx), {}
    created = [a_run(ctx, f"run {n}") for n in range(9)]

    def is_cached(run):
        """Whether its curves are still cached, so that only new points are sent."""
        reply = feed.poll({"run": run.id, "epoch": epochs.get(run.id), "after_step": 1})
        epochs[run.id] = reply["epoch"]
        return not reply["reset"]

    for run in created:
        step(ctx, run, 1)
    assert [is_cached(run) for run in created[:8]] == [False] * 8
    assert [is_cached(run) for run in created[:8]] == [True] * 8
    assert is_cached(created[0])
    assert not is_cached(created[8])  # a ninth: the least recently polled is dropped, which is no longer the first
    assert [is_cached(created[n]) for n in (0, 2, 3, 4, 5, 6, 7, 8)] == [True] * 8
    assert not is_cached(created[1])
    assert not is_cached(created[0])


def test_the_picker_lists_the_newest_fifty_runs(ctx):
    feed = new_feed(ctx)
    for n in range(1, 51):
        set_run_status(ctx.db, a_run(ctx, f"run {n}").id, RunStatus.DONE)
    names = [name for _, name, _ in feed.poll({})["static"]["runs"]]
    assert names == [f"run {n}" for n in range(50, 0, -1)]
    oldest = min(number for number, _, _ in feed.poll({})["static"]["runs"])
    set_run_status(ctx.db, a_run(ctx, "run 51").id, RunStatus.DONE)
    names = [name for _, name, _ in feed.poll({})["static"]["runs"]]
    assert names == [f"run {n}" for n in range(51, 1, -1)]
    assert feed.poll({"run": oldest})["run"]["id"] == oldest  # no longer in the list, but can still be shown


def test_a_page_that_fell_behind_is_sent_a_bounded_number_of_points_of_a_curve(ctx, monkeypatch):
    monkeypatch.setattr(run_feed, "MAX_POINTS", 50)
    run, feed, page = a_run(ctx, steps=300), new_feed(ctx), {"query": {}}
    step(ctx, run, 1)
    follow(page, feed.poll(page["query"]))
    for at in range(2, 52):
        step(ctx, run, at)
    reply = feed.poll(page["query"])
    assert not reply["reset"]
    assert [at for at, *_ in reply["points"][SCORE]] == list(range(2, 52))
    step(ctx, run, 52)
    reply = feed.poll(page["query"])
    steps = [at for at, *_ in follow(page, reply)["curves"][SCORE]]
    assert reply["reset"]
    assert (steps[0], steps[-1]) == (1, 52)
    assert len(steps) <= 50
    assert max(later - at for at, later in itertools.pairwise(steps)) <= 4  # thinned evenly, without a gap


def test_a_paused_run_offers_new_reward_models(ctx):
    run, feed, page = a_run(ctx), new_feed(ctx), {"query": {}}
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    follow(page, feed.poll(page["query"]))
    newer = reward_model(ctx)
    listed = feed.poll(page["query"])["static"]["reward_models"]
    assert [model for model, _ in listed] == [newer.id, run.reward_model_id]


def test_a_killed_engine_is_reported_until_the_run_goes_on(ctx):
    """The next poll shows it: the state of an engine on this machine is that of its process."""
    run, feed = a_run(ctx), new_feed(ctx)
    queue.submit(ctx.db, JobKind.TRAIN_POLICY, ctx.project.id, {"run_id": run.id})
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    values = {
        "host": socket.gethostname(),
        "pid": process.pid,
        "process_started": psutil.Process(process.pid).create_time(),
    }
    values |= {"started_at": time.time(), "beat_at": time.time(), "state": "busy", "device": ""}
    with ctx.db.write() as conn:
        engine = insert_row(conn, t.engines, values)
    queue.claim(ctx.db, [JobKind.TRAIN_POLICY], engine)
    step(ctx, run, 1)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    assert feed.poll({})["status_text"] == ""
    process.kill()
    process.wait()
    assert feed.poll({})["status_text"].startswith("The engine does not answer. It is restarted automatically")
    engine_process.record_heartbeat(ctx.db, engine_process.STATE_STARTING)
    assert feed.poll({})["status_text"].startswith("The engine ended unexpectedly and is restarting")
    queue.requeue_interrupted(ctx.db)
    queue.claim(ctx.db, [JobKind.TRAIN_POLICY], engine_process.record_heartbeat(ctx.db, "working"))
    loading = feed.poll({})
    assert loading["status_text"].startswith("The engine ended unexpectedly")
    delete_steps_after(ctx.db, run.id, 1)  # the first write of a resumed run
    assert feed.poll({"revision": loading["revision"]})["status_text"] == ""


def test_a_run_in_manually_started_processes_needs_no_engine(ctx):
    run, feed = a_run(ctx), new_feed(ctx)
    assert "is starting" in feed.poll({})["status_text"]
    step(ctx, run, 1)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    assert feed.poll({})["status_text"] == ""


def test_without_a_run_of_its_own_a_project_names_the_active_ones_of_others(ctx):
    old, active, ended = ctx.project, a_run(ctx, "mine"), a_run(ctx, "over")
    set_run_status(ctx.db, active.id, RunStatus.PAUSED)
    set_run_status(ctx.db, ended.id, RunStatus.DONE)
    assert run_feed.runs_note(ctx) == ""  # it is the open project's own
    new_project(ctx.db)
    elsewhere = [{"id": active.id, "name": "mine", "status": "paused", "project": old.name}]
    assert new_feed(ctx).poll({}) == {"run": None, "elsewhere": elsewhere}
    assert f'Run {active.id} of "{old.name}"' in run_feed.runs_note(ctx)
    assert run_control.active_runs(ctx.db)[0].id == active.id
