"""Screen "Runs & data": the project's runs in a list, several beside each other, and everything to take away."""

import json
import math
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import gradio as gr

from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import control
from rlhf_lab.kinds import GOING, Choice, RunStatus, Source
from rlhf_lab.records import Run
from rlhf_lab.store.comparisons import vote_counts, voters
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import events, reward_models, runs
from rlhf_lab.store.steps import Point, metric_series, thin
from rlhf_lab.ui import data_io, quality, story
from rlhf_lab.ui.charts import CONFIG, CURVES, abouts, layout
from rlhf_lab.ui.context import Context, operated, read, told, unless_seen
from rlhf_lab.ui.offers import Offers
from rlhf_lab.ui.overlay import BUCKETS, EVERYTHING, GOLD, KL, MAX_RUNS, SCORE, overlay
from rlhf_lab.ui.train import whole
from rlhf_lab.ui.trends import WINDOW, trend
from rlhf_lab.ui.widgets import QUIET, widget

MAX_LISTED = 200
SPARK_POINTS = 48
RESUMABLE = {*control.ENDED, RunStatus.PAUSED}


def build(ctx: Context, operator: gr.BrowserState) -> None:
    listing, offers = Listing(), Offers(ctx)

    def look(question: dict[str, Any]) -> dict[str, Any]:
        return unless_seen(listed(ctx, listing), question)

    def compare(question: dict[str, Any]) -> dict[str, Any]:
        return compared(ctx, question)

    data = {
        "layout": layout(250) | {"showlegend": False, "hovermode": "closest"},
        "config": CONFIG, "abouts": abouts(), "most": MAX_RUNS, "window": WINDOW, "buckets": BUCKETS,
        "titles": {curve.metric: [curve.title, curve.unit] for curve in CURVES},
    }  # fmt: skip
    reads, scripts = [read(look), read(compare)], ["runs_take"]
    part = widget("runs", reads=reads, charts=True, scripts=scripts, data=data, label="Runs and data")

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operated(ctx, secret, event, lambda said: {"done": obey(ctx, said)})

    def export(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operated(ctx, secret, event, lambda said: {"offer": offers.make(said)})

    part.control(told(act), operator, part, **QUIET)
    part.export(told(export), operator, part, **QUIET)
    with gr.Accordion("Quality of the labels", open=False, elem_id="runs-quality"):
        quality.build(ctx, operator)
    with gr.Accordion("Import preferences", open=False, elem_id="runs-import"):
        data_io.build(ctx, operator)


class Listing:
    """What the list says of each run; read again only when the run's row changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[float, dict[str, Any]]] = {}

    def of(self, db: Database, found: Sequence[Run]) -> list[dict[str, Any]]:
        with self._lock:
            self._known = {
                run.id: held
                if (held := self._known.get(run.id)) and held[0] == run.updated_at
                else (run.updated_at, facts(db, run))
                for run in found
            }
            return [self._known[run.id][1] for run in found]


def facts(db: Database, run: Run) -> dict[str, Any]:
    """A run as a line of the list: where it stands, as the sentences under its curves say it, and a picture of its score."""
    curves = metric_series(db, run.id, [KL, SCORE, GOLD], max_points=EVERYTHING)
    recent = story.comparable(curves, events(db, run.id))
    return {
        "id": run.id,
        "name": run.name,
        "algorithm": str(run.config["algorithm"]),
        "status": run.status,
        "step": run.step,
        "total": run.total_steps,
        "message": run.message,
        "created": run.created_at,
        "score": level(recent[SCORE]),
        "kl": level(recent[KL]),
        "gold": level(recent[GOLD]),
        "spark": [value for _, value in story.packed(thin(curves[SCORE], SPARK_POINTS))],
        "resumable": run.status in RESUMABLE,
        "going": run.status in GOING,
    }


def level(points: Sequence[Point]) -> float | None:
    """The mean of the last steps (`trends.WINDOW`); None where there is none, or the newest is not a number."""
    seen = trend(points)
    return float(f"{seen.now:.4g}") if seen and math.isfinite(points[-1][1]) else None


def listed(ctx: Context, listing: Listing) -> dict[str, Any]:
    """The list with all that can be exported."""
    project = ctx.project
    counts = vote_counts(ctx.db, project.id)
    labels = {source.value: sum(counts[source].values()) - counts[source][Choice.SKIP] for source in Source}
    found = runs(ctx.db, project.id)
    return {
        "project": project.id,
        "name": project.name,
        "runs": listing.of(ctx.db, found[:MAX_LISTED]),
        "more": max(0, len(found) - MAX_LISTED),
        "models": [[row.id, story.reward_words(row)] for row in reward_models(ctx.db, project.id)],
        "labels": labels,
        "annotators": {source.value: voters(ctx.db, project.id, source) for source in Source},
    }


def compared(ctx: Context, question: dict[str, Any]) -> dict[str, Any]:
    """The charts of {"runs": ids, "metric", "seen"}; runs that are gone, or another project's, are left out."""
    wanted, metric = question.get("runs") or [], str(question.get("metric") or SCORE)
    if not isinstance(wanted, list):
        raise ConfigError("The page asked for no list of runs. Reload it and try again.")
    known = {run.id: run for run in runs(ctx.db, ctx.project.id)}
    chosen = [known[run_id] for run_id in dict.fromkeys(wanted) if run_id in known][:MAX_RUNS]
    key = [metric, [(run.id, run.name, run.updated_at) for run in chosen]]
    seen = f"{zlib.crc32(json.dumps(key).encode()):x}"
    if question.get("seen") == seen:
        return {"same": True}
    return overlay(ctx.db, chosen, metric) | {"seen": seen, "metric": metric}


def obey(ctx: Context, said: dict[str, Any]) -> str:
    """Rename, resume or delete a run of the open project; returns what to tell the person."""
    do, run_id = str(said.get("do")), whole(said, "run")
    if run_id not in {run.id for run in runs(ctx.db, ctx.project.id)}:
        raise ConfigError(f"Run {run_id} is not in the open project: it was deleted, or another project was opened.")
    if do == "rename":
        name = control.rename(ctx.db, run_id, str(said.get("name") or ""))
        return f'Run {run_id} is called "{name}" now.'
    if do == "resume":
        control.resume(ctx.db, ctx.home, run_id)
        return f"Run {run_id} goes on; watch it under Train."
    if do == "delete":
        control.delete(ctx.db, ctx.home, run_id)
        return f"Run {run_id} is deleted, with its numbers and checkpoints."
    raise ConfigError(f'A run cannot be told to "{do}" here. Reload the page and try again.')
