"""Screen "Train": start a run, watch it learn, turn its knobs, read what it writes at every step."""

import math
from typing import Any

import gradio as gr

from rlhf_lab.assets import EMBEDDED
from rlhf_lab.config import PRESETS, PolicyConfig
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import control, steward, supervisor
from rlhf_lab.records import EngineState, EventKind, JobStatus, RewardModelRow, Run, RunEvent, RunStatus, Source
from rlhf_lab.store.runs import events, get_reward_model, get_run, reward_models, runs
from rlhf_lab.store.steps import metric_names, metric_series, sample_steps, samples_at
from rlhf_lab.ui.charts import CONFIG, CURVES, layout
from rlhf_lab.ui.context import Context, read, told
from rlhf_lab.ui.diagnosis import diagnose
from rlhf_lab.ui.forms import Form
from rlhf_lab.ui.widgets import widget

MAX_POINTS = 1000
DRAWN = tuple(curve.metric for curve in CURVES)
CHECKED = ("val/first_ratio_deviation", "val/explained_variance")
PRESET_WORDS = {
    "lab": "lab: tuned on the embedded model; 40 steps",
    "gentle": "gentle: small steps, for models nobody has tuned here",
}


def build(ctx: Context, operator: gr.BrowserState) -> None:
    def points(question: dict[str, Any]) -> dict[str, Any]:
        return live(ctx, question)

    def samples(question: dict[str, Any]) -> dict[str, Any]:
        return written(ctx, int(question["run"]), int(question["step"]))

    def more(question: dict[str, Any]) -> dict[str, Any]:
        name = str(question["metric"])
        return {"points": packed(metric_series(ctx.db, int(question["run"]), [name], max_points=MAX_POINTS)[name])}

    _start(ctx, operator)
    data = {"curves": [curve._asdict() for curve in CURVES], "layout": layout(), "config": CONFIG}
    part = widget(
        "train", reads=[read(points), read(samples), read(more)], charts=True, data=data, label="Training run"
    )
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        ctx.require_operator(secret)
        said = event._data
        try:
            obey(ctx, str(said["do"]), int(said["run"]), said)
        except LabError as error:
            return {"at": said.get("at"), "error": str(error)}
        return {"at": said.get("at")}

    part.control(told(act), operator, part, **quiet)


def _start(ctx: Context, operator: gr.BrowserState) -> None:
    """What begins a new run: reward model, preset and name drawn by the widget, every setting in a fold of native fields."""

    def options(_: dict[str, Any]) -> dict[str, Any]:
        return start_options(ctx)

    presets = [{"name": name, "words": words} for name, words in PRESET_WORDS.items()]
    part = widget("start", reads=[read(options)], data={"presets": presets}, label="Start a new run")
    with gr.Accordion("All settings of the new run", open=False, elem_id="start-settings"):
        form = Form(PolicyConfig, "start", skip=("algorithm",))
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

    def fill(event: gr.EventData) -> list[Any]:
        return form.values(PolicyConfig(**PRESETS[str(event.preset)]))

    def begin(secret: str | None, event: gr.EventData, *values: Any) -> dict[str, Any]:
        said = event._data
        try:
            ctx.require_operator(secret)
            config = PolicyConfig.from_dict(form.read(values))
            run = control.start_run(
                ctx.db, ctx.home, ctx.project.id, config, int(said["reward_model"]), name=str(said.get("name") or "")
            )
        except LabError as error:
            return {"at": said.get("at"), "error": str(error)}
        return {"at": said.get("at"), "run": run.id}

    part.preset(told(fill), None, form.components, **quiet)
    part.start(begin, [operator, *form.components], part, **quiet)


def start_options(ctx: Context) -> dict[str, Any]:
    """The reward models to start on, newest first, and what to do where there is none."""
    found, started = reward_models(ctx.db, ctx.project.id), runs(ctx.db, ctx.project.id)
    now = steward.labels(ctx.db, ctx.project.id)
    return {
        "models": [[row.id, reward_words(row)] for row in found[:30]],
        "preset": "lab" if ctx.project.model == EMBEDDED else "gentle",
        "missing": now.to_next,
        "runs": len(started),
        "going": [run.id for run in started if run.status in control.GOING],
    }


def reward_words(row: RewardModelRow) -> str:
    accuracy = row.report.get("accuracy")
    seen = "accuracy not measured" if accuracy is None else f"accuracy {accuracy:.0%}"
    who = "simulated" if row.snapshot.source is Source.SIMULATED else "people's"
    return f"{row.id}: {len(row.snapshot.vote_ids)} {who} labels, {seen}"


def obey(ctx: Context, do: str, run_id: int, said: dict[str, Any]) -> None:
    """One control of a run. Raises LabError for what cannot be done."""
    if do == "pause":
        control.pause(ctx.db, run_id)
    elif do == "resume":
        control.resume(ctx.db, ctx.home, run_id)
    elif do == "stop":
        control.stop(ctx.db, run_id)
    elif do == "set":
        try:
            value = float(said["value"])
        except (TypeError, ValueError):
            raise LabError(f"{said.get('value')!r} is not a number.") from None
        control.set_knob(ctx.db, run_id, str(said["name"]), value)
    elif do == "switch":
        control.switch_reward(ctx.db, run_id, int(said["reward_model"]))


def pick(ctx: Context, wanted: Any) -> Run | None:
    """The run that was asked for, otherwise one that goes on, otherwise the newest of the project."""
    found = runs(ctx.db, ctx.project.id)
    for run in found:
        if wanted and run.id == int(wanted):
            return run
    return next((run for run in found if run.status in control.GOING), found[0] if found else None)


def live(ctx: Context, question: dict[str, Any]) -> dict[str, Any]:
    """What is new of a run since {"run": id, "since": step, "seen": revision}. {"same": true}: nothing.

    "reset" true: the points replace what is drawn (another run, steps taken back, or a long history thinned).
    """
    run = pick(ctx, question.get("run"))
    if run is None:
        return {"run": None}
    job = control.open_job(ctx.db, run.id)
    engine = supervisor.engine_state(ctx.db).state
    events_ = events(ctx.db, run.id)
    progress = job.progress if job else 0
    revision = f"{run.id}/{run.updated_at}/{run.status}/{len(events_)}/{progress}/{job.status if job else ''}/{engine}"
    if question.get("seen") == revision:
        return {"same": True}
    since = int(question.get("since", -1))
    reset = question.get("shown") != run.id or since > run.step or since < 0
    curves = metric_series(ctx.db, run.id, [*DRAWN, *CHECKED], -1, MAX_POINTS)
    verdicts = diagnose(curves)
    return {
        "run": describe(ctx, run),
        "runs": [[other.id, other.name, other.status] for other in runs(ctx.db, run.project_id)][:50],
        "reset": reset,
        "to": run.step,
        "points": {name: packed(curves[name], -1 if reset else since) for name in DRAWN if curves[name]},
        "verdicts": {name: [verdict.level, verdict.words] for name, verdict in verdicts.items() if name in DRAWN},
        "events": [marked for event in events_ if (marked := mark(event)) is not None],
        "checks": checks(curves),
        "sample_steps": sample_steps(ctx.db, run.id),
        "eta_s": job.eta_s if job and job.status is JobStatus.RUNNING else None,
        "doing": doing(run, job is not None and job.status is JobStatus.RUNNING, engine),
        "seen": revision,
    }


def describe(ctx: Context, run: Run) -> dict[str, Any]:
    row = get_reward_model(ctx.db, run.reward_model_id)
    judge = run.manifest.get("judge")
    source = (
        "people's labels"
        if row.snapshot.source is Source.HUMAN
        else f"simulated labels{f' by the judge {judge}' if judge else ''}"
    )
    knobs = {name: run.config[name] for name in ("beta", "lr")}
    for event in events(ctx.db, run.id):
        if event.kind is EventKind.SET:
            knobs[str(event.payload["name"])] = event.payload["value"]
    return {
        "id": run.id, "name": run.name, "status": run.status, "message": run.message, "step": run.step,
        "total": run.total_steps, "source": source, "reward_model": row.id, "algorithm": run.config["algorithm"],
        "names": metric_names(ctx.db, run.id), **knobs,
    }  # fmt: skip


def packed(points: list[tuple[int, float]], since: int = -1) -> list[list[float | None]]:
    """[step, value] pairs after a step, short enough to poll; NaN becomes null."""
    return [[step, float(f"{value:.5g}") if math.isfinite(value) else None] for step, value in points if step > since]


def mark(event: RunEvent) -> dict[str, Any] | None:
    """An event as it stands on the curves; None for one that shows nothing."""
    payload = event.payload
    words = {
        EventKind.PAUSE: "paused",
        EventKind.STOP: "stopped",
        EventKind.SET: f"{payload.get('name')} = {payload.get('value')}",
        EventKind.SWITCH_REWARD: f"reward model {payload.get('reward_model_id')}",
        EventKind.NOTE: str(payload.get("words", "")),
    }.get(event.kind)
    return {"step": event.applied_step, "words": words} if words else None


def checks(curves: dict[str, list[tuple[int, float]]]) -> dict[str, float | None]:
    """The self-checks: the largest deviation of a step's first ratios from 1, and the KL of the first step."""
    ratios = [value for _, value in curves.get("val/first_ratio_deviation", []) if math.isfinite(value)]
    kl = curves.get("objective/kl", [])
    return {"first_ratio": max(ratios, default=None), "start_kl": kl[0][1] if kl and math.isfinite(kl[0][1]) else None}


def doing(run: Run, working: bool, engine: EngineState) -> str:
    """What happens now, in words, while there is nothing (new) to see; empty while the curves speak."""
    if run.status is RunStatus.QUEUED:
        return {
            EngineState.STARTING: "The engine starts and loads the model …",
            EngineState.DEAD: "The engine is lost; it is being started again …",
        }.get(
            engine,
            "The run waits for its turn …" if not working else "The model is loaded; the base samples are written …",
        )
    if run.status is RunStatus.RUNNING:
        if engine in (EngineState.DEAD, EngineState.ABSENT):
            return "The engine is lost. It is started again by itself, and the run goes on from its last checkpoint."
        return "Sampling the first batch of texts …" if run.step == 0 else ""
    if run.status is RunStatus.PAUSED:
        return "Paused. Change beta or lr if you like, then resume."
    return run.message


def written(ctx: Context, run_id: int, step: int) -> dict[str, Any]:
    """The samples of a step beside those of the base (step 0), same prompts and seeds."""
    run = get_run(ctx.db, run_id)
    base = {(sample.prompt, sample.seed): sample for sample in samples_at(ctx.db, run.id, 0)}
    rows = []
    for sample in samples_at(ctx.db, run.id, step):
        before = base.get((sample.prompt, sample.seed))
        rows.append({
            "prompt": sample.prompt, "text": sample.text.strip(), "score": number(sample.score), "gold": number(sample.gold),
            "base": before.text.strip() if before else None, "base_score": number(before.score) if before else None,
            "base_gold": number(before.gold) if before else None,
        })  # fmt: skip
    return {"run": run_id, "step": step, "rows": rows}


def number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)
