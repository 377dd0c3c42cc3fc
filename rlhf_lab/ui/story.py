"""A run in words and small facts, as the Train screen shows them. Functions of the store's rows; they change nothing."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rlhf_lab.jobs import control
from rlhf_lab.kinds import GOING, EngineState, EventKind, RunStatus, Source
from rlhf_lab.records import Job, RewardModelRow, Run, RunEvent
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import events, get_reward_model, get_run
from rlhf_lab.store.steps import Point, samples_at
from rlhf_lab.ui.diagnosis import Change

_Row = TypeVar("_Row", Run, RewardModelRow)
KNOBS = ("beta", "lr")
WIDE = 0.25  # an interval wider than this stands in the place of the figure, here and on the page (lab.js)
LOST = "The engine is lost. It is started again by itself, and the run goes on from its last checkpoint."
STARTED_AGAIN = "The engine ended unexpectedly and loads again; the run goes on from its last checkpoint."
WAITS = "(takes effect with the next whole step)"
#: Metrics on the scale of the reward model that gave them; those with the KL in them are on that of beta too.
OF_THE_REWARD = ("objective/scores", "objective/rlhf_reward", "loss/value_avg", "val/explained_variance")
OF_BETA = ("objective/rlhf_reward", "loss/value_avg", "val/explained_variance")


def pick(found: Sequence[Run], wanted: Any) -> Run | None:
    """The run that was asked for, otherwise the newest that goes on, otherwise the newest (found: newest first)."""
    for run in found:
        if wanted is not None and str(run.id) == str(wanted):
            return run
    return next((run for run in found if run.status in GOING), found[0] if found else None)


def listed(found: Sequence[_Row], most: int, shown: int | None) -> list[_Row]:
    """As many of the newest, and the one that is shown, however old it is (found: newest first)."""
    return [row for at, row in enumerate(found) if at < most or row.id == shown]


def now(run: Run, said: Sequence[RunEvent]) -> dict[str, Any]:
    """What changes from step to step. The knobs are as last asked for, in force or not."""
    knobs: dict[str, Any] = {name: run.config[name] for name in KNOBS}
    for event in said:
        if event.kind is EventKind.SET:
            knobs[str(event.payload["name"])] = event.payload["value"]
    return {
        "id": run.id, "status": run.status, "step": run.step, "total": run.total_steps,
        "reward_model": scorer(run, said), **knobs,
    }  # fmt: skip


def scorer(run: Run, said: Sequence[RunEvent]) -> int:
    """The reward model that a run learns from: its first one, or the one last switched to."""
    switches = [event for event in said if event.kind is EventKind.SWITCH_REWARD]
    return int(switches[-1].payload["reward_model_id"]) if switches else run.reward_model_id


def about(db: Database, run: Run, reward_model: int | None = None) -> str:
    """What the run learns from: its first reward model, or the one it was switched to."""
    row, judge = get_reward_model(db, reward_model or run.reward_model_id), run.manifest.get("judge")
    name = str(run.config["algorithm"]).upper()
    if row.snapshot.source is Source.SIMULATED:
        if row.id != run.reward_model_id:
            judge = control.teacher(db, row)
        return f"{name} learns from simulated labels{f' by the judge {judge}' if judge else ''} (reward model {row.id})"
    gold = f"; gold is the judge {judge}'s score" if judge else ""
    return f"{name} learns from people's labels (reward model {row.id}){gold}"


def reward_words(row: RewardModelRow) -> str:
    """A reward model in a list: "3: 40 simulated labels, accuracy 81%"."""
    accuracy, low, high = (row.report.get(name) for name in ("accuracy", "accuracy_low", "accuracy_high"))
    if accuracy is None:
        seen = "accuracy not measured"
    elif low is None or high is None or high - low <= WIDE:
        seen = f"accuracy {100 * accuracy:.0f} %"
    else:
        seen = f"accuracy {100 * low:.0f}–{100 * high:.0f} %"
    who = "simulated" if row.snapshot.source is Source.SIMULATED else "people's"
    return f"{row.id}: {len(row.snapshot.vote_ids)} {who} labels, {seen}"


def packed(points: Iterable[Point]) -> list[list[float | None]]:
    """[step, value] pairs short enough to poll; what is not finite becomes null."""
    return [[step, float(f"{value:.4g}") if math.isfinite(value) else None] for step, value in points]


def marks(run: Run, said: Sequence[RunEvent]) -> list[dict[str, Any]]:
    """What people changed, as it stands on the curves: {"step": done before it took effect, "words"}."""
    current: dict[str, Any] = {name: run.config.get(name) for name in KNOBS} | {"reward": run.reward_model_id}
    found = []
    for at, event in enumerate(said):
        if event.applied_step is None or _superseded(event, said[at + 1 :]):
            continue
        words = ""
        if event.kind is EventKind.SET:
            name, value = str(event.payload["name"]), event.payload["value"]
            if value != current[name]:
                words, current[name] = f"{name} {current[name]:g} → {value:g}", value
        elif event.kind is EventKind.SWITCH_REWARD:
            value = event.payload["reward_model_id"]
            words, current["reward"] = f"reward model {current['reward']} → {value}", value
        elif event.kind in (EventKind.PAUSE, EventKind.STOP):
            words = "paused" if event.kind is EventKind.PAUSE else "stopped"
        elif event.kind is EventKind.NOTE:
            words = str(event.payload.get("words", ""))
        if words:
            found.append({"step": event.applied_step, "words": words})
    return found


def turned(run: Run, said: Sequence[RunEvent]) -> list[Change]:
    """How beta and lr were changed, from step to step: what was told twice before one step counts once."""
    current: dict[str, float] = {name: run.config[name] for name in KNOBS}
    found: dict[tuple[int, str], Change] = {}
    for event in said:
        if event.kind is EventKind.SET and event.applied_step is not None:
            name, value, at = str(event.payload["name"]), event.payload["value"], event.applied_step
            begun = found.get((at, name))
            found[at, name] = Change(at, name, begun.old if begun else current[name], value)
            current[name] = value
    return [change for change in found.values() if change.new != change.old]


def asked(run: Run, said: Sequence[RunEvent]) -> list[str]:
    """What people told the run and it has not done yet, in words; of several values of one knob the last."""
    found, begins = [], "from the next step on" if run.status in (RunStatus.QUEUED, RunStatus.RUNNING) else WAITS
    for at, event in enumerate(said):
        if event.applied_step is not None or _superseded(event, said[at + 1 :]):
            continue
        if event.kind is EventKind.SET:
            found.append(f"{event.payload['name']} = {event.payload['value']:g} {begins}")
        elif event.kind is EventKind.SWITCH_REWARD:
            found.append(f"reward model {event.payload['reward_model_id']} {begins}")
        elif event.kind in (EventKind.PAUSE, EventKind.RESUME, EventKind.STOP):
            found.append(event.kind.value)
    return found


def _superseded(event: RunEvent, later: Sequence[RunEvent]) -> bool:
    """Whether a knob or the reward model was set anew before the same step, so that no step was taken with this value."""
    if event.kind not in (EventKind.SET, EventKind.SWITCH_REWARD):
        return False
    what = (event.kind, event.payload.get("name"), event.applied_step)
    return any((other.kind, other.payload.get("name"), other.applied_step) == what for other in later)


def switch(said: Sequence[RunEvent]) -> tuple[int, str] | None:
    """The last change of the reward model: (steps done before it took effect, the new one); None where there was none."""
    found = [event for event in said if event.kind is EventKind.SWITCH_REWARD and event.applied_step is not None]
    return (found[-1].applied_step or 0, f"reward model {found[-1].payload['reward_model_id']}") if found else None


def rescaled(name: str, said: Sequence[RunEvent]) -> tuple[int, str] | None:
    """The last change that gave a metric another scale, as `switch` says it."""
    changes = [switch(said)] if name in OF_THE_REWARD else []
    changes += [
        (event.applied_step, f"beta {event.payload['value']:g}")
        for event in said
        if name in OF_BETA and event.kind is EventKind.SET and event.payload["name"] == "beta" and event.applied_step
    ]
    told_last_first = (change for change in reversed(changes) if change)
    return max(told_last_first, key=lambda change: change[0], default=None)


def comparable(curves: dict[str, list[Point]], said: Sequence[RunEvent]) -> dict[str, list[Point]]:
    """The curves since their last change of scale: another reward model, and where the KL is in them another beta."""
    begun = {name: change[0] for name in curves if (change := rescaled(name, said))}
    return {name: [point for point in points if point[0] > begun.get(name, -1)] for name, points in curves.items()}


def since(name: str, words: str, said: Sequence[RunEvent]) -> str:
    """A verdict's words, with what it is about where that is less than the whole run."""
    begun = rescaled(name, said)
    if begun is None:
        return words
    words = words[:1].lower() + words[1:].replace("since the start", "since then")
    return f"Since {begun[1]} came in after step {begun[0]}: {words}"


def checks(curves: dict[str, list[Point]]) -> dict[str, float | None]:
    """The self-checks: the largest deviation of a step's first ratios from 1, and the KL of the first step."""
    ratios = [value for _, value in curves.get("val/first_ratio_deviation", []) if math.isfinite(value)]
    kl = curves.get("objective/kl", [])
    return {"first_ratio": max(ratios, default=None), "start_kl": kl[0][1] if kl and math.isfinite(kl[0][1]) else None}


def doing(
    run: Run, engine: EngineState, *, working: bool, sampled: bool, waits_for: Sequence[int] = (), again: bool = False
) -> str:
    """What happens now, in words, while there is nothing new to see; empty while the curves speak.

    working: the engine has taken the run. sampled: the base's samples are there. again: this engine has been started since
    anything was written of the run.
    """
    lost = engine in (EngineState.DEAD, EngineState.ABSENT)
    if run.status is RunStatus.QUEUED and not working:
        return _waiting(engine, waits_for)
    again = again and run.status is RunStatus.RUNNING
    if again or (lost and run.status in (RunStatus.QUEUED, RunStatus.RUNNING)):
        return LOST if lost else STARTED_AGAIN
    if run.status is RunStatus.QUEUED:
        return "Loading the model and the reward model …"
    if run.status is not RunStatus.RUNNING:
        return _resting(run)
    if run.step == 0:
        return (
            "Sampling the first batch of texts and learning from it …"
            if sampled
            else "The base model writes its samples …"
        )
    return run.message


def _waiting(engine: EngineState, waits_for: Sequence[int]) -> str:
    if engine is EngineState.STARTING:
        return "The engine starts: it loads torch and the model …"
    if engine in (EngineState.DEAD, EngineState.ABSENT):
        return "The engine is being started; it loads the model next …"
    if waits_for:
        return f"Waits until run {waits_for[-1]} has ended."
    return "Waits for the engine, which first finishes what stands at the top of the page …"


def _resting(run: Run) -> str:
    at = f"after step {run.step} of {run.total_steps}"
    if run.status is RunStatus.PAUSED:
        return "Paused. Change beta or lr if you like, then resume."
    if run.status is RunStatus.FAILED:
        return f"It failed {at}. {run.message} Resume goes on from the last checkpoint; lower lr first if numbers went wild."
    if run.status is RunStatus.INTERRUPTED:
        return f"It was interrupted {at}; nothing is lost. Resume goes on from the last checkpoint."
    if run.status is RunStatus.STOPPED:
        return f"Stopped {at}. Resume goes on from there."
    if run.status is RunStatus.DONE:
        return "Done. Drag the slider to read how it got there; try it on a prompt of your own under Compare."
    return run.message


def began(run: Run, job: Job | None) -> float | None:
    """When what `doing` says began (seconds since 1970); None where no time matters."""
    if run.status is RunStatus.QUEUED:
        return job.created_at if job else run.created_at
    waiting = run.status is RunStatus.RUNNING and run.step == 0
    return run.updated_at if waiting or run.status is RunStatus.PAUSED else None


def written(db: Database, run_id: int, step: int) -> dict[str, Any]:
    """The samples of a step beside those of the base (step 0), same prompts and seeds."""
    run = get_run(db, run_id)
    base = {(sample.prompt, sample.seed): sample for sample in samples_at(db, run.id, 0)}
    begun = switch(events(db, run.id))
    same_model = begun is None or step <= begun[0]  # the base's scores are those of the reward model at the start
    rows = []
    for sample in samples_at(db, run.id, step):
        before = base.get((sample.prompt, sample.seed))
        compared = before if same_model else None
        rows.append({
            "prompt": sample.prompt, "text": sample.text.strip(), "score": _short(sample.score), "gold": _short(sample.gold),
            "base": before.text.strip() if before else None, "base_score": _short(compared.score) if compared else None,
            "base_gold": _short(before.gold) if before else None,
        })  # fmt: skip
    return {"run": run_id, "step": step, "rows": rows}


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)
