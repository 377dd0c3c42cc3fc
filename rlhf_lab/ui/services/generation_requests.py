"""What pages ask the engine to write: by which models, how, and what came of it."""

from collections.abc import Sequence
from typing import Any

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus
from rlhf_lab.common.records import Job
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.judges.builtin import JUDGES, load_judge
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.ui.context import Context

MAX_SAMPLES, MAX_TOKENS, MAX_SEED = 16, 512, 2**31 - 1
MAX_COLUMNS = 3
MAX_TEXTS_PER_COLUMN = 64  # that one column may write
MAX_QUEUED_JOBS = 24  # short jobs in the queue, of all pages
#: The numbers of the forms: what stands beside the field, its type and its range.
NUMBER_FIELDS: dict[str, tuple[str, type, float, float]] = {
    "samples": ("samples each", int, 1, MAX_SAMPLES), "seed": ("seed", int, 0, MAX_SEED),
    "temperature": ("temperature", float, 0.05, 5), "tokens": ("max_new_tokens", int, 1, MAX_TOKENS),
    "pairs": ("pairs", int, 1, MAX_TEXTS_PER_COLUMN),
}  # fmt: skip
BEST_OF_CHOICES = (4, 16)


class FieldError(LabError):
    """One field of the form cannot be used; `field` is its name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def parse_number(payload: dict[str, Any], name: str) -> Any:
    """A number of the form. Raises FieldError for what is none, or out of range."""
    label, number_type, low, high = NUMBER_FIELDS[name]
    type_text = "a whole number" if number_type is int else "a number"
    text = str(payload.get(name, "")).strip()
    try:
        value = number_type(text if number_type is int else text.replace(",", "."))
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise FieldError(name, f'{label} = "{text}": give {type_text} from {low:,} to {high:,}.')
    return value


def check_queue_capacity(ctx: Context) -> None:
    """Raises LabError where so many short jobs wait that another one would wait for minutes."""
    if (
        len(queue.jobs(ctx.db, kinds=[JobKind.COMPLETE, JobKind.EXPLAIN], statuses=UNFINISHED_JOB_STATUSES))
        >= MAX_QUEUED_JOBS
    ):
        raise LabError(f"{MAX_QUEUED_JOBS} texts wait for the engine already. Try again in a moment.")


def submit_completions(
    ctx: Context, payload: dict[str, Any], models: Sequence[str], prompts: Sequence[str], *, skip_too_long: bool = False
) -> list[Job]:
    """One COMPLETE job a model, with the seed, temperature, tokens and reward said. Raises LabError.

    leave_out: prompts too long for the model are left out; otherwise the job fails.
    """
    seed, temperature, tokens = (parse_number(payload, name) for name in ("seed", "temperature", "tokens"))
    try:
        reward_model_id = int(payload["reward"]) if payload.get("reward") else None
    except (TypeError, ValueError, OverflowError):
        raise LabError("The page named no reward model. Reload it and try again.") from None
    common: dict[str, Any] = {"seed": seed, "temperature": temperature, "max_new_tokens": tokens}
    if skip_too_long:
        common["leave_out"] = True
    if reward_model_id is not None:
        get_reward_model(ctx.db, reward_model_id)
        common["reward_model_id"] = reward_model_id
    check_queue_capacity(ctx)
    job_payloads = [common | build_job_payload(model, prompts, reward_model_id) for model in models]
    jobs = [queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, job_payload) for job_payload in job_payloads]
    engine_process.ensure_engine(ctx.db, ctx.home)
    return jobs


def requested_models(payload: dict[str, Any]) -> list[str]:
    """The models of the columns, by their names. Raises LabError."""
    models = payload.get("models")
    if not isinstance(models, list | tuple):
        raise LabError("The page asked for no models. Reload it and try again.")
    return [str(model) for model in models][:MAX_COLUMNS]


def build_job_payload(model: str, prompts: Sequence[str], reward_model_id: int | None) -> dict[str, Any]:
    """What the engine is asked for one column, a text a prompt; best of n writes n texts for each one shown.

    Raises LabError for best of n with nothing to choose by, and for more texts than anybody waits for.
    """
    if not model.startswith("base/best/"):
        return {"prompts": list(prompts), "checkpoint": model}
    n = next((n for n in BEST_OF_CHOICES if model == f"base/best/{n}"), None)
    if n is None:
        raise LabError(
            f"Best of {', '.join(map(str, BEST_OF_CHOICES))} can be asked for; reload the page and choose again."
        )
    if reward_model_id is None:
        raise LabError('Best of n needs a reward model to choose by: pick one under "scored by".')
    if n * len(prompts) > MAX_TEXTS_PER_COLUMN:
        raise LabError(
            f"Best of {n} for {len(prompts)} texts means {n * len(prompts)} texts; at most {MAX_TEXTS_PER_COLUMN}. Ask for fewer."
        )
    return {"prompts": [prompt for prompt in prompts for _ in range(n)], "checkpoint": "base", "best_of": n}


def column_view(job: Job, judge: Any) -> dict[str, Any]:
    """What one model wrote: texts, scores and the judge's gold side by side; of best-of-n the chosen texts alone."""
    if job.status in UNFINISHED_JOB_STATUSES:
        return {"waiting": True, "begun": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        error_message = job.error or "It was cancelled."
        return {"waiting": False, "failed": error_message[:1].upper() + error_message[1:]}
    texts = [text.strip() for text in job.result["texts"]]
    scores = list(job.result.get("scores", []))
    n = int(job.payload.get("best_of", 1))
    indices = best_indices(scores, n) if n > 1 else range(len(texts))
    texts, scores = [texts[i] for i in indices], [scores[i] for i in indices] if scores else []
    return {
        "waiting": False,
        "texts": texts,
        "scores": [round(score, 3) for score in scores],
        "gold": [round(load_judge(str(judge)).score(text), 3) for text in texts] if judge in JUDGES else [],
        "best_of": n,
        "note": str(job.result.get("note", "")),
    }


def best_indices(scores: Sequence[float], n: int) -> list[int]:
    """The place of the best score in each group of n; of equal ones the first."""
    return [max(range(i, i + n), key=lambda k: scores[k]) for i in range(0, len(scores) - n + 1, n)]
