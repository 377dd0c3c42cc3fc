"""The static part of charts, and descriptions of metrics from the tables of the documentation."""

import json

from rlhf_lab.ui.components.charts import layout, metric_descriptions

DOCUMENT = """
# Metrics

| key | what | unit | healthy | otherwise |
|---|---|---|---|---|
| `objective/kl` | distance from the base | nats | below 8 | raise beta |
| `grad_norm` | norm of the gradient | – | – | – |
| `a` | b |
| kl | no key, | nats | so | left out |
"""


def test_metric_descriptions_come_from_the_documents(tmp_path):
    path = tmp_path / "METRICS.md"
    path.write_text(DOCUMENT)
    assert metric_descriptions(path) == {
        "objective/kl": "Distance from the base (nats). Healthy: below 8. Otherwise: raise beta.",
        "grad_norm": "Norm of the gradient.",
    }


def test_a_small_chart_has_one_curve_and_a_transparent_background():
    small = layout(120)
    assert (small["height"], small["showlegend"], small["uirevision"]) == (120, False, "keep")
    assert small["paper_bgcolor"] == small["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert len(json.dumps(small)) < 1000  # without plotly's template, which is many times as long
