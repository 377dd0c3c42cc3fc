"""Logs a run to a tracker: reads its steps from the store, and sends each one once. Runs in a process of its own. The training of
a reward model is a run of its own there.

The trackers are those of Accelerate (accelerate/tracking.py). Their names for the numbers are the ones that TRL's trainers give
them there (docs/FROM_TRL.md).
"""

import json
import logging
import math
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from filelock import FileLock, Timeout

from rlhf_lab import __version__
from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES
from rlhf_lab.common.paths import RUNS_FOLDER, run_folder
from rlhf_lab.common.records import RewardModelRow, Run, Sample
from rlhf_lab.errors import ClaimedError, LabError, StoreError, TrackerError
from rlhf_lab.exporters.json_io import portable_name
from rlhf_lab.jobs.run_control import open_job
from rlhf_lab.jobs.run_tracking import Tracker
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.run_metrics import metrics_since, sample_steps, samples_at
from rlhf_lab.store.runs import add_note, get_run

POLL_S = 1.0
TRACKING_FOLDER = "tracking"  # of a run; of a home for reward models
CALL_LIMIT_S = 300.0  # for one call of a tracker; an upload at the end of a run may take minutes
SAMPLE_COLUMNS = ("step", "prompt", "completion", "score", "gold")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_MAX_ERROR_CHARS = 300


@dataclass
class Position:
    """What a tracker has received of a run. step: the last one; -1: none. name: of the run in the tracker."""

    project: str
    name: str
    step: int = -1

    @classmethod
    def load(cls, file: Path, name: str, project: str) -> Self:
        """The stored position; the beginning, under this name, if there is none for this project."""
        try:
            position = cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            position = None
        if position is not None and position.project == project:
            return position
        return cls(project, name)


def unique_id(row: Run | RewardModelRow) -> str:
    """An id that no run or reward model of another lab has: its id and the time of its creation in milliseconds."""
    return f"{row.id}-{int(1000 * row.created_at):x}"


def start_backend(tracker: Tracker, unique: str, name: str, config: dict[str, Any], folder: Path) -> tuple[Any, str]:
    """Start one of Accelerate's trackers; returns it, and how to look at what it logs.

    unique, name: of the run in the tracker; if it exists there, it is continued. folder: for files that the tracker keeps here.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Accelerate, which imports torch, would occupy memory of the GPU
    from accelerate import PartialState, tracking

    PartialState(cpu=True)  # one process, whatever the environment says; Accelerate's loggers need it
    match tracker.name:
        case "trackio":
            backend = tracking.TrackioTracker(
                tracker.project, name=name, config=config, resume="allow", embed=False, private=True, auto_log_gpu=False,
                auto_log_cpu=False,
            )  # fmt: skip
            is_elsewhere = tracker.route.get("TRACKIO_SPACE_ID") or tracker.route.get("TRACKIO_SERVER_URL")
            look = "in its Space or server" if is_elsewhere else f"with: trackio show --project {tracker.project}"
        case "wandb":
            import wandb

            settings = wandb.Settings(
                console="off", disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True,
                x_disable_machine_info=True, x_save_requirements=False,
            )  # fmt: skip
            backend = tracking.WandBTracker(
                tracker.project, name=name, id=f"rlhf-lab-{unique}", config=config, resume="allow", save_code=False,
                settings=settings, dir=tracker.route.get("WANDB_DIR") or folder,
            )  # fmt: skip
            look = "on its page there; if wandb is offline, send the run's files with: wandb sync"
        case _:
            backend = tracking.TensorBoardTracker("tensorboard", folder)
            logs = RUNS_FOLDER if folder.name == TRACKING_FOLDER else TRACKING_FOLDER
            look = f"with: tensorboard --logdir {logs} (in the lab's home)"
    backend.start()
    return backend, look


def logged_value(tracker_name: str, samples: Sequence[Sample], step: int) -> Any:
    """The samples of a step as a table; TensorBoard has none and gets a text."""
    if tracker_name == "tensorboard":
        return "\n\n".join(map(sample_markdown, samples))
    rows = [[step, s.prompt, s.text, None if math.isnan(s.score) else s.score, s.gold] for s in samples]
    if tracker_name == "wandb":
        from wandb import Table
    else:
        from trackio import Table
    return Table(columns=list(SAMPLE_COLUMNS), data=rows)


def sample_markdown(sample: Sample) -> str:
    """Prompt and text as indented blocks, so that neither is rendered as Markdown or HTML."""
    score = "" if math.isnan(sample.score) else f"score {sample.score:.3f}, "
    gold = "" if sample.gold is None else f"gold {sample.gold:.3f}, "
    return f"{_indent(sample.prompt)}\n\n→ {score}{gold}seed {sample.seed}\n\n{_indent(sample.text)}"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def tracker_key(name: str) -> str:
    """The name of a metric in a tracker: TRL's trainers log through transformers, which writes train/ before all but eval/."""
    return name if name.startswith("eval/") else f"train/{name}"


def reward_model_steps(report: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """The training of a reward model as steps: the loss of each update, at the last one the numbers of its report.

    TRL's RewardTrainer has these names for loss and accuracies. Step 0 alone, if only the head was fitted.
    """
    numbers = {
        f"train/{key.removeprefix('train_')}" if key.startswith("train_") else f"eval/{key}": float(value)
        for key, value in report.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    steps = {step: {"train/loss": float(loss)} for step, loss in enumerate(report.get("loss") or (), 1)}
    last = max(steps, default=0)
    return list((steps | {last: steps.get(last, {}) | numbers}).items())


class _Logger(ABC):
    """Sends numbers to a tracker from a process of its own. subject: what messages call their origin. look: how to look at a
    reward model's training that was sent, else ""."""

    subject = look = ""

    def __init__(self, tracker: Tracker, folder: Path, start: Callable[..., tuple[Any, str]]) -> None:
        self._tracker, self._folder, self._start = tracker, folder, start
        self._folder.mkdir(parents=True, exist_ok=True)

    def execute(self, wait_s: float = 0.0) -> Position:
        """Send what the tracker lacks; returns what it has.

        Raises ClaimedError if another process does this already, for more than wait_s seconds, TrackerError if the tracker fails,
        and StoreError.
        """
        try:
            with FileLock(self._folder / f"{self._tracker.name}.lock", timeout=wait_s):
                return self._send_all()
        except Timeout:
            raise ClaimedError(
                f"Another process logs {self.subject} to {self._tracker.name} already. Wait until it has ended."
            ) from None
        except LabError:
            raise
        except Exception as error:
            raise TrackerError(self._failure(type(error).__name__, str(error))) from error

    @abstractmethod
    def _send_all(self) -> Position: ...

    @abstractmethod
    def _note_failure(self, reason: str) -> str:
        """Tell people that the tracker failed; returns what was said."""

    def _position_file(self, suffix: str = "") -> Path:
        return self._folder / f"{self._tracker.name}-{self._tracker.project}{suffix}.json"

    def _send_training(self, row: RewardModelRow, unique: str, name: str, folder: Path, suffix: str = "") -> Position:
        """The training of a reward model, unless this tracker has it. unique, name: of its run in the tracker. folder: of the
        tracker's files. suffix: of the file with the position."""
        file = self._position_file(suffix)
        position = Position.load(file, name, self._tracker.project)
        steps = [(step, values) for step, values in reward_model_steps(row.report) if step > position.step]
        if not steps:
            return position
        config = row.config | {"reward_model": row.id, "labels": len(row.snapshot.vote_ids), "rlhf_lab": __version__}
        with self._time_limit():
            backend, self.look = self._start(self._tracker, unique, position.name, config, folder)
            for step, values in steps:
                self._log(backend, step, values)
            backend.finish()
        position.step = steps[-1][0]
        write_file_atomically(file, json.dumps(asdict(position)))
        return position

    def _log(self, backend: Any, step: int, values: dict[str, Any]) -> None:
        options = {"commit": True} if self._tracker.name == "wandb" else {}  # otherwise it waits for the next step
        backend.log(values, step=step, **options)

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """End this process if the block takes longer than CALL_LIMIT_S: a call that hangs cannot be ended alone."""
        timer = threading.Timer(CALL_LIMIT_S, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self) -> NoReturn:
        try:
            print(self._failure(f"no answer for {CALL_LIMIT_S:g} s", ""), file=sys.stderr, flush=True)
        finally:
            os._exit(1)

    def _failure(self, kind: str, details: str) -> str:
        """Note that the tracker failed; returns the note and the details, without secrets of the environment.

        Everybody may read the note, and details can name files and accounts.
        """
        for name, value in os.environ.items():
            if len(value) >= 8 and any(word in name for word in _SECRET_WORDS):
                details = details.replace(value, "…")
        details = " ".join(details.split())[:_MAX_ERROR_CHARS]
        message = self._note_failure(kind)
        return f"{message}\n{details}" if details else message


class RewardModelLogger(_Logger):
    """Sends the training of a reward model, as a run of its own that belongs to no other."""

    def __init__(
        self, db: Database, home: Path, reward_model_id: int, tracker: Tracker,
        start: Callable[..., tuple[Any, str]] = start_backend,
    ) -> None:  # fmt: skip
        self._row = get_reward_model(db, reward_model_id)
        self._unique, self.subject = unique_id(self._row), f"reward model {reward_model_id}"
        super().__init__(tracker, home / TRACKING_FOLDER / f"reward-model-{self._unique}", start)

    def _send_all(self) -> Position:
        name = f"{self.subject} ({self._unique})"
        return self._send_training(self._row, f"reward-model-{self._unique}", name, self._folder)

    def _note_failure(self, reason: str) -> str:
        return self._tracker.reward_model_failure(self._row.id, reason)


class RunLogger(_Logger):
    """Sends the steps of a run to a tracker until the run ends, or the process that started this one. The training of its reward
    model is another run there."""

    def __init__(
        self,
        db: Database,
        home: Path,
        run_id: int,
        tracker: Tracker,
        start: Callable[..., tuple[Any, str]] = start_backend,
    ) -> None:
        self._db, self._run, self.subject = db, get_run(db, run_id), f"run {run_id}"
        super().__init__(tracker, run_folder(home, run_id) / TRACKING_FOLDER, start)
        self._position = self._load_position()
        self._backend: Any = None

    def _send_all(self) -> Position:
        """The steps that the tracker lacks, then each new one until the run ends."""
        self._position = self._load_position()
        if self._run.reward_model_id is not None:
            row, unique = get_reward_model(self._db, self._run.reward_model_id), unique_id(self._run)
            name, key = f"{self._run.name}: reward model {row.id} ({unique})", f"reward-model-{row.id}"
            self._send_training(row, f"{unique}-reward-{row.id}", name, self._folder / key, f"-{key}")
        self._follow()
        return self._position

    def _load_position(self) -> Position:
        name = f"{self._run.name} ({unique_id(self._run)})"
        return Position.load(self._position_file(), name, self._tracker.project)

    def _follow(self) -> None:
        parent = os.getppid()
        while True:
            is_last = os.getppid() != parent or not self._is_active()
            for step, metrics, samples in self._new_steps():
                self._send(step, metrics, samples)
            if is_last:
                break
            time.sleep(POLL_S)
        if self._backend is not None:
            with self._time_limit():
                self._backend.finish()

    def _is_active(self) -> bool:
        status = get_run(self._db, self._run.id).status
        return status in ACTIVE_RUN_STATUSES or open_job(self._db, self._run.id) is not None

    def _new_steps(self) -> Iterator[tuple[int, dict[str, float], list[Sample]]]:
        """Step, metrics and samples of each step after the position. A resumed run repeats steps, which are not sent again."""
        last = get_run(self._db, self._run.id).step  # a step that is recorded from now on is read whole the next time
        metrics = dict(metrics_since(self._db, self._run.id, self._position.step))
        sampled = {step for step in sample_steps(self._db, self._run.id) if step > self._position.step}
        for step in sorted(step for step in metrics.keys() | sampled if step <= last):
            yield step, metrics.get(step, {}), samples_at(self._db, self._run.id, step) if step in sampled else []

    def _send(self, step: int, metrics: dict[str, float], samples: Sequence[Sample]) -> None:
        with self._time_limit():
            if self._backend is None:
                self._backend = self._begin()
            values: dict[str, Any] = {tracker_key(k): v for k, v in metrics.items() if math.isfinite(v)}
            if samples:
                values["completions"] = logged_value(self._tracker.name, samples, step)
            self._log(self._backend, step, values)
        self._position.step = step
        write_file_atomically(self._position_file(), json.dumps(asdict(self._position)))

    def _begin(self) -> Any:
        """Start the tracker, and note in the run's history where its data are."""
        run, position = self._run, self._position
        config = run.config | {
            "run": run.id, "model": portable_name(get_project(self._db, run.project_id).model),
            "reward_model": run.reward_model_id, "rlhf_lab": __version__,
        }  # fmt: skip
        backend, look = self._start(self._tracker, unique_id(run), position.name, config, self._folder)
        add_note(self._db, run.id, self._tracker.success(position.name, look), max(0, position.step), tracker=1)
        return backend

    def _note_failure(self, reason: str) -> str:
        """Say in the run's history that the tracker failed."""
        message = self._tracker.failure(self._run.id, reason)
        try:
            add_note(self._db, self._run.id, message, max(0, self._position.step), tracker=1, failed=1)
        except StoreError as error:
            logging.getLogger("rlhf_lab.engine").warning("the failure could not be noted: %s", error)
        return message
