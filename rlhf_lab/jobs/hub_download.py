"""Downloads of models from the Hub in a thread of the page, one at a time. No torch.

The client resumes a file when its connection breaks. Complete files stay in the Hub's cache, so a download that failed, was
cancelled, or was interrupted by the end of the page continues with the remaining files.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rlhf_lab.errors import EngineError, LabError
from rlhf_lab.jobs.model_inspection import ModelFacts

log = logging.getLogger("rlhf_lab.download")
MAX_WORKERS = 4


class DownloadStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class DownloadProgress:
    """message: the outcome, or the error and what to do. eta_s: None while unknown."""

    model: str
    status: DownloadStatus
    downloaded_bytes: int
    total_bytes: int
    eta_s: float | None
    message: str


class _CancelledError(Exception):
    pass


class ModelDownloader:
    """`start` a download, then poll `progress`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: ModelFacts | None = None
        self._status = DownloadStatus.DONE
        self._message = ""
        self._started_at, self._start_point = 0.0, (0.0, 0)
        self._cancel_event, self._cancellable = threading.Event(), False
        self._thread: threading.Thread | None = None

    def start(self, facts: ModelFacts, on_complete: Callable[[Path], str]) -> None:
        """Start a download. Raises EngineError while another one is running.

        on_complete: called with the model's folder; returns the message for `DownloadProgress`.
        """
        with self._lock:
            if self._facts is not None and self._status is DownloadStatus.RUNNING:
                raise EngineError(f"{self._facts.name} is being downloaded. Wait for it, or cancel it first.")
            self._facts, self._status, self._message = facts, DownloadStatus.RUNNING, ""
            self._started_at, started = time.time(), time.monotonic()
            self._start_point = (started, cached_bytes(facts.name, self._started_at))
            self._cancel_event, self._cancellable = threading.Event(), True
            self._thread = threading.Thread(
                target=self._run, args=(facts, on_complete, self._cancel_event), daemon=True, name="download"
            )
            self._thread.start()

    def cancel(self) -> bool:
        """Cancel the download. Returns False if none is running, or if all files have been downloaded already."""
        with self._lock:
            if self._status is not DownloadStatus.RUNNING or not self._cancellable:
                return False
            self._cancel_event.set()
            self._status = DownloadStatus.CANCELLED
            self._message = "Cancelled. Completed files are kept for the next time."
            return True

    def progress(self) -> DownloadProgress | None:
        """The state of the last download, or None if there was none."""
        with self._lock:
            facts, status, message = self._facts, self._status, self._message
            start_time, start_bytes = self._start_point
        if facts is None:
            return None
        total = facts.download_bytes
        received = (
            min(cached_bytes(facts.name, self._started_at), total) if status is not DownloadStatus.DONE else total
        )
        rate = (received - start_bytes) / max(time.monotonic() - start_time, 1e-3)
        eta = (total - received) / rate if status is DownloadStatus.RUNNING and rate > 0 else None
        return DownloadProgress(facts.name, status, received, total, eta, message)

    def wait(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, facts: ModelFacts, on_complete: Callable[[Path], str], cancel_event: threading.Event) -> None:
        try:
            folder = download_model(facts, cancel_event)
            with self._lock:
                if cancel_event.is_set():
                    return
                self._cancellable = False  # otherwise on_complete could create a project after `cancel`
            status, message = DownloadStatus.DONE, on_complete(folder)
        except _CancelledError:
            return
        except LabError as error:
            status, message = DownloadStatus.FAILED, str(error)
        except Exception as error:  # the client raises errors of many classes
            log.warning("download of %s failed", facts.name, exc_info=True)
            disk_full = isinstance(error, OSError) and error.errno == 28
            cause = "the disk is full: free some space" if disk_full else f"{type(error).__name__}: check the network"
            status, message = (
                DownloadStatus.FAILED,
                f"The download was interrupted ({cause}). Start it again: completed files are kept.",
            )
        with self._lock:
            if not cancel_event.is_set():
                self._status, self._message = status, message


def download_model(facts: ModelFacts, cancel_event: threading.Event) -> Path:
    """Download the files of a model into the Hub's cache and return their folder. Raises the client's errors."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class CancellableTqdm(tqdm):  # the progress bar is the client's only callback during a download
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            tqdm.__init__(self, *args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if cancel_event.is_set():
                raise _CancelledError
            refreshed: bool | None = super().update(n)
            return refreshed

    names = [file for file, _ in facts.files_to_download]
    return Path(
        snapshot_download(  # by the name of the branch: for a commit, the cache would not record which one is main
            facts.name,
            allow_patterns=names,
            max_workers=MAX_WORKERS,
            tqdm_class=CancellableTqdm,
        )
    )


def cached_bytes(name: str, started_at: float = 0.0) -> int:
    """Bytes of a model in the Hub's cache: complete files, and partial ones written since started_at (Unix time).

    Older partial files were left by killed processes; the client does not reuse them.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    total = 0
    for path in (Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model") / "blobs").glob("*"):
        try:
            status = path.stat()
        except OSError:  # renamed in between: the next poll sees it
            continue
        if path.suffix != ".incomplete" or status.st_mtime >= started_at:
            total += status.st_size
    return total
