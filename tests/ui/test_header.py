"""The header: what it shows of the lab, and one query of the store for many pages."""

import dataclasses
import shutil
import time
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from gradio.context import LocalContext

from rlhf_lab.backup.mirror_records import MirrorState
from rlhf_lab.backup.mirror_settings import MirrorSettings, write_settings
from rlhf_lab.common.enums import EngineState, JobKind, RunStatus, Source
from rlhf_lab.common.records import EngineStatus, LabelSnapshot, Role
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.mirror_control import MirrorControl
from rlhf_lab.jobs.mirror_loop import MirrorView
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.jobs.scheduler import no_pair_message
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run, set_run_status, update_run
from rlhf_lab.ui.auth.visitors import Access, Visitor
from rlhf_lab.ui.context import OPERATOR_HEADER, Context
from rlhf_lab.ui.header import api as header
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.presence import PRESENCE
from rlhf_lab.ui.train.start_run import api as start_run


@pytest.fixture
def ctx(tmp_path, project_home):
    with Database.open(shutil.copytree(project_home, tmp_path, dirs_exist_ok=True)) as db:
        yield Context(tmp_path, db)


def test_the_header_of_a_new_home_is_idle(ctx):
    shown = header.state(ctx)
    assert shown["engine"]["label"] == "engine idle"
    assert (shown["labels"], shown["reward"], shown["job"], shown["warning"]) == (0, None, None, "")
    assert shown["model"] == "embedded model"


def test_an_engine_that_does_not_start_is_reported_with_its_reason(ctx, monkeypatch):
    row = SimpleNamespace(started_at=0.0, device="", memory_mib=None)
    (ctx.home / "engine.out").write_text("RuntimeError: std::bad_alloc\n")
    for state, engine_label in ((EngineState.DEAD, "engine does not start"), (EngineState.STARTING, "engine starts")):
        status = EngineStatus(state, row, failed_starts=3)
        monkeypatch.setattr(engine_process, "engine_state", lambda _, status=status: status)
        shown = header.state(ctx)
        assert shown["engine"]["label"] == engine_label
        assert "(RuntimeError: std::bad_alloc)" in shown["warning"]
        assert "does not start; the top of the page says why" in no_pair_message(ctx.db, ctx.project.id)


def test_skips_are_no_labels_here_as_under_label(ctx):
    for choice in ("left", "skip", "tie"):
        pair = label.state(ctx, "ann")["pair"]["id"]
        voting.cast_vote(ctx, voting.VotePayload(uuid=choice, pair_id=pair, choice=choice), "ann")
    assert header.state(ctx)["labels"] == label.state(ctx, "ann")["labels"] == 2


def test_a_run_is_named_with_its_step(ctx):
    engine = engine_process.record_heartbeat(ctx.db, "working", device="cpu", memory_mib=512.0)
    report = {"accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.88}
    pinned = LabelSnapshot((), "", Source.SIMULATED)
    row = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=report, snapshot=pinned)
    run = create_run(ctx.db, ctx.project.id, row.id, "r", config={}, manifest={}, total_steps=40)
    queue.submit(ctx.db, JobKind.TRAIN_POLICY, ctx.project.id, {"run_id": run.id})
    job = queue.claim(ctx.db, [JobKind.TRAIN_POLICY], engine)
    assert job is not None
    queue.update_progress(ctx.db, job.id, 0.5, 60.0)
    shown = header.state(ctx)
    assert shown["job"]["label"].startswith(f"run {run.id}")
    assert "step 0 of 40" in shown["job"]["label"]
    assert (shown["job"]["progress"], shown["job"]["eta_s"]) == (0.5, 60.0)
    assert not shown["job"]["show_percent"]  # the steps say it
    set_run_status(ctx.db, run.id, RunStatus.PAUSED)
    paused = header.state(ctx)["job"]
    assert (paused["label"], paused["eta_s"]) == (f"run {run.id} paused, step 0 of 40", None)
    assert shown["engine"] == {
        "label": "engine works", "style": "busy", "description": header.ENGINE_LABELS[engine_process.EngineState.ALIVE][2],
        "device": "cpu", "memory_mib": 512.0, "is_working": True,
    }  # fmt: skip
    assert shown["reward"] == {"id": row.id, "labels": 0, "accuracy": 0.8, "low": 0.7, "high": 0.88, "simulated": True}
    queue.finish(ctx.db, job.id, {})
    pairs = queue.submit(ctx.db, JobKind.SAMPLE_PAIRS, ctx.project.id, {})
    queue.claim(ctx.db, [JobKind.SAMPLE_PAIRS], engine)
    assert not header.state(ctx)["job"]["show_percent"]  # nothing is known yet
    queue.update_progress(ctx.db, pairs.id, 0.25)
    assert header.state(ctx)["job"]["show_percent"]


@pytest.mark.parametrize(
    ("status", "step", "is_training"),
    [
        (RunStatus.QUEUED, 0, None),
        (RunStatus.RUNNING, 0, True),
        (RunStatus.PAUSED, 3, True),
        (RunStatus.DONE, 40, False),
        (RunStatus.FAILED, 3, False),
        (RunStatus.STOPPED, 0, None),
    ],
)
def test_a_run_that_has_begun_trains_or_has_ended(ctx, status, step, is_training):
    run = create_run(ctx.db, ctx.project.id, None, "r", config={}, manifest={}, total_steps=40)
    with ctx.db.write() as conn:
        update_run(conn, run.id, status=status, step=step)
    expected = None if is_training is None else {"id": run.id, "is_training": is_training, "is_live": False}
    assert header.state(ctx)["run"] == expected
    new_project(ctx.db, name="Another")
    assert header.state(ctx)["run"] is None


def test_the_accuracy_is_that_of_the_reward_model_which_a_run_learns_from(ctx, calls):
    def add_model(source, accuracy, low):
        snapshot, report = (
            LabelSnapshot((), "", source),
            {"accuracy": accuracy, "accuracy_low": low, "accuracy_high": 1.0},
        )
        return add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=report, snapshot=snapshot).id

    def shown_reward():
        ctx.cache._entries.clear()
        shown = header.state(ctx)["reward"]
        assert calls(reward, ctx).state()["default_id"] == calls(start_run, ctx).options()["default_id"] == shown["id"]
        return shown["id"], shown["accuracy"], shown["simulated"]

    first = add_model(Source.SIMULATED, 0.9, 0.6)
    assert shown_reward() == (first, 0.9, True)
    add_model(Source.HUMAN, 0.6, 0.4)
    assert shown_reward() == (first, 0.9, True)
    human = add_model(Source.HUMAN, 0.7, 0.6)
    add_model(Source.SIMULATED, 0.95, 0.9)
    assert shown_reward() == (human, 0.7, False)


def test_counts_come_with_the_time_of_counting_and_the_step_of_the_run(ctx):
    """With them the page keeps the newer of the counts of the header and of the open screen."""
    first, second = header.state(ctx), header.state(ctx)
    assert first["counted_at"] <= second["counted_at"]
    pinned = LabelSnapshot((), "", Source.SIMULATED)
    row = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={}, snapshot=pinned)
    run = create_run(ctx.db, ctx.project.id, row.id, "r", config={}, manifest={}, total_steps=40)
    job = queue.submit(ctx.db, JobKind.TRAIN_POLICY, ctx.project.id, {"run_id": run.id})
    queue.claim(ctx.db, [JobKind.TRAIN_POLICY], engine_process.record_heartbeat(ctx.db, "working"))
    shown = header._job_view(ctx, queue.get_job(ctx.db, job.id))
    assert (shown["run"], shown["step"], shown["label"]) == (run.id, 0, f"run {run.id} queued, step 0 of 40")


def test_a_lab_that_is_saved_to_the_hub_says_how_old_the_copy_is(tmp_path):
    with Database.open(tmp_path) as db:
        new_project(db)
        mirror = MirrorControl(tmp_path, {"RLHF_LAB_MIRROR": "a/b"})
        MirrorState("a/b", saved_at=time.time() - 20, problem="The Hub does not answer.").write(tmp_path)
        shown = header.state(Context(tmp_path, db, "secret", on_space=True, mirror=mirror))
    assert shown["warning"] == ""
    mirror = shown["mirror"]
    assert mirror.age_s == pytest.approx(20, abs=15)
    assert mirror == MirrorView("a/b", mirror.saved_at, mirror.age_s, "The Hub does not answer.", is_late=False)


def test_a_space_says_that_its_disk_is_wiped(tmp_path):
    """Also with a mirror set up on the page, whose settings are on that disk."""
    write_settings(tmp_path, MirrorSettings("a/b", "hf_token"))
    with Database.open(tmp_path) as db:
        new_project(db)
        for mirror in (None, MirrorControl(tmp_path, {})):
            shown = header.state(Context(tmp_path, db, "secret", on_space=True, mirror=mirror))
            assert "wiped" in shown["warning"]
            assert bool(shown["mirror"]) == (mirror is not None)


def test_a_new_engine_is_starting(ctx):
    engine_process.record_heartbeat(ctx.db, "starting")
    assert header.state(ctx)["engine"]["label"] == "engine starts"
    assert not header.state(ctx)["engine"]["is_working"]  # so the page says that it starts, also if a job waits for it
    engine_process.record_heartbeat(ctx.db, "idle")
    assert header.state(ctx)["engine"]["label"] == "engine ready"


def status(ctx, calls, **headers):
    """The header's reply to a visitor whose request has these headers."""
    token = LocalContext.request.set(SimpleNamespace(cookies={}, headers=headers))
    try:
        return calls(header, ctx).status({"annotator": "ann"})
    finally:
        LocalContext.request.reset(token)


@pytest.mark.parametrize(
    ("secret", "sent", "is_operator"),
    [
        (None, "", True),
        ("sesame", "", False),
        ("sesame", "Sesame", False),
        ("sesame", "sesame", True),
        ("ключ €", quote("ключ €"), True),
        ("", "", False),
    ],
)
def test_a_local_visitor_is_the_operator_unless_a_secret_is_set(ctx, calls, secret, sent, is_operator):
    lab = dataclasses.replace(ctx, operator_secret=secret)
    assert status(lab, calls, **{OPERATOR_HEADER: sent})["is_operator"] is is_operator


@pytest.mark.parametrize(
    ("role", "logged_in", "by_secret"),
    [(Role.VIEWER, False, False), (Role.LABELLER, False, True), (Role.OPERATOR, True, True)],
)
def test_in_a_lab_with_roles_each_visitor_is_told_whether_they_operate_it(
    ctx, calls, monkeypatch, role, logged_in, by_secret
):
    monkeypatch.setattr(Access, "visitor", lambda *_: Visitor(role, "ann"))
    lab = dataclasses.replace(ctx, operator_secret="sesame").as_multi_user(open_to_all=False)
    told = [status(lab, calls, **{OPERATOR_HEADER: secret})["is_operator"] for secret in ("", "wrong", "sesame")]
    assert told == [logged_in, logged_in, by_secret]  # though all of it came from one state of the lab


@pytest.mark.parametrize("role", list(Role))
def test_a_page_with_the_header_counts_its_labeller_as_present(ctx, calls, monkeypatch, role):
    PRESENCE._last_seen.clear()
    monkeypatch.setattr(Access, "visitor", lambda *_: Visitor(role, "ann"))
    status(ctx.as_multi_user(open_to_all=False), calls)
    assert PRESENCE.names() == ([] if role is Role.VIEWER else ["ann"])


def test_many_pages_cost_one_query_of_the_store(ctx, calls, monkeypatch):
    states, shown = [], header.state(ctx)
    monkeypatch.setattr(header, "state", lambda ctx: states.append(1) or {**shown, "labels": len(states)})
    screen = calls(header, ctx)
    assert [screen.status({"annotator": name})["labels"] for name in ("ann", "bob", "")] == [1, 1, 1]
