"""Screen "Train": start a run, watch it learn, turn its knobs, read what it writes at every step."""

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, JobKind, JobStatus, Source
from rlhf_lab.common.records import RewardModelRow
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import ALGORITHMS, PRESETS, PolicyConfig
from rlhf_lab.errors import ConfigError, LabError
from rlhf_lab.jobs import queue, run_control, scheduler
from rlhf_lab.jobs.judge_labelling import judge_name_of
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import reward_models, runs
from rlhf_lab.store.votes import snapshot_annotators
from rlhf_lab.ui.components.charts import CURVES, PLOTLY_CONFIG, layout, metric_descriptions
from rlhf_lab.ui.components.forms import Form
from rlhf_lab.ui.components.widgets import SILENT_MULTIPLE_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import server_function, show_errors
from rlhf_lab.ui.screens import token_view
from rlhf_lab.ui.services import run_summary
from rlhf_lab.ui.services.import_process import FILE_SUFFIXES, ImportRunner, read_text_column, run_in_subprocess
from rlhf_lab.ui.services.run_feed import MAX_MODELS, MAX_POINTS, RunFeed

PRESET_LABELS = {
    "lab": "lab: tuned on the embedded model",
    "gentle": "gentle: small steps, for models nobody has tuned here",
}


def build(ctx: Context, operator: gr.BrowserState) -> None:
    feed = RunFeed(ctx)

    def points(query: dict[str, Any]) -> dict[str, Any]:
        return feed.poll(query)

    def samples(query: dict[str, Any]) -> dict[str, Any]:
        return run_summary.samples_at_step(ctx.db, int(query["run"]), int(query["step"]))

    def tokens(query: dict[str, Any]) -> dict[str, Any]:
        return token_view.token_view(ctx.db, int(query["run"]), int(query["step"]))

    def more(query: dict[str, Any]) -> dict[str, Any]:
        name, run_id = str(query["metric"]), int(query["run"])
        return {"points": run_summary.encode_points(metric_series(ctx.db, run_id, [name], max_points=MAX_POINTS)[name])}

    build_start_form(ctx, operator)
    data = {
        "curves": [curve._asdict() for curve in CURVES],
        "layout": layout(),
        "config": PLOTLY_CONFIG,
        "abouts": metric_descriptions(),
    }
    component = widget(
        "train",
        server_functions=[
            server_function(points),
            server_function(samples),
            server_function(tokens),
            server_function(more),
        ],
        charts=True,
        scripts=["microscope", "samples"],
        data=data,
        label="Training run",
    )

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return control_run(ctx, secret, dict(event._data or {}))

    component.control(show_errors(act), operator, component, **SILENT_MULTIPLE_EVENT)


def build_start_form(ctx: Context, operator: gr.BrowserState) -> None:
    """What begins a new run: reward model, preset and name drawn by the widget, every setting in a fold of native fields."""
    reward_note = make_reward_note(ctx.db)

    def options(_: dict[str, Any]) -> dict[str, Any]:
        return start_options(ctx, reward_note)

    presets = [{"name": name, "words": label} for name, label in PRESET_LABELS.items()]
    algorithms_by_setting = {item.name: item.only for item in fields_of(PolicyConfig) if item.only is not None}
    data = {"presets": presets, "algorithms": list(ALGORITHMS), "only": algorithms_by_setting}
    component = widget("start", server_functions=[server_function(options)], data=data, label="Start a new run")
    with gr.Accordion("All settings of the new run", open=False, elem_id="start-settings"):
        form = Form(preset_config("lab"), "start")
        ptx_components = ptx_inputs(form.component("ptx_coef"))
        preset_state, algorithm_state = gr.State("lab"), gr.State("ppo")
    algorithm = form.component("algorithm")

    def fill(algorithm: str, event: gr.EventData) -> list[Any]:
        name = str((event._data or {}).get("preset"))
        filled = {"filled": name, "algorithm": algorithm}
        return [
            *form.component_updates(form.values(preset_config(name, algorithm)), algorithm),
            name,
            algorithm,
            filled,
        ]

    def recommend(algorithm: str, name: str, previous_algorithm: str, *values: Any) -> list[Any]:
        new_values = form.keep_user_edits(
            values, preset_config(name, previous_algorithm), preset_config(name, algorithm)
        )
        return [*form.component_updates(new_values, algorithm), algorithm, {"filled": name, "algorithm": algorithm}]

    def choose(name: str, previous_algorithm: str, event: gr.EventData, *values: Any) -> list[Any]:
        return recommend(str((event._data or {}).get("algorithm")), name, previous_algorithm, *values)

    def start(secret: str | None, event: gr.EventData, *values: Any) -> dict[str, Any]:
        *settings, file, column = values
        return start_run(ctx, form, secret, dict(event._data or {}), settings, (file, str(column or "").strip()))

    component.preset(
        show_errors(fill),
        algorithm,
        [*form.components, preset_state, algorithm_state, component],
        **SILENT_MULTIPLE_EVENT,
    )
    algorithm.input(
        show_errors(recommend),
        [algorithm, preset_state, algorithm_state, *form.components],
        [*form.components, algorithm_state, component],
        **SILENT_MULTIPLE_EVENT,
    )
    component.algorithm(
        show_errors(choose),
        [preset_state, algorithm_state, *form.components],
        [*form.components, algorithm_state, component],
        **SILENT_MULTIPLE_EVENT,
    )
    component.start(
        show_errors(start), [operator, *form.components, *ptx_components], component, **SILENT_MULTIPLE_EVENT
    )


def preset_config(name: str, algorithm: str = "ppo") -> PolicyConfig:
    """The preset over what is recommended for the algorithm. Raises ConfigError for an unknown one."""
    if name not in PRESETS:
        raise ConfigError(f'There is no preset "{name}"; choose one of {", ".join(PRESETS)}.')
    return PolicyConfig.for_algorithm(algorithm, **PRESETS[name])


def make_reward_note(db: Database) -> Callable[[RewardModelRow], str]:
    """What a run on a reward model learns from, in a sentence. Remembered: a reward model never changes."""
    notes: dict[int, str] = {}

    def note(row: RewardModelRow) -> str:
        if row.id not in notes:
            judge, judges = (
                run_control.judge_of_reward_model(db, row),
                sorted({judge_name_of(name) for name in snapshot_annotators(db, row.snapshot)}),
            )
            if row.snapshot.source is Source.HUMAN:
                notes[row.id] = "It learns from people's labels."
            elif judge:
                notes[row.id] = (
                    f"It learns from simulated labels by the judge {judge}, whose own score is drawn as gold."
                )
            elif len(judges) == 1:
                notes[row.id] = (
                    f"It learns from simulated labels by {judges[0]}, which does not ship with the lab; no gold score is drawn."
                )
            else:
                notes[row.id] = "It learns from simulated labels by several judges; no gold score is drawn."
            if (row.report.get("accuracy_low") or 1.0) <= 0.5:
                notes[row.id] += " On unseen pairs it may rank no better than guessing: more labels first would help."
        return notes[row.id]

    return note


def start_options(ctx: Context, note: Callable[[RewardModelRow], str]) -> dict[str, Any]:
    """The reward models to start on, newest first, which is chosen (the newest that people taught, if any did), and what to do
    where there is none."""
    project = ctx.project
    reward_rows, project_runs = reward_models(ctx.db, project.id), runs(ctx.db, project.id)
    default_id = next(
        (row.id for row in reward_rows if row.snapshot.source is Source.HUMAN),
        reward_rows[0].id if reward_rows else None,
    )
    training = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD], statuses=[JobStatus.RUNNING])
    return {
        "project": project.id,
        "models": [
            [row.id, run_summary.reward_model_label(row), note(row)]
            for row in run_summary.newest_rows(reward_rows, MAX_MODELS, default_id)
        ],
        "chosen": default_id,
        "preset": "lab" if project.model == EMBEDDED_MODEL else "gentle",
        "missing": scheduler.get_label_progress(ctx.db, project.id).remaining,
        "training": round(training[-1].progress, 2) if training else None,
        "learning": scheduler.training_status(ctx.db, project.id),
        "runs": len(project_runs),
        "going": [run.id for run in project_runs if run.status in ACTIVE_RUN_STATUSES],
    }


def ptx_inputs(coefficient: Any) -> tuple[Any, Any]:
    """A file of texts for PPO-ptx and the column they stand in; there while the component of ptx_coef says more than 0."""
    with gr.Row(visible=False, elem_id="start-ptx") as row:
        file = gr.File(
            label="Texts for PPO-ptx; none: those of the embedded model", file_types=[".txt", *FILE_SUFFIXES]
        )
        column = gr.Textbox(
            label="column of the texts",
            max_lines=1,
            info='empty: the column "text", or the only one; a .txt has a text a line',
        )

    def toggle(value: Any) -> Any:
        return gr.update(visible=str(value).strip() not in ("", "0", "0.0"))

    coefficient.change(toggle, coefficient, row, **SILENT_MULTIPLE_EVENT)
    return file, column


def start_run(
    ctx: Context, form: Form, secret: str | None, payload: dict[str, Any], values: Sequence[Any],
    ptx_source: tuple[str | None, str] = (None, ""), runner: ImportRunner = run_in_subprocess,
) -> dict[str, Any]:  # fmt: skip
    """Start a run with what stands in the form; texts: (file, column) for PPO-ptx, read by `run` where ptx_coef is not 0.

    The widget's answer: {"run": id}, or {"error": why not}.
    """
    try:
        ctx.require_operator(secret)
        config = PolicyConfig.from_dict(form.parse(values))
        reward_model = parse_int(payload, "reward_model")
        file, column = ptx_source
        ptx_texts = read_text_column(file, column, runner) if file and config.ptx_coef > 0 else None
        run = run_control.start_run(
            ctx.db,
            ctx.home,
            ctx.project.id,
            config,
            reward_model,
            name=str(payload.get("name") or ""),
            ptx_texts=ptx_texts,
        )
    except LabError as error:
        return {"at": payload.get("at"), "error": str(error)}
    return {"at": payload.get("at"), "run": run.id}


def control_run(ctx: Context, secret: str | None, payload: dict[str, Any]) -> dict[str, Any]:
    """Control a run. The widget's answer: which setting it was about, and the "error" if it was refused."""
    reply = {"at": payload.get("at"), "name": payload.get("name")}
    try:
        ctx.require_operator(secret)
        handle_action(ctx, payload)
    except LabError as error:
        return reply | {"error": str(error)}
    return reply


def handle_action(ctx: Context, payload: dict[str, Any]) -> None:
    """One control of a run: {"do", "run", …}. Raises LabError for what cannot be done or read."""
    action, run_id = str(payload.get("do")), parse_int(payload, "run")
    if action == "pause":
        run_control.pause(ctx.db, run_id)
    elif action == "resume":
        run_control.resume(ctx.db, ctx.home, run_id)
    elif action == "stop":
        run_control.stop(ctx.db, run_id)
    elif action == "set":
        run_control.set_live_setting(
            ctx.db, run_id, str(payload.get("name")), _parse_decimal(payload.get("name"), payload.get("value"))
        )
    elif action == "switch":
        run_control.switch_reward_model(ctx.db, run_id, parse_int(payload, "reward_model"))
    else:
        raise ConfigError(f'A run cannot be told to "{action}". Reload the page and try again.')


def parse_int(payload: dict[str, Any], name: str) -> int:
    """Raises ConfigError for what is not a whole number."""
    try:
        return int(payload[name])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"The page sent no usable {name.replace('_', ' ')}. Reload it and try again.") from None


def _parse_decimal(name: Any, value: Any) -> float:
    try:
        return float(str(value).strip().replace(",", "."))
    except ValueError:
        raise ConfigError(f'{name} = "{value}" is not a number. Write it like 0.1 or 3e-4.') from None
