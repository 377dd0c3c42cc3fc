"""What the page says of the brake of a run: whether people prefer its policy's texts."""

from typing_extensions import TypedDict

from rlhf_lab.common.enums import BrakeState, Opponent
from rlhf_lab.common.records import Run
from rlhf_lab.common.text import pluralize
from rlhf_lab.core.sequential_test import BrakeReport
from rlhf_lab.quality.brake import brake_report, compared_step
from rlhf_lab.store.database import Database


class BrakeView(TypedDict):
    """step: of the checkpoint whose texts people prefer, else None."""

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
    step = compared_step(db, run.id) if report.worse_than is Opponent.BEST else None
    return {"state": report.state, "text": brake_text(report, step), "step": step}


def brake_text(report: BrakeReport, step: int | None) -> str:
    """One sentence. step: of the checkpoint that people prefer; None for the base."""
    wins, base = report.wins[Opponent.BASE], report.evidence[Opponent.BASE].declined.answers
    if report.state is BrakeState.PREFERRED:
        return f"People prefer the policy to the base: {wins} of {pluralize(base, 'blind answer')}."
    if report.state is BrakeState.DECLINED:
        texts = "the base model" if step is None else f"step {step}"
        return f"People prefer the texts of {texts}."
    if not sum(evidence.declined.answers for evidence in report.evidence.values()):
        return "Nobody has compared the policy's texts yet: label some pairs."
    about = f" (about {pluralize(report.more_answers, 'more answer')})" if report.more_answers else ""
    return f"Not yet known which texts people prefer{about}."
