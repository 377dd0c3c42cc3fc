"""Live logging to trackers: the choice that a run records, and the start of the process that logs. No torch.

The process (engine/tracker_process.py) follows the store, as the page does, so a tracker that fails, is slow or hangs cannot
delay a step. The engine starts it for each run whose manifest names a tracker.
"""

import importlib.metadata
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from rlhf_lab.common.paths import STORE_VARIABLE
from rlhf_lab.common.process_env import TRAINING_ENV, minimal_environment
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.records import TRACKER_KEY, Run
from rlhf_lab.errors import ConfigError, LabError
from rlhf_lab.store.database import Database
from rlhf_lab.store.filesystem import JOURNAL_VARIABLE
from rlhf_lab.store.runs import add_note, events, get_run

TRACK_VARIABLE = "RLHF_LAB_TRACK"  # replaces a missing option --track
OFF = "off"
DEFAULT_PROJECT = "rlhf-lab"
FAILED = "failed"  # in the payload of a note: it says how the tracker failed
WAIT_S = 600  # for the process that still logs the part of the run before it was resumed
_TRACK_HELP = (
    "to trackio, wandb or tensorboard, or to a project of yours with trackio:PROJECT or wandb:PROJECT "
    f"(default: {TRACK_VARIABLE}, otherwise {OFF}): docs/COMMAND_LINE.md"
)
TRACK_HELP = f"log metrics and samples of each step {_TRACK_HELP}"
TRACK_REWARD_MODEL_HELP = f"log the training {_TRACK_HELP}"
#: Each tracker by the name of its package, with the variables that decide where its data go. A run records their values, because
#: the engine that logs it may have been started with others. None of them is a secret.
ROUTES = {
    "trackio": ("TRACKIO_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"),
    "wandb": ("WANDB_MODE", "WANDB_ENTITY", "WANDB_BASE_URL", "WANDB_DIR"),
    "tensorboard": (),
}
#: What the process of a tracker gets of the environment besides a minimal one, as patterns in capitals: no other secrets.
PASSED_PATTERNS = (
    "TEMP", "TMP", STORE_VARIABLE, JOURNAL_VARIABLE, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
OWN_PATTERNS = {
    "trackio": ("TRACKIO_*", "HF_HOME", "XDG_CACHE_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
    "wandb": ("WANDB_*", "NETRC"),
    "tensorboard": (),
}
log = logging.getLogger("rlhf_lab.jobs")
MAX_PROCESSES = 3  # of 0.3 GB each; one whose tracker hangs lives for minutes after its run
_processes: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Tracker:
    """name: a key of ROUTES. project: of trackio and wandb. route: the values of the variables in ROUTES that are set."""

    name: str
    project: str
    route: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Self:
        """The tracker of an option NAME or NAME:PROJECT.

        Raises ConfigError for other values, a package that is not installed, and a password in the address of a server.
        """
        name, _, project = text.partition(":")
        tracker = cls._checked(name, project or DEFAULT_PROJECT, environment)
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(
                f"Nothing can be logged to {name}, which is not installed. Install it where the lab runs (pip install {name}), "
                f"or choose {OFF}."
            ) from None
        return tracker

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """The tracker in a run's manifest, which another program may have written: only what `parse` records, checked alike.

        Raises ConfigError.
        """
        values = [record.get(key) for key in ("name", "project", "route")] if isinstance(record, dict) else [None]
        if list(map(type, values)) != [str, str, dict]:
            raise ConfigError(
                "What the run records about its tracker is not what this lab records. Choose another tracker."
            )
        return cls._checked(*values)

    @classmethod
    def _checked(cls, name: str, project: str, variables: Mapping[str, Any]) -> Self:
        if name not in ROUTES:
            raise ConfigError(f'There is no tracker "{name[:100]}"; choose one of {", ".join(ROUTES)}, or {OFF}.')
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", project):
            raise ConfigError(
                f'"{project[:200]}" cannot be the project of a tracker: use at most 100 letters, digits, - and _.'
            )
        route = {variable: variables[variable] for variable in ROUTES[name] if variables.get(variable)}
        for variable, value in route.items():
            if not isinstance(value, str) or re.search("[\0\ud800-\udfff]", value):
                raise ConfigError(f"{variable} has a value that no variable can have. Choose another tracker.")
            if re.search(r"token=|//[^/]*@", value):
                raise ConfigError(
                    f"{variable} contains a password or token, and runs record where they are logged. Give the address without "
                    "it; trackio reads a token from TRACKIO_WRITE_TOKEN, wandb its key from WANDB_API_KEY."
                )
        return cls(name, project, route)

    @property
    def option(self) -> str:
        """The value of --to for this tracker."""
        return self.name if self.name == "tensorboard" else f"{self.name}:{self.project}"

    def command(self, run_id: int) -> str:
        """That sends what this tracker lacks of a run."""
        return f"{lab_command()} track {run_id} --to {self.option}"

    def success(self, name: str, look: str) -> str:
        """Where data are logged. name: of the run in the tracker. look: how to look at it."""
        where = "" if self.name == "tensorboard" else f", project {self.project}, run {name}"
        return f"logged to {self.name}{where}; look at it {look}"

    def failure(self, run_id: int, reason: str) -> str:
        """What a run's history says of a tracker that failed."""
        return (
            f"{self.name} failed, and the run goes on without it ({reason}). To send the missing steps: "
            f"{self.command(run_id)}"
        )

    def reward_model_failure(self, reward_model_id: int, reason: str) -> str:
        return (
            f"{self.name} failed; the reward model is stored in the lab ({reason}). To send its training: {lab_command()} track "
            f"--reward-model {reward_model_id} --to {self.option}"
        )

    def environment(self) -> dict[str, str]:
        """The environment of the process that logs: what this tracker needs of the lab's, and the route."""
        patterns = (*PASSED_PATTERNS, *OWN_PATTERNS[self.name])
        if "TRACKIO_SPACE_ID" in self.route:
            patterns += ("HF_TOKEN",)
        passed = {
            name: value
            for name, value in os.environ.items()
            if name not in ROUTES[self.name] and any(fnmatchcase(name.upper(), pattern) for pattern in patterns)
        }
        return {**TRAINING_ENV, **minimal_environment(), **passed, **self.route}


def tracker_entry(choice: str | None = None) -> dict[str, Any]:
    """What a new run's manifest says about its tracker; {} if it is not logged. choice: of --track; None: TRACK_VARIABLE decides.

    Raises ConfigError.
    """
    text = (choice if choice is not None else os.environ.get(TRACK_VARIABLE, "")).strip()
    return {} if text in ("", OFF) else {TRACKER_KEY: asdict(Tracker.parse(text, os.environ))}


def start_tracking(db: Database, home: Path, run: Run) -> subprocess.Popen[bytes] | None:
    """Start the process that logs a run; None if its manifest names no tracker, or if MAX_PROCESSES live already, which is noted
    in the run's history. It ends by itself after the run, or after this process. If it ends in another way, that is noted, too.
    Raises OSError, ConfigError and StoreError."""
    if TRACKER_KEY not in run.manifest:
        return None
    tracker = Tracker.from_record(run.manifest[TRACKER_KEY])
    _processes[:] = [process for process in _processes if process.poll() is None]
    if len(_processes) >= MAX_PROCESSES:
        add_note(
            db, run.id, f"not logged to {tracker.name}: three runs are being logged already. To send it later: "
            f"{tracker.command(run.id)}", max(0, run.step), tracker=1,
        )  # fmt: skip
        return None
    started_at = time.time()
    process = subprocess.Popen(
        _command(home, tracker, str(run.id)), env=tracker.environment(), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _processes.append(process)
    arguments = (process, home, run.id, tracker, started_at)
    threading.Thread(target=_note_its_end, args=arguments, name=_thread_name(run.id), daemon=True).start()
    return process


def _command(home: Path, tracker: Tracker, *origin: str) -> list[str]:
    """The command of a process that logs. origin: its arguments for what it logs."""
    options = ("--to", tracker.option, "--home", str(home), "--wait", str(WAIT_S))
    return [sys.executable, "-m", "rlhf_lab", "track", *origin, *options]


def log_reward_model(home: Path, reward_model_id: int, entry: Mapping[str, Any]) -> str:
    """Log the training of a reward model, which has ended, in a process of its own, and wait for it. entry: of `tracker_entry`.

    Returns where it is logged, or how the tracker failed; "" without a tracker. Raises ConfigError.
    """
    if TRACKER_KEY not in entry:
        return ""
    tracker = Tracker.from_record(entry[TRACKER_KEY])
    done = subprocess.run(
        [*_command(home, tracker, "--reward-model", str(reward_model_id)), "--json"], env=tracker.environment(), check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",
    )  # fmt: skip
    try:
        said = json.loads(done.stdout.strip().rpartition("\n")[2])
        return str(said["error"]) if done.returncode else tracker.success(said["name"], said["look"])
    except (ValueError, KeyError, TypeError):  # it was ended, or a tracker printed last
        return tracker.reward_model_failure(reward_model_id, _end_reason(done.returncode))


def _thread_name(run_id: int) -> str:
    return f"tracker of run {run_id}"


def wait_for_tracking(db: Database, run_id: int, timeout_s: float) -> list[str]:
    """Let the process that this one started for a run's tracker finish; returns what the run's history says of trackers."""
    for thread in threading.enumerate():
        if thread.name == _thread_name(run_id):
            thread.join(timeout_s)
    return [str(event.payload["words"]) for event in events(db, run_id) if "tracker" in event.payload]


def _note_its_end(
    process: subprocess.Popen[bytes], home: Path, run_id: int, tracker: Tracker, started_at: float
) -> None:
    """Wait for the process of a tracker, in a thread; if it ended without success and without a note, note that."""
    code = process.wait()
    if code == 0:
        return
    reason = _end_reason(code)
    try:
        with Database.open(home) as db:
            if not any(FAILED in event.payload and event.created_at >= started_at for event in events(db, run_id)):
                add_note(
                    db, run_id, tracker.failure(run_id, reason), max(0, get_run(db, run_id).step), tracker=1, failed=1
                )
    except LabError as error:  # the run was deleted, or the database is gone
        log.warning("the tracker of run %d: %s, which could not be noted: %s", run_id, reason, error)


def _end_reason(code: int) -> str:
    """How a process ended. code: its return code."""
    if code >= 0:
        return f"its process ended with code {code}"
    killed = code == -getattr(signal, "SIGKILL", 9)
    return f"its process was ended by signal {-code}{', perhaps because memory ran out' if killed else ''}"
