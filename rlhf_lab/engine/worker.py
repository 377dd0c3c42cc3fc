"""The engine's loop: one job at a time, short ones also in between, a heartbeat all along."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from rlhf_lab.engine import together
from rlhf_lab.engine.faults import explain_error
from rlhf_lab.engine.lab import Lab
from rlhf_lab.engine.policy_run import POLL_EVERY_S, PolicyRun
from rlhf_lab.engine.work import Progress, complete, explain, pairs_job, reward_job
from rlhf_lab.errors import ClaimedError, CorruptStoreError, LabError, StoreError, TrainingError
from rlhf_lab.jobs import claims, control, queue, supervisor
from rlhf_lab.kinds import EventKind, JobKind, JobStatus, RunStatus
from rlhf_lab.records import Job
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.runs import add_event, get_run, pending_events, runs, set_run_status

ANSWERS = (JobKind.COMPLETE, JobKind.EXPLAIN)  # somebody waits for them
SHORT = (*ANSWERS, JobKind.SAMPLE_PAIRS)
ALL = tuple(JobKind)
BEAT_EVERY_S = 2.0
IDLE_POLL_S = 0.1
IDLE_EXIT_S = 600.0
INSIST_EVERY_S = 1.0

DEALT_OUT = (
    "A training has dealt the model out among its processes, and there is no room to load it whole beside them. Ask again when "
    "the training has ended, or stop it."
)

log = logging.getLogger("rlhf_lab.engine")


class _Dropped(Exception):  # noqa: N818  not an error
    """Raised inside a job other than a run to leave it: the engine goes, or the job was cancelled."""


class Worker:
    """Takes jobs until told to leave, or until nothing has happened for `idle_exit_s` and no page is open."""

    def __init__(self, home: Path, db: Database, *, idle_exit_s: float = IDLE_EXIT_S) -> None:
        self.lab = Lab(home, db)
        self.db = db
        self.idle_exit_s = idle_exit_s
        self.state = "idle"
        # A plain flag, for the handler of SIGTERM sets it: an Event has a lock, which the interrupted thread may be holding.
        self._leave = False
        self._ended = threading.Event()
        self.engine_id = supervisor.beat(db, self.state)
        self._serving: int | None = None
        self._dealt_out = False
        self._halts: Callable[[], bool] = lambda: False

    def leave(self) -> None:
        """Ask the worker to end: a run keeps its last step, a short job is put back."""
        self._leave = True

    def leaving(self) -> bool:
        return self._leave

    def work(self) -> None:
        """The loop. Jobs that a dead engine left behind are taken up first. The heartbeat goes on until it has ended."""
        beating = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        beating.start()
        try:
            self._work()
        finally:
            self._ended.set()
            beating.join()
        supervisor.sign_off(self.db, self.engine_id)

    def _work(self) -> None:
        for run_id in claims.mark_lost(self.db, self.lab.home):
            log.info("run %d has lost its process and is interrupted", run_id)
        for found in queue.requeue_interrupted(self.db):
            if found.status is JobStatus.FAILED:
                log.error("job %d (%s) was interrupted too often: %s", found.id, found.kind, found.error)
                if found.kind is JobKind.TRAIN_POLICY:
                    self._run_failed(int(found.payload["run_id"]), found.error)
                continue
            log.info("job %d (%s) was interrupted and is taken up again", found.id, found.kind)
        active = time.monotonic()
        while not self._leave:
            job = self._next()
            if job is not None:
                self.do(job)
                active = time.monotonic()
            elif time.monotonic() - active > self.idle_exit_s and not self._page_open():
                log.info("nothing to do and no page open for %.0f s; leaving", self.idle_exit_s)
                break
            else:
                time.sleep(IDLE_POLL_S)

    def _next(self) -> Job | None:
        """The next job. A database that cannot be written now (a full disk) may be later; a damaged one ends the engine."""
        try:
            return queue.claim(self.db, ALL, self.engine_id)
        except CorruptStoreError:
            raise
        except StoreError as error:
            log.warning("no job could be taken: %s", error)
            time.sleep(INSIST_EVERY_S)
            return None

    def _page_open(self) -> bool:
        seen = supervisor.last_ui_seen(self.db)
        return seen is not None and time.time() - seen < self.idle_exit_s

    def _beat(self) -> None:
        process = psutil.Process()
        while not self._ended.wait(BEAT_EVERY_S):
            try:
                supervisor.beat(self.db, self.state, device=self._device(), memory_mb=process.memory_info().rss / 2**20)
            except StoreError as error:
                log.warning("no heartbeat could be written: %s", error)

    def _device(self) -> str:
        return self.lab.device_name

    def do(self, job: Job) -> None:
        """Do a job and record how it ended; an error ends the job, never the engine."""
        before, self.state = self.state, f"{job.kind.value.replace('_', ' ')} (job {job.id})"
        log.info("job %d (%s) begins", job.id, job.kind)
        try:
            result = self._result(job)
            if result is not None:
                queue.finish(self.db, job.id, result)
                log.info("job %d is done", job.id)
        except _Dropped:
            self._insist(partial(self._put_back, job), f"that job {job.id} is put back")
        except Exception as error:
            # What a person can mend is said in a line; only what nobody foresaw needs to be traced.
            log.error("job %d failed: %s", job.id, error, exc_info=not isinstance(error, LabError))
            self._insist(partial(self._failed, job, error), f"that job {job.id} failed")
        finally:
            self.state = before

    def _put_back(self, job: Job) -> None:
        put_back = queue.put_back(self.db, job.id)
        log.info("job %d is %s", job.id, "put back" if put_back else "left: it was cancelled")

    def _failed(self, job: Job, error: Exception) -> None:
        """The job has, and its run with it; not one that another process has claimed, which goes on."""
        message = explain_error(error)
        queue.fail(self.db, job.id, message)
        if job.kind is JobKind.TRAIN_POLICY and not isinstance(error, ClaimedError):
            self._run_failed(int(job.payload["run_id"]), message)

    def _insist(self, record: Callable[[], None], what: str) -> None:
        """Record how a job ended. Where that cannot be written (a full disk), try until it can be, or the worker is to leave:
        the next engine finds the job interrupted then."""
        while True:
            try:
                record()
            except StoreError as error:
                log.warning("%s could not be recorded: %s", what, error)
            else:
                return
            if self._leave:
                return
            time.sleep(INSIST_EVERY_S)

    def _run_failed(self, run_id: int, message: str) -> None:
        """Raises StoreError where nothing can be written."""
        if any(run.id == run_id for run in runs(self.db)):  # it may have been deleted
            set_run_status(self.db, run_id, RunStatus.FAILED, message)

    def _train_policy(self, job: Job, run_id: int) -> dict[str, object] | None:
        """A run, in this process or, where its config wants several, in processes of their own."""
        halts = self._halts_of(run_id)

        def serve() -> None:
            self.serve(job.project_id, halts)

        progress = self._progress(job, lambda: self._cancelled(job.payload))
        run = get_run(self.db, run_id)
        with self._processes(run.config | {"processes": control.processes_of(self.db, run)}) as several:
            if several:
                home = self.lab.home
                status = together.train_policy(
                    home, self.db, run_id, serve=serve, leaving=self.leaving, progress=progress
                )
            else:
                with claims.claimed(self.lab.home, run_id):
                    status = PolicyRun(self.lab, run_id, serve=serve, leaving=self.leaving, progress=progress).execute()
        if status is RunStatus.INTERRUPTED:
            queue.put_back(self.db, job.id)
            return None
        return {"run_id": run_id, "status": status.value, "step": get_run(self.db, run_id).step}

    def _result(self, job: Job) -> dict[str, object] | None:
        """What the job produced; None where it was put back for the next engine, or cancelled."""
        payload = job.payload
        if job.kind is JobKind.TRAIN_POLICY:
            return self._train_policy(job, int(payload["run_id"]))
        if self._dealt_out:
            raise TrainingError(DEALT_OUT)
        assert job.project_id is not None
        project = get_project(self.db, job.project_id)
        if job.kind is JobKind.SAMPLE_PAIRS:
            return pairs_job(self.lab, project, payload, tick=self._stay)
        if job.kind is JobKind.COMPLETE:
            return complete(self.lab, project, payload, tick=self._stay)
        if job.kind is JobKind.EXPLAIN:
            return explain(self.lab, project, payload, tick=self._stay)
        return self._train_reward(job)

    def _train_reward(self, job: Job) -> dict[str, object] | None:
        """A reward model, in this process or, where its config wants several, in processes of their own."""

        def tick() -> None:
            self._between(job.project_id)

        with self._processes(job.payload.get("config", {})) as several:
            if several:
                return together.train_reward(self.lab.home, self.db, job, tick=tick)
            return reward_job(self.lab, job, progress=self._progress(job, self._drop), tick=tick)

    @contextmanager
    def _processes(self, config: dict[str, Any]) -> Iterator[bool]:
        """Whether a training wants processes of its own. While they deal out the model among them, none is loaded here."""
        several = int(config.get("processes", 1)) > 1
        self._dealt_out = several and bool(config.get("shard_backbone"))
        if self._dealt_out:
            self.lab.close()
        try:
            yield several
        finally:
            self._dealt_out = False

    def _stay(self) -> None:
        """Leave a job where it is when the engine goes, or when the run it is done in the middle of is to halt."""
        if self._leave or self._halts():
            raise _Dropped

    def _drop(self) -> None:
        raise _Dropped

    def _between(self, project_id: int | None) -> None:
        self._stay()
        self.serve(project_id)

    def _progress(self, job: Job, cancelled: Callable[[], None] | None = None) -> Progress:
        def tell(share: float, left: float | None, so_far: dict[str, Any]) -> None:
            if not queue.update_progress(self.db, job.id, share, left, so_far) and cancelled is not None:
                cancelled()

        return tell

    def _cancelled(self, payload: dict[str, object]) -> None:
        """The job of a run was cancelled: the same as stopping the run."""
        add_event(self.db, int(str(payload["run_id"])), EventKind.STOP, {})

    def _halts_of(self, run_id: int) -> Callable[[], bool]:
        """Whether somebody wants this run to pause or stop; looked up every POLL_EVERY_S at most."""
        looked, wanted = -POLL_EVERY_S, False

        def halts() -> bool:
            nonlocal looked, wanted
            if time.monotonic() - looked >= POLL_EVERY_S:
                kinds = {event.kind for event in pending_events(self.db, run_id)}
                looked, wanted = time.monotonic(), bool(kinds & {EventKind.PAUSE, EventKind.STOP})
            return wanted

        return halts

    def serve(self, project_id: int | None, halts: Callable[[], bool] = lambda: False) -> None:
        """Do one waiting short job of the same project, if there is one. Never called from within itself.

        halts: true when the run that is interrupted for it shall pause or stop; the short job is then put back and done later.
        """
        if self._serving is not None or halts():
            return
        kinds = ANSWERS if self._dealt_out else SHORT  # new pairs can wait
        job = queue.claim(self.db, kinds, self.engine_id, project_id=project_id)
        if job is None:
            return
        self._serving, self._halts = job.id, halts
        try:
            self.do(job)
        finally:
            self._serving, self._halts = None, lambda: False
