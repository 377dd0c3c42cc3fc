"""The better text of a pair, edited on the screen Label: what is stored, undone, exported and erased."""

import json

import pytest
from sqlalchemy import select
from support.page_requests import requests_of

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import Vote
from rlhf_lab.errors import LabelError, StoreError
from rlhf_lab.store import tables as t
from rlhf_lab.store.edited_answers import MAX_EDIT_CHARS, add_edited_answer, check_edit, count_edits
from rlhf_lab.store.erasure import erase_person_rows
from rlhf_lab.store.features import newest_labels, texts_without_features
from rlhf_lab.store.label_snapshots import comparisons_by_vote, load_comparisons, snapshot_labels
from rlhf_lab.store.votes import cast_vote, vote_history
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.shared import voting

EDIT = "A better text,\nwritten by <b>hand</b>."


@pytest.fixture
def screen(ctx):
    return requests_of(ctx, label.api)


def send_vote(screen, pair, choice="left", edit=EDIT, uuid="u1", **more):
    return screen.vote(
        {"pair_id": pair["id"], "choice": choice, "uuid": uuid, "edit": edit, "annotator": "ann", **more}
    )


def edited_history(ctx):
    """The person's live votes, the newest first, as (choice, first text, second text, strength)."""
    history = vote_history(ctx.db, ctx.project.id, "ann")
    return [(vote.choice, pair.first.text.strip(), pair.second.text.strip(), vote.strength) for vote, pair in history]


def test_an_edit_is_a_text_by_a_person_that_is_much_better_than_the_original(ctx, screen):
    state = screen.opened({"annotator": "ann"})
    assert state["may_edit"]
    pair = state["pair"]
    reply = send_vote(screen, pair, edit=f"  {EDIT}\n", note="why")
    assert (reply["notice"], reply["labels"]) == ("", 2)
    newest, oldest = edited_history(ctx)
    assert newest == (Choice.FIRST, EDIT, pair["left"], Strength.MUCH)
    assert pair["left"] in oldest[1:3]
    assert count_edits(ctx.db, ctx.project.id) == 1
    vote, stored = vote_history(ctx.db, ctx.project.id, "ann")[0]
    assert (stored.reason, stored.first.checkpoint, stored.first.token_ids) == ("edit", "person", ())
    assert vote.note == "why"
    comparison = load_comparisons(ctx.db, snapshot_labels(ctx.db, ctx.project.id, Source.HUMAN))[-1]
    assert (comparison.chosen.strip(), comparison.rejected.strip(), comparison.strength) == (EDIT, pair["left"], 2.0)
    assert [each.is_edit for each in load_comparisons(ctx.db, snapshot_labels(ctx.db, ctx.project.id, Source.HUMAN))] == [
        False, True,
    ]  # fmt: skip
    spaces = [len(text) - len(text.lstrip()) for text in (comparison.chosen, comparison.rejected)]
    assert spaces[0] == spaces[1]  # otherwise every label would also teach the missing space


def test_a_request_that_is_sent_again_stores_the_edit_once(ctx, screen):
    pair = screen.opened({"annotator": "ann"})["pair"]
    send_vote(screen, pair)
    assert send_vote(screen, pair, edit="another text")["labels"] == 2
    assert [row[1] for row in edited_history(ctx)].count(EDIT) == 1


@pytest.mark.parametrize(
    ("choice", "edit", "message"),
    [
        ("tie", EDIT, "Only the better text"),
        ("left", " \n", "empty, or one of the two texts"),
        ("left", "\u200b\u3164", "empty, or one of the two texts"),
        ("left", "unchanged", "empty, or one of the two texts"),
        ("right", "x" * (MAX_EDIT_CHARS + 1), "20,001 characters; 20,000 are allowed"),
    ],
)
def test_an_edit_that_cannot_be_stored_is_refused_with_the_vote_and_given_back(ctx, screen, choice, edit, message):
    pair = screen.opened({"annotator": "ann"})["pair"]
    edit = pair["left"] if edit == "unchanged" else edit
    reply = send_vote(screen, pair, choice, edit)
    assert message in reply["notice"]
    assert f'Your edited text was: "{edit}"' in reply["notice"]
    assert (reply["labels"], reply["pair"]["id"]) == (0, pair["id"])


def test_undo_takes_the_edit_and_the_answer_back_and_redo_restores_both(ctx, screen):
    pair = screen.opened({"annotator": "ann"})["pair"]
    send_vote(screen, pair)
    before = edited_history(ctx)
    undone = screen.undo({"annotator": "ann"})
    assert (undone["labels"], undone["pair"]["id"]) == (0, pair["id"])
    assert edited_history(ctx) == []
    with ctx.db.read() as conn:
        withdrawn = conn.execute(select(t.pairs.c.taken_back_at).where(t.pairs.c.reason == "edit")).scalar_one()
    assert withdrawn is not None  # nobody is shown the text
    assert screen.redo({"annotator": "ann"})["labels"] == 2
    assert edited_history(ctx) == before
    screen.undo({"annotator": "ann"})
    assert (screen.redo({"annotator": "ann"})["labels"], screen.redo({"annotator": "ann"})["labels"]) == (2, 2)


def test_undo_of_another_persons_answer_to_an_edit_undoes_that_alone(ctx, screen):
    """Bob judged the pair of Ann's edit like any other, after another pair."""
    send_vote(screen, screen.opened({"annotator": "ann"})["pair"])
    edit_pair = vote_history(ctx.db, ctx.project.id, "ann")[0][1]
    screen.vote(
        {
            "pair_id": screen.opened({"annotator": "bob"})["pair"]["id"],
            "choice": "tie",
            "uuid": "b1",
            "annotator": "bob",
        }
    )
    cast_vote(ctx.db, Vote("b2", edit_pair.id, "bob", Source.HUMAN, Choice.SECOND, True))
    screen.undo({"annotator": "bob"})
    assert [vote.uuid for vote, _ in vote_history(ctx.db, ctx.project.id, "bob")] == ["b1"]
    assert len(edited_history(ctx)) == 2


@pytest.mark.parametrize("is_edited", [False, True])
@pytest.mark.parametrize("answer", ["a2", "b1"])
def test_undo_of_a_vote_whose_uuid_looks_like_that_of_an_edit_undoes_it_alone(ctx, screen, answer, is_edited):
    """Bob chooses the uuids of his votes: one of his or Ann's, with the suffix. On an ordinary pair, or on that of Ann's edit."""
    send_vote(screen, screen.opened({"annotator": "ann"})["pair"])
    edit_pair = vote_history(ctx.db, ctx.project.id, "ann")[0][1]
    send_vote(screen, screen.opened({"annotator": "ann"})["pair"], edit="", uuid="a2")
    send_vote(screen, screen.opened({"annotator": "bob"})["pair"], edit="", uuid="b1", annotator="bob")
    pair_id = edit_pair.id if is_edited else screen.opened({"annotator": "bob"})["pair"]["id"]
    before = edited_history(ctx)
    cast_vote(ctx.db, Vote(f"{answer}-edit", pair_id, "bob", Source.HUMAN, Choice.SECOND, True))
    screen.undo({"annotator": "bob"})
    assert [vote.uuid for vote, _ in vote_history(ctx.db, ctx.project.id, "bob")] == ["b1"]
    assert edited_history(ctx) == before
    with ctx.db.read() as conn:
        assert conn.execute(select(t.pairs.c.taken_back_at).where(t.pairs.c.id == pair_id)).scalar_one() is None


def test_a_vote_with_the_uuid_of_another_person_stores_no_edit_for_them(ctx, screen):
    pair = screen.opened({"annotator": "ann"})["pair"]
    send_vote(screen, pair, edit="")
    own = screen.opened({"annotator": "bob"})["pair"]
    for shown in (pair, own):
        reply = send_vote(screen, shown, annotator="bob")
        assert "Another vote already has this uuid; nothing was counted." in reply["notice"]
    assert reply["labels"] == 1
    assert [row[1] for row in edited_history(ctx)].count(EDIT) == 0


def test_undo_of_an_answer_without_an_edit_undoes_one(ctx, screen):
    first = screen.opened({"annotator": "ann"})["pair"]
    second = send_vote(screen, first, uuid="u1")["pair"]
    send_vote(screen, second, edit="", uuid="u2")
    assert screen.undo({"annotator": "ann"})["labels"] == 2
    assert screen.redo({"annotator": "ann"})["labels"] == 3


def test_visitors_of_a_demo_cannot_write_texts(ctx, screen, monkeypatch):
    pair = screen.opened({"annotator": "ann"})["pair"]
    monkeypatch.setattr(voting, "may_edit", lambda _: False)
    reply = send_vote(screen, pair)
    assert "only the operator can edit texts" in json.dumps(reply)
    assert edited_history(ctx) == []


def test_an_erased_persons_texts_are_gone(ctx, screen):
    pair = screen.opened({"annotator": "ann"})["pair"]
    send_vote(screen, pair)
    edit_pair = vote_history(ctx.db, ctx.project.id, "ann")[0][1]
    erase_person_rows(ctx.db, "ann", votes=True)
    with ctx.db.read() as conn:
        completion, pairs = t.completions.c, t.pairs.c
        texts = conn.execute(select(completion.text).where(completion.id == edit_pair.first.id)).scalars().all()
        withdrawn = conn.execute(select(pairs.taken_back_at).where(pairs.id == edit_pair.id)).scalar_one()
    assert texts == ["(erased)"]
    assert withdrawn is not None
    shown = {screen.opened({"annotator": f"person {i}"})["pair"]["id"] for i in range(5)}
    assert edit_pair.id not in shown


def test_erased_texts_reach_no_training(ctx, screen):
    """Bob judged Ann's text, and wrote one in place of it."""
    send_vote(screen, screen.opened({"annotator": "ann"})["pair"])
    edit_pair = vote_history(ctx.db, ctx.project.id, "ann")[0][1]
    bobs = cast_vote(ctx.db, Vote("b1", edit_pair.id, "bob", Source.HUMAN, Choice.FIRST, True))
    add_edited_answer(ctx.db, bobs, "Bob's text")
    other_pair = screen.opened({"annotator": "bob"})["pair"]["id"]
    other = cast_vote(ctx.db, Vote("b2", other_pair, "bob", Source.HUMAN, Choice.FIRST, True))
    before = snapshot_labels(ctx.db, ctx.project.id, Source.HUMAN)
    assert len(load_comparisons(ctx.db, before)) == 5
    erase_person_rows(ctx.db, "ann", votes=True)
    assert snapshot_labels(ctx.db, ctx.project.id, Source.HUMAN).vote_ids == (other.id,)
    assert [label.vote_id for label in newest_labels(ctx.db, ctx.project.id, Source.HUMAN)] == [other.id]
    sides = [side for _, side in texts_without_features(ctx.db, ctx.project.id, 10_000)]
    assert sides
    assert "(erased)" not in {side.text for side in sides}
    with pytest.raises(StoreError, match="texts of a person were erased"):  # a run that is resumed
        load_comparisons(ctx.db, before)
    shown = comparisons_by_vote(ctx.db, before.vote_ids)
    assert len(shown) == 2  # those on the pairs that are left
    assert "(erased)" not in {text for label in shown.values() for text in (label.chosen, label.rejected)}
    assert screen.redo({"annotator": "bob"})["labels"] == 1


def test_an_export_has_the_edited_text(ctx, screen, tmp_path):
    pair = screen.opened({"annotator": "ann"})["pair"]
    send_vote(screen, pair)
    assert main(["export", "labels", "--home", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    (file,) = (tmp_path / "out").glob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert EDIT in [row["chosen"].strip() for row in rows]


@pytest.mark.parametrize("who", ["ann", "bob"])
def test_an_edit_is_not_lost_because_another_vote_has_its_uuid(ctx, screen, who):
    """People and programs choose the uuids of their votes."""
    send_vote(screen, screen.opened({"annotator": who})["pair"], edit="", uuid="u1-edit", annotator=who)
    pair = screen.opened({"annotator": "ann"})["pair"]
    assert "the edit was not stored" in send_vote(screen, pair)["notice"]
    assert send_vote(screen, screen.opened({"annotator": "ann"})["pair"], uuid="u2")["notice"] == ""
    assert edited_history(ctx)[0][1] == EDIT


def test_only_a_preferred_text_can_be_edited(ctx, screen):
    pair = screen.opened({"annotator": "ann"})["pair"]
    send_vote(screen, pair, "tie", edit="")
    vote = vote_history(ctx.db, ctx.project.id, "ann")[0][0]
    with pytest.raises(LabelError, match="Choose one"):
        add_edited_answer(ctx.db, vote, EDIT)
    assert check_edit("a", " b ") == "b"
