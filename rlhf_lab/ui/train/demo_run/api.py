"""Demo mode on the screen "Train": a short form to start a visitor's own run, its place in the queue, and Stop."""

from typing import Any

from rlhf_lab.common.text import pluralize
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import LabError
from rlhf_lab.jobs.demo import Demo, QueueState
from rlhf_lab.store.runs import get_run
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views.stage_estimates import policy_sentence
from rlhf_lab.ui.shared.api import Payload, parse_payload
from rlhf_lab.ui.shared.events import visitor_action
from rlhf_lab.ui.shared.widgets import SILENT_EVENT, widget


class DemoQuery(Payload):
    annotator: str | None = None


class RunSettings(Payload):
    """What a visitor chooses: number of steps, responses per step, and maximum response length in tokens."""

    steps: int
    responses: int
    tokens: int


class StartDemoRun(RunSettings):
    annotator: str | None = None


def build(ctx: Context, demo: Demo) -> None:
    def state(query: dict[str, Any]) -> dict[str, Any]:
        return demo_state(ctx, demo, ctx.annotator_or_empty(parse_payload(DemoQuery, query).annotator))

    def estimate(query: dict[str, Any]) -> dict[str, str]:
        try:
            config = run_config(ctx, demo, parse_payload(RunSettings, query))
        except LabError:
            return {"sentence": ""}
        return {"sentence": policy_sentence(ctx, config)}

    @visitor_action(StartDemoRun)
    def start_demo_run(payload: StartDemoRun) -> dict[str, Any]:
        visitor = ctx.require_annotator(payload.annotator)
        run = demo.start_run(ctx.project, run_config(ctx, demo, payload), visitor, ctx.client_address())
        return {"run": run.id} | demo_state(ctx, demo, visitor)

    @visitor_action(DemoQuery)
    def stop_demo_run(payload: DemoQuery) -> dict[str, Any]:
        visitor = ctx.require_annotator(payload.annotator)
        demo.stop_run(visitor)
        return demo_state(ctx, demo, visitor)

    component = widget(
        "demo_run",
        "train/demo_run/view.js",
        events=("start", "stop"),
        server_functions={"state": state, "estimate": estimate},
        data=form_data(demo),
        label="Start a run of your own",
    )
    component.start(start_demo_run, None, component, **SILENT_EVENT)
    component.stop(stop_demo_run, None, component, **SILENT_EVENT)


def form_data(demo: Demo) -> dict[str, Any]:
    """The fields of the form with their limits, and the rules of the demo as a sentence."""
    limits, preset = demo.config, PolicyConfig.for_algorithm("ppo")
    fields = [
        ("steps", "Steps", 1, limits.max_steps, min(20, limits.max_steps)),
        ("responses", "Responses in each step", 4, limits.max_responses, min(preset.batch_size, limits.max_responses)),
        (
            "tokens",
            "Longest response in tokens",
            8,
            limits.max_tokens,
            min(preset.max_new_tokens, limits.max_tokens),
        ),
    ]
    hours = f"{limits.reset_hours:g} hours" if limits.reset_hours != 1 else "hour"
    rules = (
        f"This is a demo. Labels, reward models and runs of visitors are removed every {hours}, or earlier after "
        f"{pluralize(limits.reset_runs, 'run')} or {pluralize(limits.reset_labels, 'label')}."
    )
    names = ("name", "label", "low", "high", "value")
    return {"fields": [dict(zip(names, values, strict=True)) for values in fields], "rules": rules}


def demo_state(ctx: Context, demo: Demo, visitor: str) -> dict[str, Any]:
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
