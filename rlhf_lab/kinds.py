"""Closed sets of words: what a label, a run, a job, an engine or an event can be, what the core can do one way or another, and
the algorithms.
They import nothing of ours.
"""

from enum import StrEnum
from typing import Literal

#: What the core offers a choice of, by its name.
Credit = Literal["to_go", "total"]
Baseline = Literal["value", "batch_mean", "none"]
Target = Literal["gae", "monte_carlo"]
#: Estimators of the KL from the tokens that were sampled; "full" sums over the vocabulary.
Estimator = Literal["k1", "k2", "k3"]
AnyEstimator = Literal["k1", "k2", "k3", "full"]
Combination = Literal["mean", "worst", "uncertainty"]
Placement = Literal["last", "spread"]
Reduction = Literal["token_mean", "trajectory_mean", "trajectory_sum"]

Algorithm = Literal["ppo", "ppo_penalty", "trpo", "a2c", "reinforce", "rloo", "grpo"]
#: Algorithms that estimate advantages with a value function; REINFORCE may, as a baseline.
ACTOR_CRITIC = ("ppo", "ppo_penalty", "trpo", "a2c")
VALUES = (*ACTOR_CRITIC, "reinforce")
#: Algorithms with a probability ratio, which may pass over the same rollouts several times.
RATIO = ("ppo", "ppo_penalty", "grpo")
#: Algorithms that learn from a rollout once, since they have no ratio.
ON_POLICY = ("a2c", "reinforce", "rloo")
#: Algorithms that compare samples of one prompt with each other.
GROUPED = ("rloo", "grpo")
#: Algorithms that clip the probability ratio.
CLIPPED = ("ppo", "grpo")
#: Algorithms that follow the gradient of a loss; trpo takes a natural step.
FIRST_ORDER = ("ppo", "ppo_penalty", "a2c", "reinforce", "rloo", "grpo")


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
    def steps(self) -> int:
        """Steps of surer than "slightly": what `Comparison.strength` counts."""
        return list(Strength).index(self)


class Source(StrEnum):
    """Who made a label. The two never mix silently: every query names the source it wants."""

    HUMAN = "human"
    SIMULATED = "simulated"


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


#: A run that goes on, or will: nothing of it may be deleted.
GOING = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.PAUSED)


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
OPEN = (JobStatus.QUEUED, JobStatus.RUNNING)


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
