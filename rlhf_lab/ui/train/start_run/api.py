"""The form of a new run on the screen "Train": reward model, preset and name in a widget, every setting in native fields."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import gradio as gr

from rlhf_lab.common.algorithms import ALGORITHMS, algorithms_where
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, Choice, JobKind, JobStatus, Source
from rlhf_lab.common.records import Project, Run
from rlhf_lab.common.text import pluralize
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PRESETS, PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import queue, retraining, run_control
from rlhf_lab.jobs.judge_labelling import judge_name_of
from rlhf_lab.jobs.model_speed import speed_changed_at
from rlhf_lab.rewards.terms import parse_lines
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_model_list import ListedRewardModel, list_reward_models
from rlhf_lab.store.runs import runs
from rlhf_lab.store.votes import label_count, vote_counts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.run_views.run_feed import MAX_MODELS
from rlhf_lab.ui.run_views.stage_estimates import policy_sentence
from rlhf_lab.ui.shared.api import Payload, parse_payload
from rlhf_lab.ui.shared.events import operator_action, show_errors
from rlhf_lab.ui.shared.forms import Form
from rlhf_lab.ui.shared.import_process import FILE_SUFFIXES, ImportRunner, read_text_column, run_in_subprocess
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget

PRESET_LABELS = {
    "lab": "lab: KL budget 4, for any model",
    "gentle": "gentle: half the KL budget, closer to the base model",
}


#: Measured: docs/LEARNING.md, "Few labels: content or length".
FEW_LABELS_NOTE = (
    "Recommended with few labels: ppo. After 60 labels of a simulated judge, its texts scored 1.03 standard deviations higher "
    "with that judge than those of the base (the embedded model, at a KL of 2); those of rejection 0.74, of grpo 0.70, of "
    "dpo 0.39."
)


def algorithm_note(algorithm: str) -> str:
    """What to know before choosing an algorithm."""
    return f"{ALGORITHMS[algorithm].note} {FEW_LABELS_NOTE}".strip()


class PresetChoice(Payload):
    preset: str


class AlgorithmChoice(Payload):
    algorithm: str


class StartRun(Payload):
    reward_model: int  # NO_REWARD_MODEL: none
    name: str = ""


class PtxSource(NamedTuple):
    """A file of texts for PPO-ptx, and the column of the texts; "" for the default column."""

    file: str
    column: str


def build(ctx: Context, operator: gr.BrowserState) -> None:
    note_cache: dict[int, str] = {}

    data = {
        "presets": [{"name": name, "label": label} for name, label in PRESET_LABELS.items()],
        "algorithms": list(ALGORITHMS),
        "algorithm_notes": {name: algorithm_note(name) for name in ALGORITHMS},
        "label_algorithms": algorithms_where(lambda spec: spec.learns_from == "labels"),
        "is_demo": ctx.demo is not None,
        "algorithms_by_setting": {item.name: item.only for item in fields_of(PolicyConfig) if item.only is not None},
    }
    component = widget(
        "run_form",
        "train/start_run/view.js",
        events=("preset", "algorithm", "estimate", "start"),
        server_functions={"options": lambda _: start_options(ctx, note_cache)},
        data=data,
        label="Start a new run",
    )
    with gr.Accordion("All settings of the new run", open=False, elem_id="start-settings"):
        form = Form(preset_config("lab"), "start")
        ptx_components = ptx_inputs(form.component("ptx_coef"))
        terms_input = reward_terms_input()
        preset_state, algorithm_state = gr.State("lab"), gr.State("ppo")
    algorithm_input = form.component("algorithm")

    def fill(algorithm: str, event: gr.EventData) -> list[Any]:
        preset = parse_payload(PresetChoice, event._data).preset
        config = preset_config(preset, algorithm, ctx.project)
        updates, estimate = form.component_updates(form.values(config), algorithm), policy_sentence(ctx, config)
        return [*updates, preset, algorithm, {"filled_preset": preset, "algorithm": algorithm, "estimate": estimate}]

    def recommend(algorithm: str, preset: str, previous_algorithm: str, *values: Any) -> list[Any]:
        project = ctx.project
        before, after = (preset_config(preset, name, project) for name in (previous_algorithm, algorithm))
        new_values = form.keep_user_edits(values, before, after)
        updates, estimate = form.component_updates(new_values, algorithm), run_estimate(ctx, form, new_values)
        return [*updates, algorithm, {"filled_preset": preset, "algorithm": algorithm, "estimate": estimate}]

    def choose(preset: str, previous_algorithm: str, event: gr.EventData, *values: Any) -> list[Any]:
        return recommend(parse_payload(AlgorithmChoice, event._data).algorithm, preset, previous_algorithm, *values)

    def estimate(*values: Any) -> dict[str, Any]:
        return {"estimate": run_estimate(ctx, form, values)}

    @operator_action(ctx, StartRun)
    def start(payload: StartRun, *values: Any) -> dict[str, Any]:
        *settings, file, column, terms = values
        ptx_source = PtxSource(file, str(column or "").strip()) if file else None
        return {"run": start_run(ctx, form, payload, settings, ptx_source, reward_terms=str(terms or "")).id}

    component.preset(
        show_errors(fill),
        algorithm_input,
        [*form.components, preset_state, algorithm_state, component],
        **SILENT_MULTIPLE_EVENT,
    )
    algorithm_input.input(
        show_errors(recommend),
        [algorithm_input, preset_state, algorithm_state, *form.components],
        [*form.components, algorithm_state, component],
        **SILENT_MULTIPLE_EVENT,
    )
    component.algorithm(
        show_errors(choose),
        [preset_state, algorithm_state, *form.components],
        [*form.components, algorithm_state, component],
        **SILENT_MULTIPLE_EVENT,
    )
    component.estimate(estimate, form.components, component, **SILENT_MULTIPLE_EVENT)
    form.on_change(estimate, component)
    component.start(
        start, [operator, *form.components, *ptx_components, terms_input], component, **SILENT_MULTIPLE_EVENT
    )


def reward_terms_input() -> Any:
    return gr.Textbox(
        label="Reward terms, one per line",
        lines=2,
        elem_id="start-reward-terms",
        placeholder="0.5 * length:5-20",
        info="Empty: the reward model alone. Otherwise each line is a term, or a weight times a term, that is added to the "
        "reward model's score: length:5-20 (words), regex:^Yes, json, repetition, arithmetic, or FILE.py:FUNCTION "
        "from the folder rewards of the lab. The line 0.5 * reward_model halves the reward model's own weight.",
    )


def ptx_inputs(coefficient: Any) -> tuple[Any, Any]:
    """The inputs of a PtxSource; visible while the value of the ptx_coef component is not 0."""
    with gr.Row(visible=False, elem_id="start-ptx") as row:
        file = gr.File(
            label="Texts for PPO-ptx (default: those of the embedded model)", file_types=[".txt", *FILE_SUFFIXES]
        )
        column = gr.Textbox(
            label="column of the texts",
            max_lines=1,
            info='default: the column "text", or the only one; a .txt file has one text per line',
        )

    def toggle(value: Any) -> Any:
        return gr.update(visible=str(value).strip() not in ("", "0", "0.0"))

    coefficient.change(toggle, coefficient, row, **SILENT_MULTIPLE_EVENT)
    return file, column


def preset_config(name: str, algorithm: str = "ppo", project: Project | None = None) -> PolicyConfig:
    """The algorithm's recommended settings, overridden by the preset, at the project's temperature and length.

    Raises ConfigError for an unknown preset.
    """
    if name not in PRESETS:
        raise ConfigError(f'There is no preset "{name}"; choose one of {", ".join(PRESETS)}.')
    config = PolicyConfig.for_algorithm(algorithm, **PRESETS[name])
    if project is None:
        return config
    return config.replace(temperature=project.temperature, max_new_tokens=project.max_new_tokens)


def start_options(ctx: Context, note_cache: dict[int, str]) -> dict[str, Any]:
    """The reward models that a run can use, newest first, the default one, and the state of the labels.

    note_cache: `reward_note` by the id of the reward model; a note never changes.
    """
    project = ctx.project
    reward_rows, project_runs = list_reward_models(ctx.db, project.id), runs(ctx.db, project.id)
    default = next((row for row in reward_rows if row.source is Source.HUMAN), None)
    default_id = default.id if default else reward_rows[0].id if reward_rows else None
    listed = run_summary.newest_rows(reward_rows, MAX_MODELS, default_id)
    for row in listed:
        if row.id not in note_cache:
            note_cache[row.id] = reward_note(row)
    training = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD], statuses=[JobStatus.RUNNING])
    return {
        "project": project.id,
        "temperature": project.temperature,
        "max_new_tokens": project.max_new_tokens,
        "models": [
            {"id": row.id, "label": run_summary.reward_model_label(row), "note": note_cache[row.id]} for row in listed
        ],
        "default_id": default_id,
        "default_preset": "lab",
        "labels_text": labels_text(ctx.db, project.id),
        "labels_missing": retraining.get_label_progress(ctx.db, project.id).remaining,
        "training_progress": round(training[-1].progress, 2) if training else None,
        "training_text": retraining.training_status(ctx.db, project.id),
        "run_count": len(project_runs),
        "measured_at": speed_changed_at(ctx.home),
        "active_runs": [run.id for run in project_runs if run.status in ACTIVE_RUN_STATUSES],
    }


def labels_text(db: Database, project_id: int) -> str:
    """The labels that dpo and sft learn from without a reward model: "24 labels of people"; "" if none prefers a text."""
    counts = vote_counts(db, project_id)
    source = Source.HUMAN if label_count(counts[Source.HUMAN]) else Source.SIMULATED
    has_preference = counts[source][Choice.FIRST] + counts[source][Choice.SECOND] > 0
    whose = "of people" if source is Source.HUMAN else "of simulated judges"
    return f"{pluralize(label_count(counts[source]), 'label')} {whose}" if has_preference else ""


def run_estimate(ctx: Context, form: Form, values: Sequence[Any]) -> str:
    """How long a run with the values of the form takes; "" if the values are invalid."""
    try:
        config = PolicyConfig.from_dict(form.parse(values))
    except ConfigError:
        return ""
    return policy_sentence(ctx, config)


def reward_note(row: ListedRewardModel) -> str:
    """What a run with this reward model learns from, and a warning if the reward model may be guessing."""
    if row.source is Source.HUMAN:
        note = "It learns from people's labels."
    elif judge := run_control.only_judge(row.annotators):
        note = f"It learns from simulated labels by the judge {judge}; the judge's own score is drawn as gold."
    else:
        judges = {judge_name_of(name) for name in row.annotators}
        whose = f"{judges.pop()}, which is not part of the lab" if len(judges) == 1 else "several judges"
        note = f"It learns from simulated labels by {whose}; no gold score is drawn."
    warning = run_control.accuracy_warning(row.report)
    return f"{note} {warning}" if warning else note


def start_run(
    ctx: Context, form: Form, payload: StartRun, values: Sequence[Any], ptx_source: PtxSource | None = None,
    runner: ImportRunner = run_in_subprocess, *, reward_terms: str = "",
) -> Run:  # fmt: skip
    """Start a run with the values of the form. ptx_source is read if ptx_coef is above 0; reward_terms: one per line.

    Raises LabError.
    """
    config = PolicyConfig.from_dict(form.parse(values))
    terms = parse_lines(
        reward_terms,
        ctx.home,
        with_model=payload.reward_model != run_control.NO_REWARD_MODEL,
        needs_reward=config.spec.learns_from != "labels",
    )
    ptx_texts = read_text_column(*ptx_source, runner) if ptx_source and config.ptx_coef > 0 else None
    return run_control.start_run(
        ctx.db,
        ctx.home,
        ctx.project.id,
        config,
        payload.reward_model,
        name=payload.name,
        ptx_texts=ptx_texts,
        reward_terms=terms,
    )
