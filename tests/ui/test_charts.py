"""The static part of charts."""

import json

from rlhf_lab.ui.page import build_page, launch_options
from rlhf_lab.ui.shared.charts import PLOTLY_CONFIG, layout


def test_a_small_chart_has_one_curve_and_a_transparent_background():
    small = layout(120)
    assert (small["height"], small["showlegend"], small["uirevision"]) == (120, False, "keep")
    assert small["paper_bgcolor"] == small["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert len(json.dumps(small)) < 1000  # without plotly's template, which is many times as long


def test_the_toolbar_has_only_buttons_that_keep_the_data_here():
    assert PLOTLY_CONFIG["modeBarButtons"] == [["toImage"], ["pan2d", "zoom2d", "resetScale2d"]]
    assert PLOTLY_CONFIG["showSendToCloud"] is PLOTLY_CONFIG["displaylogo"] is False
    assert PLOTLY_CONFIG["plotlyServerURL"] == ""


def test_no_component_of_the_page_shares_or_uploads_elsewhere(ctx, in_loop):
    """Gradio's components have buttons that publish what they show, on a site of Hugging Face."""
    page = in_loop(lambda: build_page(ctx))
    offered = {
        f"{type(block).__name__}.{name}": value
        for block in page.blocks.values()
        for name, value in block.get_config().items()
        if "share" in name or "flag" in name or (name in ("buttons", "sources") and value)
    }
    assert offered == {}
    options = launch_options(ctx)
    assert (options["share"], options["footer_links"], page.analytics_enabled) == (False, [], False)
