"""Screen "Train": start a run, watch its curves, control it, read its samples and tokens at every step."""

from typing import Any

import gradio as gr

from rlhf_lab.errors import ConfigError, LabError
from rlhf_lab.jobs import run_control
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.run_views.run_feed import MAX_POINTS, RunFeed
from rlhf_lab.ui.shared.api import Payload, parse_payload, unusable
from rlhf_lab.ui.shared.charts import CURVES, PLOTLY_CONFIG, layout, metric_descriptions
from rlhf_lab.ui.shared.events import operator_action
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget
from rlhf_lab.ui.train import token_view
from rlhf_lab.ui.train.demo_run import api as demo_run
from rlhf_lab.ui.train.start_run import api as start_run


class StepQuery(Payload):
    run: int
    step: int


class MetricQuery(Payload):
    run: int
    metric: str


class RunControl(Payload):
    """action: pause, resume, stop, "set" a live `setting` to `value` (a number or "automatic"), or "switch" to `reward_model`."""

    action: str = ""
    run: int
    setting: str = ""
    value: float | str | None = None
    reward_model: int | None = None


def build(ctx: Context, operator: gr.BrowserState) -> None:
    feed = RunFeed(ctx)

    def samples(query: dict[str, Any]) -> dict[str, Any]:
        request = parse_payload(StepQuery, query)
        return run_summary.samples_at_step(ctx.db, request.run, request.step)

    def tokens(query: dict[str, Any]) -> dict[str, Any]:
        request = parse_payload(StepQuery, query)
        return token_view.token_view(ctx.db, request.run, request.step)

    def metric_points(query: dict[str, Any]) -> dict[str, Any]:
        request = parse_payload(MetricQuery, query)
        series = metric_series(ctx.db, request.run, [request.metric], max_points=MAX_POINTS)
        return {"points": run_summary.encode_points(series[request.metric])}

    @operator_action(ctx, RunControl)
    def control(payload: RunControl) -> dict[str, Any]:
        try:
            control_run(ctx, payload)
        except LabError as error:
            return {"setting": payload.setting, "error": str(error)}
        return {"setting": payload.setting}

    if ctx.demo is not None:
        demo_run.build(ctx, ctx.demo)
    start_run.build(ctx, operator)
    data = {
        "curves": [curve._asdict() for curve in CURVES],
        "layout": layout(),
        "config": PLOTLY_CONFIG,
        "descriptions": metric_descriptions(),
    }
    component = widget(
        "train",
        "train/view.js",
        events=("control",),
        server_functions={
            "points": feed.poll,
            "samples": samples,
            "tokens": tokens,
            "metric_points": metric_points,
        },
        charts=True,
        data=data,
        label="Training run",
    )
    component.control(control, operator, component, **SILENT_MULTIPLE_EVENT)


def control_run(ctx: Context, control: RunControl) -> None:
    """Perform a control action on a run. Raises LabError if that is not possible."""
    run_id = control.run
    match control.action:
        case "pause":
            run_control.pause(ctx.db, run_id)
        case "resume":
            run_control.resume(ctx.db, ctx.home, run_id)
        case "stop":
            run_control.stop(ctx.db, run_id)
        case "set":
            run_control.set_live_setting(ctx.db, run_id, control.setting, str(control.value))
        case "switch":
            if control.reward_model is None:
                raise unusable("reward_model")
            run_control.switch_reward_model(ctx.db, run_id, control.reward_model)
        case _:
            raise ConfigError(f'There is no action "{control.action}" for runs. Reload the page and try again.')
