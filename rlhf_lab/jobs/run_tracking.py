"""Live logging of runs to trackers: the choice that a run records, and the start of the process that logs. No torch.

The process (engine/tracker_process.py) follows the store, as the page does, so a tracker that fails, is slow or hangs cannot
delay a step. The engine starts it for each run whose manifest names a tracker.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from rlhf_lab.common.process_env import module_environment
from rlhf_lab.common.records import TRACKER_KEY, Run
from rlhf_lab.errors import ConfigError

TRACK_VARIABLE = "RLHF_LAB_TRACK"  # replaces a missing option --track
OFF = "off"
DEFAULT_PROJECT = "rlhf-lab"
WAIT_S = 600  # for the process that still logs the part of the run before it was resumed
TRACK_HELP = (
    "log metrics and samples of each step to trackio, wandb or tensorboard, or to a project of yours with trackio:PROJECT or "
    f"wandb:PROJECT (default: {TRACK_VARIABLE}, otherwise {OFF}): docs/COMMAND_LINE.md"
)
#: Each tracker by the name of its package, with the variables that decide where its data go. A run records their values, because
#: the engine that logs it may have been started with others. None of them is a secret.
ROUTES = {
    "trackio": ("TRACKIO_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"),
    "wandb": ("WANDB_MODE", "WANDB_ENTITY", "WANDB_BASE_URL", "WANDB_DIR"),
    "tensorboard": (),
}


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
        project = project or DEFAULT_PROJECT
        if name not in ROUTES:
            raise ConfigError(f'There is no tracker "{name}"; choose one of {", ".join(ROUTES)}, or {OFF}.')
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", project):
            raise ConfigError(
                f'"{project}" cannot be the project of a tracker: use at most 100 letters, digits, - and _.'
            )
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(
                f"The run cannot be logged to {name}, which is not installed. Install it where the lab runs (pip install "
                f"{name}), or choose {OFF}."
            ) from None
        route = {variable: environment[variable] for variable in ROUTES[name] if environment.get(variable)}
        for variable, value in route.items():
            if re.search(r"token=|//[^/]*@", value):
                raise ConfigError(
                    f"{variable} contains a password or token, and runs record where they are logged. Give the address without "
                    "it; trackio reads a token from TRACKIO_WRITE_TOKEN, wandb its key from WANDB_API_KEY."
                )
        return cls(name, project, route)


def tracker_entry(choice: str | None = None) -> dict[str, Any]:
    """What a new run's manifest says about its tracker; {} if it is not logged. choice: of --track; None: TRACK_VARIABLE decides.

    Raises ConfigError.
    """
    text = (choice if choice is not None else os.environ.get(TRACK_VARIABLE, "")).strip()
    return {} if text in ("", OFF) else {TRACKER_KEY: asdict(Tracker.parse(text, os.environ))}


def start_tracking(home: Path, run: Run) -> subprocess.Popen[bytes] | None:
    """Start the process that logs a run; None if its manifest names no tracker. It ends by itself after the run, or after this
    process. Raises OSError."""
    if TRACKER_KEY not in run.manifest:
        return None
    tracker = Tracker(**run.manifest[TRACKER_KEY])
    environment = {name: value for name, value in module_environment().items() if name not in ROUTES[tracker.name]}
    command = [
        "track",
        str(run.id),
        "--to",
        f"{tracker.name}:{tracker.project}",
        "--home",
        str(home),
        "--wait",
        str(WAIT_S),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlhf_lab", *command], env={**environment, **tracker.route}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    threading.Thread(target=process.wait, daemon=True).start()  # otherwise it stays a zombie while this process runs
    return process
