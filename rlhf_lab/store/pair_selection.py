"""Selects the next pair for a person: a hidden repeat, one that still needs votes, or a gold pair. Queries for `pair_leases`."""

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.store import tables as t
from rlhf_lab.store.projects import live_pair_of
from rlhf_lab.store.vote_table import VoteTable, code
from rlhf_lab.store.votes import NOT_A_REPEAT, count_live_votes

PAIRS_LEFT_FOR_OTHERS = 4  # a pair is prefetched only if more than this many are free
REPEAT_AFTER_VOTES = 8  # votes of a person between their first vote on a pair and its hidden repeat
_RUNNING_LEASES = select(t.leases.c.pair_id, t.leases.c.annotator).where(
    t.leases.c.expires_at > bindparam("now"), t.leases.c.repeat.is_(False)
)


def next_hidden_repeat(
    votes: VoteTable, project_id: int, annotator: str, config: LabellingConfig, queued_ids: list[int]
) -> int | None:
    """A pair to show a second time after those in `queued_ids`, or None if no repeat is due.

    The choice is random but reproducible: reloading the page gives the same result.
    """
    if config.repeats <= 0:
        return None
    own = np.flatnonzero(votes.votes_by(annotator) & (votes.source == code(Source.HUMAN)))
    draw = derive_seed(project_id, "hidden repeat", annotator, len(own) + len(queued_ids)) % 10_000
    if draw >= round(10_000 * config.repeats):
        return None
    early = own[: max(0, len(own) - REPEAT_AFTER_VOTES)]
    labels = early[votes.labels_of(Source.HUMAN)[early]]  # gold pairs too: one that is left out would be noticed
    shown = np.concatenate([votes.pair[own[votes.repeat[own]]], votes.positions_of_pairs(queued_ids)])
    labels = labels[~np.isin(votes.pair[labels], shown)]
    return int(votes.pair_id[votes.pair[labels[0]]]) if len(labels) else None


def next_open_pair(
    conn: Connection, votes: VoteTable, annotator: str, config: LabellingConfig, queued_ids: list[int], now: float
) -> int | None:
    """The pair to show after those in `queued_ids`, in the order of `lease_pair`, or None if there is none.

    After queued pairs, only pairs that need votes are chosen, and only if PAIRS_LEFT_FOR_OTHERS others stay free.
    """
    counts = label_and_lease_counts(votes, running_leases(conn, now), annotator)
    is_open = votes.unvoted_by(annotator)
    if queued_ids:
        is_open[votes.positions_of_pairs(queued_ids)] = False
        is_open &= counts < config.overlap
    pairs = np.flatnonzero(is_open)
    if len(pairs) <= (PAIRS_LEFT_FOR_OTHERS if queued_ids else 0):
        return None
    if config.texts == "policy":
        pairs = pairs[::-1]
    counts, skips = counts[pairs], votes.count_by_pair("skips", _is_human_skip)[pairs]
    has_enough = counts >= config.overlap
    # The three sort keys are combined into one number, so that the first pair is found without sorting.
    width = 2 * int(counts.max()) + 1
    rank = (has_enough * (int(skips.max()) + 1) + skips) * width + np.where(has_enough, counts, -counts)
    return int(votes.pair_id[pairs[np.argmin(rank)]])


def running_leases(conn: Connection, now: float) -> list[tuple[int, str]]:
    """(pair, annotator) of each running lease that is not of a hidden repeat."""
    return [(row.pair_id, row.annotator) for row in conn.execute(_RUNNING_LEASES, {"now": now})]


def label_and_lease_counts(votes: VoteTable, leases: Sequence[tuple[int, str]], annotator: str) -> NDArray[np.int64]:
    """`votes_and_leases` of every pair. leases: see `running_leases`."""
    leased = [pair_id for pair_id, name in leases if name != annotator]
    answers = votes.count_by_pair("human answers", lambda some: some.answers_of(Source.HUMAN))
    return answers + np.bincount(votes.positions_of_pairs(leased), minlength=len(answers))


def _is_human_skip(votes: VoteTable) -> NDArray[np.bool_]:
    is_skip: NDArray[np.bool_] = votes.live & (votes.source == code(Source.HUMAN)) & (votes.choice == code(Choice.SKIP))
    return is_skip


def draw_gold_pair(conn: Connection, project_id: int, annotator: str, config: LabellingConfig) -> int | None:
    """A gold pair to show instead of an ordinary one, at the rate of the labelling settings; None otherwise.

    Drawn at random without a seed, so that no one can predict which pairs are gold. Never one that this person has seen.
    """
    if config.gold_rate <= 0:
        return None
    seen = [
        select(table.c.pair_id).where(table.c.pair_id == t.pairs.c.id, table.c.annotator == annotator).exists()
        for table in (t.votes, t.leases)
    ]
    query = select(t.pairs.c.id).where(live_pair_of(project_id), t.pairs.c.gold.is_not(None), *(~one for one in seen))
    pair_id: int | None = conn.execute(query.order_by(func.random()).limit(1)).scalar()  # always, because it takes time
    return pair_id if secrets.randbelow(10_000) < round(10_000 * config.gold_rate) else None


def votes_and_leases(annotator: str, now: float) -> ColumnElement[int]:
    """For the pair of the enclosing query: people's live votes without skips, plus the running leases of others."""
    v, lease = t.votes.c, t.leases.c
    other_lease = and_(
        lease.pair_id == t.pairs.c.id, lease.annotator != annotator, lease.expires_at > now, lease.repeat.is_(False)
    )
    lease_count = select(func.count()).select_from(t.leases).where(other_lease).correlate(t.pairs).scalar_subquery()
    return count_live_votes(v.source == Source.HUMAN, NOT_A_REPEAT, v.choice != Choice.SKIP) + lease_count


def has_enough_votes(conn: Connection, pair_id: int, annotator: str, config: LabellingConfig, now: float) -> bool:
    has_enough = votes_and_leases(annotator, now) >= config.overlap
    return bool(conn.execute(select(has_enough).select_from(t.pairs).where(t.pairs.c.id == pair_id)).scalar())
