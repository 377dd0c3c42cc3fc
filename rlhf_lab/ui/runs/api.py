"""Screen "Runs & data": the list of the project's runs, a comparison of several, exports, quality of labels, imports."""

import math
import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import gradio as gr
from typing_extensions import TypedDict

from rlhf_lab.common.curves import Point, downsample
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, RunStatus, Source
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.records import Role, Run
from rlhf_lab.jobs import run_control
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_model_list import list_reward_models
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import events, runs
from rlhf_lab.store.votes import label_count, vote_counts, voters
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.run_views.curve_trends import WINDOW, trend
from rlhf_lab.ui.run_views.run_comparison import (
    BUCKETS,
    GOLD,
    KL,
    MAX_RUNS,
    NO_POINT_LIMIT,
    SCORE,
    RunComparison,
    compare_runs,
)
from rlhf_lab.ui.runs.backup import api as backup
from rlhf_lab.ui.runs.downloads import Download, ExportRequest, create_download, remove_old_files
from rlhf_lab.ui.runs.hub_mirror import api as hub_mirror
from rlhf_lab.ui.runs.import_data import api as import_data
from rlhf_lab.ui.runs.quality import api as quality
from rlhf_lab.ui.shared.api import Api, Payload, RunPayload, revision_of
from rlhf_lab.ui.shared.charts import CURVES, PLOTLY_CONFIG, layout
from rlhf_lab.ui.shared.widgets import widget

api = Api("runs")
#: The requests of this screen and of its parts.
APIS = (api, backup.api, hub_mirror.api, import_data.api, quality.api)
MAX_LISTED = 200
SPARKLINE_POINTS = 48
RESUMABLE_STATUSES = {*run_control.HALTED_RUN_STATUSES, RunStatus.PAUSED}


class ComparisonQuery(Payload):
    """revision: of the comparison that the page shows."""

    runs: tuple[int, ...] = ()
    metric: str = SCORE
    revision: str = ""


class NewRunName(RunPayload):
    name: str = ""


class RunRow(TypedDict):
    """A row of the list. score, kl, gold: recent means (`recent_mean`). sparkline: of the score. outside_file: the file with the
    metrics of a run that was made elsewhere, else "". algorithm: "" for such a run."""

    id: int
    name: str
    outside_file: str
    algorithm: str
    status: RunStatus
    step: int
    total_steps: int
    message: str
    created_at: float
    score: float | None
    kl: float | None
    gold: float | None
    sparkline: list[float | None]
    is_resumable: bool
    is_active: bool


class RunsOverview(TypedDict):
    """The list of runs and everything that can be exported. reward_models: (id, label). labels, annotators: by source."""

    project: int
    name: str
    runs: list[RunRow]
    lab_command: str
    unlisted_count: int
    reward_models: list[tuple[int, str]]
    labels: dict[str, int]
    annotators: dict[str, list[str]]


class Comparison(RunComparison):
    revision: str


def build(ctx: Context) -> None:
    remove_old_files(ctx.home)
    data = {
        "layout": layout(250) | {"showlegend": False, "hovermode": "closest"},
        "config": PLOTLY_CONFIG,
        "max_runs": MAX_RUNS,
        "window": WINDOW,
        "buckets": BUCKETS,
        "titles": {curve.metric: [curve.title, curve.unit] for curve in CURVES},
    }
    widget("runs", "runs/view.js", charts=True, data=data, label="Runs and data")
    with gr.Accordion("Quality of the labels", open=False, elem_id="runs-quality"):
        quality.build(ctx)
    with gr.Accordion("Import", open=False, elem_id="runs-import"):
        import_data.build(ctx)
    with gr.Accordion("Backup", open=False, elem_id="runs-backup"):
        backup.build(ctx)
        if ctx.mirror is not None:
            hub_mirror.build(ctx)


@api.read(Payload)
def overview(ctx: Context, query: Payload) -> RunsOverview:
    project = ctx.project
    counts = vote_counts(ctx.db, project.id)
    project_runs = runs(ctx.db, project.id, made_elsewhere=True)
    return {
        "project": project.id,
        "name": project.name,
        "runs": run_rows(ctx.db, project_runs[:MAX_LISTED]),
        "lab_command": lab_command(),
        "unlisted_count": max(0, len(project_runs) - MAX_LISTED),
        "reward_models": [
            (row.id, run_summary.reward_model_label(row)) for row in list_reward_models(ctx.db, project.id)
        ],
        "labels": {source.value: label_count(counts[source]) for source in Source},
        "annotators": {source.value: voters(ctx.db, project.id, source) for source in Source},
    }


@api.read(ComparisonQuery)
def compare(ctx: Context, query: ComparisonQuery) -> Comparison | None:
    """The charts of the requested runs; deleted runs and those of other projects are left out. None if the page has them."""
    runs_by_id = {run.id: run for run in runs(ctx.db, ctx.project.id, made_elsewhere=True)}
    selected_runs = [runs_by_id[run_id] for run_id in dict.fromkeys(query.runs) if run_id in runs_by_id][:MAX_RUNS]
    # computed from what changes with the runs, because a comparison takes much longer than this request
    revision = revision_of([query.metric, [(run.id, run.name, run.updated_at) for run in selected_runs]])
    if query.revision == revision:
        return None
    return {**compare_runs(ctx.db, selected_runs, query.metric), "revision": revision}


@api.action(ExportRequest, role=Role.OPERATOR)
def export(ctx: Context, request: ExportRequest) -> Download:
    return create_download(ctx, request)


@api.action(NewRunName, role=Role.OPERATOR)
def rename(ctx: Context, payload: NewRunName) -> str:
    return f'Run {payload.run} is called "{run_control.rename(ctx.db, payload.run, payload.name)}" now.'


@api.action(RunPayload, role=Role.OPERATOR)
def resume(ctx: Context, payload: RunPayload) -> str:
    run_control.resume(ctx.db, ctx.home, payload.run)
    return f"Run {payload.run} continues; watch it under Train."


@api.action(RunPayload, role=Role.OPERATOR)
def delete(ctx: Context, payload: RunPayload) -> str:
    run_control.delete(ctx.db, ctx.home, payload.run)
    return f"Run {payload.run} was deleted, with its metrics and checkpoints."


#: For each database, the row of each run and the time of the change after which it was computed.
_ROWS: "WeakKeyDictionary[Database, dict[int, tuple[float, RunRow]]]" = WeakKeyDictionary()
_ROWS_LOCK = threading.Lock()


def run_rows(db: Database, project_runs: Sequence[Run]) -> list[RunRow]:
    """The rows of these runs. A row is computed again only if its run changed."""
    with _ROWS_LOCK:
        known = _ROWS.get(db, {})
        rows = {
            run.id: row
            if (row := known.get(run.id)) and row[0] == run.updated_at
            else (run.updated_at, run_row(db, run))
            for run in project_runs
        }
        _ROWS[db] = rows
    return [row for _, row in rows.values()]


def run_row(db: Database, run: Run) -> RunRow:
    curves = metric_series(db, run.id, [KL, SCORE, GOLD], max_points=NO_POINT_LIMIT)
    recent = run_summary.since_last_rescale(curves, events(db, run.id))
    sparkline = downsample(curves[SCORE], SPARKLINE_POINTS)
    return {
        "id": run.id,
        "name": run.name,
        "outside_file": run.outside_file,
        "algorithm": "" if run.outside_file else str(run.config["algorithm"]),
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
    """The mean of the last WINDOW steps (that of the diagnosis); None if the curve is empty or its newest value is not finite."""
    curve_trend = trend(points)
    return float(f"{curve_trend.current:.4g}") if curve_trend and math.isfinite(points[-1][1]) else None
