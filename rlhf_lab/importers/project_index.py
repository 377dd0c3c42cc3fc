"""The prompts, pairs and votes that a project has: read once outside of any transaction, then only what is new."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, func, select

from rlhf_lab.common.chat_format import without_system_prompt
from rlhf_lab.common.records import Project
from rlhf_lab.errors import DataError
from rlhf_lab.importers.deduplication import Answer, PairIndex, PairKey
from rlhf_lab.importers.parsed_rows import ParsedFile, RowError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.projects import FIRST_COMPLETION, SECOND_COMPLETION


def adapt_to_project(db: Database, parsed_file: ParsedFile, project_id: int) -> ParsedFile:
    """The file for this project: prompts without the system prompt that the project puts before each prompt itself, and an error
    in place of the votes of each row that puts a prompt of the project in another split."""
    p = t.prompts.c
    with db.read() as conn:
        system_prompt = conn.execute(select(t.projects.c.system_prompt).where(t.projects.c.id == project_id)).scalar()
        splits = {
            row.text: row.split for row in conn.execute(select(p.text, p.split).where(p.project_id == project_id))
        }
    if system_prompt:
        votes = [
            vote if vote.prompt in splits else replace(vote, prompt=without_system_prompt(vote.prompt, system_prompt))
            for vote in parsed_file.votes
        ]
        parsed_file = replace(parsed_file, votes=votes)
    column = parsed_file.mapping.get("split", "split")
    conflicts = {
        vote.row_number: RowError(
            vote.row_number,
            f"row {vote.row_number}",
            f"{column} is {vote.split!r}, but the project has this prompt in {splits[vote.prompt]!r}. Take the row "
            "out, or leave the column out: --map split=.",
        )
        for vote in parsed_file.votes
        if vote.split and splits.get(vote.prompt, vote.split) != vote.split
    }
    votes = [vote for vote in parsed_file.votes if vote.row_number not in conflicts]
    errors = sorted([*parsed_file.errors, *conflicts.values()], key=lambda error: error.row_number or math.inf)
    return replace(parsed_file, votes=votes, errors=errors)


class _LatestIds(NamedTuple):
    """The largest ids in the tables: writes are serial, so later rows have larger ids."""

    vote_id: int = 0
    pair_id: int = 0
    prompt_id: int = 0


class ProjectIndex:
    """A project's prompts (text -> id) and pairs, as known to an import."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.prompt_ids: dict[str, int] = {}
        self.pair_index = PairIndex()
        self._synced_ids = _LatestIds()
        self._undone_imports: list[tuple[int, float]] = []

    def load(self, conn: Connection, prompts: Iterable[str]) -> None:
        """Read everything about these prompts. Raises DataError while an import of the project is being undone."""
        c, v, latest = t.pairs.c, t.votes.c, _latest_ids(conn)
        self._undone_imports = self._list_undone_imports(conn)
        active_votes = (
            select(v.id)
            .where(v.import_id.in_([import_id for import_id, _ in self._undone_imports]), v.undone_at.is_(None))
            .limit(1)
        )
        if conn.execute(active_votes).first():
            raise DataError(
                "An import of this project is being undone. Wait a moment, then import this file; if "
                "the undo was interrupted, repeat it first."
            )
        self._read_prompts(conn, 0)
        prompt_ids = sorted({self.prompt_ids[text] for text in prompts if text in self.prompt_ids})
        for prompt_chunk in in_chunks(prompt_ids):
            pair_ids = self._read_pairs(conn, FIRST_COMPLETION.c.prompt_id.in_(prompt_chunk), c.id <= latest.pair_id)
            for pair_chunk in in_chunks(pair_ids):
                self._read_votes(conn, v.pair_id.in_(pair_chunk), v.id <= latest.vote_id)
        self._synced_ids = latest

    def catch_up(self, conn: Connection) -> None:
        """Read what others have written since, inside a write transaction.

        Raises DataError if the project was deleted, or an import of it undone: this import may have skipped votes because of it.
        A single vote that was undone in between still counts as present.
        """
        if conn.execute(select(t.projects.c.id).where(t.projects.c.id == self.project.id)).first() is None:
            raise DataError(
                f'The project "{self.project.name}" was deleted during the import, and the rows imported so far with it. Open '
                "another one and import the file there."
            )
        if self._list_undone_imports(conn) != self._undone_imports:
            raise DataError(
                "An import of this project was undone in the meantime, so this one ended. Its rows so far are kept, unless "
                "this import is the one that was undone. Import the same file again to add the rest."
            )
        self._read_prompts(conn, self._synced_ids.prompt_id)
        self._read_pairs(conn, t.pairs.c.id > self._synced_ids.pair_id)
        self._read_votes(conn, t.votes.c.id > self._synced_ids.vote_id)

    def mark_synced(self, conn: Connection) -> None:
        """Mark everything in the tables as known, at the end of a write transaction that began with `catch_up`."""
        self._synced_ids = _latest_ids(conn)

    def _list_undone_imports(self, conn: Connection) -> list[tuple[int, float]]:
        """(id, time) of each undone import."""
        i = t.imports.c
        query = select(i.id, i.taken_back_at).where(i.project_id == self.project.id, i.taken_back_at.is_not(None))
        return [(row.id, row.taken_back_at) for row in conn.execute(query.order_by(i.id))]

    def _read_prompts(self, conn: Connection, after_id: int) -> None:
        p = t.prompts.c
        rows = conn.execute(select(p.text, p.id).where(p.project_id == self.project.id, p.id > after_id))
        self.prompt_ids |= {row.text: row.id for row in rows}

    def _read_pairs(self, conn: Connection, *conditions: ColumnElement[bool]) -> list[int]:
        c = t.pairs.c
        query = (
            select(
                c.id,
                t.prompts.c.text.label("prompt"),
                FIRST_COMPLETION.c.text.label("first"),
                SECOND_COMPLETION.c.text.label("second"),
            )
            .join(FIRST_COMPLETION, FIRST_COMPLETION.c.id == c.first_id)
            .join(SECOND_COMPLETION, SECOND_COMPLETION.c.id == c.second_id)
            .join(t.prompts, t.prompts.c.id == FIRST_COMPLETION.c.prompt_id)
            .where(c.project_id == self.project.id, *conditions)
            .order_by(c.id)
        )
        rows = conn.execute(query).all()
        for row in rows:
            self.pair_index.add_existing(
                row.id, PairKey.from_texts(row.prompt, row.first, row.second), row.first, row.second
            )
        return [row.id for row in rows]

    def _read_votes(self, conn: Connection, *conditions: ColumnElement[bool]) -> None:
        v = t.votes.c
        query = select(v.pair_id, v.annotator, v.repeat, v.adjudication, v.source, v.choice, v.strength)
        for row in conn.execute(query.where(v.undone_at.is_(None), *conditions).order_by(v.id)):
            self.pair_index.add_vote(
                row.pair_id,
                Answer((row.annotator, row.repeat, row.adjudication), row.source, row.choice, row.strength),
            )


def _latest_ids(conn: Connection) -> _LatestIds:
    """Votes first: another server process may write between these queries, and a pair is always written before its votes."""
    return _LatestIds(
        *(conn.execute(select(func.max(table.c.id))).scalar() or 0 for table in (t.votes, t.pairs, t.prompts))
    )
