"""The form of a new run on the screen "Train": reward model, preset and name in a widget, every setting in native fields."""

import os
from collections.abc import Sequence
from typing import Any

import gradio as gr
from typing_extensions import TypedDict

from rlhf_lab.common.algorithms import ALGORITHMS, DEFAULT_ALGORITHM, AlgorithmSpec, algorithms_where
from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, Choice, JobKind, JobStatus, Source
from rlhf_lab.common.records import Project, Role
from rlhf_lab.common.text import pluralize
from rlhf_lab.common.text_attributes import attribute_labels
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import LIVE_RUN_SETTINGS, PRESETS, PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import queue, retraining, run_control
from rlhf_lab.jobs.instant_reward import labels_to_learn_from
from rlhf_lab.jobs.judge_labelling import judge_name_of
from rlhf_lab.jobs.run_tracking import OFF, ROUTES, TRACK_VARIABLE
from rlhf_lab.rewards.terms import parse_lines
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_model_list import ListedRewardModel, list_reward_models
from rlhf_lab.store.runs import runs
from rlhf_lab.store.votes import label_count, vote_counts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.run_views.run_feed import MAX_MODELS
from rlhf_lab.ui.run_views.stage_estimates import estimates_key, policy_sentence
from rlhf_lab.ui.shared.api import Api, LongText, Payload
from rlhf_lab.ui.shared.forms import (
    FILL_FIELDS,
    SEND_VALUES,
    Form,
    FormValue,
    SettingsQuery,
    form_values,
    parse_settings,
)
from rlhf_lab.ui.shared.import_process import FILE_SUFFIXES, read_text_column
from rlhf_lab.ui.shared.uploads import uploaded_file
from rlhf_lab.ui.shared.widgets import widget

api = Api("start_run")
PRESET_LABELS = {
    "lab": "lab: KL budget 4, for any model",
    "gentle": "gentle: half the KL budget, closer to the base model",
}


#: Measured: docs/LEARNING.md, "Few labels: content or length".
FEW_LABELS_NOTE = (
    "With few labels (60 of a simulated judge), this model gained most from ppo, then from rejection, grpo and dpo."
)
FEW_LABELS_NOTE_OF_OTHERS = (
    "With few labels (60), a model of this kind gains little from any algorithm: most from grpo, then dpo, ppo and rejection. "
    "The differences may be chance."
)


def few_labels_note(model: str) -> str:
    """Which algorithm gains most from few labels, where it was measured (docs/LEARNING.md)."""
    return FEW_LABELS_NOTE if model == EMBEDDED_MODEL else FEW_LABELS_NOTE_OF_OTHERS


#: The reward model's id that means: train while people label.
LIVE_LABELS = -1
LIVE_OPTION: "RewardModelOption" = {
    "id": LIVE_LABELS, "label": "labels: train while I label",
    "note": "The run starts with the existing labels and learns from every new one while it trains, so go on labelling. With "
    "few labels it may use only a small part of the KL budget.",
}  # fmt: skip


def live_option(ctx: Context) -> "RewardModelOption":
    """LIVE_OPTION, with the attributes of texts that the run's scores will ignore."""
    source = labels_to_learn_from(ctx.db, ctx.project.id)[0]
    ignored = attribute_labels(retraining.chosen_attributes(ctx.db, ctx.project.id, source) or ())
    note = f" Its scores ignore {ignored}, as chosen on Reward model." if ignored else ""
    return {**LIVE_OPTION, "note": LIVE_OPTION["note"] + note}


class PresetQuery(Payload):
    preset: str
    algorithm: str


class StartRun(SettingsQuery):
    """reward_model: NO_REWARD_MODEL for none, LIVE_LABELS for a live run. reward_terms: one per line. ptx_file, ptx_column: an
    uploaded file of texts for PPO-ptx and the column of the texts; "" for the texts of the embedded model, and for the default
    column. track: the tracker; "" for that of the lab."""

    reward_model: int
    name: str = ""
    reward_terms: LongText = ""
    track: str = ""
    ptx_file: str = ""
    ptx_column: str = ""


class RewardModelOption(TypedDict):
    """note: what a run with this reward model learns from, with a warning if it may be guessing."""

    id: int
    label: str
    note: str


class StartOptions(TypedDict):
    """models: those that a run can use, newest first. default_reason: why that one is preselected. labels_text: the labels that
    dpo and sft learn from without one. few_labels_note: which algorithm gains most. training_text, training_progress: of a
    reward model. estimates_key: changes with the estimates of time."""

    project: int
    temperature: float
    max_new_tokens: int
    models: list[RewardModelOption]
    default_id: int | None
    default_reason: str
    labels_text: str
    few_labels_note: str
    labels_missing: int
    training_progress: float | None
    training_text: str
    run_count: int
    estimates_key: str
    active_runs: list[int]


class StartedRun(TypedDict):
    run: int


def build(ctx: Context) -> None:
    data = {
        "presets": [{"name": name, "label": label} for name, label in PRESET_LABELS.items()],
        "algorithms": list(ALGORITHMS),
        "algorithm_notes": {name: spec.note for name, spec in ALGORITHMS.items()},
        "label_algorithms": algorithms_where(lambda spec: spec.learns_from == "labels"),
        "is_demo": ctx.demo is not None,
        "size_by_algorithm": {name: size_of_step(spec) for name, spec in ALGORITHMS.items()},
        "algorithms_by_setting": {item.name: item.only for item in fields_of(PolicyConfig) if item.only is not None},
        "text_file_suffixes": [".txt", *FILE_SUFFIXES],
    }
    component = widget(
        "run_form",
        "train/start_run/view.js",
        events=(SEND_VALUES, FILL_FIELDS),
        data=data,
        label="Start a new run",
    )
    with gr.Accordion("All settings of the new run", open=False, elem_id="start-settings"):
        form = Form(preset_config("lab"), "start")
        form.send_values_to(component, reward_terms=reward_terms_input(), track=tracker_input())
        form.fill_from(component)


@api.read(Payload, cached_s=1.0)
def options(ctx: Context, _: Payload) -> StartOptions:
    project = ctx.project
    reward_rows, project_runs = list_reward_models(ctx.db, project.id), runs(ctx.db, project.id)
    default = run_control.best_supported(reward_rows)
    can_be_live = run_control.labels_until_live(ctx.db, project.id) == 0
    training = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD], statuses=[JobStatus.RUNNING])
    return {
        "project": project.id,
        "temperature": project.temperature,
        "max_new_tokens": project.max_new_tokens,
        "models": ([live_option(ctx)] if can_be_live else [])
        + [
            {"id": row.id, "label": run_summary.reward_model_label(row), "note": reward_note(row)}
            for row in run_summary.newest_rows(reward_rows, MAX_MODELS, default.id if default else None)
        ],
        "default_id": default.id if default else LIVE_LABELS if can_be_live else None,
        "default_reason": default_reason(reward_rows, default) if default else "",
        "labels_text": labels_text(ctx.db, project.id),
        "few_labels_note": few_labels_note(project.model),
        "labels_missing": retraining.get_label_progress(ctx.db, project.id).remaining,
        "training_progress": round(training[-1].progress, 2) if training else None,
        "training_text": retraining.training_status(ctx.db, project.id),
        "run_count": len(project_runs),
        "estimates_key": estimates_key(ctx),
        "active_runs": [run.id for run in project_runs if run.status in ACTIVE_RUN_STATUSES],
    }


@api.read(PresetQuery)
def recommended(ctx: Context, query: PresetQuery) -> dict[str, FormValue]:
    """The values of all fields for a preset and an algorithm."""
    return form_values(preset_config(query.preset, query.algorithm, ctx.project))


@api.read(SettingsQuery)
def estimate(ctx: Context, query: SettingsQuery) -> str:
    """How long a run with these settings takes; "" if they are invalid."""
    try:
        return policy_sentence(ctx, PolicyConfig.from_dict(parse_settings(PolicyConfig, query.settings)))
    except ConfigError:
        return ""


@api.action(StartRun, role=Role.OPERATOR)
def start(ctx: Context, payload: StartRun) -> StartedRun:
    config = PolicyConfig.from_dict(parse_settings(PolicyConfig, payload.settings))
    if payload.reward_model == LIVE_LABELS:
        config = config.replace(live=True)
    terms = parse_lines(
        payload.reward_terms,
        ctx.home,
        with_model=payload.reward_model != run_control.NO_REWARD_MODEL,
        needs_reward=config.spec.learns_from != "labels",
    )
    ptx_texts = None
    if payload.ptx_file and config.ptx_coef > 0:
        ptx_texts = read_text_column(str(uploaded_file(payload.ptx_file)), payload.ptx_column.strip())
    run = run_control.start_run(
        ctx.db,
        ctx.home,
        ctx.project.id,
        config,
        payload.reward_model,
        name=payload.name,
        ptx_texts=ptx_texts,
        reward_terms=terms,
        track=payload.track or None,
    )
    return {"run": run.id}


@api.action(Payload, role=Role.OPERATOR)
def start_live(ctx: Context, _: Payload) -> StartedRun:
    """Start a live run with the recommended settings."""
    config = preset_config("lab", project=ctx.project).replace(live=True, **LIVE_RUN_SETTINGS)
    return {"run": run_control.start_run(ctx.db, ctx.home, ctx.project.id, config).id}


def size_of_step(spec: AlgorithmSpec) -> tuple[str, str]:
    """The setting that decides how long a step takes, and its label beside the number of steps."""
    if not spec.is_offline:
        return "batch_size", "responses per step"
    return "label_batch", "pairs per step" if spec.loss == "direct_preference" else "texts per step"


def reward_terms_input() -> Any:
    return gr.Textbox(
        value="",  # None would be sent as null
        label="Reward terms, one per line",
        lines=2,
        elem_id="start-reward-terms",
        placeholder="0.5 * length:5-20",
        info="Empty: the reward model alone. Otherwise each line is a term, or a weight times a term, that is added to the "
        "reward model's score: length:5-20 (words), regex:^Yes, json, repetition, arithmetic, or FILE.py:FUNCTION "
        "from the folder rewards of the lab. The line 0.5 * reward_model halves the reward model's own weight.",
    )


def tracker_input() -> Any:
    chosen = os.environ.get(TRACK_VARIABLE, "").strip() or OFF
    return gr.Dropdown(
        choices=list(dict.fromkeys([OFF, *ROUTES, chosen])),
        value=chosen,
        label="Tracker",
        elem_id="start-track",
        info="Metrics and samples of each step also go to this tracker, while the run goes on: trackio, Weights & Biases or "
        "TensorBoard. Its package must be installed where the lab runs (docs/COMMAND_LINE.md).",
    )


def preset_config(name: str, algorithm: str = DEFAULT_ALGORITHM, project: Project | None = None) -> PolicyConfig:
    """The algorithm's recommended settings, overridden by the preset, at the project's temperature and length.

    Raises ConfigError for an unknown preset.
    """
    if name not in PRESETS:
        raise ConfigError(f'There is no preset "{name}"; choose one of {", ".join(PRESETS)}.')
    config = PolicyConfig.for_algorithm(algorithm, **PRESETS[name])
    if project is None:
        return config
    return config.replace(temperature=project.temperature, max_new_tokens=project.max_new_tokens)


def labels_text(db: Database, project_id: int) -> str:
    """The labels that dpo and sft learn from without a reward model: "24 labels of people"; "" if none prefers a text."""
    counts = vote_counts(db, project_id)
    source = Source.HUMAN if label_count(counts[Source.HUMAN]) else Source.SIMULATED
    has_preference = counts[source][Choice.FIRST] + counts[source][Choice.SECOND] > 0
    whose = "of people" if source is Source.HUMAN else "of simulated judges"
    return f"{pluralize(label_count(counts[source]), 'label')} {whose}" if has_preference else ""


def default_reason(rows: Sequence[ListedRewardModel], default: ListedRewardModel) -> str:
    """Why `default` of these reward models is preselected, as sentences; "" if it is the only one."""
    if len(rows) == 1:
        return ""
    is_guessing, is_human = bool(run_control.accuracy_warning(default.report)), default.source is Source.HUMAN
    newest = "the newest from people's labels" if is_human else "the newest"
    if is_guessing:
        return f"Reward model {default.id} is preselected because it is {newest}. No other ranks better than chance either."
    others = (
        ""
        if is_human or all(row.source is not Source.HUMAN for row in rows)
        else " No reward model from people's labels does yet."
    )
    return f"Reward model {default.id} is preselected because it is {newest} that ranks better than chance.{others}"


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
