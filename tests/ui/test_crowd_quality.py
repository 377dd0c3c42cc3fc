"""Gold pairs, the rule for people below the bound, and experts, on screens and in the API, without a browser."""

import hmac
import itertools
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from support.page_requests import requests_of

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabelError, NotAllowedError
from rlhf_lab.store import gold_pairs, pair_selection, project_people
from rlhf_lab.store.adjudication import disputed_pairs
from rlhf_lab.store.gold_pairs import mark_gold
from rlhf_lab.store.pair_leases import leased_pairs
from rlhf_lab.store.projects import newest_pairs, set_labelling_config
from rlhf_lab.store.votes import cast_vote, vote_history
from rlhf_lab.ui import http_api
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.people import api as people
from rlhf_lab.ui.shared import crowd, voting

CLICK = itertools.count()


def cast(ctx, pair, annotator, choice=Choice.FIRST):
    return cast_vote(ctx.db, Vote(f"{annotator}-{next(CLICK)}", pair.id, annotator, Source.HUMAN, choice, True))


def set_rules(ctx, **changes):
    set_labelling_config(ctx.db, ctx.project.id, LabellingConfig(**changes))


def make_gold(ctx, count):
    """Make the newest pairs gold, with the first text as the known answer by Eve."""
    pairs = newest_pairs(ctx.db, ctx.project.id, count)
    for pair in pairs:
        mark_gold(ctx.db, ctx.project.id, "Eve", cast(ctx, pair, "Eve").id, True)
    return pairs


def answer_wrongly(ctx, annotator):
    """Cast ten votes, five of them wrong votes on gold pairs."""
    for pair in make_gold(ctx, 5):
        cast(ctx, pair, annotator, Choice.SECOND)
    for pair in newest_pairs(ctx.db, ctx.project.id, 10)[:5]:
        cast(ctx, pair, annotator)


def send(ctx, name, **payload):
    """The reply to a request of the screen Label, or its error."""
    return getattr(requests_of(ctx, label.api), name)(payload)


@pytest.fixture
def shared(ctx):
    """The lab with an operator's secret: its visitors are labellers."""
    return Context(ctx.home, ctx.db, operator_secret="a secret of the operator")


def keys_and_types(value):
    """The shape of a payload: keys and types, without contents."""
    if isinstance(value, dict):
        return {key: keys_and_types(item) for key, item in value.items()}
    return [keys_and_types(item) for item in value[:1]] if isinstance(value, list) else type(value)


def test_nothing_in_what_a_labeller_receives_tells_a_gold_pair_from_another(shared, monkeypatch):
    gold = {pair.id for pair in make_gold(shared, 3)}
    set_rules(shared, gold_rate=0.5, gold_rule="inform")
    numbers = itertools.cycle([0, 9_999])  # gold, ordinary, gold …
    monkeypatch.setattr(pair_selection.secrets, "randbelow", lambda _: next(numbers))
    states, kinds = [], []
    for _ in range(4):
        state = label.state(shared, "Ann")
        states.append(state)
        kinds.append(state["pair"]["id"] in gold)
        payload = voting.VotePayload(uuid=f"u{next(CLICK)}", choice="left", pair_id=state["pair"]["id"])
        voting.cast_vote(shared, payload, "Ann")
    assert set(kinds) == {True, False}
    assert all(keys_and_types(state["pair"]) == keys_and_types(states[0]["pair"]) for state in states)
    assert [state["labels"] for state in states] == [3, 4, 5, 6]  # counts change after each answer
    assert len({state["labels_to_next"] for state in states}) == 4
    history = voting.recent_votes(shared, "Ann")
    assert len(history) == 4
    assert all(keys_and_types(row) == keys_and_types(history[0]) for row in history)
    assert "gold" not in history[0]


def test_ids_of_pairs_do_not_tell_a_gold_pair_by_their_order_and_votes_find_their_pair(shared, monkeypatch):
    ctx = replace(shared, access=replace(shared.access, key=b"k" * 32))
    monkeypatch.setattr(Context, "is_labeller", lambda _: True)
    make_gold(ctx, 1)
    shown = label.state(ctx, "Ann")["pair"]  # the settings have no gold pairs yet
    set_rules(ctx, gold_rate=0.5)
    monkeypatch.setattr(pair_selection.secrets, "randbelow", lambda _: 9_999)
    state = label.state(ctx, "Ann")
    assert state["pair"] == shown
    pair_id = next(iter(leased_pairs(ctx.db, "Ann")))
    digest = hmac.new(b"k" * 32, f'blind/["pair", "Ann", {pair_id}]'.encode(), "sha256").hexdigest()
    assert shown["id"] == int(digest[:8], 16) // 2
    for shown_id in (shown["id"], state["next_pair"]["id"]):
        payload = voting.VotePayload(uuid=f"u{shown_id}", choice="left", pair_id=shown_id)
        stored = voting.cast_vote(ctx, payload, "Ann")
        assert voting.cast_vote(ctx, payload, "Ann") == stored  # sent again
    assert [vote.pair_id for vote, _ in vote_history(ctx.db, ctx.project.id, "Ann")][1] == pair_id


def test_a_person_below_the_bound_reads_a_note(shared):
    set_rules(shared, gold_rule="inform", gold_answers=5)
    answer_wrongly(shared, "Ann")
    assert label.state(shared, "Ann")["quality_note"] == crowd.NOTE_TEXT
    assert label.state(shared, "Ann")["pair"] is not None
    assert label.state(shared, "Bob")["quality_note"] == ""


def test_a_paused_person_gets_no_pair_until_the_operator_lets_them_go_on(ctx, shared):
    set_rules(shared, gold_rule="pause", gold_answers=5)
    answer_wrongly(shared, "Ann")
    state = label.state(shared, "Ann")
    assert (state["pair"], state["waiting_text"]) == (None, crowd.PAUSED_TEXT)
    assert label.state(shared, "Bob")["pair"] is not None
    assert send(ctx, "undo", annotator="Ann")["waiting_text"] == crowd.PAUSED_TEXT
    assert gold_pairs.gold_results(ctx.db, ctx.project.id)[0].answers == 5  # the wrong answers are still there
    with pytest.raises(NotAllowedError, match="is paused"):
        crowd.refuse_if_paused(shared, "Ann")
    people.decide(ctx, people.PersonPayload(name="Ann", go_on=True))
    assert label.state(shared, "Ann")["pair"] is not None


def test_a_paused_program_gets_no_pair(shared):
    set_rules(shared, gold_rule="pause", gold_answers=5)
    answer_wrongly(shared, "api:tool")
    client = TestClient(Starlette(routes=http_api.routes(shared)))
    reply = client.post("/api/next_pair", json={"name": "tool"})
    assert (reply.status_code, reply.json()) == (403, {"error": crowd.PAUSED_TEXT})
    assert client.post("/api/next_pair", json={"name": "another"}).json()["id"] is not None


def test_only_experts_and_the_operator_decide_and_choose_gold_pairs(ctx, shared):
    (pair,) = newest_pairs(ctx.db, ctx.project.id, 1)
    vote = cast(ctx, pair, "Ann")
    for allowed in (ctx, shared):
        assert crowd.is_expert(allowed, "Ann") is (allowed is ctx)
    assert "Only an expert" in send(shared, "gold", annotator="Ann", vote_id=vote.id, is_gold=True)["error"]
    assert "Only an expert" in send(shared, "adjudicate", annotator="Ann")["error"]
    project_people.set_expert(ctx.db, ctx.project.id, "Ann", True)
    assert "now a gold pair" in send(shared, "gold", annotator="Ann", vote_id=vote.id, is_gold=True)["notice"]
    assert voting.recent_votes(shared, "Ann")[0]["gold"] is True


def test_an_expert_decides_disputed_pairs_blind_and_goes_back(ctx):
    one, two, *_ = newest_pairs(ctx.db, ctx.project.id, 4)
    for pair in (one, two):
        cast(ctx, pair, "Ann", Choice.FIRST)
        cast(ctx, pair, "Bob", Choice.SECOND)
    view = crowd.disputed_view(ctx, ctx.project.id)
    assert view == {"count": 2, "prompts": [turns_of_prompt(pair.prompt.text) for pair in (one, two)]}
    state = send(ctx, "adjudicate", annotator="Eve")
    assert (state["pair"]["id"], state["pair"]["adjudication"]) == (one.id, True)
    state = send(ctx, "vote", annotator="Eve", pair_id=one.id, choice="left", uuid="d")
    assert (state["pair"]["id"], state["pair"]["adjudication"]) == (two.id, True)
    assert voting.recent_votes(ctx, "Eve")[0]["adjudication"] is True
    state = send(ctx, "adjudicate", annotator="Eve", stop=True)
    assert state["pair"]["adjudication"] is False
    assert disputed_pairs(ctx.db, ctx.project.id, "Eve")[0] == 1


def test_the_operator_sees_accuracies_and_who_is_below_the_bound(ctx):
    set_rules(ctx, gold_rule="down_weight", gold_answers=5)
    answer_wrongly(ctx, "Ann")
    assert crowd.gold_view(ctx) == {
        "gold_pairs": 5, "rule": "down_weight", "experts": [],
        # upper end: 3.8416 / (5 + 3.8416) = 0.4345
        "people": [{"annotator": "Ann", "right": 0, "answers": 5, "low": 0.0, "high": 0.4345, "below": True}],
    }  # fmt: skip
    reply = people.decide(ctx, people.PersonPayload(name="Ann", is_expert=True))
    assert reply["message"].startswith("Ann is an expert")
    assert reply["gold"]["experts"] == ["Ann"]
    with pytest.raises(LabelError, match='Nobody in this lab is called "Zoe"'):
        people.decide(ctx, people.PersonPayload(name="Zoe", is_expert=True))
