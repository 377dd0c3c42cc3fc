"""Keeps the mirror of a lab on the Hub up to date, in a thread of the page's process.

Its settings come from the environment or from the page (jobs/mirror_control.py). If several pages use the same home, a lock
ensures that only one of them saves. If anything has changed, a save begins SAVE_INTERVAL_S after the previous one began; with up
to 20 s for the upload, the mirror is at most a minute old. This makes at most 90 commits per hour; the Hub allows 128 per
repository.
"""

import contextlib
import logging
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from rlhf_lab.backup.hub_mirror import HubMirror
from rlhf_lab.backup.hub_repository import HubRepository
from rlhf_lab.backup.mirror_records import read_state
from rlhf_lab.backup.mirror_settings import SETTINGS_FILE, MirrorSettings, read_settings
from rlhf_lab.backup.snapshot import CheckpointRule
from rlhf_lab.common.paths import STORE_VARIABLE, database_url_override
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder
from rlhf_lab.errors import ConfigError, HubUnavailableError, LabError, MirrorConflictError, MirrorError
from rlhf_lab.store.database import FILE_NAME, lab_exists

log = logging.getLogger("rlhf_lab.mirror")
MIRROR_VARIABLE = "RLHF_LAB_MIRROR"
TOKEN_VARIABLE = "HF_TOKEN"
CHECKPOINTS_VARIABLE = "RLHF_LAB_MIRROR_CHECKPOINTS"
TAKE_OVER_VARIABLE = "RLHF_LAB_MIRROR_TAKE_OVER"
LOCK_FILE = "mirror.lock"

POLL_INTERVAL_S = 2.0
SAVE_INTERVAL_S = 40.0
#: Interval of the check for files that change without the database, such as custom reward functions.
FULL_CHECK_INTERVAL_S = 300.0
UNCHANGED_NOTE_INTERVAL_S = 10.0
#: Delays after failures: 5, 10, 20, 40, 60 s, or longer if the Hub requests it. Half is random: labs must not retry in step.
FIRST_RETRY_S, MAX_RETRY_S = 5.0, 60.0
#: The page shows a warning if the last save is older than this, even if another one is in progress.
LATE_AFTER_S = 90.0
#: A restore is retried for this long while the Hub does not answer.
RESTORE_PATIENCE_S = 120.0
LAST_SAVE_TIMEOUT_S, LAST_SAVE_ATTEMPTS = 20.0, 4


def mirror_of(home: Path, environment: Mapping[str, str], entered: MirrorSettings | None = None) -> HubMirror | None:
    """The mirror that the environment names, otherwise the one entered on the page; None if there is neither.

    entered: the content of the form on the page; None means the stored settings. Raises ConfigError and StoreError.
    """
    name, token = environment.get(MIRROR_VARIABLE, "").strip(), ""
    if not name:
        settings = entered or read_settings(home)
        if settings is None:
            return None
        name, token = settings.repository, settings.token
    if environment.get(TOKEN_VARIABLE, "").strip():
        token = ""  # the Hub's client reads the variable
    if database_url_override() is not None:
        raise ConfigError(
            f"A mirror saves a home with its lab.db, and {STORE_VARIABLE} puts the tables elsewhere. Save that database with its "
            f"own tools, do not set {MIRROR_VARIABLE}, and delete {home / SETTINGS_FILE} if it is there."
        )
    rule = environment.get(CHECKPOINTS_VARIABLE, "").strip() or CheckpointRule.NEWEST
    if rule not in list(CheckpointRule):
        raise ConfigError(f'{CHECKPOINTS_VARIABLE} is "{rule}". Choose {", ".join(CheckpointRule)}.')
    return HubMirror(
        home,
        HubRepository(name, token or None),
        checkpoints=CheckpointRule(rule),
        take_over=environment.get(TAKE_OVER_VARIABLE) == "1",
    )


def restore_home(mirror: HubMirror, report: Callable[[str], None]) -> None:
    """Restore an empty home before the lab opens it. Raises MirrorError, which explains how to start without the mirror."""
    if lab_exists(mirror.home):
        return
    deadline, delays = time.monotonic() + RESTORE_PATIENCE_S, _RetryDelays()
    with _home_lock(mirror.home):
        while True:
            try:
                if mirror.restore():
                    report(f"The lab was restored from {mirror.repository.name} on the Hub.")
                return
            except HubUnavailableError as error:
                delay = delays.next(error.retry_after_s)
                if time.monotonic() + delay > deadline:
                    raise MirrorError(_restore_failure(mirror, str(error))) from error
                report(f"{mirror.repository.name}: {error}. It is tried again in {delay:.0f} s.")
                time.sleep(delay)
            except (LabError, OSError) as error:
                raise MirrorError(_restore_failure(mirror, str(error))) from error


def _restore_failure(mirror: HubMirror, reason: str) -> str:
    return (
        f"The lab could not be restored from {mirror.repository.name}: {reason.rstrip('.')}. Nothing was changed. Start it "
        f"again when that is solved. To begin an empty lab, which is not saved to the Hub, start it without {MIRROR_VARIABLE} "
        f"(if it was entered on the page: without {SETTINGS_FILE} in the home)."
    )


@contextlib.contextmanager
def _home_lock(home: Path) -> Iterator[None]:
    """Ensure that only one process restores an empty home. Raises MirrorError if another one does."""
    try:
        make_private_folder(home)
        with FileLock(home / LOCK_FILE, timeout=RESTORE_PATIENCE_S, mode=PRIVATE_FILE):
            yield
    except Timeout as error:
        raise MirrorError(
            f"Another process is restoring {home}. Wait for it, or end it, and start this one again."
        ) from error
    except OSError as error:
        raise MirrorError(
            f"The home {home} cannot be used: {error.strerror or error}. Check that it is a folder on a disk with free space "
            "that you may write to, or choose another with --home."
        ) from error


class _RetryDelays:
    """Seconds to wait after each failure in a row."""

    def __init__(self) -> None:
        self._failures = 0

    def next(self, least: float) -> float:
        delay: float = min(FIRST_RETRY_S * 2**self._failures, MAX_RETRY_S) * random.uniform(0.5, 1.0)
        self._failures += 1
        return max(delay, least)

    def reset(self) -> None:
        self._failures = 0


class MirrorLoop:
    """The thread that saves the lab. `run_once` is one iteration."""

    def __init__(self, mirror: HubMirror) -> None:
        self.mirror = mirror
        self._lock = FileLock(mirror.home / LOCK_FILE, timeout=0, mode=PRIVATE_FILE, thread_local=False)
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")
        self._delays = _RetryDelays()
        self._has_conflict = False
        self._saves_at_end = True
        self._connection: sqlite3.Connection | None = None
        self._saved_version: int | None = None  # `_database_version` at the last save
        self._next_save_at = self._full_check_at = self._note_at = 0.0  # time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Save the latest changes, unless that takes too long, and end the thread."""
        self._stop_event.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LAST_SAVE_TIMEOUT_S)

    def end(self) -> None:
        """End the thread without another save. Waits for a save in progress."""
        self._saves_at_end = False
        self._stop_event.set()

    @property
    def is_saving_page(self) -> bool:
        """Whether this page is the one that saves the home."""
        return self._lock.is_locked

    @property
    def has_conflict(self) -> bool:
        """Whether saving has stopped because another lab has saved to the repository."""
        return self._has_conflict

    def take_over(self) -> None:
        """Replace what another lab has saved. Call it only while `has_conflict`: the thread does not use the mirror then."""
        self.mirror.allow_take_over()
        self._next_save_at, self._saved_version = 0.0, None
        self._has_conflict = False

    def _run(self) -> None:
        while not self._stop_event.wait(POLL_INTERVAL_S):
            self.run_once()
        for _ in range(LAST_SAVE_ATTEMPTS if self._saves_at_end else 0):
            self._next_save_at = 0.0
            self.run_once()
            is_other_page_saving = not self._lock.is_locked
            if is_other_page_saving or self._has_conflict or self._saved_version == self._database_version():
                break
            time.sleep(FIRST_RETRY_S / 2)
        self._lock.release()

    def run_once(self) -> None:
        """Save if that is due, this process holds the lock, and no other lab has saved to the repository.

        Raises nothing, because nothing would be saved after the thread had ended.
        """
        try:
            self._save_if_due()
        except MirrorConflictError as error:
            self._has_conflict = True
            self._note_problem(str(error))
        except HubUnavailableError as error:
            delay = self._delays.next(error.retry_after_s)
            self._next_save_at = time.monotonic() + delay
            self._note_problem(f"{_capitalised(str(error))}. It is tried again by itself.")
        except LabError as error:
            self._next_save_at = time.monotonic() + MAX_RETRY_S
            self._note_problem(str(error))
        except Exception as error:
            log.exception("a save to the Hub failed")
            self._next_save_at = time.monotonic() + MAX_RETRY_S
            self._note_problem(f"Saving failed ({type(error).__name__}); the log of the lab says more.")

    def _save_if_due(self) -> None:
        try:
            if not self._lock.is_locked:
                self._lock.acquire()
                self.mirror.read_state()
        except Timeout:  # another page of this home saves it
            return
        now = time.monotonic()
        if self._has_conflict or now < self._next_save_at:
            return
        moment, version = time.time(), self._database_version()
        if version == self._saved_version and now < self._full_check_at:
            if now >= self._note_at:
                self.mirror.note_unchanged(moment)
                self._note_at = now + UNCHANGED_NOTE_INTERVAL_S
            return
        self.mirror.save()
        self._delays.reset()
        self._saved_version = version
        self._next_save_at = now + SAVE_INTERVAL_S
        self._full_check_at = now + FULL_CHECK_INTERVAL_S

    def _note_problem(self, message: str) -> None:
        log.warning("not saved to %s: %s", self.mirror.repository.name, message)
        with contextlib.suppress(MirrorError):  # the disk is full; the message is in the log
            self.mirror.note_problem(message)

    def _database_version(self) -> int:
        """A number that changes with every transaction of other connections."""
        if self._connection is None:
            self._connection = sqlite3.connect(self.mirror.home / FILE_NAME, check_same_thread=False)
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class MirrorView:
    """What a page shows about the mirror.

    saved_at: time of the last save (seconds since 1970); None: nothing is saved yet. age_s: seconds since then. is_late: whether
    these are more than LATE_AFTER_S.
    """

    repository: str
    saved_at: float | None
    age_s: float | None
    problem: str
    is_late: bool


def mirror_view(home: Path, repository: str) -> MirrorView:
    state = read_state(home)
    if state is None or state.repository != repository:
        return MirrorView(repository, None, None, "", False)
    age_s = None if state.saved_at is None else max(0.0, time.time() - state.saved_at)
    return MirrorView(repository, state.saved_at, age_s, state.problem, age_s is not None and age_s > LATE_AFTER_S)


def stop_on_sigterm() -> None:
    """Treat SIGTERM like Ctrl-C, so that the page saves before it ends. A Space is sent SIGTERM when it is restarted."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
