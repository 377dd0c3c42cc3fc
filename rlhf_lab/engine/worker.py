"""The engine's main loop: runs one job at a time and short jobs in between, computes features when idle, and sends a heartbeat.

The path of a run that is started on the page: `run_control.start_run` creates the run and submits a TRAIN_POLICY job. The worker
claims it, and `_dispatch` calls its handler, `_train_policy`. That calls `PolicyRun.execute` (policy_run.py), which calls
`PolicyTrainer.run_step` for each step, or distributed_launch.py for several processes. Other jobs: job_handlers.py,
completions.py.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from rlhf_lab.common.enums import EventKind, JobKind, JobStatus, RunStatus
from rlhf_lab.common.progress import FractionCallback, ProgressCallback
from rlhf_lab.common.records import Job, Project
from rlhf_lab.common.timed_cache import TimedCache
from rlhf_lab.engine import distributed_launch
from rlhf_lab.engine.chat import ChatAnswer
from rlhf_lab.engine.completions import complete, explain
from rlhf_lab.engine.error_messages import explain_error
from rlhf_lab.engine.job_handlers import pairs_job, reward_job
from rlhf_lab.engine.job_progress import JobProgress, JobProgressCallback
from rlhf_lab.engine.length_measurement import measure_length
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.policy_run import HALT_EVENT_KINDS, POLL_INTERVAL_S, PolicyRun
from rlhf_lab.engine.text_features import FeatureBackfill
from rlhf_lab.engine.tournament import sample_contestants
from rlhf_lab.errors import ClaimedError, CorruptStoreError, LabError, LostStoreError, StoreError, TrainingError
from rlhf_lab.jobs import engine_process, queue, run_control, run_lock
from rlhf_lab.jobs.run_tracking import start_tracking
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.runs import add_event, get_run, pending_events, runs, set_run_status

INTERACTIVE_JOB_KINDS = (JobKind.COMPLETE, JobKind.EXPLAIN, JobKind.CHAT)  # a person is waiting for the result
SHORT_JOB_KINDS = (*INTERACTIVE_JOB_KINDS, JobKind.TOURNAMENT, JobKind.SAMPLE_PAIRS)
ALL_JOB_KINDS = tuple(JobKind)
HEARTBEAT_INTERVAL_S = 2.0
IDLE_POLL_INTERVAL_S = 0.1
DEFAULT_IDLE_EXIT_S = 600.0
RETRY_INTERVAL_S = 1.0
RESULT_RETRY_S = 300.0  # how long a result that cannot be stored is kept before its job fails
CANCEL_POLL_S = 0.5  # how often a job looks whether it was cancelled
PAIRS_REST_FACTOR = 1.0  # after sampling pairs, the training runs for at least this multiple of the sampling time
CHAT_UPDATE_S = 0.1  # interval at which the text of an answer is stored and a cancellation is noticed
CHAT_SLICE_S = (
    0.25,
    2.0,
)  # bounds of a chat slice during a training; within them it is as long as the training has run since the last slice

MODEL_SHARDED_MESSAGE = (
    "A training has sharded the model over its processes, and there is not enough memory to load it again. Try again "
    "when the training has ended, or stop it."
)

log = logging.getLogger("rlhf_lab.engine")


class _JobAborted(Exception):  # noqa: N818  not an error
    """Raised to abort a job other than a run, because the engine exits or the job was cancelled."""


class Worker:
    """Runs jobs until an exit is requested, or until it has been idle for `idle_exit_s` seconds with no page open."""

    def __init__(self, home: Path, db: Database, *, idle_exit_s: float = DEFAULT_IDLE_EXIT_S) -> None:
        self.model_cache = ModelCache(home, db)
        self._features = FeatureBackfill(self.model_cache)
        self.db = db
        self.idle_exit_s = idle_exit_s
        self.state = "idle"
        # A plain flag, since the SIGTERM handler sets it: an Event has a lock, which the interrupted thread may hold.
        self._exit_requested = False
        self._heartbeat_stopped = threading.Event()
        self.engine_id = engine_process.record_heartbeat(db, self.state)
        self._short_job_id: int | None = None
        self._next_pairs_at = 0.0
        self._chat: tuple[Job, ChatAnswer] | None = None  # an incomplete answer, started during a training
        self._chat_slice_ended_at = 0.0
        self._model_is_sharded = False
        self._should_halt: Callable[[], bool] = lambda: False

    def request_exit(self) -> None:
        """Ask the worker to exit. A run keeps its last complete step; a short job is requeued."""
        self._exit_requested = True

    def should_exit(self) -> bool:
        return self._exit_requested

    def run(self) -> None:
        """Work until an exit is requested. Jobs that a dead engine left behind are requeued first."""
        heartbeat = threading.Thread(target=self._heartbeat_loop, daemon=True, name="heartbeat")
        heartbeat.start()
        try:
            self._run_loop()
        finally:
            self._heartbeat_stopped.set()
            heartbeat.join()
        engine_process.mark_engine_stopped(self.db, self.engine_id)

    def _run_loop(self) -> None:
        for run_id in run_lock.mark_interrupted_runs(self.db, self.model_cache.home):
            log.info("run %d has lost its process and is interrupted", run_id)
        for interrupted in queue.requeue_interrupted(self.db):
            if interrupted.status is JobStatus.FAILED:
                log.error(
                    "job %d (%s) was interrupted too often: %s", interrupted.id, interrupted.kind, interrupted.error
                )
                if interrupted.kind is JobKind.TRAIN_POLICY:
                    self._mark_run_failed(int(interrupted.payload["run_id"]), interrupted.error)
                continue
            log.info("job %d (%s) was interrupted and is queued again", interrupted.id, interrupted.kind)
        last_active = time.monotonic()
        while not self._exit_requested:
            job = self._chat[0] if self._chat is not None else self._claim_next_job()
            if job is not None:
                self.run_job(job)
                last_active = time.monotonic()
            elif self._features.run_idle():
                last_active = time.monotonic()
            elif time.monotonic() - last_active > self.idle_exit_s and not self._page_open():
                log.info("nothing to do and no page open for %.0f s; exiting", self.idle_exit_s)
                break
            else:
                time.sleep(IDLE_POLL_INTERVAL_S)
        if self._chat is not None:
            self._record_with_retry(partial(self._requeue, self._chat[0]), "that an answer is queued again")

    def _claim_next_job(self) -> Job | None:
        """Claim the next job. If the database cannot be written, for example because the disk is full, it is retried later.

        Raises CorruptStoreError and LostStoreError, which end the engine.
        """
        try:
            return queue.claim(self.db, ALL_JOB_KINDS, self.engine_id)
        except (CorruptStoreError, LostStoreError):
            raise
        except StoreError as error:
            log.warning("no job could be taken: %s", error)
            time.sleep(RETRY_INTERVAL_S)
            return None

    def _page_open(self) -> bool:
        last_seen = engine_process.ui_last_seen_at(self.db)
        return last_seen is not None and time.time() - last_seen < self.idle_exit_s

    def _heartbeat_loop(self) -> None:
        process = psutil.Process()
        while not self._heartbeat_stopped.wait(HEARTBEAT_INTERVAL_S):
            try:
                device, memory_mib = self.model_cache.device_name, process.memory_info().rss / 2**20
                engine_process.record_heartbeat(self.db, self.state, device=device, memory_mib=memory_mib)
            except StoreError as error:
                log.warning("no heartbeat could be written: %s", error)

    def run_job(self, job: Job) -> None:
        """Run a job and record its outcome. An error ends the job, never the engine."""
        previous_state, self.state = self.state, f"{job.kind.value.replace('_', ' ')} (job {job.id})"
        if self._chat is None or self._chat[0] is not job:
            log.info("job %d (%s) begins", job.id, job.kind)
        try:
            result = self._dispatch(job)
            if result is not None:
                record = partial(queue.finish, self.db, job.id, result)
                self._record_with_retry(record, f"the result of job {job.id}", RESULT_RETRY_S)
                log.info("job %d is done", job.id)
        except _JobAborted:
            self._record_with_retry(partial(self._requeue, job), f"that job {job.id} is queued again")
        except Exception as error:
            # The message of a LabError is sufficient; only unexpected errors need a traceback.
            log.error("job %d failed: %s", job.id, error, exc_info=not isinstance(error, LabError))
            self._record_with_retry(partial(self._record_failure, job, error), f"that job {job.id} failed")
        finally:
            self.state = previous_state

    def _requeue(self, job: Job) -> None:
        requeued = queue.requeue(self.db, job.id)
        log.info("job %d %s", job.id, "is queued again" if requeued else "is not queued again: it was cancelled")

    def _record_failure(self, job: Job, error: Exception) -> None:
        """Mark the job as failed, and its run, unless another process trains that run."""
        message = explain_error(error)
        queue.fail(self.db, job.id, message)
        if job.kind is JobKind.TRAIN_POLICY and not isinstance(error, ClaimedError):
            self._mark_run_failed(int(job.payload["run_id"]), message)

    def _record_with_retry(self, record: Callable[[], object], description: str, limit_s: float = math.inf) -> None:
        """Record the outcome of a job. If it cannot be written (the disk is full), retry until an exit is requested.

        After such an exit the next engine treats the job as interrupted. limit_s: after so many seconds, raise the error.
        """
        deadline = time.monotonic() + limit_s
        while True:
            try:
                record()
            except (CorruptStoreError, LostStoreError):
                raise
            except StoreError as error:
                log.warning("%s could not be recorded: %s", description, error)
                if time.monotonic() > deadline:
                    raise
            else:
                return
            if self._exit_requested:
                return
            time.sleep(RETRY_INTERVAL_S)

    def _mark_run_failed(self, run_id: int, message: str) -> None:
        """Mark a run as failed, if it still exists. Raises StoreError if the database cannot be written."""
        if any(run.id == run_id for run in runs(self.db)):  # it may have been deleted
            set_run_status(self.db, run_id, RunStatus.FAILED, message)

    def _train_policy(self, job: Job, run_id: int) -> dict[str, object] | None:
        """Train a run, in this process or, with `processes` > 1, in separate ones."""
        should_halt = self._stop_checker(run_id)

        def run_short_job() -> None:
            self.run_short_job(job.project_id, should_halt)

        def stop_cancelled_run() -> None:
            add_event(self.db, run_id, EventKind.STOP, {})

        report_progress = self._progress_reporter(job, stop_cancelled_run)
        run = get_run(self.db, run_id)
        try:
            start_tracking(self.db, self.model_cache.home, run)
        except (LabError, OSError, ValueError) as error:  # a tracker does not stop a run
            log.warning("run %d is not logged to its tracker: %s", run_id, error)
        config, home = run.config | {"processes": run_control.process_count(self.db, run)}, self.model_cache.home
        with self._training_processes(config) as is_distributed:
            if is_distributed:
                status = distributed_launch.train_policy(
                    home, self.db, run_id, run_short_job=run_short_job, should_exit=self.should_exit,
                    report_progress=report_progress,
                )  # fmt: skip
            else:
                with run_lock.lock_run(home, run_id):
                    policy_run = PolicyRun(
                        self.model_cache, run_id, run_short_job=run_short_job, should_exit=self.should_exit,
                        report_progress=report_progress,
                    )  # fmt: skip
                    status = policy_run.execute()
        if status is RunStatus.INTERRUPTED:
            queue.requeue(self.db, job.id)
            return None
        return {"run_id": run_id, "status": status.value, "step": get_run(self.db, run_id).step}

    def _dispatch(self, job: Job) -> dict[str, object] | None:
        """Run the job and return its result; None if it was requeued for the next engine, cancelled, or continues later."""
        payload = job.payload
        if job.kind is JobKind.TRAIN_POLICY:
            return self._train_policy(job, int(payload["run_id"]))
        if self._model_is_sharded:
            raise TrainingError(MODEL_SHARDED_MESSAGE)
        assert job.project_id is not None
        project = get_project(self.db, job.project_id)
        raise_if_interrupted = self._interruption_checker(job)
        if job.kind is JobKind.EXPLAIN:
            return explain(self.model_cache, project, payload, on_progress=raise_if_interrupted)
        if job.kind in (JobKind.SAMPLE_PAIRS, JobKind.COMPLETE):
            handler = complete if job.kind is JobKind.COMPLETE else pairs_job
            on_fraction = self._fraction_reporter(job)
            return handler(
                self.model_cache, project, payload, on_progress=raise_if_interrupted, on_fraction=on_fraction
            )
        if job.kind is JobKind.CHAT:
            return self._answer_chat(job)
        if job.kind is JobKind.TOURNAMENT:
            report_progress = self._progress_reporter(job, self._raise_aborted)
            return sample_contestants(
                self.model_cache, project, payload, report_progress=report_progress,
                on_progress=raise_if_interrupted,
            )  # fmt: skip
        return self._run_beside_short_jobs(job, project, raise_if_interrupted)

    def _answer_chat(self, job: Job) -> dict[str, object] | None:
        """Sample an answer or, during a training, a slice of it. Returns None if it continues later or was cancelled."""
        assert job.project_id is not None
        answer = self._chat[1] if self._chat is not None else None
        self._chat = None
        answer = answer or ChatAnswer(self.model_cache, get_project(self.db, job.project_id), job.payload)
        now = time.monotonic()
        shortest, longest = CHAT_SLICE_S
        end_time = now + min(max(now - self._chat_slice_ended_at, shortest), longest)
        is_beside_training = self._short_job_id is not None
        stored_at, is_stopped = -CHAT_UPDATE_S, False

        def should_pause() -> bool:
            nonlocal stored_at, is_stopped
            if self._exit_requested:
                raise _JobAborted
            if time.monotonic() - stored_at >= CHAT_UPDATE_S:
                is_stopped = not queue.update_progress(
                    self.db, job.id, answer.progress, partial_result=answer.result(is_complete=False)
                )
                stored_at = time.monotonic()
            return is_stopped or (is_beside_training and time.monotonic() >= end_time)

        if answer.advance(should_pause):
            return answer.result(is_complete=True)
        if not is_stopped:
            self._chat = (job, answer)
        return None

    def _run_beside_short_jobs(
        self, job: Job, project: Project, raise_if_interrupted: ProgressCallback
    ) -> dict[str, object] | None:
        """Measure lengths or train a reward model; short jobs run in between, so that nobody waits for the end."""

        def on_progress() -> None:
            raise_if_interrupted()
            start_time = time.monotonic()
            self.run_short_job(job.project_id)
            self.model_cache.interrupted_s += time.monotonic() - start_time

        if job.kind is JobKind.MEASURE_LENGTH:
            return measure_length(self.model_cache, project, on_progress=on_progress)
        return self._train_reward(job, on_progress)

    def _train_reward(self, job: Job, on_progress: ProgressCallback) -> dict[str, object] | None:
        """Train a reward model, in this process or, with `processes` > 1, in separate ones."""
        with self._training_processes(job.payload.get("config", {})) as is_distributed:
            if is_distributed:
                return distributed_launch.train_reward(self.model_cache.home, self.db, job, on_progress=on_progress)
            report_progress = self._progress_reporter(job, self._raise_aborted)
            return reward_job(self.model_cache, job, report_progress=report_progress, on_progress=on_progress)

    @contextmanager
    def _training_processes(self, config: dict[str, Any]) -> Iterator[bool]:
        """Yields whether a training runs in separate processes. While these shard the model, it is not loaded here."""
        is_distributed = int(config.get("processes", 1)) > 1
        self._model_is_sharded = is_distributed and bool(config.get("shard_backbone"))
        if self._model_is_sharded:
            self.model_cache.unload()
        try:
            yield is_distributed
        finally:
            self._model_is_sharded = False

    def _interruption_checker(self, job: Job) -> ProgressCallback:
        """A function that aborts a job if it was cancelled, the engine exits, or the run that it interrupts is to pause or stop.

        It queries the database at intervals.
        """
        polls = TimedCache()

        def raise_if_interrupted() -> None:
            is_running = polls.get(job.id, CANCEL_POLL_S, lambda: queue.is_running(self.db, job.id))
            if self._exit_requested or self._should_halt() or not is_running:
                raise _JobAborted

        return raise_if_interrupted

    def _raise_aborted(self) -> None:
        raise _JobAborted

    def _fraction_reporter(self, job: Job) -> FractionCallback:
        def report(fraction: float) -> None:
            if not queue.update_progress(self.db, job.id, fraction):
                raise _JobAborted

        return report

    def _progress_reporter(self, job: Job, on_cancelled: Callable[[], None]) -> JobProgressCallback:
        def report(progress: JobProgress) -> None:
            if not queue.update_progress(self.db, job.id, *progress):
                on_cancelled()

        return report

    def _stop_checker(self, run_id: int) -> Callable[[], bool]:
        """A function that returns whether a pause or stop of the run is pending. It queries the database at intervals."""
        polls = TimedCache()

        def is_requested() -> bool:
            return any(event.kind in HALT_EVENT_KINDS for event in pending_events(self.db, run_id))

        return lambda: polls.get(run_id, POLL_INTERVAL_S, is_requested)

    def run_short_job(self, project_id: int | None, should_halt: Callable[[], bool] = lambda: False) -> None:
        """Run one queued short job of the same project, if there is one. Short jobs do not interrupt each other.

        After pairs were sampled, the training first continues for PAIRS_REST_FACTOR times as long; otherwise people who label
        faster than pairs are sampled would stop it. An answer of a chat is sampled in slices, each at most as long as the
        training has run since the previous one; other short jobs run in between. should_halt: returns true if the run that is
        interrupted is to pause or stop; the short job is then requeued.
        """
        if self._short_job_id is not None or should_halt():
            return
        chat_waits = time.monotonic() < self._chat_slice_ended_at + CHAT_SLICE_S[0]
        if self._chat is not None and not chat_waits:
            job: Job | None = self._chat[0]
        else:
            pairs_wait = self._model_is_sharded or time.monotonic() < self._next_pairs_at
            waiting = {JobKind.CHAT: chat_waits or self._chat is not None, JobKind.SAMPLE_PAIRS: pairs_wait}
            kinds = [kind for kind in SHORT_JOB_KINDS if not waiting.get(kind)]
            job = queue.claim(self.db, kinds, self.engine_id, project_id=project_id)
        if job is None:
            if project_id is not None and not self._model_is_sharded:
                self._features.run_beside(project_id)
            return
        self._short_job_id, self._should_halt = job.id, should_halt
        start_time = time.monotonic()
        try:
            self.run_job(job)
        finally:
            self._short_job_id, self._should_halt = None, lambda: False
            if job.kind is JobKind.CHAT:
                self._chat_slice_ended_at = time.monotonic()
            if job.kind is JobKind.SAMPLE_PAIRS:
                end_time = time.monotonic()
                self._next_pairs_at = end_time + PAIRS_REST_FACTOR * (end_time - start_time)
