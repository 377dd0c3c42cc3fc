"""While texts are judged blind, nobody but the operator has texts of their own scored, by any reward model."""

import pytest
from fake_blind_tests import BASE, RUN, finish_jobs, start

from rlhf_lab.common.enums import Choice, JobKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.instant_reward import Prediction
from rlhf_lab.store import tournaments as stored_tournaments
from rlhf_lab.store.blind_tests import end_test
from rlhf_lab.store.chat_pairs import ChatText, add_chat_pair
from rlhf_lab.store.edited_answers import add_edited_answer
from rlhf_lab.store.live_runs import LivePair, add_live_pairs
from rlhf_lab.store.projects import newest_pairs, prompts
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run, update_run
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.ui.compare import api as compare
from rlhf_lab.ui.compare.tournament import api as tournament
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.runs.quality import api as quality
from rlhf_lab.ui.shared.api import parse_payload

COMPARISON = {"models": ["base"], "samples": 1, "seed": 7, "temperature": 0.8, "max_new_tokens": 1, "annotator": "ann"}


@pytest.fixture
def models(ctx):
    """Two reward models; the tests below are scored by neither."""
    snapshot = LabelSnapshot((), "", Source.HUMAN)
    return [add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={}, snapshot=snapshot).id for _ in "ab"]


@pytest.fixture
def visitor(ctx, monkeypatch):
    """visitor(): from now on the requests are those of a labeller; visitor(True): of the operator again."""

    def become(is_operator=False):
        monkeypatch.setattr(type(ctx), "is_operator", lambda self, request=None: is_operator)

    monkeypatch.setattr(ctx.cache, "get", lambda key, seconds, compute: compute())
    return become


@pytest.fixture
def refusals(ctx, calls, models):
    """refusals(): the errors for this visitor's requests to score a text, by either model, as the text or in the prompt."""

    def ask():
        explain, sample = calls(reward, ctx).explain, calls(compare, ctx).sample
        replies = [
            explain({"model": model, "prompt": "Once", "text": "upon a time", "annotator": "ann"}) for model in models
        ]
        replies += [sample(COMPARISON | {"prompt": "Once upon a time", "reward_model_id": model}) for model in models]
        return [reply.get("error", "") for reply in replies]

    return ask


def assert_hidden(ctx, calls, visitor, refusals, reason):
    """For a labeller, not for the operator. Other requests are still answered."""
    visitor()
    found = refusals()
    assert len(set(found)) == 1
    assert reason in found[0]
    assert calls(reward, ctx).state({})["scores_hidden"] == found[0]
    held_out = prompts(ctx.db, ctx.project.id, "eval")[0].text
    for changes in ({"prompt": "Once", "reward_model_id": ""}, {"prompt": held_out, "reward_model_id": 1}):
        assert len(calls(compare, ctx).sample(COMPARISON | changes)["jobs"]) == 1
    visitor(True)
    assert refusals() == [""] * 4


def assert_open(ctx, calls, visitor, refusals):
    visitor()
    assert refusals() == [""] * 4
    assert calls(reward, ctx).state({})["scores_hidden"] == ""


def test_scores_are_hidden_during_a_blind_test(ctx, calls, models, visitor, refusals):
    """Also one that no reward model scored, and an older one than the newest."""
    test = start(ctx, reward_model_id="")
    finish_jobs(ctx, test, texts=(BASE, RUN))
    newest = start(ctx)
    end_test(ctx.db, newest.id)
    assert_hidden(ctx, calls, visitor, refusals, "until the operator has ended it")
    end_test(ctx.db, test.id)
    assert_open(ctx, calls, visitor, refusals)


def test_a_blind_test_without_texts_hides_nothing(ctx, calls, models, visitor, refusals):
    test = start(ctx)
    queue.cancel(ctx.db, test.second_job)
    assert_open(ctx, calls, visitor, refusals)


def test_scores_are_hidden_until_a_tournament_is_ranked(ctx, calls, models, visitor, refusals, monkeypatch):
    request = {"contestants": ["base/best/4", "base"], "prompts": 2, "max_new_tokens": 4, "reward_model_id": models[0]}
    begun = tournament.submit_tournament(ctx, parse_payload(tournament.StartTournamentPayload, request))
    queue.claim(ctx.db, [JobKind.TOURNAMENT], engine_process.record_heartbeat(ctx.db, "x"))
    rows = [
        {"model": model, "texts": [f"{model} 0", f"{model} 1"], "scores": [0.0] * 2, "kl": [0.0] * 2}
        for model in ("base", "base/best/4")
    ]
    queue.finish(ctx.db, begun.job_id, {"prompts": ["P", "Q"], "contestants": rows})
    assert_hidden(ctx, calls, visitor, refusals, "all its texts have been judged")
    for _ in range(2):
        payload = {"tournament_id": begun.id}
        pair = tournament.judge(ctx, parse_payload(tournament.TournamentAnswerPayload, payload), "ann")["pair"]
        payload |= {"token": pair["token"], "choice": "left"}
        tournament.judge(ctx, parse_payload(tournament.TournamentAnswerPayload, payload), "ann")
    assert_hidden(ctx, calls, visitor, refusals, "all its texts have been judged")  # the ranking waits ten minutes
    later = tournament.time.time() + stored_tournaments.LEASE_S + 1
    monkeypatch.setattr(tournament.time, "time", lambda: later)
    assert_open(ctx, calls, visitor, refusals)


def test_scores_are_hidden_while_pairs_of_a_run_are_judged(ctx, calls, models, visitor, refusals):
    """A run without pairs hides nothing."""
    config = PolicyConfig().to_dict()
    run = create_run(ctx.db, ctx.project.id, models[0], "r", config=config, manifest={}, total_steps=40)
    pair = newest_pairs(ctx.db, ctx.project.id, 1)[0]
    assert_open(ctx, calls, visitor, refusals)
    add_live_pairs(ctx.db, [LivePair(pair.id, run.id, 9, None, None, None)])
    assert_hidden(ctx, calls, visitor, refusals, "until the run has ended")
    with ctx.db.write() as conn:
        update_run(conn, run.id, status=RunStatus.DONE)
    assert_open(ctx, calls, visitor, refusals)


def test_scores_of_pairs_with_typed_texts(ctx, calls, models, visitor, monkeypatch):
    """After a vote on it the page shows its scores, but not now: somebody may have written a text of a blind pair into it."""
    sampled = newest_pairs(ctx.db, ctx.project.id, 1)[0]
    answer = cast_vote(ctx.db, Vote("u", sampled.id, "bob", Source.HUMAN, Choice.FIRST, True))
    edited = add_edited_answer(ctx.db, answer, "a text of a blind test").pair_id
    sides = [ChatText(text, (1,), "base", 0) for text in ("yes", "no")]
    chat = add_chat_pair(ctx.db, ctx.project.id, "a prompt with a text", *sides).id
    shown = {}
    monkeypatch.setattr(
        type(ctx.instant_reward), "prediction",
        lambda *_: (Vote("v", shown["pair"], "ann", Source.HUMAN, Choice.FIRST, True), Prediction(0.5, -0.5)),
    )  # fmt: skip

    def has_scores(pair_id):
        shown["pair"] = pair_id
        return calls(label, ctx).instant({"vote_uuid": "v", "annotator": "ann"})["prediction"] is not None

    visitor()
    assert [has_scores(i) for i in (sampled.id, edited, chat)] == [True, True, True]
    visitor(True)
    start(ctx)
    assert [has_scores(i) for i in (sampled.id, edited, chat)] == [True, True, True]
    visitor()
    assert [has_scores(i) for i in (sampled.id, edited, chat)] == [True, False, False]


def test_labels_of_typed_texts_that_a_reward_model_finds_unlikely(ctx, calls, visitor):
    """Ann edits a text into one of a blind pair; a model that is trained on her label would tell how it scores."""
    sampled = newest_pairs(ctx.db, ctx.project.id, 1)[0]
    answer = cast_vote(ctx.db, Vote("u", sampled.id, "ann", Source.HUMAN, Choice.FIRST, True))
    edit = add_edited_answer(ctx.db, answer, "a text of a blind test")
    unlikely = [{"index": i, "probability": 0.1} for i in range(2)]
    snapshot = LabelSnapshot((answer.id, edit.id), "", Source.HUMAN)
    model = add_reward_model(
        ctx.db, ctx.project.id, "x", config={}, report={"disagreements": unlikely}, snapshot=snapshot
    ).id

    def shown():
        report = calls(reward, ctx).report({"model": model, "annotator": "ann"})["disagreements"]
        listed = calls(quality, ctx).state({"annotator": "ann"})["figures"]["unlikely_labels"]["labels"]
        return len(report), [label["vote_id"] for label in listed]

    for is_operator in (False, True):
        visitor(is_operator)
        assert shown() == (2, [answer.id, edit.id])
    test = start(ctx)
    assert shown() == (2, [answer.id, edit.id])
    visitor()
    assert shown() == (1, [answer.id])
    visitor(True)
    end_test(ctx.db, test.id)
    visitor()
    assert shown() == (2, [answer.id, edit.id])
