"""What a project holds already: read whole while nobody waits for it, later only what has come since."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, func, select

from rlhf_lab.errors import DataError
from rlhf_lab.imports.place import Answer, Content, Places
from rlhf_lab.records import Project
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import in_chunks
from rlhf_lab.store.projects import FIRST, SECOND


class _Newest(NamedTuple):
    """The largest ids: writers take turns, so whatever is written later has larger ones."""

    vote: int = 0
    pair: int = 0
    prompt: int = 0


class There:
    """A project's prompts (text -> id) and pairs, as an import knows them."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.prompts: dict[str, int] = {}
        self.places = Places()
        self._known = _Newest()
        self._gone: list[tuple[int, float]] = []

    def read(self, conn: Connection, prompts: Iterable[str]) -> None:
        """Everything about these prompts. DataError: an import is being taken back, and what is held may be going."""
        c, v, newest = t.pairs.c, t.votes.c, _newest(conn)
        self._gone = self._taken_back(conn)
        going = select(v.id).where(v.import_id.in_([one for one, _ in self._gone]), v.undone_at.is_(None)).limit(1)
        if conn.execute(going).first():
            raise DataError(
                "An import of this project is being taken back. Wait a moment and import this then; if that was cut off, take "
                "the rest of it back first."
            )
        self._read_prompts(conn, 0)
        ids = sorted({self.prompts[text] for text in prompts if text in self.prompts})
        for some in in_chunks(ids):
            pairs = self._read_pairs(conn, FIRST.c.prompt_id.in_(some), c.id <= newest.pair)
            for few in in_chunks(pairs):
                self._read_votes(conn, v.pair_id.in_(few), v.id <= newest.vote)
        self._known = newest

    def catch_up(self, conn: Connection) -> None:
        """What others have written meanwhile, inside a writing transaction. DataError: the project is gone, or an import of
        it was taken back: its votes may be what this one left out as held.

        A single vote that was taken back meanwhile still counts as there: the import saw it.
        """
        if conn.execute(select(t.projects.c.id).where(t.projects.c.id == self.project.id)).first() is None:
            raise DataError(
                f'The project "{self.project.name}" was deleted during the import, and what had been taken in with it. Open '
                "another one and import the file there."
            )
        if self._taken_back(conn) != self._gone:
            raise DataError(
                "An import of this project was taken back meanwhile, and this one ended. What it had taken in stays, unless it "
                "is the one that was taken back; the same file again brings the rest."
            )
        self._read_prompts(conn, self._known.prompt)
        self._read_pairs(conn, t.pairs.c.id > self._known.pair)
        self._read_votes(conn, t.votes.c.id > self._known.vote)

    def mark(self, conn: Connection) -> None:
        """Whatever is in the tables is known: the end of a writing transaction that began by catching up."""
        self._known = _newest(conn)

    def _taken_back(self, conn: Connection) -> list[tuple[int, float]]:
        """The imports that were, and when."""
        i = t.imports.c
        query = select(i.id, i.taken_back_at).where(i.project_id == self.project.id, i.taken_back_at.is_not(None))
        return [(row.id, row.taken_back_at) for row in conn.execute(query.order_by(i.id))]

    def _read_prompts(self, conn: Connection, after: int) -> None:
        p = t.prompts.c
        rows = conn.execute(select(p.text, p.id).where(p.project_id == self.project.id, p.id > after))
        self.prompts |= {row.text: row.id for row in rows}

    def _read_pairs(self, conn: Connection, *which: ColumnElement[bool]) -> list[int]:
        c = t.pairs.c
        query = (
            select(c.id, t.prompts.c.text.label("prompt"), FIRST.c.text.label("first"), SECOND.c.text.label("second"))
            .join(FIRST, FIRST.c.id == c.first_id)
            .join(SECOND, SECOND.c.id == c.second_id)
            .join(t.prompts, t.prompts.c.id == FIRST.c.prompt_id)
            .where(c.project_id == self.project.id, *which)
            .order_by(c.id)
        )
        rows = conn.execute(query).all()
        for row in rows:
            self.places.add(row.id, Content.of(row.prompt, row.first, row.second), row.first, row.second)
        return [row.id for row in rows]

    def _read_votes(self, conn: Connection, *which: ColumnElement[bool]) -> None:
        v = t.votes.c
        query = select(v.pair_id, v.annotator, v.repeat, v.source, v.choice, v.strength)
        for row in conn.execute(query.where(v.undone_at.is_(None), *which).order_by(v.id)):
            self.places.cast(row.pair_id, Answer((row.annotator, row.repeat), row.source, row.choice, row.strength))


def _newest(conn: Connection) -> _Newest:
    """The votes first: on a server another may be writing between these questions, and a vote's pair is there before it."""
    return _Newest(
        *(conn.execute(select(func.max(table.c.id))).scalar() or 0 for table in (t.votes, t.pairs, t.prompts))
    )
