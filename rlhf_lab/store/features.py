"""Features of completions, computed by the engine and read by the instant reward model of the page, and the labels for it.

The features of a text are stored in half precision, one layer after the other: 2 bytes per hidden unit and layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Select, delete, insert, or_, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Completion, Pair, Prompt
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.projects import live_pair_of, load_pairs
from rlhf_lab.store.vote_table import current_votes
from rlhf_lab.store.votes import LIVE_VOTE, has_live_vote, is_final_label

#: Version of the features that the engine computes (engine/text_features.py). Those of another version are computed again.
FEATURE_VERSION = 1
#: The instant reward model learns from this many of the newest labels, which limits its time and the stored features.
MAX_INSTANT_LABELS = 1000
MAX_UNLABELLED_PAIRS = 200  # number of unlabelled pairs whose features are computed in advance

Float16 = NDArray[np.float16]


@dataclass(frozen=True)
class TextFeatures:
    """vector: (layers * H,) float16; empty if the text has no usable features."""

    layers: int
    vector: Float16


class StoredText(NamedTuple):
    """A completion. prompt: as it is stored. token_ids: empty for a text that was not sampled."""

    prompt: str
    text: str
    token_ids: Sequence[int] = ()


@dataclass(frozen=True)
class PairLabel:
    """A live label, and the ids of the two completions that it compares."""

    vote_id: int
    pair_id: int
    prompt_id: int
    first_id: int
    second_id: int
    choice: Choice
    strength: float


def add_features(db: Database, features: Mapping[int, TextFeatures]) -> None:
    """Store features by completion id; existing ones are replaced. Completions that no longer exist are left out."""
    with db.write() as conn:
        for ids in in_chunks(list(features)):
            conn.execute(delete(t.features).where(t.features.c.completion_id.in_(ids)))
            existing = conn.execute(select(t.completions.c.id).where(t.completions.c.id.in_(ids))).scalars().all()
            rows = [
                {
                    "completion_id": i, "version": FEATURE_VERSION, "layers": features[i].layers,
                    "vector": features[i].vector.astype("<f2").tobytes(),
                }
                for i in existing
            ]  # fmt: skip
            if rows:
                conn.execute(insert(t.features), rows)


def load_features(db: Database, completion_ids: Sequence[int]) -> dict[int, TextFeatures]:
    """Features by completion id, without completions that have none."""
    f = t.features.c
    found: dict[int, TextFeatures] = {}
    with db.read() as conn:
        for ids in in_chunks(completion_ids):
            query = select(f.completion_id, f.layers, f.vector).where(
                f.completion_id.in_(ids), f.version == FEATURE_VERSION
            )
            found |= {
                row.completion_id: TextFeatures(row.layers, np.frombuffer(row.vector, "<f2"))
                for row in conn.execute(query)
            }
    return found


def oldest_features(db: Database, project_id: int, limit: int) -> list[tuple[StoredText, TextFeatures]]:
    """The oldest texts of a project that have usable features."""
    f, c = t.features.c, t.completions.c
    query = (
        select(t.prompts.c.text.label("prompt"), c.text, c.token_ids, f.layers, f.vector)
        .join(t.completions, t.completions.c.id == f.completion_id)
        .join(t.prompts, t.prompts.c.id == t.completions.c.prompt_id)
        .where(t.prompts.c.project_id == project_id, f.version == FEATURE_VERSION, f.vector != b"")
        .order_by(f.completion_id)
        .limit(limit)
    )
    return [
        (StoredText(*row[:3]), TextFeatures(row.layers, np.frombuffer(row.vector, "<f2"))) for row in db.fetch(query)
    ]


def newest_labels(db: Database, project_id: int, source: Source, limit: int = MAX_INSTANT_LABELS) -> list[PairLabel]:
    """The newest live labels of a source, oldest first, without skips, hidden repeats and votes overruled by an expert.

    Votes on gold pairs are included, because a count that does not change after a vote would reveal these pairs.
    """
    v, p = t.votes.c, t.pairs.c
    columns = (v.id, v.pair_id, t.completions.c.prompt_id, p.first_id, p.second_id, v.choice, v.strength)
    newest = _newest_label_ids(db, project_id, source, limit)
    query = select(*columns).join(t.pairs, p.id == v.pair_id).join(t.completions, t.completions.c.id == p.first_id)
    query = query.where(v.id.in_(newest), LIVE_VOTE, is_final_label()).order_by(v.id)
    rows = db.fetch(query).all()
    return [
        PairLabel(
            row.id, row.pair_id, row.prompt_id, row.first_id, row.second_id, row.choice,
            0.0 if row.strength is None else float(row.strength.level),
        )
        for row in rows
    ]  # fmt: skip


def texts_of_pairs(db: Database, pair_ids: Sequence[int]) -> list[Pair]:
    """In the order of pair_ids, all of which exist."""
    with db.read() as conn:
        pairs = {pair.id: pair for pair in load_pairs(conn, pair_ids)}
    return [pairs[i] for i in pair_ids]


def _newest_label_ids(db: Database, project_id: int, source: Source, limit: int) -> list[int]:
    """Ids of the newest labels, found in the table in memory, because a query would read all votes."""
    votes = current_votes(db, project_id)
    ids: list[int] = votes.vote_id[np.flatnonzero(votes.training_labels(source, gold=True))[-limit:]].tolist()
    return ids


def texts_without_features(db: Database, project_id: int, limit: int) -> list[tuple[Prompt, Completion]]:
    """At most `limit` completions that need features and have none, with their prompts.

    Those of the newest labels come first, then those of unlabelled pairs.
    """
    newest = [_newest_label_ids(db, project_id, source, MAX_INSTANT_LABELS) for source in Source]
    with db.read() as conn:
        pair_ids = [
            pair_id
            for query in (*map(_labelled_pairs, newest), _unlabelled_pairs(project_id))
            for pair_id in conn.execute(query.limit(limit)).scalars()
        ]
        pairs = {pair.id: pair for pair in load_pairs(conn, pair_ids[:limit])}
        sides = [(pairs[i].prompt, side) for i in pair_ids[:limit] for side in (pairs[i].first, pairs[i].second)]
        side_ids = [side.id for _, side in sides]
        complete = set(conn.execute(_current_features(t.features.c.completion_id.in_(side_ids))).scalars())
    missing = {side.id: (prompt, side) for prompt, side in sides if side.id not in complete}
    return list(missing.values())[:limit]


def _labelled_pairs(vote_ids: Sequence[int]) -> Select[*tuple[Any, ...]]:
    """Pairs of these votes whose features are missing."""
    v, p = t.votes.c, t.pairs.c
    query = select(p.id).join(t.votes, v.pair_id == p.id).where(v.id.in_(vote_ids), LIVE_VOTE, _lacks_features())
    return query.order_by(v.id.desc())


def _unlabelled_pairs(project_id: int) -> Select[*tuple[Any, ...]]:
    """The oldest pairs without a vote whose features are missing."""
    unlabelled = select(t.pairs.c.id).where(live_pair_of(project_id), ~has_live_vote())
    oldest = unlabelled.order_by(t.pairs.c.id).limit(MAX_UNLABELLED_PAIRS)
    return select(t.pairs.c.id).where(t.pairs.c.id.in_(oldest), _lacks_features()).order_by(t.pairs.c.id)


def _lacks_features() -> ColumnElement[bool]:
    """Whether a completion of the pair of the enclosing query has no features."""
    f, p = t.features.c, t.pairs.c
    return or_(
        *(~_current_features(f.completion_id == side).correlate(t.pairs).exists() for side in (p.first_id, p.second_id))
    )


def _current_features(condition: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """Ids of completions that have features of this version."""
    f = t.features.c
    return select(f.completion_id).where(condition, f.version == FEATURE_VERSION)
