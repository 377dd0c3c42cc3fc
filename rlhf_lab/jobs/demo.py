"""Demo mode: visitors can start short runs, and everything that visitors made is removed at regular resets.

HOME/demo.json stores when demo mode began and when the last reset was. A reset keeps what the operator made
(store/visitor_data.py). It waits until no job is unfinished; once it is due, visitors cannot start anything new.
"""

import json
import logging
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus, Source
from rlhf_lab.common.paths import DEMO_FILE, run_folder
from rlhf_lab.common.private_files import PRIVATE_FILE
from rlhf_lab.common.records import REQUESTER_KEY, Job, Project, Run
from rlhf_lab.common.text import pluralize
from rlhf_lab.config.demo import DemoConfig
from rlhf_lab.config.policy import PRESETS, PolicyConfig
from rlhf_lab.errors import LabelError, StoreError
from rlhf_lab.jobs import queue, retraining, run_control
from rlhf_lab.jobs.time_estimate import duration_text
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.visitor_data import count_visitor_data, find_visitor_data, remove_visitor_data

log = logging.getLogger("rlhf_lab.demo")

#: New labels after which a visitor may start a training before the automatic one.
VISITOR_TRAINING_LABELS = 10
#: Of the labels and of the runs that bring a reset earlier, so that one address alone cannot remove the labels of others.
MAX_SHARE_OF_ADDRESS = 0.5
#: Visitors who labelled since the last reset, of an address and of all; further ones cannot label before the next.
MAX_LABELLERS_OF_ADDRESS, MAX_LABELLERS = 1_000, 50_000
RESET_DUE_MESSAGE = "The demo is about to be reset, and nothing new can start before that. Try again in a moment."


@dataclass(frozen=True)
class QueueState:
    """run_id: the visitor's unfinished run, or None. runs_before: unfinished runs ahead of it, or ahead of a run that they would
    start now. is_running: the engine is working on their run. refusal: why they cannot start a run now; "" if they can."""

    run_id: int | None
    runs_before: int
    is_running: bool
    refusal: str


class Demo:
    """The demo mode of one lab. operators: people whose labels a reset keeps; names of Hub accounts begin with @ (lower case)."""

    def __init__(self, home: Path, db: Database, config: DemoConfig, operators: Collection[str] = ()) -> None:
        """Starts or continues demo mode. Raises StoreError if its file cannot be used."""
        self.home, self.db, self.config, self.operators = home, db, config, operators
        self._lock = threading.Lock()
        self._began_at, self._last_reset_at = self._load_state()
        self._address_of: dict[
            str, str
        ] = {}  # of those who labelled since the last reset, while the page's process lasts
        self._runs_of: Counter[str] = Counter()  # by address; the same

    def _load_state(self) -> tuple[float, float]:
        path = self.home / DEMO_FILE
        try:
            if not path.exists():
                now = time.time()
                self._save_state(now, now)
            state = json.loads(path.read_text(encoding="utf-8"))
            return float(state["began_at"]), float(state["last_reset_at"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{path} cannot be used ({error}). Delete it to start demo mode again; earlier work of visitors is "
                "then kept."
            ) from error

    def _save_state(self, began_at: float, last_reset_at: float) -> None:
        state = json.dumps({"began_at": began_at, "last_reset_at": last_reset_at})
        write_file_atomically(self.home / DEMO_FILE, state, mode=PRIVATE_FILE)

    @property
    def reset_at(self) -> float:
        """The latest time at which the next reset is due (seconds since 1970)."""
        return self._last_reset_at + 3600 * self.config.reset_hours

    def is_reset_due(self) -> bool:
        if time.time() >= self.reset_at:
            return True
        max_labels = max(1, int(self.config.reset_labels * MAX_SHARE_OF_ADDRESS))
        labels, runs = count_visitor_data(
            self.db, self._last_reset_at, self.operators, max_labels, dict(self._address_of)
        )
        return labels >= self.config.reset_labels or runs >= self.config.reset_runs

    @contextmanager
    def labelling_from(self, visitor: str, address: str) -> Iterator[None]:
        """Store a visitor's label in this block; their address is remembered if no error is raised there.

        Nobody's label is stored without their address, so that one address never brings more than its share of a reset. Raises
        LabelError for a visitor who cannot be remembered. address: "" if unknown.
        """
        with self._lock:
            if address and visitor not in self._address_of:
                of_address = sum(other == address for other in self._address_of.values())
                if of_address >= MAX_LABELLERS_OF_ADDRESS or len(self._address_of) >= MAX_LABELLERS:
                    wait = duration_text(max(60.0, self.reset_at - time.time()))
                    raise LabelError(
                        "Too many people labelled since the demo was last reset, so your answer was not counted. The next "
                        f"reset is in at most {wait}."
                    )
            yield
            if address:
                self._address_of.setdefault(visitor, address)

    def check_open(self) -> None:
        """Raises LabelError while a reset is due."""
        if self.is_reset_due():
            raise LabelError(RESET_DUE_MESSAGE)

    def reset_if_due(self) -> bool:
        """Remove what visitors made if a reset is due and no job is unfinished. Returns whether it was removed.

        Files are deleted before rows, so that the next attempt still finds the rows if the process ends in between.
        """
        with self._lock:
            if not self.is_reset_due():
                return False
            data = find_visitor_data(self.db, self._began_at, self.operators)
            if data is None:
                return False
            folders = [run_folder(self.home, run_id) for run_id in data.run_ids]
            folders += [self.home / path for path in data.reward_models.values()]
            for folder in folders:
                if self.home.resolve() in folder.resolve().parents:
                    shutil.rmtree(folder, ignore_errors=True)
            if not remove_visitor_data(self.db, self._began_at, self.operators):
                return False
            self._last_reset_at = time.time()
            self._save_state(self._began_at, self._last_reset_at)
            self._address_of, self._runs_of = {}, Counter()
        for folder in folders:
            if folder.exists():
                log.warning("The reset could not delete all of %s. Delete it by hand.", folder)
        log.info("The demo was reset: %s removed.", pluralize(len(data.run_ids), "run"))
        return True

    def run_config(self, project: Project, *, steps: int, responses: int, tokens: int) -> PolicyConfig:
        """The preset with the settings of a visitor's run. Raises LabelError for a setting outside its limits."""
        limits = self.config
        for name, value, low, high in (
            ("steps", steps, 1, limits.max_steps),
            ("responses", responses, 4, limits.max_responses),
            ("tokens", tokens, 8, limits.max_tokens),
        ):
            if not low <= value <= high:
                raise LabelError(f"{name} = {value}: give a whole number from {low} to {high}.")
        return PolicyConfig.for_algorithm(
            "ppo", **PRESETS["lab"], steps=steps, batch_size=responses, max_new_tokens=tokens,
            temperature=project.temperature, seed=secrets.randbelow(2**31),
        )  # fmt: skip

    def start_run(self, project: Project, config: PolicyConfig, visitor: str, address: str = "") -> Run:
        """Queue a run with settings of `run_config`. Raises LabelError while this visitor cannot start one, and if their address
        has started its share of the runs that bring a reset; what is refused does not count. address: "" if unknown."""
        with self._lock:
            if refusal := self.queue_state(project, visitor).refusal:
                raise LabelError(refusal)
            max_runs = max(1, int(self.config.reset_runs * MAX_SHARE_OF_ADDRESS))
            if address and self._runs_of[address] >= max_runs:
                wait = duration_text(max(60.0, self.reset_at - time.time()))
                raise LabelError(
                    f"{pluralize(max_runs, 'run')} came from your network since the demo was last reset; more are not "
                    f"possible. The next reset is in at most {wait}."
                )
            run = run_control.start_visitor_run(self.db, self.home, project.id, config, visitor)
            self._runs_of[address] += 1
            return run

    def stop_run(self, visitor: str) -> int:
        """Stop the visitor's unfinished run; returns its id. Raises LabelError if they have none."""
        job = next((job for job in self._unfinished_runs() if job.payload.get(REQUESTER_KEY) == visitor), None)
        if job is None:
            raise LabelError("You have no run that is in progress or waiting.")
        run_id = int(job.payload["run_id"])
        run_control.stop(self.db, run_id)
        return run_id

    def queue_state(self, project: Project, visitor: str) -> QueueState:
        """What a visitor is shown about their run and the queue. visitor: "" for a visitor without a name."""
        jobs = self._unfinished_runs()
        position = next(
            (i for i, job in enumerate(jobs) if visitor and job.payload.get(REQUESTER_KEY) == visitor), None
        )
        if position is not None:
            run_id = int(jobs[position].payload["run_id"])
            is_running = jobs[position].status is JobStatus.RUNNING
            refusal = f"You already have a run: run {run_id}. Start another one when that run has ended."
            return QueueState(run_id, position, is_running, refusal)
        return QueueState(None, len(jobs), False, self._refusal(project, len(jobs)))

    def _refusal(self, project: Project, unfinished_runs: int) -> str:
        if self.is_reset_due():
            return RESET_DUE_MESSAGE
        if unfinished_runs >= self.config.max_queue:
            return f"The queue is full: {pluralize(unfinished_runs, 'unfinished run')}. Try again when one has ended."
        if run_control.default_reward_model(self.db, project.id) is not None:
            return ""
        remaining = retraining.get_label_progress(self.db, project.id).remaining
        if remaining:
            return f"A run needs a reward model. Label {pluralize(remaining, 'more pair')} under Label; then it trains by itself."
        return "A run needs a reward model. There are enough labels; it trains soon."

    def _unfinished_runs(self) -> list[Job]:
        """Oldest first."""
        jobs = queue.jobs(self.db, kinds=[JobKind.TRAIN_POLICY], statuses=UNFINISHED_JOB_STATUSES, limit=1000)
        return jobs[::-1]

    def check_training(self, project: Project) -> None:
        """Raises LabelError unless a visitor may train a reward model from people's labels now."""
        self.check_open()
        progress = retraining.get_label_progress(self.db, project.id)
        missing = visitor_training_goal(self.db, project.id) - progress.human
        if missing > 0:
            raise LabelError(f"Visitors can train a reward model after {pluralize(missing, 'more label')} by people.")


def visitor_training_goal(db: Database, project_id: int) -> int:
    """The number of people's labels at which visitors can train a reward model."""
    goal = retraining.training_goal(db, project_id, Source.HUMAN)
    if latest_reward_model(db, project_id, Source.HUMAN) is None:
        return goal
    return goal - retraining.LABELS_PER_RETRAINING + VISITOR_TRAINING_LABELS


def end_demo(home: Path) -> None:
    """Delete the file of demo mode. What visitors have made so far is kept for good. Raises StoreError."""
    try:
        (home / DEMO_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{home / DEMO_FILE} cannot be deleted ({error}). Delete it by hand.") from error
