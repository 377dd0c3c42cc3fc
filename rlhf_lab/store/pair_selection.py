"""Which pair a person sees next: a hidden repeat, one that still needs votes, or a gold pair. Queries for `pair_leases`."""

import secrets

from sqlalchemy import ColumnElement, Connection, and_, case, func, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.store import tables as t
from rlhf_lab.store.projects import live_pair_of
from rlhf_lab.store.votes import NOT_A_REPEAT, NOT_AN_ADJUDICATION, count_live_votes, live_votes_query, unvoted_by

PAIRS_LEFT_FOR_OTHERS = 4  # pairs that stay free when one is prefetched for somebody who has a pair on screen
REPEAT_AFTER_VOTES = 8  # own votes between the first vote on a pair and its hidden repeat


def next_hidden_repeat(
    conn: Connection, project_id: int, annotator: str, config: LabellingConfig, queued_ids: list[int]
) -> int | None:
    """A pair to show a second time after those in `queued_ids`; None: no repeat is due. A reload repeats the draw."""
    if config.repeats <= 0:
        return None
    v, repeat_vote = t.votes.c, t.votes.alias("again")
    vote_ids = live_votes_query(project_id, Source.HUMAN, v.id).where(v.annotator == annotator)
    vote_count = conn.execute(vote_ids.with_only_columns(func.count())).scalar_one()
    draw = derive_seed(project_id, "hidden repeat", annotator, vote_count + len(queued_ids)) % 10_000
    if draw >= round(10_000 * config.repeats):
        return None
    already_repeated = and_(
        repeat_vote.c.pair_id == v.pair_id,
        repeat_vote.c.annotator == annotator,
        repeat_vote.c.repeat.is_(True),
        repeat_vote.c.undone_at.is_(None),
    )
    query = live_votes_query(project_id, Source.HUMAN, v.pair_id).where(
        v.annotator == annotator,
        NOT_A_REPEAT,
        NOT_AN_ADJUDICATION,
        t.pairs.c.gold.is_(None),
        v.choice != Choice.SKIP,
        v.pair_id.not_in(queued_ids),
        v.id.not_in(vote_ids.order_by(v.id.desc()).limit(REPEAT_AFTER_VOTES)),
        ~select(repeat_vote.c.id).where(already_repeated).exists(),
    )
    pair_id: int | None = conn.execute(query.order_by(v.id).limit(1)).scalar()
    return pair_id


def next_open_pair(
    conn: Connection, project_id: int, annotator: str, config: LabellingConfig, queued_ids: list[int], now: float
) -> int | None:
    """The pair to show after those in `queued_ids`: see `lease_pair` for the order. None: there is none.

    After other pairs only one that needs votes, and only while PAIRS_LEFT_FOR_OTHERS more stay free.
    """
    vote_and_lease_count = votes_and_leases(annotator, now)
    has_enough = vote_and_lease_count >= config.overlap
    query = (
        select(t.pairs.c.id)
        .where(unvoted_by(project_id, annotator))
        .order_by(
            case((has_enough, 1), else_=0),
            count_live_votes(t.votes.c.choice == Choice.SKIP, t.votes.c.source == Source.HUMAN),
            case((has_enough, vote_and_lease_count), else_=-vote_and_lease_count),
            t.pairs.c.id.desc() if config.texts == "policy" else t.pairs.c.id,
        )
    )
    reserve = PAIRS_LEFT_FOR_OTHERS if queued_ids else 0
    if queued_ids:
        query = query.where(t.pairs.c.id.not_in(queued_ids), ~has_enough)
    pair_ids = conn.execute(query.limit(1 + reserve)).scalars().all()
    return pair_ids[0] if len(pair_ids) > reserve else None


def draw_gold_pair(conn: Connection, project_id: int, annotator: str, config: LabellingConfig) -> int | None:
    """A gold pair to show instead of another one, at the rate of the labelling settings; None: not this time.

    Random order and draws without a seed: nobody can know which pairs are gold. Never one that this person has seen.
    """
    if config.gold_rate <= 0 or secrets.randbelow(10_000) >= round(10_000 * config.gold_rate):
        return None
    seen = [
        select(table.c.pair_id).where(table.c.pair_id == t.pairs.c.id, table.c.annotator == annotator).exists()
        for table in (t.votes, t.leases)
    ]
    query = select(t.pairs.c.id).where(live_pair_of(project_id), t.pairs.c.gold.is_not(None), *(~one for one in seen))
    pair_id: int | None = conn.execute(query.order_by(func.random()).limit(1)).scalar()
    return pair_id


def votes_and_leases(annotator: str, now: float) -> ColumnElement[int]:
    """Of the pair in the enclosing query: people's live votes except skips, plus the running leases of others."""
    v, lease = t.votes.c, t.leases.c
    other_lease = and_(
        lease.pair_id == t.pairs.c.id, lease.annotator != annotator, lease.expires_at > now, lease.repeat.is_(False)
    )
    lease_count = select(func.count()).select_from(t.leases).where(other_lease).correlate(t.pairs).scalar_subquery()
    return count_live_votes(v.source == Source.HUMAN, NOT_A_REPEAT, v.choice != Choice.SKIP) + lease_count


def has_enough_votes(conn: Connection, pair_id: int, annotator: str, config: LabellingConfig, now: float) -> bool:
    has_enough = votes_and_leases(annotator, now) >= config.overlap
    return bool(conn.execute(select(has_enough).select_from(t.pairs).where(t.pairs.c.id == pair_id)).scalar())
