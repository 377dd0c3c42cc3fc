"""What the page says of the brake of a run: whether people prefer its policy's texts."""

from collections.abc import Mapping

from typing_extensions import TypedDict

from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, BrakeState, Opponent
from rlhf_lab.common.records import Run
from rlhf_lab.common.text import pluralize
from rlhf_lab.core.sequential_test import BrakeReport
from rlhf_lab.quality.brake import brake_report, pause_payload, pause_text
from rlhf_lab.store.database import Database

MAX_SHOWN = 60  # further answers; a larger forecast changes too much from answer to answer


class BrakeView(TypedDict):
    """step: of the checkpoint whose texts people prefer most often, else None."""

    state: BrakeState
    text: str
    step: int | None


def has_brake(run: Run) -> bool:
    return bool(run.config.get("live") or run.config.get("brake_every"))


def brake_view(db: Database, run: Run) -> BrakeView | None:
    """None for a run without blind pairs."""
    if not has_brake(run):
        return None
    report = brake_report(db, run.id)
    cause = pause_payload(db, run.id) or {}
    return {
        "state": report.state,
        "text": brake_text(report, cause, is_active=run.status in ACTIVE_RUN_STATUSES),
        "step": int(cause["step"]) if "step" in cause else None,
    }


def brake_text(report: BrakeReport, cause: Mapping[str, int | str], *, is_active: bool) -> str:
    """What stands after "Blind answers: ". cause: `pause_payload`, empty without one. is_active: the run has not ended, so the
    engine still makes blind pairs."""
    opponents = [Opponent.BASE] if report.state is BrakeState.PREFERRED else list(Opponent)
    count = sum(report.evidence[opponent].declined.answers for opponent in opponents)
    if not count:
        return "none yet. Some of the next pairs compare the policy with another model." if is_active else "none."
    won = f"{sum(report.wins[opponent] for opponent in opponents)} of {count} for the policy"
    if report.state is BrakeState.PREFERRED:
        return f"{won} against the base. People prefer the policy."
    if cause:
        return f"{won}. {pause_text(cause).capitalize()}."
    more = report.more_answers
    about = f" (about {pluralize(more, 'more answer')} at this rate)" if more and more <= MAX_SHOWN else ""
    return f"{won}. Not yet known which texts people prefer{about}."
