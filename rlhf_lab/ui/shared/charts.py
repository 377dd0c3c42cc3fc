"""The constant part of the charts, made with plotly once; the widget's script adds points and colours."""

from pathlib import Path
from typing import Any, NamedTuple

import plotly.graph_objects as go

from rlhf_lab.common.bundled_assets import bundled_path

METRICS_DOC = bundled_path("docs") / "METRICS.md"


class Curve(NamedTuple):
    """A metric that has its own chart."""

    metric: str
    title: str
    unit: str
    description: str


CLIP_TEXT = (
    "Share of tokens whose probability ratio was clipped during the updates of a step: the mean over these updates. The token "
    "view marks the tokens that are clipped after the last one."
)
#: The first four charts of a run are in view when Train opens.
CURVES = (
    Curve("objective/scores", "Score", "sd", "Score of the reward model, or sum of the reward terms, in sd of base samples."),
    Curve("objective/kl", "KL to the reference", "nats", "How far the policy is from the base model, summed over a response."),
    Curve("policy/clipfrac_avg", "Clip fraction", "share", CLIP_TEXT),
    Curve("loss/value_avg", "Value loss", "", "Error of the value head's predictions of the return."),
    Curve("objective/rlhf_reward", "Reward with KL", "sd", "Rewarded score minus beta times the KL, which PPO maximises."),
    Curve("objective/gold", "Gold: judge's score", "points", "Score by the simulated judge itself. PPO does not see it."),
    Curve("rewards/margins", "Implicit reward margin", "", "DPO: beta times how far chosen texts rose above rejected ones."),
    Curve("rewards/accuracies", "Implicit reward accuracy", "share", "DPO: share of the pairs ranked as labelled."),
    Curve("loss/dpo_avg", "DPO loss", "", "DPO: falls as the policy ranks more pairs as labelled."),
    Curve("loss/sft_avg", "Cross-entropy of the texts", "nats", "Loss of the policy on the training texts."),
    Curve("policy/entropy_avg", "Entropy", "nats", "Uncertainty of the policy about the next token."),
    Curve("tokens/response_len", "Response length", "tokens", "Mean length of the rollouts."),
)  # fmt: skip


def layout(height: int | None = None) -> dict[str, Any]:
    """The layout of a small live chart as JSON: transparent, compact, one legendless curve. height: None to fill its element."""
    figure = go.Figure(
        layout={
            "height": height,
            "margin": {"t": 6, "r": 10, "b": 22, "l": 42},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "showlegend": False,
            "hovermode": "x unified",
            "xaxis": {
                "rangemode": "tozero",
                "zeroline": False,
                "nticks": 7,
                "hoverformat": "d",
                "unifiedhovertitle": {"text": "step %{x}"},
            },
            "yaxis": {"zeroline": True, "automargin": True, "nticks": 5},
            "uirevision": "keep",
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#8a93a6", "activecolor": "#6d66e8"},
            "dragmode": "zoom",
        }
    )
    layout_dict: dict[str, Any] = figure.to_plotly_json()["layout"]
    layout_dict.pop("template", None)
    return layout_dict


def metric_descriptions(path: Path = METRICS_DOC) -> dict[str, str]:
    """A description of each metric, from the tables of docs/METRICS.md; empty if the documentation is not installed."""
    if not path.is_file():
        return {}
    descriptions = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            name, meaning, unit, healthy, otherwise = cells
            description = meaning[:1].upper() + meaning[1:] + (f" ({unit})." if unit not in ("", "–") else ".")
            description += f" Healthy: {healthy}." if healthy not in ("", "–") else ""
            description += f" Otherwise: {otherwise}." if otherwise not in ("", "–") else ""
            descriptions[name.strip("`")] = description.replace("`", "")
    return descriptions


#: The toolbar is a list of what it contains. Plotly's default also has "Share chart", which uploads the chart to its makers.
PLOTLY_CONFIG = {
    "responsive": True, "displaylogo": False, "modeBarButtons": [["toImage"], ["pan2d", "zoom2d", "resetScale2d"]],
    "showSendToCloud": False, "plotlyServerURL": "",
}  # fmt: skip
