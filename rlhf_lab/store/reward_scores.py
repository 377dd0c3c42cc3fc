"""What reward models think of completions: written when nobody has judged them yet, so that it can be held against the votes."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, and_, delete, insert, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, RewardPredictionStats
from rlhf_lab.common.stats import wilson_interval
from rlhf_lab.config.labelling import is_actively_selected
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.projects import load_pairs


def add_scores(db: Database, reward_model_id: int, scores: Mapping[int, float]) -> None:
    """completion id -> score; a score that is there is replaced. StoreError: no such reward model or completion."""
    s = t.scores.c
    rows = [
        {"reward_model_id": reward_model_id, "completion_id": i, "score": None if math.isnan(x) else float(x)}
        for i, x in scores.items()
    ]
    with db.write() as conn:
        for ids in in_chunks(list(scores)):
            conn.execute(delete(t.scores).where(s.reward_model_id == reward_model_id, s.completion_id.in_(ids)))
        if rows:
            conn.execute(insert(t.scores), rows)


def unjudged_pairs(db: Database, project_id: int, limit: int) -> list[Pair]:
    """The newest `limit` pairs that no person has a live vote on, oldest first."""
    v = t.votes.c
    judged = select(v.id).where(v.pair_id == t.pairs.c.id, v.source == Source.HUMAN, v.undone_at.is_(None))
    query = (
        select(t.pairs.c.id)
        .where(t.pairs.c.project_id == project_id, t.pairs.c.taken_back_at.is_(None))
        .where(~judged.correlate(t.pairs).exists())
        .order_by(t.pairs.c.id.desc())
        .limit(limit)
    )
    with db.read() as conn:
        return load_pairs(conn, list(conn.execute(query).scalars()))


def prediction_accuracy(db: Database, project_id: int, source: Source) -> RewardPredictionStats:
    """How often the reward models knew what would be said.

    Counted are the live, decided votes of `source` on a pair that the newest reward model (of labels of the same source)
    when the vote was cast has scored, both sides, and was not trained on. Right: it scored the chosen side strictly higher.
    Pairs picked for what they teach stand apart: they are harder than pairs in general.
    """
    with db.read() as conn:
        models = _reward_models_by_age(conn, project_id, source)
        votes = _decided_votes(conn, project_id, source)
        votes_by_model: dict[
            int, list[tuple[int, int, bool]]
        ] = {}  # model's place -> (better, worse) completions, picked?
        created_times = [created_at for _, created_at, _ in models]
        trained_pair_ids: dict[int, set[int]] = {}
        pair_by_vote = _pair_id_by_vote(conn, project_id)
        for pair_id, created_at, reason, *completion_ids in votes:
            model_index = bisect_left(created_times, created_at) - 1
            if model_index < 0:
                continue
            if model_index not in trained_pair_ids:
                trained_pair_ids[model_index] = {
                    pair_by_vote[vote_id] for vote_id in models[model_index][2] if vote_id in pair_by_vote
                }
            if pair_id not in trained_pair_ids[model_index]:
                votes_by_model.setdefault(model_index, []).append(
                    (completion_ids[0], completion_ids[1], is_actively_selected(reason))
                )
        hits: dict[bool, list[bool]] = {False: [], True: []}
        for model_index, model_votes in votes_by_model.items():
            scores = _scores_of(
                conn,
                models[model_index][0],
                sorted({completion_id for *completion_pair, _ in model_votes for completion_id in completion_pair}),
            )
            for better, worse, actively_selected in model_votes:
                if better in scores and worse in scores:
                    hits[actively_selected].append(scores[better] > scores[worse])
    low, high = wilson_interval(sum(hits[False]), len(hits[False]))
    return RewardPredictionStats(sum(hits[False]), len(hits[False]), low, high, sum(hits[True]), len(hits[True]))


def _reward_models_by_age(conn: Connection, project_id: int, source: Source) -> list[tuple[int, float, list[int]]]:
    """(id, created_at, vote ids), oldest first."""
    m = t.reward_models.c
    query = select(m.id, m.created_at, m.vote_ids).where(m.project_id == project_id, m.source == source)
    return [(row.id, row.created_at, row.vote_ids) for row in conn.execute(query.order_by(m.created_at, m.id))]


def _decided_votes(conn: Connection, project_id: int, source: Source) -> list[tuple[int, float, str, int, int]]:
    """(pair id, created_at, the pair's reason, chosen completion, rejected completion) of every live, decided vote."""
    v, p = t.votes.c, t.pairs.c
    query = (
        select(v.pair_id, v.created_at, v.choice, p.reason, p.first_id, p.second_id)
        .join(t.pairs, p.id == v.pair_id)
        .where(
            p.project_id == project_id, v.source == source, v.undone_at.is_(None), v.repeat.is_(False),
            v.choice.in_([Choice.FIRST, Choice.SECOND]),
        )
    )  # fmt: skip
    return [
        (row.pair_id, row.created_at, row.reason, row.first_id, row.second_id)
        if row.choice is Choice.FIRST
        else (row.pair_id, row.created_at, row.reason, row.second_id, row.first_id)
        for row in conn.execute(query)
    ]


def _pair_id_by_vote(conn: Connection, project_id: int) -> dict[int, int]:
    """vote id -> pair id, whether or not the vote was undone since."""
    in_project = and_(t.pairs.c.id == t.votes.c.pair_id, t.pairs.c.project_id == project_id)
    rows = conn.execute(select(t.votes.c.id, t.votes.c.pair_id).join(t.pairs, in_project))
    return {row.id: row.pair_id for row in rows}


def _scores_of(conn: Connection, reward_model_id: int, completion_ids: Sequence[int]) -> dict[int, float]:
    s = t.scores.c
    scores: dict[int, float] = {}
    for ids in in_chunks(completion_ids):
        condition = and_(s.reward_model_id == reward_model_id, s.completion_id.in_(ids))
        for row in conn.execute(select(s.completion_id, s.score).where(condition)):
            scores[row.completion_id] = math.nan if row.score is None else row.score
    return scores
