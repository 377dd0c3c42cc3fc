"""Snapshots of the labels that a reward model is trained on: which votes, with which weights.

A snapshot contains the votes of one source: human and simulated labels are never mixed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Comparison, LabelSnapshot
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import AnyRow, Database, in_chunks
from rlhf_lab.store.edited_answers import EDIT_REASON
from rlhf_lab.store.erasure import ERASED_TEXT
from rlhf_lab.store.gold_pairs import annotator_weights
from rlhf_lab.store.projects import FIRST_COMPLETION, SECOND_COMPLETION, get_labelling_config
from rlhf_lab.store.reward_model_list import ListedRewardModel
from rlhf_lab.store.vote_table import current_votes
from rlhf_lab.store.votes import NOT_A_REPEAT, is_final_label, live_votes_query


def snapshot_labels(
    db: Database, project_id: int, source: Source, annotators: list[str] | None = None
) -> LabelSnapshot:
    """Take a snapshot of the live labels of one source (and of these annotators), in the order they were cast, without skips.

    An expert's decision replaces the votes on its pair, if the expert is one of these annotators. Votes on gold pairs are left
    out unless the labelling settings include them. The snapshot also contains the weights of the votes, because the settings
    may give those of people below the bound a lower weight.
    """
    v, rules = t.votes.c, get_labelling_config(db, project_id)
    query = _training_labels_query(project_id, source, rules, v.id, v.annotator, annotators=annotators).order_by(v.id)
    if annotators is not None:
        query = query.where(v.annotator.in_(annotators))
    with db.read() as conn:
        votes = conn.execute(query).all()
        reduced = annotator_weights(conn, project_id, rules) if source is Source.HUMAN else {}
        vote_ids = tuple(vote.id for vote in votes)
        weights = tuple(reduced.get(vote.annotator, 1.0) for vote in votes)
        weights = () if all(weight == 1.0 for weight in weights) else weights
        return LabelSnapshot(vote_ids, _labels_digest(_label_rows(conn, vote_ids), weights), source, weights)


def labels_with_gold(
    db: Database, project_id: int, source: Source, annotators: list[str] | None = None
) -> dict[str, int]:
    """The number of labels of `snapshot_labels`, and the newest, as if votes on gold pairs were trained on: what a report says of
    the labels it is about, so that nobody can compute from it which of their votes were on gold pairs."""
    v, rules = t.votes.c, replace(get_labelling_config(db, project_id), gold_training=True)
    query = _training_labels_query(project_id, source, rules, func.count(), func.max(v.id), annotators=annotators)
    if annotators is not None:
        query = query.where(v.annotator.in_(annotators))
    count, newest = db.fetch(query).one()
    return {"labels_cast": count, "newest_label": newest or 0}


def current_labels(db: Database, project_id: int) -> LabelSnapshot:
    """Take a snapshot of people's labels, or of the simulated ones if there are none."""
    human_labels = snapshot_labels(db, project_id, Source.HUMAN)
    return human_labels if human_labels.vote_ids else snapshot_labels(db, project_id, Source.SIMULATED)


def count_live_labels(db: Database, project_id: int, model: ListedRewardModel) -> int:
    """How many of the labels of a reward model are still live, in the units of `vote_counts`.

    Counts usable labels up to the newest one that the model was trained on, at most as many as it was trained on. Labels in this
    range on which no reward model is trained (gold pairs, pairs that an expert decided) are added, since `vote_counts` has them.
    """
    rules, votes = get_labelling_config(db, project_id), current_votes(db, project_id)
    known = votes.vote_id <= model.newest_vote_id
    counted = int((known & votes.labels_of(model.source)).sum())
    usable = int((known & votes.training_labels(model.source, gold=rules.gold_training)).sum())
    return min(usable, model.trained_count) + counted - usable


def _training_labels_query(
    project_id: int,
    source: Source,
    rules: LabellingConfig,
    *columns: ColumnElement[Any],
    annotators: list[str] | None = None,
) -> Select[*tuple[Any, ...]]:
    query = _live_labels_query(project_id, source, *columns)
    if source is Source.HUMAN:
        query = query.where(is_final_label(annotators))
    return query if rules.gold_training else query.where(t.pairs.c.gold.is_(None))


def _live_labels_query(project_id: int, source: Source, *columns: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    return live_votes_query(project_id, source, *columns).where(NOT_A_REPEAT, t.votes.c.choice != Choice.SKIP)


def snapshot_annotators(db: Database, snapshot: LabelSnapshot) -> list[str]:
    """The sorted names of the annotators whose labels are in a snapshot, without those of deleted votes."""
    return sorted(set(_annotator_by_vote(db, snapshot).values()))


def annotator_per_vote(db: Database, snapshot: LabelSnapshot) -> list[str]:
    """The annotator of each vote of a snapshot, in its order."""
    names = _annotator_by_vote(db, snapshot)
    return [names[vote_id] for vote_id in snapshot.vote_ids]


def _annotator_by_vote(db: Database, snapshot: LabelSnapshot) -> dict[int, str]:
    v = t.votes.c
    names: dict[int, str] = {}
    with db.read() as conn:
        for ids in in_chunks(snapshot.vote_ids):
            names |= {row.id: row.annotator for row in conn.execute(select(v.id, v.annotator).where(v.id.in_(ids)))}
    return names


def load_comparisons(db: Database, snapshot: LabelSnapshot) -> list[Comparison]:
    """One comparison per vote of the snapshot, in its order and with its weight, even if the vote was undone since.

    tie and both_bad are ties, for which chosen is the first completion. Raises StoreError if the rows were changed since the
    snapshot was taken.
    """
    with db.read() as conn:
        labels = _label_rows(conn, snapshot.vote_ids)
    if _labels_digest(labels, snapshot.weights) != snapshot.digest:
        raise StoreError(
            "The labels in the database differ from the recorded ones: texts of a person were erased, rows were changed by "
            "hand, or this is another database. Train a new reward model, or start a new run, on the current labels."
        )
    weights = snapshot.weights or (1.0,) * len(labels)
    return [_comparison_from_row(row, weight) for row, weight in zip(labels, weights, strict=True)]


def comparisons_by_vote(db: Database, vote_ids: Sequence[int]) -> dict[int, Comparison]:
    """The current labels of these votes by vote id, without votes that do not exist (any more) and those on erased texts."""
    with db.read() as conn:
        rows = _label_rows(conn, sorted(set(vote_ids)))
    return {row.id: _comparison_from_row(row, 1.0) for row in rows if ERASED_TEXT not in (row.first, row.second)}


def _label_rows(conn: Connection, vote_ids: Sequence[int]) -> list[AnyRow]:
    query = (
        select(
            t.votes.c.id,
            t.votes.c.choice,
            t.votes.c.strength,
            t.pairs.c.reason,
            t.prompts.c.id.label("prompt_id"),
            t.prompts.c.text.label("prompt"),
            FIRST_COMPLETION.c.text.label("first"),
            FIRST_COMPLETION.c.token_ids.label("first_ids"),
            SECOND_COMPLETION.c.text.label("second"),
            SECOND_COMPLETION.c.token_ids.label("second_ids"),
        )
        .select_from(t.votes)
        .join(t.pairs, t.pairs.c.id == t.votes.c.pair_id)
        .join(FIRST_COMPLETION, FIRST_COMPLETION.c.id == t.pairs.c.first_id)
        .join(SECOND_COMPLETION, SECOND_COMPLETION.c.id == t.pairs.c.second_id)
        .join(t.prompts, t.prompts.c.id == FIRST_COMPLETION.c.prompt_id)
        .order_by(t.votes.c.id)
    )
    return [row for ids in in_chunks(vote_ids) for row in conn.execute(query.where(t.votes.c.id.in_(ids)))]


def _labels_digest(labels: Sequence[AnyRow], weights: Sequence[float]) -> str:
    """A digest of choices, texts and weights. Ids are left out, so that exported and imported labels have the same digest."""
    digest = hashlib.sha256()
    for row, weight in zip(labels, weights or (1.0,) * len(labels), strict=True):
        fields = [row.choice.value, row.prompt, row.first, row.first_ids, row.second, row.second_ids]
        fields += [] if row.strength is None else [row.strength.value]  # optional, so that older digests stay valid
        fields += [] if weight == 1.0 else [weight]
        digest.update(json.dumps(fields).encode() + b"\n")
    return digest.hexdigest()


def _comparison_from_row(row: AnyRow, weight: float) -> Comparison:
    first, second = (row.first, tuple(row.first_ids)), (row.second, tuple(row.second_ids))
    chosen, rejected = (second, first) if row.choice is Choice.SECOND else (first, second)
    return Comparison(
        prompt=row.prompt,
        chosen=chosen[0],
        rejected=rejected[0],
        chosen_ids=chosen[1],
        rejected_ids=rejected[1],
        tie=row.choice in (Choice.TIE, Choice.BOTH_BAD),
        group=row.prompt_id,
        strength=0.0 if row.strength is None else float(row.strength.level),
        weight=weight,
        is_edit=row.reason == EDIT_REASON and row.choice is Choice.FIRST,
    )
