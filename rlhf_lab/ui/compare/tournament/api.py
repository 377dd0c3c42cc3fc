"""Tournaments on the screen "Compare": people judge blind pairs of up to eight models; the answers rank the models.

The pairs are judged as in a blind test. These answers are not labels: nothing is trained on them.
"""

import contextlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, JobKind, JobStatus
from rlhf_lab.common.records import Job, PairKey, Role, Run, Tournament, TournamentAnswer
from rlhf_lab.common.seeding import secret_seed
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import LabError, StaleVoteError, StoreError
from rlhf_lab.jobs import engine_process, queue, run_control
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.quality.tournament import (
    MAX_SKIPS,
    Contestant,
    Standing,
    choose_pair,
    contestants_of,
    is_skipping,
    judging_since,
    rank_contestants,
    unseen_pairs,
    win_matrix,
)
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.tournaments import (
    LEASE_S,
    add_tournament,
    answer_tournament_pair,
    delete_tournament,
    lease_tournament_pair,
    tournament_answers,
    tournaments,
    withdraw_tournament_pair,
)
from rlhf_lab.ui.compare.blind_results import PairToJudge
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import ANSWER
from rlhf_lab.ui.shared.api import Api, FieldError, Payload
from rlhf_lab.ui.shared.generation_requests import MAX_TOKENS, check_model, check_queue_capacity

api = Api("tournament")
MAX_CONTESTANTS = 8
MAX_PROMPTS = 64
BEST_OF_4 = "base/best/4"
PAUSE_NOTE = f"You have skipped {MAX_SKIPS} pairs in a row. Come back in ten minutes for the next pair."
CHOICE_BY_NAME = {
    "left": Choice.FIRST, "right": Choice.SECOND, "tie": Choice.TIE, "both_bad": Choice.BOTH_BAD, "skip": Choice.SKIP,
}  # fmt: skip


class StartTournamentPayload(Payload):
    """contestants: "base", "base/best/4" and "run/ID/STEP"."""

    contestants: list[str]
    prompts: int = Field(title="prompts", ge=1, le=MAX_PROMPTS)
    max_new_tokens: int = Field(title="max_new_tokens", ge=1, le=MAX_TOKENS)
    reward_model_id: int | Literal[""] = ""


class TournamentAnswerPayload(Payload):
    """An answer to the pair on screen, which `token` identifies, and the request for the next pair; without a choice only the
    request."""

    tournament_id: int
    token: str = ""
    choice: Literal["left", "right", "tie", "both_bad", "skip"] | None = None


class TournamentPayload(Payload):
    """tournament_id: None for the newest."""

    tournament_id: int | None = None


class Ranking(TypedDict):
    """The standings, best first, after so many answers; and in the same order how often the row was preferred to the column."""

    answers: int
    rows: list[Standing]
    wins: list[list[float]]


class TournamentState(TypedDict):
    """What the page shows a person of a tournament. Without one there is no `annotator` either; until its texts are written there
    is `progress`, or `failure`, instead of what follows them."""

    id: int | None
    ids: list[int]
    annotator: NotRequired[str]
    is_waiting: NotRequired[bool]
    progress: NotRequired[float]
    failure: NotRequired[str]
    can_judge: NotRequired[bool]
    pair: NotRequired[PairToJudge | None]
    own_count: NotRequired[int]
    answers_note: NotRequired[str]
    pause_note: NotRequired[str]
    ranking: NotRequired[Ranking]


class NewTournamentState(TypedDict):
    """The state after an action."""

    state: TournamentState


@api.read(TournamentPayload)
def get_state(ctx: Context, query: TournamentPayload) -> TournamentState:
    return state(ctx, query.tournament_id, ctx.annotator_or_empty(query.annotator))


@api.action(StartTournamentPayload, role=Role.OPERATOR)
def start(ctx: Context, payload: StartTournamentPayload) -> NewTournamentState:
    annotator = ctx.require_annotator(payload.annotator)
    return {"state": state(ctx, submit_tournament(ctx, payload).id, annotator)}


@api.action(TournamentPayload, role=Role.OPERATOR)
def delete(ctx: Context, payload: TournamentPayload) -> NewTournamentState:
    """The reply is the state of the newest tournament that is left."""
    annotator = ctx.require_annotator(payload.annotator)
    tournament = _find(ctx, payload.tournament_id)
    if tournament is None:
        raise StoreError("This tournament was deleted. Nothing was changed.")
    delete_tournament(ctx.db, tournament.id)
    return {"state": state(ctx, None, annotator)}


@api.action(TournamentAnswerPayload, limit=ANSWER)
def answer(ctx: Context, payload: TournamentAnswerPayload) -> NewTournamentState:
    return {"state": judge(ctx, payload, ctx.require_annotator(payload.annotator))}


def submit_tournament(ctx: Context, payload: StartTournamentPayload) -> Tournament:
    """Let the engine sample the contestants' texts for prompts of the evaluation split. Raises LabError."""
    contestants = list(dict.fromkeys(payload.contestants))
    if not 2 <= len(contestants) <= MAX_CONTESTANTS:
        raise LabError(f"A tournament needs 2 to {MAX_CONTESTANTS} different models; {len(contestants)} are chosen.")
    for contestant in contestants:
        if contestant != BEST_OF_4:
            check_model(ctx, contestant, with_step=True)
    reward_model_id = payload.reward_model_id or None
    if reward_model_id is not None:
        reward_model_id = get_reward_model(ctx.db, reward_model_id).id
    elif BEST_OF_4 in contestants:
        raise LabError('Best of 4 needs a reward model: choose one under "scored by".')
    eval_prompts = [prompt.text for prompt in prompts(ctx.db, ctx.project.id, "eval")]
    if payload.prompts > len(eval_prompts):
        raise FieldError(
            "prompts", f"prompts = {payload.prompts}: this project has {len(eval_prompts)} held-out prompts."
        )
    check_queue_capacity(ctx)
    seed = secret_seed()
    job = queue.submit(
        ctx.db, JobKind.TOURNAMENT, ctx.project.id,
        {
            "contestants": sorted(contestants, key=lambda model: model != "base"),  # scores are relative to the first
            "prompts": random.Random(seed).sample(eval_prompts, payload.prompts),
            "seed": seed,
            "max_new_tokens": payload.max_new_tokens,
            "reward_model_id": reward_model_id,
        },
    )  # fmt: skip
    tournament = add_tournament(ctx.db, ctx.project.id, job.id)
    engine_process.ensure_engine(ctx.db, ctx.home)
    return tournament


def judge(ctx: Context, payload: TournamentAnswerPayload, annotator: str) -> TournamentState:
    """Store an answer, and lease the next pair to this person. Raises StaleVoteError for a pair that is not on their screen."""
    tournament, contestants = _ready_tournament(ctx, payload.tournament_id)
    answers = tournament_answers(ctx.db, tournament.id)
    shown = _shown_pair(answers, annotator)
    if shown and shown not in unseen_pairs(contestants, _revealed(ctx, contestants, answers)):
        withdraw_tournament_pair(ctx.db, tournament.id, annotator, shown)
    if payload.choice is not None:
        answers = tournament_answers(ctx.db, tournament.id)
        key, choice = _shown_pair(answers, annotator), CHOICE_BY_NAME[payload.choice]
        if key is None or payload.token != _token(ctx, tournament.id, key, annotator):
            raise StaleVoteError("That pair has already been judged; here is the next one.")
        if choice in (Choice.FIRST, Choice.SECOND) and not _is_first_on_left(ctx, tournament.id, key, annotator):
            choice = Choice.SECOND if choice is Choice.FIRST else Choice.FIRST
        answer_tournament_pair(ctx.db, tournament.id, annotator, key, choice)
    lease_tournament_pair(
        ctx.db, tournament.id, annotator,
        lambda answers, since: choose_pair(
            contestants, answers, annotator, since,
            lambda key: ctx.blind_digest("tournament pair", tournament.id, annotator, *key),
            _revealed(ctx, contestants, answers),
        ),
    )  # fmt: skip
    return state(ctx, tournament.id, annotator)


def state(ctx: Context, tournament_id: int | None, annotator: str) -> TournamentState:
    """What the page shows a person: the pair to judge, without names, and the ranking. annotator: "" for a viewer."""
    all_ids = [tournament.id for tournament in tournaments(ctx.db, ctx.project.id)]
    tournament = _find(ctx, tournament_id)
    if tournament is None:
        return {"id": None, "ids": all_ids}
    job = queue.get_job(ctx.db, tournament.job_id)
    reply: TournamentState = {"id": tournament.id, "ids": all_ids, "annotator": annotator}
    if job.status in UNFINISHED_JOB_STATUSES:
        return {**reply, "is_waiting": True, "progress": job.progress}
    if job.status is not JobStatus.DONE or not job.result:
        return {**reply, "failure": job.error or "It was cancelled."}
    contestants, answers = contestants_of(job.result), tournament_answers(ctx.db, tournament.id)
    given = [answer for answer in answers if answer.choice not in (None, Choice.SKIP)]
    shown = _shown_pair(answers, annotator)
    return {
        **reply,
        "can_judge": bool(annotator),
        "pair": None if shown is None else _pair_view(ctx, tournament.id, shown, contestants, job, annotator),
        "own_count": sum(answer.annotator == annotator for answer in given),
        "answers_note": answers_note(given),
        "pause_note": PAUSE_NOTE if shown is None and is_skipping(answers, annotator, time.time() - LEASE_S) else "",
        "ranking": _ranking(ctx, job, contestants, answers, is_shared=ctx.access.is_multi_user),
    }


def ranked_answers(
    contestants: Sequence[Contestant],
    answers: Sequence[TournamentAnswer],
    now: float | None = None,
    *,
    is_shared: bool = False,
) -> list[TournamentAnswer]:
    """The answers that the ranking contains, for everybody: while somebody judges, those from before. The ranking before and
    after few answers, under whatever names they were given, would name the models of the pairs. is_shared: several people use
    the lab."""
    now = time.time() if now is None else now
    since = judging_since(contestants, answers, now, LEASE_S, waits_for_others=is_shared)
    return [answer for answer in answers if answer.choice not in (None, Choice.SKIP) and answer.created_at < since]


def ranking_of_run(ctx: Context, run: Run) -> Ranking | None:
    """The ranking of the newest tournament in which the run took part, as everybody may see it; None without one."""
    for tournament in tournaments(ctx.db, run.project_id):
        job = queue.get_job(ctx.db, tournament.job_id)
        contestants = contestants_of(job.result) if job.status is JobStatus.DONE and job.result else []
        if any(contestant.model.startswith(f"run/{run.id}/") for contestant in contestants):
            ranking = _ranking(ctx, job, contestants, tournament_answers(ctx.db, tournament.id), is_shared=True)
            if ranking["answers"]:
                return ranking
    return None


def _revealed(
    ctx: Context, contestants: Sequence[Contestant], answers: Sequence[TournamentAnswer]
) -> list[TournamentAnswer]:
    """The answers whose texts nobody judges any more, because somebody may know their models from the ranking. In a lab of
    several people anybody can come back under another name."""
    return ranked_answers(contestants, answers, is_shared=True) if ctx.access.is_multi_user else []


def answers_note(answers: list[TournamentAnswer]) -> str:
    """ "5 answers from 2 people"; "" for none."""
    people = len({answer.annotator for answer in answers})
    return (
        f"{pluralize(len(answers), 'answer')} from {people} {'person' if people == 1 else 'people'}" if people else ""
    )


def _ranking(
    ctx: Context, job: Job, contestants: list[Contestant], answers: list[TournamentAnswer], *, is_shared: bool
) -> Ranking:
    """The ranking by `ranked_answers`. Before the first answer and while somebody judges, it has no mean KL, reward and gold:
    these would help to tell the models of the texts apart."""
    assert job.result is not None
    now = time.time()
    is_judged = math.isfinite(judging_since(contestants, answers, now, LEASE_S, waits_for_others=is_shared))
    answers = ranked_answers(contestants, answers, now, is_shared=is_shared)
    gold: list[list[float]] = []
    with contextlib.suppress(StoreError):
        row = get_reward_model(ctx.db, int(job.payload.get("reward_model_id") or 0))
        if judge_name := run_control.judge_of_labels(ctx.db, row.snapshot):
            score = JUDGES[judge_name].score
            gold = [list(map(score, job.result["prompts"], contestant.texts)) for contestant in contestants]
    standings = rank_contestants(contestants, answers, gold)
    if is_judged or not answers:
        standings = [replace(standing, kl=None, reward=None, gold=None) for standing in standings]
    wins, order = win_matrix(len(contestants), answers), [standing.contestant for standing in standings]
    return {
        "answers": len(answers),
        "rows": standings,
        "wins": [[float(wins[i, j]) for j in order] for i in order],
    }


def _pair_view(
    ctx: Context, tournament_id: int, key: PairKey, contestants: list[Contestant], job: Job, annotator: str
) -> PairToJudge:
    assert job.result is not None
    texts = [contestants[i].texts[key.position] for i in (key.first, key.second)]
    left, right = texts if _is_first_on_left(ctx, tournament_id, key, annotator) else texts[::-1]
    turns = turns_of_prompt(job.result["prompts"][key.position], ctx.project.system_prompt)
    return {"token": _token(ctx, tournament_id, key, annotator), "turns": turns, "left": left, "right": right}


def _shown_pair(answers: list[TournamentAnswer], annotator: str) -> PairKey | None:
    return next((answer.key for answer in answers if answer.annotator == annotator and answer.choice is None), None)


def _token(ctx: Context, tournament_id: int, key: PairKey, annotator: str) -> str:
    """Identifies the pair on the page. The indices of the contestants would reveal which text is from the base model."""
    return ctx.blind_token("tournament", tournament_id, *key, annotator)


def _is_first_on_left(ctx: Context, tournament_id: int, key: PairKey, annotator: str) -> bool:
    """Random per person and pair."""
    return ctx.blind_side("tournament", tournament_id, *key, annotator)


def _ready_tournament(ctx: Context, tournament_id: int) -> tuple[Tournament, list[Contestant]]:
    tournament = _find(ctx, tournament_id)
    job = None if tournament is None else queue.get_job(ctx.db, tournament.job_id)
    if tournament is None or job is None or job.status is not JobStatus.DONE or not job.result:
        raise StaleVoteError("This tournament was deleted, or its texts are not written yet. Nothing was recorded.")
    return tournament, contestants_of(job.result)


def _find(ctx: Context, tournament_id: int | None) -> Tournament | None:
    """The project's tournament with this id, None if there is none. tournament_id: None for the newest."""
    found = tournaments(ctx.db, ctx.project.id)
    return next((tournament for tournament in found if tournament_id in (None, tournament.id)), None)
