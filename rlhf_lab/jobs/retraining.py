"""When the next reward model is trained: how many labels it needs, and the state of its training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobKind, JobStatus, Source
from rlhf_lab.common.records import Job
from rlhf_lab.common.text_attributes import ATTRIBUTES, ignored_in
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import LabelError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.judge_labelling import judge_name_of
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import count_live_labels
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_model_list import newest_listed
from rlhf_lab.store.votes import label_count, vote_counts, voters

LABELS_PER_RETRAINING = 20  # new labels between two reward models
LABELS_FOR_FIRST_MODEL = 10  # labels needed for the first one
#: In the manifest of a live run and in the payload of its heads' events: the attributes of texts that scores ignore.
IGNORED_KEY = "ignored"
THEN_RUN = "then_run"  # in the payload of a TRAIN_REWARD job: the run to queue afterwards


@dataclass(frozen=True)
class LabelProgress:
    """The labels of a project, and how many the next reward model from people's labels needs."""

    human: int
    simulated: int
    goal: int
    remaining: int
    newest_model_id: int


def get_label_progress(db: Database, project_id: int) -> LabelProgress:
    counts = vote_counts(db, project_id)
    human, simulated = (label_count(counts[source]) for source in Source)
    goal = training_goal(db, project_id, Source.HUMAN)
    newest = newest_listed(db, project_id, Source.HUMAN)
    return LabelProgress(human, simulated, goal, max(0, goal - human), 0 if newest is None else newest.id)


def is_retraining_due(db: Database, project_id: int, source: Source) -> bool:
    """Whether a source has enough new labels for the next reward model."""
    counts = vote_counts(db, project_id)[source]
    labels = label_count(counts)
    if labels < training_goal(db, project_id, source) or counts[Choice.FIRST] + counts[Choice.SECOND] < 2:
        return False
    last_job = last_training(db, project_id, source)
    return not (last_job and last_job.status is JobStatus.FAILED and last_job.payload.get("labels") == labels)


def last_training(db: Database, project_id: int, source: Source | None = None) -> Job | None:
    """The newest training of a reward model of the project. source: from labels of this source."""
    jobs = queue.jobs(db, project_id=project_id, kinds=[JobKind.TRAIN_REWARD], limit=1 if source is None else 100)
    return next((job for job in jobs if source is None or job.payload.get("source") == source.value), None)


def cancel_training(db: Database, project_id: int, job_id: int | None = None) -> Job:
    """Cancel the training of a reward model that runs or waits; returns its job. The labels stay, and no reward model is added.
    The number of labels is stored as its result (`training_goal`).

    job_id: only this job. Raises LabelError if there is nothing to cancel (any more).
    """
    open_jobs = queue.jobs(
        db, project_id=project_id, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES, limit=1
    )
    job = next((job for job in open_jobs if job_id in (None, job.id)), None)
    if job is not None:
        labels = label_count(vote_counts(db, project_id)[Source(job.payload["source"])])
        if queue.cancel(db, job.id, {"labels": labels}):
            return job
    raise LabelError("There is nothing to cancel: no reward model of this project is being trained (any more).")


def training_goal(db: Database, project_id: int, source: Source) -> int:
    """The number of labels at which the next reward model is trained.

    It is LABELS_PER_RETRAINING more than the newest model was trained on; of these, labels undone since then are not counted. The
    first model needs LABELS_FOR_FIRST_MODEL. After a training was cancelled, as many labels must be new since then.
    """
    newest, last_job = newest_listed(db, project_id, source), last_training(db, project_id, source)
    known = count_live_labels(db, project_id, newest) if newest else 0
    if last_job is not None and last_job.status is JobStatus.CANCELLED:
        known = max(known, int((last_job.result or last_job.payload).get("labels", 0)))
    return known + (LABELS_PER_RETRAINING if newest else LABELS_FOR_FIRST_MODEL)


def submit_training(
    db: Database,
    project_id: int,
    source: Source,
    config: RewardConfig | None = None,
    last_known_id: int | None = None,
    then_run: Mapping[str, Any] | None = None,
) -> Job:
    """Queue the training of a reward model on the labels of one source, or return an unfinished job if there is one.

    config: by default `next_config`. last_known_id: the newest training job that the requester knows of; a newer one is
    returned, even if it has ended. then_run: "config" and "name" of a run that is queued with the new reward model.
    """
    payload = training_payload(db, project_id, source, config or next_config(db, project_id, source))
    payload |= {THEN_RUN: dict(then_run)} if then_run else {}
    return queue.submit_once(db, JobKind.TRAIN_REWARD, project_id, payload, last_known_id)


def next_config(
    db: Database, project_id: int, source: Source, settings: Mapping[str, Any] | None = None
) -> RewardConfig:
    """The config of the next reward model: `settings`; it ignores the attributes of `chosen_attributes`, unless `settings` say
    otherwise."""
    config = _newest_config(db, project_id, source) or {}
    return RewardConfig.from_dict({name: config[name] for name in ATTRIBUTES if name in config} | dict(settings or {}))


def chosen_attributes(db: Database, project_id: int, source: Source) -> tuple[str, ...] | None:
    """The attributes of texts that scores from labels of a source ignore; None before the first reward model, with which people
    choose them."""
    config = _newest_config(db, project_id, source)
    return None if config is None else ignored_in(config)


def _newest_config(db: Database, project_id: int, source: Source) -> dict[str, Any] | None:
    """Of the reward model that is being trained on labels of a source, else of the newest one; None without any."""
    open_jobs = queue.jobs(
        db, project_id=project_id, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES, limit=1
    )
    if open_jobs and open_jobs[0].payload["source"] == source.value:
        return dict(open_jobs[0].payload["config"])
    newest = newest_listed(db, project_id, source)
    return None if newest is None else newest.config


def training_payload(db: Database, project_id: int, source: Source, config: RewardConfig) -> dict[str, Any]:
    """The payload of a TRAIN_REWARD job. Its number of labels says whether there are new ones when it failed."""
    counts = vote_counts(db, project_id)[source]
    return {"source": source.value, "config": config.to_dict(), "labels": label_count(counts)}


def training_status(db: Database, project_id: int) -> str:
    """A text about a reward model that is being trained, is queued or is due; "" if there is none."""
    training = open_training(db, project_id)
    return (
        "" if training is None else f"A reward model from {_label_origin(db, project_id, training[0])} {training[1]}."
    )


def open_training(db: Database, project_id: int) -> tuple[Source, str] | None:
    """Whose labels a reward model is trained on that is being trained, is queued or is due, and what it does, such as "is being
    trained"; None if there is none."""
    open_jobs = queue.jobs(
        db, project_id=project_id, kinds=[JobKind.TRAIN_REWARD], statuses=UNFINISHED_JOB_STATUSES, limit=1
    )
    if not open_jobs:
        due_sources = [source for source in Source if is_retraining_due(db, project_id, source)]
        return (due_sources[0], "is due and starts automatically") if due_sources else None
    job, source = open_jobs[0], Source(open_jobs[0].payload["source"])
    if job.status is JobStatus.RUNNING:
        return source, "is being trained"
    earlier_runs = [
        run_job
        for run_job in queue.jobs(db, kinds=[JobKind.TRAIN_POLICY], statuses=UNFINISHED_JOB_STATUSES)
        if run_job.status is JobStatus.RUNNING or (run_job.project_id == project_id and run_job.id < job.id)
    ]
    if not earlier_runs:
        return source, "waits for the engine"
    run_id, other_id = earlier_runs[0].payload["run_id"], earlier_runs[0].project_id
    elsewhere = "" if other_id in (None, project_id) else f' of "{get_project(db, other_id).name}"'
    return source, f"waits until run {run_id}{elsewhere} has ended"


def _label_origin(db: Database, project_id: int, source: Source) -> str:
    if source is Source.HUMAN:
        return "people's labels"
    names = ", ".join(sorted({judge_name_of(name) for name in voters(db, project_id, source)}))
    return f"labels simulated by {names}" if names else "simulated labels"
