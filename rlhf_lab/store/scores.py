"""What reward models think of completions: written when nobody has judged them yet, so that it can be held against the votes."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, and_, delete, insert, select

from rlhf_lab.intervals import wilson_interval
from rlhf_lab.kinds import Choice, Source
from rlhf_lab.labelling import was_chosen
from rlhf_lab.records import Foresight, Pair
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.projects import read_pairs


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
        return read_pairs(conn, list(conn.execute(query).scalars()))


def foresight(db: Database, project_id: int, source: Source) -> Foresight:
    """How often the reward models knew what would be said.

    Counted are the live, decided votes of `source` on a pair that the newest reward model (of labels of the same source)
    when the vote was cast has scored, both sides, and was not trained on. Right: it scored the chosen side strictly higher.
    Pairs picked for what they teach stand apart: they are harder than pairs in general.
    """
    with db.read() as conn:
        models = _models(conn, project_id, source)
        votes = _votes(conn, project_id, source)
        decided: dict[int, list[tuple[int, int, bool]]] = {}  # model's place -> (better, worse) completions, picked?
        born = [created_at for _, created_at, _ in models]
        known: dict[int, set[int]] = {}
        pair_of = _pairs_of_votes(conn, project_id)
        for pair_id, created_at, reason, *sides in votes:
            place = bisect_left(born, created_at) - 1
            if place < 0:
                continue
            if place not in known:
                known[place] = {pair_of[vote_id] for vote_id in models[place][2] if vote_id in pair_of}
            if pair_id not in known[place]:
                decided.setdefault(place, []).append((sides[0], sides[1], was_chosen(reason)))
        hits: dict[bool, list[bool]] = {False: [], True: []}
        for place, asked in decided.items():
            scores = _scores(conn, models[place][0], sorted({side for *both, _ in asked for side in both}))
            for better, worse, picked in asked:
                if better in scores and worse in scores:
                    hits[picked].append(scores[better] > scores[worse])
    low, high = wilson_interval(sum(hits[False]), len(hits[False]))
    return Foresight(sum(hits[False]), len(hits[False]), low, high, sum(hits[True]), len(hits[True]))


def _models(conn: Connection, project_id: int, source: Source) -> list[tuple[int, float, list[int]]]:
    """(id, created_at, vote ids), oldest first."""
    m = t.reward_models.c
    query = select(m.id, m.created_at, m.vote_ids).where(m.project_id == project_id, m.source == source)
    return [(row.id, row.created_at, row.vote_ids) for row in conn.execute(query.order_by(m.created_at, m.id))]


def _votes(conn: Connection, project_id: int, source: Source) -> list[tuple[int, float, str, int, int]]:
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


def _pairs_of_votes(conn: Connection, project_id: int) -> dict[int, int]:
    """vote id -> pair id, whether or not the vote was undone since."""
    here = and_(t.pairs.c.id == t.votes.c.pair_id, t.pairs.c.project_id == project_id)
    rows = conn.execute(select(t.votes.c.id, t.votes.c.pair_id).join(t.pairs, here))
    return {row.id: row.pair_id for row in rows}


def _scores(conn: Connection, reward_model_id: int, completion_ids: Sequence[int]) -> dict[int, float]:
    s = t.scores.c
    found: dict[int, float] = {}
    for ids in in_chunks(completion_ids):
        mine = and_(s.reward_model_id == reward_model_id, s.completion_id.in_(ids))
        for row in conn.execute(select(s.completion_id, s.score).where(mine)):
            found[row.completion_id] = math.nan if row.score is None else row.score
    return found
