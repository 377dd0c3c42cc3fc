"""What a page is told of a run once a second: only what is new since its last question.

    Live(ctx).points({"run": id or None, "line": …, "since": step, "frame": …, "seen": …}) -> a reply, or {"same": True}

The curves of a run are kept and only extended, so a poll costs the same at step 10 and at step 10,000, whoever asks. A
`line` names one unbroken history: when steps were taken back (a resume from an older checkpoint) it changes, and pages
are sent everything again ("reset").
"""

import json
import threading
import time
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from rlhf_lab.jobs import control, supervisor
from rlhf_lab.kinds import GOING, EngineState, JobStatus, RunStatus
from rlhf_lab.records import Run
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import events, reward_models, runs
from rlhf_lab.store.steps import Point, metric_names, metric_series, sample_steps, thin
from rlhf_lab.ui import story
from rlhf_lab.ui.charts import CURVES
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.diagnosis import diagnose

MAX_POINTS = 1000  # of a curve sent at once
KEPT = 8  # runs whose curves are kept in memory
MAX_LISTED = 50  # runs in the picker
MAX_MODELS = 30  # reward models a run can be switched to
DRAWN = tuple(curve.metric for curve in CURVES)
READ = (*DRAWN, "objective/score_clipfrac", "val/first_ratio_deviation", "val/explained_variance")


class History:
    """The curves of one run up to the step its row names; `line` changes when what was read before is no longer true."""

    def __init__(self, run_id: int) -> None:
        self.run_id, self.line = run_id, ""
        self.curves: dict[str, list[Point]] = {}
        self.sampled: list[int] = []
        self.to = -1  # the last step that is in, -1 before anything is
        self._forget()

    def follow(self, db: Database, step: int) -> None:
        """Read what is new, up to `step`: rows written meanwhile wait for the next time, or they would be told twice."""
        last = max(self.to, 0)
        # The step known last is read once more: only if it says the same may the rest be believed.
        new = metric_series(db, self.run_id, READ, last - 1, max_points=10**9)
        if any(_at(new[name], last) != _at(self.curves[name][-1:], last) for name in READ):
            self._forget()
            last, new = 0, metric_series(db, self.run_id, READ, -1, max_points=10**9)
        for name in READ:
            self.curves[name] += [point for point in new[name] if last < point[0] <= step]
        self.sampled = [at for at in sample_steps(db, self.run_id) if at <= step]
        self.to = step if step or self.sampled else -1

    def _forget(self) -> None:
        self.curves = {name: [] for name in READ}
        self.to = -1
        self.line = f"{self.run_id}.{time.time_ns()}"

    def told(self, since: int, *, everything: bool) -> dict[str, list[list[float | None]]]:
        """The drawn curves' points: all, thinned, or those after a step."""
        found = {}
        for name in DRAWN:
            curve = self.curves[name]
            new = (
                thin(curve, MAX_POINTS) if everything else [point for point in curve[-MAX_POINTS:] if point[0] > since]
            )
            if new:
                found[name] = story.packed(new)
        return found


def _at(points: list[Point], step: int) -> str:
    """The value at a step as words, because NaN is not equal to itself; "" where there is none."""
    return next((repr(value) for at, value in points if at == step), "")


@dataclass
class _Told:
    """What is said of a run at one revision, the same to everybody."""

    revision: str
    shared: dict[str, Any]
    frame: dict[str, Any]
    began: float | None


class Live:
    """The reads of the Train screen, for all pages of a server."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._lock = threading.Lock()
        self._histories: OrderedDict[int, tuple[History, _Told | None]] = OrderedDict()

    def points(self, question: dict[str, Any]) -> dict[str, Any]:
        """The reply described above; {"run": None} where the project has no run."""
        ctx = self.ctx
        found = runs(ctx.db, ctx.project.id)
        run = story.pick(found, question.get("run"))
        if run is None:
            return {"run": None}
        revision = self._revision(run, found)
        if question.get("seen") == revision:
            return {"same": True}
        with self._lock:
            history, told = self._look(run, found, revision)
            since = int(question.get("since", -1))
            reset = question.get("line") != history.line
            reply = told.shared | {
                "seen": revision,
                "line": history.line,
                "for_s": None if told.began is None else round(max(0.0, time.time() - told.began), 1),
                "reset": reset,
                "to": history.to,
                "points": history.told(since, everything=reset),
                "sampled": [step for step in history.sampled if reset or step > since],
            }
        frame = zlib.crc32(json.dumps(told.frame, sort_keys=True).encode())
        return reply | {"frame_id": frame} | ({} if question.get("frame") == frame else {"frame": told.frame})

    def _revision(self, run: Run, found: list[Run]) -> str:
        """Changes whenever a page would show something else."""
        job, engine = control.open_job(self.ctx.db, run.id), supervisor.engine_state(self.ctx.db)
        said = events(self.ctx.db, run.id)
        parts = [
            run.id, run.updated_at, len(said), sum(event.applied_step is None for event in said),
            job and (job.id, job.status, job.progress), engine.state, engine.row and engine.row.id,
            len(found), max(other.updated_at for other in found if other.id != run.id) if len(found) > 1 else 0,
        ]  # fmt: skip
        return f"{zlib.crc32(repr(parts).encode()):x}"

    def _look(self, run: Run, found: list[Run], revision: str) -> tuple[History, _Told]:
        history, told = self._histories.pop(run.id, (History(run.id), None))
        if told is None or told.revision != revision:
            history.follow(self.ctx.db, run.step)
            began = story.began(run, control.open_job(self.ctx.db, run.id))
            told = _Told(revision, self._shared(run, found, history), self._frame(run, found), began)
        self._histories[run.id] = (history, told)
        while len(self._histories) > KEPT:
            self._histories.popitem(last=False)
        return history, told

    def _shared(self, run: Run, found: list[Run], history: History) -> dict[str, Any]:
        db = self.ctx.db
        job, engine = control.open_job(db, run.id), supervisor.engine_state(db)
        working = job is not None and job.status is JobStatus.RUNNING
        said = events(db, run.id)
        verdicts = diagnose(story.comparable(history.curves, said), story.turned(run, said))
        waits_for = [other.id for other in found if other.id < run.id and other.status in GOING]
        again = job is not None and engine.row is not None and engine.row.started_at > run.updated_at
        by_hand = job is None and run.status is RunStatus.RUNNING  # in processes that no engine has to do with
        state = EngineState.ALIVE if by_hand else engine.state
        words = story.doing(
            run, state, working=working, sampled=bool(history.sampled), waits_for=waits_for, again=again
        )
        return {
            "run": story.now(run, said),
            "verdicts": {
                name: [verdict.level, story.since(name, verdict.words, said)]
                for name, verdict in verdicts.items()
                if name in DRAWN
            },
            "checks": story.checks(history.curves),
            "asked": story.asked(run, said),
            "doing": words,
            "eta_s": job.eta_s if job is not None and working else None,
        }  # fmt: skip

    def _frame(self, run: Run, found: list[Run]) -> dict[str, Any]:
        """What hardly ever changes; sent when it did."""
        db, said = self.ctx.db, events(self.ctx.db, run.id)
        scorer = story.scorer(run, said)
        models = story.listed(reward_models(db, run.project_id), MAX_MODELS, scorer)
        return {
            "about": story.about(db, run, scorer),
            "runs": [[other.id, other.name, other.status] for other in story.listed(found, MAX_LISTED, run.id)],
            "events": story.marks(run, said),
            "names": [name for name in metric_names(db, run.id) if name not in DRAWN],
            "models": [[row.id, story.reward_words(row)] for row in models],
        }
