"""A model's files fetched from the Hub in a thread of the page, with progress; one at a time. No torch.

What has arrived stays in the Hub's cache: a download that was cancelled, or whose page ended, goes on from there.
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
from rlhf_lab.jobs.examine import ModelFacts

log = logging.getLogger("rlhf_lab.download")
WORKERS = 4


class DownloadStatus(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Progress:
    """held, total: bytes. words: what came of it, or what failed and what to do. eta_s: None while it cannot be told."""

    model: str
    status: DownloadStatus
    held: int
    total: int
    eta_s: float | None
    words: str


class _CancelledError(Exception):
    pass


class Downloads:
    """`start`, then look at `progress`; `then` is called with the folder when all is there, and says what came of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: ModelFacts | None = None
        self._status = DownloadStatus.DONE
        self._words = ""
        self._began = (0.0, 0)
        self._stop, self._cancellable = threading.Event(), False
        self._thread: threading.Thread | None = None

    def start(self, facts: ModelFacts, then: Callable[[Path], str]) -> None:
        """Raises EngineError while another goes on."""
        with self._lock:
            if self._facts is not None and self._status is DownloadStatus.RUNNING:
                raise EngineError(f"{self._facts.name} is being downloaded. Wait for it, or cancel it first.")
            self._facts, self._status, self._words = facts, DownloadStatus.RUNNING, ""
            self._began = (time.monotonic(), held(facts.name))
            self._stop, self._cancellable = threading.Event(), True
            self._thread = threading.Thread(
                target=self._run, args=(facts, then, self._stop), daemon=True, name="download"
            )
            self._thread.start()

    def cancel(self) -> bool:
        """False: there is nothing to cancel, or it is all here already."""
        with self._lock:
            if self._status is not DownloadStatus.RUNNING or not self._cancellable:
                return False
            self._stop.set()
            self._status = DownloadStatus.CANCELLED
            self._words = "Cancelled. What has arrived is kept for the next time."
            return True

    def progress(self) -> Progress | None:
        """How the last download is doing; None where there was none."""
        with self._lock:
            facts, status, words, (at, first) = self._facts, self._status, self._words, self._began
        if facts is None:
            return None
        total = facts.download_bytes
        have = min(held(facts.name), total) if status is not DownloadStatus.DONE else total
        rate = (have - first) / max(time.monotonic() - at, 1e-3)
        eta = (total - have) / rate if status is DownloadStatus.RUNNING and rate > 0 else None
        return Progress(facts.name, status, have, total, eta, words)

    def wait(self, timeout: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, facts: ModelFacts, then: Callable[[Path], str], stop: threading.Event) -> None:
        try:
            folder = fetch(facts, stop)
            with self._lock:
                if stop.is_set():
                    return
                self._cancellable = False  # or a project could be made of what is said to be cancelled
            status, words = DownloadStatus.DONE, then(folder)
        except _CancelledError:
            return
        except LabError as error:
            status, words = DownloadStatus.FAILED, str(error)
        except Exception as error:  # the client raises many kinds
            log.warning("download of %s failed", facts.name, exc_info=True)
            full = isinstance(error, OSError) and error.errno == 28
            why = "the disk is full: free some space" if full else f"{type(error).__name__}: check the network"
            status, words = (
                DownloadStatus.FAILED,
                f"The download broke off ({why}). Ask for it again to go on from there.",
            )
        with self._lock:
            if not stop.is_set():
                self._status, self._words = status, words


def fetch(facts: ModelFacts, stop: threading.Event) -> Path:
    """Download the files of a model into the Hub's cache; its folder. Raises what the client raises."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    class Watched(tqdm):  # the client's only seam that is called while bytes arrive
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]  # tqdm has no annotations

        def update(self, n: float | None = 1) -> bool | None:
            if stop.is_set():
                raise _CancelledError
            drawn: bool | None = super().update(n)
            return drawn

    names = [file for file, _ in facts.files]
    return Path(
        snapshot_download(
            facts.name, revision=facts.revision or None, allow_patterns=names, max_workers=WORKERS, tqdm_class=Watched
        )
    )


def held(name: str) -> int:
    """Bytes of a Hub id in the cache, half-fetched files included."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    found = 0
    for path in (Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model") / "blobs").glob("*"):
        try:
            found += path.stat().st_size
        except OSError:  # renamed this very moment: the next look sees it
            continue
    return found
