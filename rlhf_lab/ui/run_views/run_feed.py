"""What the Train screen polls once a second: only the changes since its last poll.

The curves of a run are cached and extended, so that a poll takes as long at step 10,000 as at step 10, for any number of pages.
The `epoch` identifies one uninterrupted history: it changes when steps were rolled back (a resume from an older checkpoint), and
pages are then sent everything again ("reset"). So are pages that fell behind, for example because the computer slept.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, final

from typing_extensions import TypedDict

from rlhf_lab.common.algorithms import algorithm_of, spec_of
from rlhf_lab.common.curves import Point, downsample
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, EngineState, JobStatus, RunStatus
from rlhf_lab.common.records import EngineStatus, Job, Run
from rlhf_lab.config.kl_control import kl_control_of
from rlhf_lab.config.policy import PolicyConfig, adapted_settings
from rlhf_lab.jobs import run_control
from rlhf_lab.jobs.engine_process import engine_state
from rlhf_lab.quality.brake import released_step
from rlhf_lab.rewards.terms import TERMS_KEY, has_score_unit, read_terms
from rlhf_lab.store.database import Database
from rlhf_lab.store.live_runs import answers_version
from rlhf_lab.store.projects import projects
from rlhf_lab.store.reward_model_list import ListedRewardModel, list_reward_models
from rlhf_lab.store.run_metrics import metric_names, metric_series, sample_steps
from rlhf_lab.store.runs import events, runs
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.run_views.brake_view import BrakeView, brake_view, has_brake
from rlhf_lab.ui.run_views.curve_diagnosis import Level, diagnose
from rlhf_lab.ui.run_views.run_summary import ChangeMarker, JsonPoint, RunState, RunView, SelfChecks
from rlhf_lab.ui.shared.api import Payload, revision_of
from rlhf_lab.ui.shared.charts import CURVES

BRAKE_CACHED_S = 60.0
MAX_POINTS = 1000  # of a curve sent at once
MAX_CACHED_RUNS = 8
MAX_LISTED = 50  # runs in the picker
MAX_MODELS = 30  # reward models a run can be switched to
CHART_METRICS = tuple(curve.metric for curve in CURVES)
SCORE_METRICS = tuple(curve.metric for curve in CURVES if curve.unit == "sd")
#: The metric with the value in use of each live setting; a KL budget or a schedule changes it during a run.
VALUES_IN_USE = {"beta": "objective/kl_coef", "lr": "lr"}
FEED_METRICS = (
    *CHART_METRICS, *VALUES_IN_USE.values(), "objective/score_clipfrac", "objective/non_score_reward",
    "val/stop_token_rate", "val/first_ratio_deviation", "val/explained_variance", "eval/best_step", "eval/scores", "eval/kl",
    "live/head", "live/kl_budget", "epoch",
)  # fmt: skip


class FeedQuery(Payload):
    """run: the id of the run to show, anything else for the newest. The other fields are values of the last reply."""

    run: int | str | None = None
    epoch: str | None = None
    after_step: int = -1  # last_step of the last reply
    static_id: str | None = None
    revision: str | None = None


class DiagnosisRow(TypedDict):
    level: Level
    message: str


class LiveState(TypedDict):
    """The part of a reply that may change with every step. in_use: the value of each live setting at the newest step. eta_s:
    seconds. static: sent if static_id changed."""

    run: RunState
    in_use: dict[str, float]
    verdicts: dict[str, DiagnosisRow]
    checks: SelfChecks
    pending_changes: list[str]
    status_text: str
    best_text: str
    brake: BrakeView | None
    eta_s: float | None
    static: "NotRequired[StaticState]"


class StaticState(TypedDict):
    """The part of a reply that rarely changes. runs: (id, name, status); reward_models: (id, label); reward_terms: (metric,
    weight). without_unit: metrics that have no unit, unlike those of other runs. adapted_settings: the live settings that the run
    itself changes while nobody sets them."""

    label_source: str
    tracking: str
    runs: list[tuple[int, str, RunStatus]]
    events: list[ChangeMarker]
    reward_terms: list[tuple[str, float]]
    without_unit: NotRequired[list[str]]  # not in the shipped recording
    other_metrics: list[str]
    live_settings: list[str]
    adapted_settings: tuple[str, ...]
    has_rollouts: bool
    reward_models: list[tuple[int, str]]


@final
class FeedReply(LiveState):
    """points: by metric; all points after a reset, otherwise the new ones."""

    revision: str
    epoch: str
    elapsed_s: float | None  # since the activity of status_text began
    reset: bool
    last_step: int
    points: dict[str, list[JsonPoint]]
    sample_steps: list[int]
    static_id: str


class RunElsewhere(TypedDict):
    """An active run of another project."""

    id: int
    name: str
    status: RunStatus
    project: str


@final
class NoRun(TypedDict):
    """The reply for a project without runs."""

    run: None
    elsewhere: list[RunElsewhere]


@final
class UnchangedFeed(TypedDict):
    """The reply to a page that shows the run's present state."""

    unchanged: bool


class CurveCache:
    """The curves of one run up to the step in the run's row; `epoch` changes when points already read become invalid."""

    def __init__(self, run_id: int) -> None:
        self.run_id = run_id
        self.steps_with_samples: list[int] = []
        self._reset()

    def _reset(self) -> None:
        self.curves: dict[str, list[Point]] = {name: [] for name in FEED_METRICS}
        self.last_step = -1  # the last step in the curves, -1 before the first
        self.epoch = f"{self.run_id}.{time.time_ns()}"

    def refresh(self, db: Database, step: int) -> None:
        """Read new points up to `step`. Later ones are left to the next call, otherwise they would be sent twice."""
        last_known = max(self.last_step, 0)
        # Read the last known step again: if its values changed, the history was rewritten.
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

    def until(self, step: int) -> "CurveCache":
        """What it held when the run had made so many steps."""
        then = CurveCache(self.run_id)
        then.curves = {name: [point for point in curve if point[0] <= step] for name, curve in self.curves.items()}
        then.steps_with_samples = [sample_step for sample_step in self.steps_with_samples if sample_step <= step]
        then.last_step = step
        return then

    def must_reset(self, epoch: str | None, after_step: int) -> bool:
        """Whether a page that has the points of an epoch up to a step is sent all points again."""
        return epoch != self.epoch or self.last_step - after_step > MAX_POINTS

    def points_since(self, after_step: int, *, full: bool) -> dict[str, list[JsonPoint]]:
        """The points of the charts: all, downsampled, or those after a step."""
        points_by_metric = {}
        for name in CHART_METRICS:
            curve = self.curves[name]
            points = downsample(curve, MAX_POINTS) if full else [p for p in curve[-MAX_POINTS:] if p[0] > after_step]
            if points:
                points_by_metric[name] = run_summary.encode_points(points)
        return points_by_metric


def _value_repr_at(points: list[Point], step: int) -> str:
    """The value at a step as text, because NaN does not equal itself; "" if there is none."""
    return next((repr(value) for point_step, value in points if point_step == step), "")


@dataclass(frozen=True)
class _RunStatus:
    """The rows that a reply depends on, read once for each poll."""

    view: RunView
    project_runs: list[Run]
    job: Job | None
    engine: EngineStatus
    brake: BrakeView | None
    models: list[ListedRewardModel]

    def revision(self) -> str:
        """Changes whenever a page would show something else."""
        run, job, engine = self.view.run, self.job, self.engine
        return revision_of(
            [
                run.id,
                run.updated_at,
                len(self.view.events),
                sum(event.applied_step is None for event in self.view.events),
                job and (job.id, job.status, job.progress, _sampling(job)),
                engine.state,
                engine.row and engine.row.id,
                self.brake,
                [model.id for model in self.models],
                len(self.project_runs),
                max((other.updated_at for other in self.project_runs if other.id != run.id), default=0),
            ]
        )

    def activity_text(self, *, has_base_samples: bool) -> str:
        run, job, engine = self.view.run, self.job, self.engine
        without_engine = job is None and run.status is RunStatus.RUNNING  # its processes were not started by an engine
        return run_summary.activity_text(
            run,
            EngineState.ALIVE if without_engine else engine.state,
            is_running=job is not None and job.status is JobStatus.RUNNING,
            has_base_samples=has_base_samples,
            sampling=_sampling(job),
            waits_for=[
                other.id for other in self.project_runs if other.id < run.id and other.status in ACTIVE_RUN_STATUSES
            ],
            engine_restarted=job is not None and engine.row is not None and engine.row.started_at > run.updated_at,
        )


def _sampling(job: Job | None) -> dict[str, Any] | None:
    """The progress of the texts that are sampled before the first step."""
    return (job.result or {}).get("sampling") if job is not None else None


@dataclass(frozen=True)
class _Snapshot:
    """The data that every page gets at one revision."""

    revision: str
    live: LiveState
    static: StaticState
    static_id: str
    started_at: float | None


class RunFeed:
    """Answers the polls of all pages of a server."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._lock = threading.Lock()
        self._caches: OrderedDict[int, tuple[CurveCache, _Snapshot | None]] = OrderedDict()

    def poll(self, query: FeedQuery) -> FeedReply | NoRun | UnchangedFeed:
        project_runs = runs(self.ctx.db, self.ctx.project.id)
        run = run_summary.select_run(project_runs, query.run)
        if run is None:
            return {"run": None, "elsewhere": runs_elsewhere(self.ctx)}
        return self._reply(query, run, project_runs)

    def full_reply(self, run: Run) -> FeedReply:
        """All that the page would get of a run, of any project."""
        reply = self._reply(FeedQuery(), run, runs(self.ctx.db, run.project_id))
        assert "points" in reply
        return reply

    def states_at(self, run: Run, steps: Sequence[int]) -> dict[int, LiveState]:
        """What the page showed of a run when these steps had ended, but for what the lab did then and answers that came later."""
        db, view = self.ctx.db, RunView.load(self.ctx.db, run)
        cache, engine, states = CurveCache(run.id), engine_state(db), {}
        cache.refresh(db, run.step)
        for step in steps:
            events_then = [
                event for event in view.events if event.applied_step is not None and event.applied_step <= step
            ]
            run_then = replace(run, step=step, status=RunStatus.RUNNING if step < run.step else run.status)
            status = _RunStatus(RunView(run_then, events_then), [], None, engine, None, [])
            states[step] = _live_state(status, cache.until(step)) | {"status_text": ""}
        return states

    def _reply(self, query: FeedQuery, run: Run, project_runs: list[Run]) -> FeedReply | UnchangedFeed:
        db, view = self.ctx.db, RunView.load(self.ctx.db, run)
        job, models = run_control.open_job(db, run.id), list_reward_models(db, run.project_id)
        status = _RunStatus(view, project_runs, job, engine_state(db), self._brake(run), models)
        revision = status.revision()
        if query.revision == revision:
            return {"unchanged": True}
        with self._lock:
            cache, snapshot = self._refreshed(status, revision)
            started_at, reset = snapshot.started_at, cache.must_reset(query.epoch, query.after_step)
            reply: FeedReply = {
                **snapshot.live,
                "revision": revision,
                "epoch": cache.epoch,
                "elapsed_s": None if started_at is None else round(max(0.0, time.time() - started_at), 1),
                "reset": reset,
                "last_step": cache.last_step,
                "points": cache.points_since(query.after_step, full=reset),
                "sample_steps": [step for step in cache.steps_with_samples if reset or step > query.after_step],
                "static_id": snapshot.static_id,
            }
        if query.static_id != snapshot.static_id:
            reply["static"] = snapshot.static
        return reply

    def _brake(self, run: Run) -> BrakeView | None:
        """Computed once for each state of the answers."""
        if not has_brake(run):
            return None
        released, version = released_step(events(self.ctx.db, run.id)), answers_version(self.ctx.db, run.id)
        key = f"train/brake/{run.id}/{run.status}/{released}/{version}"
        return self.ctx.cache.get(key, BRAKE_CACHED_S, lambda: brake_view(self.ctx.db, run))

    def _refreshed(self, status: _RunStatus, revision: str) -> tuple[CurveCache, _Snapshot]:
        run = status.view.run
        cache, snapshot = self._caches.pop(run.id, (CurveCache(run.id), None))
        if snapshot is None or snapshot.revision != revision:
            cache.refresh(self.ctx.db, run.step)
            static = self._static_state(status)
            started_at = run_summary.activity_started_at(run, status.job)
            static_id = revision_of([run.id, static])  # a page that shows another run starts empty
            snapshot = _Snapshot(revision, _live_state(status, cache), static, static_id, started_at)
        self._caches[run.id] = (cache, snapshot)
        while len(self._caches) > MAX_CACHED_RUNS:
            self._caches.popitem(last=False)
        return cache, snapshot

    def _static_state(self, status: _RunStatus) -> StaticState:
        db, view, run = self.ctx.db, status.view, status.view.run
        reward_model_id = run_summary.current_reward_model_id(view)
        listed_runs = run_summary.newest_rows(status.project_runs, MAX_LISTED, run.id)
        models = run_summary.newest_rows(status.models, MAX_MODELS, reward_model_id)
        terms = read_terms(run.manifest.get(TERMS_KEY) or [])
        reward_terms = [(f"objective/reward/{term.label}", term.weight) for term in terms]
        drawn = {*CHART_METRICS, *(metric for metric, _ in reward_terms)}
        logged = [str(event.payload["words"]) for event in view.events if "tracker" in event.payload]
        source = run_summary.label_source_text(db, run, reward_model_id, run_summary.ignored_by_heads(view))
        return {
            "label_source": source,
            "tracking": logged[-1] if logged else "",
            "runs": [(other.id, other.name, other.status) for other in listed_runs],
            "events": run_summary.change_markers(view),
            "reward_terms": reward_terms,
            "without_unit": [] if has_score_unit(run.config, run.manifest) else list(SCORE_METRICS),
            "other_metrics": [name for name in metric_names(db, run.id) if name not in drawn],
            "live_settings": run_summary.live_settings(run),
            "adapted_settings": adapted_settings(run.config),
            "has_rollouts": not spec_of(algorithm_of(run.config)).is_offline,
            "reward_models": [(row.id, run_summary.reward_model_label(row)) for row in models],
        }


def feed_of(ctx: Context) -> RunFeed:
    """The feed of a page server."""
    return ctx.cache.get("train/feed", math.inf, lambda: RunFeed(ctx))


def runs_elsewhere(ctx: Context) -> list[RunElsewhere]:
    """The active runs of other projects, which the page names where it has no run of its own to show."""
    names = {project.id: project.name for project in projects(ctx.db)}
    return [
        {"id": run.id, "name": run.name, "status": run.status, "project": names.get(run.project_id, "")}
        for run in run_control.active_runs(ctx.db)
        if run.project_id != ctx.project.id
    ]


def runs_note(ctx: Context) -> str:
    """Sentences about the active runs of other projects, with a space before them; "" if there are none."""
    sentences = [f' Run {run["id"]} of "{run["project"]}" is {run["status"]}.' for run in runs_elsewhere(ctx)]
    return f"{''.join(sentences)} Open that project to watch or stop it." if sentences else ""


def _live_state(status: _RunStatus, cache: CurveCache) -> LiveState:
    view, job = status.view, status.job
    curves = run_summary.since_last_rescale(cache.curves, view.events)
    activity_text = status.activity_text(has_base_samples=bool(cache.steps_with_samples))
    in_use = {name: cache.curves[metric][-1][1] for name, metric in VALUES_IN_USE.items() if cache.curves[metric]}
    state = run_summary.current_state(view, in_use)
    config = view.run.config
    if allowed := cache.curves["live/kl_budget"]:
        config = config | {"kl_budget": round(allowed[-1][1], 2)}
    has_stopped = view.run.status not in (RunStatus.QUEUED, RunStatus.RUNNING)
    best_text = run_summary.best_checkpoint_text(config, cache.curves) if has_stopped else ""
    diagnoses = diagnose(
        curves,
        run_summary.applied_changes(view, {name: cache.curves[metric] for name, metric in VALUES_IN_USE.items()}),
        kl_control_of(config),
        algorithm_of(view.run.config),
        has_reward_model=view.run.reward_model_id is not None or bool(config.get("live")),
        has_terms=bool(view.run.manifest.get(TERMS_KEY)),
        missing_eos_penalty=view.run.config.get("missing_eos_penalty", PolicyConfig.missing_eos_penalty),
        set_by_hand=state["set_by_hand"],
    )
    return {
        "run": state,
        "in_use": in_use,
        "verdicts": {
            name: {"level": level, "message": run_summary.with_scope_note(name, message, view.events)}
            for name, (level, message) in diagnoses.items()
            if name in CHART_METRICS
        },
        "checks": run_summary.self_checks(cache.curves),
        "pending_changes": run_summary.pending_changes(view),
        "status_text": activity_text,
        "best_text": best_text,
        "brake": status.brake,
        "eta_s": job.eta_s if job is not None and job.status is JobStatus.RUNNING else None,
    }
