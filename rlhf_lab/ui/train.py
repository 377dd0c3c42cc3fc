"""Screen "Train": start a run, watch it learn, turn its knobs, read what it writes at every step."""

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from rlhf_lab.assets import EMBEDDED
from rlhf_lab.config import ALGORITHMS, PRESETS, PolicyConfig, fields_of
from rlhf_lab.errors import ConfigError, LabError
from rlhf_lab.jobs import control, queue, steward
from rlhf_lab.jobs.labelling import judge_of
from rlhf_lab.kinds import GOING, JobKind, JobStatus, Source
from rlhf_lab.records import RewardModelRow
from rlhf_lab.store.comparisons import annotators_of
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import reward_models, runs
from rlhf_lab.store.steps import metric_series
from rlhf_lab.ui import microscope, story
from rlhf_lab.ui.charts import CONFIG, CURVES, abouts, layout
from rlhf_lab.ui.context import Context, read, told
from rlhf_lab.ui.forms import Form
from rlhf_lab.ui.live import MAX_MODELS, MAX_POINTS, Live
from rlhf_lab.ui.reading import KINDS, Run, in_a_process, texts_in
from rlhf_lab.ui.widgets import QUIET, widget

PRESET_WORDS = {
    "lab": "lab: tuned on the embedded model",
    "gentle": "gentle: small steps, for models nobody has tuned here",
}


def build(ctx: Context, operator: gr.BrowserState) -> None:
    live = Live(ctx)

    def points(question: dict[str, Any]) -> dict[str, Any]:
        return live.points(question)

    def samples(question: dict[str, Any]) -> dict[str, Any]:
        return story.written(ctx.db, int(question["run"]), int(question["step"]))

    def tokens(question: dict[str, Any]) -> dict[str, Any]:
        return microscope.looked_at(ctx.db, int(question["run"]), int(question["step"]))

    def more(question: dict[str, Any]) -> dict[str, Any]:
        name, run_id = str(question["metric"]), int(question["run"])
        return {"points": story.packed(metric_series(ctx.db, run_id, [name], max_points=MAX_POINTS)[name])}

    _start(ctx, operator)
    data = {
        "curves": [curve._asdict() for curve in CURVES], "layout": layout(), "config": CONFIG, "abouts": abouts(),
    }  # fmt: skip
    part = widget(
        "train", reads=[read(points), read(samples), read(tokens), read(more)], charts=True, scripts=["microscope", "samples"],
        data=data, label="Training run",
    )  # fmt: skip

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return answer(ctx, secret, dict(event._data or {}))

    part.control(told(act), operator, part, **QUIET)


def _start(ctx: Context, operator: gr.BrowserState) -> None:
    """What begins a new run: reward model, preset and name drawn by the widget, every setting in a fold of native fields."""
    about = reward_notes(ctx.db)

    def options(_: dict[str, Any]) -> dict[str, Any]:
        return start_options(ctx, about)

    presets = [{"name": name, "words": words} for name, words in PRESET_WORDS.items()]
    only = {item.name: item.only for item in fields_of(PolicyConfig) if item.only is not None}
    data = {"presets": presets, "algorithms": list(ALGORITHMS), "only": only}
    part = widget("start", reads=[read(options)], data=data, label="Start a new run")
    with gr.Accordion("All settings of the new run", open=False, elem_id="start-settings"):
        form = Form(preset("lab"), "start")
        texts = ptx_texts(form.component("ptx_coef"))
        chosen, last = gr.State("lab"), gr.State("ppo")
    algorithm = form.component("algorithm")

    def fill(algorithm: str, event: gr.EventData) -> list[Any]:
        name = str((event._data or {}).get("preset"))
        filled = {"filled": name, "algorithm": algorithm}
        return [*form.updates(form.values(preset(name, algorithm)), algorithm), name, algorithm, filled]

    def recommend(algorithm: str, name: str, before: str, *values: Any) -> list[Any]:
        moved = form.moved(values, preset(name, before), preset(name, algorithm))
        return [*form.updates(moved, algorithm), algorithm, {"filled": name, "algorithm": algorithm}]

    def choose(name: str, before: str, event: gr.EventData, *values: Any) -> list[Any]:
        return recommend(str((event._data or {}).get("algorithm")), name, before, *values)

    def start(secret: str | None, event: gr.EventData, *values: Any) -> dict[str, Any]:
        *settings, file, column = values
        return begin(ctx, form, secret, dict(event._data or {}), settings, (file, str(column or "").strip()))

    part.preset(told(fill), algorithm, [*form.components, chosen, last, part], **QUIET)
    algorithm.input(
        told(recommend), [algorithm, chosen, last, *form.components], [*form.components, last, part], **QUIET
    )
    part.algorithm(told(choose), [chosen, last, *form.components], [*form.components, last, part], **QUIET)
    part.start(told(start), [operator, *form.components, *texts], part, **QUIET)


def preset(name: str, algorithm: str = "ppo") -> PolicyConfig:
    """The preset over what is recommended for the algorithm. Raises ConfigError for an unknown one."""
    if name not in PRESETS:
        raise ConfigError(f'There is no preset "{name}"; choose one of {", ".join(PRESETS)}.')
    return PolicyConfig.of(algorithm, **PRESETS[name])


def reward_notes(db: Database) -> Callable[[RewardModelRow], str]:
    """What a run on a reward model learns from, in a sentence. Remembered: a reward model never changes."""
    known: dict[int, str] = {}

    def note(row: RewardModelRow) -> str:
        if row.id not in known:
            judge, voted = (
                control.teacher(db, row),
                sorted({judge_of(name) for name in annotators_of(db, row.snapshot)}),
            )
            if row.snapshot.source is Source.HUMAN:
                known[row.id] = "It learns from people's labels."
            elif judge:
                known[row.id] = (
                    f"It learns from simulated labels by the judge {judge}, whose own score is drawn as gold."
                )
            elif len(voted) == 1:
                known[row.id] = (
                    f"It learns from simulated labels by {voted[0]}, which does not ship with the lab; no gold score is drawn."
                )
            else:
                known[row.id] = "It learns from simulated labels by several judges; no gold score is drawn."
            if (row.report.get("accuracy_low") or 1.0) <= 0.5:
                known[row.id] += " On unseen pairs it may rank no better than guessing: more labels first would help."
        return known[row.id]

    return note


def start_options(ctx: Context, note: Callable[[RewardModelRow], str]) -> dict[str, Any]:
    """The reward models to start on, newest first, which is chosen (the newest that people taught, if any did), and what to do
    where there is none."""
    project = ctx.project
    found, started = reward_models(ctx.db, project.id), runs(ctx.db, project.id)
    chosen = next((row.id for row in found if row.snapshot.source is Source.HUMAN), found[0].id if found else None)
    training = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD], statuses=[JobStatus.RUNNING])
    return {
        "project": project.id,
        "models": [[row.id, story.reward_words(row), note(row)] for row in story.listed(found, MAX_MODELS, chosen)],
        "chosen": chosen,
        "preset": "lab" if project.model == EMBEDDED else "gentle",
        "missing": steward.labels(ctx.db, project.id).to_next,
        "training": round(training[-1].progress, 2) if training else None,
        "learning": steward.learning(ctx.db, project.id),
        "runs": len(started),
        "going": [run.id for run in started if run.status in GOING],
    }


def ptx_texts(coefficient: Any) -> tuple[Any, Any]:
    """A file of texts for PPO-ptx and the column they stand in; there while the component of ptx_coef says more than 0."""
    with gr.Row(visible=False, elem_id="start-ptx") as row:
        file = gr.File(label="Texts for PPO-ptx; none: those of the embedded model", file_types=[".txt", *KINDS])
        column = gr.Textbox(
            label="column of the texts",
            max_lines=1,
            info='empty: the column "text", or the only one; a .txt has a text a line',
        )

    def show(value: Any) -> Any:
        return gr.update(visible=str(value).strip() not in ("", "0", "0.0"))

    coefficient.change(show, coefficient, row, **QUIET)
    return file, column


def begin(
    ctx: Context, form: Form, secret: str | None, said: dict[str, Any], values: Sequence[Any],
    texts: tuple[str | None, str] = (None, ""), run: Run = in_a_process,
) -> dict[str, Any]:  # fmt: skip
    """Start a run with what stands in the form; texts: (file, column) for PPO-ptx, read by `run` where ptx_coef is not 0.

    The widget's answer: {"run": id}, or {"error": why not}.
    """
    try:
        ctx.require_operator(secret)
        config = PolicyConfig.from_dict(form.read(values))
        reward_model = whole(said, "reward_model")
        file, column = texts
        mixed = texts_in(file, column, run) if file and config.ptx_coef > 0 else None
        made = control.start_run(
            ctx.db, ctx.home, ctx.project.id, config, reward_model, name=str(said.get("name") or ""), ptx_texts=mixed
        )
    except LabError as error:
        return {"at": said.get("at"), "error": str(error)}
    return {"at": said.get("at"), "run": made.id}


def answer(ctx: Context, secret: str | None, said: dict[str, Any]) -> dict[str, Any]:
    """Control a run. The widget's answer: which setting it was about, and the "error" if it was refused."""
    about = {"at": said.get("at"), "name": said.get("name")}
    try:
        ctx.require_operator(secret)
        obey(ctx, said)
    except LabError as error:
        return about | {"error": str(error)}
    return about


def obey(ctx: Context, said: dict[str, Any]) -> None:
    """One control of a run: {"do", "run", …}. Raises LabError for what cannot be done or read."""
    do, run_id = str(said.get("do")), whole(said, "run")
    if do == "pause":
        control.pause(ctx.db, run_id)
    elif do == "resume":
        control.resume(ctx.db, ctx.home, run_id)
    elif do == "stop":
        control.stop(ctx.db, run_id)
    elif do == "set":
        control.set_knob(ctx.db, run_id, str(said.get("name")), _decimal(said.get("name"), said.get("value")))
    elif do == "switch":
        control.switch_reward(ctx.db, run_id, whole(said, "reward_model"))
    else:
        raise ConfigError(f'A run cannot be told to "{do}". Reload the page and try again.')


def whole(said: dict[str, Any], name: str) -> int:
    """Raises ConfigError for what is not a whole number."""
    try:
        return int(said[name])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"The page sent no usable {name.replace('_', ' ')}. Reload it and try again.") from None


def _decimal(name: Any, value: Any) -> float:
    try:
        return float(str(value).strip().replace(",", "."))
    except ValueError:
        raise ConfigError(f'{name} = "{value}" is not a number. Write it like 0.1 or 3e-4.') from None
