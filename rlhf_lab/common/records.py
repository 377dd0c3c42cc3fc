"""Typed records: what crosses a layer boundary. Of ours they import only the kinds."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rlhf_lab.common.enums import Choice, EngineState, EventKind, JobKind, JobStatus, RunStatus, Source, Strength


@dataclass(frozen=True)
class Project:
    id: int
    name: str
    model: str
    model_hash: str
    prompt_set: str
    seed: int
    created_at: float
    opened_at: float | None = None


@dataclass(frozen=True)
class Prompt:
    """split is "train" or "eval": the reward model and the policy never see eval prompts."""

    id: int
    project_id: int
    text: str
    split: str


@dataclass(frozen=True)
class NewCompletion:
    """A sampled text before it has a row. token_ids are the sampled ids with EOS, never re-encoded from the text."""

    prompt_id: int
    text: str
    token_ids: tuple[int, ...]
    checkpoint: str
    seed: int


@dataclass(frozen=True)
class Completion(NewCompletion):
    id: int = 0


@dataclass(frozen=True)
class Pair:
    """Two completions of one prompt. `reason` says why they were put side by side (random, shipped, uncertainty: gap …)."""

    id: int
    project_id: int
    prompt: Prompt
    first: Completion
    second: Completion
    reason: str


@dataclass(frozen=True)
class Vote:
    """One answer. `uuid` is made by the client, so that a repeated request records once.

    first_on_left: which completion stood on the left. response_ms: None where no clock ran (a judge).
    repeat: a second look at a pair the same person had judged: it tells how consistent they are and is no label.
    via: the door it came through: "page", "api" … import_id: which import brought it; None where somebody voted here.
    """

    uuid: str
    pair_id: int
    annotator: str
    source: Source
    choice: Choice
    first_on_left: bool
    response_ms: int | None = None
    created_at: float = 0.0
    undone_at: float | None = None
    id: int = 0
    strength: Strength | None = None
    note: str = ""
    repeat: bool = False
    via: str = "page"
    import_id: int | None = None


@dataclass(frozen=True)
class Person:
    """Somebody who entered with the join code. Their name is their annotator name and nobody else's."""

    id: int
    name: str
    joined_at: float


@dataclass(frozen=True)
class Lease:
    """A pair that is kept for one person until expires_at. repeat: they judged it before and see its sides swapped."""

    pair: Pair
    annotator: str
    repeat: bool
    expires_at: float


@dataclass(frozen=True)
class AnnotatorActivity:
    """What a person did. repeated, same: pairs judged twice, and alike; shared, agreed: decisions others made too, and alike."""

    annotator: str
    labels: int
    repeated: int
    same: int
    shared: int
    agreed: int


class Role(StrEnum):
    """What a visitor may do; each may do what those before it may."""

    VIEWER = "viewer"
    LABELLER = "labeller"
    OPERATOR = "operator"

    def at_least(self, required: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(required)


@dataclass(frozen=True)
class Comparison:
    """One label as the reward trainer sees it. group is the prompt id: cross-validation folds never split a group.

    margin: how far apart the two scores should be; strength adds RewardConfig.margin for each step of surer than "slightly".
    count: how often it counts in the training, the weight of whoever said it.
    """

    prompt: str
    chosen: str
    rejected: str
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    tie: bool = False
    margin: float = 0.0
    group: int = 0
    strength: float = 0.0
    count: int = 1


@dataclass(frozen=True)
class LabelSnapshot:
    """The labels a reward model was trained on, pinned: vote ids in order, and a hash of what they said."""

    vote_ids: tuple[int, ...]
    digest: str
    source: Source


@dataclass(frozen=True)
class RewardModelRow:
    id: int
    project_id: int
    path: str
    config: dict[str, Any]
    report: dict[str, Any]
    snapshot: LabelSnapshot
    created_at: float


@dataclass(frozen=True)
class RewardPredictionStats:
    """How many votes the reward model of their day had foreseen, of those it could; low, high: 95 % Wilson interval.

    chosen_…: the same of votes on pairs that were picked for what they teach (`labelling.is_actively_selected`), counted apart.
    """

    right: int
    decided: int
    low: float
    high: float
    chosen_right: int = 0
    chosen_decided: int = 0


@dataclass(frozen=True)
class Run:
    id: int
    project_id: int
    reward_model_id: int
    name: str
    status: RunStatus
    config: dict[str, Any]
    manifest: dict[str, Any]
    step: int
    total_steps: int
    message: str
    created_at: float
    updated_at: float


@dataclass(frozen=True)
class RunEvent:
    """A control or a knob change. applied_step is None until the engine has acted on it."""

    id: int
    run_id: int
    kind: EventKind
    payload: dict[str, Any]
    created_at: float
    applied_step: int | None


@dataclass(frozen=True)
class Job:
    """`result` is what is known so far while the job runs, and its answer when it is done."""

    id: int
    kind: JobKind
    status: JobStatus
    project_id: int | None
    payload: dict[str, Any]
    result: dict[str, Any] | None
    error: str
    progress: float
    eta_s: float | None
    created_at: float
    updated_at: float
    engine_id: int | None = None
    attempts: int = 0  # interruptions in a row without progress


@dataclass(frozen=True)
class BlindTest:
    """Texts that two jobs wrote to the same prompts."""

    id: int
    project_id: int
    first_job: int
    second_job: int
    created_at: float


@dataclass(frozen=True)
class ProcessIdentity:
    """One process and no other: a pid alone may be recycled, so it goes with the time the process started (psutil).

    boot: which start of which kernel it runs on, where that is known; a container that is made anew has another host name, but
    the same kernel.
    """

    host: str
    pid: int
    process_started: float
    boot: str = field(default="", compare=False)


@dataclass(frozen=True)
class EngineRow:
    """One engine process. beat_at is None until it has spoken, stopped_at until it has ended in an orderly way."""

    id: int
    process: ProcessIdentity
    started_at: float
    beat_at: float | None
    stopped_at: float | None
    state: str
    device: str
    memory_mb: float | None  # in MiB


@dataclass(frozen=True)
class EngineStatus:
    """What is known of the engine now; `row` is the process that `state` speaks about (None: there never was one)."""

    state: EngineState
    row: EngineRow | None


@dataclass(frozen=True)
class TokenRecord:
    """Everything that was computed about the tokens of one rollout row; every list is as long as token_ids.

    tokens: their texts, which joined are the response. logprob, ratio: after the step's updates; all else is as the updates
    were told. What has a default is not in records of older versions.

    raw_advantage: before whitening, which took `centre` from it and divided it by `spread` (None: not whitened). target: what
    the values learnt, empty without values. score: the reward model's; earned: what the response was rewarded with. after: what
    the state behind the last token counted as.
    """

    row: int
    prompt: str
    token_ids: list[int]
    tokens: list[str]
    logprob: list[float]
    old_logprob: list[float]
    ref_logprob: list[float]
    kl: list[float]
    value: list[float]
    reward: list[float]
    advantage: list[float]
    ratio: list[float]
    clipped: list[bool]
    raw_advantage: list[float] = field(default_factory=list)
    target: list[float] = field(default_factory=list)
    score: float | None = None
    earned: float | None = None
    centre: float | None = None
    spread: float | None = None
    after: float = 0.0


@dataclass(frozen=True)
class Sample:
    """A generation for a fixed prompt and seed, so that steps can be compared. score is the reward model's."""

    prompt: str
    seed: int
    text: str
    score: float
    gold: float | None = None


@dataclass(frozen=True)
class StepResult:
    """One finished optimisation step. metrics use the names of docs/METRICS.md."""

    step: int
    metrics: dict[str, float]
    tokens: list[TokenRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
