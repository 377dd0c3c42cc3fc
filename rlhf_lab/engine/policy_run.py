"""One policy run as a job: start or resume, obey controls, record every step, keep checkpoints.

Order of writing: a step's rows first, its checkpoint after. A crash in between makes the next engine resume at the older
checkpoint and write the later steps again, bit for bit the same. Controls are rows (run_events): a knob change is marked with
the step it took effect at before it takes effect, so a resume replays it at the same step.
"""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rlhf_lab.config import PolicyConfig
from rlhf_lab.engine.faults import explain_together
from rlhf_lab.engine.fitting import fitting
from rlhf_lab.engine.history import lasting, standing, told_by
from rlhf_lab.engine.lab import Lab
from rlhf_lab.engine.machine import machine, moved
from rlhf_lab.engine.ptx import pretraining_texts
from rlhf_lab.engine.work import Progress, no_progress
from rlhf_lab.errors import BusyStoreError, ConfigError, StoreError
from rlhf_lab.home import run_folder
from rlhf_lab.judges import load_judge
from rlhf_lab.kinds import EventKind, RunStatus
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.memory import free_memory, out_of_memory
from rlhf_lab.records import Run, RunEvent, StepResult
from rlhf_lab.store.projects import get_project, prompts
from rlhf_lab.store.runs import add_event, events, get_run, mark_event, pending_events, set_manifest, set_run_status
from rlhf_lab.store.steps import record_step, truncate_after
from rlhf_lab.trainers.checkpoint import load_latest, save_checkpoint
from rlhf_lab.trainers.policy import PolicyTrainer, Task

POLL_EVERY_S = 0.1
RECORDING_S = 300.0  # how long a step is tried again that cannot be stored while somebody else writes
log = logging.getLogger("rlhf_lab.engine")
State = tuple[dict[str, torch.Tensor], dict[str, Any]]
SLOT = "policy"
HALTS = (EventKind.PAUSE, EventKind.STOP)  # asked for this very moment: the next tick obeys
RUN_BROKE = (
    "one of the processes of the run died, and the others were ended (processes.log in the run's folder says more). The last "
    "checkpoint is kept: resume the run."
)
LEAVES = "the engine was asked to leave; the run goes on when it is back"


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
        self, lab: Lab, run_id: int, *, serve: Tick = no_tick, leaving: Callable[[], bool] = lambda: False,
        progress: Progress = no_progress,
    ) -> None:  # fmt: skip
        self.group = lab.group
        self.lab, self.serve, self.leaving, self.progress = lab, serve, leaving, progress
        self.run: Run = get_run(lab.db, run_id)
        self.config = PolicyConfig.from_dict(self.run.config)
        self.folder: Path = run_folder(lab.home, run_id)
        if self.group.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
        self._applied: list[RunEvent] = []
        self.trainer = self._trainer()
        self.replay = self._resume()
        self._looked = 0.0
        self._began = time.monotonic()
        self._first, self._warm = self.trainer.steps_done, False

    def _trainer(self) -> PolicyTrainer:
        db, project = self.lab.db, get_project(self.lab.db, self.run.project_id)
        backbone, adapters = self.lab.open(project)
        judge = self.run.manifest.get("judge")
        fit, aside = (
            fitting(backbone, prompts(db, project.id, part), self.config.max_new_tokens) for part in ("train", "eval")
        )
        if self.group.leads and fit.left_out and not events(db, self.run.id):
            self._note(fit.words, 0)
        task = Task(
            prompts=[prompt.text for prompt in fit.prompts],
            scorer=self.lab.reward_model(self.run.reward_model_id, "reward"),
            sample_prompts=[prompt.text for prompt in aside.prompts][: self.config.sample_count],
            gold=load_judge(judge).score if judge else None,
            ptx_texts=pretraining_texts(self.lab.home, self.run, self.config.seed) if self.config.ptx_coef > 0 else (),
        )
        return PolicyTrainer(backbone, adapters, task, self.config, adapter=SLOT, tick=self.tick, group=self.group)

    def _resume(self) -> list[RunEvent]:
        """Continue from the newest whole checkpoint; returns the recorded events that are still to be replayed."""
        found = load_latest(self.folder) if self.group.leads else None
        self.group.told(None)  # the folder is tidied up: now the others may look
        if not self.group.leads:
            found = load_latest(self.folder, writes=False)
        if found is not None:
            self.trainer.load_state(*found)
        step = self.trainer.steps_done
        if self.group.leads:
            truncate_after(self.lab.db, self.run.id, step)
            self._note_loss(self.run.step, step)
        known = standing(events(self.lab.db, self.run.id))
        unsaved = (EventKind.SWITCH_REWARD, EventKind.NOTE)  # knobs are in the checkpoint; these are not
        for event in lasting([event for event in known if event.kind in unsaved and (event.applied_step or 0) < step]):
            self._apply(event)
        return [event for event in known if (event.applied_step or 0) >= step]

    def _note_loss(self, reached: int, step: int) -> None:
        """Say in the run's history which steps are taken once more, because they came after the last checkpoint."""
        if reached > step:
            again = f"steps {step + 1} to {reached}" if reached > step + 1 else f"step {reached}"
            self._note(f"{again} taken again", step)

    def _note(self, words: str, step: int, **more: int) -> RunEvent:
        """A line of the run's history."""
        note = add_event(self.lab.db, self.run.id, EventKind.NOTE, {"words": words, **more})
        mark_event(self.lab.db, note.id, step)
        return note

    def execute(self) -> RunStatus:
        """Train until the end or until somebody stops it. Sets the run's status; raises what made it fail."""
        db, run_id = self.lab.db, self.run.id
        before, now = self.run.manifest.get("machine") or {}, machine(self.trainer)
        if words := moved(before, now):
            self._note(words, self.trainer.steps_done)
        set_manifest(db, run_id, self.run.manifest | {"machine": now})
        set_run_status(db, run_id, RunStatus.RUNNING)
        kept = self.trainer.state()
        try:
            if self.trainer.steps_done == 0:
                self._record(StepResult(0, {}, samples=self.trainer.samples()))
            while self.trainer.steps_done < self.config.steps:
                self._controls()
                kept = self.trainer.state()
                self._tell_others(self._applied)
                result = self._step(kept)
                self._record(result)
                kept = self.trainer.state()
                if result.step % self.config.checkpoint_every == 0 or result.step == self.config.steps:
                    self._save(kept)
                self._tell()
        except RunStopped as stop:
            self.trainer.load_state(*kept)
            self._save(kept)
            set_run_status(db, run_id, stop.status, str(stop))
            self._tell_others(None)
            return stop.status
        except Exception as error:
            with suppress(StoreError):  # what made it fail matters more; the worker insists on recording it
                set_run_status(db, run_id, RunStatus.FAILED, explain_together(error, self.group, RUN_BROKE))
            raise
        set_run_status(db, run_id, RunStatus.DONE)
        self._tell_others(None)
        return RunStatus.DONE

    def follow(self) -> None:
        """In a process that does not lead: do every step that the leading one does, and write nothing."""
        if self.trainer.steps_done == 0:
            self.trainer.samples()
        while (events := self.group.told(None)) is not None:
            for event in events:
                self._apply(event)
            self.trainer.run_step()

    def _tell_others(self, changes: list[RunEvent] | None) -> None:
        """What changed since the last step, for the processes that follow; None: there is no next step."""
        self.group.told(changes)
        self._applied = []

    def _step(self, kept: State) -> StepResult:
        """One step; where memory runs out, the same step again in half as large pieces, down to single rows."""
        while True:
            try:
                return self.trainer.run_step()
            except RuntimeError as error:
                config = self.trainer.config
                largest = min(config.micro_batch, math.ceil(config.responses / config.minibatches))
                if not out_of_memory(error) or largest == 1 or self.group.size > 1:
                    raise
            self.trainer.load_state(*kept)
            free_memory(self.trainer.backbone)
            smaller = largest // 2
            step = self.trainer.steps_done + 1
            words = f"memory ran out in step {step}; it goes on with micro_batch {smaller}: slower, same result"
            self._apply(self._note(words, self.trainer.steps_done, micro_batch=smaller))

    def _record(self, result: StepResult) -> None:
        """Store a step. Where somebody else is writing it is tried again for a while: a large import may take minutes."""
        patience = time.monotonic() + RECORDING_S
        while True:
            try:
                return record_step(self.lab.db, self.run.id, result)
            except BusyStoreError as error:
                if time.monotonic() > patience or self.leaving():
                    raise
                log.warning("step %d could not be stored, and is tried again: %s", result.step, error)
                time.sleep(1.0)

    def _save(self, state: State) -> None:
        save_checkpoint(self.folder, self.trainer.adapters, SLOT, *state)

    def _tell(self) -> None:
        done = self.trainer.steps_done
        now = time.monotonic()
        per_step = (now - self._began) / max(1, done - self._first)
        if not self._warm:  # the first step takes longer, and is left out once there are others
            self._began, self._first, self._warm = now, done, True
        known = {"run_id": self.run.id, "step": done}
        self.progress(done / self.config.steps, per_step * (self.config.steps - done), known)

    def tick(self) -> None:
        """Between minibatches and every few tokens: leave if told to, pause, stop, serve others.

        Of several processes none may leave in mid-step: they obey between steps, and the engine that started them serves.
        """
        if self.group.size > 1:
            return
        if time.monotonic() - self._looked < POLL_EVERY_S:
            return
        if self.leaving():
            raise RunStopped(RunStatus.INTERRUPTED, LEAVES)
        self.serve()
        self._obey()
        self._looked = time.monotonic()

    def _controls(self) -> None:
        """At a step's boundary: replay what was recorded for this step, then take what people asked for since."""
        step = self.trainer.steps_done
        due = [event for event in self.replay if event.applied_step == step]
        self.replay = [event for event in self.replay if (event.applied_step or 0) > step]
        for event in due:
            self._apply(event)
        self._obey()
        told = [event for event in pending_events(self.lab.db, self.run.id) if event.kind not in HALTS]
        last = lasting(told)
        for event in told:
            mark_event(self.lab.db, event.id, step)
            if event in last:
                self._apply(event)
            # Told after a failure, while the run resumes from before it: what it takes back is not to be replayed.
            self.replay = [old for old in self.replay if told_by(event) is None or told_by(old) != told_by(event)]

    def _apply(self, event: RunEvent) -> None:
        """A knob or a switch of the reward model. A bad value was refused when it was asked for; if not, it is noted."""
        self._applied.append(event)
        try:
            if event.kind is EventKind.SET:
                self.trainer.set_knob(str(event.payload["name"]), float(event.payload["value"]))
            elif event.kind is EventKind.SWITCH_REWARD:
                scorer = self.lab.reward_model(int(event.payload["reward_model_id"]), "reward")
                self.trainer.use_scorer(scorer)
            elif event.kind is EventKind.NOTE and "micro_batch" in event.payload:
                self.trainer.config = self.trainer.config.replace(micro_batch=int(event.payload["micro_batch"]))
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            if self.group.leads:
                set_run_status(self.lab.db, self.run.id, RunStatus.RUNNING, f"a change was ignored: {error}")

    def _obey(self) -> None:
        """Every pause and stop that waits; looked up anew each time, since a pause may have taken later events with it."""
        while waiting := [event for event in pending_events(self.lab.db, self.run.id) if event.kind in HALTS]:
            self._halt(waiting[0])

    def _halt(self, event: RunEvent) -> None:
        """Obey a stop, or wait until a pause is lifted; short jobs are served meanwhile. Changes nothing of the run."""
        db, run_id = self.lab.db, self.run.id
        mark_event(db, event.id, self.trainer.steps_done)
        if event.kind is EventKind.STOP:
            raise RunStopped(RunStatus.STOPPED, f"stopped after step {self.trainer.steps_done}; it can be resumed")
        set_run_status(db, run_id, RunStatus.PAUSED, f"paused in step {self.trainer.steps_done + 1}")
        since = time.monotonic()
        while True:
            if self.leaving():
                raise RunStopped(RunStatus.INTERRUPTED, "the engine was asked to leave while the run was paused")
            for later in pending_events(db, run_id):
                if later.kind is EventKind.STOP:
                    self._halt(later)
                if later.kind is EventKind.PAUSE:
                    mark_event(db, later.id, self.trainer.steps_done)  # asked twice: one resume lifts both
                if later.kind is EventKind.RESUME:
                    mark_event(db, later.id, self.trainer.steps_done)
                    if later.id < event.id:
                        continue  # it was meant for something before this pause
                    set_run_status(db, run_id, RunStatus.RUNNING)
                    self._began += time.monotonic() - since  # a pause tells nothing of other steps
                    return
            self.serve()
            time.sleep(POLL_EVERY_S)
