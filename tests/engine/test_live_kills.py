"""A live run whose engine is killed again and again: no vote is lost, no number of a step changes, and a pause stays one."""

import itertools
import random
import time
import uuid

import pytest
from support_engine_process import PATIENCE_S, Home

from rlhf_lab.common.enums import Choice, EventKind, JobStatus, Opponent, RunStatus, Source
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import run_control
from rlhf_lab.jobs.instant_reward import InstantModel
from rlhf_lab.store.live_runs import LivePair, add_live_pairs, newest_version, unanswered_pairs
from rlhf_lab.store.projects import add_completions, add_pairs, get_pair, newest_pairs, prompts
from rlhf_lab.store.runs import events, get_run
from rlhf_lab.store.votes import cast_vote, vote_counts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views.run_feed import RunFeed

KILLS = 20

pytestmark = pytest.mark.slow


def vote_for_the_longer_text(home, pair):
    choice = Choice.FIRST if len(pair.first.text) >= len(pair.second.text) else Choice.SECOND
    cast_vote(home.db, Vote(str(uuid.uuid4()), pair.id, "Mia", Source.HUMAN, choice, True))


def label_until_a_head_is_fitted(home):
    for pair in newest_pairs(home.db, home.project.id, 8):
        vote_for_the_longer_text(home, pair)
    for _ in range(10 * PATIENCE_S):
        home.engine()
        model = InstantModel(home.db, home.project.id)
        model.update()
        if model.weights() is not None:
            return
        time.sleep(0.1)
    pytest.fail("the engine computed no features")


def test_twenty_kills_lose_no_vote_and_change_no_number(tmp_path):
    home, rng = Home(tmp_path / "home"), random.Random(0)
    label_until_a_head_is_fitted(home)
    config = PolicyConfig(
        steps=2 * KILLS, batch_size=4, minibatches=2, epochs=1, checkpoint_every=2, max_new_tokens=24, sample_every=100,
        sample_count=0, token_rows=0, live=True, kl_budget=4.0,
    )  # fmt: skip
    run, voted, seen = run_control.start_run(home.db, home.folder, home.project.id, config), 8, {}
    for kill in range(KILLS):
        home.await_steps(run, 1 + kill)
        waiting = unanswered_pairs(home.db, run.id)
        if waiting:
            vote_for_the_longer_text(home, get_pair(home.db, waiting[0]))
            voted += 1
        time.sleep(rng.random())
        curve = home.curve(run)
        changed = {
            (step, name): (before, curve[step].get(name))
            for step, values in seen.items() if step in curve
            for name, before in values.items() if curve[step].get(name) != before
        }  # fmt: skip
        assert changed == {}, events(home.db, run.id)
        seen |= curve
        home.kill()
        time.sleep(0.1)
    assert home.done(run_control.last_job(home.db, run.id)).status is JobStatus.DONE
    curve = home.curve(run)
    assert sorted(curve) == list(range(1, 2 * KILLS + 1))
    assert {step: curve[step] for step in seen} == seen
    assert sum(vote_counts(home.db, home.project.id)[Source.HUMAN].values()) == voted
    heads = [event for event in events(home.db, run.id) if event.kind is EventKind.HEAD]
    assert [event.payload["version"] for event in heads] == list(range(1, newest_version(home.db, run.id) + 1))
    assert all(a.applied_step <= b.applied_step for a, b in itertools.pairwise(heads))
    assert curve[2 * KILLS]["live/labels"] <= voted
    assert get_run(home.db, run.id).step == 2 * KILLS


def lose_blind_pairs(home, run, count):
    """Answers that prefer the base model's text to that of the policy after step 1."""
    prompt = prompts(home.db, home.project.id, "train")[0]
    for i in range(count):
        new = [NewCompletion(prompt.id, f" {writer} {i}.", (5, 6), "base", i) for writer in ("policy", "base")]
        first, second = add_completions(home.db, new)
        (pair,) = add_pairs(home.db, home.project.id, [(first.id, second.id, "live")])
        add_live_pairs(home.db, [LivePair(pair.id, run.id, 1, Opponent.BASE, None, Choice.FIRST)])
        cast_vote(home.db, Vote(str(uuid.uuid4()), pair.id, "Mia", Source.HUMAN, Choice.SECOND, True))


def await_pause(home, run, since=0.0):
    for _ in range(PATIENCE_S * 10):
        home.engine()
        now = get_run(home.db, run.id)
        if now.status is RunStatus.PAUSED and now.updated_at > since:
            return now
        time.sleep(0.1)
    pytest.fail("the run did not pause")


def test_a_pause_of_the_brake_survives_its_engine(tmp_path):
    """On the page, too, with the reason. The killed engines make no step; resumed, the run makes the rest."""
    home = Home(tmp_path / "home")
    label_until_a_head_is_fitted(home)
    config = PolicyConfig(
        steps=9, batch_size=4, minibatches=2, epochs=1, checkpoint_every=4, max_new_tokens=24, sample_every=100,
        sample_count=0, token_rows=0, live=True, kl_budget=4.0,
    )  # fmt: skip
    run = run_control.start_run(home.db, home.folder, home.project.id, config)
    home.await_steps(run, 1)
    lose_blind_pairs(home, run, 16)
    paused = await_pause(home, run)
    assert paused.step < 9
    assert paused.message == f"paused after step {paused.step}: people prefer the texts of the base model"
    since = paused.updated_at
    for _ in range(3):
        home.kill()
        time.sleep(0.1)
        again = await_pause(home, run, since)
        assert again.message == paused.message
        assert again.step <= paused.step
        shown = RunFeed(Context(home.folder, home.db)).full_reply(again)
        assert shown["run"]["status"] is RunStatus.PAUSED
        assert "People prefer the texts of the base model" in shown["brake"]["text"]
        since = again.updated_at
    run_control.resume(home.db, home.folder, run.id)
    assert home.done(run_control.last_job(home.db, run.id)).status is JobStatus.DONE
    assert sorted(home.curve(run)) == list(range(1, 10))
    assert [event.kind for event in events(home.db, run.id)].count(EventKind.PAUSE) == 1
