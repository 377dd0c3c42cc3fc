"""Demo mode on the screen "Train": a short form to start a visitor's own run, its place in the queue, and Stop."""

from typing_extensions import TypedDict

from rlhf_lab.common.text import pluralize
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import LabError, NotAllowedError
from rlhf_lab.jobs.demo import Demo, QueueState
from rlhf_lab.store.runs import get_run
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import ENGINE
from rlhf_lab.ui.run_views.stage_estimates import policy_sentence
from rlhf_lab.ui.shared.api import Api, Payload
from rlhf_lab.ui.shared.widgets import widget

api = Api("demo_run")


class RunSettings(Payload):
    """What a visitor chooses: number of steps, responses per step, and maximum response length in tokens."""

    steps: int
    responses: int
    tokens: int


class FormField(TypedDict):
    name: str
    label: str
    low: int
    high: int
    value: int


class DemoForm(TypedDict):
    """The fields of the form with their limits, and the rules of the demo as a sentence."""

    fields: list[FormField]
    rules: str


class DemoState(TypedDict):
    """own_run: the visitor's unfinished run; tokens: the proposed length; runs_before: see `QueueState`."""

    own_run: int | None
    tokens: int
    runs_before: int
    can_start: bool
    status_text: str
    reset_at: float
    is_reset_due: bool


class DemoEstimate(TypedDict):
    sentence: str


class StartedDemoRun(TypedDict):
    run: int
    runs_before: int


def build(demo: Demo) -> None:
    widget("demo_run", "train/demo_run/view.js", data=form_data(demo), label="Start a run of your own")


@api.read(Payload)
def state(ctx: Context, query: Payload) -> DemoState:
    return demo_state(ctx, demo_of(ctx), ctx.annotator_or_empty(query.annotator))


@api.read(RunSettings)
def estimate(ctx: Context, query: RunSettings) -> DemoEstimate:
    try:
        config = run_config(ctx, demo_of(ctx), query)
    except LabError:
        return {"sentence": ""}
    return {"sentence": policy_sentence(ctx, config)}


@api.action(RunSettings, limit=ENGINE)
def start(ctx: Context, payload: RunSettings) -> StartedDemoRun:
    demo, visitor = demo_of(ctx), ctx.require_annotator(payload.annotator)
    run = demo.start_run(ctx.project, run_config(ctx, demo, payload), visitor, ctx.client_address())
    return {"run": run.id, "runs_before": demo.queue_state(ctx.project, visitor).runs_before}


@api.action(Payload, limit=ENGINE)
def stop(ctx: Context, payload: Payload) -> None:
    demo_of(ctx).stop_run(ctx.require_annotator(payload.annotator))


def demo_of(ctx: Context) -> Demo:
    """Raises NotAllowedError for a lab that is not in demo mode."""
    if ctx.demo is None:
        raise NotAllowedError("Visitors can start runs only in demo mode.")
    return ctx.demo


def form_data(demo: Demo) -> DemoForm:
    limits, preset = demo.config, PolicyConfig.for_algorithm("ppo")
    steps, responses, tokens = limits.max_steps, limits.max_responses, limits.max_tokens
    fields: list[FormField] = [
        {"name": "steps", "label": "Steps", "low": 1, "high": steps, "value": min(20, steps)},
        {
            "name": "responses", "label": "Responses in each step", "low": 4, "high": responses,
            "value": min(preset.batch_size, responses),
        },
        {
            "name": "tokens", "label": "Longest response in tokens", "low": 8, "high": tokens,
            "value": min(preset.max_new_tokens, tokens),
        },
    ]  # fmt: skip
    hours = f"{limits.reset_hours:g} hours" if limits.reset_hours != 1 else "hour"
    rules = (
        f"This is a demo. Labels, reward models and runs of visitors are removed every {hours}, or earlier after "
        f"{pluralize(limits.reset_runs, 'run')} or {pluralize(limits.reset_labels, 'label')}."
    )
    return {"fields": fields, "rules": rules}


def demo_state(ctx: Context, demo: Demo, visitor: str) -> DemoState:
    """What the form shows to this visitor. visitor: "" for a viewer."""
    queue_state = demo.queue_state(ctx.project, visitor)
    refusal = queue_state.refusal
    if not visitor:
        refusal = "To start a run of your own, log in with the join code first."
    return {
        "own_run": queue_state.run_id,
        "tokens": min(ctx.project.max_new_tokens, demo.config.max_tokens),
        "runs_before": queue_state.runs_before,
        "can_start": not refusal,
        "status_text": own_run_text(ctx, queue_state) or refusal or next_run_text(queue_state.runs_before),
        "reset_at": demo.reset_at,
        "is_reset_due": demo.is_reset_due(),
    }


def own_run_text(ctx: Context, state: QueueState) -> str:
    """The position of the visitor's run in the queue, as a sentence; "" if they have none."""
    if state.run_id is None:
        return ""
    if state.is_running:
        run = get_run(ctx.db, state.run_id)
        return f"Your run {run.id} is in progress: step {run.step} of {run.total_steps}."
    if state.runs_before:
        return f"Your run {state.run_id} waits: {pluralize(state.runs_before, 'run')} before yours."
    return f"Your run {state.run_id} is next. It starts when the engine is free."


def next_run_text(runs_before: int) -> str:
    """The position in the queue of a run that is started now, as a sentence."""
    if not runs_before:
        return "No run is in progress: yours starts at once."
    return f"{pluralize(runs_before, 'run')} before yours: it begins when {'it has' if runs_before == 1 else 'they have'} ended."


def run_config(ctx: Context, demo: Demo, chosen: RunSettings) -> PolicyConfig:
    """The config of a visitor's run. Raises LabelError if a setting exceeds a limit of the demo."""
    return demo.run_config(ctx.project, steps=chosen.steps, responses=chosen.responses, tokens=chosen.tokens)
