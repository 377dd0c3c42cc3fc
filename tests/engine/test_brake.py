"""The brake: a run pauses when people prefer the texts of others to those of its policy."""

import random
import uuid
from types import SimpleNamespace

import pytest
from sqlalchemy import select
from support_worker import CONFIG

from rlhf_lab.common.enums import BrakeState, Choice, EventKind, JobStatus, Opponent, RunStatus, Source
from rlhf_lab.common.records import RunEvent, StepResult, Vote
from rlhf_lab.engine import policy_run
from rlhf_lab.engine.live_run import JUDGE_KEY, TURNS, LivePairs
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.jobs import run_control
from rlhf_lab.quality import brake as quality
from rlhf_lab.quality.brake import BRAKE_KEY, brake_report, compared_checkpoint, loses_to, pause_text
from rlhf_lab.store import tables as t
from rlhf_lab.store.live_runs import (
    LiveAnswer,
    LivePair,
    add_live_pairs,
    live_answers,
    live_pairs_by_id,
    unanswered_pairs,
)
from rlhf_lab.store.projects import add_pairs, newest_pairs
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, events, get_run, mark_event_applied
from rlhf_lab.store.votes import cast_vote

BRAKED = CONFIG | {"brake_every": 2, "steps": 6, "checkpoint_every": 2}


def start(lab, **manifest):
    model = latest_reward_model(lab.db, lab.project.id).id
    return create_run(lab.db, lab.project.id, model, "r", config=BRAKED, manifest=manifest, total_steps=6).id


def vote(lab, pair_id, choice, annotator="Mia"):
    cast_vote(lab.db, Vote(str(uuid.uuid4()), pair_id, annotator, Source.HUMAN, choice, True))


def answer(lab, run_id, count, *, won, opponent=Opponent.BASE, step=None, of_step=1):
    """Answers to `count` pairs of texts that exist, each labelled anew."""
    made = []
    pairs = newest_pairs(lab.db, lab.project.id, 100)
    texts = [(a, b) for i, x in enumerate(pairs) for y in pairs[i + 1 :] for a in (x.first, x.second) for b in (y.first, y.second)
             if x.prompt.id == y.prompt.id and a.id != b.id]  # fmt: skip
    for first, second in texts:
        pair = add_pairs(lab.db, lab.project.id, [(first.id, second.id, "live")])[0]
        has_vote = lab.db.fetch(select(t.votes.c.id).where(t.votes.c.pair_id == pair.id)).first()
        if has_vote or pair.id in live_pairs_by_id(lab.db, [pair.id]):
            continue
        add_live_pairs(lab.db, [LivePair(pair.id, run_id, of_step, opponent, step, Choice.FIRST)])
        vote(lab, pair.id, Choice.FIRST if won else Choice.SECOND)
        made.append(pair.id)
        if len(made) == count:
            return
    pytest.fail(f"only {len(made)} pairs of two texts of one prompt")


def test_an_ordinary_run_asks_for_answers_every_few_steps(lab):
    run_id = start(lab)
    assert lab.train(run_id).status is JobStatus.DONE
    pairs = live_pairs_by_id(lab.db, unanswered_pairs(lab.db, run_id))
    assert {pair.step for pair in pairs.values()} == {2, 4}
    assert {pair.opponent for pair in pairs.values()} <= {Opponent.BASE, Opponent.BEST}


def test_a_run_pauses_when_people_prefer_the_base_and_one_key_continues_it(lab, at):
    """16 answers in a row against the policy are enough (15 are not); after the pause only new ones count."""
    run_id = start(lab)
    at(2, lambda: answer(lab, run_id, 16, won=False))
    seen = []

    def continue_run(seconds):
        run = get_run(lab.db, run_id)
        seen.append((run.status, run.message, brake_report(lab.db, run_id).state))
        run_control.add_event(lab.db, run_id, EventKind.RESUME, {})

    with pytest.MonkeyPatch.context() as change:
        change.setattr(policy_run.time, "sleep", continue_run)
        assert lab.train(run_id).status is JobStatus.DONE
    message = "paused after step 3: people prefer the texts of the base model"
    assert seen == [(RunStatus.PAUSED, message, BrakeState.DECLINED)]
    assert brake_report(lab.db, run_id).state is BrakeState.UNKNOWN
    pause, = (event for event in events(lab.db, run_id) if event.kind is EventKind.PAUSE)  # fmt: skip
    assert pause.payload == {"brake": "base"}


class Killed(BaseException):
    """As `kill -9`: nothing of the engine handles it."""


@pytest.mark.parametrize("by", ["brake", "person"])
def test_a_paused_run_stays_paused_when_its_engine_is_killed_and_started_again(lab, at, by):
    """Checkpoints are of the steps 2, 4, 6. The pause is in step 4, so step 3 is taken again, but only after the pause."""
    run_id, steps, seen = start(lab), [], []
    at(2, lambda: answer(lab, run_id, 16, won=False) if by == "brake" else None)
    at(3, lambda: run_control.pause(lab.db, run_id) if by == "person" else None)

    def look(seconds):
        run = get_run(lab.db, run_id)
        seen.append((run.status, run.message))
        steps.append(run.step)
        if len(seen) < 4:
            raise Killed
        run_control.add_event(lab.db, run_id, EventKind.RESUME, {})

    with pytest.MonkeyPatch.context() as change:
        change.setattr(policy_run.time, "sleep", look)
        for _ in range(3):
            with pytest.raises(Killed):
                PolicyRun(lab.worker.model_cache, run_id).execute()
        assert PolicyRun(lab.worker.model_cache, run_id).execute() is RunStatus.DONE
    message = "paused after step 3: people prefer the texts of the base model" if by == "brake" else "paused in step 4"
    assert seen == [(RunStatus.PAUSED, message)] * 4
    assert steps == [3, 2, 2, 2]
    assert sum(event.kind is EventKind.PAUSE for event in events(lab.db, run_id)) == 1
    assert get_run(lab.db, run_id).step == 6


def test_a_pause_that_is_over_does_not_come_back_with_the_next_engine(lab):
    """Also one of an earlier version, which went on after a restart without a word in the history."""
    run_id = start(lab)
    pause = run_control.add_event(lab.db, run_id, EventKind.PAUSE, {})
    mark_event_applied(lab.db, pause.id, 1)
    record_step(lab.db, run_id, StepResult(2, {}))
    with pytest.MonkeyPatch.context() as change:
        change.setattr(policy_run.time, "sleep", lambda seconds: pytest.fail("the run waits"))
        assert PolicyRun(lab.worker.model_cache, run_id).execute() is RunStatus.DONE


def test_a_run_that_the_brake_stopped_goes_on_when_somebody_resumes_it(lab, at, monkeypatch):
    """Later answers about steps before the stop do not stop it again; 16 about the steps after it do."""
    monkeypatch.setattr("rlhf_lab.jobs.engine_process.ensure_engine", lambda *_: None)
    run_id = start(lab, judge="brief", **{JUDGE_KEY: {"every": 100, "noise": 0.0}})
    at(2, lambda: answer(lab, run_id, 16, won=False))
    lab.train(run_id)
    assert get_run(lab.db, run_id).status is RunStatus.STOPPED
    answer(lab, run_id, 2, won=False)
    run_control.resume(lab.db, lab.folder, run_id)
    answer(lab, run_id, 2, won=False, of_step=3)
    assert brake_report(lab.db, run_id).answers_read == 0
    at(4, lambda: answer(lab, run_id, 16, won=False, of_step=4))
    lab.do(run_control.last_job(lab.db, run_id))
    assert get_run(lab.db, run_id).message == (
        "stopped after step 5: people prefer the texts of the base model; it can be resumed"
    )


def test_after_a_release_the_bound_of_five_percent_holds(monkeypatch):
    """A policy that lost until step 3 and is as good as the base since then. After the release ten more answers come about its
    earlier texts, all defeats, and 150 about later ones: of 200 such runs at most 5 % are paused again."""
    halt = RunEvent(1, 1, EventKind.PAUSE, {BRAKE_KEY: "base"}, 1.0, 3)
    release = RunEvent(2, 1, EventKind.RESUME, {}, 2.0, 3)
    monkeypatch.setattr(quality, "events", lambda db, run_id: [halt, release])
    monkeypatch.setattr("rlhf_lab.core.sequential_test.forecast", lambda *_: None)
    rng, stopped = random.Random(0), 0
    for _ in range(200):
        outcomes = [(1, False)] * 16 + [(3, False)] * 10 + [(4, rng.random() < 0.5) for _ in range(150)]
        given = [LiveAnswer(i, step, Opponent.BASE, None, won) for i, (step, won) in enumerate(outcomes)]
        monkeypatch.setattr(quality, "live_answers", lambda db, run_id, given=given: given)
        stopped += brake_report(None, 1).state is BrakeState.DECLINED
    assert stopped <= 10


def test_a_run_without_people_is_stopped_and_names_the_checkpoint(lab, at):
    run_id = start(lab, judge="brief", **{JUDGE_KEY: {"every": 100, "noise": 0.0}})
    at(3, lambda: answer(lab, run_id, 16, won=False, opponent=Opponent.BEST, step=2))
    lab.train(run_id)
    run = get_run(lab.db, run_id)
    assert run.status is RunStatus.STOPPED
    assert run.message == "stopped after step 4: people prefer the texts of step 2; it can be resumed"


def test_wins_do_not_pause_and_only_the_first_answer_to_a_pair_counts(lab):
    run_id = start(lab)
    answer(lab, run_id, 15, won=True)
    for given in live_answers(lab.db, run_id):
        vote(lab, given.pair_id, Choice.SECOND, "Ben")
    assert [given.won for given in live_answers(lab.db, run_id)] == [True] * 15
    assert brake_report(lab.db, run_id).state is BrakeState.PREFERRED


@pytest.mark.parametrize(("asked", "expected"), [
    ([], 5),
    ([(5, True)] * 3, 5),  # too few wins
    ([(5, True)] * 4, 20),
    ([(5, True)] * 4 + [(5, False)] * 2, 5),  # a lead of 2, less than 1.28 · √6
    ([(5, True)] * 6 + [(5, False)] * 2, 20),  # one of 4, more than 1.28 · √8
    ([(5, True), (5, False)] * 3, 5),
    ([(5, True), (5, None)] * 3, 5),  # a tie is no answer
    ([(5, True)] * 6 + [(15, False)] * 30, 15),
    ([(5, True)] * 6 + [(15, False)] * 6 + [(15, True)] * 7, 15),
    ([(5, True)] * 6 + [(15, False)] * 2 + [(15, True)] * 7, 20),
    ([(5, True)] * 6 + [(None, True)] * 9, 20),  # the last ones are about the base
    ([(7, False)] * 9, 5),  # its checkpoint is gone
])  # fmt: skip
def test_the_compared_checkpoint_stays_until_people_prefer_the_policy_to_it(asked, expected):
    answers = [
        LiveAnswer(i, 1, Opponent.BASE if step is None else Opponent.BEST, step, won)
        for i, (step, won) in enumerate(asked)
    ]
    assert compared_checkpoint(answers, [5, 10, 15, 20]) == expected
    assert compared_checkpoint(answers, []) is None


@pytest.mark.parametrize(("asked", "expected"), [
    ([(5, False)] * 3, {"step": 5}),
    ([(5, False)] * 3 + [(15, True)] * 2, {"step": 5}),  # the newest one did not win
    ([(5, False)] * 3 + [(15, False)] * 2 + [(15, True)], {"step": 5, "several": 1}),
    ([(5, False)] * 3 + [(5, True)] * 2 + [(15, False)] * 2, {"step": 15, "several": 1}),  # leads of 1 and 2
    ([(5, False), (15, False)], {"step": 15, "several": 1}),
    ([(5, False)] + [(None, False)] * 9 + [(15, None)] * 9, {"step": 5}),  # the base, ties
])  # fmt: skip
def test_preferred_checkpoint(asked, expected):
    answers = [
        LiveAnswer(i, 1, Opponent.BASE if step is None else Opponent.BEST, step, won)
        for i, (step, won) in enumerate(asked)
    ]
    assert quality.preferred_checkpoint(answers) == expected


def test_pause_text():
    assert pause_text({"brake": "base"}) == "people prefer the texts of the base model"
    assert pause_text({"brake": "best", "step": 5}) == "people prefer the texts of step 5"
    assert pause_text({"brake": "best", "step": 5, "several": 1}) == (
        "people prefer the texts of earlier checkpoints, most often those of step 5"
    )


def test_an_older_pair_that_is_answered_late_does_not_bring_its_checkpoint_back():
    asked = [(i, 5, True) for i in range(6)] + [(i, 15, False) for i in range(10, 30)] + [(9, 5, True)]
    answers = [LiveAnswer(pair_id, 1, Opponent.BEST, step, won) for pair_id, step, won in asked]
    assert compared_checkpoint(answers, [5, 10, 15, 20, 25]) == 15


@pytest.mark.parametrize(("asked", "expected"), [
    ([], False),
    ([(5, False)] * 2, False),
    ([(5, False)] * 3, True),
    ([(5, False), (5, True)] * 3, False),
    ([(15, False)] * 3, False),  # another checkpoint
    ([(None, False)] * 9, False),
    ([(5, False)] * 20 + [(5, True)] * 10, False),  # 10 of the last 20
    ([(5, True)] * 20 + [(5, False)] * 11, True),
])  # fmt: skip
def test_loses_to(asked, expected):
    answers = [
        LiveAnswer(i, 1, Opponent.BASE if step is None else Opponent.BEST, step, won)
        for i, (step, won) in enumerate(asked)
    ]
    assert loses_to(answers, 5) is expected
    assert not loses_to(answers, None)


def test_a_checkpoint_that_the_policy_loses_to_takes_the_turns_of_the_base():
    pairs = LivePairs.__new__(LivePairs)
    pairs.config, pairs.run = SimpleNamespace(seed=0, token_rows=0), SimpleNamespace(id=1)
    pairs.adapters, pairs.turns = SimpleNamespace(backbone=SimpleNamespace(eos_ids=(0,))), TURNS
    rollouts = [(prompt, [5]) for prompt in range(9)]

    def opponents(checkpoint, only):
        steps = (pairs._draw(step, rollouts, checkpoint, only_checkpoint=only) for step in (1, 2, 3))
        return [item.opponent for drawn in steps for item in drawn]

    base, best = Opponent.BASE, Opponent.BEST
    assert opponents(5, False) == [best, None, base, best, None, base]
    assert opponents(5, True) == [best, None, best, best, None, best]
    assert opponents(None, True) == [base, None, base, base, None, base]


@pytest.mark.parametrize("seed", range(20))
def test_texts_for_the_brake_are_not_chosen_because_they_end(seed):
    """Half of the responses end. Chosen ones against another model do so about as often, those of two own texts always."""
    pairs = LivePairs.__new__(LivePairs)
    pairs.config, pairs.run = SimpleNamespace(seed=seed, token_rows=2), SimpleNamespace(id=1)
    pairs.adapters = SimpleNamespace(backbone=SimpleNamespace(eos_ids=(0,)))
    rollouts = [(prompt, [5, prompt % 2]) for prompt in range(40)]
    ended = {opponent: [] for opponent in (None, Opponent.BASE, Opponent.BEST)}
    pairs.turns = TURNS
    for step in range(1, 121):
        drawn = pairs._draw(step, rollouts, 1)
        assert len({item.prompt for item in drawn} - {0, 1}) == 2  # the token view shows the first two
        for item in drawn:
            ended[item.opponent].append(item.tokens[-1] == 0)
    assert all(ended[None])
    for opponent in (Opponent.BASE, Opponent.BEST):
        assert 0.25 < sum(ended[opponent]) / len(ended[opponent]) < 0.75


def test_the_seeds_of_other_texts_depend_on_the_projects_secret_not_on_the_runs_seed():
    def seed(secret, run_seed):
        pairs = LivePairs.__new__(LivePairs)
        pairs.config, pairs.run, pairs._secret = SimpleNamespace(seed=run_seed), SimpleNamespace(id=1), secret
        return pairs._secret_seed(3, SimpleNamespace(prompt=0))

    assert seed(5, 0) == seed(5, 1)
    assert seed(5, 0) != seed(6, 0)
