"""Screen "Compare": the base and any checkpoint on a prompt of your own, with the same seed, scores beside; and blind tests."""

import contextlib
from collections.abc import Callable
from typing import Any

import gradio as gr

from rlhf_lab.checkpoints import checkpoints
from rlhf_lab.errors import LabError, StoreError
from rlhf_lab.home import run_folder
from rlhf_lab.jobs import control, queue
from rlhf_lab.judges import JUDGES
from rlhf_lab.kinds import JobKind
from rlhf_lab.records import Job, RewardModelRow
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.runs import events, get_reward_model, get_run, reward_models, runs
from rlhf_lab.ui import blind
from rlhf_lab.ui.asking import BEST_OF, MOST_COLUMNS, FieldError, column, models_of, number, submit
from rlhf_lab.ui.context import Context, read, shared_for, told, unless_seen
from rlhf_lab.ui.label import name_if_any, name_of
from rlhf_lab.ui.story import reward_words, scorer
from rlhf_lab.ui.widgets import UNSEEN, widget

LONGEST = 4000  # characters of a prompt


def build(ctx: Context, operator: gr.BrowserState) -> None:
    shared = shared_for(1.0, lambda: choices(ctx))

    def options(question: dict[str, Any]) -> dict[str, Any]:
        return unless_seen(shared() | about_runs(ctx, question.get("runs")), question)

    def answers(question: dict[str, Any]) -> dict[str, Any]:
        return {"columns": [column(job, question.get("judge")) for job in asked(ctx, question)]}

    def tested(question: dict[str, Any]) -> dict[str, Any]:
        return blind.state(ctx, question.get("test"), name_if_any(ctx, question.get("annotator")))

    judges = [[judge.name, judge.description] for judge in JUDGES.values()]
    part = widget(
        "compare", reads=[read(options), read(answers), read(tested)], scripts=["blind"], data={"judges": judges},
        label="Compare models",
    )  # fmt: skip

    def write(event: gr.EventData) -> dict[str, Any]:
        return answered(event, lambda said: {"jobs": [job.id for job in ask(ctx, said)]})

    def cancel(event: gr.EventData) -> None:
        for job in asked(ctx, event._data):
            queue.cancel(ctx.db, job.id)

    def begin(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        def made(said: dict[str, Any]) -> dict[str, Any]:
            ctx.require_operator(secret)
            return {
                "test": blind.state(ctx, blind.begin(ctx, said).id, name_of(ctx, event)),
                "tests": blind.listed(ctx),
            }

        return answered(event, made)

    def manage(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        def changed(said: dict[str, Any]) -> dict[str, Any]:
            ctx.require_operator(secret)
            return {**blind.change(ctx, said, name_of(ctx, event)), "tests": blind.listed(ctx)}

        return answered(event, changed)

    def prefer(event: gr.EventData) -> dict[str, Any]:
        return answered(event, lambda said: {"test": blind.prefer(ctx, said, name_of(ctx, event))})

    part.write(told(write), None, part, **UNSEEN)
    part.begin(told(begin), operator, part, **UNSEEN)
    part.manage(told(manage), operator, part, **UNSEEN)
    part.prefer(told(prefer), None, part, **UNSEEN)
    part.cancel(told(cancel), None, None, **UNSEEN)


def answered(event: gr.EventData, do: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """What the widget is told about an act: what `do` says, or why not and which field is wrong; with the "at" it was sent at."""
    said = dict(event._data or {})
    try:
        return {"at": said.get("at"), **do(said)}
    except LabError as error:
        return {"at": said.get("at"), "error": str(error), "field": getattr(error, "field", "")}


def asked(ctx: Context, question: dict[str, Any]) -> list[Job]:
    """The jobs that a page speaks of. Raises LabError for any that writes no text."""
    try:
        numbers = [int(job) for job in question["jobs"]][:MOST_COLUMNS]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise LabError("The page named no texts; reload it.") from None
    jobs = [queue.get_job(ctx.db, number) for number in numbers]
    if any(job.kind is not JobKind.COMPLETE for job in jobs):
        raise LabError("The page asked for something that is no text; reload it.")
    return jobs


def choices(ctx: Context) -> dict[str, Any]:
    """What can be compared: the base, its best of n, and every run that has done a step; the same for every page."""
    project = ctx.project
    rewards = reward_models(ctx.db, project.id)
    best = [[f"base/best/{n}", f"base, best of {n}"] for n in BEST_OF] if rewards else []
    return {
        "project": project.id,
        "models": [
            ["base", "base model"],
            *(
                [f"run/{run.id}/latest", f"run {run.id}: {run.name}"]
                for run in runs(ctx.db, project.id)
                if run.step > 0
            ),
            *best,
        ],
        "rewards": [[row.id, reward_words(row)] for row in rewards],
        "newest": teaching(ctx, rewards[0]) if rewards else None,
        "prompts": [prompt.text for prompt in prompts(ctx.db, project.id, "eval")[:64]],
        "tests": blind.listed(ctx),
    }


def about_runs(ctx: Context, wanted: Any) -> dict[str, Any]:
    """The steps of the runs in a page's columns, and what each learns from; asked for as they are chosen, for there may be
    a thousand runs. Runs that are not there any more are left out. Raises LabError for what names no runs."""
    try:
        asked_about = {int(run_id) for run_id in (wanted or [])[:MOST_COLUMNS]}
    except (TypeError, ValueError, OverflowError, KeyError):
        raise LabError("The page named no runs; reload it.") from None
    mine = []
    for run_id in asked_about:
        with contextlib.suppress(StoreError):
            mine.append(get_run(ctx.db, run_id))
    mine = [run for run in mine if run.project_id == ctx.project.id]
    return {
        "steps": {str(run.id): stored_steps(ctx, run.id) for run in mine},
        "learnt": {
            str(run.id): teaching(ctx, get_reward_model(ctx.db, scorer(run, events(ctx.db, run.id)))) for run in mine
        },
    }


def teaching(ctx: Context, row: RewardModelRow) -> list[Any]:
    """A reward model and the judge behind it: [id, name], the name "" for people and several judges."""
    return [row.id, control.teacher(ctx.db, row) or ""]


def stored_steps(ctx: Context, run_id: int) -> list[int]:
    """The steps whose checkpoints are still there."""
    return checkpoints(run_folder(ctx.home, run_id))


def ask(ctx: Context, said: dict[str, Any]) -> list[Job]:
    """One COMPLETE job a column. said: prompt, models, samples, seed, temperature, tokens, reward.

    Raises LabError for what is out of range.
    """
    models, prompt = models_of(said), str(said.get("prompt", ""))
    if not prompt.strip() or len(prompt) > LONGEST:
        raise FieldError("prompt", f"Prompt: write 1 to {LONGEST:,} characters.")
    return submit(ctx, said, models, [prompt] * number(said, "samples"))
