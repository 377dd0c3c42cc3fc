"""Runs that train while people label: heads, pairs, and what a resumed run repeats."""

import itertools
import shutil
import uuid

import numpy as np
import pytest
import torch
from support_worker import CONFIG, Lab

from rlhf_lab.common.enums import Choice, EventKind, JobStatus, Opponent, RunStatus, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine import live_run, policy_run
from rlhf_lab.engine.live_run import JUDGE_KEY, WAITING_PAIRS, LiveHeads
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.jobs import retraining, run_control
from rlhf_lab.jobs.retraining import IGNORED_KEY
from rlhf_lab.models.sampling.sampler import sample, uniforms
from rlhf_lab.store.features import load_features
from rlhf_lab.store.live_runs import get_head, live_answers, live_pairs_by_id, newest_version, unanswered_pairs
from rlhf_lab.store.pair_leases import lease_pair
from rlhf_lab.store.projects import get_pair
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import create_run, events, get_run
from rlhf_lab.store.votes import cast_vote

LIVE = CONFIG | {"live": True, "kl_budget": 50.0, "beta": 0.05, "steps": 5, "checkpoint_every": 2}


def start(lab, **changes):
    """A live run whose judge labels a pair after every step."""
    manifest = {"judge": "brief", JUDGE_KEY: {"every": 1, "noise": 0.0}}
    config = LIVE | changes
    return create_run(lab.db, lab.project.id, None, "live", config=config, manifest=manifest, total_steps=5).id


def vote(lab, pair_id, choice=Choice.FIRST):
    cast_vote(lab.db, Vote(str(uuid.uuid4()), pair_id, "judge:brief", Source.SIMULATED, choice, True))


def choose(lab, **choices):
    """As on Reward model; the training stays in the queue."""
    retraining.submit_training(lab.db, lab.project.id, Source.SIMULATED, RewardConfig(**choices))


def ignored_by_heads(lab, run_id):
    """(step, attributes) of each head."""
    return [(e.applied_step, e.payload[IGNORED_KEY]) for e in events(lab.db, run_id) if e.kind is EventKind.HEAD]


def test_every_step_scores_with_a_head_of_all_labels_so_far(lab):
    run_id = start(lab)
    assert lab.train(run_id).status is JobStatus.DONE
    curves = metric_series(lab.db, run_id, ["live/head", "live/labels"])
    assert [value for _, value in curves["live/head"]] == [1, 2, 3, 4, 5]
    assert [value for _, value in curves["live/labels"]] == [12, 13, 14, 15, 16]
    heads = [get_head(lab.db, run_id, version) for version in range(1, 6)]
    assert [head.labels for head in heads] == [12, 13, 14, 15, 16]
    assert all(np.abs(a.weights - b.weights).max() > 1e-4 for a, b in itertools.pairwise(heads))
    applied = [(e.payload["version"], e.applied_step) for e in events(lab.db, run_id) if e.kind is EventKind.HEAD]
    assert applied == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4)]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("head", [1, 2])
def test_an_exit_between_a_head_and_its_step_changes_no_number(lab, monkeypatch, head):
    run_id, heads = start(lab), []
    home = shutil.copytree(lab.folder, lab.folder.with_name("plain"))
    other = Lab(home)
    other.train(run_id)
    add_event = policy_run.add_event

    def killed(db, run, kind, *more):
        heads.extend([kind] * (kind is EventKind.HEAD))
        if len(heads) == head:
            raise Killed
        return add_event(db, run, kind, *more)

    with monkeypatch.context() as change:
        change.setattr(policy_run, "add_event", killed)
        with pytest.raises(Killed):
            lab.train(run_id)
    lab.next_engine()
    assert lab.train(run_id).status is JobStatus.DONE
    curves = [metric_series(one.db, run_id, ["live/head", "live/labels"]) for one in (lab, other)]
    other.db.close()
    assert curves[0] == curves[1]
    assert [value for _, value in curves[0]["live/head"]] == [1, 2, 3, 4, 5]


def test_scores_of_all_heads_are_on_one_scale(lab):
    run_id = start(lab)
    lab.train(run_id)
    live = PolicyRun(lab.worker.model_cache, run_id).trainer.state.live
    assert (live.version, live.labels) == (5, 16)
    for version in (1, 3):
        live.set_head(version, 0, get_head(lab.db, run_id, version).weights)
        scores = live.scores_of(live.reference)
        assert abs(float(scores.mean())) < 1e-4
        assert float(scores.std()) == pytest.approx(1.0, abs=1e-4)


def test_the_newest_head_chooses_the_best_checkpoint_among_all(lab):
    """Two checkpoints with the features (2, 0) and (0, 2): a head that reads the first feature prefers the first."""
    run_id = start(lab)
    live = PolicyRun(lab.worker.model_cache, run_id).trainer.state.live
    size, first = live.reference.shape[1] - len(ATTRIBUTES), len(ATTRIBUTES)

    def texts(*values):
        features = torch.zeros(4, first + size)
        features[:, first : first + 2] = torch.tensor(values) + torch.tensor(
            [[0.0, 0.1], [0.1, 0.0], [0.0, 0.0], [0.1, 0.1]]
        )
        return features

    live.set_reference(torch.cat([texts(-1.0, 1.0), texts(1.0, -1.0)]))
    live.held_out = {2: texts(2.0, 0.0), 4: texts(0.0, 2.0)}
    for version, (weights, best) in enumerate([((1.0, 0.0), 2), ((0.0, 1.0), 4), ((1.0, 0.0), 2)], 1):
        live.set_head(version, 0, np.array([*weights, *[0.0] * (size - 2)], np.float32))
        assert live.best_checkpoint().step == best


def test_pairs_are_of_the_policy_and_others_with_features_for_the_next_head(lab):
    run_id = start(lab)
    lab.train(run_id)
    ids = [answer.pair_id for answer in live_answers(lab.db, run_id)] + unanswered_pairs(lab.db, run_id)
    pairs = live_pairs_by_id(lab.db, ids)
    assert len(pairs) >= 4
    assert {pair.opponent for pair in pairs.values()} >= {Opponent.BASE, None}
    for pair_id, live in pairs.items():
        pair = get_pair(lab.db, pair_id)
        names = {Choice.FIRST: pair.first.checkpoint, Choice.SECOND: pair.second.checkpoint}
        policy = f"run/{run_id}/{live.step}" if live.step else "base"
        if live.opponent is None:
            assert (set(names.values()), live.policy_side) == ({policy, f"run/{run_id}/{live.step + 1}"}, None)
        else:
            other = "base" if live.opponent is Opponent.BASE else f"run/{run_id}/{live.opponent_step}"
            assert names.pop(live.policy_side) == policy
            assert list(names.values()) == [other]
        assert pair.first.token_ids != pair.second.token_ids
        assert all(len(text.vector) for text in load_features(lab.db, [pair.first.id, pair.second.id]).values())


def test_each_text_of_a_pair_is_what_its_checkpoint_writes_with_its_seed(lab):
    """The policy's as well: the rollouts of a step are written before its update."""
    run_id = start(lab, checkpoint_every=1, steps=6)
    lab.train(run_id)
    cache, config = lab.worker.model_cache, PolicyConfig.from_dict(LIVE)
    backbone, adapters = cache.load_project(lab.project)
    pair_ids = [answer.pair_id for answer in live_answers(lab.db, run_id)] + unanswered_pairs(lab.db, run_id)
    live = live_pairs_by_id(lab.db, pair_ids)
    assert {pair.opponent for pair in live.values()} == {None, Opponent.BASE, Opponent.BEST}
    assert all((pair.opponent_step or 0) < pair.step for pair in live.values() if pair.opponent)
    for pair_id in pair_ids:
        pair = get_pair(lab.db, pair_id)
        prompt = backbone.encode_prompt(pair.prompt.text)
        for text in (pair.first, pair.second):
            slot = None if text.checkpoint == "base" else cache.load_checkpoint(text.checkpoint, "written by")
            with adapters.using(slot, merged=slot is not None):
                uniform = uniforms([text.seed], config.max_new_tokens)
                written = sample(backbone, [prompt], uniform, temperature=config.temperature)
            assert tuple(written.tokens[0]) == text.token_ids


def test_a_head_of_the_first_labels_with_features_is_replaced_when_the_others_have_theirs(fresh, monkeypatch):
    monkeypatch.setattr(live_run, "MAX_FEATURE_BATCHES", 2)
    fresh.label(24)
    run_id = create_run(fresh.db, fresh.project.id, None, "live", config=LIVE, manifest={}, total_steps=5).id
    fresh.worker.model_cache.load_project(fresh.project)
    heads = LiveHeads(fresh.worker.model_cache, get_run(fresh.db, run_id), PolicyConfig.from_dict(LIVE))
    labels = []
    while (newest := heads.newest()) is not None:
        labels.append(newest[0].labels)
    assert labels[0] < 24
    assert labels == sorted(set(labels))
    assert labels[-1] == 24


def test_no_more_pairs_are_made_than_people_answer(lab):
    """Without an answer only pairs older than a few steps are made anew."""
    run_id = create_run(lab.db, lab.project.id, None, "live", config=LIVE, manifest={}, total_steps=5).id
    lab.train(run_id)
    assert len(unanswered_pairs(lab.db, run_id)) == WAITING_PAIRS


def test_people_get_the_newest_pair_of_a_run_that_trains(lab, at):
    run_id = create_run(lab.db, lab.project.id, None, "live", config=LIVE, manifest={}, total_steps=5).id
    leased = []
    at(3, lambda: leased.append((lease_pair(lab.db, lab.project.id, "Mia").pair.id, unanswered_pairs(lab.db, run_id))))
    lab.train(run_id)
    (pair_id, waiting), = leased  # fmt: skip
    assert pair_id == waiting[0]
    assert lease_pair(lab.db, lab.project.id, "Ben").pair.id not in waiting  # the run has ended


@pytest.mark.parametrize("ignored", [[], ["length", "copied"]])
def test_a_killed_run_repeats_its_steps_with_the_same_heads(lab, tmp_path, monkeypatch, ignored):
    """Killed after step 3, whose rows are stored and whose checkpoint is that of step 2. A label that comes later must not change
    the steps that are repeated."""
    run_id = start(lab, steps=5)
    choose(lab, **dict.fromkeys(ignored, "ignore"))
    lab.db.close()
    other = Lab(shutil.copytree(lab.folder, tmp_path / "other"))
    lab.db = type(lab.db).open(lab.folder)
    lab.next_engine()
    lab.train(run_id)
    record = policy_run.record_step

    def record_and_die(db, run, result):
        record(db, run, result)
        if result.step == 3:
            raise SystemExit

    monkeypatch.setattr(policy_run, "record_step", record_and_die)
    other.worker.model_cache.load_project(other.project)
    with pytest.raises(SystemExit):
        PolicyRun(other.worker.model_cache, run_id).execute()
    monkeypatch.undo()
    other.next_engine()
    PolicyRun(other.worker.model_cache, run_id).execute()
    assert other.curve(run_id) == lab.curve(run_id)
    assert newest_version(other.db, run_id) == newest_version(lab.db, run_id)
    assert ignored_by_heads(lab, run_id) == [(step, ignored) for step in range(5)]
    other.db.close()


def test_a_choice_on_reward_model_counts_from_the_next_step_on(lab, at):
    """Without a new label; the head is another one."""
    run_id = create_run(lab.db, lab.project.id, None, "live", config=LIVE, manifest={}, total_steps=5).id
    at(2, lambda: choose(lab, copied="ignore"))
    assert lab.train(run_id).status is JobStatus.DONE
    assert ignored_by_heads(lab, run_id) == [(0, []), (3, ["copied"])]
    first, second = (get_head(lab.db, run_id, version) for version in (1, 2))
    assert first.labels == second.labels
    assert np.abs(first.weights - second.weights).max() > 1e-4


def test_before_the_first_reward_model_the_choice_is_that_of_the_run(fresh):
    fresh.label(8)
    config = LIVE | {"steps": 1}
    manifest = {IGNORED_KEY: ["length"]}
    run_id = create_run(fresh.db, fresh.project.id, None, "live", config=config, manifest=manifest, total_steps=1).id
    assert fresh.train(run_id).status is JobStatus.DONE
    assert ignored_by_heads(fresh, run_id) == [(0, ["length"])]


def test_a_label_after_a_kill_does_not_change_repeated_steps(lab, monkeypatch):
    run_id = create_run(lab.db, lab.project.id, None, "live", config=LIVE, manifest={}, total_steps=5).id
    record, curve = policy_run.record_step, []

    def record_and_die(db, run, result):
        record(db, run, result)
        if result.step == 3:
            curve.extend(lab.curve(run_id))
            vote(lab, unanswered_pairs(db, run_id)[0])
            raise SystemExit

    monkeypatch.setattr(policy_run, "record_step", record_and_die)
    lab.worker.model_cache.load_project(lab.project)
    with pytest.raises(SystemExit):
        PolicyRun(lab.worker.model_cache, run_id).execute()
    monkeypatch.undo()
    lab.next_engine()
    PolicyRun(lab.worker.model_cache, run_id).execute()
    assert lab.curve(run_id)[:3] == curve
    assert [value for _, value in metric_series(lab.db, run_id, ["live/labels"])["live/labels"]] == [12] * 3 + [13] * 2


def test_a_live_run_starts_with_few_labels_and_no_reward_model(fresh, monkeypatch):
    monkeypatch.setattr(run_control.engine_process, "ensure_engine", lambda *_: None)
    config = run_control.PolicyConfig.from_dict(LIVE)
    with pytest.raises(run_control.LabelError, match="at least 6 labels that prefer one text: 6 more, please"):
        run_control.start_run(fresh.db, fresh.folder, fresh.project.id, config)
    fresh.label(6)
    run = run_control.start_run(fresh.db, fresh.folder, fresh.project.id, config)
    assert (run.reward_model_id, run.status) == (None, RunStatus.QUEUED)
    assert "on new labels" in run.name
    assert "live on" not in run.name
    term = run_control.RewardTerm("repetition", 1.0)
    with pytest.raises(run_control.ConfigError, match="learns its reward from the labels alone"):
        run_control.start_run(fresh.db, fresh.folder, fresh.project.id, config, reward_terms=[term])
    assert get_run(fresh.db, run.id).manifest["labels"]["vote_ids"]


def test_labels_that_predict_nothing_hardly_move_the_policy(fresh):
    """Each pair has a label for either text, so held-out labels are predicted in half of the cases."""
    for pair in sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(6)):
        for choice in (Choice.FIRST, Choice.SECOND):
            cast_vote(
                fresh.db, Vote(str(uuid.uuid4()), pair.id, f"judge:{choice.value}", Source.SIMULATED, choice, True)
            )
    run_id = create_run(fresh.db, fresh.project.id, None, "live", config=LIVE, manifest={}, total_steps=5).id
    assert fresh.train(run_id).status is JobStatus.DONE
    assert metric_series(fresh.db, run_id, ["live/kl_budget"])["live/kl_budget"] == [(i, 0.5) for i in range(1, 6)]


def test_settings_that_a_live_run_cannot_have():
    with pytest.raises(run_control.ConfigError, match="live = on needs a KL budget"):
        run_control.PolicyConfig.from_dict(LIVE | {"kl_budget": None})
    with pytest.raises(run_control.ConfigError, match="live = True has no meaning for dpo"):
        run_control.PolicyConfig.for_algorithm("dpo", live=True)


def test_a_budget_that_falls_does_not_pull_the_policy_back(lab):
    """At a KL of 2: a budget of 0.5 becomes 1.3 · 2, in which beta does not grow; at a KL of 0.1 it is 0.5."""
    trainer = PolicyRun(lab.worker.model_cache, start(lab)).trainer
    control, weights = (
        trainer.state.kl_control,
        np.ones(trainer.state.live.reference.shape[1] - len(ATTRIBUTES), np.float32),
    )
    trainer.set_head(1, 6, weights, 3.0)
    for _ in range(20):
        control.update(2.0, 6)
    base = control.base
    trainer.set_head(2, 7, weights, 0.5)
    assert control.budget == pytest.approx(2.6, abs=1e-4)
    control.update(2.0, 6)
    assert control.base <= base
    trainer.set_head(3, 8, weights, 3.0)
    assert control.budget == 3.0
    for _ in range(20):
        control.update(0.1, 6)
    trainer.set_head(4, 9, weights, 0.5)
    assert control.budget == 0.5
