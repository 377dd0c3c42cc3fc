"""What happens by itself while a page is open: pairs are written ahead, judges label, reward models are retrained.

`Steward.run` looks at the store every second and submits jobs; it does no work of its own and keeps nothing in memory that
matters, except what a judge still has to label.
"""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.checkpoints import newest, passed_over
from rlhf_lab.config import RewardConfig
from rlhf_lab.errors import LabError
from rlhf_lab.home import run_folder
from rlhf_lab.jobs import claims, queue, supervisor
from rlhf_lab.jobs.labelling import annotator_of, judge_of, label_with_judge
from rlhf_lab.jobs.setup import pick_project
from rlhf_lab.judges import shipped_judge
from rlhf_lab.kinds import OPEN, Choice, EngineState, JobKind, JobStatus, Source
from rlhf_lab.records import Job, Project
from rlhf_lab.store.comparisons import pool_size, still_live, vote_counts, voters
from rlhf_lab.store.database import Database
from rlhf_lab.store.labelling import labelling_of
from rlhf_lab.store.leases import free_pairs, holders
from rlhf_lab.store.projects import latest_annotators
from rlhf_lab.store.runs import latest_reward_model, runs

log = logging.getLogger("rlhf_lab.steward")

LOOK_EVERY_S = 1.0
RETRY_S = 30.0  # between two tries to write pairs, where the first failed (a model that cannot be loaded)
POOL = 24  # pairs kept ready for whoever labels
POOL_POLICY = 8  # of the newest checkpoint's pairs: the next checkpoint makes them old
PER_PERSON = 8  # more pairs for each further person who has one on screen
BATCH = 16  # pairs asked for at once: a batch is written in a few seconds
TRAIN_EVERY = 20  # labels from one reward model to the next
FIRST_AT = 10  # labels that the first one needs

_wanted: dict[tuple[int, str], int] = {}  # (project, judge) -> labels still asked for
_judging: list[int] = []  # projects that a judge is labelling at this moment
_lock = threading.Lock()


@dataclass(frozen=True)
class Labels:
    """The labels of a project (skips left out) and how far the next reward model is."""

    human: int
    simulated: int
    goal: int
    to_next: int
    newest_model: int


def labels(db: Database, project_id: int) -> Labels:
    counts = vote_counts(db, project_id)
    human, simulated = (sum(counts[source].values()) - counts[source][Choice.SKIP] for source in Source)
    goal = goal_of(db, project_id, Source.HUMAN)
    newest = latest_reward_model(db, project_id, Source.HUMAN)
    return Labels(human, simulated, goal, max(0, goal - human), 0 if newest is None else newest.id)


def ask_judge(db: Database, project_id: int, name: str, count: int) -> str:
    """Let a shipped judge label; what is not there yet it labels as soon as it is written. Returns what to tell the person.

    Raises ConfigError for an unknown judge.
    """
    judge = shipped_judge(name)
    count = min(max(count, 1), 1000)
    with _lock:
        _judging.append(project_id)
    try:
        said = sum(label_with_judge(db, project_id, judge, count).values())
        with _lock:
            if said < count:
                _wanted[project_id, name] = _wanted.get((project_id, name), 0) + count - said
    finally:
        with _lock:
            _judging.remove(project_id)
    if said < count:
        return (
            f"The judge {name} labelled {said} pairs (simulated) and goes on as the engine writes {count - said} more."
        )
    return f"The judge {name} labelled {said} pairs. They are marked as simulated and never mixed with yours."


def forget(project_id: int) -> None:
    """A project is gone; another one may get its number."""
    with _lock:
        for wanted in [key for key in _wanted if key[0] == project_id]:
            del _wanted[wanted]


class Steward:
    """A thread of the page's process."""

    def __init__(self, home: Path, db: Database) -> None:
        self.home, self.db = home, db
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="steward")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._end.wait(LOOK_EVERY_S):
            try:
                self.look()
            except LabError as error:
                log.warning("%s", error)
            except (
                Exception
            ):  # without this thread no pair is written and nothing learns until the page is started again
                log.exception("a look at what is due failed; the next one comes")

    def look(self) -> None:
        """One round: mark runs that lost their process, submit what is due, and see that an engine is there for what waits."""
        claims.mark_lost(self.db, self.home)
        project = pick_project(self.db, None)
        open_jobs = queue.jobs(self.db, statuses=OPEN)
        kinds = {job.kind for job in open_jobs if job.project_id == project.id}
        self._write_ahead(project, kinds)
        self._let_judges_label()
        self._retrain(project, kinds)
        if queue.jobs(self.db, statuses=OPEN, limit=1):
            supervisor.ensure_engine(self.db, self.home)

    def _write_ahead(self, project: Project, kinds: set[JobKind]) -> None:
        if JobKind.SAMPLE_PAIRS in kinds or failed_just_now(self.db, project.id, JobKind.SAMPLE_PAIRS):
            return
        rules = labelling_of(self.db, project.id)
        writer = newest_checkpoint(self.home, self.db, project.id) if rules.texts == "policy" else None
        who = latest_annotators(self.db, project.id, 8) or ["nobody yet"]
        ready = min(free_pairs(self.db, project.id, name, rules, checkpoint=writer) for name in who)
        wanted = POOL_POLICY if writer else POOL
        wanted += PER_PERSON * max(0, holders(self.db, project.id) - 1)
        with _lock:
            asked = max((n for (pid, _), n in _wanted.items() if pid == project.id), default=0)
        if not asked and ready >= wanted:
            return
        least = POOL_POLICY if writer else BATCH
        payload: dict[str, Any] = {"count": max(least, min(max(asked, wanted - ready), 64))}
        if rules.sampling != "random":
            payload["sampling"] = rules.sampling
        if writer:
            payload["checkpoint"] = writer
            _, run_id, step = writer.split("/")
            if note := passed_over(run_folder(self.home, int(run_id)), int(step)):
                log.warning("run %s: %s", run_id, note)
        queue.submit_once(self.db, JobKind.SAMPLE_PAIRS, project.id, payload)

    def _let_judges_label(self) -> None:
        with _lock:
            waiting = dict(_wanted)
        for (project_id, name), count in waiting.items():
            judge = shipped_judge(name)
            ready = pool_size(self.db, project_id, annotator_of(judge))
            said = sum(label_with_judge(self.db, project_id, judge, min(count, ready)).values()) if ready else 0
            with _lock:
                left = _wanted.get((project_id, name), 0) - said
                if left > 0:
                    _wanted[project_id, name] = left
                else:
                    _wanted.pop((project_id, name), None)

    def _retrain(self, project: Project, kinds: set[JobKind]) -> None:
        """Train on the labels of a source when enough are new; on a judge's when it has finished."""
        if JobKind.TRAIN_REWARD in kinds:
            return
        with _lock:
            judging = project.id in _judging or any(pid == project.id for pid, _ in _wanted)
        for source in Source:
            if due(self.db, project.id, source) and not (judging and source is Source.SIMULATED):
                submit_training(self.db, project.id, source)
                return


def newest_checkpoint(home: Path, db: Database, project_id: int) -> str | None:
    """The newest whole checkpoint of the project's newest run that has one, as "run/ID/STEP"; None where there is none."""
    found = ((run.id, newest(run_folder(home, run.id))) for run in runs(db, project_id)[:20])
    return next((f"run/{run_id}/{step}" for run_id, step in found if step is not None), None)


def failed_just_now(db: Database, project_id: int, kind: JobKind) -> bool:
    """Whether the last job of a kind failed less than RETRY_S ago: the same again would fail for the same reason."""
    last = queue.jobs(db, project_id=project_id, kinds=[kind], limit=1)
    return bool(last) and last[0].status is JobStatus.FAILED and time.time() - last[0].updated_at < RETRY_S


def why_no_pair(db: Database, project_id: int) -> str:
    """What to tell a person who has seen every pair: whether new ones are on their way, and if not, why."""
    last = queue.jobs(db, project_id=project_id, kinds=[JobKind.SAMPLE_PAIRS], limit=1)
    if last and last[0].status is JobStatus.FAILED:
        return (
            f"You have seen every pair, and new ones could not be written: {last[0].error} It is tried again by itself."
        )
    state = supervisor.engine_state(db).state
    if state not in (EngineState.ALIVE, EngineState.STARTING):
        return "You have seen every pair. The engine, which writes new ones, is not running; it is started again by itself …"
    return "You have seen every pair. The engine is writing new ones …"


def learning(db: Database, project_id: int) -> str:
    """The reward model that is being learnt, waits, or is due, and from whose labels, in words; "" where there is none."""
    found = queue.jobs(db, project_id=project_id, kinds=[JobKind.TRAIN_REWARD], statuses=OPEN, limit=1)
    if not found:
        late = [source for source in Source if due(db, project_id, source)]
        whose = _whose(db, project_id, late[0]) if late else ""
        return f"A reward model from {whose} is due and begins by itself." if late else ""
    job, whose = found[0], _whose(db, project_id, Source(found[0].payload["source"]))
    if job.status is JobStatus.RUNNING:
        return f"A reward model learns from {whose}."
    before = [run for run in queue.jobs(db, kinds=[JobKind.TRAIN_POLICY], statuses=OPEN) if run.id < job.id]
    what = f"until run {before[0].payload['run_id']} has ended" if before else "for the engine"
    return f"A reward model from {whose} waits {what}."


def _whose(db: Database, project_id: int, source: Source) -> str:
    if source is Source.HUMAN:
        return "people's labels"
    names = ", ".join(sorted({judge_of(name) for name in voters(db, project_id, source)}))
    return f"labels simulated by {names}" if names else "simulated labels"


def due(db: Database, project_id: int, source: Source) -> bool:
    """Whether the labels of a source have grown enough for the next reward model."""
    counts = vote_counts(db, project_id)[source]
    have = sum(counts.values()) - counts[Choice.SKIP]
    if have < goal_of(db, project_id, source) or counts[Choice.FIRST] + counts[Choice.SECOND] < 2:
        return False
    last = queue.jobs(db, project_id=project_id, kinds=[JobKind.TRAIN_REWARD], limit=1)
    return not (last and last[0].status is JobStatus.FAILED and last[0].payload.get("labels") == have)


def goal_of(db: Database, project_id: int, source: Source) -> int:
    """The number of labels at which the next reward model is trained: so many more than the newest one's that still count."""
    newest = latest_reward_model(db, project_id, source)
    return still_live(db, project_id, newest.snapshot) + TRAIN_EVERY if newest else FIRST_AT


def submit_training(db: Database, project_id: int, source: Source, config: RewardConfig | None = None) -> Job:
    """Ask the engine for a reward model on the labels of one source, unless one is asked for already."""
    counts = vote_counts(db, project_id)[source]
    have = sum(counts.values()) - counts[Choice.SKIP]
    payload = {"source": source.value, "config": (config or RewardConfig()).to_dict(), "labels": have}
    return queue.submit_once(db, JobKind.TRAIN_REWARD, project_id, payload)
