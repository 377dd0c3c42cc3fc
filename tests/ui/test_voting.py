"""Strength, notes, changed votes, hidden repeats, labelling rules, and the API for programs."""

import shutil
from types import SimpleNamespace

import gradio as gr
import pytest
from gradio import Error
from gradio.context import LocalContext

from rlhf_lab.common.bundled_assets import shipped_pairs
from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import Completion, Lease, Pair, Prompt, Vote
from rlhf_lab.common.text import cut_length
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import ConfigError, LabError, StaleVoteError
from rlhf_lab.jobs.model_inspection import stop_token_ids
from rlhf_lab.store.pair_selection import REPEAT_AFTER_VOTES
from rlhf_lab.store.projects import set_labelling_config
from rlhf_lab.ui import http_api
from rlhf_lab.ui.auth import api_clients
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.people import api as people
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.api import parse_payload


def cast(ctx, annotator="ann", **payload):
    """Vote on the pair that is shown to a person."""
    pair_id, choice = label.state(ctx, annotator)["pair"]["id"], payload.get("choice", "left")
    answer = {"uuid": f"{pair_id}-{choice}-{len(payload)}", "pair_id": pair_id, "choice": "left"} | payload
    return voting.cast_vote(ctx, parse_payload(voting.VotePayload, answer), annotator)


def change(ctx, annotator, **payload):
    return voting.change_vote(ctx, parse_payload(voting.ChangePayload, payload), annotator)


def update_rules(ctx, **payload):
    return people.set_rules(ctx, parse_payload(people.RulesPayload, payload))


def test_strength_and_note_are_kept_and_strength_belongs_to_a_side(ctx):
    vote = cast(ctx, strength="much", note="  warmer ")
    assert (vote.strength, vote.note, vote.via) == (Strength.MUCH, "warmer", "page")
    assert cast(ctx, choice="tie", strength="much").strength is None
    assert cast(ctx).strength is None


@pytest.mark.parametrize("broken", [{"strength": "very"}, {"note": "x" * 1001}, {"uuid": "x" * 65}])
def test_an_unknown_strength_and_too_long_texts_are_refused(ctx, broken):
    with pytest.raises(LabError, match=r"no usable strength|shorten the note|uuid is too long"):
        cast(ctx, **broken)
    assert label.state(ctx, "ann")["labels"] == 0


def test_a_changed_vote_keeps_the_sides_of_the_first(ctx):
    old = cast(ctx, choice="left")
    (line,) = voting.recent_votes(ctx, "ann")
    assert (line["id"], line["choice"]) == (old.id, "left")
    new = change(ctx, "ann", vote_id=old.id, uuid="n", choice="right")
    assert {old.choice, new.choice} == {Choice.FIRST, Choice.SECOND}
    (after,) = voting.recent_votes(ctx, "ann")
    assert (after["choice"], after["left"], after["right"]) == ("right", line["left"], line["right"])
    for who, vote_id in (("ann", old.id), ("bob", new.id), ("ann", 999)):
        with pytest.raises(StaleVoteError):
            change(ctx, who, vote_id=vote_id, uuid=f"x{who}{vote_id}", choice="tie")
    assert voting.recent_votes(ctx, "ann") == [after]


def test_a_hidden_repeat_swaps_the_sides_and_looks_like_any_pair(ctx):
    set_labelling_config(ctx.db, ctx.project.id, LabellingConfig(repeats=0.5))
    first, again = {}, []
    for n in range(14):
        pair = label.state(ctx, "cid")["pair"]
        if pair is None:
            break
        assert set(pair) == {"id", "prompt", "turns", "left", "right", "markdown", "adjudication", "cut"}
        vote = cast(ctx, "cid", uuid=f"{n}", pair_id=pair["id"])
        if vote.repeat:
            again.append(vote)
            before = first[pair["id"]]
            assert (pair["left"], pair["right"]) == (before["right"], before["left"])
            assert vote.choice is not before["vote"].choice  # left again is the other text
        else:
            first[pair["id"]] = pair | {"vote": vote}
    assert again
    assert 14 - len(again) >= REPEAT_AFTER_VOTES


def test_a_conversation_is_shown_turn_by_turn_after_the_system_prompt(ctx):
    prompt = Prompt(1, 1, "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: A joke?\n\nAssistant:", "train")
    sides = [Completion(1, text, (), "base", 0, id=i) for i, text in enumerate(("Knock.", "No."))]
    lease = Lease(Pair(7, 1, prompt, *sides, reason="random"), "cid", False, 0.0)
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "A joke?")]
    for system_prompt, expected in (("", turns), ("Be kind.", [("system", "Be kind."), *turns])):
        view = voting.lease_view(ctx, lease, LabellingConfig(), system_prompt)
        assert [(turn["role"], turn["content"]) for turn in view["turns"]] == expected
        assert (view["prompt"], {view["left"], view["right"]}) == (prompt.text, {"Knock.", "No."})
    shown = label.state(ctx, "cid")["pair"]
    assert shown["turns"] == [{"role": "user", "content": shown["prompt"]}]


def test_texts_that_were_cut_off_are_named_by_side(ctx, monkeypatch):
    prompt = Prompt(1, 1, "Once", "train")
    ids = {"ended": (5, 6, 2), "cut": (5, 6, 7, 8), "imported": ()}

    def pair(first, second):
        sides = [Completion(1, name, ids[name], "base", 0, id=i) for i, name in enumerate((first, second))]
        return Pair(7, 1, prompt, *sides, reason="random")

    monkeypatch.setattr(voting, "stop_token_ids", lambda _: frozenset({2, 3}))
    assert voting.cuts_by_side(ctx, pair("cut", "ended"), True) == {"left": 4, "right": None}
    assert voting.cuts_by_side(ctx, pair("cut", "ended"), False) == {"left": None, "right": 4}
    assert voting.cuts_by_side(ctx, pair("imported", "cut"), True) == {"left": None, "right": 4}
    monkeypatch.setattr(voting, "stop_token_ids", lambda _: frozenset())  # the model's files are not here
    assert voting.cuts_by_side(ctx, pair("cut", "ended"), True) == {"left": None, "right": None}


def test_the_stop_tokens_of_a_model_that_is_here(ctx):
    _, pairs = shipped_pairs()
    stop_ids = stop_token_ids("embedded")
    assert {cut_length(ids, stop_ids) for pair in pairs for ids in pair.token_ids} == {None}
    shown = label.state(ctx, "ann")["pair"]
    cast(ctx, pair_id=shown["id"])
    (vote,) = voting.recent_votes(ctx, "ann")
    assert (vote["left"], vote["cut"]) == (shown["left"], shown["cut"])
    assert stop_token_ids("someone/absent") == stop_token_ids("/no/folder") == frozenset()


def test_the_guideline_and_markdown_setting_reach_the_page(ctx):
    update_rules(ctx, rules={"guideline": "kind words", "markdown": True, "overlap": "3", "repeats": "0.1"})
    shown = label.state(ctx, "cid")
    assert (shown["guideline"], shown["pair"]["markdown"]) == ("kind words", True)


@pytest.mark.parametrize(
    "rules",
    [{"overlap": 0}, {"overlap": "many"}, {"repeats": "0.9"}, {"sampling": "best"}, {"guideline": "x" * 4001}],
    ids=str,
)
def test_rules_out_of_range_are_refused(ctx, rules):
    with pytest.raises(ConfigError):
        update_rules(ctx, rules=rules)
    with pytest.raises(ConfigError):
        update_rules(ctx)


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
        with pytest.raises(Error, match="name of the annotator"):
            ask(name=nobody, code="ABC234")


@pytest.mark.parametrize(
    ("payload", "words"),
    [({"duration_ms": float("inf")}, "no usable duration"), ({"pair_id": float("inf")}, "no usable pair"),
     ({"uuid": "u" * 65}, "uuid is too long"), ({"note": "n" * 1001}, "shorten the note")],
)  # fmt: skip
def test_an_invalid_vote_is_refused_with_a_message(ctx, payload, words):
    with pytest.raises(LabError, match=words):
        cast(ctx, **payload)


def test_the_longest_uuid_and_note_are_stored(ctx):
    vote = cast(ctx, uuid="u" * 64, note="n" * 1000)
    assert (vote.uuid, vote.note) == ("u" * 64, "n" * 1000)


@pytest.mark.parametrize(
    ("choice", "first_on_left", "word"),
    [(Choice.FIRST, True, "left"), (Choice.FIRST, False, "right"), (Choice.SECOND, True, "right"),
     (Choice.SECOND, False, "left"), (Choice.TIE, False, "tie"), (Choice.BOTH_BAD, True, "both_bad")],
)  # fmt: skip
def test_a_choice_is_named_by_the_side_it_stood_on(choice, first_on_left, word):
    assert voting.choice_name_of(Vote("u", 1, "ann", Source.HUMAN, choice, first_on_left)) == word


def test_a_vote_is_not_acknowledged_when_the_home_is_deleted(ctx, endpoints):
    """Neither on the page nor by the API; no reply says that another pair follows."""
    shown = label.state(ctx, "ann")["pair"]
    vote = voting.VotePayload(uuid="u1", pair_id=shown["id"], choice="left", annotator="ann")
    pair = endpoints["next_pair"](name="tool")
    shutil.rmtree(ctx.home)
    with pytest.raises(LabError, match="deleted, moved or replaced"):
        label.vote(ctx, vote)
    with pytest.raises(Error, match="deleted, moved or replaced"):
        endpoints["submit_vote"](name="tool", pair_id=pair["id"], choice="left", uuid="u2")
    assert not ctx.home.exists()


@pytest.fixture
def call_as():
    """call_as(session): from now on the API client with this session calls."""
    tokens = []

    def become(session, address="192.0.2.1"):
        client = SimpleNamespace(host=address)
        request = SimpleNamespace(cookies={}, headers={"host": "lab"}, client=client, session_hash=session)
        tokens.append(LocalContext.request.set(request))

    yield become
    for token in reversed(tokens):
        LocalContext.request.reset(token)


def test_a_name_belongs_to_the_api_client_that_first_used_it(endpoints, call_as):
    call_as("first")
    pair = endpoints["next_pair"](name="tool")
    vote = {"name": "tool", "pair_id": pair["id"], "choice": "left", "uuid": "u1"}
    call_as("second")
    for name in ("tool", " tool "):
        with pytest.raises(Error, match="Another client uses the name"):
            endpoints["submit_vote"](**vote | {"name": name})
        with pytest.raises(Error, match="Another client uses the name"):
            endpoints["next_pair"](name=name)
    assert endpoints["status"]()["labels"] == 0
    other = endpoints["next_pair"](name="other tool")
    assert other["id"] is not None
    call_as("first")
    assert endpoints["submit_vote"](**vote)["counted"] is True


@pytest.mark.parametrize(
    "name",
    ["toolA\ufe0f", "toolA\u3164", "\uff54oolA", "TOOLA", "too1A", "tool\u2c6d", "\u0442\u043e\u043e\u04cf\u0410"],
    ids=ascii,
)
def test_a_name_that_looks_like_another_clients_name_is_taken(endpoints, call_as, name):
    call_as("first")
    endpoints["next_pair"](name="toolA")
    call_as("second")
    with pytest.raises(Error, match="or one that looks like it"):
        endpoints["next_pair"](name=name)
    assert endpoints["next_pair"](name="toolB")["id"] is not None
    call_as("first")
    assert endpoints["next_pair"](name=name)["id"] is not None  # one's own


@pytest.mark.parametrize(
    "name",
    ["t\u043e\u043elA", "\u3164", "\ufe0f", "\u0301", "api:toolA", "API\uff1atool", "judge:cheerful", "a\u202eb"],
    ids=ascii,
)
def test_names_that_no_program_may_have(endpoints, call_as, name):
    call_as("first")
    with pytest.raises(Error, match=r"Pass the name of the annotator|several alphabets"):
        endpoints["next_pair"](name=name)


def test_clients_without_a_session_are_distinguished_by_their_address(endpoints, call_as):
    call_as(None, "192.0.2.1")
    endpoints["next_pair"](name="tool")
    call_as(None, "192.0.2.2")
    with pytest.raises(Error, match="Another client"):
        endpoints["next_pair"](name="tool")
    call_as(None, "192.0.2.1")
    assert endpoints["next_pair"](name="tool")["id"] is not None


def test_a_name_is_free_again_when_its_client_was_idle(endpoints, call_as, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(api_clients.time, "monotonic", lambda: now[0])
    call_as("first")
    endpoints["next_pair"](name="tool")
    now[0] += api_clients.NAME_IDLE_S - 1
    endpoints["next_pair"](name="tool")
    call_as("second")
    now[0] += api_clients.NAME_IDLE_S - 1
    with pytest.raises(Error, match="10 minutes"):
        endpoints["next_pair"](name="tool")
    now[0] += 2
    assert endpoints["next_pair"](name="tool")["id"] is not None


@pytest.mark.parametrize("field", ["name", "code", "uuid", "choice", "strength", "note", "pair_id", "ms"])
@pytest.mark.parametrize("odd", [None, 1.5, [1], {"a": 1}], ids=repr)
def test_api_calls_with_odd_arguments_get_an_error_message(endpoints, field, odd, caplog):
    call = {"name": "tool", "pair_id": 1, "choice": "left", "uuid": "u", field: odd}
    with pytest.raises(Error, match=r"must be texts|`\w+` cannot be used: Input should be"):
        endpoints["submit_vote"](**call)
    assert caplog.records == []
