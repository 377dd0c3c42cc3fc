"""Screen "Runs & data" without a browser: the list, runs beside each other, what differs, what is offered, what is refused."""

import json
import math
import os
import time
import zipfile
from pathlib import Path

import gradio as gr
import pytest

from rlhf_lab.common.enums import Choice, EventKind, JobKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Sample, StepResult, Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, LabelError, StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import reward_models
from rlhf_lab.store import runs as store
from rlhf_lab.store.database import Database
from rlhf_lab.store.pair_leases import lease_pairs
from rlhf_lab.store.projects import get_labelling_config, open_project
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import operator_action
from rlhf_lab.ui.screens import runs as screen
from rlhf_lab.ui.services.downloads import DownloadService
from rlhf_lab.ui.services.run_comparison import MAX_RUNS, compare_runs, frontier, setting_differences

SCORE, KL, GOLD = "objective/scores", "objective/kl", "objective/gold"


@pytest.fixture
def ctx(tmp_path):
    with Database.open(tmp_path / "home") as db:
        new_project(db)
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


def shown(ctx):
    return screen.runs_overview(ctx, screen.RunRowCache())


def test_an_empty_project_lists_nothing_and_offers_its_labels(ctx):
    assert shown(ctx)["runs"] == []
    assert shown(ctx)["labels"] == {"human": 0, "simulated": 0}
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    assert shown(ctx)["labels"] == {"human": 0, "simulated": 5}
    assert shown(ctx)["annotators"] == {"human": [], "simulated": ["judge:cheerful"]}


def test_a_line_of_the_list_says_the_last_numbers(ctx, make):
    make("first", {1: {SCORE: 0.25, KL: 0.5, GOLD: 3.0}, 2: {SCORE: math.nan, KL: 1.23456, GOLD: 4.0}})
    make("second", status=RunStatus.RUNNING)
    second, first = shown(ctx)["runs"]
    assert (first["name"], first["step"], first["total"], first["status"]) == ("first", 2, 10, "done")
    assert (first["score"], first["kl"], first["gold"]) == (None, 1.235, 4.0)
    assert first["spark"] == [0.25, None]
    assert (second["score"], second["spark"], second["going"]) == (None, [], True)
    json.dumps(shown(ctx), allow_nan=False)


def test_the_lists_figures_are_means_of_the_last_steps_like_the_sentences_under_the_curves(ctx, make):
    run = make("long", {at: {SCORE: float(at), KL: 0.0, GOLD: 0.0} for at in range(1, 13)})
    (line,) = shown(ctx)["runs"]
    assert (line["score"], line["algorithm"]) == (10.0, "ppo")
    other = store.add_event(ctx.db, run, EventKind.SWITCH_REWARD, {"reward_model_id": 1})
    store.mark_event_applied(ctx.db, other.id, 11)
    assert shown(ctx)["runs"][0]["score"] == 12.0  # scores of another reward model are on another scale


def test_the_list_is_read_again_only_where_a_run_changed(ctx, make, monkeypatch):
    one, two = make("one"), make("two")
    listing, read = screen.RunRowCache(), []
    facts = screen.run_row
    monkeypatch.setattr(screen, "run_row", lambda db, run: read.append(run.id) or facts(db, run))
    screen.runs_overview(ctx, listing)
    screen.runs_overview(ctx, listing)
    assert sorted(read) == [one, two]
    record_step(ctx.db, one, StepResult(1, {SCORE: 1.0}))
    assert [run["step"] for run in screen.runs_overview(ctx, listing)["runs"]] == [0, 1]
    assert sorted(read) == [one, one, two]


def test_what_a_page_has_seen_is_not_sent_again(ctx, make):
    make("one")
    listing = screen.RunRowCache()
    first = screen.if_changed(screen.runs_overview(ctx, listing), {})
    assert screen.if_changed(screen.runs_overview(ctx, listing), {"seen": first["seen"]}) == {"same": True}
    make("two")
    assert len(screen.if_changed(screen.runs_overview(ctx, listing), {"seen": first["seen"]})["runs"]) == 2


def test_runs_beside_each_other_and_only_those_of_the_project(ctx, make):
    one = make("one", {1: {SCORE: 0.0, KL: 0.0}, 2: {SCORE: 1.0, KL: 4.0}})
    two = make("two", {1: {SCORE: 0.5, KL: 0.25, GOLD: 2.0}})
    found = screen.comparison(ctx, {"runs": [two, one, two, 999], "metric": KL})
    assert [run["id"] for run in found["runs"]] == [two, one]
    assert found["runs"][1]["points"] == [[1, 0.0], [2, 4.0]]
    assert found["runs"][1]["score"] == [[0.0, 0.0, 1, 1], [2.0, 1.0, 2, 2]]
    assert found["runs"][0]["gold"] == [[0.5, 2.0, 1, 1]]
    assert found["names"] == [GOLD, KL, SCORE]
    assert screen.comparison(ctx, {"runs": [two, one], "metric": KL, "seen": found["seen"]}) == {"same": True}
    assert "runs" in screen.comparison(ctx, {"runs": [two, one], "metric": SCORE, "seen": found["seen"]})
    new_project(ctx.db)
    assert screen.comparison(ctx, {"runs": [one]})["runs"] == []


def test_at_most_so_many_runs_and_only_a_list(ctx, make):
    ids = [make(f"run {i}") for i in range(MAX_RUNS + 1)]
    assert len(screen.comparison(ctx, {"runs": ids})["runs"]) == MAX_RUNS
    with pytest.raises(ConfigError, match="Reload"):
        screen.comparison(ctx, {"runs": "all"})


def test_distance_is_the_root_of_the_kl_and_never_of_a_negative_one():
    kl = [(1, -0.5), (2, 4.0), (3, math.nan), (4, 9.0)]
    score = [(1, 1.0), (2, 2.0), (3, 3.0), (4, math.inf), (5, 5.0)]
    assert frontier(kl, score) == [[0.0, 1.0, 1, 1], [2.0, 2.0, 2, 2]]
    assert frontier([], score) == []


def test_steps_of_a_longer_run_are_put_together():
    steps = range(1, 10)
    found = frontier([(i, float(i)) for i in steps], [(i, 10.0 * i) for i in steps])
    assert found[0] == [round(math.sqrt(1.5), 4), 15.0, 1, 2]
    assert found[-1] == [3.0, 90.0, 9, 9]
    assert len(found) == 5
    many = range(1, 1001)
    assert len(frontier([(i, 1.0) for i in many], [(i, 1.0) for i in many])) == 16


def test_up_to_eight_steps_each_one_is_a_point():
    steps = range(1, 9)
    found = frontier([(i, float(i * i)) for i in steps], [(i, float(i)) for i in steps])
    assert found == [[float(i), float(i), i, i] for i in steps]


def test_only_what_differs(ctx, make):
    ids = make("one", beta=0.1, cliprange=0.2), make("two", beta=0.3, cliprange=None)
    chosen = [store.get_run(ctx.db, run_id) for run_id in ids]
    rows = {row["name"]: row for row in setting_differences(ctx.db, chosen)}
    assert set(rows) == {"beta", "cliprange"}
    assert rows["beta"]["values"] == ["0.1", "0.3"]
    assert rows["cliprange"]["values"] == ["0.2", "none"]
    assert "KL penalty" in rows["beta"]["about"]
    assert setting_differences(ctx.db, chosen[:1]) == []


def test_a_knob_turned_on_the_way_is_a_difference_and_a_pause_is_not(ctx, make):
    ids = make("one", {1: {SCORE: 0.0}}, beta=0.1), make("two", {1: {SCORE: 0.0}}, beta=0.1)
    for kind, payload in ((EventKind.PAUSE, {}), (EventKind.SET, {"name": "beta", "value": 0.5})):
        store.mark_event_applied(ctx.db, store.add_event(ctx.db, ids[1], kind, payload).id, 1)
    (row,) = setting_differences(ctx.db, [store.get_run(ctx.db, run_id) for run_id in ids])
    assert row["name"] == "changed while it ran"
    assert row["values"] == ["nothing", "beta 0.1 → 0.5 after step 1"]


def test_what_a_run_that_never_began_has_no_record_of_is_no_difference(ctx, make):
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


def test_an_old_record_without_a_setting_had_its_default(ctx, make):
    old, new = (store.get_run(ctx.db, make(name)) for name in ("old", "new"))
    del old.config["beta"]
    assert setting_differences(ctx.db, [old, new]) == []
    assert compare_runs(ctx.db, [old, new], "no/such")["runs"][0]["points"] == []


def test_rename_resume_and_delete(ctx, make, monkeypatch):
    monkeypatch.setattr("rlhf_lab.jobs.engine_process.ensure_engine", lambda *_: None)
    run_id = make("one", status=RunStatus.STOPPED)
    folder = ctx.home / "runs" / str(run_id)
    folder.mkdir(parents=True)
    assert (
        screen.handle_action(ctx, {"do": "rename", "run": run_id, "name": " <b>two</b> "})
        == f'Run {run_id} is called "<b>two</b>" now.'
    )
    assert store.get_run(ctx.db, run_id).name == "<b>two</b>"
    with pytest.raises(ConfigError, match="1 to 80"):
        screen.handle_action(ctx, {"do": "rename", "run": run_id, "name": "  "})
    assert "goes on" in screen.handle_action(ctx, {"do": "resume", "run": run_id})
    (job,) = queue.jobs(ctx.db, kinds=[JobKind.TRAIN_POLICY])
    assert job.payload == {"run_id": run_id}
    with pytest.raises(StoreError, match="stop it"):
        screen.handle_action(ctx, {"do": "delete", "run": run_id})
    queue.cancel(ctx.db, job.id)
    store.set_run_status(ctx.db, run_id, RunStatus.STOPPED)
    assert "deleted" in screen.handle_action(ctx, {"do": "delete", "run": run_id})
    assert not folder.exists()
    assert shown(ctx)["runs"] == []


@pytest.mark.parametrize(
    "said", [{}, {"do": "rename"}, {"do": "rename", "run": "x"}, {"do": "rename", "run": 9}], ids=str
)
def test_what_cannot_be_read_is_refused(ctx, make, said):
    with pytest.raises(ConfigError):
        screen.handle_action(ctx, said)


def test_an_unknown_word_and_a_run_of_another_project_are_refused(ctx, make):
    run_id = make("one")
    with pytest.raises(ConfigError, match='"launch"'):
        screen.handle_action(ctx, {"do": "launch", "run": run_id})
    new_project(ctx.db)
    with pytest.raises(ConfigError, match="another project was opened"):
        screen.handle_action(ctx, {"do": "delete", "run": run_id})
    open_project(ctx.db, 1)
    assert len(shown(ctx)["runs"]) == 1


def test_labels_are_offered_from_the_cache_and_nothing_stays_in_the_home(ctx, tmp_path):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    offers = DownloadService(ctx, tmp_path / "cache")
    offer = offers.create({"what": "labels", "source": "all", "ties": "keep"})
    lines = Path(offer["path"]).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 5
    assert {json.loads(line)["source"] for line in lines} == {"simulated"}
    assert (offer["name"], offer["bytes"]) == ("labels-project-1.jsonl", Path(offer["path"]).stat().st_size)
    assert Path(offer["path"]).is_relative_to(tmp_path / "cache")
    with pytest.raises(LabelError, match="no human labels"):
        offers.create({"what": "labels", "source": "human", "ties": "keep"})
    assert list((ctx.home / "exports").iterdir()) == []


def test_labels_of_one_annotator_are_offered_and_of_nobody_there_are_none(ctx, tmp_path):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    ctx.scheduler.request_judge_labels(ctx.project.id, "gloomy", 3)
    offers = DownloadService(ctx, tmp_path / "cache")
    for names, count in (([], 8), (["judge:gloomy"], 3), (["judge:gloomy", "judge:cheerful"], 8)):
        said = {"what": "labels", "source": "simulated", "ties": "keep", "annotators": names}
        lines = Path(offers.create(said)["path"]).read_text(encoding="utf-8").splitlines()
        assert len(lines) == count
        assert {json.loads(line)["annotator"] for line in lines} <= set(names or ["judge:gloomy", "judge:cheerful"])
    with pytest.raises(LabelError, match="no simulated labels"):
        offers.create({"what": "labels", "source": "simulated", "ties": "keep", "annotators": ["nobody"]})
    for names in ("judge:gloomy", [3], None):
        with pytest.raises(ConfigError, match="named no annotators"):
            offers.create({"what": "labels", "source": "simulated", "ties": "keep", "annotators": names})


def test_labels_are_offered_without_names(ctx, tmp_path):
    pair = lease_pairs(ctx.db, ctx.project.id, "Ann", get_labelling_config(ctx.db, ctx.project.id))[0].pair
    cast_vote(ctx.db, Vote("u1", pair.id, "Ann", Source.HUMAN, Choice.FIRST, True))
    offers = DownloadService(ctx, tmp_path / "cache")
    said = {"what": "labels", "source": "human", "ties": "keep"}
    told = [Path(offers.create(said | {"names": names})["path"]).read_text(encoding="utf-8") for names in (True, False)]
    assert ['"Ann"' in lines for lines in told] == [True, False]


def test_a_run_is_offered_as_a_zip_of_all_its_files(ctx, make, tmp_path):
    run_id = make("one", {1: {SCORE: 0.5}})
    offer = DownloadService(ctx, tmp_path / "cache").create({"what": "run", "run": str(run_id)})
    with zipfile.ZipFile(offer["path"]) as bundle:
        names = bundle.namelist()
        assert bundle.read(f"run-{run_id}-metrics.csv").decode().split() == [f"step,{SCORE}", "1,0.5"]
    assert f"run-{run_id}-manifest.json" in names
    assert f"run-{run_id}-samples.jsonl" in names
    assert any(name.startswith("tensorboard/") for name in names)
    assert not any(Path(name).is_absolute() or ".." in name for name in names)


@pytest.mark.parametrize(
    "said",
    [
        {"what": "labels", "source": "mine", "ties": "keep"},
        {"what": "labels", "source": "all", "ties": "maybe"},
        {"what": "run", "run": ""},
        {"what": "adapter", "run": 1},
        {"what": "adapter", "run": 99},
        {"what": "reward-model"},
        {"what": "reward-model", "reward_model": 1},
        {"what": "/etc"},
        {},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_exported_is_said_in_words(ctx, make, tmp_path, said):
    make("one")
    with pytest.raises((ConfigError, StoreError, LabelError)):
        DownloadService(ctx, tmp_path / "cache").create(said)
    assert not list((ctx.home / "exports").glob("*"))


def test_another_projects_run_is_not_exported(ctx, make, tmp_path):
    run_id = make("one")
    new_project(ctx.db)
    with pytest.raises(ConfigError, match="Another project"):
        DownloadService(ctx, tmp_path / "cache").create({"what": "run", "run": run_id})


@pytest.fixture
def timers(monkeypatch):
    """What is to be done later: (seconds, what)."""
    found = []

    class Timer:
        daemon = False

        def __init__(self, seconds, what):
            self.wanted = (seconds, what)

        def start(self):
            assert self.daemon  # a page that ends waits for none
            found.append(self.wanted)

    monkeypatch.setattr("rlhf_lab.ui.services.downloads.threading.Timer", Timer)
    return found


def aged(path, seconds):
    at = time.time() - seconds
    os.utime(path, (at, at))


def test_offers_go_after_an_hour(ctx, tmp_path, timers):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 3)
    offers = DownloadService(ctx, tmp_path / "cache")
    said = {"what": "labels", "source": "all", "ties": "keep"}
    first = Path(offers.create(said)["path"])
    ((seconds, tidy),) = timers
    assert seconds == 3601
    aged(first, 3590)
    tidy()
    assert first.exists()
    assert Path(offers.create(said)["path"]) == first  # the same content: its hour begins again
    assert time.time() - first.stat().st_mtime < 60
    aged(first, 3601)
    tidy()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_page_that_starts_removes_what_an_earlier_one_left_for_an_hour(ctx, tmp_path):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 3)
    said = {"what": "labels", "source": "all", "ties": "keep"}
    old = Path(DownloadService(ctx, tmp_path / "cache").create(said)["path"])
    new = Path(DownloadService(ctx, tmp_path / "cache").create(said | {"format": "csv"})["path"])
    left, going_on = ctx.home / "exports" / "interrupted", ctx.home / "exports" / "going on"
    for folder in (left, going_on):
        folder.mkdir()
        (folder / "half").touch()
    aged(left, 3601)
    aged(old, 3601)
    DownloadService(ctx, tmp_path / "cache")
    assert [old.exists(), new.exists(), left.exists(), going_on.exists()] == [False, True, False, True]


def test_files_that_others_hold_in_gradios_cache_are_left_alone(ctx, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf_lab.ui.services.downloads.get_upload_folder", lambda: str(tmp_path))
    theirs = tmp_path / "hash" / "upload.csv"
    theirs.parent.mkdir()
    theirs.touch()
    aged(theirs, 7200)
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 3)
    offered = Path(DownloadService(ctx).create({"what": "labels", "source": "all", "ties": "keep"})["path"])
    assert theirs.exists()
    assert offered.is_relative_to(tmp_path / "rlhf-lab")


def test_an_act_asks_for_the_operator_where_a_secret_is_set(ctx, make):
    make("one")
    guarded = Context(ctx.home, ctx.db, "sesame")
    event, done = gr.EventData(None, {"at": 5, "do": "delete", "run": 1}), []

    def do(said):
        done.append(said["run"])
        return {"done": screen.handle_action(guarded, said)}

    assert "Only the operator" in operator_action(guarded, "wrong", event, do)["error"]
    assert done == []
    assert operator_action(guarded, "sesame", event, do) == {
        "at": 5,
        "done": "Run 1 is deleted, with its numbers and checkpoints.",
    }
    assert "not in the open project" in operator_action(guarded, "sesame", event, do)["error"]
