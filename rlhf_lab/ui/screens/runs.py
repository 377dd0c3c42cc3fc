"""Screen "Runs & data": the project's runs in a list, several beside each other, and everything to take away."""

import json
import math
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import gradio as gr

from rlhf_lab.common.curves import Point, downsample
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, Choice, RunStatus, Source
from rlhf_lab.common.records import Run
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import run_control
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import events, reward_models, runs
from rlhf_lab.store.votes import vote_counts, voters
from rlhf_lab.ui.components.charts import CURVES, PLOTLY_CONFIG, layout, metric_descriptions
from rlhf_lab.ui.components.widgets import SILENT_MULTIPLE_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import if_changed, operator_action, server_function, show_errors
from rlhf_lab.ui.screens import import_data, quality
from rlhf_lab.ui.screens.train import parse_int
from rlhf_lab.ui.services import run_summary
from rlhf_lab.ui.services.curve_diagnosis import WINDOW, trend
from rlhf_lab.ui.services.downloads import DownloadService
from rlhf_lab.ui.services.run_comparison import BUCKETS, GOLD, KL, MAX_RUNS, NO_POINT_LIMIT, SCORE, compare_runs

MAX_LISTED = 200
SPARK_POINTS = 48
RESUMABLE_STATUSES = {*run_control.HALTED_RUN_STATUSES, RunStatus.PAUSED}


def build(ctx: Context, operator: gr.BrowserState) -> None:
    row_cache, download_service = RunRowCache(), DownloadService(ctx)

    def look(query: dict[str, Any]) -> dict[str, Any]:
        return if_changed(runs_overview(ctx, row_cache), query)

    def compare(query: dict[str, Any]) -> dict[str, Any]:
        return comparison(ctx, query)

    data = {
        "layout": layout(250) | {"showlegend": False, "hovermode": "closest"},
        "config": PLOTLY_CONFIG, "abouts": metric_descriptions(), "most": MAX_RUNS, "window": WINDOW, "buckets": BUCKETS,
        "titles": {curve.metric: [curve.title, curve.unit] for curve in CURVES},
    }  # fmt: skip
    reads, scripts = [server_function(look), server_function(compare)], ["runs_take"]
    component = widget("runs", server_functions=reads, charts=True, scripts=scripts, data=data, label="Runs and data")

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operator_action(ctx, secret, event, lambda payload: {"done": handle_action(ctx, payload)})

    def export(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operator_action(ctx, secret, event, lambda payload: {"offer": download_service.create(payload)})

    component.control(show_errors(act), operator, component, **SILENT_MULTIPLE_EVENT)
    component.export(show_errors(export), operator, component, **SILENT_MULTIPLE_EVENT)
    with gr.Accordion("Quality of the labels", open=False, elem_id="runs-quality"):
        quality.build(ctx, operator)
    with gr.Accordion("Import preferences", open=False, elem_id="runs-import"):
        import_data.build(ctx, operator)


class RunRowCache:
    """What the list says of each run; read again only when the run's row changed."""

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
    """A run as a line of the list: where it stands, as the sentences under its curves say it, and a picture of its score."""
    curves = metric_series(db, run.id, [KL, SCORE, GOLD], max_points=NO_POINT_LIMIT)
    recent = run_summary.since_last_rescale(curves, events(db, run.id))
    return {
        "id": run.id,
        "name": run.name,
        "algorithm": str(run.config["algorithm"]),
        "status": run.status,
        "step": run.step,
        "total": run.total_steps,
        "message": run.message,
        "created": run.created_at,
        "score": recent_mean(recent[SCORE]),
        "kl": recent_mean(recent[KL]),
        "gold": recent_mean(recent[GOLD]),
        "spark": [value for _, value in run_summary.encode_points(downsample(curves[SCORE], SPARK_POINTS))],
        "resumable": run.status in RESUMABLE_STATUSES,
        "going": run.status in ACTIVE_RUN_STATUSES,
    }


def recent_mean(points: Sequence[Point]) -> float | None:
    """The mean of the last steps (`curve_diagnosis.WINDOW`); None where there is none, or the newest is not a number."""
    curve_trend = trend(points)
    return float(f"{curve_trend.current:.4g}") if curve_trend and math.isfinite(points[-1][1]) else None


def runs_overview(ctx: Context, row_cache: RunRowCache) -> dict[str, Any]:
    """The list with all that can be exported."""
    project = ctx.project
    counts = vote_counts(ctx.db, project.id)
    labels = {source.value: sum(counts[source].values()) - counts[source][Choice.SKIP] for source in Source}
    project_runs = runs(ctx.db, project.id)
    return {
        "project": project.id,
        "name": project.name,
        "runs": row_cache.rows_for(ctx.db, project_runs[:MAX_LISTED]),
        "more": max(0, len(project_runs) - MAX_LISTED),
        "models": [[row.id, run_summary.reward_model_label(row)] for row in reward_models(ctx.db, project.id)],
        "labels": labels,
        "annotators": {source.value: voters(ctx.db, project.id, source) for source in Source},
    }


def comparison(ctx: Context, query: dict[str, Any]) -> dict[str, Any]:
    """The charts of {"runs": ids, "metric", "seen"}; runs that are gone, or another project's, are left out."""
    requested_ids, metric = query.get("runs") or [], str(query.get("metric") or SCORE)
    if not isinstance(requested_ids, list):
        raise ConfigError("The page asked for no list of runs. Reload it and try again.")
    runs_by_id = {run.id: run for run in runs(ctx.db, ctx.project.id)}
    selected_runs = [runs_by_id[run_id] for run_id in dict.fromkeys(requested_ids) if run_id in runs_by_id][:MAX_RUNS]
    key = [metric, [(run.id, run.name, run.updated_at) for run in selected_runs]]
    revision = f"{zlib.crc32(json.dumps(key).encode()):x}"
    if query.get("seen") == revision:
        return {"same": True}
    return compare_runs(ctx.db, selected_runs, metric) | {"seen": revision, "metric": metric}


def handle_action(ctx: Context, payload: dict[str, Any]) -> str:
    """Rename, resume or delete a run of the open project; returns what to tell the person."""
    action, run_id = str(payload.get("do")), parse_int(payload, "run")
    if run_id not in {run.id for run in runs(ctx.db, ctx.project.id)}:
        raise ConfigError(f"Run {run_id} is not in the open project: it was deleted, or another project was opened.")
    if action == "rename":
        name = run_control.rename(ctx.db, run_id, str(payload.get("name") or ""))
        return f'Run {run_id} is called "{name}" now.'
    if action == "resume":
        run_control.resume(ctx.db, ctx.home, run_id)
        return f"Run {run_id} goes on; watch it under Train."
    if action == "delete":
        run_control.delete(ctx.db, ctx.home, run_id)
        return f"Run {run_id} is deleted, with its numbers and checkpoints."
    raise ConfigError(f'A run cannot be told to "{action}" here. Reload the page and try again.')
