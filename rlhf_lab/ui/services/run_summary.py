"""A run in words and small facts, as the Train screen shows them. Functions of the store's rows; they change nothing."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, EngineState, EventKind, RunStatus, Source
from rlhf_lab.common.records import Job, RewardModelRow, Run, RunEvent
from rlhf_lab.jobs import run_control
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import Point, samples_at
from rlhf_lab.store.runs import events, get_reward_model, get_run
from rlhf_lab.ui.services.curve_diagnosis import SettingChange

_Row = TypeVar("_Row", Run, RewardModelRow)
LIVE_SETTINGS = ("beta", "lr")
MAX_INTERVAL_WIDTH = (
    0.25  # an interval wider than this stands in the place of the figure, here and on the page (lab.js)
)
ENGINE_LOST_TEXT = "The engine is lost. It is started again by itself, and the run goes on from its last checkpoint."
ENGINE_RESTARTED_TEXT = "The engine ended unexpectedly and loads again; the run goes on from its last checkpoint."
NEXT_STEP_NOTE = "(takes effect with the next whole step)"
#: Metrics on the scale of the reward model that gave them; those with the KL in them are on that of beta too.
REWARD_SCALED_METRICS = ("objective/scores", "objective/rlhf_reward", "loss/value_avg", "val/explained_variance")
BETA_SCALED_METRICS = ("objective/rlhf_reward", "loss/value_avg", "val/explained_variance")


def select_run(project_runs: Sequence[Run], requested_id: Any) -> Run | None:
    """The run that was asked for, otherwise the newest that goes on, otherwise the newest (found: newest first)."""
    for run in project_runs:
        if requested_id is not None and str(run.id) == str(requested_id):
            return run
    return next(
        (run for run in project_runs if run.status in ACTIVE_RUN_STATUSES), project_runs[0] if project_runs else None
    )


def newest_rows(rows: Sequence[_Row], max_count: int, shown_id: int | None) -> list[_Row]:
    """As many of the newest, and the one that is shown, however old it is (found: newest first)."""
    return [row for index, row in enumerate(rows) if index < max_count or row.id == shown_id]


def current_state(run: Run, run_events: Sequence[RunEvent]) -> dict[str, Any]:
    """What changes from step to step. The knobs are as last asked for, in force or not."""
    live_settings: dict[str, Any] = {name: run.config[name] for name in LIVE_SETTINGS}
    for event in run_events:
        if event.kind is EventKind.SET:
            live_settings[str(event.payload["name"])] = event.payload["value"]
    return {
        "id": run.id, "status": run.status, "step": run.step, "total": run.total_steps,
        "reward_model": current_reward_model_id(run, run_events), **live_settings,
    }  # fmt: skip


def current_reward_model_id(run: Run, run_events: Sequence[RunEvent]) -> int:
    """The reward model that a run learns from: its first one, or the one last switched to."""
    switches = [event for event in run_events if event.kind is EventKind.SWITCH_REWARD]
    return int(switches[-1].payload["reward_model_id"]) if switches else run.reward_model_id


def label_source_text(db: Database, run: Run, reward_model: int | None = None) -> str:
    """What the run learns from: its first reward model, or the one it was switched to."""
    row, judge = get_reward_model(db, reward_model or run.reward_model_id), run.manifest.get("judge")
    algorithm = str(run.config["algorithm"]).upper()
    if row.snapshot.source is Source.SIMULATED:
        if row.id != run.reward_model_id:
            judge = run_control.judge_of_reward_model(db, row)
        return f"{algorithm} learns from simulated labels{f' by the judge {judge}' if judge else ''} (reward model {row.id})"
    gold_text = f"; gold is the judge {judge}'s score" if judge else ""
    return f"{algorithm} learns from people's labels (reward model {row.id}){gold_text}"


def reward_model_label(row: RewardModelRow) -> str:
    """A reward model in a list: "3: 40 simulated labels, accuracy 81%"."""
    accuracy, low, high = (row.report.get(name) for name in ("accuracy", "accuracy_low", "accuracy_high"))
    if accuracy is None:
        accuracy_text = "accuracy not measured"
    elif low is None or high is None or high - low <= MAX_INTERVAL_WIDTH:
        accuracy_text = f"accuracy {100 * accuracy:.0f} %"
    else:
        accuracy_text = f"accuracy {100 * low:.0f}–{100 * high:.0f} %"
    source_text = "simulated" if row.snapshot.source is Source.SIMULATED else "people's"
    return f"{row.id}: {len(row.snapshot.vote_ids)} {source_text} labels, {accuracy_text}"


def encode_points(points: Iterable[Point]) -> list[list[float | None]]:
    """[step, value] pairs short enough to poll; what is not finite becomes null."""
    return [[step, float(f"{value:.4g}") if math.isfinite(value) else None] for step, value in points]


def change_markers(run: Run, run_events: Sequence[RunEvent]) -> list[dict[str, Any]]:
    """What people changed, as it stands on the curves: {"step": done before it took effect, "words"}."""
    current: dict[str, Any] = {name: run.config.get(name) for name in LIVE_SETTINGS} | {"reward": run.reward_model_id}
    markers = []
    for index, event in enumerate(run_events):
        if event.applied_step is None or _is_superseded(event, run_events[index + 1 :]):
            continue
        text = ""
        if event.kind is EventKind.SET:
            name, value = str(event.payload["name"]), event.payload["value"]
            if value != current[name]:
                text, current[name] = f"{name} {current[name]:g} → {value:g}", value
        elif event.kind is EventKind.SWITCH_REWARD:
            value = event.payload["reward_model_id"]
            text, current["reward"] = f"reward model {current['reward']} → {value}", value
        elif event.kind in (EventKind.PAUSE, EventKind.STOP):
            text = "paused" if event.kind is EventKind.PAUSE else "stopped"
        elif event.kind is EventKind.NOTE:
            text = str(event.payload.get("words", ""))
        if text:
            markers.append({"step": event.applied_step, "words": text})
    return markers


def applied_changes(run: Run, run_events: Sequence[RunEvent]) -> list[SettingChange]:
    """How beta and lr were changed, from step to step: what was told twice before one step counts once."""
    current: dict[str, float] = {name: run.config[name] for name in LIVE_SETTINGS}
    changes: dict[tuple[int, str], SettingChange] = {}
    for event in run_events:
        if event.kind is EventKind.SET and event.applied_step is not None:
            name, value, step = str(event.payload["name"]), event.payload["value"], event.applied_step
            earlier = changes.get((step, name))
            changes[step, name] = SettingChange(step, name, earlier.old if earlier else current[name], value)
            current[name] = value
    return [change for change in changes.values() if change.new != change.old]


def pending_changes(run: Run, run_events: Sequence[RunEvent]) -> list[str]:
    """What people told the run and it has not done yet, in words; of several values of one knob the last."""
    pending, when = (
        [],
        "from the next step on" if run.status in (RunStatus.QUEUED, RunStatus.RUNNING) else NEXT_STEP_NOTE,
    )
    for index, event in enumerate(run_events):
        if event.applied_step is not None or _is_superseded(event, run_events[index + 1 :]):
            continue
        if event.kind is EventKind.SET:
            pending.append(f"{event.payload['name']} = {event.payload['value']:g} {when}")
        elif event.kind is EventKind.SWITCH_REWARD:
            pending.append(f"reward model {event.payload['reward_model_id']} {when}")
        elif event.kind in (EventKind.PAUSE, EventKind.RESUME, EventKind.STOP):
            pending.append(event.kind.value)
    return pending


def _is_superseded(event: RunEvent, later: Sequence[RunEvent]) -> bool:
    """Whether a knob or the reward model was set anew before the same step, so that no step was taken with this value."""
    if event.kind not in (EventKind.SET, EventKind.SWITCH_REWARD):
        return False
    key = (event.kind, event.payload.get("name"), event.applied_step)
    return any((other.kind, other.payload.get("name"), other.applied_step) == key for other in later)


def last_reward_switch(run_events: Sequence[RunEvent]) -> tuple[int, str] | None:
    """The last change of the reward model: (steps done before it took effect, the new one); None where there was none."""
    switches = [
        event for event in run_events if event.kind is EventKind.SWITCH_REWARD and event.applied_step is not None
    ]
    return (
        (switches[-1].applied_step or 0, f"reward model {switches[-1].payload['reward_model_id']}")
        if switches
        else None
    )


def last_rescale(name: str, run_events: Sequence[RunEvent]) -> tuple[int, str] | None:
    """The last change that gave a metric another scale, as `last_reward_switch` says it."""
    changes = [last_reward_switch(run_events)] if name in REWARD_SCALED_METRICS else []
    changes += [
        (event.applied_step, f"beta {event.payload['value']:g}")
        for event in run_events
        if name in BETA_SCALED_METRICS
        and event.kind is EventKind.SET
        and event.payload["name"] == "beta"
        and event.applied_step
    ]
    newest_first = (change for change in reversed(changes) if change)
    return max(newest_first, key=lambda change: change[0], default=None)


def since_last_rescale(curves: dict[str, list[Point]], run_events: Sequence[RunEvent]) -> dict[str, list[Point]]:
    """The curves since their last change of scale: another reward model, and where the KL is in them another beta."""
    rescale_steps = {name: rescale[0] for name in curves if (rescale := last_rescale(name, run_events))}
    return {
        name: [point for point in points if point[0] > rescale_steps.get(name, -1)] for name, points in curves.items()
    }


def with_scope_note(name: str, text: str, run_events: Sequence[RunEvent]) -> str:
    """A verdict's words, with what it is about where that is less than the whole run."""
    rescale = last_rescale(name, run_events)
    if rescale is None:
        return text
    text = text[:1].lower() + text[1:].replace("since the start", "since then")
    return f"Since {rescale[1]} came in after step {rescale[0]}: {text}"


def self_checks(curves: dict[str, list[Point]]) -> dict[str, float | None]:
    """The self-checks: the largest deviation of a step's first ratios from 1, and the KL of the first step."""
    ratios = [value for _, value in curves.get("val/first_ratio_deviation", []) if math.isfinite(value)]
    kl = curves.get("objective/kl", [])
    return {"first_ratio": max(ratios, default=None), "start_kl": kl[0][1] if kl and math.isfinite(kl[0][1]) else None}


def activity_text(
    run: Run,
    engine: EngineState,
    *,
    is_running: bool,
    has_base_samples: bool,
    waits_for: Sequence[int] = (),
    engine_restarted: bool = False,
) -> str:
    """What happens now, in words, while there is nothing new to see; empty while the curves speak.

    working: the engine has taken the run. sampled: the base's samples are there. again: this engine has been started since
    anything was written of the run.
    """
    engine_lost = engine in (EngineState.DEAD, EngineState.ABSENT)
    if run.status is RunStatus.QUEUED and not is_running:
        return _queued_text(engine, waits_for)
    engine_restarted = engine_restarted and run.status is RunStatus.RUNNING
    if engine_restarted or (engine_lost and run.status in (RunStatus.QUEUED, RunStatus.RUNNING)):
        return ENGINE_LOST_TEXT if engine_lost else ENGINE_RESTARTED_TEXT
    if run.status is RunStatus.QUEUED:
        return "Loading the model and the reward model …"
    if run.status is not RunStatus.RUNNING:
        return _stopped_text(run)
    if run.step == 0:
        return (
            "Sampling the first batch of texts and learning from it …"
            if has_base_samples
            else "The base model writes its samples …"
        )
    return run.message


def _queued_text(engine: EngineState, waits_for: Sequence[int]) -> str:
    if engine is EngineState.STARTING:
        return "The engine starts: it loads torch and the model …"
    if engine in (EngineState.DEAD, EngineState.ABSENT):
        return "The engine is being started; it loads the model next …"
    if waits_for:
        return f"Waits until run {waits_for[-1]} has ended."
    return "Waits for the engine, which first finishes what stands at the top of the page …"


def _stopped_text(run: Run) -> str:
    position_text = f"after step {run.step} of {run.total_steps}"
    if run.status is RunStatus.PAUSED:
        return "Paused. Change beta or lr if you like, then resume."
    if run.status is RunStatus.FAILED:
        return f"It failed {position_text}. {run.message} Resume goes on from the last checkpoint; lower lr first if numbers went wild."
    if run.status is RunStatus.INTERRUPTED:
        return f"It was interrupted {position_text}; nothing is lost. Resume goes on from the last checkpoint."
    if run.status is RunStatus.STOPPED:
        return f"Stopped {position_text}. Resume goes on from there."
    if run.status is RunStatus.DONE:
        return "Done. Drag the slider to read how it got there; try it on a prompt of your own under Compare."
    return run.message


def activity_started_at(run: Run, job: Job | None) -> float | None:
    """When what `activity_text` says began (seconds since 1970); None where no time matters."""
    if run.status is RunStatus.QUEUED:
        return job.created_at if job else run.created_at
    is_first_step = run.status is RunStatus.RUNNING and run.step == 0
    return run.updated_at if is_first_step or run.status is RunStatus.PAUSED else None


def samples_at_step(db: Database, run_id: int, step: int) -> dict[str, Any]:
    """The samples of a step beside those of the base (step 0), same prompts and seeds."""
    run = get_run(db, run_id)
    base = {(sample.prompt, sample.seed): sample for sample in samples_at(db, run.id, 0)}
    reward_switch = last_reward_switch(events(db, run.id))
    same_reward_model = (
        reward_switch is None or step <= reward_switch[0]
    )  # the base's scores are those of the reward model at the start
    rows = []
    for sample in samples_at(db, run.id, step):
        base_sample = base.get((sample.prompt, sample.seed))
        comparable_base = base_sample if same_reward_model else None
        rows.append(
            {
                "prompt": sample.prompt,
                "text": sample.text.strip(),
                "score": _rounded(sample.score),
                "gold": _rounded(sample.gold),
                "base": base_sample.text.strip() if base_sample else None,
                "base_score": _rounded(comparable_base.score) if comparable_base else None,
                "base_gold": _rounded(base_sample.gold) if base_sample else None,
            }
        )
    return {"run": run_id, "step": step, "rows": rows}


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)
