"""What pages ask the engine to write: by which models, how, and what came of it."""

from collections.abc import Sequence
from typing import Any

from rlhf_lab.errors import LabError
from rlhf_lab.jobs import queue, supervisor
from rlhf_lab.judges import JUDGES, load_judge
from rlhf_lab.kinds import OPEN, JobKind, JobStatus
from rlhf_lab.records import Job
from rlhf_lab.store.runs import get_reward_model
from rlhf_lab.ui.context import Context

MOST_SAMPLES, MOST_TOKENS, MOST_SEED = 16, 512, 2**31 - 1
MOST_COLUMNS = 3
MOST_TEXTS = 64  # that one column may write
MOST_WAITING = 24  # short jobs in the queue, of all pages
#: The numbers of the forms: what stands beside the field, its type and its range.
NUMBERS: dict[str, tuple[str, type, float, float]] = {
    "samples": ("samples each", int, 1, MOST_SAMPLES), "seed": ("seed", int, 0, MOST_SEED),
    "temperature": ("temperature", float, 0.05, 5), "tokens": ("max_new_tokens", int, 1, MOST_TOKENS),
    "pairs": ("pairs", int, 1, MOST_TEXTS),
}  # fmt: skip
BEST_OF = (4, 16)


class FieldError(LabError):
    """One field of the form cannot be used; `field` is its name."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field


def number(said: dict[str, Any], name: str) -> Any:
    """A number of the form. Raises FieldError for what is none, or out of range."""
    words, kind, low, high = NUMBERS[name]
    what = "a whole number" if kind is int else "a number"
    given = str(said.get(name, "")).strip()
    try:
        value = kind(given if kind is int else given.replace(",", "."))
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise FieldError(name, f'{words} = "{given}": give {what} from {low:,} to {high:,}.')
    return value


def refuse_a_crowd(ctx: Context) -> None:
    """Raises LabError where so many short jobs wait that another one would wait for minutes."""
    if len(queue.jobs(ctx.db, kinds=[JobKind.COMPLETE, JobKind.EXPLAIN], statuses=OPEN)) >= MOST_WAITING:
        raise LabError(f"{MOST_WAITING} texts wait for the engine already. Try again in a moment.")


def submit(
    ctx: Context, said: dict[str, Any], models: Sequence[str], prompts: Sequence[str], *, leave_out: bool = False
) -> list[Job]:
    """One COMPLETE job a model, with the seed, temperature, tokens and reward said. Raises LabError.

    leave_out: prompts too long for the model are left out; otherwise the job fails.
    """
    seed, temperature, tokens = (number(said, name) for name in ("seed", "temperature", "tokens"))
    try:
        scorer = int(said["reward"]) if said.get("reward") else None
    except (TypeError, ValueError, OverflowError):
        raise LabError("The page named no reward model. Reload it and try again.") from None
    common: dict[str, Any] = {"seed": seed, "temperature": temperature, "max_new_tokens": tokens}
    if leave_out:
        common["leave_out"] = True
    if scorer is not None:
        get_reward_model(ctx.db, scorer)
        common["reward_model_id"] = scorer
    refuse_a_crowd(ctx)
    payloads = [common | payload_of(model, prompts, scorer) for model in models]
    jobs = [queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, payload) for payload in payloads]
    supervisor.ensure_engine(ctx.db, ctx.home)
    return jobs


def models_of(said: dict[str, Any]) -> list[str]:
    """The models of the columns, by their names. Raises LabError."""
    models = said.get("models")
    if not isinstance(models, list | tuple):
        raise LabError("The page asked for no models. Reload it and try again.")
    return [str(model) for model in models][:MOST_COLUMNS]


def payload_of(model: str, prompts: Sequence[str], scorer: int | None) -> dict[str, Any]:
    """What the engine is asked for one column, a text a prompt; best of n writes n texts for each one shown.

    Raises LabError for best of n with nothing to choose by, and for more texts than anybody waits for.
    """
    if not model.startswith("base/best/"):
        return {"prompts": list(prompts), "checkpoint": model}
    n = next((n for n in BEST_OF if model == f"base/best/{n}"), None)
    if n is None:
        raise LabError(f"Best of {', '.join(map(str, BEST_OF))} can be asked for; reload the page and choose again.")
    if scorer is None:
        raise LabError('Best of n needs a reward model to choose by: pick one under "scored by".')
    if n * len(prompts) > MOST_TEXTS:
        raise LabError(
            f"Best of {n} for {len(prompts)} texts means {n * len(prompts)} texts; at most {MOST_TEXTS}. Ask for fewer."
        )
    return {"prompts": [prompt for prompt in prompts for _ in range(n)], "checkpoint": "base", "best_of": n}


def column(job: Job, judge: Any) -> dict[str, Any]:
    """What one model wrote: texts, scores and the judge's gold side by side; of best-of-n the chosen texts alone."""
    if job.status in OPEN:
        return {"waiting": True, "begun": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        said = job.error or "It was cancelled."
        return {"waiting": False, "failed": said[:1].upper() + said[1:]}
    texts = [text.strip() for text in job.result["texts"]]
    scores = list(job.result.get("scores", []))
    n = int(job.payload.get("best_of", 1))
    shown = best_places(scores, n) if n > 1 else range(len(texts))
    texts, scores = [texts[i] for i in shown], [scores[i] for i in shown] if scores else []
    return {
        "waiting": False,
        "texts": texts,
        "scores": [round(score, 3) for score in scores],
        "gold": [round(load_judge(str(judge)).score(text), 3) for text in texts] if judge in JUDGES else [],
        "best_of": n,
        "note": str(job.result.get("note", "")),
    }


def best_places(scores: Sequence[float], n: int) -> list[int]:
    """The place of the best score in each group of n; of equal ones the first."""
    return [max(range(i, i + n), key=lambda k: scores[k]) for i in range(0, len(scores) - n + 1, n)]
