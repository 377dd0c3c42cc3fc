"""Tournaments without a browser: the job of the engine, the pairs of a person, and their answers."""

import pytest

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import LabelSnapshot, TournamentAnswer
from rlhf_lab.errors import LabError, StaleVoteError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.tournaments import tournament_answers
from rlhf_lab.ui.events import parse_payload
from rlhf_lab.ui.screens import tournament

REQUEST = {
    "contestants": ["base/best/4", "base"], "prompts": "3", "seed": "7", "max_new_tokens": "40", "reward_model_id": "1",
}  # fmt: skip


def start(ctx, **changes):
    return tournament.start(ctx, parse_payload(tournament.StartPayload, REQUEST | changes))


def judge(ctx, annotator, **payload):
    return tournament.judge(ctx, parse_payload(tournament.JudgePayload, payload), annotator)


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
    assert (len(set(payload["prompts"])), payload["seed"], payload["reward_model_id"]) == (3, 7, 1)
    state = tournament.state(ctx, None, "ann")
    assert state == {"id": started.id, "ids": [started.id], "annotator": "ann", "is_waiting": True, "progress": 0}
    with pytest.raises(StaleVoteError, match="not written yet"):
        judge(ctx, "ann", tournament_id=started.id)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contestants": ["base"]}, "2 to 8 different models; 1"),
        ({"contestants": ["base", "run/9/40"]}, 'run/9/40" does not exist'),
        ({"contestants": ["base", "../x"]}, "does not exist"),
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
    assert (first["name"], first["kl"], first["reward"], first["gold"]) == ("base, best of 4", 1.0, 1.0, None)
    assert (last["name"], last["is_reference"], last["score"]) == ("base model", True, 0.0)
    assert state["ranking"]["wins"] == [[0.0, 3.0], [0.0, 0.0]]


def test_no_single_answer_changes_the_ranking_while_somebody_judges():
    def answer(created_at, choice=Choice.FIRST):
        return TournamentAnswer("ann", 0, 0, 1, choice, created_at)

    given = [answer(float(i)) for i in range(35)]
    screen = [answer(1000.0, None)]
    ranked = [len(tournament.ranked_answers(given[:n] + screen, given[:n], 1500.0)) for n in range(36)]
    assert ranked == [n // 10 * 10 for n in range(36)]
    assert tournament.ranked_answers(given + screen, given, 1500.0) == given[:30]
    assert tournament.ranked_answers(given + screen, given, 1601.0) == given  # ten minutes without an answer
    assert tournament.ranked_answers(given, given, 1500.0) == given  # nobody has a pair left


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
    assert state["ranking"]["rows"][0]["score"] == 0


def test_sides_are_chosen_for_each_person(ctx, written):
    left_letters = []
    for i in range(40):
        pair = judge(ctx, f"person {i}", tournament_id=written.id)["pair"]
        if pair is None:
            break
        left_letters.append(pair["left"][0])
        judge(ctx, f"person {i}", tournament_id=written.id, token=pair["token"], choice="both_bad")
        for _ in range(2):  # nothing stays on their screen
            pair = tournament.state(ctx, written.id, f"person {i}")["pair"]
            if pair:
                judge(ctx, f"person {i}", tournament_id=written.id, token=pair["token"], choice="skip")
    assert 10 < left_letters.count("a") < 30


def test_deleting(ctx, written):
    payload = parse_payload(tournament.TournamentPayload, {"tournament_id": written.id})
    assert tournament.delete(ctx, payload, "ann") == {"id": None, "ids": []}
    with pytest.raises(LabError, match="was deleted"):
        tournament.delete(ctx, payload, "ann")
