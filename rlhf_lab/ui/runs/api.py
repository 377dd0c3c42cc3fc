"""Screen "Runs & data": the list of the project's runs, a comparison of several, exports, quality of labels, imports."""

import math
import threading
from collections.abc import Sequence
from typing import Any

import gradio as gr

from rlhf_lab.common.curves import Point, downsample
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, RunStatus, Source
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.records import Run
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import run_control
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_model_list import list_reward_models
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import events, runs
from rlhf_lab.store.votes import label_count, vote_counts, voters
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.run_views.curve_diagnosis import WINDOW, trend
from rlhf_lab.ui.run_views.run_comparison import BUCKETS, GOLD, KL, MAX_RUNS, NO_POINT_LIMIT, SCORE, compare_runs
from rlhf_lab.ui.runs.backup import api as backup
from rlhf_lab.ui.runs.hub_mirror import api as hub_mirror
from rlhf_lab.ui.runs.import_data import api as import_data
from rlhf_lab.ui.runs.quality import api as quality
from rlhf_lab.ui.shared.api import Payload, parse_payload
from rlhf_lab.ui.shared.charts import CURVES, PLOTLY_CONFIG, layout, metric_descriptions
from rlhf_lab.ui.shared.downloads import DownloadService, ExportRequest
from rlhf_lab.ui.shared.events import if_changed, operator_action, revision_of
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget

MAX_LISTED = 200
SPARKLINE_POINTS = 48
RESUMABLE_STATUSES = {*run_control.HALTED_RUN_STATUSES, RunStatus.PAUSED}


class ComparisonQuery(Payload):
    runs: tuple[int, ...] = ()
    metric: str = SCORE
    revision: str | None = None


class ExportQuery(Payload):
    """export: the request_id of its ExportRequest."""

    export: int


class RunAction(Payload):
    """action: rename, resume or delete."""

    action: str = ""
    run: int
    name: str = ""


def build(ctx: Context, operator: gr.BrowserState) -> None:
    row_cache, download_service = RunRowCache(), DownloadService(ctx)

    def get_state(query: dict[str, Any]) -> dict[str, Any]:
        return if_changed(runs_overview(ctx, row_cache), query)

    def compare(query: dict[str, Any]) -> dict[str, Any]:
        return comparison(ctx, parse_payload(ComparisonQuery, query))

    def export_progress(query: dict[str, Any]) -> dict[str, Any]:
        return {"fraction": download_service.fraction_written(parse_payload(ExportQuery, query).export)}

    @operator_action(ctx, RunAction)
    def control(payload: RunAction) -> dict[str, Any]:
        return {"message": handle_action(ctx, payload)}

    @operator_action(ctx, ExportRequest)
    def export(payload: ExportRequest) -> dict[str, Any]:
        return {"download": download_service.create(payload)}

    data = {
        "layout": layout(250) | {"showlegend": False, "hovermode": "closest"},
        "config": PLOTLY_CONFIG,
        "descriptions": metric_descriptions(),
        "max_runs": MAX_RUNS,
        "window": WINDOW,
        "buckets": BUCKETS,
        "titles": {curve.metric: [curve.title, curve.unit] for curve in CURVES},
    }
    component = widget(
        "runs",
        "runs/view.js",
        events=("control", "export"),
        server_functions={"get_state": get_state, "compare": compare, "export_progress": export_progress},
        charts=True,
        data=data,
        label="Runs and data",
    )
    component.control(control, operator, component, **SILENT_MULTIPLE_EVENT)
    component.export(export, operator, component, **SILENT_MULTIPLE_EVENT)
    with gr.Accordion("Quality of the labels", open=False, elem_id="runs-quality"):
        quality.build(ctx, operator)
    with gr.Accordion("Import preferences", open=False, elem_id="runs-import"):
        import_data.build(ctx, operator)
    with gr.Accordion("Backup", open=False, elem_id="runs-backup"):
        backup.build(ctx, operator)
        if ctx.mirror is not None:
            hub_mirror.build(ctx, ctx.mirror, operator)


class RunRowCache:
    """The rows of the list, computed again only if the run changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached_rows: dict[int, tuple[float, dict[str, Any]]] = {}

    def rows_for(self, db: Database, project_runs: Sequence[Run]) -> list[dict[str, Any]]:
        with self._lock:
            self._cached_rows = {
                run.id: cached
                if (cached := self._cached_rows.get(run.id)) and cached[0] == run.updated_at
                else (run.updated_at, run_row(db, run))
                for run in project_runs
            }
            return [self._cached_rows[run.id][1] for run in project_runs]


def run_row(db: Database, run: Run) -> dict[str, Any]:
    """A row of the list: the state of the run, recent means (over the same window as the diagnosis), a sparkline of the score."""
    curves = metric_series(db, run.id, [KL, SCORE, GOLD], max_points=NO_POINT_LIMIT)
    recent = run_summary.since_last_rescale(curves, events(db, run.id))
    sparkline = downsample(curves[SCORE], SPARKLINE_POINTS)
    return {
        "id": run.id,
        "name": run.name,
        "algorithm": str(run.config["algorithm"]),
        "status": run.status,
        "step": run.step,
        "total_steps": run.total_steps,
        "message": run.message,
        "created_at": run.created_at,
        "score": recent_mean(recent[SCORE]),
        "kl": recent_mean(recent[KL]),
        "gold": recent_mean(recent[GOLD]),
        "sparkline": [value for _, value in run_summary.encode_points(sparkline)],
        "is_resumable": run.status in RESUMABLE_STATUSES,
        "is_active": run.status in ACTIVE_RUN_STATUSES,
    }


def recent_mean(points: Sequence[Point]) -> float | None:
    """The mean of the last WINDOW steps; None if the curve is empty or its newest value is not finite."""
    curve_trend = trend(points)
    return float(f"{curve_trend.current:.4g}") if curve_trend and math.isfinite(points[-1][1]) else None


def runs_overview(ctx: Context, row_cache: RunRowCache) -> dict[str, Any]:
    """The list of runs and everything that can be exported."""
    project = ctx.project
    counts = vote_counts(ctx.db, project.id)
    project_runs = runs(ctx.db, project.id)
    return {
        "project": project.id,
        "name": project.name,
        "runs": row_cache.rows_for(ctx.db, project_runs[:MAX_LISTED]),
        "lab_command": lab_command(),
        "unlisted_count": max(0, len(project_runs) - MAX_LISTED),
        "reward_models": [
            [row.id, run_summary.reward_model_label(row)] for row in list_reward_models(ctx.db, project.id)
        ],
        "labels": {source.value: label_count(counts[source]) for source in Source},
        "annotators": {source.value: voters(ctx.db, project.id, source) for source in Source},
    }


def comparison(ctx: Context, query: ComparisonQuery) -> dict[str, Any]:
    """The charts of the requested runs; deleted runs and those of other projects are left out."""
    runs_by_id = {run.id: run for run in runs(ctx.db, ctx.project.id)}
    selected_runs = [runs_by_id[run_id] for run_id in dict.fromkeys(query.runs) if run_id in runs_by_id][:MAX_RUNS]
    revision = revision_of([query.metric, [(run.id, run.name, run.updated_at) for run in selected_runs]])
    if query.revision == revision:
        return {"unchanged": True}
    return {**compare_runs(ctx.db, selected_runs, query.metric), "revision": revision, "metric": query.metric}


def handle_action(ctx: Context, payload: RunAction) -> str:
    """Rename, resume or delete a run of the open project; returns a message. Raises LabError."""
    run_id = payload.run
    if run_id not in {run.id for run in runs(ctx.db, ctx.project.id)}:
        raise ConfigError(
            f"Run {run_id} is not in the open project: it was deleted, or another project has been opened."
        )
    match payload.action:
        case "rename":
            return f'Run {run_id} is called "{run_control.rename(ctx.db, run_id, payload.name)}" now.'
        case "resume":
            run_control.resume(ctx.db, ctx.home, run_id)
            return f"Run {run_id} continues; watch it under Train."
        case "delete":
            run_control.delete(ctx.db, ctx.home, run_id)
            return f"Run {run_id} was deleted, with its metrics and checkpoints."
    raise ConfigError(f'There is no action "{payload.action}" for runs. Reload the page and try again.')
