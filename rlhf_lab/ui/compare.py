"""Screen "Compare": the base and any checkpoint on a prompt of your own, with the same seed, scores beside."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from rlhf_lab.errors import LabError
from rlhf_lab.jobs import control, queue, supervisor
from rlhf_lab.judges import JUDGES, load_judge
from rlhf_lab.kinds import OPEN, JobKind, JobStatus
from rlhf_lab.records import Job
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.runs import events, get_reward_model, reward_models, runs
from rlhf_lab.ui.context import Context, read, shared_for, told
from rlhf_lab.ui.story import reward_words, scorer
from rlhf_lab.ui.widgets import widget

MOST_SAMPLES, MOST_TOKENS, MOST_SEED = 16, 512, 2**31 - 1
MOST_COLUMNS = 3
MOST_TEXTS = 64  # that one column may write
MOST_WAITING = 24  # short jobs in the queue, of all pages
LONGEST = 4000  # characters of a prompt
#: The numbers of the form: what stands beside the field, its type and its range.
NUMBERS: dict[str, tuple[str, type, float, float]] = {
    "samples": ("samples each", int, 1, MOST_SAMPLES), "seed": ("seed", int, 0, MOST_SEED),
    "temperature": ("temperature", float, 0.05, 5), "tokens": ("max_new_tokens", int, 1, MOST_TOKENS),
}  # fmt: skip
BEST_OF = (4, 16)


class FieldError(LabError):
    """One field of the form cannot be used; `field` is its name."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field


def build(ctx: Context, operator: gr.BrowserState) -> None:
    shared = shared_for(1.0, lambda: choices(ctx))

    def options(_: dict[str, Any]) -> dict[str, Any]:
        return shared()

    def answers(question: dict[str, Any]) -> dict[str, Any]:
        return {"columns": [column(job, question.get("judge")) for job in asked(ctx, question)]}

    judges = [[judge.name, judge.description] for judge in JUDGES.values()]
    part = widget("compare", reads=[read(options), read(answers)], data={"judges": judges}, label="Compare models")
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

    def write(event: gr.EventData) -> dict[str, Any]:
        said = event._data
        try:
            jobs = ask(ctx, said)
        except LabError as error:
            return {"at": said.get("at"), "error": str(error), "field": getattr(error, "field", "")}
        return {"at": said.get("at"), "jobs": [job.id for job in jobs]}

    def cancel(event: gr.EventData) -> None:
        for job in asked(ctx, event._data):
            queue.cancel(ctx.db, job.id)

    part.write(told(write), None, part, **quiet)
    part.cancel(told(cancel), None, None, **quiet)


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


def choices(ctx: Context) -> dict[str, Any]:
    """What can be compared: the base, its best of n, and every run that has done a step.

    learnt: for each run the reward model it learns from and the judge behind that; under "" the newest reward model's.
    """
    project = ctx.project
    mine = [run for run in runs(ctx.db, project.id) if run.step > 0][:50]
    rewards = reward_models(ctx.db, project.id)[:30]
    learnt = {str(run.id): get_reward_model(ctx.db, scorer(run, events(ctx.db, run.id))) for run in mine}
    learnt |= {"": rewards[0]} if rewards else {}
    judges = {row.id: control.teacher(ctx.db, row) or "" for row in learnt.values()}
    offered = {row.id: row for row in [*rewards, *learnt.values()]}
    best = [[f"base/best/{n}", f"base, best of {n}"] for n in BEST_OF] if rewards else []
    return {
        "project": project.id,
        "models": [
            ["base", "base model"],
            *([f"run/{run.id}/latest", f"run {run.id}: {run.name}"] for run in mine),
            *best,
        ],
        "steps": {str(run.id): stored_steps(ctx, run.id) for run in mine},
        "rewards": [[row.id, reward_words(row)] for row in offered.values()],
        "learnt": {run: [row.id, judges[row.id]] for run, row in learnt.items()},
        "prompts": [prompt.text for prompt in prompts(ctx.db, project.id, "eval")[:64]],
    }


def stored_steps(ctx: Context, run_id: int) -> list[int]:
    """The steps whose checkpoints are still there."""
    folder = ctx.home / "runs" / str(run_id)
    found = [path.name.removeprefix("step-") for path in folder.glob("step-*")]
    return sorted(int(name) for name in found if name.isdigit())


def ask(ctx: Context, said: dict[str, Any]) -> list[Job]:
    """One COMPLETE job a column. said: prompt, models, samples, seed, temperature, tokens, reward.

    Raises LabError for what is out of range.
    """
    try:
        prompt, models = str(said["prompt"]), [str(model) for model in said["models"]][:MOST_COLUMNS]
        if isinstance(said["models"], str):
            raise TypeError("one text where a list belongs")
        scorer = int(said["reward"]) if said.get("reward") else None
    except (KeyError, TypeError, ValueError, OverflowError):
        raise LabError("The page asked for no models. Reload it and try again.") from None
    if not prompt.strip() or len(prompt) > LONGEST:
        raise FieldError("prompt", f"Prompt: write 1 to {LONGEST:,} characters.")
    samples, seed, temperature, tokens = (number(said, name) for name in NUMBERS)
    if scorer is not None:
        get_reward_model(ctx.db, scorer)
    refuse_a_crowd(ctx)
    common: dict[str, Any] = {"seed": seed, "temperature": temperature, "max_new_tokens": tokens}
    if scorer is not None:
        common["reward_model_id"] = scorer
    payloads = [common | payload_of(model, prompt, samples, scorer) for model in models]
    jobs = [queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, payload) for payload in payloads]
    supervisor.ensure_engine(ctx.db, ctx.home)
    return jobs


def payload_of(model: str, prompt: str, samples: int, scorer: int | None) -> dict[str, Any]:
    """What the engine is asked for one column; best of n writes n texts for each one shown.

    Raises LabError for best of n with nothing to choose by, and for more texts than anybody waits for.
    """
    if not model.startswith("base/best/"):
        return {"prompts": [prompt] * samples, "checkpoint": model}
    n = next((n for n in BEST_OF if model == f"base/best/{n}"), None)
    if n is None:
        raise LabError(f"Best of {', '.join(map(str, BEST_OF))} can be asked for; reload the page and choose again.")
    if scorer is None:
        raise LabError('Best of n needs a reward model to choose by: pick one under "scored by".')
    if n * samples > MOST_TEXTS:
        raise LabError(
            f"Best of {n} with {samples} samples means {n * samples} texts; at most {MOST_TEXTS}. Ask for fewer."
        )
    return {"prompts": [prompt] * (n * samples), "checkpoint": "base", "best_of": n}


def column(job: Job, judge: Any) -> dict[str, Any]:
    """What one model wrote: texts, scores and the judge's gold side by side; of best-of-n the chosen texts alone."""
    if job.status in OPEN:
        return {"waiting": True, "begun": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        return {"waiting": False, "failed": job.error or "It was cancelled."}
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
    }


def best_places(scores: Sequence[float], n: int) -> list[int]:
    """The place of the best score in each group of n; of equal ones the first."""
    return [max(range(i, i + n), key=lambda k: scores[k]) for i in range(0, len(scores) - n + 1, n)]
