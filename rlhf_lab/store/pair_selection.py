"""Selects the next pair for a person: a hidden repeat, one that still needs votes, or a gold pair. Queries for `pair_leases`.

In a lab with gold pairs a person cannot tell these from ordinary ones, also not with two names: all pairs come in a random order,
a gold pair takes the place of an ordinary one of the same origin (`draw_gold_pair`), and one that was drawn for somebody is then
open to others as an ordinary pair would be (`GoldRounds`).
"""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import AnyRow, in_chunks
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
    conn: Connection, votes: VoteTable, annotator: str, config: LabellingConfig, queued_ids: list[int], now: float,
    live_ids: Sequence[int] = (),
) -> int | None:  # fmt: skip
    """The pair to show after those in `queued_ids`, in the order of `lease_pair`, or None if there is none.

    live_ids: pairs of the runs that are training, which come first, in this order. After queued pairs, only pairs that need votes
    are chosen, and of ordinary ones only if PAIRS_LEFT_FOR_OTHERS others stay free.
    """
    counts = label_and_lease_counts(votes, running_leases(conn, now), annotator)
    skips = votes.count_by_pair("skips", _is_human_skip)
    is_open = votes.unvoted_by(annotator)
    if config.gold_rate > 0:
        rounds = gold_rounds(votes)
        gold, skips = rounds.position, skips.copy()
        counts[gold] -= rounds.answers - rounds.answers % config.overlap
        skips[gold] = rounds.is_skipped
        is_due = _is_round_open(conn, votes, annotator, now, rounds) | (counts[gold] > 0)
        counts[gold[~is_due]] = config.overlap
        np.minimum(
            counts, config.overlap, out=counts
        )  # of a gold pair it is unknown how many more an ordinary one would have
        is_open[gold] = (
            is_due | is_open.any()
        )  # others only in place of an ordinary pair: alone they would be recognised
        is_open[votes.pair[votes.cast_by(annotator) & (votes.live | votes.gold[votes.pair])]] = False
    if queued_ids:
        is_open[votes.positions_of_pairs(queued_ids)] = False
        is_open &= counts < config.overlap
    live = votes.positions_of_pairs(live_ids)
    live = live[is_open[live] & (counts[live] < config.overlap)]
    if len(live):
        return int(votes.pair_id[live[0]])
    pairs = np.flatnonzero(is_open)
    if len(pairs) <= (PAIRS_LEFT_FOR_OTHERS if queued_ids else 0):
        return None
    if config.texts == "policy":
        pairs = pairs[::-1]
    counts, skips = counts[pairs], skips[pairs]
    has_enough = counts >= config.overlap
    # The three sort keys are combined into one number, so that the first pair is found without sorting.
    width = 2 * int(counts.max()) + 1
    rank = (has_enough * (int(skips.max()) + 1) + skips) * width + np.where(has_enough, counts, -counts)
    first = np.argmin(rank)
    if (
        config.gold_rate > 0
    ):  # texts and their order are known to whoever knows the seed: a gold pair would be out of order
        first = secrets.choice(np.flatnonzero(rank == rank[first]))
    return int(votes.pair_id[pairs[first]])


class GoldRounds(NamedTuple):
    """Gold pairs are answered in rounds of `overlap` answers; in a round such a pair is what an ordinary pair is until it has
    enough votes. One value per gold pair: its position in the vote table, people's answers, when people last voted on it (0.0:
    never), and whether that was a skip."""

    position: NDArray[np.int64]
    answers: NDArray[np.int64]
    voted_at: NDArray[np.float64]
    is_skipped: NDArray[np.bool_]


def gold_rounds(votes: VoteTable) -> GoldRounds:
    """Computed once for each state of the votes."""

    def compute() -> GoldRounds:
        position = np.flatnonzero(votes.gold & votes.pair_live)
        own = np.flatnonzero(votes.gold[votes.pair] & votes.live & ~votes.repeat & (votes.source == code(Source.HUMAN)))
        last = np.full(len(votes.pair_id), -1)
        last[votes.pair[own]] = own  # the votes are in the order in which they were cast
        last = last[position]
        answers = votes.count_by_pair("human answers", _is_human_answer)[position]
        is_voted = last >= 0
        voted_at, is_skipped = np.zeros(len(last)), np.zeros(len(last), np.bool_)
        voted_at[is_voted] = votes.created_at[last[is_voted]]
        is_skipped[is_voted] = votes.choice[last[is_voted]] == code(Choice.SKIP)
        return GoldRounds(position, answers, voted_at, is_skipped)

    return votes.cached("gold rounds", compute)


def _is_round_open(
    conn: Connection, votes: VoteTable, annotator: str, now: float, rounds: GoldRounds
) -> NDArray[np.bool_]:
    """Whether the last person who was given a gold pair gave it back or skipped it. An ordinary pair is then open to others."""
    lease, pair_ids = t.leases.c, votes.pair_id[rounds.position].tolist()
    ended = (
        select(lease.pair_id, func.max(lease.leased_at))
        .where(lease.pair_id.in_(pair_ids), lease.annotator != annotator, lease.expires_at <= now)
        .where(lease.repeat.is_(False), lease.adjudication.is_(False))
        .group_by(lease.pair_id)
    )
    given_back = {row[0]: row[1] for row in conn.execute(ended)} if pair_ids else {}
    given_back_at = np.array([given_back.get(pair_id, -1.0) for pair_id in pair_ids])
    return rounds.is_skipped | (given_back_at > rounds.voted_at)


def running_leases(conn: Connection, now: float) -> list[tuple[int, str]]:
    """(pair, annotator) of each running lease that is not of a hidden repeat."""
    return [(row.pair_id, row.annotator) for row in conn.execute(_RUNNING_LEASES, {"now": now})]


def label_and_lease_counts(votes: VoteTable, leases: Sequence[tuple[int, str]], annotator: str) -> NDArray[np.int64]:
    """`votes_and_leases` of every pair. leases: see `running_leases`."""
    leased = [pair_id for pair_id, name in leases if name != annotator]
    answers = votes.count_by_pair("human answers", _is_human_answer)
    return answers + np.bincount(votes.positions_of_pairs(leased), minlength=len(answers))


def human_vote_counts(votes: VoteTable) -> NDArray[np.int64]:
    """People's live votes on each pair, skips included."""
    return votes.count_by_pair("human votes", lambda votes: votes.live & (votes.source == code(Source.HUMAN)))


def _is_human_answer(votes: VoteTable) -> NDArray[np.bool_]:
    return votes.answers_of(Source.HUMAN)


def _is_human_skip(votes: VoteTable) -> NDArray[np.bool_]:
    is_skip: NDArray[np.bool_] = votes.live & (votes.source == code(Source.HUMAN)) & (votes.choice == code(Choice.SKIP))
    return is_skip


def draw_gold_pair(
    conn: Connection, votes: VoteTable, annotator: str, config: LabellingConfig, open_pair: int, now: float
) -> int | None:
    """A gold pair to show instead of an ordinary one, at the rate of the labelling settings; None otherwise.

    Drawn at random without a seed, so that no one can predict which pairs are gold. Never one that this person has seen, nor one
    that others have or whose round is not over: it comes to `overlap` people as an ordinary pair does, so it is drawn less often.
    Never one of another origin than open_pair: a shipped or imported text, which many know, would be a gold pair for certain when
    the ordinary ones beside it have their labels.
    """
    is_drawn = secrets.randbelow(10_000) < round(10_000 * config.gold_rate / config.overlap)
    if config.gold_rate <= 0 or not is_drawn:
        return None
    rounds = gold_rounds(votes)
    own = select(t.leases.c.pair_id).where(t.leases.c.annotator == annotator)
    taken = [*conn.execute(own).scalars(), *(pair_id for pair_id, _ in running_leases(conn, now))]
    is_free = np.zeros(len(votes.pair_id), np.bool_)
    is_free[rounds.position[rounds.answers % config.overlap == 0]] = True
    is_free[votes.positions_of_pairs(taken)] = False
    is_free[votes.pair[votes.cast_by(annotator)]] = False
    free: list[int] = votes.pair_id[np.flatnonzero(is_free)].tolist()
    origins = _origins(conn, [open_pair, *free])
    alike = [pair_id for pair_id in free if origins[pair_id] == origins[open_pair]]
    return secrets.choice(alike) if alike else None


def _origins(conn: Connection, pair_ids: Sequence[int]) -> dict[int, tuple[int | None, str, str]]:
    """pair id -> what people can see or know of where it comes from: its import, the checkpoint that wrote its texts, and how it
    was selected among others."""
    p, completion = t.pairs.c, t.completions.c
    query = select(p.id, p.import_id, completion.checkpoint, p.reason).join(t.completions, completion.id == p.first_id)
    return {
        row.id: (row.import_id, row.checkpoint, row.reason.partition(":")[0])
        for ids in in_chunks(pair_ids)
        for row in conn.execute(query.where(p.id.in_(ids)))
    }


def votes_and_leases(annotator: str, now: float) -> ColumnElement[int]:
    """For the pair of the enclosing query: people's live votes without skips, plus the running leases of others."""
    v, lease = t.votes.c, t.leases.c
    other_lease = and_(
        lease.pair_id == t.pairs.c.id, lease.annotator != annotator, lease.expires_at > now, lease.repeat.is_(False)
    )
    lease_count = select(func.count()).select_from(t.leases).where(other_lease).correlate(t.pairs).scalar_subquery()
    return count_live_votes(v.source == Source.HUMAN, NOT_A_REPEAT, v.choice != Choice.SKIP) + lease_count


def has_enough_votes(conn: Connection, lease: AnyRow, config: LabellingConfig, now: float) -> bool:
    """Whether the pair of a lease needs no further vote. Of a gold pair the answers of earlier rounds do not count."""
    v, pair = t.votes.c, t.pairs.c
    earlier = count_live_votes(
        v.source == Source.HUMAN, NOT_A_REPEAT, v.choice != Choice.SKIP, v.created_at <= lease.leased_at
    )
    query = select(votes_and_leases(lease.annotator, now), earlier, pair.gold).where(pair.id == lease.pair_id)
    row = conn.execute(query).one_or_none()
    if row is None:
        return False
    used, before, gold = row
    return bool(used - (0 if gold is None else before - before % config.overlap) >= config.overlap)
