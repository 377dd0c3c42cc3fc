"""Every error that this project raises on purpose. The message says what happened, why, and what to do.

LabError
├── ConfigError               a setting out of its range, an unknown name
├── ModelError                a model folder or Hub id that cannot be used
│   └── TemplateLimitError    its chat template needs too much time or memory
├── LabelError                too few labels, all ties, a malformed vote
│   └── StaleVoteError        a vote for a pair that is not (or no longer) open to this annotator
├── DataError                 a file or data set that cannot be imported or exported
├── StoreError                the database or the home cannot be read or written
│   ├── NotFoundError         a row that does not exist (any more)
│   ├── BusyStoreError        another process wrote to the database for too long; try again
│   ├── CorruptStoreError     the database file is damaged; it was renamed, never overwritten
│   └── LostStoreError        the database file was deleted or replaced while it was open
├── MirrorError               the lab cannot be saved to the Hub, or restored from it
│   ├── HubUnavailableError   the Hub does not answer or limits the rate; try again
│   └── MirrorConflictError   the repository holds another lab, or another lab writes to it
├── TrackerError              a tracker such as wandb fails
├── TrainingError             training cannot continue
│   ├── NotFiniteError        a NaN or infinity appeared
│   ├── RewardTermError       a reward function failed, gave no number or took too long
│   └── SelfCheckError        an invariant of the algorithm does not hold on this machine
├── EngineError               the engine is missing, dead, or a second one was started
│   └── ClaimedError          another process writes the run
└── NotAllowedError           only the operator may do this
"""


class LabError(Exception):
    pass


class ConfigError(LabError):
    pass


class ModelError(LabError):
    pass


class TemplateLimitError(ModelError):
    pass


class LabelError(LabError):
    pass


class StaleVoteError(LabelError):
    pass


class DataError(LabError):
    pass


class StoreError(LabError):
    pass


class NotFoundError(StoreError):
    pass


class BusyStoreError(StoreError):
    pass


class CorruptStoreError(StoreError):
    """reason: what SQLite reports, without the path of the file."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class LostStoreError(StoreError):
    pass


class MirrorError(LabError):
    pass


class HubUnavailableError(MirrorError):
    """retry_after_s: the least time that the Hub asks to wait, in seconds."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class MirrorConflictError(MirrorError):
    pass


class TrackerError(LabError):
    pass


class TrainingError(LabError):
    pass


class NotFiniteError(TrainingError):
    pass


class SelfCheckError(TrainingError):
    pass


class RewardTermError(TrainingError):
    pass


class EngineError(LabError):
    pass


class ClaimedError(EngineError):
    pass


class NotAllowedError(LabError):
    pass
