"""Screen "Train": start a run, watch its curves, control it, read its samples and tokens at every step."""

from typing_extensions import TypedDict

from rlhf_lab.common.records import Role
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import run_control
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.run_views.run_feed import MAX_POINTS, FeedQuery, FeedReply, RunElsewhere, feed_of
from rlhf_lab.ui.run_views.run_summary import JsonPoint, StepSamples
from rlhf_lab.ui.shared.api import Api, RunPayload, unusable
from rlhf_lab.ui.shared.charts import CURVES, PLOTLY_CONFIG, layout
from rlhf_lab.ui.shared.widgets import widget
from rlhf_lab.ui.train import token_view
from rlhf_lab.ui.train.demo_run import api as demo_run
from rlhf_lab.ui.train.start_run import api as start_run

api = Api("train")


class StepQuery(RunPayload):
    step: int


class MetricQuery(RunPayload):
    metric: str


class RunControl(RunPayload):
    """action: pause, resume, stop, "set" a live `setting` to `value` (a number or "automatic"), or "switch" to `reward_model`."""

    action: str = ""
    setting: str = ""
    value: float | str | None = None
    reward_model: int | None = None


class RunPoll(TypedDict, total=False):
    """The state of the run; nothing if the page shows it already; if the project has no run, the active ones of others."""

    state: FeedReply
    elsewhere: list[RunElsewhere]


class MetricPoints(TypedDict):
    points: list[JsonPoint]


def build(ctx: Context) -> None:
    if ctx.demo is not None:
        demo_run.build(ctx.demo)
    start_run.build(ctx)
    data = {
        "curves": [curve._asdict() for curve in CURVES],
        "layout": layout(),
        "config": PLOTLY_CONFIG,
    }
    widget("train", "train/view.js", charts=True, data=data, label="Training run")


@api.read(FeedQuery)
def points(ctx: Context, query: FeedQuery) -> RunPoll:
    reply = feed_of(ctx).poll(query)
    if "elsewhere" in reply:
        return {"elsewhere": reply["elsewhere"]}
    return {"state": reply} if "run" in reply else {}


@api.read(StepQuery)
def samples(ctx: Context, query: StepQuery) -> StepSamples:
    return run_summary.samples_at_step(ctx.db, query.run, query.step)


@api.read(StepQuery)
def tokens(ctx: Context, query: StepQuery) -> token_view.TokenView:
    return token_view.token_view(ctx.db, query.run, query.step)


@api.read(MetricQuery)
def metric_points(ctx: Context, query: MetricQuery) -> MetricPoints:
    series = metric_series(ctx.db, query.run, [query.metric], max_points=MAX_POINTS)
    return {"points": run_summary.encode_points(series[query.metric])}


@api.action(RunControl, role=Role.OPERATOR)
def control(ctx: Context, payload: RunControl) -> None:
    run_id = payload.run
    match payload.action:
        case "pause":
            run_control.pause(ctx.db, run_id)
        case "resume":
            run_control.resume(ctx.db, ctx.home, run_id)
        case "stop":
            run_control.stop(ctx.db, run_id)
        case "set":
            run_control.set_live_setting(ctx.db, run_id, payload.setting, str(payload.value))
        case "switch":
            if payload.reward_model is None:
                raise unusable("reward_model")
            run_control.switch_reward_model(ctx.db, run_id, payload.reward_model)
        case _:
            raise ConfigError(f'There is no action "{payload.action}" for runs. Reload the page and try again.')
