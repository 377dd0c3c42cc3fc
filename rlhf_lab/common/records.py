"""Records that are passed between packages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from rlhf_lab.common.enums import Choice, EngineState, EventKind, JobKind, JobStatus, RunStatus, Source, Strength


@dataclass(frozen=True)
class ChatSettings:
    """Additions to all prompts of a project, in pairs, rollouts, comparisons and evaluation.

    system_prompt: "" for none; it does not replace the system message of a conversation that has one. template_arguments: further
    variables of the chat template, such as enable_thinking.
    """

    system_prompt: str = ""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)


NO_CHAT_SETTINGS = ChatSettings()
DEFAULT_MAX_NEW_TOKENS = 64  # of a project and of a run


@dataclass(frozen=True)
class Project:
    """temperature, max_new_tokens: of pairs, reference samples, rollouts, comparisons and evaluation.

    system_prompt, template_arguments: see `ChatSettings`. They never change once there is a reward model or a run, which belong
    to them; before that, the system prompt changes if a measured proposal is accepted (jobs/answer_length.py).
    """

    id: int
    name: str
    model: str
    model_hash: str
    prompt_set: str
    seed: int
    created_at: float
    opened_at: float | None = None
    temperature: float = 1.0
    system_prompt: str = ""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS

    @property
    def chat_settings(self) -> ChatSettings:
        return ChatSettings(self.system_prompt, self.template_arguments)


@dataclass(frozen=True)
class Prompt:
    """split: "train" or "eval". The reward model and the policy are never trained on eval prompts."""

    id: int
    project_id: int
    text: str
    split: str


@dataclass(frozen=True)
class NewCompletion:
    """A sampled text that is not stored yet. token_ids: the sampled ids with EOS, never re-encoded from the text."""

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
    """Two completions of one prompt. reason: how the pair was selected (random, shipped, uncertainty: gap …)."""

    id: int
    project_id: int
    prompt: Prompt
    first: Completion
    second: Completion
    reason: str


@dataclass(frozen=True)
class Vote:
    """One answer of an annotator.

    uuid: created by the client, so that a repeated request is stored only once. first_on_left: whether the first completion was
    shown on the left. response_ms: None for judges. repeat: a second vote of the same person on a pair, which measures
    consistency and is not a label. via: "page", "api" … import_id: None for votes cast in this lab. adjudication: an expert's
    decision on a disputed pair. taken_out: undone by the operator.
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
    adjudication: bool = False
    taken_out: bool = False


@dataclass(frozen=True)
class Person:
    """A person who entered with the join code or an account. name: their annotator name, unique."""

    id: int
    name: str
    joined_at: float


@dataclass(frozen=True)
class Lease:
    """A pair reserved for one person until expires_at.

    repeat: they have voted on it before and see its sides swapped. adjudication: they decide it as an expert.
    """

    pair: Pair
    annotator: str
    repeat: bool
    expires_at: float
    adjudication: bool = False


@dataclass(frozen=True)
class AnnotatorActivity:
    """Numbers of a person's votes.

    repeated: hidden repeats. same: hidden repeats with the same choice as the first vote. shared: comparisons with other people's
    votes on the same pair. agreed: comparisons with equal choices.
    """

    annotator: str
    labels: int
    repeated: int
    same: int
    shared: int
    agreed: int


class Role(StrEnum):
    """What a visitor may do; each role includes those before it."""

    VIEWER = "viewer"
    LABELLER = "labeller"
    OPERATOR = "operator"

    def at_least(self, required: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(required)


@dataclass(frozen=True)
class Comparison:
    """One label for the reward trainer.

    group: labels of one group are held out together: the prompt id, in trainings the group of `label_groups`. margin: target
    difference of the two scores. strength: number of levels above "slightly"; each adds RewardConfig.margin to the margin. count:
    how often the label is counted, according to the weight of its annotator. weight: factor of its loss, from 0 to 1. is_edit:
    whether a person wrote the chosen text as an edit of the other one.
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
    weight: float = 1.0
    is_edit: bool = False


@dataclass(frozen=True)
class LabelSnapshot:
    """The labels of a reward model or a run: vote ids in order, and a digest of their choices, texts and weights.

    weights: of the votes, in the same order; empty if all are 1.
    """

    vote_ids: tuple[int, ...]
    digest: str
    source: Source
    weights: tuple[float, ...] = ()

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "LabelSnapshot":
        """The snapshot from the result of `dataclasses.asdict`, before or after conversion to JSON."""
        weights = tuple(map(float, record.get("weights", ())))
        return cls(tuple(record["vote_ids"]), str(record["digest"]), Source(record["source"]), weights)


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
    """How many of the `decided` votes were predicted correctly (`right`; equal scores count half). low, high: 95 % interval of
    the fraction, clustered by pair.

    chosen_…: the same for votes on actively selected pairs (`config.labelling.is_actively_selected`), counted separately.
    """

    right: float
    decided: int
    low: float
    high: float
    chosen_right: float = 0.0
    chosen_decided: int = 0


@dataclass(frozen=True)
class Run:
    id: int
    project_id: int
    reward_model_id: int | None
    name: str
    status: RunStatus
    config: dict[str, Any]
    manifest: dict[str, Any]
    step: int
    total_steps: int
    message: str
    created_at: float
    updated_at: float

    @property
    def outside_file(self) -> str:
        """The file that its metrics are from, if it was made elsewhere; "" for a run of the lab."""
        return str((self.manifest.get(MADE_ELSEWHERE) or {}).get("file", ""))


@dataclass(frozen=True)
class RunEvent:
    """A control or a changed setting. applied_step: None until the engine has applied it."""

    id: int
    run_id: int
    kind: EventKind
    payload: dict[str, Any]
    created_at: float
    applied_step: int | None


#: Key in the payload of a job for the person who requested it; only they may read and cancel it.
REQUESTER_KEY = "requested_by"
#: Key in the manifest of a run that was made elsewhere, for the file and the SHA-256 of its metrics. It has nothing else.
MADE_ELSEWHERE = "made_elsewhere"
#: Key in the manifest of a run that a visitor started in demo mode.
VISITOR_RUN = "visitor"
TRACKER_KEY = "tracker"  # in the manifest of a run that is logged to one (jobs/run_tracking.py)


@dataclass(frozen=True)
class Job:
    """result: partial while the job runs, final when it is done."""

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
    """A comparison of the texts that two jobs sampled for the same prompts."""

    id: int
    project_id: int
    first_job: int
    second_job: int
    created_at: float


@dataclass(frozen=True)
class Tournament:
    """A comparison of up to eight models on the same prompts, whose texts one job samples."""

    id: int
    project_id: int
    job_id: int
    created_at: float


class PairKey(NamedTuple):
    """A pair of a tournament: the indices of its prompt and of two contestants, first < second."""

    position: int
    first: int
    second: int


@dataclass(frozen=True)
class TournamentAnswer:
    """A person's answer to a pair of a tournament; choice: None while the pair is on their screen."""

    annotator: str
    position: int
    first: int
    second: int
    choice: Choice | None
    created_at: float

    @property
    def key(self) -> PairKey:
        return PairKey(self.position, self.first, self.second)


@dataclass(frozen=True)
class ProcessIdentity:
    """Identifies one process: pids are reused, so it includes the start time (psutil).

    boot: the kernel's boot id, "" if unknown. A recreated container has another host name but the same boot id.
    """

    host: str
    pid: int
    process_started: float
    boot: str = field(default="", compare=False)


@dataclass(frozen=True)
class EngineRow:
    """One engine process. beat_at: None before its first heartbeat; stopped_at: None unless it exited."""

    id: int
    process: ProcessIdentity
    started_at: float
    beat_at: float | None
    stopped_at: float | None
    state: str
    device: str
    memory_mib: float | None


@dataclass(frozen=True)
class EngineStatus:
    """The current state of the engine.

    row: the process in that state; None if there never was one. failed_starts: how many engines in a row have ended while
    loading, not counting one that is loading now.
    """

    state: EngineState
    row: EngineRow | None
    failed_starts: int = 0


@dataclass(frozen=True)
class TokenRecord:
    """All values computed for the tokens of one rollout row. Every list but prompt_ids has the length of token_ids.

    tokens: the text of each token; joined, they are the response. logprob and ratio are those after the updates of the step; all
    other values are those used by the updates. Fields with a default are missing in records of older versions.

    raw_advantage: before whitening, which subtracts advantage_mean and divides by advantage_sd (None: not whitened). target: of
    the value function; empty without one. score: of the reward model. shaped_score: the reward of the response, without the KL,
    after scaling, limit and penalties. bootstrap_value: the value used for the state after the last token.
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
    shaped_score: float | None = None
    advantage_mean: float | None = None
    advantage_sd: float | None = None
    bootstrap_value: float = 0.0
    prompt_ids: list[int] = field(default_factory=list)

    @classmethod
    def from_stored(cls, record: Mapping[str, Any]) -> "TokenRecord":
        """The record from the result of `dataclasses.asdict`, also of versions in which fields had other names."""
        return cls(**{_FORMER_TOKEN_FIELDS.get(name, name): value for name, value in record.items()})


#: Names of fields of `TokenRecord` in records of versions up to 0.2.0.
_FORMER_TOKEN_FIELDS = {
    "earned": "shaped_score", "centre": "advantage_mean", "spread": "advantage_sd", "after": "bootstrap_value",
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A response to a fixed prompt with a fixed seed, so that steps can be compared.

    score: the run's reward, NaN for a run without one. gold: the score of a judge. cut: `cut_length` of the response.
    """

    prompt: str
    seed: int
    text: str
    score: float
    gold: float | None = None
    cut: int | None = None


@dataclass(frozen=True)
class StepResult:
    """The result of one optimisation step. metrics: by the names in docs/METRICS.md."""

    step: int
    metrics: dict[str, float]
    tokens: list[TokenRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
