"""Scores that reward models gave completions before people voted on them, to compare with the votes."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, delete, insert, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, RewardPredictionStats
from rlhf_lab.common.stats import wilson_interval
from rlhf_lab.config.labelling import is_actively_selected
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.projects import newest_pairs
from rlhf_lab.store.run_metrics import nan_to_null, null_to_nan
from rlhf_lab.store.votes import NOT_A_REPEAT, has_live_vote, live_votes_query


def add_scores(db: Database, reward_model_id: int, scores: Mapping[int, float]) -> None:
    """scores: completion id -> score; replaces existing ones. StoreError: no such reward model or completion."""
    s = t.scores.c
    rows = [
        {"reward_model_id": reward_model_id, "completion_id": i, "score": nan_to_null(x)} for i, x in scores.items()
    ]
    with db.write() as conn:
        for ids in in_chunks(list(scores)):
            conn.execute(delete(t.scores).where(s.reward_model_id == reward_model_id, s.completion_id.in_(ids)))
        if rows:
            conn.execute(insert(t.scores), rows)


def unjudged_pairs(db: Database, project_id: int, limit: int) -> list[Pair]:
    """The newest `limit` pairs that no person has a live vote on, oldest first."""
    return newest_pairs(db, project_id, limit, ~has_live_vote(t.votes.c.source == Source.HUMAN))


class _DecidedVote(NamedTuple):
    pair_id: int
    created_at: float
    actively_selected: bool
    chosen_id: int
    rejected_id: int


def prediction_accuracy(db: Database, project_id: int, source: Source) -> RewardPredictionStats:
    """How often reward models predicted a vote.

    Counts the live, decided votes of `source` for which the newest reward model (of labels of the same source) at that time
    has scored both sides and was not trained on the pair. Right: it scored the chosen side strictly higher. Votes on actively
    selected pairs are counted apart: such pairs are harder than pairs in general.
    """
    m = t.reward_models.c
    models_query = select(m.id, m.created_at, m.vote_ids).where(m.project_id == project_id, m.source == source)
    hits: dict[bool, list[bool]] = {False: [], True: []}  # by whether the pair was actively selected
    with db.read() as conn:
        models = conn.execute(models_query.order_by(m.created_at, m.id)).all()
        created_times = [model.created_at for model in models]
        votes_by_model: list[list[_DecidedVote]] = [[] for _ in models]
        for vote in _decided_votes(conn, project_id, source):
            if model_index := bisect_left(created_times, vote.created_at):
                votes_by_model[model_index - 1].append(vote)
        pair_by_vote = _pair_id_by_vote(conn, project_id)
        for model, votes in zip(models, votes_by_model, strict=True):
            trained_pairs = {pair_by_vote.get(vote_id) for vote_id in model.vote_ids} if votes else set()
            unseen = [vote for vote in votes if vote.pair_id not in trained_pairs]
            completion_ids = {i for vote in unseen for i in (vote.chosen_id, vote.rejected_id)}
            scores = _scores_of(conn, model.id, sorted(completion_ids))
            for vote in unseen:
                if vote.chosen_id in scores and vote.rejected_id in scores:
                    hits[vote.actively_selected].append(scores[vote.chosen_id] > scores[vote.rejected_id])
    low, high = wilson_interval(sum(hits[False]), len(hits[False]))
    return RewardPredictionStats(sum(hits[False]), len(hits[False]), low, high, sum(hits[True]), len(hits[True]))


def _decided_votes(conn: Connection, project_id: int, source: Source) -> list[_DecidedVote]:
    """Every live vote for one of the two sides."""
    v, p = t.votes.c, t.pairs.c
    query = live_votes_query(project_id, source, v.pair_id, v.created_at, v.choice, p.reason, p.first_id, p.second_id)
    votes = []
    for row in conn.execute(query.where(NOT_A_REPEAT, v.choice.in_([Choice.FIRST, Choice.SECOND]))):
        sides = (row.first_id, row.second_id) if row.choice is Choice.FIRST else (row.second_id, row.first_id)
        votes.append(_DecidedVote(row.pair_id, row.created_at, is_actively_selected(row.reason), *sides))
    return votes


def _pair_id_by_vote(conn: Connection, project_id: int) -> dict[int, int]:
    """vote id -> pair id, whether or not the vote was undone since."""
    in_project = and_(t.pairs.c.id == t.votes.c.pair_id, t.pairs.c.project_id == project_id)
    rows = conn.execute(select(t.votes.c.id, t.votes.c.pair_id).join(t.pairs, in_project))
    return {row.id: row.pair_id for row in rows}


def _scores_of(conn: Connection, reward_model_id: int, completion_ids: Sequence[int]) -> dict[int, float]:
    s = t.scores.c
    scores: dict[int, float] = {}
    for ids in in_chunks(completion_ids):
        query = select(s.completion_id, s.score).where(s.reward_model_id == reward_model_id, s.completion_id.in_(ids))
        scores |= {row.completion_id: null_to_nan(row.score) for row in conn.execute(query)}
    return scores
