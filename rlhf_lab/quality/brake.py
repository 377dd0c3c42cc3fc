"""The brake of a run, a sequential stopping rule: whether people still prefer its policy's texts, by answers to blind pairs.

The test itself: core/sequential_test.py.
"""

from collections.abc import Sequence

from rlhf_lab.common.enums import BrakeState, EventKind, Opponent
from rlhf_lab.common.records import RunEvent
from rlhf_lab.core.sequential_test import Answer, BrakeReport, brake
from rlhf_lab.store.database import Database
from rlhf_lab.store.live_runs import LiveAnswer, live_answers
from rlhf_lab.store.runs import events

BRAKE_KEY = "brake"  # in the payload of a pause: whose texts people prefer; with the step of a checkpoint
MIN_ANSWERS = 6  # decided ones about a checkpoint before another may take its place


def brake_report(db: Database, run_id: int) -> BrakeReport:
    """What the answers of a run say: those about the steps after the brake last halted it, if somebody let it continue."""
    return brake([Answer(answer.opponent, answer.won) for answer in counted_answers(db, run_id)])


def counted_answers(db: Database, run_id: int) -> list[LiveAnswer]:
    """Those that decide. Pairs of earlier steps may be answered after a release, too; these answers are about texts of the policy
    that was let go on, so they do not count."""
    released = released_step(events(db, run_id))
    return [answer for answer in live_answers(db, run_id) if answer.step > released]


def released_step(run_events: Sequence[RunEvent]) -> int:
    """The step after which the brake last paused or stopped the run, if somebody has let it continue since; otherwise that of the
    halt before, and 0 without any."""
    released, halted = 0, 0
    for event in run_events:
        if BRAKE_KEY in event.payload and event.applied_step is not None:
            halted = event.applied_step
        elif event.kind is EventKind.RESUME and halted:
            released, halted = halted, 0
    return released


def pause_payload(db: Database, run_id: int) -> dict[str, int | str] | None:
    """The payload of the pause if people prefer the other texts; None if the run may go on."""
    report = brake_report(db, run_id)
    if report.state is not BrakeState.DECLINED:
        return None
    assert report.worse_than is not None
    payload: dict[str, int | str] = {BRAKE_KEY: report.worse_than.value}
    if report.worse_than is Opponent.BEST:
        payload["step"] = compared_step(db, run_id) or 0
    return payload


def compared_checkpoint(answers: Sequence[LiveAnswer], checkpoints: Sequence[int]) -> int | None:
    """The step of the checkpoint to compare the policy with, out of the ascending `checkpoints`; None without any.

    The first one, until people prefer the policy's texts to its own; then the newest one, and so on. People decide this rather
    than the reward model, because the score of a policy that exploits a reward model goes on rising.
    """
    present = _newest_opponent(answers)
    if not checkpoints or present not in checkpoints:
        return checkpoints[0] if checkpoints else None
    results = [answer.won for answer in answers if answer.opponent_step == present and answer.won is not None]
    is_beaten = len(results) >= MIN_ANSWERS and 2 * sum(results) > len(results)
    return checkpoints[-1] if is_beaten else present


def _newest_opponent(answers: Sequence[LiveAnswer]) -> int | None:
    """The step of the checkpoint of the newest pair that was answered; an older pair may be answered later."""
    of_checkpoints = [answer for answer in answers if answer.opponent is Opponent.BEST]
    return max(of_checkpoints, key=lambda answer: answer.pair_id).opponent_step if of_checkpoints else None


def compared_step(db: Database, run_id: int) -> int | None:
    """The step of the newest checkpoint that people have compared with the policy; None if they have compared none."""
    return _newest_opponent(counted_answers(db, run_id))


def pause_text(payload: dict[str, int | str]) -> str:
    """Why the brake paused a run."""
    texts = f"step {payload['step']}" if "step" in payload else "the base model"
    return f"people prefer the texts of {texts}"
