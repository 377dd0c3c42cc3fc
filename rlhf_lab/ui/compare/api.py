"""Screen "Compare": texts by the base model and checkpoints for the same prompt and seed, with scores; and blind tests."""

import contextlib
from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import Chat, turns_of_prompt
from rlhf_lab.common.checkpoint_index import best_step, checkpoint_steps
from rlhf_lab.common.enums import JobKind, Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Job
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import queue, run_control
from rlhf_lab.jobs.model_inspection import stop_token_ids
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_model_list import ListedRewardModel, list_reward_models
from rlhf_lab.store.runs import runs
from rlhf_lab.ui.compare.blind_results import size_note
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.compare.tournament import api as tournament
from rlhf_lab.ui.compare.typed_texts import check_may_score
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import ENGINE
from rlhf_lab.ui.run_views.run_summary import RunView, current_reward_model_id, reward_model_label
from rlhf_lab.ui.run_views.stage_estimates import completions_sentence, estimates_key, tournament_sentence
from rlhf_lab.ui.shared.api import Api, FieldError, LongText, Payload
from rlhf_lab.ui.shared.generation_requests import (
    BEST_OF_CHOICES,
    MAX_COLUMNS,
    MAX_SAMPLES,
    MAX_TEXTS_PER_COLUMN,
    MAX_TOKENS,
    LostJobError,
    SamplingPayload,
    TextColumn,
    column_view,
    own_job,
    submit_completions,
    texts_per_sample,
)
from rlhf_lab.ui.shared.widgets import widget

api = Api("compare")
OPTIONS_S = 1.0  # for how long they are reused
MAX_PROMPT_CHARS = 4000


class ColumnsQuery(Payload):
    """runs: the runs chosen in the columns."""

    runs: tuple[int, ...] = ()


class JobsQuery(Payload):
    """judge: the judge whose gold scores are shown; "" for none."""

    jobs: list[int]
    judge: str = ""


class ComparePayload(SamplingPayload):
    prompt: LongText = ""
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


#: A reward model's id and the judge whose labels it was trained on: "" for people's labels and for several judges.
Scorer = tuple[int, str]


class ProjectOptions(TypedDict):
    """What can be compared in the project, the same for every page. models, reward_models: (id, name). prompts: held-out ones,
    and the turns of those that are conversations. tests: the blind tests. estimates_key: changes with the estimates of time."""

    project: int
    temperature: float
    max_new_tokens: int
    models: list[tuple[str, str]]
    reward_models: list[tuple[int, str]]
    judges: list[str]
    default_scorer: Scorer | None
    prompts: list[str]
    conversations: dict[str, Chat]
    tests: list[tuple[int, str]]
    estimates_key: str


class RunDetails(TypedDict):
    """Of the runs in a page's columns: the steps with a checkpoint, the best of them, and the reward model of the run."""

    steps_by_run: dict[str, list[int]]
    best_by_run: dict[str, int | None]
    scorer_by_run: dict[str, Scorer]


class CompareOptions(ProjectOptions, RunDetails):
    pass


class TextColumns(TypedDict):
    columns: list[TextColumn]


class RequestedTexts(TypedDict):
    """The jobs of a comparison, and the messages that the models read."""

    jobs: list[int]
    turns: Chat


class CompareEstimates(TypedDict):
    """How long each takes, as a sentence; "" if nobody knows. sizes: which preference so many pairs and prompts can show."""

    comparison: str
    blind_test: str
    blind_test_size: str
    tournament: str
    tournament_size: str


def build(ctx: Context) -> None:
    widget("compare", "compare/view.js", label="Compare models")


@api.read(ColumnsQuery)
def options(ctx: Context, query: ColumnsQuery) -> CompareOptions:
    of_project = ctx.cache.get("what can be compared", OPTIONS_S, lambda: comparison_options(ctx))
    return {**of_project, **run_details(ctx, query.runs)}


@api.read(JobsQuery)
def completions(ctx: Context, query: JobsQuery) -> TextColumns:
    annotator, stop_ids = ctx.annotator_or_empty(query.annotator), stop_token_ids(ctx.project.model)
    columns = list[TextColumn]()
    for job_id in query.jobs[:MAX_COLUMNS]:
        try:
            columns.append(column_view(own_job(ctx, job_id, JobKind.COMPLETE, annotator), query.judge, stop_ids))
        except LostJobError as error:
            columns.append({"is_waiting": False, "error": str(error)})
    return {"columns": columns}


@api.read(EstimateQuery)
def estimates(ctx: Context, query: EstimateQuery) -> CompareEstimates:
    models, scored = query.models[:MAX_COLUMNS], query.reward_model_id != ""
    counts = [query.samples * texts_per_sample(model) for model in models]
    test_counts = [query.pairs * texts_per_sample(model) for model in models[:2]] if len(models) > 1 else []
    return {
        "comparison": completions_sentence(ctx, counts, query.max_new_tokens, scored=scored),
        "blind_test": completions_sentence(ctx, test_counts, query.max_new_tokens, scored=scored),
        "blind_test_size": size_note(query.pairs),
        "tournament": tournament_sentence(
            ctx, query.contestants[: tournament.MAX_CONTESTANTS], query.prompts, query.max_new_tokens, scored=scored
        ),
        "tournament_size": f"Any two models are compared on up to {pluralize(query.prompts, 'prompt')}. "
        + size_note(query.prompts),
    }


@api.action(ComparePayload, limit=ENGINE)
def sample(ctx: Context, payload: ComparePayload) -> RequestedTexts:
    jobs = submit_comparison(ctx, payload, ctx.require_annotator(payload.annotator))
    return {"jobs": [job.id for job in jobs], "turns": turns_of_prompt(payload.prompt, ctx.project.system_prompt)}


@api.action(JobsQuery, limit=ENGINE)
def cancel(ctx: Context, payload: JobsQuery) -> None:
    for job in own_jobs(ctx, payload.jobs, ctx.require_annotator(payload.annotator)):
        queue.cancel(ctx.db, job.id)


def own_jobs(ctx: Context, job_ids: Sequence[int], annotator: str) -> list[Job]:
    """The jobs of a comparison that this person requested. Raises LabError if one of them is not."""
    return [own_job(ctx, job_id, JobKind.COMPLETE, annotator) for job_id in job_ids[:MAX_COLUMNS]]


def comparison_options(ctx: Context) -> ProjectOptions:
    """The models are the base, its best of n, and every run that has done a step."""
    project = ctx.project
    reward_rows = list_reward_models(ctx.db, project.id)
    started_runs = [run for run in runs(ctx.db, project.id) if run.step > 0]
    prompt_texts = [prompt.text for prompt in prompts(ctx.db, project.id, "eval")[:MAX_TEXTS_PER_COLUMN]]
    return {
        "project": project.id,
        "temperature": project.temperature,
        "max_new_tokens": min(project.max_new_tokens, MAX_TOKENS),
        "models": [
            ("base", "base model"),
            *((f"run/{run.id}/latest", f"run {run.id}: {run.name}") for run in started_runs),
            *((f"base/best/{n}", f"base, best of {n}") for n in BEST_OF_CHOICES if reward_rows),
        ],
        "reward_models": [(row.id, reward_model_label(row)) for row in reward_rows],
        "judges": list(JUDGES),
        "default_scorer": reward_model_and_judge(reward_rows[0]) if reward_rows else None,
        "prompts": prompt_texts,
        "conversations": {text: turns for text in prompt_texts if len(turns := turns_of_prompt(text)) > 1},
        "tests": blind_test.list_tests(ctx),
        "estimates_key": estimates_key(ctx),
    }


def run_details(ctx: Context, run_ids: Sequence[int]) -> RunDetails:
    """Only of chosen runs, because there may be a thousand. Runs that were deleted, belong to another project or
    were made elsewhere are left out."""
    details: RunDetails = {"steps_by_run": {}, "best_by_run": {}, "scorer_by_run": {}}
    models: dict[int | None, ListedRewardModel] = {row.id: row for row in list_reward_models(ctx.db, ctx.project.id)}
    for run_id in run_ids[:MAX_COLUMNS]:
        with contextlib.suppress(StoreError):
            run = ctx.run(run_id)
            if run.outside_file:
                continue
            row = models.get(current_reward_model_id(RunView.load(ctx.db, run)))
            details["steps_by_run"][str(run.id)] = checkpoint_steps(run_folder(ctx.home, run.id))
            details["best_by_run"][str(run.id)] = best_step(run_folder(ctx.home, run.id))
            if row is not None:
                details["scorer_by_run"][str(run.id)] = reward_model_and_judge(row)
    return details


def reward_model_and_judge(row: ListedRewardModel) -> Scorer:
    return row.id, (row.source is Source.SIMULATED and run_control.only_judge(row.annotators)) or ""


def submit_comparison(ctx: Context, payload: ComparePayload, annotator: str) -> list[Job]:
    """Submit one COMPLETE job per column, which belongs to the annotator. Raises LabError, also where
    `check_may_score` forbids scores for a prompt of one's own."""
    if not payload.prompt.strip() or len(payload.prompt) > MAX_PROMPT_CHARS:
        raise FieldError("prompt", f"Prompt: write 1 to {MAX_PROMPT_CHARS:,} characters.")
    if payload.reward_model_id and payload.prompt not in (
        item.text for item in prompts(ctx.db, ctx.project.id, "eval")
    ):
        check_may_score(ctx)  # the prompt can contain a text to be scored
    models, prompt_texts = payload.models[:MAX_COLUMNS], [payload.prompt] * payload.samples
    return submit_completions(ctx, payload, models, prompt_texts, requester=annotator)
