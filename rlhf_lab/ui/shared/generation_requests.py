"""Texts that a page requests from the engine: models, sampling settings, who may see the texts, and results."""

import contextlib
import re
import threading
from collections.abc import Collection, Sequence
from typing import Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import REQUESTER_KEY, Job
from rlhf_lab.common.text import cut_length
from rlhf_lab.errors import LabError, NotFoundError, StoreError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import DecimalNumber, Payload

MAX_SAMPLES, MAX_TOKENS, MAX_SEED = 16, 512, 2**31 - 1
MAX_COLUMNS = 3
MAX_TEXTS_PER_COLUMN = 64
MAX_QUEUED_JOBS = 24  # short jobs of all pages together
#: Those of one visitor, and of all visitors of one address, who are not the operator.
MAX_JOBS_OF_VISITOR, MAX_JOBS_OF_ADDRESS = 6, 18
SHORT_JOBS = (JobKind.COMPLETE, JobKind.EXPLAIN, JobKind.CHAT)
BEST_OF_CHOICES = (4, 16)
#: Held from the count of the unfinished jobs to the submission of new ones: parallel requests must not share one count.
_SUBMISSION = threading.Lock()
CHECKPOINT = re.compile(r"run/([0-9]{1,18})/(latest|best|[0-9]{1,18})")


class SamplingPayload(Payload):
    """The sampling settings. models: checkpoints as JobKind.COMPLETE names them, or base/best/N."""

    models: list[str]
    seed: int = Field(title="seed", ge=0, le=MAX_SEED)
    temperature: DecimalNumber = Field(title="temperature", ge=0.05, le=5)
    max_new_tokens: int = Field(title="max_new_tokens", ge=1, le=MAX_TOKENS)
    reward_model_id: int | Literal[""] = ""


class TextColumn(TypedDict):
    """The texts of one model, with their scores and the judge's gold scores. cut: `cut_length` of each. Until the job is done
    there is only `running`, of a failed one only `error`."""

    is_waiting: bool
    running: NotRequired[bool]
    error: NotRequired[str]
    texts: NotRequired[list[str]]
    cut: NotRequired[list[int | None]]
    scores: NotRequired[list[float]]
    gold: NotRequired[list[float]]
    best_of: NotRequired[int]
    note: NotRequired[str]


def check_queue_capacity(ctx: Context, new_jobs: int = 1) -> list[Job]:
    """The unfinished short jobs. Raises LabError if so many are queued that new ones would wait for minutes, or if a demo is
    about to be reset."""
    if ctx.demo is not None:
        ctx.demo.check_open()
    queued = queue.jobs(ctx.db, kinds=SHORT_JOBS, statuses=UNFINISHED_JOB_STATUSES)
    if len(queued) + new_jobs > MAX_QUEUED_JOBS:
        raise LabError(f"At most {MAX_QUEUED_JOBS} texts can wait for the engine. Try again in a moment.")
    return queued


def submit_short_jobs(ctx: Context, kind: JobKind, requester: str, payloads: Sequence[dict[str, Any]]) -> list[Job]:
    """Submit jobs of a person and start an engine. Raises LabError for a model that the open project does not have, and if too
    many jobs of all people, of this person, or of their address are unfinished."""
    for payload in payloads:
        check_model(ctx, payload.get("checkpoint", "base"))
    address = ctx.client_address()
    with _SUBMISSION:
        queued = check_queue_capacity(ctx, len(payloads))
        if ctx.access.is_multi_user and not ctx.is_operator():
            own = sum(job.payload.get(REQUESTER_KEY) == requester for job in queued)
            near = sum(ctx.job_addresses.get(job.id) == address for job in queued)
            if own + len(payloads) > MAX_JOBS_OF_VISITOR or near + len(payloads) > MAX_JOBS_OF_ADDRESS:
                raise LabError(
                    "Too many of your texts, or of your network's, are waiting for the engine: at most "
                    f"{MAX_JOBS_OF_VISITOR} per person and {MAX_JOBS_OF_ADDRESS} per network. Try again when they are "
                    "written."
                )
        jobs = [queue.submit(ctx.db, kind, ctx.project.id, payload) for payload in payloads]
        unfinished = {job.id for job in queued}
        for job_id in [job_id for job_id in ctx.job_addresses if job_id not in unfinished]:
            ctx.job_addresses.pop(job_id, None)
        ctx.job_addresses.update((job.id, address) for job in jobs)
    engine_process.ensure_engine(ctx.db, ctx.home)
    return jobs


def submit_completions(
    ctx: Context,
    payload: SamplingPayload,
    models: Sequence[str],
    prompts: Sequence[str],
    *,
    requester: str = "",
    skip_too_long: bool = False,
) -> list[Job]:
    """Submit one COMPLETE job per model, all with the same seed. Raises LabError.

    requester: see `own_job`; "" if nobody may read the texts directly (a blind test).
    skip_too_long: prompts too long for the model are skipped; otherwise the job fails.
    """
    common: dict[str, Any] = {
        "seed": payload.seed, "temperature": payload.temperature, "max_new_tokens": payload.max_new_tokens,
    }  # fmt: skip
    if requester:
        common[REQUESTER_KEY] = requester
    if skip_too_long:
        common["leave_out"] = True
    reward_model_id = payload.reward_model_id or None
    if reward_model_id is not None:
        common["reward_model_id"] = get_reward_model(ctx.db, reward_model_id).id
    job_payloads = [common | build_job_payload(model, prompts, reward_model_id) for model in models]
    return submit_short_jobs(ctx, JobKind.COMPLETE, requester, job_payloads)


def check_model(ctx: Context, model: str, *, with_step: bool = False) -> None:
    """Raises LabError unless this is "base", or a checkpoint of a run of the open project. The engine says what is wrong with the
    files of the newest or the best one. with_step: these two names are refused."""
    if model == "base":
        return
    if match := CHECKPOINT.fullmatch(model):
        with contextlib.suppress(StoreError):
            run, step = ctx.run(int(match[1])), match[2]
            steps = checkpoint_steps(run_folder(ctx.home, run.id))
            has_model = int(step) in steps if step.isdigit() else not with_step
            if has_model:
                return
    raise LabError("The open project does not have this model (any more). Reload the page and choose again.")


class LostJobError(LabError):
    """A job that does not exist (any more) or belongs to somebody else; both have the same message."""

    def __init__(self) -> None:
        super().__init__("This request does not exist or belongs to somebody else. Reload the page and try again.")


def own_job(ctx: Context, job_id: int, kind: JobKind, requester: str) -> Job:
    """A job of this kind that this person requested.

    Raises LostJobError for every other number: it does not reveal which jobs exist. To a page that waits for it, such a job is
    reported as failed, because it may have been deleted meanwhile, with its project or as an old chat.
    """
    try:
        job = queue.get_job(ctx.db, job_id)
    except NotFoundError:
        job = None
    if job is None or job.kind is not kind or not requester or job.payload.get(REQUESTER_KEY) != requester:
        raise LostJobError
    return job


def texts_per_sample(model: str) -> int:
    """How many texts a model samples for each text that is shown: n for "base/best/N", else 1, also for an unknown model."""
    return next((n for n in BEST_OF_CHOICES if model == f"base/best/{n}"), 1)


def build_job_payload(model: str, prompts: Sequence[str], reward_model_id: int | None) -> dict[str, Any]:
    """The job's payload for one model; best of n samples n texts for each prompt.

    Raises LabError for best of n without a reward model, and for too many texts.
    """
    if not model.startswith("base/best/"):
        return {"prompts": list(prompts), "checkpoint": model}
    n = texts_per_sample(model)
    if n == 1:
        choices = ", ".join(map(str, BEST_OF_CHOICES))
        raise LabError(f"Best of n is possible for n = {choices}. Reload the page and choose again.")
    if reward_model_id is None:
        raise LabError('Best of n needs a reward model: choose one under "scored by".')
    count = n * len(prompts)
    if count > MAX_TEXTS_PER_COLUMN:
        raise LabError(
            f"Best of {n} for {len(prompts)} texts means {count} texts; at most {MAX_TEXTS_PER_COLUMN}. Ask for fewer."
        )
    return {"prompts": [prompt for prompt in prompts for _ in range(n)], "checkpoint": "base", "best_of": n}


def column_view(job: Job, judge: str = "", stop_ids: Collection[int] = ()) -> TextColumn:
    """The texts of a job; of best of n only the chosen ones. stop_ids: of the model."""
    if job.status in UNFINISHED_JOB_STATUSES:
        return {"is_waiting": True, "running": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        error_message = job.error or "It was cancelled."
        return {"is_waiting": False, "error": error_message[:1].upper() + error_message[1:]}
    texts, left_out = [text.strip() for text in job.result["texts"]], set(job.result.get("left_out", ()))
    prompts = [prompt for i, prompt in enumerate(job.payload["prompts"]) if i not in left_out]
    scores, cuts = (
        list(job.result.get("scores", [])),
        [cut_length(ids, stop_ids) for ids in job.result.get("tokens", ())],
    )
    n = int(job.payload.get("best_of", 1))
    indices = best_indices(scores, n) if n > 1 else range(len(texts))
    texts, prompts = [texts[i] for i in indices], [prompts[i] for i in indices]
    scores = [scores[i] for i in indices] if scores else []
    return {
        "is_waiting": False,
        "texts": texts,
        "cut": [cuts[i] for i in indices] if cuts else [],
        "scores": [round(score, 3) for score in scores],
        "gold": [round(gold, 3) for gold in map(JUDGES[judge].score, prompts, texts)] if judge in JUDGES else [],
        "best_of": n,
        "note": str(job.result.get("note", "")),
    }


def best_indices(scores: Sequence[float], n: int) -> list[int]:
    """The index of the best score in each group of n, the first one of equal scores."""
    return [max(range(i, i + n), key=lambda k: scores[k]) for i in range(0, len(scores) - n + 1, n)]
