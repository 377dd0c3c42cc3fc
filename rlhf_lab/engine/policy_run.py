"""One policy run as a job: start or resume, apply control events, record every step, save checkpoints.

The rows of a step are written before its checkpoint. After a crash in between, the next engine resumes from the older checkpoint
and writes the later steps again, with bit-identical results on a CPU. Control events are rows of the database. Before a setting
is changed, its event is marked with the step, so that a resumed run repeats the change at the same step.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any, NoReturn

from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.enums import EventKind, RunStatus
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import Run, RunEvent, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.engine.error_messages import explain_distributed_error
from rlhf_lab.engine.job_progress import (
    EtaEstimator,
    JobProgress,
    JobProgressCallback,
    SamplingProgress,
    no_job_progress,
)
from rlhf_lab.engine.live_run import JUDGE_KEY, let_judge_label
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.run_events import effective_events, last_per_setting, live_value, setting_key
from rlhf_lab.engine.run_manifest import (
    custom_function_hashes,
    dtype_change_note,
    environment_manifest,
    function_change_note,
)
from rlhf_lab.engine.run_task import POLICY_SLOT, PROMPTS_KEY, RunTask
from rlhf_lab.errors import ConfigError, RewardTermError, StoreError
from rlhf_lab.jobs.retraining import IGNORED_KEY
from rlhf_lab.jobs.run_lock import STARTED_RUN_STATUSES
from rlhf_lab.jobs.time_estimate import WorkCount, count_held_out, count_policy_step, policy_stage
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.models.memory_errors import is_out_of_memory
from rlhf_lab.models.oom import free_memory
from rlhf_lab.quality.brake import BRAKE_KEY, compared_checkpoint, counted_answers, loses_to, pause_payload, pause_text
from rlhf_lab.rewards.terms import FUNCTIONS_KEY, TERMS_KEY, read_terms
from rlhf_lab.store.live_runs import get_head
from rlhf_lab.store.run_metrics import delete_steps_after, record_step
from rlhf_lab.store.runs import (
    add_event,
    add_note,
    events,
    get_run,
    mark_event_applied,
    pending_events,
    set_manifest,
    set_run_status,
)
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint
from rlhf_lab.training.policy.rollout import needs_scoring_pass
from rlhf_lab.training.policy.train_state import SET_BY_HAND, StateDict

POLL_INTERVAL_S = 0.1
STEP_PARTS = ("rollout", "score", "update")
HALT_EVENT_KINDS = (EventKind.PAUSE, EventKind.STOP)  # applied at once, even within a step
CONTROL_KINDS = (*HALT_EVENT_KINDS, EventKind.RESUME)
RUN_PROCESS_DIED = (
    "one of the processes of the run died, and the others were ended (processes.log in the run's folder says more). "
    "The last checkpoint is kept: resume the run."
)
ENGINE_EXIT_MESSAGE = "the engine was stopped; the run continues when it is restarted"

log = logging.getLogger("rlhf_lab.engine")


class RunStopped(Exception):  # noqa: N818  not an error: requested by the user or the engine
    """Raised inside a step to abort it. status: the run's new status."""

    def __init__(self, status: RunStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class PolicyRun:
    """Drives a PolicyTrainer for one run of the database.

    run_short_job: runs a queued short job; called between minibatches, and while the run is paused. should_exit: returns true
    when the engine must exit.
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
        self.model_cache, self.distributed = model_cache, model_cache.distributed
        self.run_short_job, self.should_exit, self.report_progress = run_short_job, should_exit, report_progress
        self.run: Run = get_run(model_cache.db, run_id)
        self.config = PolicyConfig.from_dict(self.run.config)
        self.folder: Path = run_folder(model_cache.home, run_id)
        if self.distributed.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
        self._applied_events: list[RunEvent] = []
        self._recorded_steps = self.run.step  # up to here a resumed run repeats recorded heads
        self.task = RunTask(model_cache, self.run, self.config)
        self.trainer = self.task.make_trainer(self.on_progress)
        self.trainer.state.on_sampling = self.on_sampling
        self._sampling = SamplingProgress(self._sampling_estimate)
        self.events_to_replay = self._resume()
        self._polled_at = 0.0
        self._eta, self._first_step_done = EtaEstimator(self.trainer.steps_done), False
        self._step_times: list[float] = []  # of each step but the first, measured over estimated seconds

    def _resume(self) -> list[RunEvent]:
        """Load the newest intact checkpoint; returns the recorded events to replay from there on."""
        checkpoint = load_latest(self.folder) if self.distributed.is_main_process else None
        self.distributed.broadcast(None)  # the folder has been cleaned up: now the other processes may read it
        if not self.distributed.is_main_process:
            checkpoint = load_latest(self.folder, recover=False)
        step = int(checkpoint[1]["step"]) if checkpoint is not None else 0
        if self.distributed.is_main_process:
            delete_steps_after(self.model_cache.db, self.run.id, step)
            self._note_repeated_steps(self.run.step, step)
        effective = effective_events(events(self.model_cache.db, self.run.id))
        unsaved_kinds = (EventKind.SWITCH_REWARD, EventKind.NOTE)  # other settings are in the checkpoint
        for event in last_per_setting(
            [event for event in effective if event.kind in unsaved_kinds and (event.applied_step or 0) < step]
        ):
            self._apply_event(event)
        if (
            checkpoint is not None
        ):  # the state is loaded after the events, because switching the reward model resets parts of it
            self.trainer.state.load_state_dict(*checkpoint)
            if SET_BY_HAND not in checkpoint[1]:
                self._restore_beta_set_by_hand([event for event in effective if (event.applied_step or 0) <= step])
        self._applied_events = []  # every process has applied the past events itself
        return [event for event in effective if (event.applied_step or 0) >= step]

    def _restore_beta_set_by_hand(self, past: list[RunEvent]) -> None:
        """Complete a state of version 0.2.0, which wrote a beta set by hand into the controller, where it could grow without
        end. The value is in force again, and the controller starts again."""
        for event in last_per_setting([event for event in past if setting_key(event) == ("set", "beta")]):
            self._apply_event(event)
        if "beta" in self.trainer.state.set_by_hand:
            self.trainer.state.kl_control.restart()

    def _note_repeated_steps(self, last_step: int, step: int) -> None:
        """Note in the run's history which steps are repeated: those after the last checkpoint."""
        if last_step > step:
            steps_text = f"steps {step + 1} to {last_step}" if last_step > step + 1 else f"step {last_step}"
            self._note(f"{steps_text} taken again", step)

    def _note(self, message: str, step: int, **payload: int) -> RunEvent:
        """Add a line to the run's history."""
        return add_note(self.model_cache.db, self.run.id, message, step, **payload)

    def _record_environment(self) -> None:
        """Record the environment, on which results depend besides the config, and note changes since the last training."""
        manifest, machine = self.run.manifest, environment_manifest(self.trainer)
        functions = custom_function_hashes(read_terms(manifest.get(TERMS_KEY) or []), self.model_cache.home)
        previous_functions = manifest.get(FUNCTIONS_KEY) or {}
        for message in (
            dtype_change_note(manifest.get("machine") or {}, machine),
            function_change_note(previous_functions, functions),
        ):
            if message:
                self._note(message, self.trainer.steps_done)
        recorded: dict[str, Any] = {"machine": machine, PROMPTS_KEY: self.task.prompt_ids}
        recorded |= {FUNCTIONS_KEY: previous_functions | functions} if functions else {}
        set_manifest(self.model_cache.db, self.run.id, manifest | recorded)

    def execute(self) -> RunStatus:
        """Train until the run ends or is stopped, and set its status. An error that makes it fail is raised again."""
        db, run_id = self.model_cache.db, self.run.id
        self._record_environment()
        set_run_status(db, run_id, RunStatus.RUNNING)
        last_state = self.trainer.state.state_dict()
        try:
            self._continue_halt()
            if self.trainer.steps_done == 0:
                self._replay_events()
                self.trainer.measure_score_unit()
                record_step(db, run_id, StepResult(0, {}, samples=self.trainer.samples()))
            while self.trainer.steps_done < self.config.steps:
                self._apply_controls()
                last_state = self.trainer.state.state_dict()
                self._broadcast_changes(self._applied_events)
                result = self._step_with_oom_retry(last_state)
                record_step(db, run_id, result)
                self._time_step(result)
                last_state = self.trainer.state.state_dict()
                if result.step % self.config.checkpoint_every == 0 or result.step == self.config.steps:
                    self._save_checkpoint(last_state)
                self._add_pairs(result.step)
                self._report_step()
        except RunStopped as stop:
            self._save_checkpoint(last_state)
            self._save_speed()
            set_run_status(db, run_id, stop.status, str(stop))
            self._broadcast_changes(None)
            return stop.status
        except Exception as error:
            if isinstance(error, RewardTermError) and self.distributed.is_main_process:
                self._save_checkpoint(last_state)  # the state after the last complete step, so that no step is lost
            message = explain_distributed_error(error, self.distributed, RUN_PROCESS_DIED)
            with suppress(StoreError):  # raise the original error; the worker retries to record it
                set_run_status(db, run_id, RunStatus.FAILED, message)
            raise
        finally:
            self.task.close()
        self._save_speed()
        set_run_status(db, run_id, RunStatus.DONE)
        self._broadcast_changes(None)
        return RunStatus.DONE

    def follow(self) -> None:
        """In processes other than the main one: make every step that the main one makes, and write nothing."""
        if self.trainer.steps_done == 0:
            self.trainer.measure_score_unit()
            self.trainer.samples()
        while (changes := self.distributed.broadcast(None)) is not None:
            for event in changes:
                self._apply_event(event)
            self.trainer.run_step()

    def _broadcast_changes(self, changes: list[RunEvent] | None) -> None:
        """Send the events applied since the last step to the other processes; None means there is no next step."""
        self.distributed.broadcast(changes)
        self._applied_events = []

    def _step_with_oom_retry(self, last_state: StateDict) -> StepResult:
        """Run a step. If memory runs out, repeat it with half the micro-batch, down to single rows."""
        while True:
            try:
                return self.trainer.run_step()
            except RuntimeError as error:
                config = self.trainer.state.config
                largest = min(config.micro_batch, math.ceil(config.responses_per_step / config.minibatches))
                if not is_out_of_memory(error) or largest == 1 or self.distributed.world_size > 1:
                    raise
            self.trainer.state.load_state_dict(*last_state)
            free_memory(self.trainer.backbone)
            micro_batch = largest // 2
            step = self.trainer.steps_done + 1
            message = f"memory ran out in step {step}; continuing with micro_batch {micro_batch}: slower, same result"
            self._apply_event(self._note(message, self.trainer.steps_done, micro_batch=micro_batch))

    def _save_checkpoint(self, state: StateDict) -> None:
        save_checkpoint(self.folder, self.trainer.adapters, POLICY_SLOT, *state)

    def _time_step(self, result: StepResult) -> None:
        """Compare the duration of a step with the estimate. The first step is left out, because it takes longer."""
        speed, config = self.model_cache.speed, self.trainer.state.config
        if speed.is_measured and self._first_step_done:
            scoring_pass = needs_scoring_pass(self.trainer.state.policy, self.trainer.task.scorer, config)
            edits = len(getattr(self.trainer, "edits", ()))  # of an offline method
            counted = count_policy_step(speed, config, scoring_pass=scoring_pass, edits=edits)
            counted += count_held_out(speed, config, scoring_pass=scoring_pass) if "eval/kl" in result.metrics else 0.0
            self._step_times.append(sum(result.metrics[f"time/{part}"] for part in STEP_PARTS) / counted)

    def _save_speed(self) -> None:
        """Store the durations of the steps, for the estimate of the next run."""
        if self._step_times:
            stage = policy_stage(self.config.algorithm, self.distributed.world_size)
            # The steps of an offline method differ in length, because only some of them sample.
            typical = fmean(self._step_times) if self.config.is_offline else median(self._step_times)
            self.model_cache.speed.record_stage(stage, typical, 1.0)
            self.model_cache.save_speed()

    def _report_step(self) -> None:
        step, total_steps = self.trainer.steps_done, self.config.steps
        eta_s = self._eta.eta_s(step, total_steps)
        if not self._first_step_done:  # the first step takes longer, so later estimates exclude it
            self._eta.restart(step)
            self._first_step_done, eta_s = True, None
        self.report_progress(JobProgress(step / total_steps, eta_s, {"run_id": self.run.id, "step": step}))

    def on_sampling(self, done: float, total: int) -> None:
        """Report the texts that are sampled before the first step, which shows the progress of all later ones."""
        if self.trainer.steps_done == 0 and self.distributed.world_size == 1:
            sampling = self._sampling.update(done, total)
            if sampling is not None:
                self.report_progress(JobProgress(0.0, None, {"run_id": self.run.id, "step": 0, "sampling": sampling}))

    def _sampling_estimate(self, texts: int) -> float | None:
        """Seconds to sample these texts by the rates that were measured on this machine; None if there are none."""
        speed, config = self.model_cache.speed, self.config
        if not speed.is_measured:
            return None
        return WorkCount(speed, config.max_new_tokens).sampling(texts, min(texts, config.batch_size))

    def on_progress(self) -> None:
        """Exit, pause or stop if requested, and run a short job. Called between minibatches and every few tokens.

        Does nothing with several processes: they pause and stop only between steps, and their engine runs the short jobs.
        """
        if self.distributed.world_size > 1:
            return
        if time.monotonic() - self._polled_at < POLL_INTERVAL_S:
            return
        if self.should_exit():
            raise RunStopped(RunStatus.INTERRUPTED, ENGINE_EXIT_MESSAGE)
        start_time = time.monotonic()
        self.run_short_job()
        self._handle_stop_and_pause()
        self._polled_at = time.monotonic()
        self.trainer.state.interrupted_s += self._polled_at - start_time

    def _apply_controls(self) -> None:
        """Between steps, replay the events recorded for this step, then apply the pending ones."""
        step = self.trainer.steps_done
        self._replay_events()
        self._handle_stop_and_pause()
        pending = [
            event for event in pending_events(self.model_cache.db, self.run.id) if event.kind not in HALT_EVENT_KINDS
        ]
        effective = last_per_setting(pending)
        for event in pending:
            mark_event_applied(self.model_cache.db, event.id, step)
            if event in effective:
                self._apply_event(event)
            # A new event replaces recorded events for the same setting, which would otherwise be replayed later.
            self.events_to_replay = [
                earlier
                for earlier in self.events_to_replay
                if setting_key(event) is None or setting_key(earlier) != setting_key(event)
            ]

    def _replay_events(self) -> None:
        """Apply the events recorded for this step. A live run then learns from the labels that came since its last head; steps
        that are repeated have recorded heads."""
        step = self.trainer.steps_done
        due = [event for event in self.events_to_replay if event.applied_step == step]
        self.events_to_replay = [event for event in self.events_to_replay if (event.applied_step or 0) > step]
        for event in due:
            self._apply_event(event)
        if (
            self.task.heads is None
            or step < self._recorded_steps
            or EventKind.HEAD in {e.kind for e in self.events_to_replay}
        ):
            return
        newest = self.task.heads.newest()
        if newest is not None:
            payload = {"version": newest[0].version, IGNORED_KEY: list(newest[1])}
            self._apply_event(add_event(self.model_cache.db, self.run.id, EventKind.HEAD, payload, step))

    def _add_pairs(self, step: int) -> None:
        """Make pairs of a live run or for a brake, and pause the run if people prefer the other texts of earlier pairs.

        In a run without people the judge labels, and the run is stopped.
        """
        if self.task.pairs is None:
            return
        writer_step = step - 1  # the rollouts of a step are sampled before its update
        earlier = [saved for saved in checkpoint_steps(self.folder) if saved < writer_step]
        answers = counted_answers(self.model_cache.db, self.run.id)
        checkpoint = compared_checkpoint(answers, earlier)
        self.task.pairs.add(
            writer_step, self.trainer.rollout_rows, POLICY_SLOT, checkpoint,
            only_checkpoint=loses_to(answers, checkpoint),
        )  # fmt: skip
        if JUDGE_KEY in self.run.manifest:
            let_judge_label(self.model_cache.db, self.run, load_judge(self.run.manifest["judge"]), step)
        payload = pause_payload(self.model_cache.db, self.run.id)
        if payload is not None and step < self.config.steps:
            # Nobody could let a run without people continue.
            kind = EventKind.STOP if JUDGE_KEY in self.run.manifest else EventKind.PAUSE
            add_event(self.model_cache.db, self.run.id, kind, dict(payload))

    def _apply_event(self, event: RunEvent) -> None:
        """Change a setting or switch the reward model.

        Invalid values are rejected when they are submitted; one that gets here nevertheless is reported in the run's history.
        """
        self._applied_events.append(event)
        try:
            if event.kind is EventKind.SET:
                self.trainer.set_live_setting(str(event.payload["name"]), live_value(event))
            elif event.kind is EventKind.SWITCH_REWARD:
                scorer = self.task.scorer(self.trainer.backbone, int(event.payload["reward_model_id"]))
                assert scorer is not None
                self.trainer.set_scorer(scorer)
            elif event.kind is EventKind.HEAD:
                head = get_head(self.model_cache.db, self.run.id, int(event.payload["version"]))
                ignored = event.payload.get(IGNORED_KEY, ())
                self.trainer.set_head(head.version, head.labels, head.weights, head.kl_budget, ignored)
            elif event.kind is EventKind.NOTE and "micro_batch" in event.payload:
                self.trainer.state.config = self.trainer.state.config.replace(
                    micro_batch=int(event.payload["micro_batch"])
                )
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            if self.distributed.is_main_process:
                set_run_status(self.model_cache.db, self.run.id, RunStatus.RUNNING, f"a change was ignored: {error}")

    def _handle_stop_and_pause(self) -> None:
        """Apply pending pauses and stops. They are read again after each, because a pause may have consumed later ones."""
        while halts := [
            event for event in pending_events(self.model_cache.db, self.run.id) if event.kind in HALT_EVENT_KINDS
        ]:
            if halts[0].kind is EventKind.STOP:
                self._stop(halts[0])
            else:
                self._pause(halts[0])

    def _stop(self, event: RunEvent) -> NoReturn:
        step = self.trainer.steps_done
        mark_event_applied(self.model_cache.db, event.id, step)
        reason = f": {pause_text(event.payload)}" if BRAKE_KEY in event.payload else ""
        raise RunStopped(RunStatus.STOPPED, f"stopped after step {step}{reason}; it can be resumed")

    def _continue_halt(self) -> None:
        """Before the first step of this process: a run that was paused, or had just been stopped, when the previous process ended
        stays so. Steps since the last checkpoint are taken again only after the pause."""
        controls = [event for event in events(self.model_cache.db, self.run.id) if event.kind in CONTROL_KINDS]
        applied = [event for event in controls if event.applied_step is not None]
        if not applied:
            return
        last = applied[-1]
        if last.kind is EventKind.STOP and last is controls[-1] and self.run.status in STARTED_RUN_STATUSES:
            self._stop(last)
        if last.kind is EventKind.PAUSE and self.run.step <= (last.applied_step or 0):
            self._pause(last)

    def _pause(self, event: RunEvent) -> None:
        """Wait until the run is resumed, and run short jobs during the pause. Does not change the state of the trainer."""
        db, run_id, step = self.model_cache.db, self.run.id, event.applied_step
        if step is None:
            step = self.trainer.steps_done
            mark_event_applied(db, event.id, step)
        message = f"paused in step {step + 1}"
        if BRAKE_KEY in event.payload:
            message = f"paused after step {step}: {pause_text(event.payload)}"
        set_run_status(db, run_id, RunStatus.PAUSED, message)
        paused_at = time.monotonic()
        while True:
            if self.should_exit():
                raise RunStopped(RunStatus.INTERRUPTED, "the engine was stopped while the run was paused")
            for later in pending_events(db, run_id):
                if later.kind is EventKind.STOP:
                    self._stop(later)
                if later.kind is EventKind.PAUSE:
                    mark_event_applied(db, later.id, self.trainer.steps_done)  # one resume event ends all pauses
                if later.kind is EventKind.RESUME:
                    mark_event_applied(db, later.id, self.trainer.steps_done)
                    if later.id < event.id:
                        continue  # belongs to an earlier pause
                    set_run_status(db, run_id, RunStatus.RUNNING)
                    self._eta.start_time += time.monotonic() - paused_at  # not part of any step's duration
                    return
            self.run_short_job()
            time.sleep(POLL_INTERVAL_S)
