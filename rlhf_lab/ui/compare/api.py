"""Screen "Compare": texts by the base model and checkpoints for the same prompt and seed, with scores; and blind tests."""

import contextlib
from collections.abc import Sequence
from typing import Any, Literal

import gradio as gr
from pydantic import Field

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.checkpoint_index import best_step, checkpoint_steps
from rlhf_lab.common.enums import JobKind, Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Job
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import queue, run_control
from rlhf_lab.jobs.model_inspection import stop_token_ids
from rlhf_lab.jobs.model_speed import speed_changed_at
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_model_list import ListedRewardModel, list_reward_models
from rlhf_lab.store.runs import get_run, runs
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.compare.tournament import api as tournament
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views.run_summary import RunView, current_reward_model_id, reward_model_label
from rlhf_lab.ui.run_views.stage_estimates import completions_sentence, tournament_sentence
from rlhf_lab.ui.shared.api import FieldError, Payload, parse_payload
from rlhf_lab.ui.shared.events import if_changed, operator_action, show_errors, ttl_cache, visitor_action
from rlhf_lab.ui.shared.generation_requests import (
    BEST_OF_CHOICES,
    MAX_COLUMNS,
    MAX_SAMPLES,
    MAX_TEXTS_PER_COLUMN,
    MAX_TOKENS,
    SamplingPayload,
    column_view,
    own_job,
    submit_completions,
    texts_per_sample,
)
from rlhf_lab.ui.shared.widgets import SILENT_EVENT, widget

MAX_PROMPT_CHARS = 4000


class OptionsQuery(Payload):
    """runs: the runs chosen in the columns."""

    runs: tuple[int, ...] = ()


class JobsQuery(Payload):
    """judge: the judge whose gold scores are shown; "" for none."""

    jobs: list[int]
    judge: str = ""
    annotator: str | None = None


class TestQuery(Payload):
    """test_id: None for the newest test."""

    test_id: int | None = None
    annotator: str | None = None


class ComparePayload(SamplingPayload):
    annotator: str | None = None
    prompt: str = ""
    samples: int = Field(title="samples each", ge=1, le=MAX_SAMPLES)


class EstimateQuery(Payload):
    """The settings of a comparison, of a blind test with `pairs` pairs of the first two models, and of a tournament of
    `contestants`, whose durations are to be estimated."""

    models: tuple[str, ...] = ()
    contestants: tuple[str, ...] = ()
    prompts: int = Field(default=1, ge=1, le=tournament.MAX_PROMPTS)
    samples: int = Field(ge=1, le=MAX_SAMPLES)
    pairs: int = Field(ge=1, le=MAX_TEXTS_PER_COLUMN)
    max_new_tokens: int = Field(ge=1, le=MAX_TOKENS)
    reward_model_id: int | Literal[""] = ""


def build(ctx: Context, operator: gr.BrowserState) -> None:
    cached_options = ttl_cache(1.0, lambda: comparison_options(ctx))

    def options(query: dict[str, Any]) -> dict[str, Any]:
        return if_changed(cached_options() | run_details(ctx, parse_payload(OptionsQuery, query).runs), query)

    def completions(query: dict[str, Any]) -> dict[str, Any]:
        payload = parse_payload(JobsQuery, query)
        annotator = ctx.annotator_or_empty(payload.annotator)
        jobs, stop_ids = own_jobs(ctx, payload.jobs, annotator), stop_token_ids(ctx.project.model)
        return {"columns": [column_view(job, payload.judge, stop_ids) for job in jobs]}

    def test_state(query: dict[str, Any]) -> dict[str, Any]:
        payload = parse_payload(TestQuery, query)
        return blind_test.state(ctx, payload.test_id, ctx.annotator_or_empty(payload.annotator))

    def tournament_state(query: dict[str, Any]) -> dict[str, Any]:
        payload = parse_payload(tournament.TournamentPayload, query)
        return tournament.state(ctx, payload.tournament_id, ctx.annotator_or_empty(payload.annotator))

    component = widget(
        "compare",
        "compare/view.js",
        events=(
            "start_tournament",
            "delete_tournament",
            "judge_pair",
            "sample",
            "start_test",
            "edit_test",
            "answer",
            "cancel",
        ),
        server_functions={
            "options": options,
            "completions": completions,
            "blind_test": test_state,
            "tournament": tournament_state,
            "estimates": lambda query: estimates(ctx, parse_payload(EstimateQuery, query)),
        },
        data={"judges": [[judge.name, judge.description] for judge in JUDGES.values()]},
        label="Compare models",
    )

    @visitor_action(ComparePayload)
    def sample(payload: ComparePayload) -> dict[str, Any]:
        jobs = submit_comparison(ctx, payload, ctx.require_annotator(payload.annotator))
        turns = turns_of_prompt(payload.prompt, ctx.project.system_prompt)
        return {"jobs": [job.id for job in jobs], "turns": turns}

    def cancel(event: gr.EventData) -> None:
        payload = parse_payload(JobsQuery, event._data)
        for job in own_jobs(ctx, payload.jobs, ctx.annotator_or_empty(payload.annotator)):
            queue.cancel(ctx.db, job.id)

    @operator_action(ctx, blind_test.StartPayload)
    def start_test(payload: blind_test.StartPayload) -> dict[str, Any]:
        annotator = ctx.require_annotator(payload.annotator)
        test = blind_test.start_test(ctx, payload)
        return {"test": blind_test.state(ctx, test.id, annotator), "tests": blind_test.list_tests(ctx)}

    @operator_action(ctx, blind_test.EditPayload)
    def edit_test(payload: blind_test.EditPayload) -> dict[str, Any]:
        reply = blind_test.edit_test(ctx, payload, ctx.require_annotator(payload.annotator))
        return reply | {"tests": blind_test.list_tests(ctx)}

    @visitor_action(blind_test.AnswerPayload)
    def answer(payload: blind_test.AnswerPayload) -> dict[str, Any]:
        return {"test": blind_test.record_answer(ctx, payload, ctx.require_annotator(payload.annotator))}

    @operator_action(ctx, tournament.StartPayload)
    def start_tournament(payload: tournament.StartPayload) -> dict[str, Any]:
        annotator = ctx.require_annotator(payload.annotator)
        return {"tournament": tournament.state(ctx, tournament.start(ctx, payload).id, annotator)}

    @operator_action(ctx, tournament.TournamentPayload)
    def delete_tournament(payload: tournament.TournamentPayload) -> dict[str, Any]:
        return {"tournament": tournament.delete(ctx, payload, ctx.require_annotator(payload.annotator))}

    @visitor_action(tournament.JudgePayload)
    def judge_pair(payload: tournament.JudgePayload) -> dict[str, Any]:
        return {"tournament": tournament.judge(ctx, payload, ctx.require_annotator(payload.annotator))}

    component.start_tournament(start_tournament, operator, component, **SILENT_EVENT)
    component.delete_tournament(delete_tournament, operator, component, **SILENT_EVENT)
    component.judge_pair(judge_pair, None, component, **SILENT_EVENT)
    component.sample(sample, None, component, **SILENT_EVENT)
    component.start_test(start_test, operator, component, **SILENT_EVENT)
    component.edit_test(edit_test, operator, component, **SILENT_EVENT)
    component.answer(answer, None, component, **SILENT_EVENT)
    component.cancel(show_errors(cancel), None, None, **SILENT_EVENT)


def estimates(ctx: Context, query: EstimateQuery) -> dict[str, str]:
    """How long a comparison, a blind test and a tournament take."""
    models, scored = query.models[:MAX_COLUMNS], query.reward_model_id != ""
    counts = [query.samples * texts_per_sample(model) for model in models]
    test_counts = [query.pairs * texts_per_sample(model) for model in models[:2]] if len(models) > 1 else []
    return {
        "comparison": completions_sentence(ctx, counts, query.max_new_tokens, scored=scored),
        "blind_test": completions_sentence(ctx, test_counts, query.max_new_tokens, scored=scored),
        "tournament": tournament_sentence(
            ctx, query.contestants[: tournament.MAX_CONTESTANTS], query.prompts, query.max_new_tokens, scored=scored
        ),
    }


def own_jobs(ctx: Context, job_ids: Sequence[int], annotator: str) -> list[Job]:
    """The jobs of a comparison that this person requested. Raises LabError if one of them is not."""
    return [own_job(ctx, job_id, JobKind.COMPLETE, annotator) for job_id in job_ids[:MAX_COLUMNS]]


def comparison_options(ctx: Context) -> dict[str, Any]:
    """What can be compared: the base, its best of n, and every run that has done a step; the same for every page."""
    project = ctx.project
    reward_rows = list_reward_models(ctx.db, project.id)
    started_runs = [run for run in runs(ctx.db, project.id) if run.step > 0]
    prompt_texts = [prompt.text for prompt in prompts(ctx.db, project.id, "eval")[:64]]
    return {
        "project": project.id,
        "temperature": project.temperature,
        "max_new_tokens": min(project.max_new_tokens, MAX_TOKENS),
        "models": [
            ["base", "base model"],
            *([f"run/{run.id}/latest", f"run {run.id}: {run.name}"] for run in started_runs),
            *([f"base/best/{n}", f"base, best of {n}"] for n in BEST_OF_CHOICES if reward_rows),
        ],
        "reward_models": [[row.id, reward_model_label(row)] for row in reward_rows],
        "default_scorer": reward_model_and_judge(reward_rows[0]) if reward_rows else None,
        "prompts": prompt_texts,
        "conversations": {text: turns for text in prompt_texts if len(turns := turns_of_prompt(text)) > 1},
        "tests": blind_test.list_tests(ctx),
        "measured_at": speed_changed_at(ctx.home),
    }


def run_details(ctx: Context, run_ids: Sequence[int]) -> dict[str, Any]:
    """For the runs in a page's columns: the steps with a checkpoint, the best of them, and the reward model of the run.

    Only for chosen runs, because there may be a thousand. Runs that were deleted or belong to another project are left out.
    """
    steps_by_run, best_by_run, scorer_by_run = {}, {}, {}
    models: dict[int | None, ListedRewardModel] = {row.id: row for row in list_reward_models(ctx.db, ctx.project.id)}
    for run_id in run_ids[:MAX_COLUMNS]:
        with contextlib.suppress(StoreError):
            run = get_run(ctx.db, run_id)
            if run.project_id == ctx.project.id:
                row = models.get(current_reward_model_id(RunView.load(ctx.db, run)))
                steps_by_run[str(run.id)] = checkpoint_steps(run_folder(ctx.home, run.id))
                best_by_run[str(run.id)] = best_step(run_folder(ctx.home, run.id))
                if row is not None:
                    scorer_by_run[str(run.id)] = reward_model_and_judge(row)
    return {"steps_by_run": steps_by_run, "best_by_run": best_by_run, "scorer_by_run": scorer_by_run}


def reward_model_and_judge(row: ListedRewardModel) -> list[Any]:
    """[id, judge whose labels the reward model was trained on]; the judge is "" for people's labels and for several judges."""
    return [row.id, (row.source is Source.SIMULATED and run_control.only_judge(row.annotators)) or ""]


def submit_comparison(ctx: Context, payload: ComparePayload, annotator: str) -> list[Job]:
    """Submit one COMPLETE job per column, which belongs to the annotator. Raises LabError."""
    if not payload.prompt.strip() or len(payload.prompt) > MAX_PROMPT_CHARS:
        raise FieldError("prompt", f"Prompt: write 1 to {MAX_PROMPT_CHARS:,} characters.")
    models, prompt_texts = payload.models[:MAX_COLUMNS], [payload.prompt] * payload.samples
    return submit_completions(ctx, payload, models, prompt_texts, requester=annotator)
