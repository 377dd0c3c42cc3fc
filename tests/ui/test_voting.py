"""What may be said besides left and right: strength, notes, other answers to earlier pairs; hidden repeats; the API."""

import gradio as gr
import pytest
from gradio import Error

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import ConfigError, LabelError, StaleVoteError
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.pair_selection import REPEAT_AFTER_VOTES
from rlhf_lab.store.projects import set_labelling_config
from rlhf_lab.ui import http_api
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.screens import label, people
from rlhf_lab.ui.services import voting


@pytest.fixture
def ctx(tmp_path):
    with Database.open(tmp_path) as db:
        new_project(db)
        yield Context(tmp_path, db)


def say(ctx, choice="left", **more):
    pair = label.state(ctx, "ann")["pair"]
    said = {"uuid": f"{pair['id']}-{choice}-{len(more)}", "pair_id": pair["id"], "annotator": "ann", "choice": choice}
    return voting.cast_vote(ctx, said | more)


def test_strength_and_note_are_kept_and_strength_belongs_to_a_side(ctx):
    vote = say(ctx, strength="much", note="  warmer ")
    assert (vote.strength, vote.note, vote.via) == (Strength.MUCH, "warmer", "page")
    assert say(ctx, "tie", strength="much").strength is None
    assert say(ctx).strength is None


@pytest.mark.parametrize("broken", [{"strength": "very"}, {"note": "x" * 1001}, {"uuid": "x" * 65}])
def test_what_cannot_be_kept_is_refused_and_changes_nothing(ctx, broken):
    with pytest.raises(LabelError, match=r"could not be read|shorten it|number is too long"):
        say(ctx, **broken)
    assert label.state(ctx, "ann")["labels"] == 0


def test_an_earlier_answer_is_changed_with_the_sides_of_its_day(ctx):
    old = say(ctx, "left")
    (line,) = voting.recent_votes(ctx, "ann")
    assert (line["id"], line["choice"]) == (old.id, "left")
    new = voting.change_vote(ctx, {"vote_id": old.id, "uuid": "n", "annotator": "ann", "choice": "right"})
    assert {old.choice, new.choice} == {Choice.FIRST, Choice.SECOND}
    (after,) = voting.recent_votes(ctx, "ann")
    assert (after["choice"], after["left"], after["right"]) == ("right", line["left"], line["right"])
    for who, vote_id in (("ann", old.id), ("bob", new.id), ("ann", 999)):
        with pytest.raises(StaleVoteError):
            voting.change_vote(ctx, {"vote_id": vote_id, "uuid": f"x{who}{vote_id}", "annotator": who, "choice": "tie"})
    assert voting.recent_votes(ctx, "ann") == [after]


def test_a_hidden_repeat_swaps_the_sides_and_looks_like_any_pair(ctx):
    set_labelling_config(ctx.db, ctx.project.id, LabellingConfig(repeats=0.5))
    first, again = {}, []
    for n in range(14):
        pair = label.state(ctx, "cid")["pair"]
        if pair is None:
            break
        assert set(pair) == {"id", "prompt", "left", "right", "markdown"}
        vote = voting.cast_vote(ctx, {"uuid": f"{n}", "pair_id": pair["id"], "annotator": "cid", "choice": "left"})
        if vote.repeat:
            again.append(vote)
            before = first[pair["id"]]
            assert (pair["left"], pair["right"]) == (before["right"], before["left"])
            assert vote.choice is not before["vote"].choice  # left again is the other text
        else:
            first[pair["id"]] = pair | {"vote": vote}
    assert again
    assert 14 - len(again) >= REPEAT_AFTER_VOTES


def test_a_guideline_and_the_way_texts_are_shown_reach_the_page(ctx):
    people.update_labelling_config(
        ctx, {"rules": {"guideline": "kind words", "markdown": True, "overlap": "3", "repeats": "0.1"}}
    )
    shown = label.state(ctx, "cid")
    assert (shown["guideline"], shown["pair"]["markdown"]) == ("kind words", True)


@pytest.mark.parametrize(
    "rules",
    [{"overlap": 0}, {"overlap": "many"}, {"repeats": "0.9"}, {"sampling": "best"}, {"guideline": "x" * 4001}],
    ids=str,
)
def test_rules_out_of_range_are_refused(ctx, rules):
    with pytest.raises(ConfigError):
        people.update_labelling_config(ctx, {"rules": rules})
    with pytest.raises(ConfigError):
        people.update_labelling_config(ctx, {})


def test_a_qr_code_is_square_with_its_quiet_zone(ctx):
    code = people.qr_code("http://127.0.0.1:7860/join?code=ABC234")
    assert code["size"] == 29 + 8  # version 3
    assert code["path"].startswith("M4 4h1v1h-1z")
    assert code["path"].count("M") > 300


def endpoints_of(ctx):
    with gr.Blocks() as page:
        http_api.build(ctx)
    return {event.api_name: event.fn for event in page.fns.values()}


@pytest.fixture
def endpoints(ctx, in_loop):
    return in_loop(lambda: endpoints_of(ctx))


def test_programs_label_by_the_same_rules_under_names_of_their_own(ctx, endpoints):
    pair = endpoints["next_pair"](name="bot")
    assert endpoints["next_pair"](name="bot") == pair
    answer = endpoints["submit_vote"]("bot", pair["id"], "left", "u1", strength="clearly")
    assert answer["counted"] is True
    assert endpoints["submit_vote"]("bot", pair["id"], "left", "u1") == answer
    twice = endpoints["submit_vote"]("bot", pair["id"], "right", "u2")
    assert (twice["counted"], twice["vote_id"]) == (False, None)
    assert "already voted" in twice["why"]
    foreign = endpoints["submit_vote"]("other", pair["id"], "left", "u3")
    assert "not given to you" in foreign["why"]
    with ctx.db.read() as conn:
        rows = conn.exec_driver_sql("SELECT annotator, via, source, strength FROM votes").all()
    assert [tuple(row) for row in rows] == [("api:bot", "api", "human", "clearly")]
    status = endpoints["status"]()
    assert (status["labels"], status["goal"]) == (1, 10)


def test_a_uuid_of_another_vote_is_no_vote(ctx, endpoints):
    one = endpoints["next_pair"](name="a")
    endpoints["submit_vote"]("a", one["id"], "left", "same")
    two = endpoints["next_pair"](name="b")
    with pytest.raises(Error, match="uuid"):
        endpoints["submit_vote"]("b", two["id"], "left", "same")
    assert endpoints["status"]()["labels"] == 1


def test_programs_need_the_join_code_where_people_do(ctx, monkeypatch, in_loop):
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    guarded = ctx.as_multi_user(open_to_all=False)
    ask = in_loop(lambda: endpoints_of(guarded))["next_pair"]
    with pytest.raises(Error, match="join code"):
        ask(name="bot")
    assert ask(name="bot", code="abc234")["id"] is not None
    for nobody in ("", "x" * 51):
        with pytest.raises(Error, match="who judges"):
            ask(name=nobody, code="ABC234")


@pytest.mark.parametrize(
    ("said", "words"),
    [({"ms": float("inf")}, "could not be read"), ({"pair_id": float("inf")}, "could not be read"),
     ({"uuid": "u" * 65}, "number is too long"), ({"note": "n" * 1001}, "shorten it")],
)  # fmt: skip
def test_a_vote_that_cannot_be_is_refused_in_words(ctx, said, words):
    (pair,) = [label.state(ctx, "ann")["pair"]]
    with pytest.raises(LabelError, match=words):
        voting.cast_vote(ctx, {"uuid": "u", "pair_id": pair["id"], "annotator": "ann", "choice": "left"} | said)


def test_what_just_fits_is_kept(ctx):
    vote = say(ctx, uuid="u" * 64, note="n" * 1000)
    assert (vote.uuid, vote.note) == ("u" * 64, "n" * 1000)


@pytest.mark.parametrize(
    ("choice", "first_on_left", "word"),
    [(Choice.FIRST, True, "left"), (Choice.FIRST, False, "right"), (Choice.SECOND, True, "right"),
     (Choice.SECOND, False, "left"), (Choice.TIE, False, "tie"), (Choice.BOTH_BAD, True, "both_bad")],
)  # fmt: skip
def test_a_choice_is_named_by_the_side_it_stood_on(choice, first_on_left, word):
    assert voting.choice_name_of(Vote("u", 1, "ann", Source.HUMAN, choice, first_on_left)) == word
