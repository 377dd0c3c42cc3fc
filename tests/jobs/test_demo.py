"""Demo mode: what visitors may start, their places in the queue, and the reset that removes only their data."""

import itertools
import json
import time
from types import SimpleNamespace

import pytest
from sqlalchemy import func, select

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, EventKind, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.paths import DEMO_FILE, run_folder
from rlhf_lab.common.records import REQUESTER_KEY, NewCompletion, StepResult, Vote
from rlhf_lab.config.demo import DemoConfig, demo_config
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, LabelError, StaleVoteError, StoreError
from rlhf_lab.jobs import demo as demo_module
from rlhf_lab.jobs import engine_process, queue, run_control, scheduler
from rlhf_lab.jobs.demo import VISITOR_TRAINING_LABELS, Demo, end_demo
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import tables as t
from rlhf_lab.store.annotators import OPERATOR_NAME
from rlhf_lab.store.blind_tests import add_answers, add_test, answers
from rlhf_lab.store.label_snapshots import load_comparisons, snapshot_labels
from rlhf_lab.store.pair_leases import lease_pair, undo_last_vote
from rlhf_lab.store.projects import add_completions, add_pairs, prompts
from rlhf_lab.store.reward_models import add_reward_model, reward_models
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import add_event, runs, set_run_status
from rlhf_lab.store.votes import cast_vote

OPERATORS = {OPERATOR_NAME, "Olga", "@owner"}
LIMITS = {"steps": 4, "responses": 8, "tokens": 16}
_numbers = itertools.count()


@pytest.fixture
def project(db, monkeypatch):
    monkeypatch.setattr(engine_process, "ensure_engine", lambda *_: None)
    return new_project(db)


@pytest.fixture
def clock(monkeypatch):
    """clock.ahead: seconds by which the demo's clock is ahead of that of the rows."""
    clock = SimpleNamespace(ahead=0.0, time=lambda: time.time() + clock.ahead)
    monkeypatch.setattr(demo_module, "time", clock)
    return clock


@pytest.fixture
def make_demo(tmp_path, db, project, clock):
    return lambda **settings: Demo(tmp_path, db, DemoConfig(**settings), OPERATORS)


def sampled_pair(db, project):
    """A new pair, as the engine writes it."""
    prompt = prompts(db, project.id, "train")[0]
    texts = add_completions(db, [NewCompletion(prompt.id, f"text {next(_numbers)}", (1,), "base", 0) for _ in "ab"])
    return add_pairs(db, project.id, [(texts[0].id, texts[1].id, "random")])[0]


def label(db, project, name, count=1, source=Source.HUMAN, choice=Choice.FIRST):
    """Votes of one annotator on new pairs."""
    return [
        cast_vote(db, Vote(f"vote {next(_numbers)}", sampled_pair(db, project).id, name, source, choice, True))
        for _ in range(count)
    ]


def label_from(demo, db, project, name, address, count=1):
    with demo.labelling_from(name, address):
        label(db, project, name, count)


def train(db, home, project, source=Source.HUMAN):
    """A reward model from all labels of a source, with its folder."""
    path = f"reward_models/{next(_numbers)}"
    (home / path).mkdir(parents=True)
    (home / path / "head.bin").write_text("weights")
    snapshot = snapshot_labels(db, project.id, source)
    return add_reward_model(db, project.id, path, config={}, report={"accuracy": 0.9}, snapshot=snapshot)


def start(demo, project, visitor, **settings):
    return demo.start_run(project, demo.run_config(project, **LIMITS | settings), visitor)


def end_run(db, home, run, status=RunStatus.DONE):
    """End a run as the engine does: with a step and a checkpoint."""
    job = run_control.open_job(db, run.id)
    record_step(db, run.id, StepResult(1, {"objective/kl": 0.1}))
    (run_folder(home, run.id) / "step-1").mkdir(parents=True, exist_ok=True)
    set_run_status(db, run.id, status)
    queue.cancel(db, job.id)


def count(db, table):
    with db.read() as conn:
        return conn.execute(select(func.count()).select_from(table)).scalar_one()


def contents(db):
    """The number of rows of every table but the engines'."""
    return {table.name: count(db, table) for table in t.metadata.sorted_tables if table.name != "engines"}


# ---- settings


def test_settings_of_the_option_and_the_variable():
    assert demo_config(None, None) is demo_config(None, "") is demo_config(None, "0") is None
    assert demo_config([], None) == demo_config(None, "1") == DemoConfig()
    assert demo_config(["max_steps=7", "reset_hours=0.5"], "0") == DemoConfig(max_steps=7, reset_hours=0.5)
    assert demo_config(None, " max_steps=7, reset_hours=0.5 ") == DemoConfig(max_steps=7, reset_hours=0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("on", '"on" is not a setting. Write NAME=VALUE'),
        ("max_steps=many", 'max_steps = "many" is not a number'),
        ("max_stepz=3", r"unknown setting\(s\) max_stepz"),
        ("max_steps=0", "max_steps = 0 is below the minimum 1"),
    ],
)
def test_settings_that_cannot_be_used(text, message):
    for option, variable, source in ((None, text, "RLHF_LAB_DEMO_MODE"), ([text], None, "--demo-mode")):
        with pytest.raises(ConfigError, match=f"{source}: {message}"):
            demo_config(option, variable)


# ---- runs of visitors


@pytest.mark.parametrize(
    ("name", "limit", "low"),
    [("steps", "max_steps", 1), ("responses", "max_responses", 4), ("tokens", "max_tokens", 8)],
)
def test_a_setting_beyond_its_limit_is_refused(make_demo, project, name, limit, low):
    demo = make_demo(**{limit: 20})
    for value in (low, 20):
        demo.run_config(project, **LIMITS | {name: value})
    for value in (low - 1, 21, 10**9, -5):
        with pytest.raises(LabelError, match=f"{name} = {value}: give a whole number from {low} to 20"):
            demo.run_config(project, **LIMITS | {name: value})


def test_a_visitors_run_has_the_preset_and_a_seed_of_its_own(make_demo, project):
    demo = make_demo()
    configs = [demo.run_config(project, steps=4, responses=8, tokens=16) for _ in range(2)]
    expected = PolicyConfig.for_algorithm("ppo", steps=4, batch_size=8, max_new_tokens=16)
    assert configs[0].replace(seed=0) == expected
    assert configs[0].seed != configs[1].seed


def test_without_a_reward_model_no_run_starts(make_demo, db, project):
    demo = make_demo()
    label(db, project, "visitor-1", 3)
    with pytest.raises(LabelError, match=r"Label 7 more pairs under Label; then it trains by itself\."):
        start(demo, project, "visitor-1")
    label(db, project, "visitor-1", 7)
    with pytest.raises(LabelError, match=r"There are enough labels; it trains soon\."):
        start(demo, project, "visitor-1")
    assert runs(db) == []


def test_the_newest_reward_model_from_peoples_labels_is_used(make_demo, db, project, tmp_path):
    label(db, project, OPERATOR_NAME, 2)
    human = train(db, tmp_path, project)
    label(db, project, "judge:cheerful", 2, Source.SIMULATED)
    train(db, tmp_path, project, Source.SIMULATED)
    assert start(make_demo(), project, "visitor-1").reward_model_id == human.id


def test_one_unfinished_run_for_each_visitor_and_places_in_the_queue(make_demo, db, project, tmp_path):
    demo = make_demo(max_queue=3)
    train(db, tmp_path, project)
    first, second = start(demo, project, "visitor-1"), start(demo, project, "visitor-2")
    with pytest.raises(LabelError, match=f"You already have a run: run {second.id}"):
        start(demo, project, "visitor-2")
    third = run_control.start_run(db, tmp_path, project.id, PolicyConfig(steps=2))  # the operator's
    states = [demo.queue_state(project, name) for name in ("visitor-1", "visitor-2", "visitor-3")]
    assert [(state.run_id, state.runs_before) for state in states] == [(first.id, 0), (second.id, 1), (None, 3)]
    with pytest.raises(LabelError, match="The queue is full: 3 unfinished runs"):
        start(demo, project, "visitor-3")
    assert [run.id for run in runs(db)] == [third.id, second.id, first.id]
    end_run(db, tmp_path, first)
    fourth = start(demo, project, "visitor-1")
    states = [demo.queue_state(project, name) for name in ("visitor-2", "visitor-1")]
    assert [(state.run_id, state.runs_before) for state in states] == [(second.id, 0), (fourth.id, 2)]


def test_a_running_run_is_told_from_one_that_waits(make_demo, db, project, tmp_path):
    demo = make_demo()
    train(db, tmp_path, project)
    start(demo, project, "visitor-1")
    assert not demo.queue_state(project, "visitor-1").is_running
    queue.claim(db, [JobKind.TRAIN_POLICY], engine_process.record_heartbeat(db, "x"))
    assert demo.queue_state(project, "visitor-1").is_running


def test_a_visitor_stops_their_own_run_and_no_other(make_demo, db, project, tmp_path):
    demo = make_demo()
    train(db, tmp_path, project)
    operators = run_control.start_run(db, tmp_path, project.id, PolicyConfig(steps=2))
    first, second = start(demo, project, "visitor-1"), start(demo, project, "visitor-2")
    assert demo.stop_run("visitor-2") == second.id
    for name in ("visitor-2", "visitor-3", ""):
        with pytest.raises(LabelError, match="You have no run that is in progress or waiting"):
            demo.stop_run(name)
    found = {run.id: run.status for run in runs(db)}
    assert found == {operators.id: RunStatus.QUEUED, first.id: RunStatus.QUEUED, second.id: RunStatus.STOPPED}


def test_a_visitor_trains_a_reward_model_when_there_are_enough_new_labels(make_demo, db, project, tmp_path):
    demo = make_demo()
    label(db, project, "visitor-1", 9)
    with pytest.raises(LabelError, match="after 1 more label by people"):
        demo.check_training(project)
    label(db, project, "visitor-2")
    demo.check_training(project)
    train(db, tmp_path, project)
    with pytest.raises(LabelError, match=f"after {VISITOR_TRAINING_LABELS} more labels by people"):
        demo.check_training(project)
    label(db, project, "visitor-2", VISITOR_TRAINING_LABELS)
    demo.check_training(project)


# ---- the reset


def test_a_reset_is_due_after_its_hours(make_demo, clock):
    demo = make_demo(reset_hours=2)
    clock.ahead = 7100
    assert (demo.is_reset_due(), demo.reset_if_due()) == (False, False)
    clock.ahead = 7201
    assert (demo.is_reset_due(), demo.reset_if_due(), demo.is_reset_due()) == (True, True, False)
    assert demo.reset_at == pytest.approx(time.time() + 7201 + 7200, abs=60)


def test_a_reset_is_due_after_enough_labels_of_visitors(make_demo, db, project):
    demo = make_demo(reset_labels=4)
    label(db, project, OPERATOR_NAME, 3)
    label(db, project, "judge:cheerful", 3, Source.SIMULATED)
    label(db, project, "visitor-1", 3)  # 2 count
    label(db, project, "visitor-2")
    assert not demo.is_reset_due()
    label(db, project, "api:tool")
    assert demo.is_reset_due()
    assert demo.reset_if_due()
    assert not demo.is_reset_due()


def test_a_reset_is_due_after_enough_runs_of_visitors(make_demo, db, project, tmp_path):
    demo = make_demo(reset_runs=2)
    train(db, tmp_path, project)
    for _ in range(3):
        end_run(db, tmp_path, run_control.start_run(db, tmp_path, project.id, PolicyConfig(steps=2)))
    end_run(db, tmp_path, start(demo, project, "visitor-1"))
    assert not demo.is_reset_due()
    end_run(db, tmp_path, start(demo, project, "visitor-2"))
    assert demo.is_reset_due()


def test_runs_without_a_step_and_undone_labels_bring_no_reset(make_demo, db, project, tmp_path):
    """Otherwise a program that starts and stops would remove the labels of all others."""
    demo = make_demo(reset_runs=2, reset_labels=6)
    train(db, tmp_path, project)
    for i in range(5):
        start(demo, project, f"visitor-{i}")
        demo.stop_run(f"visitor-{i}")
    label(db, project, "visitor-1", 2)
    for i in range(9):
        label(db, project, f"visitor-1{i}")
        assert undo_last_vote(db, project.id, f"visitor-1{i}") is not None
    assert not demo.is_reset_due()


def test_skips_bring_no_reset(make_demo, db, project):
    demo = make_demo(reset_labels=3)
    for i in range(6):
        label(db, project, f"visitor-{i}", choice=Choice.SKIP)
    assert not demo.is_reset_due()


def test_one_visitor_alone_brings_no_reset_by_labels(make_demo, db, project):
    demo = make_demo(reset_labels=6)
    label(db, project, "visitor-1", 20)  # at most half of them count
    label(db, project, "visitor-2", 2)
    assert not demo.is_reset_due()
    label(db, project, "visitor-2")
    assert demo.is_reset_due()


def test_a_reset_waits_until_nothing_goes_on_and_nothing_new_starts(make_demo, db, project, tmp_path):
    demo = make_demo(reset_runs=2)
    train(db, tmp_path, project)
    first, second = start(demo, project, "visitor-1"), start(demo, project, "visitor-2")
    for run in (first, second):
        record_step(db, run.id, StepResult(1, {"objective/kl": 0.1}))
    with pytest.raises(LabelError, match="about to be reset"):
        start(demo, project, "visitor-3")
    with pytest.raises(LabelError, match="about to be reset"):
        demo.check_training(project)
    runner = scheduler.Scheduler(tmp_path, db, demo)
    runner.run_once()
    assert [run.id for run in runs(db)] == [second.id, first.id]
    end_run(db, tmp_path, first)
    queue.claim(db, [JobKind.TRAIN_POLICY], engine_process.record_heartbeat(db, "x"))
    set_run_status(db, second.id, RunStatus.RUNNING)
    runner.run_once()
    assert {job.kind for job in queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES)} == {JobKind.TRAIN_POLICY}
    assert [run.id for run in runs(db)] == [second.id, first.id]
    end_run(db, tmp_path, second)
    runner.run_once()
    assert runs(db) == []
    assert JobKind.SAMPLE_PAIRS in {job.kind for job in queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES)}
    start(demo, project, "visitor-3")


@pytest.mark.parametrize("kind", [JobKind.TRAIN_REWARD, JobKind.COMPLETE])
def test_a_reset_waits_for_other_jobs_too(make_demo, db, project, clock, kind):
    demo = make_demo()
    clock.ahead = 86400
    job = queue.submit(db, kind, project.id, {})
    assert not demo.reset_if_due()
    queue.cancel(db, job.id)
    assert demo.reset_if_due()


def test_a_reset_waits_for_a_run_without_a_job(make_demo, db, project, clock, tmp_path):
    """One that is trained by a command, without the engine."""
    demo = make_demo()
    train(db, tmp_path, project)
    run = run_control.start_run(db, tmp_path, project.id, PolicyConfig(steps=2))
    queue.cancel(db, run_control.open_job(db, run.id).id)
    clock.ahead = 86400
    set_run_status(db, run.id, RunStatus.PAUSED)
    assert not demo.reset_if_due()
    set_run_status(db, run.id, RunStatus.STOPPED)
    assert demo.reset_if_due()


def test_a_reset_removes_what_visitors_made_and_frees_the_disk(make_demo, db, project, tmp_path, clock):
    label(db, project, "visitor-0", 3)  # before demo mode: the operator's project as it was
    before = contents(db)
    demo = make_demo()
    label(db, project, "visitor-1", 4)
    label(db, project, "Ann", 2)
    label(db, project, "api:tool")
    lease_pair(db, project.id, "visitor-2")
    sampled_pair(db, project)
    reward = train(db, tmp_path, project)
    run = start(demo, project, "visitor-1")
    end_run(db, tmp_path, run)
    for kind, payload in (
        (JobKind.COMPLETE, {REQUESTER_KEY: "visitor-1"}),
        (JobKind.EXPLAIN, {REQUESTER_KEY: "Ann"}),
        (JobKind.SAMPLE_PAIRS, {"count": 16}),
    ):
        queue.cancel(db, queue.submit(db, kind, project.id, payload).id)
    clock.ahead = 86400
    assert demo.reset_if_due()
    after = contents(db)
    assert after.pop("leases") <= 1
    assert after == {name: number for name, number in before.items() if name != "leases"}
    assert not run_folder(tmp_path, run.id).exists()
    assert not (tmp_path / reward.path).exists()


def test_a_reset_keeps_what_the_operator_made(make_demo, db, project, tmp_path, clock):
    old_votes = label(db, project, OPERATOR_NAME, 2)
    old_model = train(db, tmp_path, project)
    demo = make_demo()
    kept_votes = label(db, project, OPERATOR_NAME) + label(db, project, "Olga") + label(db, project, "@Owner")
    kept_votes += label(db, project, "judge:cheerful", 2, Source.SIMULATED)
    own_model = train(db, tmp_path, project, Source.SIMULATED)
    run = run_control.start_run(db, tmp_path, project.id, PolicyConfig(steps=2))
    end_run(db, tmp_path, run)
    removed_votes = label(db, project, "visitor-1", 2)
    tests = [queue.submit(db, JobKind.COMPLETE, project.id, {"prompts": ["Once"]}) for _ in "ab"]
    operator_job = queue.submit(db, JobKind.COMPLETE, project.id, {REQUESTER_KEY: OPERATOR_NAME})
    for job in (*tests, operator_job):
        queue.cancel(db, job.id)
    test = add_test(db, project.id, tests[0].id, tests[1].id)
    for name in (OPERATOR_NAME, "visitor-1"):
        add_answers(db, test.id, name, {0: Choice.FIRST})
    clock.ahead = 86400
    assert demo.reset_if_due()
    with db.read() as conn:
        remaining = set(conn.execute(select(t.votes.c.id)).scalars())
    assert remaining == {vote.id for vote in old_votes + kept_votes}
    assert not remaining & {vote.id for vote in removed_votes}
    assert [row.id for row in reward_models(db, project.id)] == [own_model.id, old_model.id]
    assert [found.id for found in runs(db)] == [run.id]
    assert run_folder(tmp_path, run.id).exists()
    assert (tmp_path / own_model.path).exists()
    assert set(answers(db, test.id)) == {OPERATOR_NAME}
    assert queue.get_job(db, operator_job.id).status is JobStatus.CANCELLED


@pytest.mark.parametrize("used_since", ["from the start", "since a switch"])
def test_a_reward_model_that_the_operators_run_uses_stays_with_its_labels(
    make_demo, db, project, tmp_path, clock, used_since
):
    label(db, project, OPERATOR_NAME, 2)
    first = train(db, tmp_path, project)
    demo = make_demo()
    label(db, project, "visitor-1", 3)
    used = train(db, tmp_path, project)
    label(db, project, "visitor-1")
    unused = train(db, tmp_path, project)
    chosen = used.id if used_since == "from the start" else first.id
    run = run_control.start_run(db, tmp_path, project.id, PolicyConfig(steps=2), chosen)
    if used_since == "since a switch":
        add_event(db, run.id, EventKind.SWITCH_REWARD, {"reward_model_id": used.id})
    end_run(db, tmp_path, run)
    clock.ahead = 86400
    assert demo.reset_if_due()
    remaining = reward_models(db, project.id)
    assert [row.id for row in remaining] == [used.id, first.id]
    assert len(load_comparisons(db, remaining[0].snapshot)) == 5
    assert not (tmp_path / unused.path).exists()
    assert (tmp_path / used.path).exists()


def test_the_times_of_a_demo_outlive_the_process(make_demo, db, project, tmp_path, clock):
    first = make_demo(reset_hours=2)
    label(db, project, "visitor-1")
    clock.ahead = 7000
    second = make_demo(reset_hours=2)
    assert (second.reset_at, second.is_reset_due()) == (first.reset_at, False)
    clock.ahead = 7201
    third = make_demo(reset_hours=2)
    assert third.reset_if_due()
    assert count(db, t.votes) == 0
    assert make_demo(reset_hours=2).reset_at == third.reset_at


def test_a_reset_that_was_interrupted_is_finished_later(make_demo, db, project, tmp_path, clock, monkeypatch):
    demo = make_demo()
    train(db, tmp_path, project)
    run = start(demo, project, "visitor-1")
    end_run(db, tmp_path, run)
    clock.ahead = 86400

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_module, "remove_visitor_data", interrupted)
        with pytest.raises(KeyboardInterrupt):
            demo.reset_if_due()
    assert not run_folder(tmp_path, run.id).exists()
    assert make_demo().reset_if_due()
    assert runs(db) == []


def test_a_demo_that_ended_keeps_what_visitors_had_made(make_demo, db, project, tmp_path, clock):
    make_demo()
    label(db, project, "visitor-1", 2)
    end_demo(tmp_path)
    end_demo(tmp_path)
    demo = make_demo()
    label(db, project, "visitor-1")
    clock.ahead = 86400
    assert demo.reset_if_due()
    assert count(db, t.votes) == 2


def test_a_state_file_that_cannot_be_read_is_an_error(make_demo, tmp_path):
    make_demo()
    state = json.loads((tmp_path / DEMO_FILE).read_text())
    assert set(state) == {"began_at", "last_reset_at"}
    (tmp_path / DEMO_FILE).write_text("{}")
    with pytest.raises(StoreError, match="Delete it to start demo mode again"):
        make_demo()


def test_one_address_brings_half_of_a_reset_at_most(make_demo, db, project, tmp_path):
    """With any reset_runs, and also with a new name for each run and label; what is refused does not count."""
    demo = make_demo(reset_runs=6, reset_labels=9)
    label(db, project, "Olga", 20)
    train(db, tmp_path, project)
    config = demo.run_config(project, **LIMITS)
    for n in range(3):
        run = demo.start_run(project, config, f"visitor-{n}", "1.1.1.1")
        with pytest.raises(LabelError, match="You already have a run"):
            demo.start_run(project, config, f"visitor-{n}", "1.1.1.1")
        end_run(db, tmp_path, run)
    with pytest.raises(LabelError, match=r"3 runs came from your network .* in at most 6 hours"):
        demo.start_run(project, config, "visitor-9", "1.1.1.1")
    for n in range(20):
        label_from(demo, db, project, f"visitor-{n}", "1.1.1.1", 2)
    assert not demo.is_reset_due()  # 3 runs and 4 of 40 labels count
    label(db, project, "visitor-50", 4)
    assert not demo.is_reset_due()
    label(db, project, "visitor-51", 1)
    assert demo.is_reset_due()
    assert demo.reset_if_due()
    assert demo.start_run(project, config, "visitor-9", "1.1.1.1").id


def test_names_without_a_label_take_no_place_and_nobody_labels_unremembered(make_demo, db, project, monkeypatch):
    """One address brings half of a reset, however many names it sent before; at the limit a label is refused, not counted for a
    name of its own."""
    monkeypatch.setattr(demo_module, "MAX_LABELLERS_OF_ADDRESS", 5)
    monkeypatch.setattr(demo_module, "MAX_LABELLERS", 7)
    demo = make_demo(reset_labels=6)
    for n in range(50):
        with pytest.raises(StaleVoteError), demo.labelling_from(f"junk-{n}", "6.6.6.6"):
            raise StaleVoteError("That pair was not given to you.")
    for n in range(5):
        label_from(demo, db, project, f"visitor-{n}", "6.6.6.6", 3)
    with pytest.raises(LabelError, match=r"Too many people labelled .* in at most 6 hours"):
        label_from(demo, db, project, "visitor-5", "6.6.6.6")
    label_from(demo, db, project, "visitor-4", "6.6.6.6")
    label_from(demo, db, project, "visitor-4", "7.7.7.7", 5)  # labels are those of the address that began
    assert not demo.is_reset_due()  # 3 of 21 labels count
    assert count(db, t.votes) == 21
    label_from(demo, db, project, "ann", "1.1.1.1")
    label_from(demo, db, project, "bob", "2.2.2.2")
    with pytest.raises(LabelError, match="Too many people"):
        label_from(demo, db, project, "cid", "3.3.3.3")
    assert not demo.is_reset_due()
    label_from(demo, db, project, "bob", "2.2.2.2")
    assert demo.reset_if_due()
    label_from(demo, db, project, "visitor-5", "6.6.6.6")
