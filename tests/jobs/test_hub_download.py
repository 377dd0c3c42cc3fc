"""Downloads in a thread: progress, completion, cancelling, failing, resuming. No network."""

import errno
import threading

import pytest
from support.fake_hub import FakeHub, model

from rlhf_lab.errors import EngineError, ModelError
from rlhf_lab.jobs.hub_download import DownloadStatus, ModelDownloader, cached_bytes
from rlhf_lab.jobs.model_inspection import inspect_model

NAME = "someone/small"
WAIT = 30.0


class SlowHub(FakeHub):
    """Waits at the first file of weights until `go_on` is set."""

    def __init__(self, cache):
        super().__init__(cache)
        self.arrived, self.go_on = threading.Event(), threading.Event()

    def between(self, file):
        if file == "model.safetensors":
            self.arrived.set()
            assert self.go_on.wait(WAIT)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    result = SlowHub(tmp_path / "cache").use(monkeypatch)
    result.models[NAME] = model(tmp_path / "remote")
    yield result
    result.go_on.set()


def test_a_download_from_beginning_to_end(hub):
    facts, downloads, done = inspect_model(NAME), ModelDownloader(), []
    assert downloads.progress() is None
    downloads.start(facts, lambda folder: done.append(folder) or "Made.")
    assert hub.arrived.wait(WAIT)
    now = downloads.progress()
    sizes = dict(facts.files_to_download)
    assert (now.status, now.total_bytes) == (DownloadStatus.RUNNING, facts.download_bytes)
    assert now.downloaded_bytes == sizes["config.json"] + sizes["model.safetensors"]
    assert now.eta_s >= 0
    with pytest.raises(EngineError, match="being downloaded"):
        downloads.start(facts, lambda folder: "")
    hub.go_on.set()
    downloads.wait(WAIT)
    end = downloads.progress()
    assert (end.status, end.message, end.downloaded_bytes) == (DownloadStatus.DONE, "Made.", facts.download_bytes)
    assert done == [hub.folder(NAME) / "snapshots" / "abc123"]
    assert inspect_model(NAME).files_to_download == ()


def test_cancelling_keeps_received_files(hub):
    facts, downloads, done = inspect_model(NAME), ModelDownloader(), []
    downloads.start(facts, lambda folder: done.append(folder) or "")
    assert hub.arrived.wait(WAIT)
    downloads.cancel()
    assert downloads.progress().status is DownloadStatus.CANCELLED
    hub.go_on.set()
    downloads.wait(WAIT)
    assert downloads.progress().status is DownloadStatus.CANCELLED
    assert done == []
    assert not (hub.folder(NAME) / "snapshots" / "abc123" / "tokenizer.json").exists()
    assert cached_bytes(NAME) > 0
    downloads.start(facts, lambda folder: done.append(folder) or "")
    downloads.wait(WAIT)
    assert len(done) == 1


def test_an_error_after_cancelling_stays_cancelled(hub):
    def between(file):
        hub.arrived.set()
        assert hub.go_on.wait(WAIT)
        raise ConnectionError("gone")

    hub.between = between
    downloads = ModelDownloader()
    downloads.start(inspect_model(NAME), lambda folder: "")
    assert hub.arrived.wait(WAIT)
    assert downloads.cancel()
    hub.go_on.set()
    downloads.wait(WAIT)
    assert downloads.progress().status is DownloadStatus.CANCELLED


def test_a_finished_download_cannot_be_cancelled(hub):
    outputs = []
    downloads = ModelDownloader()
    hub.go_on.set()
    downloads.start(inspect_model(NAME), lambda folder: outputs.append(downloads.cancel()) or "Made.")
    downloads.wait(WAIT)
    assert outputs == [False]
    assert downloads.progress().message == "Made."


def test_cancelling_without_a_download_does_nothing():
    downloads = ModelDownloader()
    assert not downloads.cancel()
    assert downloads.progress() is None


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (OSError(errno.ENOSPC, "no space"), "the disk is full"),
        (ConnectionError("gone"), "ConnectionError: check the network"),
    ],
)
def test_an_interrupted_download_can_be_continued(hub, error, match):
    facts, downloads = inspect_model(NAME), ModelDownloader()
    hub.error = error
    downloads.start(facts, lambda folder: "")
    downloads.wait(WAIT)
    now = downloads.progress()
    assert now.status is DownloadStatus.FAILED
    assert match in now.message
    hub.error = None
    hub.go_on.set()
    downloads.start(facts, lambda folder: "Made.")
    downloads.wait(WAIT)
    assert downloads.progress().message == "Made."


def test_an_error_after_the_download_is_reported(hub):
    def then(folder):
        raise ModelError("It is broken. Choose another.")

    downloads = ModelDownloader()
    hub.go_on.set()
    downloads.start(inspect_model(NAME), then)
    downloads.wait(WAIT)
    now = downloads.progress()
    assert (now.status, now.message) == (DownloadStatus.FAILED, "It is broken. Choose another.")


def test_cached_bytes_of_an_unknown_model_are_zero(hub):
    assert cached_bytes("no/such") == 0
