"""Background work while a page is open: samples pairs in advance, lets judges label, retrains reward models, resets demos and
deletes old chats.

Every second `Scheduler.run_once` reads the store and submits the jobs that are due to the engine. Its only state in memory is how
many labels judges still have to give.
"""

import logging
import threading
import time
from pathlib import Path
from typing import Any

from rlhf_lab.common.checkpoint_index import damaged_checkpoint_note, newest_intact_step
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, EngineState, JobKind, JobStatus, Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Project
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import engine_process, queue, run_lock
from rlhf_lab.jobs.answer_length import lacks_measurement
from rlhf_lab.jobs.demo import Demo
from rlhf_lab.jobs.judge_labelling import annotator_name_of, label_with_judge
from rlhf_lab.jobs.model_inspection import stop_token_ids
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.jobs.retraining import get_label_progress, is_retraining_due, submit_training
from rlhf_lab.judges.builtin import builtin_judge
from rlhf_lab.store.annotators import latest_annotators
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import texts_without_features
from rlhf_lab.store.pair_leases import count_active_annotators, count_pairs_ahead, fewest_free_pairs
from rlhf_lab.store.projects import count_pairs, get_labelling_config
from rlhf_lab.store.runs import runs
from rlhf_lab.store.votes import count_unvoted_pairs

log = logging.getLogger("rlhf_lab.scheduler")

SCHEDULE_INTERVAL_S = 1.0
FEATURE_CHECK_INTERVAL_S = 10.0
RETRY_AFTER_S = 30.0  # after a failed job, for example for a model that cannot be loaded
PAIR_POOL_SIZE = 24  # unlabelled pairs kept ready
POLICY_PAIR_POOL_SIZE = 8  # the same for pairs of the newest checkpoint, which the next checkpoint makes obsolete
PAIRS_PER_EXTRA_ANNOTATOR = 8  # additional pairs for each further person who is labelling
MAX_PAIRS_AHEAD = 256  # pairs without a vote, also leased ones: more than the engine writes while people judge them
MIN_PAIRS_PER_JOB = 16  # sampled in a few seconds
CHAT_LIFETIME_S = 3600.0  # time after which the texts of an inactive chat are deleted
MAX_JUDGE_LABELS = 1000  # largest number of labels in one request to a judge


class Scheduler:
    """A thread of the page's process that submits jobs and fulfils requests for simulated labels."""

    def __init__(self, home: Path, db: Database, demo: Demo | None = None) -> None:
        self.home, self.db, self.demo = home, db, demo
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="scheduler")
        self._lock = threading.Lock()
        self._pending_judge_labels: dict[tuple[int, str], int] = {}  # (project, judge) -> labels still to give
        self._features_checked_at = -FEATURE_CHECK_INTERVAL_S
        self._read_project_id: int | None = None  # the project whose votes were read in advance
        self._length_known: set[int] = set()  # projects for which no measurement of the length is due any more
        self._judging_projects: list[int] = []  # projects that a judge is labelling at this moment

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop_event.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def request_judge_labels(self, project_id: int, name: str, count: int) -> str:
        """Let a built-in judge label pairs: existing ones now, further ones as soon as they are sampled. Returns a notice.

        Raises ConfigError for an unknown judge.
        """
        judge = builtin_judge(name)
        count = min(max(count, 1), MAX_JUDGE_LABELS)
        with self._lock:
            self._judging_projects.append(project_id)
        try:
            labelled = sum(label_with_judge(self.db, project_id, judge, count).values())
            with self._lock:
                self._add_pending(project_id, name, count - labelled)
        finally:
            with self._lock:
                self._judging_projects.remove(project_id)
        if labelled < count:
            return (
                f"The judge {name} labelled {labelled} pairs (simulated) and continues when the engine has written "
                f"{count - labelled} more."
            )
        return f"The judge {name} labelled {labelled} pairs. They are marked as simulated and never mixed with yours."

    def forget_project(self, project_id: int) -> None:
        """Drop the pending labels of a deleted project."""
        with self._lock:
            for key in [key for key in self._pending_judge_labels if key[0] == project_id]:
                del self._pending_judge_labels[key]

    def _add_pending(self, project_id: int, name: str, count: int) -> None:
        pending = self._pending_judge_labels.get((project_id, name), 0) + count
        if pending > 0:
            self._pending_judge_labels[project_id, name] = pending
        else:
            self._pending_judge_labels.pop((project_id, name), None)

    def _run(self) -> None:
        while not self._stop_event.is_set():
            try:
                self.run_once()
            except LabError as error:
                log.warning("%s", error)
            except Exception:  # if this thread ended, nothing would be sampled or trained until the page is restarted
                log.exception("a round of the scheduler failed; the next one follows")
            self._stop_event.wait(SCHEDULE_INTERVAL_S)

    def run_once(self) -> None:
        """One iteration: submit the jobs that are due, and start an engine if jobs are waiting.

        Also reads the votes of a newly opened project, marks runs whose process has vanished, and resets a demo. No jobs are
        submitted while a reset is due.
        """
        project = pick_project(self.db, None)
        self._read_ahead(project)
        run_lock.mark_interrupted_runs(self.db, self.home)
        queue.remove_old_chats(self.db, CHAT_LIFETIME_S)
        if self.demo is None or self.demo.reset_if_due() or not self.demo.is_reset_due():
            open_jobs = queue.jobs(self.db, statuses=UNFINISHED_JOB_STATUSES)
            kinds = {job.kind for job in open_jobs if job.project_id == project.id}
            self._replenish_pairs(project, kinds)
            self._measure_length(project, kinds)
            self._continue_judge_labelling()
            self._submit_due_training(project, kinds)
        if queue.jobs(self.db, statuses=UNFINISHED_JOB_STATUSES, limit=1) or self._lacks_features(project):
            engine_process.ensure_engine(self.db, self.home)

    def _read_ahead(self, project: Project) -> None:
        """Read votes, reward models and the tokenizer's stop tokens into memory in advance, so that no visitor waits for it.

        200,000 votes take 2 s, the tokenizer of SmolLM2 about 1 s.
        """
        if project.id != self._read_project_id:
            get_label_progress(self.db, project.id)
            stop_token_ids(project.model)
            self._read_project_id = project.id

    def _lacks_features(self, project: Project) -> bool:
        """Whether some texts have no features yet, which an idle engine computes. Checks every FEATURE_CHECK_INTERVAL_S."""
        if time.monotonic() - self._features_checked_at < FEATURE_CHECK_INTERVAL_S:
            return False
        self._features_checked_at = time.monotonic()
        return bool(texts_without_features(self.db, project.id, 1))

    def _replenish_pairs(self, project: Project, kinds: set[JobKind]) -> None:
        if JobKind.SAMPLE_PAIRS in kinds or failed_recently(self.db, project.id, JobKind.SAMPLE_PAIRS):
            return
        config = get_labelling_config(self.db, project.id)
        checkpoint = newest_checkpoint(self.home, self.db, project.id) if config.texts == "policy" else None
        annotators = latest_annotators(self.db, project.id, 8) or ["nobody yet"]
        available = fewest_free_pairs(self.db, project.id, annotators, config, checkpoint=checkpoint)
        target = POLICY_PAIR_POOL_SIZE if checkpoint else PAIR_POOL_SIZE
        target += PAIRS_PER_EXTRA_ANNOTATOR * max(0, count_active_annotators(self.db, project.id) - 1)
        with self._lock:
            judge_backlog = max(
                (n for (pid, _), n in self._pending_judge_labels.items() if pid == project.id), default=0
            )
        room = MAX_PAIRS_AHEAD - count_pairs_ahead(self.db, project.id, checkpoint=checkpoint)
        if not judge_backlog and (available >= target or room <= 0):
            return
        min_count = POLICY_PAIR_POOL_SIZE if checkpoint else MIN_PAIRS_PER_JOB
        count = max(min_count, min(max(judge_backlog, target - available), 64))
        payload: dict[str, Any] = {"count": count if judge_backlog else min(count, room)}
        if config.sampling != "random":
            payload["sampling"] = config.sampling
        if checkpoint:
            payload["checkpoint"] = checkpoint
            _, run_id, step = checkpoint.split("/")
            if warning := damaged_checkpoint_note(run_folder(self.home, int(run_id)), int(step)):
                log.warning("run %s: %s", run_id, warning)
        queue.submit_once(self.db, JobKind.SAMPLE_PAIRS, project.id, payload)

    def _measure_length(self, project: Project, kinds: set[JobKind]) -> None:
        """Measure once how long a new project's answers are, after its first pairs were stored."""
        if project.id in self._length_known or JobKind.SAMPLE_PAIRS in kinds:
            return
        is_due = lacks_measurement(self.db, project)
        if is_due is None:
            return
        self._length_known.add(project.id)
        if is_due:
            queue.submit_once(self.db, JobKind.MEASURE_LENGTH, project.id, {})

    def _continue_judge_labelling(self) -> None:
        with self._lock:
            pending = dict(self._pending_judge_labels)
        for (project_id, name), count in pending.items():
            judge = builtin_judge(name)
            available = count_unvoted_pairs(self.db, project_id, annotator_name_of(judge))
            if available:
                labelled = sum(label_with_judge(self.db, project_id, judge, min(count, available)).values())
                with self._lock:
                    self._add_pending(project_id, name, -labelled)

    def _submit_due_training(self, project: Project, kinds: set[JobKind]) -> None:
        """Train on the labels of a source if enough are new; on simulated ones only after the judge has finished."""
        if JobKind.TRAIN_REWARD in kinds:
            return
        with self._lock:
            judging = project.id in self._judging_projects or any(
                pid == project.id for pid, _ in self._pending_judge_labels
            )
        for source in Source:
            if is_retraining_due(self.db, project.id, source) and not (judging and source is Source.SIMULATED):
                submit_training(self.db, project.id, source)
                return


def newest_checkpoint(home: Path, db: Database, project_id: int) -> str | None:
    """The newest intact checkpoint of the project's newest run that has one, as "run/ID/STEP"; None if there is none."""
    newest_steps = ((run.id, newest_intact_step(run_folder(home, run.id))) for run in runs(db, project_id)[:20])
    return next((f"run/{run_id}/{step}" for run_id, step in newest_steps if step is not None), None)


def failed_recently(db: Database, project_id: int, kind: JobKind) -> bool:
    """Whether the last job of a kind failed less than RETRY_AFTER_S ago: the next one would probably fail too."""
    recent_jobs = queue.jobs(db, project_id=project_id, kinds=[kind], limit=1)
    return (
        bool(recent_jobs)
        and recent_jobs[0].status is JobStatus.FAILED
        and 0 <= time.time() - recent_jobs[0].updated_at < RETRY_AFTER_S  # negative: the clock was set back
    )


def no_pair_message(db: Database, project_id: int) -> str:
    """A text for a person who has no pair to label: whether some are being sampled, and if not, why."""
    state_text, new_ones = (
        ("You have seen every pair", "new ones")
        if count_pairs(db, project_id)
        else ("There is no pair yet", "the first ones")
    )
    recent_jobs = queue.jobs(db, project_id=project_id, kinds=[JobKind.SAMPLE_PAIRS], limit=1)
    if recent_jobs and recent_jobs[0].status is JobStatus.FAILED:
        return f"{state_text}, and {new_ones} could not be written: {recent_jobs[0].error} It is retried automatically."
    status = engine_process.engine_state(db)
    if status.failed_starts > 1:
        return f"{state_text}. The engine, which writes {new_ones}, does not start; the top of the page says why."
    if status.state is EngineState.DEAD:
        is_gone = status.row is None or engine_process.is_gone(status.row)
        trouble = "ended; it is restarted automatically …" if is_gone else "does not respond: stop it under Project."
        return f"{state_text}. The engine, which writes {new_ones}, {trouble}"
    if status.state is not EngineState.ALIVE:
        return f"{state_text}. The engine, which writes {new_ones}, is starting …"
    return f"{state_text}. The engine is writing {new_ones} …"
