"""Closed sets of words: what a label, a run, a job, an engine or an event can be, what the core can do one way or another, and
the algorithms.
They import nothing of ours.
"""

from enum import StrEnum
from typing import Literal

#: What the core offers a choice of, by its name.
CreditAssignment = Literal["to_go", "total"]
Baseline = Literal["value", "batch_mean", "none"]
ValueTarget = Literal["gae", "monte_carlo"]
#: Estimators of the KL from the tokens that were sampled; "full" sums over the vocabulary.
KLEstimator = Literal["k1", "k2", "k3"]
AnyKLEstimator = Literal["k1", "k2", "k3", "full"]
EnsembleCombination = Literal["mean", "worst", "uncertainty"]
ScorePlacement = Literal["last", "spread"]
LossReduction = Literal["token_mean", "trajectory_mean", "trajectory_sum"]

Algorithm = Literal["ppo", "ppo_penalty", "trpo", "a2c", "reinforce", "rloo", "grpo"]
#: Algorithms that estimate advantages with a value function; REINFORCE may, as a baseline.
ACTOR_CRITIC_ALGORITHMS = ("ppo", "ppo_penalty", "trpo", "a2c")
VALUE_ALGORITHMS = (*ACTOR_CRITIC_ALGORITHMS, "reinforce")
#: Algorithms with a probability ratio, which may pass over the same rollouts several times.
RATIO_ALGORITHMS = ("ppo", "ppo_penalty", "grpo")
#: Algorithms that learn from a rollout once, since they have no ratio.
SINGLE_PASS_ALGORITHMS = ("a2c", "reinforce", "rloo")
#: Algorithms that compare samples of one prompt with each other.
GROUP_ALGORITHMS = ("rloo", "grpo")
#: Algorithms that clip the probability ratio.
CLIPPED_ALGORITHMS = ("ppo", "grpo")
#: Algorithms that follow the gradient of a loss; trpo takes a natural step.
FIRST_ORDER_ALGORITHMS = ("ppo", "ppo_penalty", "a2c", "reinforce", "rloo", "grpo")


class Choice(StrEnum):
    """What an annotator said about a pair. FIRST and SECOND name the pair's completions, not sides of the screen."""

    FIRST = "first"
    SECOND = "second"
    TIE = "tie"
    BOTH_BAD = "both_bad"
    SKIP = "skip"


class Strength(StrEnum):
    """How much better the chosen side is, where the annotator said so."""

    SLIGHTLY = "slightly"
    CLEARLY = "clearly"
    MUCH = "much"

    @property
    def level(self) -> int:
        """Steps of surer than "slightly": what `Comparison.strength` counts."""
        return list(Strength).index(self)


class Source(StrEnum):
    """Who made a label. The two never mix silently: every query names the source it wants."""

    HUMAN = "human"
    SIMULATED = "simulated"


#: votes.via of imported votes: the sides of the two texts are known, or unknown.
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


#: A run that goes on, or will: nothing of it may be deleted.
ACTIVE_RUN_STATUSES = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED)


class JobKind(StrEnum):
    SAMPLE_PAIRS = "sample_pairs"
    TRAIN_REWARD = "train_reward"
    TRAIN_POLICY = "train_policy"
    COMPLETE = "complete"
    EXPLAIN = "explain"


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: A job that is not over.
UNFINISHED_JOB_STATUSES = (JobStatus.QUEUED, JobStatus.RUNNING)


class EngineState(StrEnum):
    """ABSENT: none, or ended in an orderly way. DEAD: it vanished, or it is there and silent."""

    ABSENT = "absent"
    STARTING = "starting"
    ALIVE = "alive"
    DEAD = "dead"


class EventKind(StrEnum):
    """What a person may tell a running run; and what the engine notes about it."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    SET = "set"
    SWITCH_REWARD = "switch_reward"
    NOTE = "note"
