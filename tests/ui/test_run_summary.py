"""A run in words: marks on the curves, self-checks, what happens now, and its samples beside the base's."""

import math

import pytest
from fake_runs import KL, a_run, reward_model, step

from rlhf_lab.common.enums import EngineState, EventKind, RunStatus, Source
from rlhf_lab.common.records import Sample
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.store.runs import add_event, create_run, events, get_run, mark_event_applied, set_run_status
from rlhf_lab.ui.services import run_feed, run_summary


def test_marks_say_from_what_to_what_once_the_engine_has_done_it(ctx):
    run, other = a_run(ctx), reward_model(ctx)
    for at, (kind, payload) in enumerate(
        [
            (EventKind.SET, {"name": "beta", "value": 0.2}), (EventKind.SET, {"name": "beta", "value": 0.5}),
            (EventKind.SET, {"name": "lr", "value": 3e-4}), (EventKind.SWITCH_REWARD, {"reward_model_id": other.id}),
            (EventKind.PAUSE, {}), (EventKind.RESUME, {}), (EventKind.NOTE, {"words": "guests arrive"}), (EventKind.STOP, {}),
        ]
    ):  # fmt: skip
        mark_event_applied(ctx.db, add_event(ctx.db, run.id, kind, payload).id, at)
    add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 9.0})
    said = events(ctx.db, run.id)
    assert [(mark["step"], mark["words"]) for mark in run_summary.change_markers(run, said)] == [
        (0, "beta 0.1 → 0.2"), (1, "beta 0.2 → 0.5"), (2, "lr 0.0006 → 0.0003"),
        (3, f"reward model {run.reward_model_id} → {other.id}"), (4, "paused"), (6, "guests arrive"), (7, "stopped"),
    ]  # fmt: skip
    assert run_summary.pending_changes(run, said) == ["beta = 9 from the next step on"]
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    assert run_summary.pending_changes(get_run(ctx.db, run.id), said) == [
        "beta = 9 (takes effect with the next whole step)"
    ]
    shown = run_summary.current_state(run, said)
    assert (shown["beta"], shown["lr"], shown["reward_model"]) == (9.0, 3e-4, other.id)


def test_self_checks():
    good = {"val/first_ratio_deviation": [(1, 0.0), (2, 2e-7)], KL: [(1, 0.0), (2, 3.0)]}
    assert run_summary.self_checks(good) == {"first_ratio": 2e-7, "start_kl": 0.0}
    assert run_summary.self_checks({}) == {"first_ratio": None, "start_kl": None}
    assert run_summary.self_checks({KL: [(1, math.nan)]})["start_kl"] is None


DOING = [
    (RunStatus.QUEUED, EngineState.STARTING, {}, "loads torch"),
    (RunStatus.QUEUED, EngineState.ABSENT, {}, "being started"),
    (RunStatus.QUEUED, EngineState.ALIVE, {}, "Waits for the engine"),
    (RunStatus.QUEUED, EngineState.ALIVE, {"waits_for": [3]}, "until run 3 has ended"),
    (RunStatus.QUEUED, EngineState.ALIVE, {"working": True}, "Loading the model"),
    (RunStatus.RUNNING, EngineState.ALIVE, {"working": True}, "writes its samples"),
    (RunStatus.RUNNING, EngineState.ALIVE, {"working": True, "sampled": True}, "first batch"),
    (RunStatus.RUNNING, EngineState.DEAD, {"working": True}, "engine is lost"),
    (RunStatus.RUNNING, EngineState.STARTING, {"again": True}, "ended unexpectedly and loads again"),
    (
        RunStatus.RUNNING,
        EngineState.ALIVE,
        {"again": True, "working": True},
        "ended unexpectedly and loads again",
    ),
    (RunStatus.QUEUED, EngineState.ALIVE, {"again": True, "working": True}, "Loading the model"),
    (RunStatus.PAUSED, EngineState.ALIVE, {"again": True, "working": True}, "Paused."),
    (RunStatus.PAUSED, EngineState.ALIVE, {}, "resume"),
    (RunStatus.STOPPED, EngineState.ABSENT, {}, "Resume goes on"),
    (RunStatus.INTERRUPTED, EngineState.ABSENT, {}, "last checkpoint"),
    (RunStatus.FAILED, EngineState.ALIVE, {}, "out of memory. Resume"),
    (RunStatus.DONE, EngineState.ABSENT, {}, "Compare"),
]


@pytest.mark.parametrize(("status", "engine", "more", "words"), DOING, ids=lambda x: str(x)[:30])
def test_every_state_has_words(ctx, status, engine, more, words):
    run = a_run(ctx)
    set_run_status(ctx.db, run.id, status, "out of memory." if status is RunStatus.FAILED else "")
    said = run_summary.activity_text(get_run(ctx.db, run.id), engine, **({"working": False, "sampled": False} | more))
    assert words in said


def test_a_running_run_past_its_first_step_needs_no_words_except_a_warning(ctx):
    run = a_run(ctx)
    step(ctx, run, 1)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    assert (
        run_summary.activity_text(get_run(ctx.db, run.id), EngineState.ALIVE, is_running=True, has_base_samples=True)
        == ""
    )
    set_run_status(ctx.db, run.id, RunStatus.RUNNING, "a change was ignored: …")
    assert "ignored" in run_summary.activity_text(
        get_run(ctx.db, run.id), EngineState.ALIVE, is_running=True, has_base_samples=True
    )


def test_time_is_told_while_one_waits_and_not_while_the_curves_speak(ctx):
    run, told = a_run(ctx), run_feed.RunFeed(ctx)
    assert told.poll({})["for_s"] >= 0
    step(ctx, run, 1)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    assert told.poll({})["for_s"] is None
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    assert told.poll({})["for_s"] >= 0


def test_who_taught_the_run_is_said(ctx):
    run = a_run(ctx)
    assert "simulated labels by the judge cheerful" in run_summary.label_source_text(ctx.db, run)
    human = reward_model(ctx, Source.HUMAN)
    config = PolicyConfig().to_dict()
    other = create_run(ctx.db, ctx.project.id, human.id, "h", config=config, manifest={}, total_steps=40)
    assert run_summary.label_source_text(ctx.db, other) == f"PPO learns from people's labels (reward model {human.id})"
    assert "people's labels" in run_summary.label_source_text(ctx.db, run, human.id), (
        "the run was switched to another reward model"
    )


def test_samples_stand_beside_the_base_of_the_same_prompt_and_seed(ctx):
    run = a_run(ctx)
    step(ctx, run, 0, samples=[Sample("p", 1, " base one", 0.5, 1.0), Sample("p", 2, "base two", 0.25)])
    step(ctx, run, 5, samples=[Sample("p", 2, "now two ", 1.25), Sample("q", 1, "no base", math.nan)])
    rows = run_summary.samples_at_step(ctx.db, run.id, 5)["rows"]
    assert [(row["text"], row["base"], row["score"], row["base_score"]) for row in rows] == [
        ("now two", "base two", 1.25, 0.25), ("no base", None, None, None),
    ]  # fmt: skip
    assert run_summary.samples_at_step(ctx.db, run.id, 3)["rows"] == []
    with pytest.raises(StoreError, match="no run 99"):
        run_summary.samples_at_step(ctx.db, 99, 0)


def test_after_a_switch_of_the_reward_model_only_its_own_scores_are_compared(ctx):
    run, other = a_run(ctx), reward_model(ctx)
    step(ctx, run, 0, samples=[Sample("p", 1, "base", 0.5, 1.0)])
    for at in range(1, 13):
        step(ctx, run, at, score=3.0 if at <= 10 else 1.0, samples=[Sample("p", 1, "now", 1.25, 2.0)])
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    before = run_feed.RunFeed(ctx).poll({"run": run.id})["verdicts"]["objective/scores"][1]
    assert "falling" in before
    told = add_event(ctx.db, run.id, EventKind.SWITCH_REWARD, {"reward_model_id": other.id})
    assert run_summary.last_reward_switch(events(ctx.db, run.id)) is None  # not yet done
    mark_event_applied(ctx.db, told.id, 10)
    verdicts = run_feed.RunFeed(ctx).poll({"run": run.id})["verdicts"]
    assert verdicts["objective/scores"][1].startswith(f"Since reward model {other.id} came in after step 10: ")
    assert "falling" not in verdicts["objective/scores"][1]
    assert not verdicts["objective/kl"][1].startswith("Since")
    curves = {"objective/scores": [(10, 3.0), (11, 1.0)], "objective/kl": [(10, 1.0), (11, 1.1)]}
    assert run_summary.since_last_rescale(curves, events(ctx.db, run.id)) == curves | {"objective/scores": [(11, 1.0)]}
    scores = [run_summary.samples_at_step(ctx.db, run.id, at)["rows"][0]["base_score"] for at in (10, 11)]
    assert scores == [0.5, None]
    assert run_summary.samples_at_step(ctx.db, run.id, 11)["rows"][0]["base_gold"] == 1.0


def test_after_a_change_of_beta_the_reward_with_kl_is_judged_from_there_on(ctx):
    run = a_run(ctx)
    told = add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.5})
    mark_event_applied(ctx.db, add_event(ctx.db, run.id, EventKind.SET, {"name": "lr", "value": 1e-4}).id, 12)
    curves = {name: [(10, 1.0), (11, -1.0)] for name in ("objective/rlhf_reward", "objective/scores")}
    assert (
        run_summary.since_last_rescale(curves, events(ctx.db, run.id)) == curves
    )  # not yet in force, and lr changes no scale
    mark_event_applied(ctx.db, told.id, 10)
    said = events(ctx.db, run.id)
    assert run_summary.since_last_rescale(curves, said) == curves | {"objective/rlhf_reward": [(11, -1.0)]}
    assert (
        run_summary.with_scope_note("objective/rlhf_reward", "It falls.", said)
        == "Since beta 0.5 came in after step 10: it falls."
    )
    assert run_summary.with_scope_note("objective/scores", "It falls.", said) == "It falls."
    again = add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.7})
    mark_event_applied(ctx.db, again.id, 10)  # told twice before one step: the later stands
    said = events(ctx.db, run.id)
    assert (
        run_summary.with_scope_note("objective/rlhf_reward", "It falls.", said)
        == "Since beta 0.7 came in after step 10: it falls."
    )


def test_after_a_raise_of_beta_a_falling_score_names_it_and_is_no_warning(ctx):
    run = a_run(ctx)
    for at in range(1, 13):
        step(ctx, run, at, score=3.0 if at <= 7 else 1.0)
    set_run_status(ctx.db, run.id, RunStatus.RUNNING)
    told = add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": 0.5})
    look = run_feed.RunFeed(ctx)
    assert "lower lr" in look.poll({"run": run.id})["verdicts"]["objective/scores"][1]  # not yet in force
    mark_event_applied(ctx.db, told.id, 7)
    level, words = look.poll({"run": run.id})["verdicts"]["objective/scores"]
    assert (level, "probably because beta went from 0.1 to 0.5 after step 7" in words) == ("info", True), words


def test_a_knob_turned_twice_before_one_step_is_turned_once(ctx):
    run = a_run(ctx)
    for at, value in ((3, 0.5), (3, 0.2), (5, 0.9), (5, 0.2)):
        mark_event_applied(ctx.db, add_event(ctx.db, run.id, EventKind.SET, {"name": "beta", "value": value}).id, at)
    said = events(ctx.db, run.id)
    assert run_summary.applied_changes(run, said) == [(3, "beta", 0.1, 0.2)]
    assert run_summary.change_markers(run, said) == [{"step": 3, "words": "beta 0.1 → 0.2"}]
    assert [event.payload["value"] for event in said] == [0.5, 0.2, 0.9, 0.2]  # what was asked for is all on record


def test_of_what_was_asked_for_meanwhile_the_last_counts(ctx):
    run, (one, other) = a_run(ctx), (reward_model(ctx), reward_model(ctx))
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    for kind, payload in (
        (EventKind.SET, {"name": "beta", "value": 0.5}), (EventKind.SWITCH_REWARD, {"reward_model_id": one.id}),
        (EventKind.SET, {"name": "beta", "value": 0.9}), (EventKind.SET, {"name": "lr", "value": 3e-4}),
        (EventKind.SWITCH_REWARD, {"reward_model_id": other.id}), (EventKind.SET, {"name": "beta", "value": 0.2}),
        (EventKind.RESUME, {}),
    ):  # fmt: skip
        add_event(ctx.db, run.id, kind, payload)
    told = run_summary.pending_changes(get_run(ctx.db, run.id), events(ctx.db, run.id))
    assert [words.removesuffix(f" {run_summary.NEXT_STEP_NOTE}") for words in told] == [
        "lr = 0.0003", f"reward model {other.id}", "beta = 0.2", "resume",
    ]  # fmt: skip
    for event in events(ctx.db, run.id):
        mark_event_applied(ctx.db, event.id, 4)
    assert [mark["words"] for mark in run_summary.change_markers(run, events(ctx.db, run.id))] == [
        "lr 0.0006 → 0.0003", f"reward model {run.reward_model_id} → {other.id}", "beta 0.1 → 0.2",
    ]  # fmt: skip
