"""What the Train screen says about a run, computed from rows of the store. Nothing here changes the store."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from typing_extensions import TypedDict

from rlhf_lab.common.algorithms import algorithm_of, spec_of
from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.curves import Point
from rlhf_lab.common.enums import EngineState, EventKind, RunStatus, Source
from rlhf_lab.common.records import Job, LabelSnapshot, Run, RunEvent
from rlhf_lab.common.text import plain_number
from rlhf_lab.common.text_attributes import attribute_labels, ignored_in
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.kl_control import KL_BUDGET_TOLERANCE, kl_control_of
from rlhf_lab.config.policy import AUTOMATIC, LIVE_SETTINGS, PolicyConfig, adapted_settings
from rlhf_lab.exporters.json_io import portable_name
from rlhf_lab.jobs import run_control
from rlhf_lab.jobs.retraining import IGNORED_KEY
from rlhf_lab.jobs.time_estimate import duration_text
from rlhf_lab.rewards.terms import TERMS_KEY, read_terms
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_model_list import ListedRewardModel, accuracy_of
from rlhf_lab.store.reward_models import reward_model_of
from rlhf_lab.store.run_metrics import samples_at
from rlhf_lab.store.runs import events, get_run
from rlhf_lab.ui.run_views.curve_diagnosis import HYPHEN_AS_MINUS
from rlhf_lab.ui.run_views.curve_trends import SettingChange

_Row = TypeVar("_Row", Run, ListedRewardModel)
JsonPoint = list[float | None]  # [step, value]; None for a value that is not finite
MAX_INTERVAL_WIDTH = 0.25  # a wider interval is shown instead of the figure; the page's script has the same limit
ENGINE_LOST_TEXT = (
    "The engine does not answer. It is restarted automatically, and the run continues from its last checkpoint."
)
ENGINE_RESTARTED_TEXT = "The engine ended unexpectedly and is restarting; the run continues from its last checkpoint."
NEXT_STEP_NOTE = "(takes effect when the present step has ended)"
#: Metrics on the scale of the reward model. Those that include the KL penalty are on the scale of beta too.
REWARD_SCALED_METRICS = ("objective/scores", "objective/rlhf_reward", "loss/value_avg", "val/explained_variance")
BETA_SCALED_METRICS = ("objective/rlhf_reward", "loss/value_avg", "val/explained_variance")


@dataclass(frozen=True)
class RunView:
    """A run and its events, read together."""

    run: Run
    events: Sequence[RunEvent]

    @classmethod
    def load(cls, db: Database, run: Run) -> "RunView":
        return cls(run, events(db, run.id))


class ChangeMarker(TypedDict):
    """A change by a person. step: the number of steps done before it took effect."""

    step: int
    text: str


class SelfChecks(TypedDict):
    """The largest deviation of a step's first ratios from 1, and the KL of the first step; None if not measured."""

    max_first_ratio_deviation: float | None
    first_step_kl: float | None


class RunState(TypedDict):
    """What changes from step to step. beta, lr: the number last set, even if no step has used it yet, or that of the config.
    set_by_hand: the adapted settings that were set to a number and not handed back since."""

    id: int
    status: RunStatus
    step: int
    total_steps: int
    reward_model: int | None
    set_by_hand: list[str]
    beta: float
    lr: float


class SampleRow(TypedDict):
    """A sample and the base model's for the same prompt and seed, without surrounding white space; base_*: None without one. cut:
    `cut_length` of a text."""

    prompt: str
    turns: list[dict[str, str]]
    text: str
    score: float | None
    gold: float | None
    cut: int | None
    base_text: str | None
    base_score: float | None
    base_gold: float | None
    base_cut: int | None


class StepSamples(TypedDict):
    run: int
    step: int
    rows: list[SampleRow]


class ScaleChange(NamedTuple):
    """A change of a metric's scale. step: the number of steps done before it took effect."""

    step: int
    description: str


def select_run(project_runs: Sequence[Run], requested_id: int | str | None) -> Run | None:
    """The requested run, else the newest that trains or is paused, else the next one in the queue, else the newest.

    project_runs: newest first.
    """
    for run in project_runs:
        if requested_id is not None and str(run.id) == str(requested_id):
            return run
    started = [run for run in project_runs if run.status in (RunStatus.RUNNING, RunStatus.PAUSED)]
    waiting = [run for run in project_runs[::-1] if run.status is RunStatus.QUEUED]
    return next(iter([*started, *waiting, *project_runs]), None)


def newest_rows(rows: Sequence[_Row], max_count: int, shown_id: int | None) -> list[_Row]:
    """The newest rows, and the row that is shown, however old it is. rows: newest first."""
    return [row for index, row in enumerate(rows) if index < max_count or row.id == shown_id]


def live_settings(run: Run) -> list[str]:
    """The settings that can be changed during the run: those of LIVE_SETTINGS that its algorithm reads."""
    settings = {item.name: item for item in fields_of(PolicyConfig)}
    return [name for name in LIVE_SETTINGS if settings[name].applies_to(algorithm_of(run.config))]


def current_state(view: RunView, in_use: Mapping[str, float]) -> RunState:
    """in_use: the value of each live setting at the newest step."""
    run, requested = view.run, dict[str, RunEvent]()
    for event in view.events:
        if event.kind is EventKind.SET:
            requested[str(event.payload["name"])] = event
    numbers = {name: event.payload["value"] for name, event in requested.items() if event.payload["value"] != AUTOMATIC}
    by_hand = [
        name
        for name, value in numbers.items()
        # Runs of version 0.2.0 went on adapting a value that had been set.
        if name in adapted_settings(run.config)
        and (not _is_current(requested[name], run.step) or math.isclose(in_use.get(name, value), value, rel_tol=1e-4))
    ]
    return {
        "id": run.id, "status": run.status, "step": run.step, "total_steps": run.total_steps,
        "reward_model": current_reward_model_id(view), "set_by_hand": by_hand,
        "beta": numbers.get("beta", run.config["beta"]), "lr": numbers.get("lr", run.config["lr"]),
    }  # fmt: skip


def _is_current(event: RunEvent, step: int) -> bool:
    """Whether the newest step used a change."""
    return event.applied_step is not None and event.applied_step < step


def current_reward_model_id(view: RunView) -> int | None:
    """The reward model that a run learns from: the first one, or the one last switched to. None without a reward model."""
    switches = [event for event in view.events if event.kind is EventKind.SWITCH_REWARD]
    return int(switches[-1].payload["reward_model_id"]) if switches else view.run.reward_model_id


def ignored_by_heads(view: RunView) -> tuple[str, ...]:
    """The attributes of texts that the newest head of a live run ignores, before its first head those chosen at its start."""
    heads = [event.payload for event in view.events if event.kind is EventKind.HEAD]
    return tuple((heads[-1] if heads else view.run.manifest).get(IGNORED_KEY, ()))


def label_source_text(db: Database, run: Run, reward_model_id: int | None = None, ignored: Sequence[str] = ()) -> str:
    """What the run learns from, according to its first reward model or the one it was switched to; for dpo and sft, the labels
    stay the same. ignored: `ignored_by_heads`."""
    algorithm, judge = str(run.config["algorithm"]), portable_name(str(run.manifest.get("judge") or ""))
    terms = read_terms(run.manifest.get(TERMS_KEY) or [])
    learns_from_labels = spec_of(algorithm).learns_from == "labels"
    row = reward_model_of(db, run.reward_model_id if learns_from_labels else reward_model_id or run.reward_model_id)
    beginning = f"{algorithm.upper()} learns from"
    if terms and not learns_from_labels:
        return f"{beginning} {run_control.reward_text(row.id if row else None, terms)}"
    recorded = run.manifest.get("labels")  # missing in a run of `demo --live` of version 0.3.0: the judge labels
    labels = row.snapshot if row else LabelSnapshot.from_record(recorded) if recorded else None
    model_text = f" (reward model {row.id})" if row else ", while people label" if run.config.get("live") else ""
    ignored_text = attribute_labels(ignored_in(row.config) if row and not learns_from_labels else ignored)
    model_text += f"; scores ignore {ignored_text}" if ignored_text else ""
    if labels.source is Source.SIMULATED if labels else judge:
        if labels is not None and row is not None and row.id != run.reward_model_id:
            judge = run_control.judge_of_labels(db, labels) or ""
        judge_text = f" by the judge {judge}" if judge else ""
        return f"{beginning} simulated labels{judge_text}{model_text}"
    gold_text = f"; gold is the judge {judge}'s score" if judge else ""
    return f"{beginning} people's labels{model_text}{gold_text}"


def reward_model_label(row: ListedRewardModel) -> str:
    """A reward model in a list: "3: accuracy 81 %, 40 simulated labels"."""
    accuracy, low, high = accuracy_of(row.report)
    if accuracy is None:
        accuracy_text = "accuracy not measured"
    elif low is None or high is None or high - low <= MAX_INTERVAL_WIDTH:
        accuracy_text = f"accuracy {100 * accuracy:.0f} %"
    else:
        accuracy_text = f"accuracy {100 * low:.0f}–{100 * high:.0f} %"
    labels_text = "simulated labels" if row.source is Source.SIMULATED else "labels by people"
    ignored = attribute_labels(ignored_in(row.config))
    return f"{row.id}: {accuracy_text}, {row.label_count} {labels_text}" + (f", ignores {ignored}" if ignored else "")


def encode_points(points: Iterable[Point]) -> list[JsonPoint]:
    """Points as JSON, with four significant digits."""
    return [[step, float(f"{value:.4g}") if math.isfinite(value) else None] for step, value in points]


def change_markers(view: RunView, *, only_settings: bool = False) -> list[ChangeMarker]:
    """What is marked on the curves: changes by people, and without a text where a live run learned from new labels.

    only_settings: without pauses, stops, notes and labels.
    """
    run, adapted = view.run, adapted_settings(view.run.config)
    current: dict[str, Any] = {name: run.config.get(name) for name in LIVE_SETTINGS} | {"reward": run.reward_model_id}
    current["ignored"] = list(run.manifest.get(IGNORED_KEY, ()))
    markers: list[ChangeMarker] = []
    for index, event in enumerate(view.events):
        if event.applied_step is None or _is_superseded(event, view.events[index + 1 :]):
            continue
        text = ""
        if event.kind is EventKind.SET:
            name, value = str(event.payload["name"]), event.payload["value"]
            if name in adapted:
                text = f"{name} adapted again" if value == AUTOMATIC else f"{name} set to {plain_number(value)}"
            elif value != current[name]:
                text, current[name] = f"{name} {plain_number(current[name])} → {plain_number(value)}", value
        elif event.kind is EventKind.SWITCH_REWARD:
            value = event.payload["reward_model_id"]
            text, current["reward"] = f"reward model {current['reward']} → {value}", value
        elif event.kind is EventKind.HEAD and (value := list(event.payload.get(IGNORED_KEY, ()))) != current["ignored"]:
            text, current["ignored"] = f"scores ignore {attribute_labels(value) or 'nothing'}", value
        elif only_settings:
            continue
        elif event.kind is EventKind.HEAD:
            markers.append({"step": event.applied_step, "text": ""})
        elif event.kind in (EventKind.PAUSE, EventKind.STOP):
            text = "paused" if event.kind is EventKind.PAUSE else "stopped"
        elif event.kind is EventKind.NOTE and "tracker" not in event.payload:
            text = str(event.payload.get("words", ""))
        if text:
            markers.append({"step": event.applied_step, "text": text})
    return markers


def applied_changes(view: RunView, values: Mapping[str, Sequence[Point]]) -> list[SettingChange]:
    """How people changed beta and lr from step to step; several changes before the same step count as one.

    values: the curve of each live setting. An adapted setting had its value of the step before the change; if it is handed back,
    its new value is that of the step after it.
    """
    adapted = adapted_settings(view.run.config)
    current = {name: float(view.run.config[name]) for name in LIVE_SETTINGS}
    changes = []
    for index, event in enumerate(view.events):
        step = event.applied_step
        if event.kind is not EventKind.SET or step is None or _is_superseded(event, view.events[index + 1 :]):
            continue
        name, new = str(event.payload["name"]), event.payload["value"]
        used = dict(values.get(name, ()))
        old = used.get(step) if name in adapted else current[name]
        new = used.get(step + 1) if new == AUTOMATIC else new
        if new is not None and new != old:
            changes.append(SettingChange(step, name, old, new))
            current[name] = new
    return changes


def pending_changes(view: RunView) -> list[str]:
    """Changes that people requested and the run has not applied yet; for each setting only the last value. None for a run that
    has done all its steps: nothing is applied any more."""
    if view.run.status is RunStatus.DONE:
        return []
    is_going = view.run.status in (RunStatus.QUEUED, RunStatus.RUNNING)
    pending, when = [], "from the next step on" if is_going else NEXT_STEP_NOTE
    for index, event in enumerate(view.events):
        if event.applied_step is not None or _is_superseded(event, view.events[index + 1 :]):
            continue
        if event.kind is EventKind.SET:
            name, value = event.payload["name"], event.payload["value"]
            pending.append(
                f"{name} {AUTOMATIC} {when}" if value == AUTOMATIC else f"{name} = {plain_number(value)} {when}"
            )
        elif event.kind is EventKind.SWITCH_REWARD:
            pending.append(f"reward model {event.payload['reward_model_id']} {when}")
        elif event.kind in (EventKind.PAUSE, EventKind.RESUME, EventKind.STOP):
            pending.append(event.kind.value)
    return pending


def _is_superseded(event: RunEvent, later: Sequence[RunEvent]) -> bool:
    """Whether the setting or reward model was changed again before the same step, so that no step used this value."""
    if event.kind not in (EventKind.SET, EventKind.SWITCH_REWARD):
        return False
    key = (event.kind, event.payload.get("name"), event.applied_step)
    return any((other.kind, other.payload.get("name"), other.applied_step) == key for other in later)


def last_reward_switch(run_events: Sequence[RunEvent]) -> ScaleChange | None:
    """The last applied change of the reward model."""
    for event in reversed(run_events):
        if event.kind is EventKind.SWITCH_REWARD and event.applied_step is not None:
            return ScaleChange(event.applied_step, f"the switch to reward model {event.payload['reward_model_id']}")
    return None


def last_rescale(metric: str, run_events: Sequence[RunEvent]) -> ScaleChange | None:
    """The last applied change, of the reward model or of beta, that changed the scale of a metric."""
    reward_switch = last_reward_switch(run_events) if metric in REWARD_SCALED_METRICS else None
    changes = [reward_switch] if reward_switch else []
    if metric in BETA_SCALED_METRICS:
        changes += [
            ScaleChange(event.applied_step, _beta_change_text(event.payload["value"]))
            for event in run_events
            if event.kind is EventKind.SET and event.payload["name"] == "beta" and event.applied_step
        ]
    return max(reversed(changes), key=lambda change: change.step, default=None)


def _beta_change_text(value: float | str) -> str:
    return f"beta became {AUTOMATIC} again" if isinstance(value, str) else f"beta was set to {plain_number(value)}"


def since_last_rescale(curves: Mapping[str, list[Point]], run_events: Sequence[RunEvent]) -> dict[str, list[Point]]:
    """The curves from their last change of scale on."""
    rescale_steps = {name: rescale.step for name in curves if (rescale := last_rescale(name, run_events))}
    return {
        name: [point for point in points if point[0] > rescale_steps.get(name, -1)] for name, points in curves.items()
    }


def with_scope_note(metric: str, message: str, run_events: Sequence[RunEvent]) -> str:
    """The message of a diagnosis; if it covers only the steps since a change of scale, with a note that says so."""
    rescale = last_rescale(metric, run_events)
    if rescale is None:
        return message
    message = message.replace("since the start", "since then")
    if not message.startswith("NaN"):
        message = message[:1].lower() + message[1:]
    return f"Since {rescale.description} after step {rescale.step}: {message}"


def self_checks(curves: Mapping[str, list[Point]]) -> SelfChecks:
    ratios = [value for _, value in curves.get("val/first_ratio_deviation", []) if math.isfinite(value)]
    kl = curves.get("objective/kl", [])
    return {
        "max_first_ratio_deviation": max(ratios, default=None),
        "first_step_kl": kl[0][1] if kl and math.isfinite(kl[0][1]) else None,
    }


def best_checkpoint_text(config: Mapping[str, Any], curves: Mapping[str, list[Point]]) -> str:
    """Which checkpoint of a run is the best within the KL budget of a config, as a sentence; "" if there is none."""
    best_steps = curves.get("eval/best_step")
    if not best_steps:
        return ""
    step = int(best_steps[-1][1])
    score, kl = (dict(curves.get(name, [])).get(step) for name in ("eval/scores", "eval/kl"))
    budget = kl_control_of(config).budget
    if score is None or kl is None or budget is None:
        return ""
    text = (
        f"Best checkpoint: step {step}. Its texts for held-out prompts have a mean score of {score:z.2f} sd and a KL of "
        f"{kl:.1f}; the curves show the texts of each step for training prompts. It is the newest checkpoint with a KL of "
        f"at most {KL_BUDGET_TOLERANCE * budget:.3g} and nearly the highest score."
    )
    return HYPHEN_AS_MINUS.sub("−", text)


def activity_text(
    run: Run, engine: EngineState, *, is_running: bool, has_base_samples: bool, waits_for: Sequence[int] = (),
    engine_restarted: bool = False, sampling: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """What happens now, for times at which the curves do not change; empty while they do.

    Args:
        is_running: the engine has claimed the run's job.
        has_base_samples: the samples of the base model are stored.
        waits_for: older active runs, by id, ascending.
        engine_restarted: this engine started after the run was last written.
        sampling: {"done", "total", "left_s"} of the texts that are sampled before the first step.
    """
    engine_lost = engine in (EngineState.DEAD, EngineState.ABSENT)
    if run.status is RunStatus.QUEUED and not is_running:
        return _queued_text(engine, waits_for)
    engine_restarted = engine_restarted and run.status is RunStatus.RUNNING
    if engine_restarted or (engine_lost and run.status in (RunStatus.QUEUED, RunStatus.RUNNING)):
        return ENGINE_LOST_TEXT if engine_lost else ENGINE_RESTARTED_TEXT
    if run.status is RunStatus.QUEUED:
        return f"Loading the model{' and the reward model' if run.reward_model_id else ''} …"
    if run.status is not RunStatus.RUNNING:
        return _stopped_text(run)
    if run.step == 0:
        return _first_step_text(sampling, has_base_samples=has_base_samples)
    return run.message


def _first_step_text(sampling: Mapping[str, Any] | None, *, has_base_samples: bool) -> str:
    if sampling is None:
        text = "Sampling the first batch of texts and training on it …"
        return text if has_base_samples else "Sampling from the base model …"
    if sampling["done"] >= sampling["total"]:
        if has_base_samples:
            return f"Training on the first {sampling['total']} texts …"
        return f"Scoring {sampling['total']} texts of the base model …"
    source = "for the first step" if has_base_samples else "from the base model"
    left_s = sampling["left_s"]
    left_text = "" if left_s is None else f", {_about(left_s)} left"
    return f"Sampling texts {source}: {sampling['done']} of {sampling['total']}{left_text} …"


def _about(seconds: float) -> str:
    return f"about {duration_text(seconds)}" if seconds >= 1 else duration_text(seconds)


def _queued_text(engine: EngineState, waits_for: Sequence[int]) -> str:
    if engine is EngineState.STARTING:
        return "The engine is starting: it loads PyTorch and the model …"
    if engine in (EngineState.DEAD, EngineState.ABSENT):
        return "The engine is starting; it loads the model next …"
    if waits_for:
        return f"Waits until run {waits_for[-1]} has ended."
    return "Waits for the engine, which first finishes the work shown at the top of the page …"


def _stopped_text(run: Run) -> str:
    position = f"after step {run.step} of {run.total_steps}"
    texts = {
        RunStatus.PAUSED: f"Paused. Change {' or '.join(live_settings(run))} if you want, then resume.",
        RunStatus.FAILED: f"It failed {position}. {run.message} Resume continues from the last checkpoint.",
        RunStatus.INTERRUPTED: f"It was interrupted {position}; nothing is lost. Resume continues from the last checkpoint.",
        RunStatus.STOPPED: f"Stopped {position}. Resume continues from there.",
        RunStatus.DONE: "Finished. Move the slider to see earlier samples, or try your own prompt under Compare.",
    }
    return texts.get(run.status, run.message)


def activity_started_at(run: Run, job: Job | None) -> float | None:
    """When the activity of `activity_text` began, in seconds since 1970; None if the time does not matter."""
    if run.status is RunStatus.QUEUED:
        return job.created_at if job else run.created_at
    is_first_step = run.status is RunStatus.RUNNING and run.step == 0
    return run.updated_at if is_first_step or run.status is RunStatus.PAUSED else None


def samples_at_step(db: Database, run_id: int, step: int) -> StepSamples:
    """The samples of a step, each with the base model's sample (step 0) for the same prompt and seed. Raises StoreError if there
    is no such run."""
    run = get_run(db, run_id)
    base_samples = {(sample.prompt, sample.seed): sample for sample in samples_at(db, run.id, 0)}
    # The scores of the base are those of the first reward model, and in a live run of no head that learned during the run.
    scores_comparable = not any(
        event.kind in (EventKind.SWITCH_REWARD, EventKind.HEAD)
        and event.applied_step is not None
        and event.applied_step < step
        for event in events(db, run.id)
    )
    rows: list[SampleRow] = []
    for sample in samples_at(db, run.id, step):
        base = base_samples.get((sample.prompt, sample.seed))
        rows.append(
            {
                "prompt": sample.prompt,
                "turns": turns_of_prompt(sample.prompt),
                "text": sample.text.strip(),
                "score": _rounded(sample.score),
                "gold": _rounded(sample.gold),
                "cut": sample.cut,
                "base_text": base.text.strip() if base else None,
                "base_score": _rounded(base.score) if base and scores_comparable else None,
                "base_gold": _rounded(base.gold) if base else None,
                "base_cut": base.cut if base else None,
            }
        )
    return {"run": run_id, "step": step, "rows": rows}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)
