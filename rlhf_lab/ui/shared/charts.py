"""The constant part of the charts, made with plotly once; the widget's script adds points and colours."""

from typing import Any, NamedTuple

import plotly.graph_objects as go


class Curve(NamedTuple):
    """A metric that has its own chart. title: a word of the glossary; so is the unit, unless it is "". least: a value up to which
    the axis reaches at least, so that noise near 0 does not look like a change."""

    metric: str
    title: str
    unit: str
    least: float = 0.0


#: The first four charts of a run are in view when Train opens.
CURVES = (
    Curve("objective/scores", "Score", "sd", 0.5),
    Curve("objective/kl", "KL to the base", "nats", 1.0),
    Curve("policy/clipfrac_avg", "Clip fraction", "share"),
    Curve("loss/value_avg", "Value loss", ""),
    Curve("objective/rlhf_reward", "Reward with KL", "sd"),
    Curve("objective/gold", "Gold: judge's score", "points"),
    Curve("rewards/margins", "Implicit reward margin", ""),
    Curve("rewards/accuracies", "Implicit reward accuracy", "share"),
    Curve("loss/dpo_avg", "DPO loss", ""),
    Curve("loss/sft_avg", "Cross-entropy of the texts", "nats"),
    Curve("policy/entropy_avg", "Entropy", "nats"),
    Curve("tokens/response_len", "Response length", "tokens"),
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


#: The toolbar is a list of what it contains. Plotly's default also has "Share chart", which uploads the chart to its makers.
PLOTLY_CONFIG = {
    "responsive": True, "displaylogo": False, "modeBarButtons": [["toImage"], ["pan2d", "zoom2d", "resetScale2d"]],
    "showSendToCloud": False, "plotlyServerURL": "",
}  # fmt: skip
