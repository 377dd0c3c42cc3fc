"""Tournaments without a browser: the job of the engine, the pairs of a person, and their answers."""

import time
from dataclasses import replace

import pytest

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import LabelSnapshot, TournamentAnswer
from rlhf_lab.errors import LabError, StaleVoteError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.quality import tournament as quality
from rlhf_lab.quality.tournament import Contestant
from rlhf_lab.store import tournaments as stored_tournaments
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.tournaments import delete_tournament, tournament_answers
from rlhf_lab.ui.compare.tournament import api as tournament
from rlhf_lab.ui.shared.api import parse_payload

REQUEST = {
    "contestants": ["base/best/4", "base"], "prompts": "3", "max_new_tokens": "40", "reward_model_id": "1",
}  # fmt: skip


def start(ctx, **changes):
    return tournament.submit_tournament(ctx, parse_payload(tournament.StartTournamentPayload, REQUEST | changes))


def judge(ctx, annotator, **payload):
    return tournament.judge(ctx, parse_payload(tournament.TournamentAnswerPayload, payload), annotator)


@pytest.fixture
def started(ctx):
    snapshot = LabelSnapshot((), "", Source.HUMAN)
    add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={"accuracy": 0.8}, snapshot=snapshot)
    return start(ctx)


@pytest.fixture
def written(ctx, started):
    queue.claim(ctx.db, [JobKind.TOURNAMENT], engine_process.record_heartbeat(ctx.db, "x"))
    rows = [
        {"model": model, "texts": [f"{letter}{i}" for i in range(3)], "scores": [score] * 3, "kl": [score] * 3}
        for model, letter, score in (("base", "a", 0.0), ("base/best/4", "b", 1.0))
    ]
    queue.finish(ctx.db, started.job_id, {"prompts": ["P", "Q", "R"], "contestants": rows})
    return started


def test_the_base_comes_first_and_prompts_are_those_that_nothing_was_trained_on(ctx, started):
    payload = queue.get_job(ctx.db, started.job_id).payload
    assert payload["contestants"] == ["base", "base/best/4"]
    assert (len(set(payload["prompts"])), payload["reward_model_id"]) == (3, 1)
    assert queue.get_job(ctx.db, start(ctx).job_id).payload["seed"] != payload["seed"]
    delete_tournament(ctx.db, tournament.tournaments(ctx.db, ctx.project.id)[0].id)
    state = tournament.state(ctx, None, "ann")
    assert state == {"id": started.id, "ids": [started.id], "annotator": "ann", "is_waiting": True, "progress": 0}
    with pytest.raises(StaleVoteError, match="not written yet"):
        judge(ctx, "ann", tournament_id=started.id)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contestants": ["base"]}, "2 to 8 different models; 1"),
        ({"contestants": ["base", "run/9/40"]}, "does not have this model"),
        ({"contestants": ["base", "run/1/latest"]}, "does not have this model"),
        ({"contestants": ["base", "../x"]}, "does not have this model"),
        ({"prompts": "65"}, "from 1 to 64"),
        ({"reward_model_id": ""}, "Best of 4 needs a reward model"),
    ],
)
def test_unusable_requests_are_refused(ctx, started, change, message):
    with pytest.raises(LabError, match=message):
        start(ctx, **change)
    assert len(tournament.state(ctx, None, "ann")["ids"]) == 1


def test_a_person_judges_blind_pairs_until_none_is_left(ctx, written, monkeypatch):
    monkeypatch.setattr(tournament, "_is_first_on_left", lambda _ctx, _id, key, _name: key.position != 1)  # both ways
    state, left_positions = judge(ctx, "ann", tournament_id=written.id), []
    while pair := state["pair"]:
        assert set(pair) == {"token", "turns", "left", "right"}
        left_positions.append(pair["left"][1])
        better = "left" if pair["left"].startswith("b") else "right"
        state = judge(ctx, "ann", tournament_id=written.id, token=pair["token"], choice=better)
    assert sorted(left_positions) == ["0", "1", "2"]
    assert [answer.choice for answer in tournament_answers(ctx.db, written.id)] == [Choice.SECOND] * 3
    assert (state["own_count"], state["answers_note"]) == (3, "3 answers from 1 person")
    first, last = state["ranking"]["rows"]
    assert (first.name, first.kl, first.reward, first.gold) == ("base, best of 4", 1.0, 1.0, None)
    assert (last.name, last.contestant, last.score) == ("base model", 0, 0.0)
    assert state["ranking"]["wins"] == [[0.0, 3.0], [0.0, 0.0]]


def test_no_answer_enters_the_ranking_while_somebody_judges():
    """Nine ties and one decisive answer, by two names: the matrix before and after them is the same until they are done."""
    models = [Contestant(name, [f"{name} {i}" for i in range(12)], None, [0.0] * 12) for name in "ab"]
    before = [TournamentAnswer("eve", i, 0, 1, Choice.FIRST, 100.0 + i) for i in range(3)]
    own = [TournamentAnswer("ann", i, 0, 1, Choice.TIE if i else Choice.FIRST, 1000.0 + 60 * i) for i in range(10)]
    screen = TournamentAnswer("bob", 11, 0, 1, None, 1541.0)

    def ranked(answers, now):
        return tournament.ranked_answers(models, answers, now)

    assert ranked([*before, *own], 1545.0) == before  # between two leases
    assert ranked([*before, *own, screen], 1545.0) == before
    assert ranked([*before, *own, screen], 2140.0) == before
    assert ranked([*before, *own, screen], 2142.0) == [*before, *own]  # nobody has judged for ten minutes
    rest = [TournamentAnswer("ann", i, 0, 1, Choice.SKIP, 1600.0) for i in (10, 11)]
    assert ranked([*before, *own, *rest], 1601.0) == [*before, *own]  # no pair is left for the only judge
    assert ranked([*before, *own, screen, *rest], 1601.0) == before


@pytest.mark.parametrize("is_shared", [False, True])
def test_means_that_tell_the_models_apart_are_hidden_until_the_judging_is_over(ctx, written, monkeypatch, is_shared):
    seen_by, now = ctx.as_multi_user(open_to_all=True) if is_shared else ctx, time.time()

    def means(visitor, after=0):
        for module in (tournament.time, stored_tournaments.time):
            monkeypatch.setattr(module, "time", lambda: now + after)
        rows = tournament.state(seen_by, written.id, visitor)["ranking"]["rows"]
        return {(row.kl, row.reward, row.gold) for row in rows}

    hidden = {(None, None, None)}
    assert means("ann") == means("") == hidden  # nobody has judged yet
    pair = judge(seen_by, "ann", tournament_id=written.id)["pair"]
    assert means("bob") == hidden  # a pair is on screen
    judge(seen_by, "ann", tournament_id=written.id, token=pair["token"], choice="left")
    assert means("ann") == means("", 500) == hidden
    assert means("ann", 700) == {(0.0, 0.0, None), (1.0, 1.0, None)}  # nobody has judged for ten minutes


def test_who_only_skips_waits(ctx, written, monkeypatch):
    monkeypatch.setattr(quality, "MAX_SKIPS", 2)
    state = judge(ctx, "ann", tournament_id=written.id)
    for _ in range(2):
        assert state["pause_note"] == ""
        state = judge(ctx, "ann", tournament_id=written.id, token=state["pair"]["token"], choice="skip")
    assert state["pair"] is None
    assert "Come back in ten minutes" in state["pause_note"]
    later = time.time() + 601
    monkeypatch.setattr(tournament.time, "time", lambda: later)
    assert judge(ctx, "ann", tournament_id=written.id)["pair"] is not None


def test_a_text_in_the_ranking_is_shown_to_nobody_again(ctx, written, monkeypatch):
    """Whoever saw the ranking may be the next judge under another name; also one who got the pair before and
    waited, and whoever comes within ten minutes after the last answer still gets all pairs."""
    shared, now = ctx.as_multi_user(open_to_all=True), time.time()

    def at(seconds):
        for module in (tournament.time, stored_tournaments.time):
            monkeypatch.setattr(module, "time", lambda: now + seconds)

    at(0)
    held = judge(shared, "bob", tournament_id=written.id)["pair"]
    texts = {held["left"], held["right"]}
    at(601)
    state = judge(shared, "ann", tournament_id=written.id)
    while {(pair := state["pair"])["left"], pair["right"]} != texts:
        state = judge(shared, "ann", tournament_id=written.id, token=pair["token"], choice="skip")
    judge(shared, "ann", tournament_id=written.id, token=pair["token"], choice="left")
    at(1100)
    assert tournament.state(shared, written.id, "ann")["ranking"]["answers"] == 0
    at(1300)
    assert tournament.state(shared, written.id, "ann")["ranking"]["answers"] == 1
    with pytest.raises(StaleVoteError, match="already been judged"):
        judge(shared, "bob", tournament_id=written.id, token=held["token"], choice="left")
    for name in ("bob", "ann under another name"):
        shown, state = [], judge(shared, name, tournament_id=written.id)
        while pair := state["pair"]:
            shown.append({pair["left"], pair["right"]})
            state = judge(shared, name, tournament_id=written.id, token=pair["token"], choice="skip")
        assert len(shown) == 2
        assert texts not in shown


def test_the_ranking_is_the_same_before_and_after_an_answer(ctx, written):
    before = judge(ctx, "ann", tournament_id=written.id)
    token = before["pair"]["token"]
    after = judge(ctx, "ann", tournament_id=written.id, token=token, choice="left")
    assert after["own_count"] == 1
    for visitor in ("ann", "bob", ""):  # also in a second window
        assert tournament.state(ctx, written.id, visitor)["ranking"] == before["ranking"]


def test_only_the_pair_on_screen_is_answered_once(ctx, written):
    token = judge(ctx, "ann", tournament_id=written.id)["pair"]["token"]
    others = judge(ctx, "bob", tournament_id=written.id)["pair"]["token"]
    judge(ctx, "ann", tournament_id=written.id, token=token, choice="skip")
    for stale in (token, others, ""):
        with pytest.raises(StaleVoteError, match="already been judged"):
            judge(ctx, "ann", tournament_id=written.id, token=stale, choice="left")
    state = tournament.state(ctx, written.id, "")
    assert (state["can_judge"], state["pair"], state["answers_note"]) == (False, None, "")
    assert state["ranking"]["rows"][0].score == 0


def test_sides_are_chosen_for_each_person(ctx, written):
    left_letters = []
    for i in range(20):
        pair = judge(ctx, f"person {i}", tournament_id=written.id)["pair"]
        if pair is None:
            break
        left_letters.append(pair["left"][0])
        judge(ctx, f"person {i}", tournament_id=written.id, token=pair["token"], choice="both_bad")
        for _ in range(2):  # nothing stays on their screen
            pair = tournament.state(ctx, written.id, f"person {i}")["pair"]
            if pair:
                judge(ctx, f"person {i}", tournament_id=written.id, token=pair["token"], choice="skip")
    assert 2 < left_letters.count("a") < 18


def test_deleting(ctx, written):
    payload = parse_payload(tournament.TournamentPayload, {"tournament_id": written.id, "annotator": "ann"})
    assert tournament.delete(ctx, payload) == {"state": {"id": None, "ids": []}}
    with pytest.raises(LabError, match="was deleted"):
        tournament.delete(ctx, payload)


def test_the_page_starts_and_judges_a_tournament(ctx, written, calls):
    screen = calls(tournament, ctx)
    assert screen.get_state({"annotator": "ann"})["pair"] is None
    pair = screen.answer({"annotator": "ann", "tournament_id": written.id})["state"]["pair"]
    answered = {"annotator": "ann", "tournament_id": written.id, "token": pair["token"], "choice": "tie"}
    state = screen.answer(answered)["state"]
    assert (state["own_count"], state["ranking"]["rows"][0]["name"]) == (1, "base model")
    assert screen.get_state({"annotator": "ann"}) == state
    assert len(screen.start(REQUEST | {"annotator": "ann"})["state"]["ids"]) == 2
    visitor = calls(tournament, replace(ctx, operator_secret="sesame"))
    for request in (visitor.start, visitor.delete):
        assert "Only the operator" in request(REQUEST | {"annotator": "ann"})["error"]
