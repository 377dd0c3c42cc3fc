"""Finds, counts and removes what visitors made in demo mode. Everything that the operator made is kept.

Runs of visitors have VISITOR_RUN in their manifest. Labels of visitors are those given in the lab since demo mode began by people
who are not operators; imported and simulated labels belong to the operator.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, Connection, and_, delete, func, or_, select

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, EventKind, JobKind, RunStatus, Source
from rlhf_lab.common.records import REQUESTER_KEY, VISITOR_RUN
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks

_STARTED_RUN_STATUSES = (RunStatus.RUNNING, RunStatus.PAUSED)


@dataclass(frozen=True)
class VisitorData:
    """The rows to remove. reward_models: id -> path below the home."""

    run_ids: frozenset[int]
    reward_models: dict[int, str]
    vote_ids: frozenset[int]


def count_visitor_data(
    db: Database, since: float, operators: Collection[str], max_labels: int, address_of: Mapping[str, str]
) -> tuple[int, int]:
    """The numbers of visitors' labels that are not undone, at most max_labels of each address, and of their runs that did a step,
    since a time. A visitor who is not in address_of counts as an address of their own."""
    counted = and_(t.votes.c.undone_at.is_(None), t.votes.c.choice != Choice.SKIP)  # a skip is no label
    live = and_(_by_visitor(since, operators), counted)
    with db.read() as conn:
        labels = Counter[str]()
        name = t.votes.c.annotator
        for visitor, count in conn.execute(select(name, func.count()).where(live).group_by(name)):
            labels[address_of.get(visitor, f"visitor {visitor}")] += count
        started = and_(t.runs.c.created_at >= since, t.runs.c.step > 0)
        manifests = conn.execute(select(t.runs.c.manifest).where(started)).scalars()
        return sum(min(count, max_labels) for count in labels.values()), sum(
            VISITOR_RUN in manifest for manifest in manifests
        )


def find_visitor_data(db: Database, since: float, operators: Collection[str]) -> VisitorData | None:
    """What `remove_visitor_data` would remove; None while a job or a run is unfinished.

    operators: names of operators; those that begin with @ in lower case.
    """
    with db.read() as conn:
        return None if _is_busy(conn) else _find(conn, since, operators)


def remove_visitor_data(db: Database, since: float, operators: Collection[str]) -> bool:
    """Remove the rows that visitors made since a time, in one transaction. The caller deletes the files.

    Returns False, without a change, while a job or a run is unfinished.
    """
    with db.write() as conn:
        if _is_busy(conn):
            return False
        data = _find(conn, since, operators)
        b = t.blind_votes.c
        conn.execute(delete(t.blind_votes).where(b.created_at >= since, ~_is_operator(b.annotator, operators)))
        a = t.tournament_answers.c
        conn.execute(delete(t.tournament_answers).where(a.created_at >= since, ~_is_operator(a.annotator, operators)))
        _remove_jobs(conn, since, operators, data.run_ids)
        _delete(conn, t.runs.c.id, data.run_ids)  # deletes their metrics, samples, records and events too
        _delete(conn, t.reward_models.c.id, data.reward_models)
        _delete(conn, t.votes.c.id, data.vote_ids)
        _remove_unlabelled_pairs(conn, since)
    db.truncate_log()
    return True


def _is_busy(conn: Connection) -> bool:
    unfinished = select(t.jobs.c.id).where(t.jobs.c.status.in_(UNFINISHED_JOB_STATUSES))
    started = select(t.runs.c.id).where(t.runs.c.status.in_(_STARTED_RUN_STATUSES))
    return any(conn.execute(query.limit(1)).first() is not None for query in (unfinished, started))


def _by_visitor(since: float, operators: Collection[str]) -> ColumnElement[bool]:
    v = t.votes.c
    return and_(
        v.created_at >= since, v.source == Source.HUMAN, v.import_id.is_(None), ~_is_operator(v.annotator, operators)
    )


def _is_operator(name: ColumnElement[str], operators: Collection[str]) -> ColumnElement[bool]:
    return or_(name.in_(operators), func.lower(name).in_([other for other in operators if other.startswith("@")]))


def _find(conn: Connection, since: float, operators: Collection[str]) -> VisitorData:
    """Find the rows to remove. A reward model trained on visitors' labels is kept, with these labels, if a kept run uses it."""
    rows = conn.execute(select(t.runs.c.id, t.runs.c.manifest, t.runs.c.reward_model_id, t.runs.c.created_at)).all()
    run_ids = frozenset(row.id for row in rows if row.created_at >= since and VISITOR_RUN in row.manifest)
    used_models = {row.reward_model_id for row in rows if row.id not in run_ids}
    switches = select(t.run_events.c.run_id, t.run_events.c.payload).where(
        t.run_events.c.kind == EventKind.SWITCH_REWARD
    )
    used_models |= {row.payload["reward_model_id"] for row in conn.execute(switches) if row.run_id not in run_ids}
    vote_ids = set(conn.execute(select(t.votes.c.id).where(_by_visitor(since, operators))).scalars())
    m = t.reward_models.c
    models = conn.execute(select(m.id, m.path, m.vote_ids).where(m.created_at >= since)).all()
    reward_models = {
        row.id: row.path for row in models if row.id not in used_models and not vote_ids.isdisjoint(row.vote_ids)
    }
    kept_votes = {vote_id for row in models if row.id in used_models for vote_id in row.vote_ids}
    return VisitorData(run_ids, reward_models, frozenset(vote_ids - kept_votes))


def _remove_jobs(conn: Connection, since: float, operators: Collection[str], run_ids: Collection[int]) -> None:
    """Remove the jobs of removed runs, those requested by visitors, and those that sampled pairs.

    Jobs of blind tests are kept; they have no requester.
    """
    j = t.jobs.c
    removed = []
    for row in conn.execute(select(j.id, j.kind, j.payload).where(j.created_at >= since)):
        requester = str(row.payload.get(REQUESTER_KEY, ""))
        is_visitors = requester and requester not in operators and requester.lower() not in operators
        if is_visitors or row.kind is JobKind.SAMPLE_PAIRS or row.payload.get("run_id") in run_ids:
            removed.append(row.id)
    _delete(conn, j.id, removed)


def _remove_unlabelled_pairs(conn: Connection, since: float) -> None:
    """Remove pairs sampled since that time that have no votes left, with their texts and the prompts of chats."""
    p, c = t.pairs.c, t.completions.c
    has_vote = select(t.votes.c.id).where(t.votes.c.pair_id == p.id).correlate(t.pairs).exists()
    unlabelled = select(p.id, p.first_id, p.second_id).where(
        p.created_at >= since, p.import_id.is_(None), p.reason != "shipped", ~has_vote
    )
    pairs = conn.execute(unlabelled).all()
    pair_ids = [row.id for row in pairs]
    _delete(conn, t.leases.c.pair_id, pair_ids)
    _delete(conn, p.id, pair_ids)
    text_ids = {text_id for row in pairs for text_id in (row.first_id, row.second_id)}
    in_pair = select(p.id).where(or_(p.first_id == c.id, p.second_id == c.id)).correlate(t.completions).exists()
    prompt_ids: set[int] = set()
    for chunk in in_chunks(sorted(text_ids)):
        prompt_ids.update(conn.execute(select(c.prompt_id).where(c.id.in_(chunk))).scalars())
    _delete(conn, c.id, text_ids, c.created_at >= since, ~in_pair)
    has_text = select(c.id).where(c.prompt_id == t.prompts.c.id).correlate(t.prompts).exists()
    _delete(conn, t.prompts.c.id, prompt_ids, t.prompts.c.labels_only.is_(True), ~has_text)


def _delete(conn: Connection, column: Column[int], ids: Iterable[int], *conditions: ColumnElement[bool]) -> None:
    """Delete the rows whose column has one of these values."""
    for chunk in in_chunks(sorted(ids)):
        conn.execute(delete(column.table).where(column.in_(chunk), *conditions))
