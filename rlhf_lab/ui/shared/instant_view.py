"""What the screen "Label" shows of the instant reward model: its accuracy, and its prediction of the vote just cast.

Everybody may see the accuracy. The scores of a pair are shown only to the person who voted on it, after their vote, because
others may still have to vote on it.
"""

from typing_extensions import TypedDict

from rlhf_lab.common.enums import Choice, Opponent, RunStatus, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.common.text_attributes import attribute_labels
from rlhf_lab.jobs import run_control
from rlhf_lab.jobs.engine_work import work_text
from rlhf_lab.jobs.instant_reward import DECIDED, MIN_DECIDED, Prediction
from rlhf_lab.store.live_runs import live_pairs_by_id
from rlhf_lab.ui.context import Context


class ShownPrediction(TypedDict):
    """scores: of the preferred and the other text; for a vote without a preferred text, of the left and the right one.
    expected: whether the preferred text scored higher."""

    decided: bool
    scores: tuple[float, float]
    expected: bool | None


class InstantFigures(TypedDict):
    """decided: votes that prefer one text; needed: how many of them, before the model is fitted. waiting: votes that it has not
    learned from, because the engine has not read their texts; engine_work: what it does instead, "" for nothing that is known.
    right: how many votes are predicted. low, high: the interval of the accuracy. pending: the page's vote is not learned.
    writers: of the left and the right text of the vote, if its pair was one of a live run. offers_live_run: whether this person
    can start one; trains_live: whether one of this project trains. ignores: the attributes of texts that the scores ignore, ""
    for none."""

    project_created_at: float
    needed: int
    labels: int
    decided: int
    waiting: int
    engine_work: str
    simulated: bool
    right: float | None
    low: float | None
    high: float | None
    pending: bool
    prediction: ShownPrediction | None
    writers: tuple[str, str] | None
    offers_live_run: bool
    trains_live: bool
    ignores: str


def instant_view(ctx: Context, annotator: str, vote_uuid: str) -> InstantFigures:
    """The newest figures; `pending` until the model has learned from the vote, then `prediction`, if there is one."""
    project, service = ctx.project, ctx.instant_reward
    pending = bool(vote_uuid) and service.is_pending(
        vote_uuid
    )  # read first: the figures read afterwards include the vote
    prediction = service.prediction(vote_uuid, annotator) if vote_uuid and not pending else None
    figures = service.figures(project.id)
    decided, active = figures.decided + figures.waiting_decided, run_control.active_runs(ctx.db)
    return {
        "project_created_at": project.created_at,
        "needed": MIN_DECIDED,
        "labels": figures.labels,
        "decided": decided,
        "waiting": figures.waiting,
        "engine_work": work_text(ctx.db) if figures.waiting else "",
        "simulated": figures.source is Source.SIMULATED and figures.labels > 0,
        "right": figures.right,
        "low": rounded_bound(figures.low),
        "high": rounded_bound(figures.high),
        "pending": pending,
        "prediction": None
        if prediction is None or prediction[1] is None
        else prediction_view(prediction[0], prediction[1]),
        "writers": None if prediction is None else writers_of(ctx, prediction[0]),
        "offers_live_run": ctx.is_operator() and decided >= MIN_DECIDED and not active,
        "trains_live": any(
            run.project_id == project.id and run.status is not RunStatus.PAUSED and run.config.get("live", False)
            for run in active
        ),
        "ignores": attribute_labels(figures.ignored),
    }


def writers_of(ctx: Context, vote: Vote) -> tuple[str, str] | None:
    """Who wrote the left and the right text of a pair that this person has judged; None for a pair of no live run."""
    live = live_pairs_by_id(ctx.db, [vote.pair_id]).get(vote.pair_id)
    if live is None:
        return None
    policy = f"the policy at step {live.step}"
    if live.opponent is None:
        either = f"{policy} or {live.step + 1}"
        return either, either
    other = "the base model" if live.opponent is Opponent.BASE else f"the checkpoint of step {live.opponent_step}"
    policy_is_left = (live.policy_side is Choice.FIRST) == vote.first_on_left
    return (policy, other) if policy_is_left else (other, policy)


def rounded_bound(bound: float | None) -> float | None:
    """A bound of an interval as the page shows it: its digits would reveal whether others have voted on the same pair."""
    return None if bound is None else round(bound, 2)


def prediction_view(vote: Vote, prediction: Prediction) -> ShownPrediction:
    if vote.choice in DECIDED:
        scores = in_order(prediction, vote.choice is Choice.FIRST)
        return {"decided": True, "scores": scores, "expected": prediction.choice is vote.choice}
    return {"decided": False, "scores": in_order(prediction, vote.first_on_left), "expected": None}


def in_order(prediction: Prediction, is_first_first: bool) -> tuple[float, float]:
    scores = prediction.first, prediction.second
    return scores if is_first_first else scores[::-1]
