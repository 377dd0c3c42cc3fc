"""Enums and Literal types: labels, runs, jobs, engines, events, and variants of core functions."""

from enum import StrEnum
from typing import Literal

CreditAssignment = Literal["to_go", "total"]
Baseline = Literal["value", "batch_mean", "none"]
ValueTarget = Literal["gae", "monte_carlo"]
#: Estimators of the KL from the sampled tokens; "full" sums over the vocabulary.
KLEstimator = Literal["k1", "k2", "k3"]
AnyKLEstimator = Literal["k1", "k2", "k3", "full"]
EnsembleCombination = Literal["mean", "worst", "uncertainty"]
ScorePlacement = Literal["last", "spread"]
LossReduction = Literal["token_mean", "trajectory_mean", "trajectory_sum"]

#: Losses of direct preference optimization.
DirectLoss = Literal["sigmoid", "ipo"]


class Choice(StrEnum):
    """An annotator's choice in a pair. FIRST and SECOND are the pair's completions, not sides of the screen."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"
    BOTH_BAD = "both_bad"
    SKIP = "skip"


class Strength(StrEnum):
    """How much better the chosen side is, if the annotator stated it."""

    SLIGHTLY = "slightly"
    CLEARLY = "clearly"
    MUCH = "much"

    @property
    def level(self) -> int:
        """Number of levels above "slightly", as in `Comparison.strength`."""
        return list(Strength).index(self)


class Source(StrEnum):
    """Who gave a label. Labels of the two sources are never mixed: every query names the source."""

    HUMAN = "human"
    SIMULATED = "simulated"


#: votes.via of imported votes, for known and unknown sides of the two texts.
VIA_IMPORT = "import"
VIA_SIDES_UNKNOWN = "import unsided"


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


#: Runs with one of these statuses cannot be deleted.
ACTIVE_RUN_STATUSES = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED)


class JobKind(StrEnum):
    SAMPLE_PAIRS = "sample_pairs"
    TRAIN_REWARD = "train_reward"
    TRAIN_POLICY = "train_policy"
    COMPLETE = "complete"
    EXPLAIN = "explain"
    TOURNAMENT = "tournament"
    CHAT = "chat"
    MEASURE_LENGTH = "measure_length"


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: Jobs with one of these statuses have no final result yet.
UNFINISHED_JOB_STATUSES = (JobStatus.QUEUED, JobStatus.RUNNING)


class EngineState(StrEnum):
    """ABSENT: there is no engine, or it exited. DEAD: it crashed, or runs without a heartbeat."""

    ABSENT = "absent"
    STARTING = "starting"
    ALIVE = "alive"
    DEAD = "dead"


class EventKind(StrEnum):
    """Kinds of events of a run: controls by people; new heads of a live run and notes by the engine."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    SET = "set"
    SWITCH_REWARD = "switch_reward"
    HEAD = "head"
    NOTE = "note"


class Opponent(StrEnum):
    """Whose texts people compare with those of the policy in training."""

    BASE = "base"
    BEST = "best"  # an earlier checkpoint: the first, until people clearly prefer the policy to it; then the newest


class BrakeState(StrEnum):
    """What people's answers say about a run (core/sequential_test.py)."""

    PREFERRED = "preferred"  # people prefer the policy's texts to the base's
    UNKNOWN = "unknown"
    DECLINED = "declined"  # people prefer the texts of the base, or those of the earlier checkpoint
