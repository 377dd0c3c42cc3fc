"""Pairs made of two answers of a chat."""

import pytest

from rlhf_lab.common.records import Project
from rlhf_lab.errors import LabelError
from rlhf_lab.store.chat_pairs import ChatText, add_chat_pair
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import count_pairs, get_pair, prompts

BIRD = ChatText("Once a bird sang.", (17, 1), "run/1/4", 7)
CAT = ChatText("Once a cat ran.", (15, 1), "base", 7)
MOON = ChatText("Once a moon rose.", (16, 1), "base", 8)


def test_the_texts_keep_their_order_and_where_they_are_from(db: Database, project: Project):
    pair = get_pair(db, add_chat_pair(db, project.id, "A tale?", BIRD, CAT).id)
    assert (pair.prompt.text, pair.prompt.split, pair.reason) == ("A tale?", "train", "chat")
    sides = [(side.text, side.token_ids, side.checkpoint, side.seed) for side in (pair.first, pair.second)]
    assert sides == [tuple(BIRD), tuple(CAT)]
    assert "A tale?" not in [prompt.text for prompt in prompts(db, project.id, "train")]  # it carries labels only


def test_what_the_project_holds_is_not_stored_again(db: Database, project: Project):
    first = add_chat_pair(db, project.id, "Once", BIRD, CAT)
    second = add_chat_pair(db, project.id, "Once", CAT, MOON)
    assert first.prompt == second.prompt == prompts(db, project.id, "train")[0]
    assert first.second.id == second.first.id


def test_what_is_no_pair_stores_nothing(db: Database, project: Project):
    with pytest.raises(LabelError, match="are equal"):
        add_chat_pair(db, project.id, "A tale?", BIRD, BIRD._replace(text="Once a bird sang. ", checkpoint="base"))
    with pytest.raises(LabelError, match="held out for evaluation"):
        add_chat_pair(db, project.id, "Far", BIRD, CAT)
    assert count_pairs(db, project.id) == 0
