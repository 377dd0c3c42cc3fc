"""Screen "Compare": the base and any checkpoint on a prompt of your own, with the same seed, scores beside; and blind tests."""

import contextlib
from collections.abc import Callable
from typing import Any

import gradio as gr

from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.enums import JobKind
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Job, RewardModelRow
from rlhf_lab.errors import LabError, StoreError
from rlhf_lab.jobs import queue, run_control
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_models import get_reward_model, reward_models
from rlhf_lab.store.runs import events, get_run, runs
from rlhf_lab.ui.components.widgets import SILENT_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import if_changed, server_function, show_errors, ttl_cache
from rlhf_lab.ui.screens import blind_test
from rlhf_lab.ui.screens.label import annotator_from_event, optional_annotator
from rlhf_lab.ui.services.generation_requests import (
    BEST_OF_CHOICES,
    MAX_COLUMNS,
    FieldError,
    column_view,
    parse_number,
    requested_models,
    submit_completions,
)
from rlhf_lab.ui.services.run_summary import current_reward_model_id, reward_model_label

MAX_PROMPT_CHARS = 4000  # characters of a prompt


def build(ctx: Context, operator: gr.BrowserState) -> None:
    cached_options = ttl_cache(1.0, lambda: comparison_options(ctx))

    def options(query: dict[str, Any]) -> dict[str, Any]:
        return if_changed(cached_options() | run_details(ctx, query.get("runs")), query)

    def answers(query: dict[str, Any]) -> dict[str, Any]:
        return {"columns": [column_view(job, query.get("judge")) for job in requested_jobs(ctx, query)]}

    def tested(query: dict[str, Any]) -> dict[str, Any]:
        return blind_test.state(ctx, query.get("test"), optional_annotator(ctx, query.get("annotator")))

    judges = [[judge.name, judge.description] for judge in JUDGES.values()]
    component = widget(
        "compare",
        server_functions=[server_function(options), server_function(answers), server_function(tested)],
        scripts=["blind"],
        data={"judges": judges},
        label="Compare models",
    )

    def write(event: gr.EventData) -> dict[str, Any]:
        return visitor_action(event, lambda payload: {"jobs": [job.id for job in submit_comparison(ctx, payload)]})

    def cancel(event: gr.EventData) -> None:
        for job in requested_jobs(ctx, event._data):
            queue.cancel(ctx.db, job.id)

    def begin(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        def start(payload: dict[str, Any]) -> dict[str, Any]:
            ctx.require_operator(secret)
            return {
                "test": blind_test.state(ctx, blind_test.start_test(ctx, payload).id, annotator_from_event(ctx, event)),
                "tests": blind_test.list_tests(ctx),
            }

        return visitor_action(event, start)

    def manage(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        def edit(payload: dict[str, Any]) -> dict[str, Any]:
            ctx.require_operator(secret)
            return {
                **blind_test.edit_test(ctx, payload, annotator_from_event(ctx, event)),
                "tests": blind_test.list_tests(ctx),
            }

        return visitor_action(event, edit)

    def prefer(event: gr.EventData) -> dict[str, Any]:
        return visitor_action(
            event,
            lambda payload: {"test": blind_test.record_preference(ctx, payload, annotator_from_event(ctx, event))},
        )

    component.write(show_errors(write), None, component, **SILENT_EVENT)
    component.begin(show_errors(begin), operator, component, **SILENT_EVENT)
    component.manage(show_errors(manage), operator, component, **SILENT_EVENT)
    component.prefer(show_errors(prefer), None, component, **SILENT_EVENT)
    component.cancel(show_errors(cancel), None, None, **SILENT_EVENT)


def visitor_action(event: gr.EventData, handler: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """What the widget is told about an act: what `run_job` says, or why not and which field is wrong; with the "at" it was sent at."""
    payload = dict(event._data or {})
    try:
        return {"at": payload.get("at"), **handler(payload)}
    except LabError as error:
        return {"at": payload.get("at"), "error": str(error), "field": getattr(error, "field", "")}


def requested_jobs(ctx: Context, query: dict[str, Any]) -> list[Job]:
    """The jobs that a page speaks of. Raises LabError for any that writes no text."""
    try:
        job_ids = [int(job) for job in query["jobs"]][:MAX_COLUMNS]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise LabError("The page named no texts; reload it.") from None
    jobs = [queue.get_job(ctx.db, job_id) for job_id in job_ids]
    if any(job.kind is not JobKind.COMPLETE for job in jobs):
        raise LabError("The page asked for something that is no text; reload it.")
    return jobs


def comparison_options(ctx: Context) -> dict[str, Any]:
    """What can be compared: the base, its best of n, and every run that has done a step; the same for every page."""
    project = ctx.project
    reward_rows = reward_models(ctx.db, project.id)
    best_of_options = [[f"base/best/{n}", f"base, best of {n}"] for n in BEST_OF_CHOICES] if reward_rows else []
    return {
        "project": project.id,
        "models": [
            ["base", "base model"],
            *(
                [f"run/{run.id}/latest", f"run {run.id}: {run.name}"]
                for run in runs(ctx.db, project.id)
                if run.step > 0
            ),
            *best_of_options,
        ],
        "rewards": [[row.id, reward_model_label(row)] for row in reward_rows],
        "newest": reward_model_and_judge(ctx, reward_rows[0]) if reward_rows else None,
        "prompts": [prompt.text for prompt in prompts(ctx.db, project.id, "eval")[:64]],
        "tests": blind_test.list_tests(ctx),
    }


def run_details(ctx: Context, requested_ids: Any) -> dict[str, Any]:
    """The steps of the runs in a page's columns, and what each learns from; asked for as they are chosen, for there may be
    a thousand runs. Runs that are not there any more are left out. Raises LabError for what names no runs."""
    try:
        run_ids = {int(run_id) for run_id in (requested_ids or [])[:MAX_COLUMNS]}
    except (TypeError, ValueError, OverflowError, KeyError):
        raise LabError("The page named no runs; reload it.") from None
    project_runs = []
    for run_id in run_ids:
        with contextlib.suppress(StoreError):
            project_runs.append(get_run(ctx.db, run_id))
    project_runs = [run for run in project_runs if run.project_id == ctx.project.id]
    return {
        "steps": {str(run.id): steps_of_runs(ctx, run.id) for run in project_runs},
        "learnt": {
            str(run.id): reward_model_and_judge(
                ctx, get_reward_model(ctx.db, current_reward_model_id(run, events(ctx.db, run.id)))
            )
            for run in project_runs
        },
    }


def reward_model_and_judge(ctx: Context, row: RewardModelRow) -> list[Any]:
    """A reward model and the judge behind it: [id, name], the name "" for people and several judges."""
    return [row.id, run_control.judge_of_reward_model(ctx.db, row) or ""]


def steps_of_runs(ctx: Context, run_id: int) -> list[int]:
    """The steps whose checkpoints are still there."""
    return checkpoint_steps(run_folder(ctx.home, run_id))


def submit_comparison(ctx: Context, payload: dict[str, Any]) -> list[Job]:
    """One COMPLETE job a column. said: prompt, models, samples, seed, temperature, tokens, reward.

    Raises LabError for what is out of range.
    """
    models, prompt = requested_models(payload), str(payload.get("prompt", ""))
    if not prompt.strip() or len(prompt) > MAX_PROMPT_CHARS:
        raise FieldError("prompt", f"Prompt: write 1 to {MAX_PROMPT_CHARS:,} characters.")
    return submit_completions(ctx, payload, models, [prompt] * parse_number(payload, "samples"))
