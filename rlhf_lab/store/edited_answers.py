"""Stores what a person would have written instead of the better text of a pair: a text of theirs, and a label that prefers it."""

import time
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, select, update

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.person_names import is_blank
from rlhf_lab.common.records import Vote
from rlhf_lab.errors import LabelError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.projects import load_pairs
from rlhf_lab.store.votes import insert_vote, update_vote, vote_by_uuid

EDIT_REASON = "edit"  # of the pairs
PERSON = "person"  # in place of the checkpoint that wrote a text
EDIT_SUFFIX = "-edit"  # of the uuid of the second label of an edited answer
MAX_EDIT_CHARS = 20_000


def edits_by(annotator: str) -> Select[*tuple[Any, ...]]:
    """The pair and the text of each edit of a person."""
    v, p = t.votes.c, t.pairs.c
    query = select(p.id, p.first_id).join(t.votes, v.pair_id == p.id)
    return query.where(v.annotator == annotator, _is_label_of_edit())


def count_edits(db: Database, project_id: int) -> int:
    """How many edited answers a project has."""
    query = select(func.count()).select_from(t.pairs).join(t.votes, t.votes.c.pair_id == t.pairs.c.id)
    is_live = (t.pairs.c.project_id == project_id, t.votes.c.undone_at.is_(None))
    return db.fetch(query.where(*is_live, _is_label_of_edit())).scalar_one()


def _is_label_of_edit() -> ColumnElement[bool]:
    """Of rows of pairs and votes: that `add_edited_answer` cast the vote. It is then the first one on the pair. Its uuid does not
    tell, because people and programs choose those of their votes."""
    earlier = t.votes.alias("earlier").c
    first = select(func.min(earlier.id)).where(earlier.pair_id == t.pairs.c.id).correlate(t.pairs).scalar_subquery()
    return and_(t.pairs.c.reason == EDIT_REASON, t.votes.c.id == first)


def undo_edited(conn: Connection, edit: Vote) -> Vote | None:
    """If a vote that was just undone is the label of an edit: withdraw its pair, and undo and return the answer it belongs to.

    None otherwise, and if that answer is not live.
    """
    query = select(t.pairs.c.id).join(t.votes, t.votes.c.pair_id == t.pairs.c.id)
    if conn.execute(query.where(t.votes.c.id == edit.id, _is_label_of_edit())).first() is None:
        return None
    answer = vote_by_uuid(conn, edit.uuid.removesuffix(EDIT_SUFFIX))
    if answer is None or answer.annotator != edit.annotator or answer.undone_at is not None:
        return None
    _set_withdrawn(conn, edit.pair_id, edit.undone_at)
    return update_vote(conn, answer.id, undone_at=edit.undone_at)


def redo_edit(conn: Connection, answer: Vote) -> None:
    """Restore the edit of an answer that is being restored, if `undo_edited` took both back."""
    edit = vote_by_uuid(conn, answer.uuid + EDIT_SUFFIX)
    if edit is None or edit.undone_at is None or edit.annotator != answer.annotator:
        return
    if edit.undone_at == answer.undone_at:
        _set_withdrawn(conn, edit.pair_id, None)
        update_vote(conn, edit.id, undone_at=None)


def _set_withdrawn(conn: Connection, pair_id: int, at: float | None) -> None:
    conn.execute(update(t.pairs).where(t.pairs.c.id == pair_id).values(taken_back_at=at))


def leading_space(text: str) -> str:
    """The white space with which a text begins: an edit keeps it, because the page shows texts without it."""
    return text[: len(text) - len(text.lstrip())]


def check_edit(original: str, text: str) -> str:
    """The edited text without surrounding space. Raises LabelError if it is empty, unchanged or too long."""
    text = text.strip()
    if is_blank(text) or text == original.strip():
        raise LabelError("The edited text is empty, or one of the two texts. Change it, or vote without an edit.")
    if len(text) > MAX_EDIT_CHARS:
        raise LabelError(f"The edited text has {len(text):,} characters; {MAX_EDIT_CHARS:,} are allowed. Shorten it.")
    return text


def add_edited_answer(db: Database, vote: Vote, text: str) -> Vote:
    """Store the edit of the text that `vote` prefers, as a text by a person, with the label that it is much better.

    A repeated request changes nothing. The pair is shown to others while it needs votes. Raises LabelError for a vote that
    prefers no text or whose label's uuid another vote has, and as `check_edit`.
    """
    if vote.choice not in (Choice.FIRST, Choice.SECOND):
        raise LabelError("Only the better text of a pair can be edited. Choose one, then edit it.")
    uuid = vote.uuid + EDIT_SUFFIX
    with db.write() as conn:
        pair = load_pairs(conn, [vote.pair_id])[0]
        original = pair.first if vote.choice is Choice.FIRST else pair.second
        if (existing := vote_by_uuid(conn, uuid)) is not None:
            edited = load_pairs(conn, [existing.pair_id])[0]
            is_same = edited.reason == EDIT_REASON and edited.second.id == original.id
            if existing.annotator != vote.annotator or not is_same:
                raise LabelError(
                    "Another vote has the uuid of the edit; the edit was not stored. Use a new uuid for each vote."
                )
            return existing
        completion = {
            "prompt_id": pair.prompt.id, "text": leading_space(original.text) + check_edit(original.text, text),
            "token_ids": (), "checkpoint": PERSON, "seed": 0, "created_at": time.time(),
        }  # fmt: skip
        edited_id = insert_row(conn, t.completions, completion)
        pair_row = {
            "project_id": pair.project_id, "first_id": edited_id, "second_id": original.id, "reason": EDIT_REASON,
            "created_at": time.time(),
        }  # fmt: skip
        pair_id = insert_row(conn, t.pairs, pair_row)
        return insert_vote(
            conn,
            Vote(
                uuid, pair_id, vote.annotator, Source.HUMAN, Choice.FIRST, first_on_left=True, strength=Strength.MUCH,
                note=vote.note, via=vote.via,
            ),
        )  # fmt: skip
