"""Texts of the screen Train about a run: change markers, self-checks, activity, samples beside those of the base model."""

import dataclasses
import math

import pytest
from fake_runs import KL, a_run, reward_model, step

from rlhf_lab.common.enums import EngineState, EventKind, RunStatus, Source
from rlhf_lab.common.records import Sample
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.store.runs import add_event, create_run, events, get_run, mark_event_applied, set_run_status
from rlhf_lab.ui.run_views import run_feed, run_summary
from rlhf_lab.ui.run_views.run_comparison import changes_text, run_settings
from rlhf_lab.ui.run_views.run_summary import RunView


def view_of(ctx, run):
    return RunView.load(ctx.db, get_run(ctx.db, run.id))


def apply_event(ctx, run, kind, payload, step):
    mark_event_applied(ctx.db, add_event(ctx.db, run.id, kind, payload).id, step)


def test_change_markers_name_old_and_new_value_once_applied(ctx):
    run, other = a_run(ctx), reward_model(ctx)
    for number, (kind, payload) in enumerate(
        [
            (EventKind.SET, {"name": "beta", "value": 0.2}), (EventKind.SET, {"name": "beta", "value": 0.5}),
            (EventKind.SET, {"name": "lr", "value": 3e-4}), (EventKind.SWITCH_REWARD, {"reward_model_id": other.id}),
            (EventKind.PAUSE, {}), (EventKind.RESUME, {}), (EventKind.NOTE, {"words": "guests arrive"}), (EventKind.STOP, {}),
        ]
    ):  # fmt: skip
        apply_event(ctx, run, kind, payload, number)
    add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 9.0})
    view = view_of(ctx, run)
    assert [(marker["step"], marker["text"]) for marker in run_summary.change_markers(view)] == [
        (0, "beta 0.1 → 0.2"), (1, "beta 0.2 → 0.5"), (2, "lr set to 0.0003"),
        (3, f"reward model {run.reward_model_id} → {other.id}"), (4, "paused"), (6, "guests arrive"), (7, "stopped"),
    ]  # fmt: skip
    assert run_summary.pending_changes(view) == ["beta = 9 from the next step on"]
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    assert run_summary.pending_changes(view_of(ctx, run)) == ["beta = 9 (takes effect when the present step has ended)"]
    state = run_summary.current_state(view, {})
    assert (state["beta"], state["lr"], state["reward_model"]) == (9.0, 3e-4, other.id)
    assert state["set_by_hand"] == ["lr"]  # nothing adapts beta, so nobody can hand it back


def test_self_checks():
    good = {"val/first_ratio_deviation": [(1, 0.0), (2, 2e-7)], KL: [(1, 0.0), (2, 3.0)]}
    assert run_summary.self_checks(good) == {"max_first_ratio_deviation": 2e-7, "first_step_kl": 0.0}
    assert run_summary.self_checks({}) == {"max_first_ratio_deviation": None, "first_step_kl": None}
    assert run_summary.self_checks({KL: [(1, math.nan)]})["first_step_kl"] is None


def test_the_best_checkpoint_in_a_sentence(ctx):
    run = dataclasses.replace(get_run(ctx.db, a_run(ctx).id), config={"kl_budget": 4.0})
    curves = {
        "eval/best_step": [(5, 5.0), (10, 10.0), (15, 10.0)],
        "eval/scores": [(5, 0.5), (10, -1.25), (15, 0.25)],
        "eval/kl": [(5, 1.0), (10, 3.75), (15, 4.5)],
    }
    assert run_summary.best_checkpoint_text(run.config, curves) == (
        "Best checkpoint: step 10. Its texts for held-out prompts have a mean score of −1.25 sd and a KL of 3.8; the curves show "
        "the texts of each step for training prompts. It is the newest checkpoint with a KL of at most 5.2 and nearly the "
        "highest score."
    )
    assert run_summary.best_checkpoint_text(run.config, {}) == ""


SAMPLING = {"is_running": True, "sampling": {"done": 43, "total": 128, "left_s": 240.0}}
SAMPLED = {"is_running": True, "sampling": {"done": 128, "total": 128, "left_s": 0.0}}
SAMPLING_FIRST = {"is_running": True, "has_base_samples": True, "sampling": {"done": 0, "total": 32, "left_s": None}}
ACTIVITIES = [
    (RunStatus.QUEUED, EngineState.STARTING, {}, "loads PyTorch"),
    (RunStatus.QUEUED, EngineState.ABSENT, {}, "is starting"),
    (RunStatus.QUEUED, EngineState.ALIVE, {}, "Waits for the engine"),
    (RunStatus.QUEUED, EngineState.ALIVE, {"waits_for": [3]}, "until run 3 has ended"),
    (RunStatus.QUEUED, EngineState.ALIVE, {"is_running": True}, "Loading the model"),
    (RunStatus.RUNNING, EngineState.ALIVE, {"is_running": True}, "Sampling from the base"),
    (RunStatus.RUNNING, EngineState.ALIVE, {"is_running": True, "has_base_samples": True}, "first batch"),
    (
        RunStatus.RUNNING,
        EngineState.ALIVE,
        SAMPLING,
        "Sampling texts from the base model: 43 of 128, about 4 minutes left …",
    ),
    (RunStatus.RUNNING, EngineState.ALIVE, SAMPLED, "Scoring 128 texts of the base model …"),
    (RunStatus.RUNNING, EngineState.ALIVE, SAMPLING_FIRST, "Sampling texts for the first step: 0 of 32 …"),
    (RunStatus.RUNNING, EngineState.ALIVE, SAMPLED | {"has_base_samples": True}, "Training on the first 128 texts …"),
    (RunStatus.RUNNING, EngineState.DEAD, {"is_running": True}, "engine does not answer"),
    (RunStatus.RUNNING, EngineState.STARTING, {"engine_restarted": True}, "ended unexpectedly and is restarting"),
    (
        RunStatus.RUNNING,
        EngineState.ALIVE,
        {"engine_restarted": True, "is_running": True},
        "ended unexpectedly and is restarting",
    ),
    (RunStatus.QUEUED, EngineState.ALIVE, {"engine_restarted": True, "is_running": True}, "Loading the model"),
    (RunStatus.PAUSED, EngineState.ALIVE, {"engine_restarted": True, "is_running": True}, "Paused."),
    (RunStatus.PAUSED, EngineState.ALIVE, {}, "resume"),
    (RunStatus.STOPPED, EngineState.ABSENT, {}, "Resume continues"),
    (RunStatus.INTERRUPTED, EngineState.ABSENT, {}, "last checkpoint"),
    (RunStatus.FAILED, EngineState.ALIVE, {}, "out of memory. Resume"),
    (RunStatus.DONE, EngineState.ABSENT, {}, "Compare"),
]


@pytest.mark.parametrize(("status", "engine", "details", "text"), ACTIVITIES, ids=lambda x: str(x)[:30])
def test_every_state_has_an_activity_text(ctx, status, engine, details, text):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, status, "out of memory." if status is RunStatus.FAILED else "")
    details = {"is_running": False, "has_base_samples": False} | details
    assert text in run_summary.activity_text(get_run(ctx.db, run.id), engine, **details)


def test_a_running_run_past_its_first_step_has_only_its_warning_as_activity_text(ctx):
    def activity():
        current = get_run(ctx.db, run.id)
        return run_summary.activity_text(current, EngineState.ALIVE, is_running=True, has_base_samples=True)

    run = a_run(ctx)
    step(ctx, run, 1)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    assert activity() == ""
    set_run_status(ctx.db, run.id, RunStatus.RUNNING, "a change was ignored: …")
    assert "ignored" in activity()


def test_elapsed_time_is_sent_while_a_run_waits_and_not_while_it_makes_steps(ctx):
    run, feed = a_run(ctx), run_feed.RunFeed(ctx)
    assert feed.poll(run_feed.FeedQuery())["elapsed_s"] >= 0
    step(ctx, run, 1)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    assert feed.poll(run_feed.FeedQuery())["elapsed_s"] is None
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    assert feed.poll(run_feed.FeedQuery())["elapsed_s"] >= 0


def test_the_label_source_names_judge_or_people(ctx):
    run = a_run(ctx)
    assert "simulated labels by the judge cheerful" in run_summary.label_source_text(ctx.db, run)
    human = reward_model(ctx, Source.HUMAN)
    config = PolicyConfig().to_dict()
    other = create_run(ctx.db, ctx.project.id, human.id, "h", config=config, manifest={}, total_steps=40)
    assert run_summary.label_source_text(ctx.db, other) == f"PPO learns from people's labels (reward model {human.id})"
    assert "people's labels" in run_summary.label_source_text(ctx.db, run, human.id), (
        "the run was switched to another reward model"
    )


@pytest.mark.parametrize(
    ("judge", "shown"),
    [
        ("/home/alice/judge.py:score", "judge.py:score"),
        ("C:\\Users\\alice\\own.py:f", "own.py:f"),
        ("cheerful", "cheerful"),
    ],
)
def test_the_path_of_an_own_judge_is_not_shown(ctx, judge, shown):
    config, people = PolicyConfig().to_dict(), reward_model(ctx, Source.HUMAN)
    run = create_run(ctx.db, ctx.project.id, people.id, "h", config=config, manifest={"judge": judge}, total_steps=4)
    assert run_summary.label_source_text(ctx.db, run).endswith(f"; gold is the judge {shown}'s score")
    assert run_settings(ctx.db, run)["gold by"] == shown
    simulated = reward_model(ctx, Source.SIMULATED)
    run = create_run(ctx.db, ctx.project.id, simulated.id, "s", config=config, manifest={"judge": judge}, total_steps=4)
    assert f"simulated labels by the judge {shown} (" in run_summary.label_source_text(ctx.db, run)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"judge": "cheerful"}, "PPO learns from simulated labels by the judge cheerful, while people label"),
        ({}, "PPO learns from people's labels, while people label"),
    ],
    ids=str,
)
def test_a_run_that_recorded_no_labels_is_shown(ctx, manifest, words):
    """As those of `demo --live` in version 0.3.0."""
    config = PolicyConfig.for_algorithm("ppo", live=True).to_dict()
    run = create_run(ctx.db, ctx.project.id, None, "live", config=config, manifest=manifest, total_steps=40)
    reply = run_feed.RunFeed(ctx).poll(run_feed.FeedQuery())
    assert (reply["run"]["id"], reply["static"]["label_source"]) == (run.id, words)


def test_samples_stand_beside_the_base_of_the_same_prompt_and_seed(ctx):
    run = a_run(ctx)
    step(ctx, run, 0, samples=[Sample("p", 1, " base one", 0.5, 1.0), Sample("p", 2, "base two", 0.25, cut=32)])
    step(ctx, run, 5, samples=[Sample("p", 2, "now two ", 1.25, cut=48), Sample("q", 1, "no base", math.nan)])
    rows = run_summary.samples_at_step(ctx.db, run.id, 5)["rows"]
    assert [(row["text"], row["base_text"], row["score"], row["base_score"]) for row in rows] == [
        ("now two", "base two", 1.25, 0.25), ("no base", None, None, None),
    ]  # fmt: skip
    assert [(row["cut"], row["base_cut"]) for row in rows] == [(48, 32), (None, None)]
    assert run_summary.samples_at_step(ctx.db, run.id, 3)["rows"] == []
    with pytest.raises(StoreError, match="no run 99"):
        run_summary.samples_at_step(ctx.db, 99, 0)


def test_after_a_switch_of_the_reward_model_only_its_own_scores_are_compared(ctx):
    run, other = a_run(ctx), reward_model(ctx)
    step(ctx, run, 0, samples=[Sample("p", 1, "base", 0.5, 1.0)])
    for at in range(1, 13):
        step(ctx, run, at, score=3.0 if at <= 10 else 1.0, samples=[Sample("p", 1, "now", 1.25, 2.0)])
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    before = run_feed.RunFeed(ctx).poll(run_feed.FeedQuery(run=run.id))["verdicts"]["objective/scores"]["message"]
    assert "falling" in before
    switch = add_event(ctx.db, run.id, EventKind.SWITCH_REWARD, {"reward_model_id": other.id})
    assert run_summary.last_reward_switch(events(ctx.db, run.id)) is None  # not yet applied
    mark_event_applied(ctx.db, switch.id, 10)
    verdicts = run_feed.RunFeed(ctx).poll(run_feed.FeedQuery(run=run.id))["verdicts"]
    assert verdicts["objective/scores"]["message"].startswith(
        f"Since the switch to reward model {other.id} after step 10: "
    )
    assert "falling" not in verdicts["objective/scores"]["message"]
    assert not verdicts["objective/kl"]["message"].startswith("Since")
    curves = {"objective/scores": [(10, 3.0), (11, 1.0)], "objective/kl": [(10, 1.0), (11, 1.1)]}
    assert run_summary.since_last_rescale(curves, events(ctx.db, run.id)) == curves | {"objective/scores": [(11, 1.0)]}
    scores = [run_summary.samples_at_step(ctx.db, run.id, at)["rows"][0]["base_score"] for at in (10, 11)]
    assert scores == [0.5, None]
    assert run_summary.samples_at_step(ctx.db, run.id, 11)["rows"][0]["base_gold"] == 1.0
    again = add_event(ctx.db, run.id, EventKind.SWITCH_REWARD, {"reward_model_id": run.reward_model_id})
    mark_event_applied(ctx.db, again.id, 11)
    assert run_summary.samples_at_step(ctx.db, run.id, 11)["rows"][0]["base_score"] is None


def test_scores_of_two_heads_of_a_live_run_are_not_compared(ctx):
    run = a_run(ctx)
    for at in (0, 5, 6):
        step(ctx, run, at, samples=[Sample("p", 1, "a text", 0.5)])
    mark_event_applied(ctx.db, add_event(ctx.db, run.id, EventKind.HEAD, {"version": 1}).id, 5)
    scores = [run_summary.samples_at_step(ctx.db, run.id, at)["rows"][0]["base_score"] for at in (5, 6)]
    assert scores == [0.5, None]


def test_after_a_change_of_beta_the_reward_with_kl_is_diagnosed_from_there_on(ctx):
    run = a_run(ctx)
    change = add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.5})
    apply_event(ctx, run, EventKind.SET, {"name": "lr", "value": 1e-4}, 12)
    curves = {name: [(10, 1.0), (11, -1.0)] for name in ("objective/rlhf_reward", "objective/scores")}
    # beta is not yet applied, and lr does not change the scale
    assert run_summary.since_last_rescale(curves, events(ctx.db, run.id)) == curves
    mark_event_applied(ctx.db, change.id, 10)
    run_events = events(ctx.db, run.id)
    assert run_summary.since_last_rescale(curves, run_events) == curves | {"objective/rlhf_reward": [(11, -1.0)]}
    note = run_summary.with_scope_note("objective/rlhf_reward", "It falls.", run_events)
    assert note == "Since beta was set to 0.5 after step 10: it falls."
    assert run_summary.with_scope_note("objective/scores", "It falls.", run_events) == "It falls."
    apply_event(
        ctx, run, EventKind.SET, {"name": "beta", "value": 0.7}, 10
    )  # of two changes before a step the later counts
    note = run_summary.with_scope_note("objective/rlhf_reward", "It falls.", events(ctx.db, run.id))
    assert note == "Since beta was set to 0.7 after step 10: it falls."


def test_after_a_raise_of_beta_a_falling_score_names_it_and_is_no_warning(ctx):
    run = a_run(ctx)
    for at in range(1, 13):
        step(ctx, run, at, score=3.0 if at <= 7 else 1.0)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    change = add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.5})
    feed = run_feed.RunFeed(ctx)
    message = feed.poll(run_feed.FeedQuery(run=run.id))["verdicts"]["objective/scores"]["message"]
    assert "now falling" in message  # the change is not yet applied
    assert "beta" not in message
    mark_event_applied(ctx.db, change.id, 7)
    verdict = feed.poll(run_feed.FeedQuery(run=run.id))["verdicts"]["objective/scores"]
    assert verdict["level"] == "info"
    assert "probably because beta went from 0.1 to 0.5 after step 7" in verdict["message"]


def test_two_changes_of_a_setting_before_one_step_count_as_one(ctx):
    run = a_run(ctx)
    for step_number, value in ((3, 0.5), (3, 0.2), (5, 0.9), (5, 0.2)):
        apply_event(ctx, run, EventKind.SET, {"name": "beta", "value": value}, step_number)
    view = view_of(ctx, run)
    assert run_summary.applied_changes(view, {}) == [(3, "beta", 0.1, 0.2)]
    assert run_summary.change_markers(view) == [{"step": 3, "text": "beta 0.1 → 0.2"}]
    assert [event.payload["value"] for event in view.events] == [0.5, 0.2, 0.9, 0.2]  # every request stays on record


@pytest.mark.parametrize(
    ("changes", "adapted"),
    [
        ({"kl_budget": 4.0}, ("beta", "lr")),
        ({"kl_controller": "adaptive", "lr_schedule": "constant"}, ("beta",)),
        ({"kl_budget": 4.0, "algorithm": "dpo"}, ("lr",)),
        ({"algorithm": "dpo"}, ("lr",)),
        ({"algorithm": "dpo", "lr_schedule": "constant"}, ()),
    ],
)
def test_a_change_of_an_adapted_setting_to_its_first_value_is_a_change(ctx, changes, adapted):
    """The run had adapted beta (and lr), so the value in the config is a new one."""
    run = a_run(ctx, **changes)
    for name in ("beta", "lr"):
        apply_event(ctx, run, EventKind.SET, {"name": name, "value": run.config[name]}, 5)
    apply_event(ctx, run, EventKind.PAUSE, {}, 6)
    view, texts = view_of(ctx, run), [f"{name} set to {run.config[name]:g}" for name in adapted]
    assert [marker["text"] for marker in run_summary.change_markers(view)] == [*texts, "paused"]
    assert run_summary.applied_changes(view, {}) == [(5, name, None, run.config[name]) for name in adapted]
    values = {"beta": [(5, 0.02), (6, run.config["beta"])], "lr": [(5, 9e-4), (6, run.config["lr"])]}
    assert run_summary.applied_changes(view, values) == [
        (5, name, values[name][0][1], run.config[name]) for name in adapted
    ]
    assert changes_text(view) == "; ".join(f"{text} after step 5" for text in texts)


def test_a_setting_is_handed_back(ctx):
    """Beta set by hand at step 3, handed back at step 5; its value is then that of the controller."""
    run = a_run(ctx, kl_budget=4.0)
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    first = add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.5})

    def by_hand(in_use):
        return run_summary.current_state(view_of(ctx, run), in_use)["set_by_hand"]

    assert by_hand({"beta": 0.02}) == ["beta"]  # requested
    mark_event_applied(ctx.db, first.id, 3)
    for at in (1, 2, 3, 4, 5):
        step(ctx, run, at)
    assert (by_hand({"beta": 0.5}), by_hand({"beta": 16.7})) == (["beta"], [])  # version 0.2.0 went on adapting it
    second = add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": "automatic"})
    view = view_of(ctx, run)
    assert run_summary.pending_changes(view) == ["beta automatic (takes effect when the present step has ended)"]
    state = run_summary.current_state(view, {"beta": 0.5})
    assert (state["set_by_hand"], state["beta"]) == ([], run.config["beta"])
    mark_event_applied(ctx.db, second.id, 5)
    view = view_of(ctx, run)
    assert [marker["text"] for marker in run_summary.change_markers(view)] == [
        "beta set to 0.5",
        "beta adapted again",
    ]
    values = {"beta": [(3, 0.02), (4, 0.5), (5, 0.5)]}
    assert run_summary.applied_changes(view, values) == [(3, "beta", 0.02, 0.5)]  # no step has used the next one yet
    values["beta"].append((6, 0.03))
    assert run_summary.applied_changes(view, values) == [(3, "beta", 0.02, 0.5), (5, "beta", 0.5, 0.03)]
    note = run_summary.with_scope_note("objective/rlhf_reward", "It falls.", view.events)
    assert note == "Since beta became automatic again after step 5: it falls."
    assert changes_text(view) == "beta set to 0.5 after step 3; beta adapted again after step 5"


def test_of_several_pending_changes_of_a_setting_the_last_counts(ctx):
    run, (first, second) = a_run(ctx), (reward_model(ctx), reward_model(ctx))
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    for kind, payload in (
        (EventKind.SET, {"name": "beta", "value": 0.5}), (EventKind.SWITCH_REWARD, {"reward_model_id": first.id}),
        (EventKind.SET, {"name": "beta", "value": 0.9}), (EventKind.SET, {"name": "lr", "value": 3e-4}),
        (EventKind.SWITCH_REWARD, {"reward_model_id": second.id}), (EventKind.SET, {"name": "beta", "value": 0.2}),
        (EventKind.RESUME, {}),
    ):  # fmt: skip
        add_event(ctx.db, run.id, kind, payload)
    pending = run_summary.pending_changes(view_of(ctx, run))
    assert [text.removesuffix(f" {run_summary.NEXT_STEP_NOTE}") for text in pending] == [
        "lr = 0.0003", f"reward model {second.id}", "beta = 0.2", "resume",
    ]  # fmt: skip
    for event in events(ctx.db, run.id):
        mark_event_applied(ctx.db, event.id, 4)
    assert [marker["text"] for marker in run_summary.change_markers(view_of(ctx, run))] == [
        "lr set to 0.0003", f"reward model {run.reward_model_id} → {second.id}", "beta 0.1 → 0.2",
    ]  # fmt: skip


def test_a_note_of_scope_keeps_the_spelling_of_nan(ctx):
    run, other = a_run(ctx), reward_model(ctx)
    apply_event(ctx, run, EventKind.SWITCH_REWARD, {"reward_model_id": other.id}, 2)
    changes = events(ctx.db, run.id)
    for message, noted in (("NaN since step 4: stop.", "NaN since step 4: stop."), ("Mean score 1.", "mean score 1.")):
        shown = run_summary.with_scope_note("objective/scores", message, changes)
        assert shown == f"Since the switch to reward model {other.id} after step 2: {noted}"


def test_nothing_is_requested_of_a_run_that_is_done(ctx):
    """A pause, or another beta, that came during its last step."""
    run = a_run(ctx)
    add_event(ctx.db, run.id, EventKind.PAUSE, {})
    add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.3})
    assert run_summary.pending_changes(view_of(ctx, run)) == ["pause", "beta = 0.3 from the next step on"]
    set_run_status(ctx.db, run.id, RunStatus.DONE)
    assert run_summary.pending_changes(view_of(ctx, run)) == []
