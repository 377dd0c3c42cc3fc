"""A live run whose engine is killed again and again: no vote is lost, and no number of a step changes."""

import itertools
import random
import time
import uuid

import pytest
from support_engine_process import PATIENCE_S, Home

from rlhf_lab.common.enums import Choice, EventKind, JobStatus, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import run_control
from rlhf_lab.jobs.instant_reward import InstantModel
from rlhf_lab.store.live_runs import newest_version, unanswered_pairs
from rlhf_lab.store.projects import get_pair, newest_pairs
from rlhf_lab.store.runs import events, get_run
from rlhf_lab.store.votes import cast_vote, vote_counts

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
