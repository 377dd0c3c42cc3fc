"""How long a project's texts must be so that most of them end: the table of a measurement, its proposal, and accepting it.

The engine samples once at the longest limit (engine/length_measurement.py): a text of n tokens that ended is complete at every
limit from n on. No torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import TypedDict

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus
from rlhf_lab.common.records import Job, Project
from rlhf_lab.common.stats import wilson_interval
from rlhf_lab.common.text import cut_length, pluralize
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.model_inspection import stop_token_ids
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project, newest_pairs, replace_unlabelled_pairs, set_answer_settings
from rlhf_lab.store.reward_models import count_reward_models
from rlhf_lab.store.runs import runs

CANDIDATES = (48, 64, 96, 128, 192, 256)
INSTRUCTION = "Answer in one sentence."
TARGET_SHARE = 0.9
#: The instruction is proposed only if the texts without it cost more than this many times as much.
MAX_COST_WITHOUT_INSTRUCTION = 1.25
#: A new project is measured if at least this share of its first texts was cut off.
MIN_CUT_SHARE = 0.1
MIN_FIRST_PAIRS = 8


@dataclass(frozen=True)
class LengthRow:
    """Texts at one limit. mean_tokens: of all texts, cut ones included. seconds: for a pair, sampled in a batch."""

    adds_instruction: bool
    max_new_tokens: int
    complete: int
    texts: int
    low: float
    high: float
    mean_tokens: float
    seconds: float

    @property
    def share(self) -> float:
        return self.complete / self.texts


class LengthView(TypedDict):
    """A measurement for the page, without rows while the engine is measuring.

    proposal: None if no setting reaches the target. is_new: whether the project does not have the proposed setting yet and may
    still get it.
    """

    is_measuring: bool
    failure: str
    note: str
    instruction: str
    texts: int
    rows: list[LengthRow]
    proposal: LengthRow | None
    is_new: bool


def length_rows(
    lengths: Sequence[int | None], seconds_at: Mapping[int, float], *, adds_instruction: bool
) -> list[LengthRow]:
    """A row for each limit in seconds_at. lengths: of the texts in tokens; None for one that did not end at the longest limit.

    seconds_at: limit -> seconds until every text had ended or had this many tokens.
    """
    rows = []
    for limit, seconds in seconds_at.items():
        complete = sum(length is not None and length <= limit for length in lengths)
        tokens = sum(limit if length is None else min(length, limit) for length in lengths)
        interval = wilson_interval(complete, len(lengths))
        rows.append(
            LengthRow(
                adds_instruction, limit, complete, len(lengths), *interval, tokens / len(lengths),
                2 * seconds / len(lengths),
            )
        )  # fmt: skip
    return rows


def propose(rows: Sequence[LengthRow]) -> LengthRow | None:
    """The shortest limit with 90 % complete texts; None if there is none. Without the instruction if that costs little more."""
    plain, instructed = (
        min(
            (row for row in rows if row.adds_instruction is adds and row.share >= TARGET_SHARE),
            key=lambda row: row.max_new_tokens,
            default=None,
        )
        for adds in (False, True)
    )
    if plain is None or instructed is None:
        return plain or instructed
    return plain if plain.seconds <= MAX_COST_WITHOUT_INSTRUCTION * instructed.seconds else instructed


def with_instruction(system_prompt: str) -> str:
    """The system prompt with the instruction at its end."""
    return f"{system_prompt} {INSTRUCTION}".strip()


def measurement_job(db: Database, project_id: int) -> Job | None:
    """The newest measurement of a project, in any state."""
    return next(iter(queue.jobs(db, project_id=project_id, kinds=[JobKind.MEASURE_LENGTH], limit=1)), None)


def measured_rows(result: Mapping[str, Any]) -> list[LengthRow]:
    """The rows in the result of a measurement."""
    return [LengthRow(**row) for row in result["rows"]]


def lacks_measurement(db: Database, project: Project) -> bool | None:
    """Whether a new project should be measured; None if that cannot be said before more pairs are sampled.

    Not if it has a reward model or a run, which belong to its texts, nor if nearly all of its first texts ended. Pairs of
    "teaching" were chosen among more texts because they ended, so they cannot tell.
    """
    if measurement_job(db, project.id) is not None or count_reward_models(db, project.id) or runs(db, project.id):
        return False
    pairs = newest_pairs(db, project.id, MIN_FIRST_PAIRS)
    texts = [text for pair in pairs for text in (pair.first, pair.second) if text.token_ids]
    if len(texts) < 2 * MIN_FIRST_PAIRS:
        return None
    if any(pair.reason.startswith("teaching") for pair in pairs):
        return True
    stop_ids = stop_token_ids(project.model)
    cut_count = sum(cut_length(text.token_ids, stop_ids) is not None for text in texts)
    return cut_count >= MIN_CUT_SHARE * len(texts)


def length_view(db: Database, project: Project) -> LengthView | None:
    """The measurement of a project for the page; None if there is none."""
    job = measurement_job(db, project.id)
    if job is None or job.status is JobStatus.CANCELLED:
        return None
    if job.status in UNFINISHED_JOB_STATUSES or job.result is None:
        failure = job.error if job.status is JobStatus.FAILED else ""
        return {
            "is_measuring": not failure, "failure": failure, "note": "", "instruction": INSTRUCTION, "texts": 0, "rows": [],
            "proposal": None, "is_new": False,
        }  # fmt: skip
    rows = measured_rows(job.result)
    proposal = propose(rows)
    is_used = (
        proposal is not None
        and project.max_new_tokens == proposal.max_new_tokens
        and project.system_prompt == _system_prompt(job.result, proposal)
    )
    return {
        "is_measuring": False, "failure": "", "note": job.result["note"], "instruction": INSTRUCTION, "texts": rows[0].texts,
        "rows": rows, "proposal": proposal,
        "is_new": proposal is not None and not is_used and not _settled_by(db, project.id),
    }  # fmt: skip


def length_note(db: Database, project: Project) -> str:
    """A sentence for the operator while many texts of the project's present settings are cut off and a measured proposal waits
    for a decision; "" otherwise, also if these settings were not measured."""
    view, job = length_view(db, project), measurement_job(db, project.id)
    proposed = view and view["proposal"]
    if not view or not proposed or not view["is_new"] or job is None or job.result is None:
        return ""
    measured = [row for row in view["rows"] if project.system_prompt == _system_prompt(job.result, row)]
    shares = [row.share for row in measured if row.max_new_tokens <= project.max_new_tokens]
    if not measured or max(shares, default=0.0) >= TARGET_SHARE:
        return ""  # nothing is known of them, or the proposal would only be cheaper
    return (
        f"Many texts are cut off. Measured: with at most {proposed.max_new_tokens} tokens"
        f"{' and a short instruction' if proposed.adds_instruction else ''}, {100 * proposed.share:.0f} % are complete."
    )


def _system_prompt(result: Mapping[str, Any], row: LengthRow) -> str:
    system_prompt = str(result["system_prompt"])
    return with_instruction(system_prompt) if row.adds_instruction else system_prompt


def _settled_by(db: Database, project_id: int) -> str:
    """What keeps a project's system prompt as it is, because it was made from its texts; "" for nothing."""
    if count_reward_models(db, project_id):
        return "a reward model"
    return "a run" if runs(db, project_id) else ""


def accept_proposal(db: Database, project_id: int) -> str:
    """Give the project the proposed setting, and have its unlabelled pairs sampled again; returns a message.

    Labelled pairs, imported ones and those on somebody's screen stay. Raises ConfigError if nothing is proposed, or if the
    project has a reward model or a run: their numbers belong to the system prompt that they were made with.
    """
    job = measurement_job(db, project_id)
    proposal = (
        propose(measured_rows(job.result)) if job is not None and job.status is JobStatus.DONE and job.result else None
    )
    if job is None or job.result is None or proposal is None:
        raise ConfigError("Nothing is proposed for this project. Reload the page.")
    system_prompt = _system_prompt(job.result, proposal)
    settled_by = _settled_by(db, project_id)
    if settled_by and system_prompt != get_project(db, project_id).system_prompt:
        raise ConfigError(
            f"This project has {settled_by}, which belongs to its system prompt. Create a new project with at most "
            f'{proposal.max_new_tokens} tokens and the system prompt "{system_prompt}".'
        )
    for pairs_job in queue.jobs(
        db, project_id=project_id, kinds=[JobKind.SAMPLE_PAIRS], statuses=UNFINISHED_JOB_STATUSES
    ):
        queue.cancel(db, pairs_job.id)  # its texts would have the earlier setting
    set_answer_settings(db, project_id, proposal.max_new_tokens, system_prompt)
    count = replace_unlabelled_pairs(db, project_id)
    added = f', with the instruction "{INSTRUCTION}"' if proposal.adds_instruction else "."
    return (
        f"New texts have at most {proposal.max_new_tokens} tokens{added} {pluralize(count, 'unlabelled pair')} "
        f"{'is' if count == 1 else 'are'} written again; labelled pairs stay."
    )
