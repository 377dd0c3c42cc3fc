"""The real Hub client with a local Hub server: inspection, progress, broken connections, resuming, no Hub."""

import os
import time

import pytest
from support.fake_hub import model, safetensors
from support.hub_server import CHUNK, COMMIT, HubServer
from support.slow_hub import PARTS, slow_hub

from rlhf_lab.errors import ModelError
from rlhf_lab.jobs.hub_download import DownloadStatus, ModelDownloader, cached_bytes
from rlhf_lab.jobs.model_inspection import inspect_model
from rlhf_lab.jobs.project_setup import new_project

NAME = "someone/small"
WAIT = 30.0


@pytest.fixture
def hub(tmp_path, monkeypatch):
    server = HubServer()
    server.models[NAME] = model(tmp_path / "remote")
    safetensors(tmp_path / "remote" / "model.safetensors", [2000, 8])  # 64 kB
    (tmp_path / "remote" / "notes.md").write_text("no file that the lab needs")
    (tmp_path / "remote" / "onnx").mkdir()
    (tmp_path / "remote" / "onnx" / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", CHUNK // 2)  # the client's unit of progress
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)  # before it resumes
    with server.use(monkeypatch, tmp_path / "cache").running():
        yield server


def wait_for_bytes(downloads, least):
    limit = time.monotonic() + WAIT
    while (now := downloads.progress()).downloaded_bytes < least:
        assert time.monotonic() < limit, now
        time.sleep(0.02)
    return now


def finish(downloads, hub):
    hub.go_on.set()
    downloads.wait(WAIT)
    return downloads.progress()


@pytest.mark.parametrize("part", PARTS)
def test_a_hub_that_answers_without_end_holds_no_check_of_a_model(hub, monkeypatch, part):
    monkeypatch.setattr("rlhf_lab.common.hub_errors.DEADLINE_S", 0.5)
    with slow_hub(part) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        with pytest.raises(ModelError, match=r"cannot be reached \(it has not answered completely within"):
            inspect_model(NAME)


def test_progress_while_a_file_arrives_and_the_model_is_here_afterwards(hub, db):
    facts, downloads = inspect_model(NAME), ModelDownloader()
    sizes = dict(facts.files_to_download)
    assert set(sizes) == {"config.json", "model.safetensors", "tokenizer.json"}
    hub.go_on.clear()
    downloads.start(facts, lambda folder: "Made.")
    now = wait_for_bytes(downloads, sizes["config.json"] + sizes["tokenizer.json"] + 1)
    assert (now.status, now.total_bytes) == (DownloadStatus.RUNNING, sum(sizes.values()))
    assert now.downloaded_bytes < now.total_bytes
    assert finish(downloads, hub).message == "Made."
    hub.is_down = True  # although no page requests it
    found = inspect_model(NAME)
    assert (found.files_to_download, found.folder.name) == ((), COMMIT)
    assert len(new_project(db, model=NAME).model_hash) == 64


def test_a_connection_that_breaks_is_resumed_where_it_broke(hub):
    facts, downloads = inspect_model(NAME), ModelDownloader()
    hub.breaks = 2
    before = len(hub.requests)
    downloads.start(facts, lambda folder: "Made.")
    assert finish(downloads, hub).message == "Made."
    del hub.requests[:before]
    assert hub.transfers("model.safetensors") == ["", f"bytes={CHUNK}-", f"bytes={2 * CHUNK}-"]
    here = inspect_model(NAME).folder / "model.safetensors"
    assert here.read_bytes() == (hub.models[NAME] / "model.safetensors").read_bytes()


def test_after_a_failure_only_the_files_that_are_missing_are_fetched(hub, monkeypatch):
    monkeypatch.setattr("rlhf_lab.jobs.hub_download.MAX_WORKERS", 1)
    facts, downloads = inspect_model(NAME), ModelDownloader()
    hub.go_on.clear()
    downloads.start(facts, lambda folder: "")
    wait_for_bytes(downloads, dict(facts.files_to_download)["config.json"] + 1)
    hub.is_down = True
    downloads.wait(WAIT)
    failed = downloads.progress()
    assert failed.status is DownloadStatus.FAILED
    assert "was interrupted" in failed.message
    assert "Start it again" in failed.message
    hub.is_down, hub.requests[:] = False, []
    downloads.start(facts, lambda folder: "Made.")
    assert finish(downloads, hub).message == "Made."
    assert hub.transfers("model.safetensors") == [""]
    assert hub.transfers("config.json") == []


def test_what_a_killed_process_left_does_not_count_as_progress(hub, tmp_path):
    downloads = ModelDownloader()
    blobs = tmp_path / "cache" / "models--someone--small" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "old.1234.incomplete").write_bytes(bytes(60_000))
    os.utime(blobs / "old.1234.incomplete", (1.0, 1.0))
    assert cached_bytes(NAME) == 60_000
    hub.go_on.clear()
    facts = inspect_model(NAME)
    downloads.start(facts, lambda folder: "Made.")
    now = wait_for_bytes(downloads, 300)
    assert now.downloaded_bytes < 60_000
    assert finish(downloads, hub).status is DownloadStatus.DONE


def test_a_cancelled_download_ends_while_a_file_arrives(hub):
    hub.go_on.clear()
    facts, downloads, made = inspect_model(NAME), ModelDownloader(), []
    downloads.start(facts, lambda folder: made.append(folder) or "")
    wait_for_bytes(downloads, 300)
    assert downloads.cancel()
    assert finish(downloads, hub).status is DownloadStatus.CANCELLED
    assert made == []


@pytest.mark.parametrize(
    ("is_down", "name", "words"),
    [
        (False, "someone/wrong", 'There is no model "someone/wrong" on the Hub, or it is private. Check the spelling'),
        (True, NAME, "The Hub cannot be reached"),
    ],
)
def test_a_wrong_repository_and_a_hub_that_does_not_answer(hub, is_down, name, words):
    hub.is_down = is_down
    with pytest.raises(ModelError, match=words):
        inspect_model(name)


def test_the_engine_finds_what_the_page_has_downloaded_also_without_the_hub(hub):
    from rlhf_lab.models.backbone import resolve_model_folder

    downloads = ModelDownloader()
    downloads.start(inspect_model(NAME), lambda folder: "Made.")
    assert finish(downloads, hub).message == "Made."
    hub.requests[:] = []
    here = resolve_model_folder(NAME)
    assert here.name == COMMIT
    assert [path for _, path, _ in hub.requests if "/resolve/" in path] == []  # it downloads nothing else
    hub.is_down = True
    assert resolve_model_folder(NAME) == here
