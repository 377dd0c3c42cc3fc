"""The brake of a run, a sequential stopping rule: whether people still prefer its policy's texts, by answers to blind pairs.

The test itself: core/sequential_test.py.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.common.enums import BrakeState, EventKind, Opponent
from rlhf_lab.common.records import RunEvent
from rlhf_lab.core.sequential_test import Answer, BrakeReport, brake
from rlhf_lab.store.database import Database
from rlhf_lab.store.live_runs import LiveAnswer, live_answers
from rlhf_lab.store.runs import events

#: In the payload of a pause: whose texts people prefer, with the step of a checkpoint; whether several checkpoints won.
BRAKE_KEY, SEVERAL_KEY = "brake", "several"
#: The policy's wins, and its lead in standard errors, after which a newer checkpoint is compared.
MIN_WINS, CLEAR_LEAD = 4, 1.28
MIN_ANSWERS, LAST_ANSWERS = 3, 20  # about a checkpoint, that decide whether the policy loses to it


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
        payload |= preferred_checkpoint(counted_answers(db, run_id)[: report.answers_read])
    return payload


def preferred_checkpoint(answers: Sequence[LiveAnswer]) -> dict[str, int | str]:
    """The step of the checkpoint with the largest lead (wins - defeats) over the policy, the newest of equal ones. The test pools
    the answers about all checkpoints, so SEVERAL_KEY says if more than one is in the lead."""
    lead = Counter[int]()
    for answer in answers:
        if answer.opponent is Opponent.BEST and answer.won is not None:
            lead[answer.opponent_step or 0] += -1 if answer.won else 1
    step = max(lead, key=lambda each: (lead[each], each))
    result: dict[str, int | str] = {"step": step}
    return result | {SEVERAL_KEY: 1} if sum(value > 0 for value in lead.values()) > 1 else result


def compared_checkpoint(answers: Sequence[LiveAnswer], checkpoints: Sequence[int]) -> int | None:
    """The step of the checkpoint to compare the policy with, out of the ascending `checkpoints`; None without any.

    The first one, until people clearly prefer the policy's texts to its own (wins - defeats >= CLEAR_LEAD · √answers, which has a
    probability of about a tenth after a given number of even answers); then the newest one, and so on. People decide this rather
    than the reward model, because the score of a policy that exploits a reward model goes on rising.
    """
    current = _newest_opponent(answers)
    if not checkpoints or current not in checkpoints:
        return checkpoints[0] if checkpoints else None
    results = [answer.won for answer in answers if answer.opponent_step == current and answer.won is not None]
    wins, lead = sum(results), 2 * sum(results) - len(results)
    is_beaten = wins >= MIN_WINS and lead >= CLEAR_LEAD * math.sqrt(len(results))
    return checkpoints[-1] if is_beaten else current


def loses_to(answers: Sequence[LiveAnswer], checkpoint: int | None) -> bool:
    """Whether the policy has lost more than it won of the last decided answers about this checkpoint. While it does, people
    compare it only with this checkpoint: answers about the opponent that wins most often say most to the test."""
    last = [answer.won for answer in answers if answer.opponent_step == checkpoint and answer.won is not None]
    last = last[-LAST_ANSWERS:]
    return checkpoint is not None and len(last) >= MIN_ANSWERS and last.count(False) > last.count(True)


def _newest_opponent(answers: Sequence[LiveAnswer]) -> int | None:
    """The step of the checkpoint of the newest pair that was answered; an older pair may be answered later."""
    of_checkpoints = [answer for answer in answers if answer.opponent is Opponent.BEST]
    return max(of_checkpoints, key=lambda answer: answer.pair_id).opponent_step if of_checkpoints else None


def pause_text(payload: Mapping[str, Any]) -> str:
    """Why the brake paused a run: what people's answers say."""
    texts = f"step {payload['step']}" if "step" in payload else "the base model"
    if SEVERAL_KEY in payload:
        texts = f"earlier checkpoints, most often those of {texts}"
    return f"people prefer the texts of {texts}"
