"""Gold pairs: pairs with a known answer, on which the accuracy of people is measured and compared with the labelling rules.

An answer counts if it was given after the pair became gold, and after the operator last ended a pause of this person.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, case, func, select, update

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.stats import wilson_interval
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabelError, StaleVoteError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.projects import live_pair_of
from rlhf_lab.store.votes import LIVE_VOTE, NOT_A_REPEAT, NOT_AN_ADJUDICATION, live_votes_query

#: The rule is applied only after every tenth answer: an effect directly after an answer would reveal a gold pair.
ANSWERS_BETWEEN_LOOKS = 10


@dataclass(frozen=True)
class GoldResult:
    """The number of a person's answers on gold pairs, and how many are correct."""

    annotator: str
    right: int
    answers: int

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the accuracy."""
        return wilson_interval(self.right, self.answers)

    def is_below_bound(self, rules: LabellingConfig) -> bool:
        """Whether there are enough answers and even the upper end of the interval is below the bound."""
        return self.answers >= rules.gold_answers and self.interval[1] < rules.gold_bound


def mark_gold(db: Database, project_id: int, annotator: str, vote_id: int, is_gold: bool) -> None:
    """Make the pair of a person's vote a gold pair with that vote as the known answer, or an ordinary pair again.

    Raises StaleVoteError if this person has no such live vote, LabelError if the vote prefers neither text.
    """
    v = t.votes.c
    query = live_votes_query(project_id, Source.HUMAN, v.pair_id, v.choice)
    with db.write() as conn:
        vote = conn.execute(query.where(v.id == vote_id, v.annotator == annotator)).one_or_none()
        if vote is None:
            raise StaleVoteError("That answer has been changed or undone. Reload the page.")
        if is_gold and vote.choice not in (Choice.FIRST, Choice.SECOND):
            raise LabelError(
                "A known answer must prefer one of the two texts. Change your answer first, or choose another pair."
            )
        values = {"gold": vote.choice, "gold_at": time.time()} if is_gold else {"gold": None, "gold_at": None}
        conn.execute(update(t.pairs).where(t.pairs.c.id == vote.pair_id).values(**values))


def known_answers(db: Database, pair_ids: Sequence[int]) -> dict[int, Choice]:
    """The known answers by pair id, for those of these pairs that are gold."""
    p = t.pairs.c
    with db.read() as conn:
        return {
            row.id: row.gold
            for ids in in_chunks(pair_ids)
            for row in conn.execute(select(p.id, p.gold).where(p.id.in_(ids), p.gold.is_not(None)))
        }


def count_gold_pairs(db: Database, project_id: int) -> int:
    query = select(func.count()).select_from(t.pairs).where(live_pair_of(project_id), t.pairs.c.gold.is_not(None))
    return db.fetch(query).scalar_one()


def gold_results(db: Database, project_id: int) -> list[GoldResult]:
    """The results of all people who answered a gold pair, sorted by name."""
    with db.read() as conn:
        return _gold_results(conn, project_id)


def result_at_last_look(db: Database, project_id: int, annotator: str, rules: LabellingConfig) -> GoldResult | None:
    """A person's result as of their latest multiple of ten answers, if it is below the bound; otherwise None."""
    v = t.votes.c
    with db.read() as conn:
        results = _gold_results(conn, project_id, annotator)
        if not results or results[0].answers < rules.gold_answers:
            return None
        vote_ids = live_votes_query(project_id, Source.HUMAN, v.id).where(v.annotator == annotator)
        count = conn.execute(vote_ids.with_only_columns(func.count())).scalar_one()
        since_look = vote_ids.order_by(v.id.desc()).offset(count % ANSWERS_BETWEEN_LOOKS).limit(1)
        results = _gold_results(conn, project_id, annotator, conn.execute(since_look).scalar() or 0)
    return results[0] if results and results[0].is_below_bound(rules) else None


def annotator_weights(conn: Connection, project_id: int, rules: LabellingConfig) -> dict[str, float]:
    """The weight of the votes of each person below the bound. All others are omitted; their weight is 1."""
    if rules.gold_rule != "down_weight":
        return {}
    return {
        result.annotator: rules.gold_weight
        for result in _gold_results(conn, project_id)
        if result.is_below_bound(rules)
    }


def _gold_results(
    conn: Connection, project_id: int, annotator: str | None = None, last_vote_id: int | None = None
) -> list[GoldResult]:
    """Results by person. annotator: only of this person. last_vote_id: ignore newer votes."""
    v, p, person = t.votes.c, t.pairs.c, t.project_people.c
    is_person = and_(person.project_id == project_id, person.annotator == v.annotator)
    query = (
        select(v.annotator, func.sum(case((v.choice == p.gold, 1), else_=0)), func.count())
        .select_from(t.pairs)
        .join(t.votes, v.pair_id == p.id)
        .outerjoin(t.project_people, is_person)
        .where(live_pair_of(project_id), p.gold.is_not(None), LIVE_VOTE, NOT_A_REPEAT, NOT_AN_ADJUDICATION)
        .where(v.source == Source.HUMAN, v.choice != Choice.SKIP)
        .where(v.created_at > p.gold_at, v.created_at > func.coalesce(person.gold_since, 0.0))
        .group_by(v.annotator)
        .order_by(v.annotator)
    )
    if annotator is not None:
        query = query.where(v.annotator == annotator)
    if last_vote_id is not None:
        query = query.where(v.id <= last_vote_id)
    return [GoldResult(*row) for row in conn.execute(query)]
