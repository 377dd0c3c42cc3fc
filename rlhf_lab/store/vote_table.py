"""All votes and pairs of a project in memory, as columns, for statistics over all of them and for choosing the next pair.

Reading 200,000 rows takes half a second, updating the table less than a millisecond. Only two properties of a stored vote can
change: whether it is undone, and the name of its annotator when a person is erased. Each call of `current_votes` compares
indicators of changes (the newest ids, the numbers of rows, which votes and pairs are undone, which pairs are gold, the names of
voters) and reads the new rows, or everything again. So it returns all that any process committed before the call.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, ColumnElement, Connection, and_, func, select
from sqlalchemy import text as sql

from rlhf_lab.common.enums import VIA_SIDES_UNKNOWN, Choice, Source
from rlhf_lab.config.labelling import is_actively_selected
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
T = TypeVar("T")

#: The codes of choices and sources are positions in these tuples.
CHOICES, SOURCES = tuple(Choice), tuple(Source)
MAX_PROJECTS = 2  # number of projects whose tables are cached
#: Bits of a packed vote. The lower bits are choice and source.
_FLAGS = {"first_on_left": 16, "sides_unknown": 32, "repeat": 64, "adjudication": 128}
_CONDITIONS = {name: name for name in _FLAGS} | {"sides_unknown": f"via = '{VIA_SIDES_UNKNOWN}'"}
_VOTE_COLUMNS: dict[str, Any] = {
    "vote_id": np.int64, "pair": np.int64, "annotator": np.int64, "choice": np.uint8, "source": np.uint8,
    **dict.fromkeys(_FLAGS, np.bool_), "response_ms": np.float64, "created_at": np.float64,
}  # fmt: skip
_PAIR_COLUMNS: dict[str, Any] = {
    "pair_id": np.int64, "first_id": np.int64, "second_id": np.int64, "actively_selected": np.bool_,
}  # fmt: skip
_ROW = np.dtype([(name, np.float64 if name == "created_at" else np.int64)
                 for name in ("id", "pair_id", "annotator", "packed", "response_ms", "created_at")])  # fmt: skip
#: Indicators of changes. For votes and pairs: the newest id, the number of rows, the number of rows after the last one that was
#: read, and count, sum of ids and latest time of undone ones. For gold pairs of the project: count, sum of ids, latest time.
_CHANGES = sql(
    "SELECT (SELECT coalesce(max(id), 0) FROM votes), (SELECT count(*) FROM votes), "
    "(SELECT count(*) FROM votes WHERE id > :last_vote), undone.number, undone.ids, undone.latest, "
    "(SELECT coalesce(max(id), 0) FROM pairs), (SELECT count(*) FROM pairs), "
    "(SELECT count(*) FROM pairs WHERE id > :last_pair), withdrawn.number, withdrawn.ids, withdrawn.latest, "
    "gold.number, gold.ids, gold.latest FROM "
    "(SELECT count(*) AS number, coalesce(sum(id), 0) AS ids, coalesce(max(undone_at), 0) AS latest "
    "FROM votes WHERE undone_at IS NOT NULL) AS undone, "
    "(SELECT count(*) AS number, coalesce(sum(id), 0) AS ids, coalesce(max(taken_back_at), 0) AS latest "
    "FROM pairs WHERE taken_back_at IS NOT NULL) AS withdrawn, "
    "(SELECT count(*) AS number, coalesce(sum(id), 0) AS ids, coalesce(max(gold_at), 0) AS latest "
    "FROM pairs WHERE project_id = :project AND gold IS NOT NULL) AS gold"
)
#: Choice, source and flags of each new vote are packed into one number, which takes a third of the time to read.
_NEW_VOTES = sql(
    "SELECT id, pair_id, annotator, CASE choice "
    + " ".join(f"WHEN '{choice.value}' THEN {i}" for i, choice in enumerate(CHOICES))
    + " END + CASE source "
    + " ".join(f"WHEN '{source.value}' THEN {8 * i}" for i, source in enumerate(SOURCES))
    + " END"
    + "".join(f" + CASE WHEN {_CONDITIONS[name]} THEN {bit} ELSE 0 END" for name, bit in _FLAGS.items())
    + ", coalesce(response_ms, -1), created_at FROM votes WHERE id > :after AND id <= :until ORDER BY id"
)
_VOTER_NAMES = sql(
    "WITH RECURSIVE voter(name) AS (SELECT min(annotator) FROM votes UNION ALL "
    "SELECT (SELECT min(annotator) FROM votes WHERE annotator > voter.name) FROM voter WHERE voter.name IS NOT NULL) "
    "SELECT name FROM voter WHERE name IS NOT NULL"
)  # one index lookup per name


@dataclass(frozen=True, eq=False)
class VoteTable:
    """A snapshot of a project's votes, oldest first, including undone ones. Must not be modified.

    Columns with one value per pair, in the order of ids: pair_id, first_id, second_id, actively_selected, pair_live (its import
    was not undone), gold. The other columns have one value per vote: pair and annotator are positions in pair_id and names,
    choice and source in CHOICES and SOURCES; response_ms is NaN if unknown. epoch: changes when rows that had been read were
    changed or deleted.
    """

    pair_id: Int
    first_id: Int
    second_id: Int
    actively_selected: Bool
    pair_live: Bool
    gold: Bool
    names: tuple[str, ...]
    vote_id: Int
    pair: Int
    annotator: Int
    choice: NDArray[np.uint8]
    source: NDArray[np.uint8]
    first_on_left: Bool
    sides_unknown: Bool
    repeat: Bool
    adjudication: Bool
    response_ms: NDArray[np.float64]
    created_at: NDArray[np.float64]
    live: Bool
    epoch: int
    _figures: dict[Any, Any] = field(default_factory=dict)
    _counts: "dict[str, _Count]" = field(default_factory=dict)  # shared by successive snapshots until a vote is undone

    def cached(self, key: Any, compute: Callable[[], T]) -> T:
        """A value that depends only on this table and the key; computed once."""
        if key not in self._figures:
            self._figures[key] = compute()
        result: T = self._figures[key]
        return result

    def labels_of(self, source: Source) -> Bool:
        """Live votes of a source that are labels: without skips, hidden repeats and experts' decisions."""
        return self.cached(("labels", source), lambda: self.answers_of(source) & ~self.adjudication)

    def answers_of(self, source: Source) -> Bool:
        """Labels and experts' decisions of a source."""
        answers: Bool = self.live & ~self.repeat & (self.source == code(source)) & (self.choice != code(Choice.SKIP))
        return answers

    def training_labels(self, source: Source, *, gold: bool) -> Bool:
        """The votes on which reward models are trained. gold: include those on gold pairs.

        An expert's decision replaces people's labels on its pair.
        """
        labels = self.answers_of(source)
        if source is Source.HUMAN:
            labels &= self.adjudication | ~self.decided_by_experts()[self.pair]
        return labels if gold else labels & ~self.gold[self.pair]

    def decided_by_experts(self) -> Bool:
        """By position in pair_id."""
        decided = np.zeros(len(self.pair_id), np.bool_)
        decided[self.pair[self.live & self.adjudication & (self.choice != code(Choice.SKIP))]] = True
        return decided

    def positions_of_pairs(self, pair_ids: Sequence[int]) -> Int:
        """The positions of these pairs in pair_id, without unknown pairs."""
        ids = np.asarray(pair_ids, np.int64)
        positions = np.searchsorted(self.pair_id, ids)
        is_known = positions < len(self.pair_id)
        is_known[is_known] = self.pair_id[positions[is_known]] == ids[is_known]
        return positions[is_known]

    def cast_by(self, annotator: str) -> Bool:
        """Votes of a person, including undone ones."""
        if annotator not in self.names:
            return np.zeros(len(self.vote_id), np.bool_)
        by_annotator: Bool = self.annotator == self.names.index(annotator)
        return by_annotator

    def votes_by(self, annotator: str) -> Bool:
        """Live votes of a person."""
        return self.live & self.cast_by(annotator)

    def unvoted_by(self, annotator: str) -> Bool:
        """Live pairs, except gold ones, on which a person has no live vote."""
        unvoted: Bool = self.pair_live & ~self.gold
        unvoted[self.pair[self.votes_by(annotator)]] = False
        return unvoted

    def count_by_pair(self, name: str, condition: Callable[["VoteTable"], Bool]) -> Int:
        """The number of votes on each pair that meet a condition. Counts are cached, so that only new votes are evaluated.

        name: key of the cache. condition: returns for each vote of a table whether it is counted; the result for a vote must
        depend only on that vote.
        """
        nothing = _Count(0, np.zeros(0, np.int64))
        known = self._counts.get(name, nothing)
        is_earlier = known.votes > len(self.vote_id) or len(known.by_pair) > len(self.pair_id)
        if is_earlier:  # the cached count belongs to a later snapshot with more votes or pairs
            known = nothing
        new = self._votes_after(known.votes)
        by_pair = np.bincount(new.pair[condition(new)], minlength=len(self.pair_id))
        by_pair[: len(known.by_pair)] += known.by_pair
        if not is_earlier:
            self._counts[name] = _Count(len(self.vote_id), by_pair)
        return by_pair

    def _votes_after(self, count: int) -> "VoteTable":
        """The same table without its first `count` votes."""
        if count == 0:
            return self
        return replace(self, **{name: getattr(self, name)[count:] for name in (*_VOTE_COLUMNS, "live")}, _figures={})


class _Count(NamedTuple):
    """A cached count over the first `votes` votes of a table, by pair."""

    votes: int
    by_pair: Int


def code(value: Choice | Source) -> int:
    """The code of a choice or a source in a table's columns."""
    return CHOICES.index(value) if isinstance(value, Choice) else SOURCES.index(value)


def current_votes(db: Database, project_id: int) -> VoteTable:
    """The current votes of a project. If nothing has changed since the last call, the same object is returned."""
    with _CACHE_LOCK:
        readers = _READERS.setdefault(db, OrderedDict())
        reader = readers.pop(project_id, None) or _Reader(project_id)
        readers[project_id] = reader
        while len(readers) > MAX_PROJECTS:
            readers.popitem(last=False)
    return reader.refresh(db)


_CACHE_LOCK = threading.Lock()
_READERS: "WeakKeyDictionary[Database, OrderedDict[int, _Reader]]" = WeakKeyDictionary()


class _Marked(NamedTuple):
    """A fingerprint of the rows with a mark, such as "undone"; it changes whenever a row gains or loses the mark."""

    rows: int = 0
    sum_of_ids: int = 0
    latest: float = 0.0


class _Stored(NamedTuple):
    """Indicators of changes in a table, over all projects. new: number of rows after the last one that was read."""

    last_id: int = 0
    rows: int = 0
    new: int = 0
    undone: _Marked = _Marked()
    gold: _Marked = _Marked()

    def continues(self, earlier: "_Stored") -> bool:
        """Whether no row was deleted since `earlier`."""
        return self.rows - self.new == earlier.rows


class _Values:
    """A growing array. Views of it returned earlier do not change when values are appended."""

    def __init__(self, dtype: Any) -> None:
        self._buffer, self._length = np.empty(1024, dtype), 0

    def append(self, values: Any) -> None:
        end = self._length + len(values)
        if end > len(self._buffer):
            grown = np.empty(2 * end, self._buffer.dtype)
            grown[: self._length] = self.values
            self._buffer = grown
        self._buffer[self._length : end] = values
        self._length = end

    @property
    def values(self) -> NDArray[Any]:
        return self._buffer[: self._length]


class _Reader:
    """Keeps the table of one project up to date."""

    def __init__(self, project_id: int) -> None:
        self.project_id, self._lock, self._epoch = project_id, threading.Lock(), 0
        self._is_gold = and_(t.pairs.c.project_id == project_id, t.pairs.c.gold.is_not(None))
        self._forget()

    def _forget(self) -> None:
        self._epoch += 1
        self._table: VoteTable | None = None
        self._names: dict[str, int] = {}
        self._voters: frozenset[str] = frozenset()  # names of the voters of all projects
        self._stored_votes, self._stored_pairs = _Stored(), _Stored()
        self._votes = {name: _Values(dtype) for name, dtype in _VOTE_COLUMNS.items()}
        self._pairs = {name: _Values(dtype) for name, dtype in _PAIR_COLUMNS.items()}
        self._live, self._pair_live, self._gold = (_Values(np.bool_) for _ in range(3))
        self._own_pairs: set[int] = set()
        self._counts: dict[str, _Count] = {}

    def refresh(self, db: Database) -> VoteTable:
        with self._lock, db.read() as conn:
            if not self._read_changes(conn):
                self._forget()
                self._read_changes(conn)
            if self._table is None:
                columns: dict[str, Any] = {name: column.values for name, column in (self._votes | self._pairs).items()}
                columns |= {"live": self._live.values, "pair_live": self._pair_live.values, "gold": self._gold.values}
                self._table = VoteTable(names=tuple(self._names), epoch=self._epoch, _counts=self._counts, **columns)
            return self._table

    def _read_changes(self, conn: Connection) -> bool:
        """Read new rows. Returns False if rows that had been read were deleted or have another name: read everything again."""
        last_vote, last_pair = self._stored_votes.last_id, self._stored_pairs.last_id
        known = {"last_vote": last_vote, "last_pair": last_pair, "project": self.project_id}
        row = conn.execute(_CHANGES, known).one()
        votes = _Stored(max(row[0], last_vote), row[1], row[2], _Marked(row[3], int(row[4]), row[5]))
        pairs = _Stored(max(row[6], last_pair), row[7], row[8], _Marked(row[9], int(row[10]), row[11]))
        pairs = pairs._replace(gold=_Marked(row[12], int(row[13]), row[14]))
        voters = frozenset(conn.execute(_VOTER_NAMES).scalars())
        if not votes.continues(self._stored_votes) or not pairs.continues(self._stored_pairs):
            return False
        if not self._voters <= voters or self._has_old_votes(conn, voters - self._voters):
            return False
        if (votes, pairs, voters) != (
            self._stored_votes._replace(new=0),
            self._stored_pairs._replace(new=0),
            self._voters,
        ):
            self._table = None
            self._read_pairs(conn, pairs)
            self._read_votes(conn, votes)
            self._voters = voters
        return True

    def _has_old_votes(self, conn: Connection, names: Iterable[str]) -> bool:
        """Whether one of these new names has votes that had already been read, which means that a person was renamed."""
        v = t.votes.c
        return any(
            conn.execute(select(func.min(v.id)).where(v.annotator == name)).scalar_one() <= self._stored_votes.last_id
            for name in names
        )

    def _read_pairs(self, conn: Connection, stored: _Stored) -> None:
        p = t.pairs.c
        query = select(p.id, p.first_id, p.second_id, p.reason).where(p.project_id == self.project_id)
        if stored.new:
            rows = conn.execute(query.where(p.id > self._stored_pairs.last_id).order_by(p.id)).all()
            ids, first_ids, second_ids, reasons = zip(*rows, strict=True) if rows else ((), (), (), ())
            for name, values in (("pair_id", ids), ("first_id", first_ids), ("second_id", second_ids)):
                self._pairs[name].append(values)
            self._pairs["actively_selected"].append([is_actively_selected(reason) for reason in reasons])
            self._pair_live.append(np.ones(len(rows), np.bool_))
            self._gold.append(np.zeros(len(rows), np.bool_))
            self._own_pairs.update(ids)
        if stored.undone != self._stored_pairs.undone:
            self._pair_live = _without(conn, p.id, p.taken_back_at.is_not(None), self._pairs["pair_id"].values)
        if stored.gold != self._stored_pairs.gold:
            ordinary = _without(conn, p.id, self._is_gold, self._pairs["pair_id"].values)
            self._gold = _Values(np.bool_)
            self._gold.append(~ordinary.values)
        self._stored_pairs = stored._replace(new=0)

    def _read_votes(self, conn: Connection, stored: _Stored) -> None:
        v, last_id = t.votes.c, self._stored_votes.last_id
        if stored.new:
            cursor = conn.execute(_NEW_VOTES, {"after": last_id, "until": stored.last_id}).cursor
            assert cursor is not None
            self._append_votes(iter(cursor.fetchone, None))
        if stored.undone != self._stored_votes.undone:
            self._live = _without(conn, v.id, v.undone_at.is_not(None), self._votes["vote_id"].values)
            self._counts = {}
        self._stored_votes = stored._replace(new=0)

    def _append_votes(self, rows: Iterable[Sequence[Any]]) -> None:
        """Append new votes. rows: of any project, with annotator names.

        They are read one by one: all rows of a large table together would leave a hole in the heap that is never returned.
        """
        pair_ids = self._pairs["pair_id"].values
        own, names = self._own_pairs, self._names
        table = np.fromiter(
            ((i, pair, names.setdefault(name, len(names)), packed, ms, at)
             for i, pair, name, packed, ms, at in rows if pair in own),
            _ROW,
        )  # fmt: skip
        response_ms = table["response_ms"].astype(np.float64)
        response_ms[table["response_ms"] < 0] = np.nan
        decoded = {
            "vote_id": table["id"], "pair": np.searchsorted(pair_ids, table["pair_id"]), "annotator": table["annotator"],
            "choice": table["packed"] & 7, "source": table["packed"] >> 3 & 1, "response_ms": response_ms,
            "created_at": table["created_at"], **{name: table["packed"] & bit > 0 for name, bit in _FLAGS.items()},
        }  # fmt: skip
        for name, values in decoded.items():
            self._votes[name].append(values)
        self._live.append(np.ones(len(table), np.bool_))


def _without(conn: Connection, row_id: Column[int], is_marked: ColumnElement[bool], ids: Int) -> _Values:
    """Whether each of the rows is not marked."""
    marked_ids = np.array(conn.execute(select(row_id).where(is_marked)).scalars().all(), np.int64)
    column = _Values(np.bool_)
    column.append(np.isin(ids, marked_ids, invert=True))
    return column
