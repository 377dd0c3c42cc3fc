"""Screen "Runs & data" without a browser: the list of runs, their comparison, setting differences, actions."""

import json
import math
import shutil

import pytest

from rlhf_lab.common.enums import EventKind, JobKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Sample, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import reward_models
from rlhf_lab.store import runs as store
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import open_project
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views.run_comparison import MAX_RUNS, compare_runs, frontier, setting_differences
from rlhf_lab.ui.runs import api as runs_api

SCORE, KL, GOLD = "objective/scores", "objective/kl", "objective/gold"


@pytest.fixture
def ctx(tmp_path, project_home):
    with Database.open(shutil.copytree(project_home, tmp_path / "home")) as db:
        yield Context(tmp_path / "home", db)


@pytest.fixture
def make(ctx):
    """make(name, {step: metrics}, status, **settings) → the run's id."""
    row = reward_models.add_reward_model(
        ctx.db, ctx.project.id, "reward_models/1", config={}, report={"accuracy": 0.8},
        snapshot=LabelSnapshot((1, 2, 3), "d" * 64, Source.SIMULATED),
    )  # fmt: skip

    def run(name, steps=None, status=RunStatus.DONE, **settings):
        config = PolicyConfig(steps=10).replace(**settings)
        made = store.create_run(
            ctx.db,
            ctx.project.id,
            row.id,
            name,
            config=config.to_dict(),
            manifest={"judge": "cheerful"},
            total_steps=10,
        )
        for step, metrics in (steps or {}).items():
            record_step(ctx.db, made.id, StepResult(step, metrics, samples=[Sample("p", 0, "t", score=0.0)]))
        store.set_run_status(ctx.db, made.id, status)
        return made.id

    return run


@pytest.fixture
def screen(ctx, calls):
    return calls(runs_api, ctx)


def test_an_empty_project_lists_no_runs_and_counts_its_labels(ctx, screen):
    assert screen.overview()["runs"] == []
    assert screen.overview()["labels"] == {"human": 0, "simulated": 0}
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    assert screen.overview()["labels"] == {"human": 0, "simulated": 5}
    assert screen.overview()["annotators"] == {"human": [], "simulated": ["judge:cheerful"]}


def test_a_row_of_the_list_has_the_latest_numbers(screen, make):
    make("first", {1: {SCORE: 0.25, KL: 0.5, GOLD: 3.0}, 2: {SCORE: math.nan, KL: 1.23456, GOLD: 4.0}})
    make("second", status=RunStatus.RUNNING)
    second, first = screen.overview()["runs"]
    assert (first["name"], first["step"], first["total_steps"], first["status"]) == ("first", 2, 10, "done")
    assert (first["score"], first["kl"], first["gold"]) == (None, 1.235, 4.0)
    assert first["sparkline"] == [0.25, None]
    assert (second["score"], second["sparkline"], second["is_active"]) == (None, [], True)
    json.dumps(screen.overview(), allow_nan=False)


def test_the_numbers_of_a_row_are_means_of_the_last_window(ctx, screen, make):
    run = make("long", {at: {SCORE: float(at), KL: 0.0, GOLD: 0.0} for at in range(1, 13)})
    (row,) = screen.overview()["runs"]
    assert (row["score"], row["algorithm"]) == (10.0, "ppo")
    other = store.add_event(ctx.db, run, EventKind.SWITCH_REWARD, {"reward_model_id": 1})
    store.mark_event_applied(ctx.db, other.id, 11)
    row = runs_api.run_row(ctx.db, store.get_run(ctx.db, run))
    assert row["score"] == 12.0  # scores of another reward model are on another scale


def test_a_row_is_computed_again_only_where_its_run_changed(ctx, screen, make, monkeypatch):
    one, two = make("one"), make("two")
    computed, run_row = [], runs_api.run_row
    monkeypatch.setattr(runs_api, "run_row", lambda db, run: computed.append(run.id) or run_row(db, run))
    screen.overview()
    screen.overview()
    assert sorted(computed) == [one, two]
    record_step(ctx.db, one, StepResult(1, {SCORE: 1.0}))
    assert [run["step"] for run in screen.overview()["runs"]] == [0, 1]
    assert sorted(computed) == [one, one, two]


def test_runs_of_the_open_project_are_compared(ctx, screen, make):
    one = make("one", {1: {SCORE: 0.0, KL: 0.0}, 2: {SCORE: 1.0, KL: 4.0}})
    two = make("two", {1: {SCORE: 0.5, KL: 0.25, GOLD: 2.0}})
    reply = screen.compare({"runs": [two, one, two, 999], "metric": KL})
    assert [run["id"] for run in reply["runs"]] == [two, one]
    assert reply["runs"][1]["points"] == [[1, 0.0], [2, 4.0]]
    assert reply["runs"][1]["score_frontier"] == [[0.0, 0.0, 1, 1], [2.0, 1.0, 2, 2]]
    assert reply["runs"][0]["gold_frontier"] == [[0.5, 2.0, 1, 1]]
    assert (reply["metrics"], reply["metric"]) == ([GOLD, KL, SCORE], KL)
    new_project(ctx.db)
    assert screen.compare({"runs": [one]})["runs"] == []


def test_a_comparison_is_not_computed_again_for_a_page_that_has_it(ctx, screen, make, monkeypatch):
    one, two = make("one", {1: {SCORE: 0.0}}), make("two")
    query = {"runs": [two, one], "metric": KL}
    query["revision"] = screen.compare(query)["revision"]
    computed = []
    monkeypatch.setattr(runs_api, "compare_runs", lambda *_: computed.append(1) or compare_runs(*_))
    assert (screen.compare(query), computed) == (None, [])
    for other in ({"metric": SCORE}, {"runs": [one, two]}, {"revision": "0"}):
        assert screen.compare(query | other)["runs"]
    record_step(ctx.db, one, StepResult(2, {SCORE: 1.0}))
    assert screen.compare(query)["runs"][1]["id"] == one


def test_at_most_max_runs_are_compared_and_only_a_list_is_accepted(screen, make):
    ids = [make(f"run {i}") for i in range(MAX_RUNS + 1)]
    assert len(screen.compare({"runs": ids})["runs"]) == MAX_RUNS
    assert "Reload" in screen.compare({"runs": "all"})["error"]


def test_frontier_uses_the_root_of_the_kl_and_clamps_negative_ones():
    kl = [(1, -0.5), (2, 4.0), (3, math.nan), (4, 9.0)]
    score = [(1, 1.0), (2, 2.0), (3, 3.0), (4, math.inf), (5, 5.0)]
    assert frontier(kl, score) == [[0.0, 1.0, 1, 1], [2.0, 2.0, 2, 2]]
    assert frontier([], score) == []


def test_steps_of_a_longer_run_are_bucketed():
    steps = range(1, 10)
    points = frontier([(i, float(i)) for i in steps], [(i, 10.0 * i) for i in steps])
    assert points[0] == [round(math.sqrt(1.5), 4), 15.0, 1, 2]
    assert points[-1] == [3.0, 90.0, 9, 9]
    assert len(points) == 5
    many = range(1, 1001)
    assert len(frontier([(i, 1.0) for i in many], [(i, 1.0) for i in many])) == 16


def test_up_to_eight_steps_each_one_is_a_point():
    steps = range(1, 9)
    points = frontier([(i, float(i * i)) for i in steps], [(i, float(i)) for i in steps])
    assert points == [[float(i), float(i), i, i] for i in steps]


def test_setting_differences_lists_only_what_differs(ctx, make):
    ids = make("one", beta=0.1, cliprange=0.2), make("two", beta=0.3, cliprange=None)
    selected = [store.get_run(ctx.db, run_id) for run_id in ids]
    rows = {row["name"]: row for row in setting_differences(ctx.db, selected)}
    assert set(rows) == {"beta", "cliprange"}
    assert rows["beta"]["values"] == ["0.1", "0.3"]
    assert rows["cliprange"]["values"] == ["0.2", "none"]
    assert "KL penalty" in rows["beta"]["about"]
    assert setting_differences(ctx.db, selected[:1]) == []


def test_a_setting_changed_during_a_run_is_a_difference_and_a_pause_is_not(ctx, make):
    ids = make("one", {1: {SCORE: 0.0}}, beta=0.1), make("two", {1: {SCORE: 0.0}}, beta=0.1)
    for kind, payload in ((EventKind.PAUSE, {}), (EventKind.SET, {"name": "beta", "value": 0.5})):
        store.mark_event_applied(ctx.db, store.add_event(ctx.db, ids[1], kind, payload).id, 1)
    (row,) = setting_differences(ctx.db, [store.get_run(ctx.db, run_id) for run_id in ids])
    assert row["name"] == "changed while it ran"
    assert row["values"] == ["nothing", "beta 0.1 → 0.5 after step 1"]


def test_the_missing_machine_record_of_a_run_that_never_started_is_no_difference(ctx, make):
    ids = [make("begun", beta=0.1), make("begun too", beta=0.1), make("waits", beta=0.3)]
    for run_id, device in zip(ids[:2], ("cpu", "cuda"), strict=True):
        machine = {
            "device": device,
            "dtype": "float32",
            "threads": 2,
            "packages": {"torch": "2"},
            "backbone_sha256": "ab",
        }
        store.set_manifest(ctx.db, run_id, {"judge": "cheerful", "machine": machine})
    first, second, waits = (store.get_run(ctx.db, run_id) for run_id in ids)
    assert [row["name"] for row in setting_differences(ctx.db, [first, waits])] == ["beta"]
    rows = {row["name"]: row["values"] for row in setting_differences(ctx.db, [first, second, waits])}
    assert rows == {"beta": ["0.1", "0.1", "0.3"], "device": ["cpu", "cuda", "–"]}


def test_a_setting_missing_from_an_old_config_has_its_default(ctx, make):
    old, new = (store.get_run(ctx.db, make(name)) for name in ("old", "new"))
    del old.config["beta"]
    assert setting_differences(ctx.db, [old, new]) == []


def test_an_unknown_metric_is_not_repeated_to_the_page(ctx, screen, make):
    """Whatever was sent: the reply names a metric of these runs, or one that the lab draws."""
    run = make("a", {1: {"custom/term": 1.0}, 2: {"custom/term": 2.0}})
    for sent, drawn in (
        ("custom/term", "custom/term"), ("objective/kl", "objective/kl"), ("", SCORE), ("x" * 500, SCORE), ("<b>", SCORE)
    ):  # fmt: skip
        reply = screen.compare({"runs": [run], "metric": sent})
        assert (reply["metric"], bool(reply["runs"][0]["points"])) == (drawn, sent == "custom/term")
    assert screen.compare({"metric": "custom/term"})["metric"] == SCORE


def test_rename_resume_and_delete(ctx, screen, make, monkeypatch):
    monkeypatch.setattr("rlhf_lab.jobs.engine_process.ensure_engine", lambda *_: None)
    run_id = make("one", status=RunStatus.STOPPED)
    folder = ctx.home / "runs" / str(run_id)
    folder.mkdir(parents=True)
    message = screen.rename({"run": run_id, "name": " <b>two</b> "})
    assert message == f'Run {run_id} is called "<b>two</b>" now.'
    assert store.get_run(ctx.db, run_id).name == "<b>two</b>"
    assert "1 to 80" in screen.rename({"run": run_id, "name": "  "})["error"]
    assert "continues" in screen.resume({"run": run_id})
    (job,) = queue.jobs(ctx.db, kinds=[JobKind.TRAIN_POLICY])
    assert job.payload == {"run_id": run_id}
    assert "stop it" in screen.delete({"run": run_id})["error"]
    queue.cancel(ctx.db, job.id)
    store.set_run_status(ctx.db, run_id, RunStatus.STOPPED)
    assert screen.delete({"run": run_id}) == f"Run {run_id} was deleted, with its metrics and checkpoints."
    assert not folder.exists()
    assert screen.overview()["runs"] == []
    assert "not in the open project" in screen.delete({"run": run_id})["error"]


@pytest.mark.parametrize("action", ["rename", "resume", "delete"])
def test_only_runs_of_the_open_project_are_changed(ctx, screen, make, action):
    run_id = make("one", status=RunStatus.STOPPED)
    for run in (None, "x", 9):
        assert getattr(screen, action)({"run": run, "name": "two"})["error"]
    new_project(ctx.db)
    reply = getattr(screen, action)({"run": run_id, "name": "two"})
    assert "another project has been opened" in reply["error"]
    open_project(ctx.db, 1)
    assert [(run["name"], run["status"]) for run in screen.overview()["runs"]] == [("one", "stopped")]
    assert queue.jobs(ctx.db, kinds=[JobKind.TRAIN_POLICY]) == []


def test_changes_and_exports_need_the_operator_where_a_secret_is_set(ctx, make, calls):
    run_id = make("one", status=RunStatus.STOPPED)
    screen = calls(runs_api, Context(ctx.home, ctx.db, "sesame"))
    for request in (screen.rename, screen.resume, screen.delete, screen.export):
        assert "Only the operator" in request({"run": run_id, "name": "two", "kind": "run"})["error"]
    assert [(run["name"], run["status"]) for run in screen.overview()["runs"]] == [("one", "stopped")]
    assert not (ctx.home / "exports").exists()
