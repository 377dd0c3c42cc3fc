"""What the engine is doing now, in words."""

from collections.abc import Collection

from rlhf_lab.common.enums import EngineState, JobKind, JobStatus, RunStatus
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.engine_process import engine_state
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import get_run

JOB_LABELS = {
    JobKind.SAMPLE_PAIRS: "writing pairs",
    JobKind.TRAIN_REWARD: "training the reward model",
    JobKind.TRAIN_POLICY: "training a run",
    JobKind.COMPLETE: "writing texts",
    JobKind.EXPLAIN: "reading a text",
    JobKind.CHAT: "answering",
    JobKind.TOURNAMENT: "writing for a tournament",
    JobKind.MEASURE_LENGTH: "measuring how long answers are",
}
#: They take seconds, so nothing else takes noticeably longer for them.
SHORT_KINDS = (JobKind.EXPLAIN, JobKind.CHAT)


def work_text(db: Database, *, without: Collection[JobKind] = ()) -> str:
    """What the engine does for anybody, such as "training run 3"; "" for nothing that lasts. without: kinds that do not count."""
    kinds = [kind for kind in JobKind if kind not in (*SHORT_KINDS, *without)]
    running = queue.jobs(db, kinds=kinds, statuses=[JobStatus.RUNNING])
    if not running or engine_state(db).state is not EngineState.ALIVE:
        return ""
    job = min(running, key=lambda job: job.id)  # later ones run in its pauses
    if job.kind is not JobKind.TRAIN_POLICY:
        return JOB_LABELS[job.kind]
    try:
        run = get_run(db, int(job.payload["run_id"]))
    except StoreError:  # deleted in between
        return ""
    return f"waiting in run {run.id}, which is paused" if run.status is RunStatus.PAUSED else f"training run {run.id}"
