"""Scores that reward models gave to completions before people voted on them, for comparison with the votes."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from sqlalchemy import Connection, delete, insert, select

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, RewardPredictionStats
from rlhf_lab.common.stats import grouped_interval, hit
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.projects import newest_pairs
from rlhf_lab.store.reward_model_list import list_reward_models
from rlhf_lab.store.run_metrics import nan_to_null, null_to_nan
from rlhf_lab.store.vote_table import code, current_votes
from rlhf_lab.store.votes import has_live_vote


def add_scores(db: Database, reward_model_id: int, scores: Mapping[int, float]) -> None:
    """Store scores (completion id -> score); existing ones are replaced.

    Raises StoreError if there is no such reward model or completion.
    """
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
    """The newest `limit` pairs without a live vote of a person, oldest first."""
    return newest_pairs(db, project_id, limit, ~has_live_vote(t.votes.c.source == Source.HUMAN))


def prediction_accuracy(db: Database, project_id: int, source: Source) -> RewardPredictionStats:
    """How often reward models predicted a vote correctly.

    Counts the live, decided votes of `source` for which the newest reward model at the time of the vote (trained on labels of the
    same source) had scored both sides and was not trained on the pair. A prediction is correct if the chosen side has the higher
    score, and half correct if the scores are equal (`hit`). Votes on actively selected pairs are counted separately, because
    such pairs are harder than others.
    """
    models = [model for model in reversed(list_reward_models(db, project_id)) if model.source is source]
    models.sort(key=lambda model: model.created_at)
    votes = current_votes(db, project_id)
    first_won = votes.choice == code(Choice.FIRST)
    decided = np.flatnonzero(votes.labels_of(source) & (first_won | (votes.choice == code(Choice.SECOND))))
    model_index = np.searchsorted([model.created_at for model in models], votes.created_at[decided]) - 1
    hits: tuple[list[tuple[int, float]], ...] = ([], [])  # (pair, `hit`), by whether the pair was actively selected
    with db.read() as conn:
        for index, model in enumerate(models):
            rows = decided[model_index == index]
            rows = rows[~np.isin(votes.pair[rows], model.trained_pairs)]
            pairs, pair_of_row = np.unique(votes.pair[rows], return_inverse=True)
            sides = votes.first_id[pairs].tolist(), votes.second_id[pairs].tolist()
            scores = _scores_of(conn, model.id, sorted({*sides[0], *sides[1]}))
            first, second = (np.array([scores.get(i, math.nan) for i in side], np.float64) for side in sides)
            is_scored = np.array([i in scores and j in scores for i, j in zip(*sides, strict=True)], np.bool_)
            is_right = np.where(first_won[rows], hit(first - second)[pair_of_row], hit(second - first)[pair_of_row])
            for selected in (False, True):
                counted = is_scored[pair_of_row] & (votes.actively_selected[votes.pair[rows]] == selected)
                hits[selected].extend(zip(votes.pair[rows][counted].tolist(), is_right[counted].tolist(), strict=True))
    low, high = grouped_interval(hits[False])
    right, right_selected = (sum(is_right for _, is_right in one) for one in hits)
    return RewardPredictionStats(right, len(hits[False]), low, high, right_selected, len(hits[True]))


def _scores_of(conn: Connection, reward_model_id: int, completion_ids: Sequence[int]) -> dict[int, float]:
    s = t.scores.c
    scores: dict[int, float] = {}
    for ids in in_chunks(completion_ids):
        query = select(s.completion_id, s.score).where(s.reward_model_id == reward_model_id, s.completion_id.in_(ids))
        scores |= {row.completion_id: null_to_nan(row.score) for row in conn.execute(query)}
    return scores
