"""Plots of algorithms.py as a self-contained HTML page: python benchmarks/algorithms.py --frontier --plot FILE.html"""

import math
import statistics
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

Rows = list[dict[str, Any]]
COLOURS = ("#4f46e5", "#c2570c", "#15803d", "#64748b")


def write_figure(mode: str, rows: Rows, path: Path) -> None:
    """mode: "frontier" or "overoptimise"."""
    figure = FIGURES[mode](rows)
    figure.update_layout(
        template="plotly_white", width=860, height=460, margin={"t": 70, "r": 20, "b": 60, "l": 70},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"}, font={"family": "system-ui, sans-serif", "size": 14},
    )  # fmt: skip
    figure.write_html(path, include_plotlyjs=True)


def frontier(rows: Rows) -> go.Figure:
    """Gold over sqrt(KL), mean ± sd over the seeds: ppo along its run, and best-of-n."""
    figure = go.Figure()
    for number, (label, prefix) in enumerate(
        (("ppo, step by step", "ppo step "), ("best of n of the base", "best of "))
    ):
        names = [name for name in dict.fromkeys(row["what"] for row in rows) if name.startswith(prefix)]
        points = [[row for row in rows if row["what"] == name] for name in names]
        golds = [[float(row["gold"]) for row in point] for point in points]
        figure.add_scatter(
            x=[math.sqrt(max(0.0, statistics.fmean(float(row["kl"]) for row in point))) for point in points],
            y=[statistics.fmean(gold) for gold in golds],
            error_y={"array": [statistics.stdev(gold) if len(gold) > 1 else 0.0 for gold in golds], "thickness": 1.2},
            name=label, mode="lines+markers+text", text=[name.removeprefix(prefix) for name in names],
            textposition="bottom right", line={"color": COLOURS[number]},
        )  # fmt: skip
    figure.update_xaxes(title="√KL (nats a text)", rangemode="tozero")
    figure.update_yaxes(title="gold above the base (sd)")
    return figure


def overoptimise(rows: Rows) -> go.Figure:
    """Proxy (dashed) and gold (solid) over the steps, mean over the seeds, of each arm."""
    figure = go.Figure()
    for number, run in enumerate(dict.fromkeys(row["run"] for row in rows)):
        steps = sorted({row["step"] for row in rows if row["run"] == run})
        for key, label, dash in (("proxy", "reward model", "dash"), ("gold", "gold", "solid")):
            means = [
                statistics.fmean(float(row[key]) for row in rows if row["run"] == run and row["step"] == step)
                for step in steps
            ]
            line = {"color": COLOURS[number], "dash": dash, "width": 2.5}
            figure.add_scatter(x=steps, y=means, name=f"{run}: {label}", mode="lines", line=line)
    figure.update_xaxes(title="step", rangemode="tozero")
    figure.update_yaxes(title="sd above the base", rangemode="tozero")
    return figure


FIGURES = {"frontier": frontier, "overoptimise": overoptimise}
