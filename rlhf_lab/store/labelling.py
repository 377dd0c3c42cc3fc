"""A project's labelling settings, what people did, and who they are."""

from sqlalchemy import delete, insert, select

from rlhf_lab.kinds import Choice, Source
from rlhf_lab.labelling import LabellingConfig, Standing
from rlhf_lab.records import Pair, Vote
from rlhf_lab.store import tables as t
from rlhf_lab.store.comparisons import vote_of
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project, read_pairs


def labelling_of(db: Database, project_id: int) -> LabellingConfig:
    """The settings of a project; the defaults where nobody chose any."""
    with db.read() as conn:
        found = conn.execute(select(t.labelling.c.settings).where(t.labelling.c.project_id == project_id)).scalar()
    return LabellingConfig() if found is None else LabellingConfig.from_dict(found)


def set_labelling(db: Database, project_id: int, config: LabellingConfig) -> None:
    """StoreError: there is no such project."""
    get_project(db, project_id)
    with db.write() as conn:
        conn.execute(delete(t.labelling).where(t.labelling.c.project_id == project_id))
        conn.execute(insert(t.labelling).values(project_id=project_id, settings=config.to_dict()))


def history(db: Database, project_id: int, annotator: str, limit: int = 30) -> list[tuple[Vote, Pair]]:
    """This person's newest live votes with their pairs, newest first. Hidden repeats stay hidden."""
    v = t.votes.c
    query = (
        select(t.votes)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(
            t.pairs.c.project_id == project_id, v.annotator == annotator, v.source == Source.HUMAN,
            v.undone_at.is_(None), v.repeat.is_(False),
        )
        .order_by(v.id.desc())
        .limit(limit)
    )  # fmt: skip
    with db.read() as conn:
        votes = [vote_of(row) for row in conn.execute(query)]
        pairs = {pair.id: pair for pair in read_pairs(conn, [vote.pair_id for vote in votes])}
    return [(vote, pairs[vote.pair_id]) for vote in votes]


def standings(db: Database, project_id: int) -> list[Standing]:
    """What each person of a project did, most labels first. Two votes are alike when they chose the same, ties among them."""
    v = t.votes.c
    query = (
        select(v.annotator, v.pair_id, v.choice, v.repeat)
        .join(t.pairs, t.pairs.c.id == v.pair_id)
        .where(t.pairs.c.project_id == project_id, v.source == Source.HUMAN, v.undone_at.is_(None))
        .where(v.choice != Choice.SKIP)
    )
    first: dict[str, dict[int, Choice]] = {}
    again: dict[str, dict[int, Choice]] = {}
    said: dict[int, dict[str, Choice]] = {}
    with db.read() as conn:
        for row in conn.execute(query):
            first.setdefault(row.annotator, {})
            (again if row.repeat else first).setdefault(row.annotator, {})[row.pair_id] = row.choice
            if not row.repeat:
                said.setdefault(row.pair_id, {})[row.annotator] = row.choice
    found = []
    for who, mine in first.items():
        twice = [(mine[pair], choice) for pair, choice in again.get(who, {}).items() if pair in mine]
        others = [choice is other for pair, choice in mine.items() for name, other in said[pair].items() if name != who]
        same = sum(a is b for a, b in twice)
        found.append(Standing(who, len(mine), len(twice), same, len(others), sum(others)))
    return sorted(found, key=lambda one: (-one.labels, one.annotator))
