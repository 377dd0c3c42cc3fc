"""What happens by itself while a page is open: pairs are written ahead, judges label, reward models are retrained.

`Scheduler.run` looks at the store every second and submits jobs; it does no work of its own and keeps nothing in memory that
matters, except what a judge still has to label.
"""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.common.checkpoint_index import damaged_checkpoint_note, newest_intact_step
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, EngineState, JobKind, JobStatus, Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Job, Project
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import engine_process, queue, run_lock
from rlhf_lab.jobs.judge_labelling import annotator_name_of, judge_name_of, label_with_judge
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.judges.builtin import builtin_judge
from rlhf_lab.store.annotators import latest_annotators
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import count_live_labels
from rlhf_lab.store.pair_leases import count_active_annotators, count_free_pairs
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.runs import runs
from rlhf_lab.store.votes import count_unvoted_pairs, vote_counts, voters

log = logging.getLogger("rlhf_lab.steward")

SCHEDULE_INTERVAL_S = 1.0
RETRY_AFTER_S = 30.0  # between two tries to write pairs, where the first failed (a model that cannot be loaded)
PAIR_POOL_SIZE = 24  # pairs kept ready for whoever labels
POLICY_PAIR_POOL_SIZE = 8  # of the newest checkpoint's pairs: the next checkpoint makes them old
PAIRS_PER_EXTRA_ANNOTATOR = 8  # more pairs for each further person who has one on screen
MIN_PAIRS_PER_JOB = 16  # pairs asked for at once: a batch is written in a few seconds
LABELS_PER_RETRAINING = 20  # labels from one reward model to the next
LABELS_FOR_FIRST_MODEL = 10  # labels that the first one needs

_pending_judge_labels: dict[tuple[int, str], int] = {}  # (project, judge) -> labels still asked for
_judging_projects: list[int] = []  # projects that a judge is labelling at this moment
_lock = threading.Lock()


@dataclass(frozen=True)
class LabelProgress:
    """The labels of a project (skips left out) and how far the next reward model is."""

    human: int
    simulated: int
    goal: int
    remaining: int
    newest_model_id: int


def get_label_progress(db: Database, project_id: int) -> LabelProgress:
    counts = vote_counts(db, project_id)
    human, simulated = (sum(counts[source].values()) - counts[source][Choice.SKIP] for source in Source)
    goal = training_goal(db, project_id, Source.HUMAN)
    newest = latest_reward_model(db, project_id, Source.HUMAN)
    return LabelProgress(human, simulated, goal, max(0, goal - human), 0 if newest is None else newest.id)


def request_judge_labels(db: Database, project_id: int, name: str, count: int) -> str:
    """Let a shipped judge label; what is not there yet it labels as soon as it is written. Returns what to tell the person.

    Raises ConfigError for an unknown judge.
    """
    judge = builtin_judge(name)
    count = min(max(count, 1), 1000)
    with _lock:
        _judging_projects.append(project_id)
    try:
        labelled = sum(label_with_judge(db, project_id, judge, count).values())
        with _lock:
            if labelled < count:
                _pending_judge_labels[project_id, name] = (
                    _pending_judge_labels.get((project_id, name), 0) + count - labelled
                )
    finally:
        with _lock:
            _judging_projects.remove(project_id)
    if labelled < count:
        return f"The judge {name} labelled {labelled} pairs (simulated) and goes on as the engine writes {count - labelled} more."
    return f"The judge {name} labelled {labelled} pairs. They are marked as simulated and never mixed with yours."


def clear_pending_judge_labels(project_id: int) -> None:
    """A project is gone; another one may get its number."""
    with _lock:
        for judge_key in [key for key in _pending_judge_labels if key[0] == project_id]:
            del _pending_judge_labels[judge_key]


class Scheduler:
    """A thread of the page's process."""

    def __init__(self, home: Path, db: Database) -> None:
        self.home, self.db = home, db
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="steward")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop_event.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stop_event.wait(SCHEDULE_INTERVAL_S):
            try:
                self.run_once()
            except LabError as error:
                log.warning("%s", error)
            except (
                Exception
            ):  # without this thread no pair is written and nothing learns until the page is started again
                log.exception("a look at what is due failed; the next one comes")

    def run_once(self) -> None:
        """One round: mark runs that lost their process, submit what is due, and see that an engine is there for what waits."""
        run_lock.mark_interrupted_runs(self.db, self.home)
        project = pick_project(self.db, None)
        open_jobs = queue.jobs(self.db, statuses=UNFINISHED_JOB_STATUSES)
        kinds = {job.kind for job in open_jobs if job.project_id == project.id}
        self._replenish_pairs(project, kinds)
        self._continue_judge_labelling()
        self._submit_due_training(project, kinds)
        if queue.jobs(self.db, statuses=UNFINISHED_JOB_STATUSES, limit=1):
            engine_process.ensure_engine(self.db, self.home)

    def _replenish_pairs(self, project: Project, kinds: set[JobKind]) -> None:
        if JobKind.SAMPLE_PAIRS in kinds or failed_recently(self.db, project.id, JobKind.SAMPLE_PAIRS):
            return
        config = get_labelling_config(self.db, project.id)
        checkpoint = newest_checkpoint(self.home, self.db, project.id) if config.texts == "policy" else None
        annotators = latest_annotators(self.db, project.id, 8) or ["nobody yet"]
        available = min(
            count_free_pairs(self.db, project.id, name, config, checkpoint=checkpoint) for name in annotators
        )
        target = POLICY_PAIR_POOL_SIZE if checkpoint else PAIR_POOL_SIZE
        target += PAIRS_PER_EXTRA_ANNOTATOR * max(0, count_active_annotators(self.db, project.id) - 1)
        with _lock:
            judge_backlog = max((n for (pid, _), n in _pending_judge_labels.items() if pid == project.id), default=0)
        if not judge_backlog and available >= target:
            return
        min_count = POLICY_PAIR_POOL_SIZE if checkpoint else MIN_PAIRS_PER_JOB
        payload: dict[str, Any] = {"count": max(min_count, min(max(judge_backlog, target - available), 64))}
        if config.sampling != "random":
            payload["sampling"] = config.sampling
        if checkpoint:
            payload["checkpoint"] = checkpoint
            _, run_id, step = checkpoint.split("/")
            if warning := damaged_checkpoint_note(run_folder(self.home, int(run_id)), int(step)):
                log.warning("run %s: %s", run_id, warning)
        queue.submit_once(self.db, JobKind.SAMPLE_PAIRS, project.id, payload)

    def _continue_judge_labelling(self) -> None:
        with _lock:
            pending = dict(_pending_judge_labels)
        for (project_id, name), count in pending.items():
            judge = builtin_judge(name)
            available = count_unvoted_pairs(self.db, project_id, annotator_name_of(judge))
            labelled = (
                sum(label_with_judge(self.db, project_id, judge, min(count, available)).values()) if available else 0
            )
            with _lock:
                remaining = _pending_judge_labels.get((project_id, name), 0) - labelled
                if remaining > 0:
                    _pending_judge_labels[project_id, name] = remaining
                else:
                    _pending_judge_labels.pop((project_id, name), None)

    def _submit_due_training(self, project: Project, kinds: set[JobKind]) -> None:
        """Train on the labels of a source when enough are new; on a judge's when it has finished."""
        if JobKind.TRAIN_REWARD in kinds:
            return
        with _lock:
            judging = project.id in _judging_projects or any(pid == project.id for pid, _ in _pending_judge_labels)
        for source in Source:
            if is_retraining_due(self.db, project.id, source) and not (judging and source is Source.SIMULATED):
                submit_training(self.db, project.id, source)
                return


def newest_checkpoint(home: Path, db: Database, project_id: int) -> str | None:
    """The newest whole checkpoint of the project's newest run that has one, as "run/ID/STEP"; None where there is none."""
    newest_steps = ((run.id, newest_intact_step(run_folder(home, run.id))) for run in runs(db, project_id)[:20])
    return next((f"run/{run_id}/{step}" for run_id, step in newest_steps if step is not None), None)


def failed_recently(db: Database, project_id: int, kind: JobKind) -> bool:
    """Whether the last job of a kind failed less than RETRY_S ago: the same again would fail for the same reason."""
    recent_jobs = queue.jobs(db, project_id=project_id, kinds=[kind], limit=1)
    return (
        bool(recent_jobs)
        and recent_jobs[0].status is JobStatus.FAILED
        and time.time() - recent_jobs[0].updated_at < RETRY_AFTER_S
    )


def no_pair_message(db: Database, project_id: int) -> str:
    """What to tell a person who has seen every pair: whether new ones are on their way, and if not, why."""
    recent_jobs = queue.jobs(db, project_id=project_id, kinds=[JobKind.SAMPLE_PAIRS], limit=1)
    if recent_jobs and recent_jobs[0].status is JobStatus.FAILED:
        return f"You have seen every pair, and new ones could not be written: {recent_jobs[0].error} It is tried again by itself."
    state = engine_process.engine_state(db).state
    if state not in (EngineState.ALIVE, EngineState.STARTING):
        return "You have seen every pair. The engine, which writes new ones, is not running; it is started again by itself …"
    return "You have seen every pair. The engine is writing new ones …"


def training_status(db: Database, project_id: int) -> str:
    """The reward model that is being learnt, waits, or is due, and from whose labels, in words; "" where there is none."""
    open_jobs = queue.jobs(
        db, project_id=project_id, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES, limit=1
    )
    if not open_jobs:
        due_sources = [source for source in Source if is_retraining_due(db, project_id, source)]
        label_origin = _label_origin(db, project_id, due_sources[0]) if due_sources else ""
        return f"A reward model from {label_origin} is due and begins by itself." if due_sources else ""
    job, label_origin = open_jobs[0], _label_origin(db, project_id, Source(open_jobs[0].payload["source"]))
    if job.status is JobStatus.RUNNING:
        return f"A reward model learns from {label_origin}."
    earlier_runs = [
        run_job
        for run_job in queue.jobs(db, kinds=[JobKind.TRAIN_POLICY], statuses=UNFINISHED_JOB_STATUSES)
        if run_job.id < job.id
    ]
    waiting_for = f"until run {earlier_runs[0].payload['run_id']} has ended" if earlier_runs else "for the engine"
    return f"A reward model from {label_origin} waits {waiting_for}."


def _label_origin(db: Database, project_id: int, source: Source) -> str:
    if source is Source.HUMAN:
        return "people's labels"
    names = ", ".join(sorted({judge_name_of(name) for name in voters(db, project_id, source)}))
    return f"labels simulated by {names}" if names else "simulated labels"


def is_retraining_due(db: Database, project_id: int, source: Source) -> bool:
    """Whether the labels of a source have grown enough for the next reward model."""
    counts = vote_counts(db, project_id)[source]
    label_count = sum(counts.values()) - counts[Choice.SKIP]
    if label_count < training_goal(db, project_id, source) or counts[Choice.FIRST] + counts[Choice.SECOND] < 2:
        return False
    recent_jobs = queue.jobs(db, project_id=project_id, kinds=[JobKind.TRAIN_REWARD], limit=1)
    return not (
        recent_jobs
        and recent_jobs[0].status is JobStatus.FAILED
        and recent_jobs[0].payload.get("labels") == label_count
    )


def training_goal(db: Database, project_id: int, source: Source) -> int:
    """The number of labels at which the next reward model is trained: so many more than the newest one's that still count."""
    newest = latest_reward_model(db, project_id, source)
    return (
        count_live_labels(db, project_id, newest.snapshot) + LABELS_PER_RETRAINING if newest else LABELS_FOR_FIRST_MODEL
    )


def submit_training(db: Database, project_id: int, source: Source, config: RewardConfig | None = None) -> Job:
    """Ask the engine for a reward model on the labels of one source, unless one is asked for already."""
    counts = vote_counts(db, project_id)[source]
    label_count = sum(counts.values()) - counts[Choice.SKIP]
    payload = {"source": source.value, "config": (config or RewardConfig()).to_dict(), "labels": label_count}
    return queue.submit_once(db, JobKind.TRAIN_REWARD, project_id, payload)
