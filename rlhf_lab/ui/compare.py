"""Screen "Compare": the base and any checkpoint on a prompt of your own, with the same seed, scores beside."""

from typing import Any

import gradio as gr

from rlhf_lab.errors import LabError
from rlhf_lab.jobs import queue, supervisor
from rlhf_lab.judges import JUDGES, load_judge
from rlhf_lab.records import Job, JobKind, JobStatus
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.runs import reward_models, runs
from rlhf_lab.ui.context import Context, read, told
from rlhf_lab.ui.story import reward_words
from rlhf_lab.ui.widgets import widget

OPEN = (JobStatus.QUEUED, JobStatus.RUNNING)
MOST_SAMPLES, MOST_TOKENS, LONGEST = 16, 512, 4000


def build(ctx: Context, operator: gr.BrowserState) -> None:
    def options(_: dict[str, Any]) -> dict[str, Any]:
        return choices(ctx)

    def answers(question: dict[str, Any]) -> dict[str, Any]:
        return {"columns": [column(queue.get_job(ctx.db, int(job)), question.get("judge")) for job in question["jobs"]]}

    judges = [[judge.name, judge.description] for judge in JUDGES.values()]
    part = widget("compare", reads=[read(options), read(answers)], data={"judges": judges}, label="Compare models")

    def write(event: gr.EventData) -> dict[str, Any]:
        said = event._data
        try:
            jobs = ask(ctx, said)
        except LabError as error:
            return {"at": said.get("at"), "error": str(error)}
        return {"at": said.get("at"), "jobs": [job.id for job in jobs]}

    part.write(told(write), None, part, show_progress="hidden", api_visibility="private", queue=False)


def choices(ctx: Context) -> dict[str, Any]:
    """What can be compared: the base, and the latest checkpoint of every run that has one."""
    project = ctx.project
    mine = [run for run in runs(ctx.db, project.id) if run.step > 0]
    return {
        "project": project.id,
        "models": [["base", "base model"], *([f"run/{run.id}/latest", f"run {run.id}: {run.name}"] for run in mine[:50])],
        "steps": {str(run.id): stored_steps(ctx, run.id) for run in mine[:50]},
        "rewards": [[row.id, reward_words(row)] for row in reward_models(ctx.db, project.id)[:30]],
        "prompts": [prompt.text for prompt in prompts(ctx.db, project.id, "eval")[:64]],
    }  # fmt: skip


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
        prompt, models = str(said["prompt"]), [str(model) for model in said["models"]][:4]
        samples, seed, tokens = int(said["samples"]), int(said["seed"]), int(said["tokens"])
        temperature, reward = float(said["temperature"]), said.get("reward")
    except (KeyError, TypeError, ValueError) as error:
        raise LabError(f"A field is not a number ({error}). Correct it and press Write again.") from None
    if not prompt.strip() or len(prompt) > LONGEST:
        raise LabError(f"Give a prompt of 1 to {LONGEST} characters.")
    if not (1 <= samples <= MOST_SAMPLES and 1 <= tokens <= MOST_TOKENS and 0.05 <= temperature <= 5 and seed >= 0):
        raise LabError(
            f"Samples are 1 to {MOST_SAMPLES}, tokens 1 to {MOST_TOKENS}, the temperature 0.05 to 5, the seed 0 or more."
        )
    payload = {"prompts": [prompt] * samples, "seed": seed, "temperature": temperature, "max_new_tokens": tokens}
    if reward:
        payload["reward_model_id"] = int(reward)
    jobs = [queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, payload | {"checkpoint": model}) for model in models]
    supervisor.ensure_engine(ctx.db, ctx.home)
    return jobs


def column(job: Job, judge: Any) -> dict[str, Any]:
    """What one model wrote, best score first is left to the page."""
    if job.status in OPEN:
        return {"waiting": True, "begun": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        return {"waiting": False, "failed": job.error or "It was cancelled."}
    texts = [text.strip() for text in job.result["texts"]]
    return {
        "waiting": False,
        "texts": texts,
        "scores": [round(score, 3) for score in job.result.get("scores", [])],
        "gold": [load_judge(str(judge)).score(text) for text in texts] if judge in JUDGES else [],
    }
