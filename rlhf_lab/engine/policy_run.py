"""One policy run as a job: start or resume, obey controls, record every step, keep checkpoints.

Order of writing: a step's rows first, its checkpoint after. A crash in between makes the next engine resume at the older
checkpoint and write the later steps again, bit for bit the same. Controls are rows (run_events): a knob change is marked with
the step it took effect at before it takes effect, so a resume replays it at the same step.
"""

import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.common.enums import EventKind, RunStatus
from rlhf_lab.common.paths import ptx_texts_file, run_folder
from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Run, RunEvent, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.embedded_model.batching import generate_documents
from rlhf_lab.engine.error_messages import explain_distributed_error
from rlhf_lab.engine.job_handlers import JobProgressCallback, no_job_progress
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.prompt_filter import prompts_that_fit
from rlhf_lab.engine.run_events import effective_events, last_per_setting, setting_key
from rlhf_lab.engine.run_manifest import dtype_change_note, environment_manifest
from rlhf_lab.errors import BusyStoreError, ConfigError, StoreError, TrainingError
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.models.oom import free_memory, is_out_of_memory
from rlhf_lab.store.projects import get_project, prompts
from rlhf_lab.store.run_metrics import delete_steps_after, record_step
from rlhf_lab.store.runs import (
    add_event,
    events,
    get_run,
    mark_event_applied,
    pending_events,
    set_manifest,
    set_run_status,
)
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

pass


POLL_INTERVAL_S = 0.1
RECORD_RETRY_S = 300.0  # how long a step is tried again that cannot be stored while somebody else writes
log = logging.getLogger("rlhf_lab.engine")
TrainerState = tuple[dict[str, torch.Tensor], dict[str, Any]]
POLICY_SLOT = "policy"
HALT_EVENT_KINDS = (EventKind.PAUSE, EventKind.STOP)  # asked for this very moment: the next tick obeys
RUN_PROCESS_DIED = (
    "one of the processes of the run died, and the others were ended (processes.log in the run's folder says more). The last "
    "checkpoint is kept: resume the run."
)
ENGINE_EXIT_MESSAGE = "the engine was asked to leave; the run goes on when it is back"


class RunStopped(Exception):  # noqa: N818  not an error: somebody asked for it
    """Raised inside a step to leave it: `status` says what becomes of the run."""

    def __init__(self, status: RunStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class PolicyRun:
    """Drives a PolicyTrainer for one run of the store.

    serve: does short jobs of others; called between pieces of work, also while paused. leaving: true when the engine must go.
    """

    def __init__(
        self,
        model_cache: ModelCache,
        run_id: int,
        *,
        run_short_job: ProgressCallback = no_progress,
        should_exit: Callable[[], bool] = lambda: False,
        report_progress: JobProgressCallback = no_job_progress,
    ) -> None:
        self.distributed = model_cache.distributed
        self.model_cache, self.run_short_job, self.should_exit, self.report_progress = (
            model_cache,
            run_short_job,
            should_exit,
            report_progress,
        )
        self.run: Run = get_run(model_cache.db, run_id)
        self.config = PolicyConfig.from_dict(self.run.config)
        self.folder: Path = run_folder(model_cache.home, run_id)
        if self.distributed.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
        self._applied_events: list[RunEvent] = []
        self.trainer = self._make_trainer()
        self.events_to_replay = self._resume()
        self._polled_at = 0.0
        self._timing_start = time.monotonic()
        self._timing_start_step, self._first_step_done = self.trainer.steps_done, False

    def _make_trainer(self) -> PolicyTrainer:
        db, project = self.model_cache.db, get_project(self.model_cache.db, self.run.project_id)
        backbone, adapters = self.model_cache.load_project(project)
        judge = self.run.manifest.get("judge")
        train_prompts, eval_prompts = (
            prompts_that_fit(backbone, prompts(db, project.id, split), self.config.max_new_tokens)
            for split in ("train", "eval")
        )
        if self.distributed.is_main_process and train_prompts.too_long_count and not events(db, self.run.id):
            self._note(train_prompts.message, 0)
        task = PolicyTask(
            prompts=[prompt.text for prompt in train_prompts.prompts],
            scorer=self.model_cache.reward_model(self.run.reward_model_id, "reward"),
            sample_prompts=[prompt.text for prompt in eval_prompts.prompts][: self.config.sample_count],
            gold=load_judge(judge).score if judge else None,
            ptx_texts=pretraining_texts(self.model_cache.home, self.run, self.config.seed)
            if self.config.ptx_coef > 0
            else (),
        )
        return PolicyTrainer(
            backbone,
            adapters,
            task,
            self.config,
            adapter=POLICY_SLOT,
            on_progress=self.on_progress,
            distributed=self.distributed,
        )

    def _resume(self) -> list[RunEvent]:
        """Continue from the newest whole checkpoint; returns the recorded events that are still to be replayed."""
        checkpoint = load_latest(self.folder) if self.distributed.is_main_process else None
        self.distributed.broadcast(None)  # the folder is tidied up: now the others may look
        if not self.distributed.is_main_process:
            checkpoint = load_latest(self.folder, recover=False)
        if checkpoint is not None:
            self.trainer.load_state(*checkpoint)
        step = self.trainer.steps_done
        if self.distributed.is_main_process:
            delete_steps_after(self.model_cache.db, self.run.id, step)
            self._note_repeated_steps(self.run.step, step)
        effective = effective_events(events(self.model_cache.db, self.run.id))
        unsaved_kinds = (EventKind.SWITCH_REWARD, EventKind.NOTE)  # knobs are in the checkpoint; these are not
        for event in last_per_setting(
            [event for event in effective if event.kind in unsaved_kinds and (event.applied_step or 0) < step]
        ):
            self._apply_event(event)
        return [event for event in effective if (event.applied_step or 0) >= step]

    def _note_repeated_steps(self, last_step: int, step: int) -> None:
        """Say in the run's history which steps are taken once more, because they came after the last checkpoint."""
        if last_step > step:
            steps_text = f"steps {step + 1} to {last_step}" if last_step > step + 1 else f"step {last_step}"
            self._note(f"{steps_text} taken again", step)

    def _note(self, message: str, step: int, **payload: int) -> RunEvent:
        """A line of the run's history."""
        note = add_event(self.model_cache.db, self.run.id, EventKind.NOTE, {"words": message, **payload})
        mark_event_applied(self.model_cache.db, note.id, step)
        return note

    def execute(self) -> RunStatus:
        """Train until the end or until somebody stops it. Sets the run's status; raises what made it fail."""
        db, run_id = self.model_cache.db, self.run.id
        previous, current = self.run.manifest.get("machine") or {}, environment_manifest(self.trainer)
        if message := dtype_change_note(previous, current):
            self._note(message, self.trainer.steps_done)
        set_manifest(db, run_id, self.run.manifest | {"machine": current})
        set_run_status(db, run_id, RunStatus.RUNNING)
        last_state = self.trainer.state()
        try:
            if self.trainer.steps_done == 0:
                self._record_with_retry(StepResult(0, {}, samples=self.trainer.samples()))
            while self.trainer.steps_done < self.config.steps:
                self._apply_controls()
                last_state = self.trainer.state()
                self._broadcast_changes(self._applied_events)
                result = self._step_with_oom_retry(last_state)
                self._record_with_retry(result)
                last_state = self.trainer.state()
                if result.step % self.config.checkpoint_every == 0 or result.step == self.config.steps:
                    self._save_checkpoint(last_state)
                self._report_step()
        except RunStopped as stop:
            self.trainer.load_state(*last_state)
            self._save_checkpoint(last_state)
            set_run_status(db, run_id, stop.status, str(stop))
            self._broadcast_changes(None)
            return stop.status
        except Exception as error:
            with suppress(StoreError):  # what made it fail matters more; the worker insists on recording it
                set_run_status(
                    db, run_id, RunStatus.FAILED, explain_distributed_error(error, self.distributed, RUN_PROCESS_DIED)
                )
            raise
        set_run_status(db, run_id, RunStatus.DONE)
        self._broadcast_changes(None)
        return RunStatus.DONE

    def follow(self) -> None:
        """In a process that does not lead: do every step that the leading one does, and write nothing."""
        if self.trainer.steps_done == 0:
            self.trainer.samples()
        while (changes := self.distributed.broadcast(None)) is not None:
            for event in changes:
                self._apply_event(event)
            self.trainer.run_step()

    def _broadcast_changes(self, changes: list[RunEvent] | None) -> None:
        """What changed since the last step, for the processes that follow; None: there is no next step."""
        self.distributed.broadcast(changes)
        self._applied_events = []

    def _step_with_oom_retry(self, last_state: TrainerState) -> StepResult:
        """One step; where memory runs out, the same step again in half as large pieces, down to single rows."""
        while True:
            try:
                return self.trainer.run_step()
            except RuntimeError as error:
                config = self.trainer.config
                largest = min(config.micro_batch, math.ceil(config.responses_per_step / config.minibatches))
                if not is_out_of_memory(error) or largest == 1 or self.distributed.world_size > 1:
                    raise
            self.trainer.load_state(*last_state)
            free_memory(self.trainer.backbone)
            micro_batch = largest // 2
            step = self.trainer.steps_done + 1
            message = f"memory ran out in step {step}; it goes on with micro_batch {micro_batch}: slower, same result"
            self._apply_event(self._note(message, self.trainer.steps_done, micro_batch=micro_batch))

    def _record_with_retry(self, result: StepResult) -> None:
        """Store a step. Where somebody else is writing it is tried again for a while: a large import may take minutes."""
        deadline = time.monotonic() + RECORD_RETRY_S
        while True:
            try:
                return record_step(self.model_cache.db, self.run.id, result)
            except BusyStoreError as error:
                if time.monotonic() > deadline or self.should_exit():
                    raise
                log.warning("step %d could not be stored, and is tried again: %s", result.step, error)
                time.sleep(1.0)

    def _save_checkpoint(self, state: TrainerState) -> None:
        save_checkpoint(self.folder, self.trainer.adapters, POLICY_SLOT, *state)

    def _report_step(self) -> None:
        step = self.trainer.steps_done
        now = time.monotonic()
        seconds_per_step = (now - self._timing_start) / max(1, step - self._timing_start_step)
        if not self._first_step_done:  # the first step takes longer, and is left out once there are others
            self._timing_start, self._timing_start_step, self._first_step_done = now, step, True
        partial_result = {"run_id": self.run.id, "step": step}
        self.report_progress(step / self.config.steps, seconds_per_step * (self.config.steps - step), partial_result)

    def on_progress(self) -> None:
        """Between minibatches and every few tokens: leave if told to, pause, stop, serve others.

        Of several processes none may leave in mid-step: they obey between steps, and the engine that started them serves.
        """
        if self.distributed.world_size > 1:
            return
        if time.monotonic() - self._polled_at < POLL_INTERVAL_S:
            return
        if self.should_exit():
            raise RunStopped(RunStatus.INTERRUPTED, ENGINE_EXIT_MESSAGE)
        self.run_short_job()
        self._handle_halts()
        self._polled_at = time.monotonic()

    def _apply_controls(self) -> None:
        """At a step's boundary: replay what was recorded for this step, then take what people asked for since."""
        step = self.trainer.steps_done
        due = [event for event in self.events_to_replay if event.applied_step == step]
        self.events_to_replay = [event for event in self.events_to_replay if (event.applied_step or 0) > step]
        for event in due:
            self._apply_event(event)
        self._handle_halts()
        pending = [
            event for event in pending_events(self.model_cache.db, self.run.id) if event.kind not in HALT_EVENT_KINDS
        ]
        effective = last_per_setting(pending)
        for event in pending:
            mark_event_applied(self.model_cache.db, event.id, step)
            if event in effective:
                self._apply_event(event)
            # Told after a failure, while the run resumes from before it: what it takes back is not to be replayed.
            self.events_to_replay = [
                earlier
                for earlier in self.events_to_replay
                if setting_key(event) is None or setting_key(earlier) != setting_key(event)
            ]

    def _apply_event(self, event: RunEvent) -> None:
        """A knob or a switch of the reward model. A bad value was refused when it was asked for; if not, it is noted."""
        self._applied_events.append(event)
        try:
            if event.kind is EventKind.SET:
                self.trainer.set_live_setting(str(event.payload["name"]), float(event.payload["value"]))
            elif event.kind is EventKind.SWITCH_REWARD:
                scorer = self.model_cache.reward_model(int(event.payload["reward_model_id"]), "reward")
                self.trainer.set_scorer(scorer)
            elif event.kind is EventKind.NOTE and "micro_batch" in event.payload:
                self.trainer.config = self.trainer.config.replace(micro_batch=int(event.payload["micro_batch"]))
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            if self.distributed.is_main_process:
                set_run_status(self.model_cache.db, self.run.id, RunStatus.RUNNING, f"a change was ignored: {error}")

    def _handle_halts(self) -> None:
        """Every pause and stop that waits; looked up anew each time, since a pause may have taken later events with it."""
        while halts := [
            event for event in pending_events(self.model_cache.db, self.run.id) if event.kind in HALT_EVENT_KINDS
        ]:
            self._pause_or_stop(halts[0])

    def _pause_or_stop(self, event: RunEvent) -> None:
        """Obey a stop, or wait until a pause is lifted; short jobs are served meanwhile. Changes nothing of the run."""
        db, run_id = self.model_cache.db, self.run.id
        mark_event_applied(db, event.id, self.trainer.steps_done)
        if event.kind is EventKind.STOP:
            raise RunStopped(RunStatus.STOPPED, f"stopped after step {self.trainer.steps_done}; it can be resumed")
        set_run_status(db, run_id, RunStatus.PAUSED, f"paused in step {self.trainer.steps_done + 1}")
        paused_at = time.monotonic()
        while True:
            if self.should_exit():
                raise RunStopped(RunStatus.INTERRUPTED, "the engine was asked to leave while the run was paused")
            for later in pending_events(db, run_id):
                if later.kind is EventKind.STOP:
                    self._pause_or_stop(later)
                if later.kind is EventKind.PAUSE:
                    mark_event_applied(db, later.id, self.trainer.steps_done)  # asked twice: one resume lifts both
                if later.kind is EventKind.RESUME:
                    mark_event_applied(db, later.id, self.trainer.steps_done)
                    if later.id < event.id:
                        continue  # it was meant for something before this pause
                    set_run_status(db, run_id, RunStatus.RUNNING)
                    self._timing_start += time.monotonic() - paused_at  # a pause tells nothing of other steps
                    return
            self.run_short_job()
            time.sleep(POLL_INTERVAL_S)


PTX_CORPUS_TEXTS = 1024  # of the corpus, where a run brings none of its own


def pretraining_texts(home: Path, run: Run, seed: int) -> list[str]:
    """The texts that came with the run, or some of the embedded model's corpus. Raises TrainingError when its own are gone."""
    if "ptx_texts" not in run.manifest:
        return generate_documents(seed, PTX_CORPUS_TEXTS, 0)
    path = ptx_texts_file(home, run.id)
    try:
        texts: list[str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"the pretraining texts of run {run.id} cannot be read ({error}). Put {path} back, or start a new run."
        ) from error
    return texts
