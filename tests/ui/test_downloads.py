"""Exports offered as downloads: what is written, what is refused, and when files are removed."""

import json
import os
import re
import shutil
import stat
import time
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest
from fake_runs import SCORE, a_run, step
from sqlalchemy import select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, LabelError, LabError, StoreError
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store import tables as t
from rlhf_lab.store.pair_leases import lease_pairs
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.store.run_metrics import add_outside_run
from rlhf_lab.store.runs import create_run
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.ui.runs import downloads
from rlhf_lab.ui.runs.downloads import ExportRequest, cache_folder, create_download, remove_old_files
from rlhf_lab.ui.shared.api import parse_payload

ALL_LABELS = {"kind": "labels", "source": "all"}


@pytest.fixture(autouse=True)
def gradio_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "a cache #1"))
    return tmp_path / "a cache #1"


@pytest.fixture
def create(ctx):
    """create(payload, **more): the download of an export."""
    return lambda payload, **more: create_download(ctx, parse_payload(ExportRequest, payload | more))


@pytest.fixture
def create_file(create):
    return lambda payload, **more: file_of(create(payload, **more))


def file_of(download):
    address = download["address"].removeprefix("gradio_api/file=")
    assert "#" not in address
    return Path(unquote(address))


def test_labels_are_served_from_the_cache_and_nothing_stays_in_the_home(ctx, create):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    download = create(ALL_LABELS)
    file = file_of(download)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["source"] for line in lines] == ["simulated"] * 5
    assert (download["name"], download["bytes"]) == ("labels-project-1.jsonl", file.stat().st_size)
    assert file.is_relative_to(cache_folder())
    with pytest.raises(LabelError, match="no human labels"):
        create(ALL_LABELS, source="human")
    assert list((ctx.home / "exports").iterdir()) == []


@pytest.mark.parametrize("kind", ["labels", "dataset"])
def test_csv_exports_warn_about_formulas(ctx, create, kind):
    """They are training data, so no apostrophe is put before them (tests/exporters/test_round_trip.py)."""
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    notes = {file_format: create(ALL_LABELS, kind=kind, format=file_format)["note"] for file_format in ("csv", "jsonl")}
    assert "A spreadsheet reads one that begins with =, +, - or @ as a formula" in notes["csv"]
    assert "formula" not in notes["jsonl"]


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
@pytest.mark.parametrize("kind", ["labels", "dataset"])
def test_other_users_of_the_computer_cannot_read_a_download(ctx, create_file, kind):
    before = os.umask(0o022)
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    file = create_file(ALL_LABELS, kind=kind)
    os.umask(before)
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(cache_folder().stat().st_mode)) == (0o600, 0o700)


def test_labels_of_chosen_annotators_are_exported(ctx, create_file, create):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    ctx.scheduler.request_judge_labels(ctx.project.id, "gloomy", 3)
    request = ALL_LABELS | {"source": "simulated"}
    for names, count in (([], 8), (["judge:gloomy"], 3), (["judge:gloomy", "judge:cheerful"], 8)):
        lines = create_file(request, annotators=names).read_text(encoding="utf-8").splitlines()
        assert len(lines) == count
        assert {json.loads(line)["annotator"] for line in lines} <= set(names or ["judge:gloomy", "judge:cheerful"])
    with pytest.raises(LabelError, match="no simulated labels"):
        create(request, annotators=["nobody"])
    for names in ("judge:gloomy", [3], None):
        with pytest.raises(ConfigError, match="no usable annotators"):
            create(request, annotators=names)


def test_labels_can_be_exported_without_names(ctx, create_file):
    pair = lease_pairs(ctx.db, ctx.project.id, "Ann", get_labelling_config(ctx.db, ctx.project.id))[0].pair
    cast_vote(ctx.db, Vote("u1", pair.id, "Ann", Source.HUMAN, Choice.FIRST, True))
    assert '"Ann"' in create_file(ALL_LABELS, names=True).read_text(encoding="utf-8")
    assert '"Ann"' not in create_file(ALL_LABELS, names=False).read_text(encoding="utf-8")


def test_the_page_gets_the_warnings_of_an_export(ctx, create, monkeypatch):
    def export(db, home, run_id, out_dir, *, on_note):
        (out_dir / "model").mkdir(parents=True)
        (out_dir / "model" / "README.md").write_text("card")
        on_note("Rounding changed it.")
        return out_dir / "model"

    monkeypatch.setattr("rlhf_lab.ui.runs.downloads.export_model", export)
    assert create({"kind": "model", "run": a_run(ctx).id})["note"] == "Rounding changed it."
    assert create({"kind": "run", "run": a_run(ctx).id})["note"] == ""


def test_a_run_is_exported_as_a_zip_of_all_its_files(ctx, create_file):
    run = a_run(ctx)
    step(ctx, run, 1, score=0.5)
    with zipfile.ZipFile(create_file({"kind": "run", "run": str(run.id)})) as bundle:
        names = bundle.namelist()
        header, values = bundle.read(f"run-{run.id}-metrics.csv").decode().split()
    assert dict(zip(header.split(","), values.split(","), strict=True))[SCORE] == "0.5"
    assert f"run-{run.id}-manifest.json" in names
    assert {f"run-{run.id}-samples.jsonl", f"run-{run.id}-tokens.jsonl"} <= set(names)
    assert not any(Path(name).is_absolute() or ".." in name for name in names)


def other_run(ctx, algorithm, **manifest):
    """A run without a reward model."""
    config = PolicyConfig.for_algorithm(algorithm).to_dict()
    return create_run(ctx.db, ctx.project.id, None, "r", config=config, manifest=manifest, total_steps=9)


def test_recipes_are_zips_of_a_folder(ctx, create_file):
    """Of labels, for the chosen trainer and of the chosen people; and of a run. What the page's other fields say is not used."""
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 5)
    ctx.scheduler.request_judge_labels(ctx.project.id, "gloomy", 3)
    request = ALL_LABELS | {"kind": "label-recipe", "layout": "implicit+chats", "format": "csv"}
    gloomy = {"trainer": "dpo", "annotators": ["judge:gloomy"]}
    for changes, config, count in (({}, "RewardConfig(", 8), (gloomy, "DPOConfig(", 3)):
        with zipfile.ZipFile(create_file(request, **changes)) as bundle:
            folder = f"recipe-labels-project-{ctx.project.id}"
            assert config in bundle.read(f"{folder}/train.py").decode()
            rows = [json.loads(line) for line in bundle.read(f"{folder}/data/train.jsonl").decode().splitlines()]
            assert len(rows) == count
            assert isinstance(rows[0]["prompt"], str)  # the embedded model has no chat template
            assert {name.split("/")[0] for name in bundle.namelist()} == {folder}
    votes = [row["id"] for row in ctx.db.fetch(select(t.votes.c.id).limit(2)).mappings()]
    run = other_run(ctx, "dpo", labels={"vote_ids": votes, "digest": "d", "source": "simulated", "weights": []})
    with zipfile.ZipFile(create_file({"kind": "recipe", "run": run.id})) as bundle:
        assert len(bundle.read(f"recipe-run-{run.id}/data/train.jsonl").decode().splitlines()) == 2
        assert f"recipe-run-{run.id}/model/config.json" in bundle.namelist()


def test_a_refused_recipe_says_what_to_do_on_the_page(ctx, create):
    """Without commands and options, which the page does not have."""
    outside = add_outside_run(ctx.db, ctx.project.id, "theirs", {"file": "log.csv", "sha256": "d"}, {1: {"a": 1.0}})
    for payload, remedy in (
        ({"kind": "recipe", "run": other_run(ctx, "sft").id}, "Export a recipe of the labels"),
        (
            {"kind": "recipe", "run": other_run(ctx, "ppo").id},
            "Choose another run, or export a recipe of the labels",
        ),
        ({"kind": "recipe", "run": a_run(ctx).id}, "Train it again"),
        ({"kind": "recipe", "run": outside}, "Choose a run of the lab"),
        ({"kind": "recipe", "run": 99}, "is not in the open project"),
        ({"kind": "recipe", "run": ""}, "Choose a run first"),
        ({"kind": "label-recipe", "source": "human"}, "choose those of another source or annotator"),
        ({"kind": "label-recipe"}, "choose human, simulated or all"),
        ({"kind": "label-recipe", "source": "all", "trainer": "ppo"}, "no usable trainer"),
    ):
        with pytest.raises((ConfigError, StoreError, LabelError), match=remedy) as refused:
            create(payload)
        assert not re.search(r"--|rlhf_lab|`", str(refused.value)), payload


@pytest.mark.parametrize(
    "payload",
    [
        {"kind": "labels", "source": "mine"},
        {"kind": "run", "run": ""},
        {"kind": "adapter", "run": 1},
        {"kind": "adapter", "run": 99},
        {"kind": "model", "run": 1},
        {"kind": "reward-model"},
        {"kind": "reward-model", "reward_model": 1},
        {"kind": "/etc"},
        {},
    ],
    ids=str,
)
def test_an_impossible_export_is_refused_and_leaves_no_file(ctx, create, payload):
    a_run(ctx)
    with pytest.raises((ConfigError, StoreError, LabelError)):
        create(payload)
    assert not list((ctx.home / "exports").glob("*"))


def test_runs_and_reward_models_of_another_project_are_not_exported(ctx, create):
    run = a_run(ctx)
    new_project(ctx.db)
    model = {"kind": "reward-model", "reward_model": run.reward_model_id}
    for payload in ({"kind": "run", "run": run.id}, {"kind": "recipe", "run": run.id}, model):
        with pytest.raises(LabError, match="nother project has been opened"):
            create(payload)


@pytest.fixture
def timers(monkeypatch):
    """(seconds, function) of every timer that was started."""
    started = []

    class Timer:
        daemon = False

        def __init__(self, seconds, function):
            self.arguments = (seconds, function)

        def start(self):
            assert self.daemon  # the server does not wait for it at its end
            started.append(self.arguments)

    monkeypatch.setattr("rlhf_lab.ui.runs.downloads.threading.Timer", Timer)
    return started


def set_age(path, seconds):
    modified_at = time.time() - seconds
    os.utime(path, (modified_at, modified_at))


def test_downloads_are_removed_after_an_hour(ctx, create_file, timers):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 3)
    file = create_file(ALL_LABELS)
    ((seconds, cleanup),) = timers
    assert seconds == 3601
    set_age(file, 3590)
    cleanup()
    assert file.exists()
    assert create_file(ALL_LABELS) == file  # the same content: its hour starts again
    assert time.time() - file.stat().st_mtime < 60
    set_age(file, 3601)
    cleanup()
    assert list(cache_folder().iterdir()) == []


def test_a_starting_page_removes_what_an_earlier_one_left_behind(ctx, create_file):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 3)
    old, new = create_file(ALL_LABELS), create_file(ALL_LABELS, format="csv")
    interrupted, in_progress = ctx.home / "exports" / "interrupted", ctx.home / "exports" / "in progress"
    for folder in (interrupted, in_progress):
        folder.mkdir()
        (folder / "half").touch()
    set_age(interrupted, 3601)
    set_age(old, 3601)
    remove_old_files(ctx.home)
    assert [path.exists() for path in (old, new, interrupted, in_progress)] == [False, True, False, True]


def test_labs_that_share_the_cache_clean_up_at_once(ctx, create_file, monkeypatch):
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 3)
    for file_format in ("jsonl", "csv", "parquet"):
        set_age(create_file(ALL_LABELS, format=file_format), 3601)
    is_expired = downloads._is_expired

    def while_another_lab_removes_all(path):
        result = is_expired(path)
        shutil.rmtree(cache_folder())
        return result

    monkeypatch.setattr(downloads, "_is_expired", while_another_lab_removes_all)
    remove_old_files(ctx.home)
    assert not cache_folder().exists()


def test_files_of_other_programs_in_gradios_cache_are_left_alone(ctx, create_file, gradio_cache):
    other_file = gradio_cache / "hash" / "upload.csv"
    other_file.parent.mkdir(parents=True)
    other_file.touch()
    set_age(other_file, 7200)
    ctx.scheduler.request_judge_labels(ctx.project.id, "cheerful", 3)
    file = create_file(ALL_LABELS)
    remove_old_files(ctx.home)
    assert other_file.exists()
    assert file.is_relative_to(gradio_cache / "rlhf-lab")
