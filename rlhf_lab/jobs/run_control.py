"""Starts, pauses, resumes, stops, changes, renames and deletes runs, for the page and the command line.

Requests to an active run are stored as events that the engine reads. Invalid requests are rejected here, before an event is
recorded.
"""

import dataclasses
import itertools
import json
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.enums import (
    ACTIVE_RUN_STATUSES,
    UNFINISHED_JOB_STATUSES,
    EventKind,
    JobKind,
    JobStatus,
    RunStatus,
    Source,
)
from rlhf_lab.common.model_files import HEAD_CONFIG
from rlhf_lab.common.paths import ptx_texts_file, run_folder
from rlhf_lab.common.person_names import is_blank
from rlhf_lab.common.records import REQUESTER_KEY, VISITOR_RUN, Job, LabelSnapshot, RewardModelRow, Run
from rlhf_lab.config.policy import AUTOMATIC, PRESETS, PolicyConfig, check_live_setting
from rlhf_lab.errors import ConfigError, LabelError, StoreError
from rlhf_lab.jobs import engine_process, queue, run_lock
from rlhf_lab.jobs.instant_reward import DECIDED, MIN_DECIDED, labels_to_learn_from
from rlhf_lab.jobs.judge_labelling import judge_name_of
from rlhf_lab.jobs.retraining import IGNORED_KEY, chosen_attributes
from rlhf_lab.jobs.run_tracking import tracker_entry
from rlhf_lab.judges.builtin import JUDGES, load_judge
from rlhf_lab.rewards.builtin import EXERCISE
from rlhf_lab.rewards.terms import OWN, REWARD_MODEL, TERMS_KEY, RewardTerm, check_terms, custom_file, term_records
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import current_labels, labels_with_gold, load_comparisons, snapshot_annotators
from rlhf_lab.store.projects import get_project, prompts
from rlhf_lab.store.reward_model_list import ListedRewardModel, accuracy_of, list_reward_models
from rlhf_lab.store.reward_models import get_reward_model, latest_reward_model
from rlhf_lab.store.runs import (
    add_event,
    create_run,
    delete_run,
    events,
    get_run,
    mark_event_applied,
    pending_events,
    rename_run,
    runs,
    set_run_status,
)

HALTED_RUN_STATUSES = (RunStatus.STOPPED, RunStatus.FAILED, RunStatus.INTERRUPTED)
MAX_RUN_NAME_CHARS = 80
NO_REWARD_MODEL = 0  # id that means: the new run uses no reward model


def start_run(  # noqa: PLR0913  one argument for each choice of the form
    db: Database,
    home: Path,
    project_id: int,
    config: PolicyConfig,
    reward_model_id: int | None = None,
    judge: str | None = None,
    name: str = "",
    ptx_texts: tuple[Sequence[str], str] | None = None,
    *,
    reward_terms: Sequence[RewardTerm] = (),
    visitor: str = "",
    track: str | None = None,
) -> Run:
    """Queue a new run with a reward model (default: the project's newest; NO_REWARD_MODEL: none, as dpo and sft allow).

    judge: its score is recorded as objective/gold; None: the judge that gave the labels, if there is one.
    ptx_texts: the texts of PPO-ptx and their source; None: the embedded model's corpus.
    reward_terms: their weighted sum is the reward; empty: the reward model alone.
    visitor: of a run that a visitor starts in demo mode, the requester of its job. track: the tracker (`tracker_entry`).
    Raises LabelError if a required reward model or label is missing. Raises ConfigError for an unknown judge or tracker, an
    overlong name, ptx_texts with ptx_coef = 0, unusable reward terms, or a critic that cannot be initialised from this reward
    model.
    """
    check_reward(db, home, project_id, config, reward_terms)
    if config.live:
        _check_live_run(db, project_id, reward_terms)
    reward_model = _reward_model_of_new_run(db, project_id, config, reward_model_id, reward_terms)
    labels = _labels_of_new_run(db, project_id, config, reward_model)
    if judge is None and labels is not None:
        judge = judge_of_labels(db, labels)
    if judge is not None:
        load_judge(judge)
    if ptx_texts is not None and config.ptx_coef == 0:
        raise ConfigError(
            "pretraining texts are given, but ptx_coef is 0, so they would have no effect. Set ptx_coef, for example "
            "to 0.1."
        )
    if config.critic_init == "reward" and reward_model is not None:
        _check_critic_source(home / reward_model.path)
    tracker = tracker_entry(track)
    texts, source = ptx_texts or ((), "")
    model_id = reward_model.id if reward_model else None
    run = create_run(
        db,
        project_id,
        model_id,
        check_name(name) if name.strip() else default_run_name(db, project_id, config, model_id, reward_terms),
        config=config.to_dict(),
        total_steps=config.steps,
        manifest={
            "judge": judge,
            **({"labels": dataclasses.asdict(labels)} if labels else {}),
            **(labels_with_gold(db, project_id, labels.source) if labels and not reward_model else {}),
            **({TERMS_KEY: term_records(reward_terms)} if reward_terms else {}),
            **(
                {IGNORED_KEY: list(chosen_attributes(db, project_id, labels.source) or ())}
                if config.live and labels
                else {}
            ),
            **({"ptx_texts": {"source": source, "count": len(texts)}} if texts else {}),
            **({VISITOR_RUN: True} if visitor else {}),
            **tracker,
        },
    )
    try:
        if texts:
            _save_ptx_texts(home, run.id, texts)
        submit_run(db, home, run, visitor)
    except StoreError:
        if open_job(db, run.id) is None:
            delete_run(db, run.id)
        raise
    return run


def _check_live_run(db: Database, project_id: int, reward_terms: Sequence[RewardTerm]) -> None:
    """Raises LabelError if there are too few labels to start with, ConfigError for reward terms."""
    if reward_terms:
        raise ConfigError(
            "A run that trains while people label learns its reward from the labels alone. Leave out the reward terms, or "
            "turn live off."
        )
    missing = labels_until_live(db, project_id)
    if missing:
        raise LabelError(
            f"Training while people label begins with at least {MIN_DECIDED} labels that prefer one text: {missing} more, "
            "please. Then the run learns from every further label."
        )


def labels_until_live(db: Database, project_id: int) -> int:
    """How many more labels that prefer one text a live run needs before it can start."""
    decided = sum(label.choice in DECIDED for label in labels_to_learn_from(db, project_id)[1])
    return max(0, MIN_DECIDED - decided)


def _reward_model_of_new_run(
    db: Database, project_id: int, config: PolicyConfig, reward_model_id: int | None, reward_terms: Sequence[RewardTerm]
) -> RewardModelRow | None:
    """The reward model of a new run.

    None if its reward consists of other terms only, or for dpo and sft if no reward model was chosen or none exists.
    """
    if reward_terms and all(term.name != REWARD_MODEL for term in reward_terms):
        return None
    if config.live:
        return None
    if config.spec.learns_from == "labels" and not reward_terms:
        if reward_model_id is None:
            return latest_reward_model(db, project_id)
        if reward_model_id == NO_REWARD_MODEL:
            return None
    return pick_reward_model(db, project_id, reward_model_id)


def _labels_of_new_run(
    db: Database, project_id: int, config: PolicyConfig, reward_model: RewardModelRow | None
) -> LabelSnapshot | None:
    """The labels of the run's reward model; without one, for dpo and sft, those of the project; for a live run those that it
    begins with.

    Raises LabelError if none of these labels prefers a text.
    """
    if reward_model is not None:
        return reward_model.snapshot
    if config.live:
        return current_labels(db, project_id)
    if config.spec.learns_from != "labels":
        return None
    labels = current_labels(db, project_id)
    if all(comparison.tie for comparison in load_comparisons(db, labels)):
        raise LabelError(
            f"{config.algorithm} learns from labels, and in project {project_id} none prefers a text. Label some "
            "pairs first, or let a judge label some."
        )
    return labels


def pick_reward_model(db: Database, project_id: int, reward_model_id: int | None) -> RewardModelRow:
    """The reward model of this id in the project; None: the newest. Raises LabelError if there is none."""
    reward_model = (
        latest_reward_model(db, project_id) if reward_model_id is None else get_reward_model(db, reward_model_id)
    )
    if reward_model is None or reward_model.project_id != project_id:
        problem = "no reward model yet" if reward_model_id is None else f"no reward model {reward_model_id}"
        raise LabelError(
            f"project {project_id} has {problem}, and PPO needs one. Label pairs (or let a judge label some), then "
            "train a reward model (on the command line: `label`, `train-reward`), or choose other reward terms."
        )
    return reward_model


def check_reward(
    db: Database, home: Path, project_id: int, config: PolicyConfig, reward_terms: Sequence[RewardTerm]
) -> None:
    """Check reward terms. Raises ConfigError if a run of this project cannot use them."""
    check_terms(list(reward_terms))
    if reward_terms and config.critic_init == "reward":
        raise ConfigError(
            "critic_init = reward copies a reward model, and this reward has terms. Choose critic_init = fresh."
        )
    for term in reward_terms:
        if term.name == OWN and not custom_file(term, home).is_file():
            raise ConfigError(
                f"there is no file {custom_file(term, home)}. Put your reward function there, or choose another."
            )
        if term.name == "arithmetic" and any(
            not EXERCISE.search(prompt.text) for prompt in prompts(db, project_id, "train")
        ):
            raise ConfigError(
                "the reward term arithmetic needs exercises like 3 + 4 in every prompt. Make a project with the "
                "prompt set arithmetic."
            )


def start_visitor_run(db: Database, home: Path, project_id: int, config: PolicyConfig, visitor: str) -> Run:
    """Queue a run of a visitor in demo mode, on the project's default reward model. Raises LabelError without a reward model."""
    reward_model = default_reward_model(db, project_id)
    if reward_model is None:
        raise LabelError("A run needs a reward model, and there is none yet. Label some pairs first.")
    return start_run(db, home, project_id, config, reward_model.id, visitor=visitor)


def default_reward_model(db: Database, project_id: int) -> RewardModelRow | None:
    """The `best_supported` reward model of a project; None without any."""
    model = best_supported(list_reward_models(db, project_id))
    return None if model is None else get_reward_model(db, model.id)


def best_supported(models: Sequence[ListedRewardModel]) -> ListedRewardModel | None:
    """The reward model from which a run learns unless another one is chosen: one that ranks better than chance, if there is one;
    among these one from people's labels, if there is one; among these the newest. models: newest first."""
    return min(
        models, key=lambda model: (bool(accuracy_warning(model.report)), model.source is not Source.HUMAN), default=None
    )


def _check_critic_source(folder: Path) -> None:
    """Raises ConfigError if a critic cannot be initialised from the reward model in this folder.

    Unreadable files are ignored here; the engine reports them.
    """
    try:
        head = json.loads((folder / HEAD_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    reads_all_layers = head.get("layers", "last") != "last"  # older heads lack the key and read the last layer only
    if reads_all_layers or not head.get("adapter"):
        problem = "reads all layers" if reads_all_layers else "has no adapter"
        raise ConfigError(
            "critic_init = reward copies a reward model's adapter and its head on the last layer, and this one "
            f"{problem}. Choose critic_init = fresh, or a reward model that was trained with layers = last and kept "
            "its adapter."
        )


def default_run_name(
    db: Database, project_id: int, config: PolicyConfig, reward_model_id: int | None,
    reward_terms: Sequence[RewardTerm] = (),
) -> str:  # fmt: skip
    """The name of a run for which no name was entered.

    It consists of the algorithm, the reward, the preset unless it is "lab", as many settings that differ from the preset as fit,
    and a number if the project already has a run of that name. Temperature and length are compared with those of the project.
    """
    project = get_project(db, project_id)
    sampling = {"temperature": project.temperature, "max_new_tokens": project.max_new_tokens}
    differences_by_preset = {
        preset: _setting_differences(config, PolicyConfig.for_algorithm(config.algorithm, **values, **sampling))
        for preset, values in PRESETS.items()
    }
    preset, differences = min(differences_by_preset.items(), key=lambda item: len(item[1]))
    parts = (
        [f"{config.algorithm} on {reward_text(reward_model_id, reward_terms, live=config.live)}"]
        + ([preset] if preset != "lab" else [])
        + differences
    )
    name, max_chars = ", ".join(parts), MAX_RUN_NAME_CHARS - len(" (999)")
    shown = len(parts)
    while len(name) > max_chars:
        shown -= 1
        name = ", ".join([*parts[:shown], f"and {len(parts) - shown} more"])
    names = {run.name for run in runs(db, project_id)}
    numbered_names = (f"{name} ({number})" for number in itertools.count(2))
    return name if name not in names else next(candidate for candidate in numbered_names if candidate not in names)


def reward_text(reward_model_id: int | None, reward_terms: Sequence[RewardTerm], *, live: bool = False) -> str:
    """A description of the reward, such as "reward model 3 + 0.5 length"; "labels alone" without one; "new labels" in
    a live run."""
    if not reward_terms:
        without = "new labels" if live else "labels alone"
        return f"reward model {reward_model_id}" if reward_model_id else without
    parts = []
    for term in reward_terms:
        name = f"reward model {reward_model_id}" if term.name == REWARD_MODEL else term.label
        parts.append(name if term.weight == 1 else f"{term.weight:g} {name}")
    return " + ".join(parts)


def _setting_differences(config: PolicyConfig, preset: PolicyConfig) -> list[str]:
    """The settings whose values differ from those of a preset, in the form "lr 0.001"; without `live`, which the reward's text
    says."""
    values, preset_values = config.to_dict(), preset.to_dict()
    differing = [name for name, value in values.items() if value != preset_values[name] and name != "live"]
    return [f"{name} {_value_text(values[name])}" for name in differing]


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def _save_ptx_texts(home: Path, run_id: int, texts: Sequence[str]) -> None:
    file = ptx_texts_file(home, run_id)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file_atomically(file, json.dumps(list(texts)))
    except OSError as error:
        raise StoreError(
            f"The run was not started: its pretraining texts could not be written ({error.strerror or error}). Is "
            "the disk full?"
        ) from error


def judge_of_labels(db: Database, labels: LabelSnapshot) -> str | None:
    """The built-in judge that gave all these labels; None for people, several judges, or a judge from a file.

    A judge from a file cannot be found again, because its labels contain its name but not its path.
    """
    return only_judge(snapshot_annotators(db, labels)) if labels.source is Source.SIMULATED else None


def only_judge(annotators: Iterable[str]) -> str | None:
    """The built-in judge, if all these simulated annotators are the same one; otherwise None."""
    names = {judge_name_of(annotator) for annotator in annotators}
    return names.pop() if len(names) == 1 and names <= set(JUDGES) else None


def accuracy_warning(report: Mapping[str, Any]) -> str:
    """A warning about a reward model whose accuracy is unknown or may not exceed chance; "" if it does.

    report: of the reward model. The lower end of the accuracy's interval is compared with chance, or the accuracy if there is no
    interval.
    """
    accuracy = accuracy_of(report)
    least = accuracy.value if accuracy.low is None else accuracy.low
    if least is not None and least > 0.5:
        return ""
    return "On held-out pairs it may rank no better than chance: label more pairs first."


def submit_run(db: Database, home: Path, run: Run, requester: str = "") -> Job:
    payload = {"run_id": run.id} | ({REQUESTER_KEY: requester} if requester else {})
    job = queue.submit_run_once(db, run.project_id, payload)
    engine_process.ensure_engine(db, home)
    return job


def open_job(db: Database, run_id: int) -> Job | None:
    """The unfinished job of a run."""
    return _newest_job(db, run_id, UNFINISHED_JOB_STATUSES)


def last_job(db: Database, run_id: int) -> Job | None:
    """The newest job of a run, finished or not; after `start_run` or `resume`, the job to wait for."""
    return _newest_job(db, run_id, None)


def _newest_job(db: Database, run_id: int, statuses: Sequence[JobStatus] | None) -> Job | None:
    jobs = queue.jobs(db, kinds=[JobKind.TRAIN_POLICY], statuses=statuses, limit=1000)
    return next((job for job in jobs if job.payload.get("run_id") == run_id), None)


def pause(db: Database, run_id: int) -> None:
    """Pause a run at once, even in the middle of a step. Raises StoreError if it is not active."""
    _active_run(db, run_id, "paused")
    add_event(db, run_id, EventKind.PAUSE, {})


def resume(db: Database, home: Path, run_id: int, processes: int | None = None) -> None:
    """Continue a paused run, or a stopped, failed or interrupted one from its last checkpoint.

    processes: number of training processes from now on; None: as before. Raises StoreError for a run that has done all its steps
    or is running in processes that were started without the engine, and ConfigError for an invalid number of processes.
    """
    run_lock.mark_interrupted_runs(db, home)
    run = get_run(db, run_id)
    job = open_job(db, run_id)
    started_by_hand = job is None and run.status in run_lock.STARTED_RUN_STATUSES and run_lock.is_locked(home, run_id)
    if processes is not None and (job is not None or started_by_hand):
        raise StoreError(
            f"Run {run_id} is {run.status.value}: stop it, then resume it with another number of processes."
        )
    if job is not None:
        add_event(db, run_id, EventKind.RESUME, {})
        engine_process.ensure_engine(db, home)
    elif run.status is RunStatus.DONE:
        raise StoreError(f"Run {run_id} has done all its {run.total_steps} steps. Start a new one.")
    elif started_by_hand:
        if run.status is not RunStatus.PAUSED:
            raise StoreError(f"Run {run_id} is already in progress, in processes that were started without the engine.")
        add_event(db, run_id, EventKind.RESUME, {})
    else:
        for event in pending_events(db, run_id):  # an unhandled pause or stop must not halt the resumed run
            if event.kind in (EventKind.PAUSE, EventKind.STOP):
                mark_event_applied(db, event.id, run.step)
        if processes is not None:
            _record_process_count(db, run, processes)
        add_event(db, run_id, EventKind.RESUME, {}, run.step)
        submit_run(db, home, run)


def _record_process_count(db: Database, run: Run, processes: int) -> None:
    """Record a changed number of processes as a note, because the config is that of the run's start. Raises ConfigError."""
    PolicyConfig.from_dict(run.config).replace(processes=processes)
    previous = process_count(db, run)
    if processes != previous:
        message = f"processes {previous} → {processes}"
        add_event(db, run.id, EventKind.NOTE, {"words": message, "processes": processes})


def process_count(db: Database, run: Run) -> int:
    """The number of processes that train the run, as of its start or its last resumption."""
    notes = [event.payload for event in events(db, run.id) if event.kind is EventKind.NOTE]
    counts = [note["processes"] for note in notes if "processes" in note]
    return int(counts[-1] if counts else run.config.get("processes", 1))


def active_runs(db: Database) -> list[Run]:
    """The runs of all projects that are queued, running or paused, newest first."""
    return [run for run in runs(db) if run.status in ACTIVE_RUN_STATUSES]


def stop(db: Database, run_id: int) -> None:
    """Stop a run at once. It keeps its last complete step and can be resumed.

    A run on which no engine is working is stopped at once, even if it has no job.
    """
    run = _active_run(db, run_id, "stopped")
    event = add_event(db, run_id, EventKind.STOP, {})
    job = open_job(db, run_id)
    is_waiting = run.status is RunStatus.QUEUED if job is None else job.status is JobStatus.QUEUED
    # If an engine claims the job at this moment, its next progress report tells it that the job was cancelled.
    if is_waiting and (job is None or queue.cancel(db, job.id)):
        mark_event_applied(db, event.id, run.step)
        set_run_status(db, run_id, RunStatus.STOPPED, f"stopped after step {run.step}; it can be resumed")


def set_live_setting(db: Database, run_id: int, name: str, value: float | str) -> None:
    """Set one of LIVE_SETTINGS from the next step on: to a number, a numeral, or "automatic" (see LIVE_SETTINGS).

    Raises ConfigError for other settings and invalid values.
    """
    if value != AUTOMATIC:
        value = _parse_number(name, value)
    check_live_setting(PolicyConfig.from_dict(get_run(db, run_id).config), name, value)
    _active_run(db, run_id, "changed", also_allowed=HALTED_RUN_STATUSES)
    add_event(db, run_id, EventKind.SET, {"name": name, "value": value})


def _parse_number(name: str, text: float | str) -> float:
    """The value of a live setting; a numeral may have a decimal comma."""
    try:
        return float(str(text).strip().replace(",", "."))
    except ValueError:
        raise ConfigError(f'{name} = "{text}" is not a number. Examples: 0.1 or 3e-4, or "{AUTOMATIC}".') from None


def switch_reward_model(db: Database, run_id: int, reward_model_id: int) -> None:
    """Use another reward model of the project from the next step on."""
    run = _active_run(db, run_id, "changed", also_allowed=HALTED_RUN_STATUSES)
    if run.reward_model_id is None:
        raise ConfigError(f"the reward of run {run_id} has no reward model that could be replaced. Start a new run.")
    if get_reward_model(db, reward_model_id).project_id != run.project_id:
        raise ConfigError(f"reward model {reward_model_id} belongs to another project than run {run_id}.")
    add_event(db, run_id, EventKind.SWITCH_REWARD, {"reward_model_id": reward_model_id})


def rename(db: Database, run_id: int, name: str) -> str:
    """Rename a run; returns the stored name. Raises ConfigError for an empty or overlong one."""
    stored = check_name(name)
    rename_run(db, run_id, stored)
    return stored


def delete(db: Database, home: Path, run_id: int) -> None:
    """Delete a run with its metrics and checkpoints. Raises StoreError while it is active, or if files cannot be deleted."""
    run_lock.mark_interrupted_runs(db, home)
    run = get_run(db, run_id, made_elsewhere=True)
    if run.status in ACTIVE_RUN_STATUSES or open_job(db, run_id) is not None:
        raise StoreError(f"Run {run_id} is {run.status.value}: stop it before you delete it.")
    delete_run(db, run_id)
    folder = run_folder(home, run_id)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise StoreError(f"Run {run_id} was deleted, except for some of its files. Delete the folder {folder} by hand.")


def check_name(name: str) -> str:
    """The name with single spaces. Raises ConfigError for an empty, overlong or unprintable one."""
    name = " ".join(name.split())
    is_unprintable = any(unicodedata.category(character) in ("Cc", "Cs") for character in name)
    if is_unprintable or (name and is_blank(name)):
        raise ConfigError("a name may contain only visible characters.")
    if not 0 < len(name) <= MAX_RUN_NAME_CHARS:
        raise ConfigError(f"a name has 1 to {MAX_RUN_NAME_CHARS} characters; this one has {len(name)}.")
    return name


def _active_run(db: Database, run_id: int, action: str, also_allowed: tuple[RunStatus, ...] = ()) -> Run:
    """The run, if it is active, has an unfinished job, or has a status in `also_allowed`. Raises StoreError."""
    run = get_run(db, run_id)
    if run.status not in ACTIVE_RUN_STATUSES + also_allowed and open_job(db, run_id) is None:
        raise StoreError(f"Run {run_id} is {run.status.value} and cannot be {action}.")
    return run
