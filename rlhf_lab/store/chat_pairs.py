"""Turns two answers of a chat into a pair whose prompt is the conversation. Rows that exist already are reused."""

import time
from typing import NamedTuple

from sqlalchemy import Connection, and_, select

from rlhf_lab.common.records import Pair
from rlhf_lab.errors import LabelError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.projects import add_pairs

CHAT_REASON = "chat"


class ChatText(NamedTuple):
    """An answer, with the fields that a completion stores."""

    text: str
    token_ids: tuple[int, ...]
    checkpoint: str
    seed: int


def add_chat_pair(db: Database, project_id: int, prompt: str, first: ChatText, second: ChatText) -> Pair:
    """The pair of two answers to a prompt. A new prompt is used only for its labels; no texts are sampled for it.

    Raises LabelError if the answers are equal, or if the prompt is held out for evaluation.
    """
    if first.text.strip() == second.text.strip():
        raise LabelError(
            "The two answers are equal, so there is nothing to choose. Send the message again with another seed."
        )
    with db.write() as conn:
        prompt_id = _prompt_id(conn, project_id, prompt)
        first_id, second_id = (_completion_id(conn, prompt_id, text) for text in (first, second))
    return add_pairs(db, project_id, [(first_id, second_id, CHAT_REASON)])[0]


def _prompt_id(conn: Connection, project_id: int, text: str) -> int:
    p = t.prompts.c
    row = conn.execute(select(p.id, p.split).where(p.project_id == project_id, p.text == text).order_by(p.id)).first()
    if row is None:
        return insert_row(
            conn, t.prompts, {"project_id": project_id, "text": text, "split": "train", "labels_only": True}
        )
    if row.split == "eval":
        raise LabelError(
            "This prompt is held out for evaluation and cannot be used for training. Change the wording of the message."
        )
    prompt_id: int = row.id
    return prompt_id


def _completion_id(conn: Connection, prompt_id: int, answer: ChatText) -> int:
    c = t.completions.c
    is_same = and_(c.prompt_id == prompt_id, c.text == answer.text, c.token_ids == answer.token_ids)
    stored_id: int | None = conn.execute(select(c.id).where(is_same).order_by(c.id)).scalars().first()
    values = {"prompt_id": prompt_id, **answer._asdict(), "created_at": time.time()}
    return insert_row(conn, t.completions, values) if stored_id is None else stored_id
