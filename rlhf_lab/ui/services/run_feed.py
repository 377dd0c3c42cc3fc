"""What a page is told of a run once a second: only what is new since its last question.

    Live(ctx).points({"run": id or None, "line": …, "since": step, "frame": …, "seen": …}) -> a reply, or {"same": True}

The curves of a run are kept and only extended, so a poll costs the same at step 10 and at step 10,000, whoever asks. A
`epoch` names one unbroken history: when steps were taken back (a resume from an older checkpoint) it changes, and pages
are sent everything again ("reset").
"""

import json
import threading
import time
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from rlhf_lab.common.curves import Point, downsample
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, EngineState, JobStatus, RunStatus
from rlhf_lab.common.records import Run
from rlhf_lab.jobs import engine_process, run_control
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import metric_names, metric_series, sample_steps
from rlhf_lab.store.runs import events, reward_models, runs
from rlhf_lab.ui.components.charts import CURVES
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.services import run_summary
from rlhf_lab.ui.services.curve_diagnosis import diagnose

MAX_POINTS = 1000  # of a curve sent at once
MAX_CACHED_RUNS = 8  # runs whose curves are kept in memory
MAX_LISTED = 50  # runs in the picker
MAX_MODELS = 30  # reward models a run can be switched to
CHART_METRICS = tuple(curve.metric for curve in CURVES)
FEED_METRICS = (*CHART_METRICS, "objective/score_clipfrac", "val/first_ratio_deviation", "val/explained_variance")


class CurveCache:
    """The curves of one run up to the step its row names; `epoch` changes when what was read before is no longer true."""

    def __init__(self, run_id: int) -> None:
        self.run_id, self.epoch = run_id, ""
        self.curves: dict[str, list[Point]] = {}
        self.steps_with_samples: list[int] = []
        self.last_step = -1  # the last step that is in, -1 before anything is
        self._reset()

    def refresh(self, db: Database, step: int) -> None:
        """Read what is new, up to `step`: rows written meanwhile wait for the next time, or they would be told twice."""
        last_known = max(self.last_step, 0)
        # The step known last is read once more: only if it says the same may the rest be believed.
        new_points = metric_series(db, self.run_id, FEED_METRICS, last_known - 1, max_points=10**9)
        if any(
            _value_repr_at(new_points[name], last_known) != _value_repr_at(self.curves[name][-1:], last_known)
            for name in FEED_METRICS
        ):
            self._reset()
            last_known, new_points = 0, metric_series(db, self.run_id, FEED_METRICS, -1, max_points=10**9)
        for name in FEED_METRICS:
            self.curves[name] += [point for point in new_points[name] if last_known < point[0] <= step]
        self.steps_with_samples = [sample_step for sample_step in sample_steps(db, self.run_id) if sample_step <= step]
        self.last_step = step if step or self.steps_with_samples else -1

    def _reset(self) -> None:
        self.curves = {name: [] for name in FEED_METRICS}
        self.last_step = -1
        self.epoch = f"{self.run_id}.{time.time_ns()}"

    def points_since(self, after_step: int, *, full: bool) -> dict[str, list[list[float | None]]]:
        """The drawn curves' points: all, thinned, or those after a step."""
        points_by_metric = {}
        for name in CHART_METRICS:
            curve = self.curves[name]
            new_points = (
                downsample(curve, MAX_POINTS)
                if full
                else [point for point in curve[-MAX_POINTS:] if point[0] > after_step]
            )
            if new_points:
                points_by_metric[name] = run_summary.encode_points(new_points)
        return points_by_metric


def _value_repr_at(points: list[Point], step: int) -> str:
    """The value at a step as words, because NaN is not equal to itself; "" where there is none."""
    return next((repr(value) for point_step, value in points if point_step == step), "")


@dataclass
class _RunSnapshot:
    """What is said of a run at one revision, the same to everybody."""

    revision: str
    live_state: dict[str, Any]
    static_state: dict[str, Any]
    started_at: float | None


class RunFeed:
    """The reads of the Train screen, for all pages of a server."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._lock = threading.Lock()
        self._caches: OrderedDict[int, tuple[CurveCache, _RunSnapshot | None]] = OrderedDict()

    def poll(self, query: dict[str, Any]) -> dict[str, Any]:
        """The reply described above; {"run": None} where the project has no run."""
        ctx = self.ctx
        project_runs = runs(ctx.db, ctx.project.id)
        run = run_summary.select_run(project_runs, query.get("run"))
        if run is None:
            return {"run": None}
        revision = self._revision(run, project_runs)
        if query.get("seen") == revision:
            return {"same": True}
        with self._lock:
            cache, snapshot = self._refreshed(run, project_runs, revision)
            after_step = int(query.get("since", -1))
            reset = query.get("line") != cache.epoch
            reply = snapshot.live_state | {
                "seen": revision,
                "line": cache.epoch,
                "for_s": None if snapshot.started_at is None else round(max(0.0, time.time() - snapshot.started_at), 1),
                "reset": reset,
                "to": cache.last_step,
                "points": cache.points_since(after_step, full=reset),
                "sampled": [step for step in cache.steps_with_samples if reset or step > after_step],
            }
        static_crc = zlib.crc32(json.dumps(snapshot.static_state, sort_keys=True).encode())
        return (
            reply
            | {"frame_id": static_crc}
            | ({} if query.get("frame") == static_crc else {"frame": snapshot.static_state})
        )

    def _revision(self, run: Run, project_runs: list[Run]) -> str:
        """Changes whenever a page would show something else."""
        job, engine = run_control.open_job(self.ctx.db, run.id), engine_process.engine_state(self.ctx.db)
        run_events = events(self.ctx.db, run.id)
        fields = [
            run.id,
            run.updated_at,
            len(run_events),
            sum(event.applied_step is None for event in run_events),
            job and (job.id, job.status, job.progress),
            engine.state,
            engine.row and engine.row.id,
            len(project_runs),
            max(other.updated_at for other in project_runs if other.id != run.id) if len(project_runs) > 1 else 0,
        ]
        return f"{zlib.crc32(repr(fields).encode()):x}"

    def _refreshed(self, run: Run, project_runs: list[Run], revision: str) -> tuple[CurveCache, _RunSnapshot]:
        cache, snapshot = self._caches.pop(run.id, (CurveCache(run.id), None))
        if snapshot is None or snapshot.revision != revision:
            cache.refresh(self.ctx.db, run.step)
            started_at = run_summary.activity_started_at(run, run_control.open_job(self.ctx.db, run.id))
            snapshot = _RunSnapshot(
                revision, self._live_state(run, project_runs, cache), self._static_state(run, project_runs), started_at
            )
        self._caches[run.id] = (cache, snapshot)
        while len(self._caches) > MAX_CACHED_RUNS:
            self._caches.popitem(last=False)
        return cache, snapshot

    def _live_state(self, run: Run, project_runs: list[Run], cache: CurveCache) -> dict[str, Any]:
        db = self.ctx.db
        job, engine = run_control.open_job(db, run.id), engine_process.engine_state(db)
        is_running = job is not None and job.status is JobStatus.RUNNING
        run_events = events(db, run.id)
        verdicts = diagnose(
            run_summary.since_last_rescale(cache.curves, run_events), run_summary.applied_changes(run, run_events)
        )
        waits_for = [other.id for other in project_runs if other.id < run.id and other.status in ACTIVE_RUN_STATUSES]
        engine_restarted = job is not None and engine.row is not None and engine.row.started_at > run.updated_at
        without_engine = job is None and run.status is RunStatus.RUNNING  # in processes that no engine has to do with
        engine_state = EngineState.ALIVE if without_engine else engine.state
        activity = run_summary.activity_text(
            run,
            engine_state,
            is_running=is_running,
            has_base_samples=bool(cache.steps_with_samples),
            waits_for=waits_for,
            engine_restarted=engine_restarted,
        )
        return {
            "run": run_summary.current_state(run, run_events),
            "verdicts": {
                name: [verdict.level, run_summary.with_scope_note(name, verdict.message, run_events)]
                for name, verdict in verdicts.items()
                if name in CHART_METRICS
            },
            "checks": run_summary.self_checks(cache.curves),
            "asked": run_summary.pending_changes(run, run_events),
            "doing": activity,
            "eta_s": job.eta_s if job is not None and is_running else None,
        }  # fmt: skip

    def _static_state(self, run: Run, project_runs: list[Run]) -> dict[str, Any]:
        """What hardly ever changes; sent when it did."""
        db, run_events = self.ctx.db, events(self.ctx.db, run.id)
        reward_model_id = run_summary.current_reward_model_id(run, run_events)
        models = run_summary.newest_rows(reward_models(db, run.project_id), MAX_MODELS, reward_model_id)
        return {
            "about": run_summary.label_source_text(db, run, reward_model_id),
            "runs": [
                [other.id, other.name, other.status]
                for other in run_summary.newest_rows(project_runs, MAX_LISTED, run.id)
            ],
            "events": run_summary.change_markers(run, run_events),
            "names": [name for name in metric_names(db, run.id) if name not in CHART_METRICS],
            "models": [[row.id, run_summary.reward_model_label(row)] for row in models],
        }
