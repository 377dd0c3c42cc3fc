"""Screen "Chat": a conversation with any checkpoint, the base model's answer beside it on request.

A conversation is stored only in its jobs, which are deleted with the next message, or an hour after the last one. Two answers
that a person chooses to label become a pair of the project.
"""

import contextlib
from collections.abc import Collection, Iterable
from typing import Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.checkpoint_index import best_step, checkpoint_steps
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import REQUESTER_KEY, Job
from rlhf_lab.common.text import cut_length
from rlhf_lab.errors import LabelError, NotAllowedError, StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.model_inspection import has_chat_template, stop_token_ids
from rlhf_lab.store.chat_pairs import ChatText, add_chat_pair
from rlhf_lab.store.pair_leases import lease_next
from rlhf_lab.store.projects import get_labelling_config, prompts
from rlhf_lab.store.runs import runs
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import ENGINE
from rlhf_lab.ui.shared.api import Api, DecimalNumber, FieldError, LongText, Payload
from rlhf_lab.ui.shared.generation_requests import (
    MAX_TOKENS,
    LostJobError,
    SamplingPayload,
    own_job,
    submit_short_jobs,
)
from rlhf_lab.ui.shared.voting import check_may_hold, may_edit
from rlhf_lab.ui.shared.widgets import widget

api = Api("chat")
MAX_CHAT_CHARS = 40_000
MIN_LONGEST_ANSWER = 128  # proposed in a project with shorter responses, because nobody labels or trains on a chat
MAX_ANSWERS = 2  # one by the chosen model, one by the base model
EXAMPLES = 3
MAX_EXAMPLE_CHARS = 120
EXAMPLES_S = 60.0  # for how long the examples of a project are reused
BEGINNING_WORDS = 3  # examples differ in them


class Turn(BaseModel):
    role: Literal["user", "assistant"]
    content: LongText


class AskPayload(SamplingPayload):
    """turns: the conversation, whose last turn is by the user. forget: the jobs of the earlier answers, to be deleted."""

    turns: tuple[Turn, ...]
    top_p: DecimalNumber = Field(title="top-p", ge=0.05, le=1)
    forget: tuple[int, ...] = ()


class AnswersPayload(Payload):
    """jobs: those of the answers on screen."""

    jobs: tuple[int, ...]


class OptionsQuery(Payload):
    """run: the chosen run."""

    run: int | None = None


class RunSteps(TypedDict):
    """The steps with a checkpoint of the chosen run, and the best of them."""

    run: int | None
    steps: list[int]
    best: int | None


class ChatOptions(RunSteps):
    """models: (id, name) of the base and of every run that has done a step. The numbers are proposed settings. examples:
    `example_messages`."""

    project: int
    temperature: float
    max_new_tokens: int
    models: list[tuple[str, str]]
    system_prompt: str
    has_chat_template: bool
    examples: list[str]


class Answer(TypedDict):
    """The text so far. status: queued, running, done, cancelled (stopped) or failed. cut: `cut_length`."""

    status: JobStatus
    is_waiting: bool
    text: str
    tokens: int
    cut: int | None
    turns_left_out: int
    note: str
    error: str


def build(ctx: Context) -> None:
    widget("chat", "chat/view.js", data={"is_demo": ctx.demo is not None}, label="Chat with a model")


@api.read(OptionsQuery, cached_s=1.0)
def options(ctx: Context, query: OptionsQuery) -> ChatOptions:
    project = ctx.project
    started_runs = [run for run in runs(ctx.db, project.id) if run.step > 0]
    return {
        "project": project.id,
        "temperature": project.temperature,
        "max_new_tokens": min(max(project.max_new_tokens, MIN_LONGEST_ANSWER), MAX_TOKENS),
        "models": [("base", "base model"), *((f"run/{run.id}", f"run {run.id}: {run.name}") for run in started_runs)],
        "system_prompt": project.system_prompt,
        "has_chat_template": has_chat_template(project.model),
        "examples": ctx.cache.get(("chat examples", project.id), EXAMPLES_S, lambda: project_examples(ctx)),
        **run_steps(ctx, query.run),
    }


def project_examples(ctx: Context) -> list[str]:
    """Held-out prompts first, since nothing was trained on them."""
    return example_messages(
        prompt.text for split in ("eval", "train") for prompt in prompts(ctx.db, ctx.project.id, split)
    )


def example_messages(prompt_texts: Iterable[str]) -> list[str]:
    """Messages that suit the model, because its texts are trained on the project's prompts: the first three short prompts of a
    single message that differ in their first words, or if there are fewer, the first short ones."""
    short = [text for text in dict.fromkeys(prompt_texts) if len(text) <= MAX_EXAMPLE_CHARS and is_single_message(text)]
    by_beginning: dict[tuple[str, ...], str] = {}
    for text in short:
        by_beginning.setdefault(tuple(text.split()[:BEGINNING_WORDS]), text)
    return list(dict.fromkeys([*by_beginning.values(), *short]))[:EXAMPLES]


def is_single_message(prompt: str) -> bool:
    """Whether a prompt is one message of the user, written as it is stored."""
    return turns_of_prompt(prompt) == [{"role": "user", "content": prompt}]


@api.read(AnswersPayload)
def answers(ctx: Context, query: AnswersPayload) -> list[Answer]:
    annotator, stop_ids = ctx.annotator_or_empty(query.annotator), stop_token_ids(ctx.project.model)
    return [answer_or_failure(ctx, job_id, annotator, stop_ids) for job_id in query.jobs[:MAX_ANSWERS]]


@api.action(AskPayload, limit=ENGINE)
def ask(ctx: Context, payload: AskPayload) -> list[int]:
    """The ids of the jobs."""
    annotator = ctx.require_annotator(payload.annotator)
    return [job.id for job in submit_chat(ctx, payload, annotator)]


@api.action(AnswersPayload, limit=ENGINE)
def make_pair(ctx: Context, payload: AnswersPayload) -> None:
    """Replies nothing: a pair's own id tells how old it is, and pages name pairs by other ids (`voting.shown_as`).

    Raises NotAllowedError for visitors of a demo, whose messages others would have to read."""
    if not may_edit(ctx):
        raise NotAllowedError("In demo mode only the operator can make a pair of two answers. Label pairs under Label.")
    label_answers(ctx, payload.jobs, ctx.require_annotator(payload.annotator))


@api.action(AnswersPayload, limit=ENGINE)
def stop_answers(ctx: Context, payload: AnswersPayload) -> None:
    for job in own_answers(ctx, payload.jobs, ctx.require_annotator(payload.annotator)):
        queue.cancel(ctx.db, job.id)


@api.action(AnswersPayload, limit=ENGINE)
def forget(ctx: Context, payload: AnswersPayload) -> None:
    forget_answers(ctx, payload.jobs, ctx.require_annotator(payload.annotator))


def own_answers(ctx: Context, job_ids: tuple[int, ...], annotator: str) -> list[Job]:
    """The jobs of answers that this person asked for. Raises LabError if one of them is not."""
    return [own_job(ctx, job_id, JobKind.CHAT, annotator) for job_id in job_ids[:MAX_ANSWERS]]


def forget_answers(ctx: Context, job_ids: tuple[int, ...], annotator: str) -> None:
    """Delete those of these answers that this person asked for; old ones are deleted already."""
    for job_id in job_ids[:MAX_ANSWERS]:
        with contextlib.suppress(LostJobError):
            queue.remove_chats(ctx.db, [own_job(ctx, job_id, JobKind.CHAT, annotator).id])


def answer_or_failure(ctx: Context, job_id: int, annotator: str, stop_ids: Collection[int]) -> Answer:
    """This person's answer. A lost one counts as failed, so that the page does not wait for it."""
    try:
        return answer_view(own_job(ctx, job_id, JobKind.CHAT, annotator), stop_ids)
    except LostJobError as error:
        return {
            "status": JobStatus.FAILED, "is_waiting": False, "text": "", "tokens": 0, "cut": None, "turns_left_out": 0,
            "note": "", "error": str(error),
        }  # fmt: skip


def run_steps(ctx: Context, run_id: int | None) -> RunSteps:
    """No steps for a deleted run or another project's."""
    with contextlib.suppress(StoreError):
        if run_id is not None:
            folder = run_folder(ctx.home, ctx.run(run_id).id)
            return {"run": run_id, "steps": checkpoint_steps(folder), "best": best_step(folder)}
    return {"run": None, "steps": [], "best": None}


def submit_chat(ctx: Context, payload: AskPayload, annotator: str) -> list[Job]:
    """Submit one CHAT job per model, which belongs to the annotator, and delete the jobs of earlier answers. Raises LabError."""
    turns = [turn.model_dump() for turn in payload.turns]
    if not turns or turns[-1]["role"] != "user" or not "".join(turn["content"] for turn in turns).strip():
        raise FieldError("message", "Message: write something first.")
    if sum(len(turn["content"]) for turn in turns) > MAX_CHAT_CHARS:
        raise FieldError(
            "message", f"The conversation has more than {MAX_CHAT_CHARS:,} characters. Start a new conversation."
        )
    forget_answers(ctx, payload.forget, annotator)
    common = {
        "chat": turns, "seed": payload.seed, "temperature": payload.temperature, "top_p": payload.top_p,
        "max_new_tokens": payload.max_new_tokens, REQUESTER_KEY: annotator,
    }  # fmt: skip
    payloads = [common | {"checkpoint": model} for model in payload.models[:MAX_ANSWERS]]
    return submit_short_jobs(ctx, JobKind.CHAT, annotator, payloads)


def answer_view(job: Job, stop_ids: Collection[int] = ()) -> Answer:
    result = job.result or {}
    error = job.error[:1].upper() + job.error[1:]
    return {
        "status": job.status,
        "is_waiting": job.status in UNFINISHED_JOB_STATUSES,
        "text": result.get("text", ""),
        "tokens": len(result.get("tokens", ())),
        "cut": cut_length(result.get("tokens", ()), stop_ids) if job.status is JobStatus.DONE else None,
        "turns_left_out": result.get("turns_left_out", 0),
        "note": result.get("note", ""),
        "error": error if job.status is JobStatus.FAILED else "",
    }


def label_answers(ctx: Context, job_ids: tuple[int, ...], annotator: str) -> None:
    """Make a pair of two complete answers, which this person gets as the next pair under Label.

    Raises LabelError.
    """
    jobs = own_answers(ctx, job_ids, annotator)
    if len(jobs) != MAX_ANSWERS or any(job.status is not JobStatus.DONE or not job.result for job in jobs):
        raise LabelError("A pair needs two complete answers. Send the message again, and let both answers finish.")
    if any(job.project_id != ctx.project.id for job in jobs):
        raise LabelError("Another project has been opened. Nothing was stored; start a new conversation.")
    results = [job.result or {} for job in jobs]
    if results[0]["prompt"] != results[1]["prompt"]:
        raise LabelError("The two answers belong to different conversations. Send the message again.")
    texts = [
        ChatText(result["text"], tuple(result["tokens"]), result["checkpoint"], int(job.payload["seed"]))
        for job, result in zip(jobs, results, strict=True)
    ]
    prompt = results[0]["prompt"]
    # The first text of a pair is not always that of the chosen model, but the same if the same texts come again.
    first, second = sorted(texts, key=lambda text: ctx.blind_digest("chat", prompt, text.text))
    rules = get_labelling_config(ctx.db, ctx.project.id)
    check_may_hold(ctx, annotator, rules)
    pair = add_chat_pair(ctx.db, ctx.project.id, prompt, first, second)
    lease_next(ctx.db, pair.id, annotator, rules)
