"""Features of texts, of all layers: computed after pairs are sampled, while the engine is idle, and during a run."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import tiny_models

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.common.records import NewCompletion
from rlhf_lab.engine import job_handlers, policy_run, text_features
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.errors import ModelError
from rlhf_lab.store.features import load_features, texts_without_features
from rlhf_lab.store.projects import add_completions, add_pairs, get_pair, prompts


@pytest.fixture
def clock(monkeypatch):
    """The clock of the module under test; tests set `clock.now`."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(text_features, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def missing(lab):
    return len(texts_without_features(lab.db, lab.project.id, 1000))


def add_pair(lab, *texts):
    """A pair of imported texts: without token ids."""
    prompt = prompts(lab.db, lab.project.id, "train")[0]
    sides = add_completions(lab.db, [NewCompletion(prompt.id, text, (), "import", 0) for text in texts])
    return add_pairs(lab.db, lab.project.id, [(sides[0].id, sides[1].id, "import")])[0]


@torch.no_grad()
def test_features_are_the_pooled_states_of_every_layer(fresh):
    """Against transformers' own modules, one text at a time; of sampled tokens and of an imported text, in half precision."""
    sampled, imported = (
        sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(1))[0],
        add_pair(fresh, "sat", "ran not"),
    )
    assert text_features.add_missing_features(fresh.worker.model_cache, fresh.project.id)
    assert missing(fresh) == 0
    backbone = fresh.worker.model_cache.load_project(fresh.project)[0]
    for pair in (sampled, imported):
        for side in (pair.first, pair.second):
            prompt = backbone.encode_prompt(pair.prompt.text)
            response = list(side.token_ids) or tiny_models.ids(f"{side.text} <eos>")
            backbone.fused_layers.disable()
            states = backbone.trunk(
                input_ids=torch.tensor([[*prompt, *response]]), output_hidden_states=True
            ).hidden_states
            backbone.fused_layers.set_adapter({})
            responses = [layer[0, len(prompt) :] for layer in states]
            expected = torch.cat([0.9 * response.mean(0) + 0.1 * response[-1] for response in responses])
            stored = load_features(fresh.db, [side.id])[side.id]
            assert stored.layers == len(states)
            assert stored.vector.astype(float).tolist() == pytest.approx(expected.tolist(), rel=2e-3, abs=1e-4)


def test_a_job_that_writes_pairs_stores_their_features(fresh):
    job = fresh.do(fresh.submit(JobKind.SAMPLE_PAIRS, count=9))
    pairs = [get_pair(fresh.db, pair_id) for pair_id in job.result["pair_ids"]]
    ids = [side.id for pair in pairs for side in (pair.first, pair.second)]
    assert len(ids) == 18
    assert load_features(fresh.db, ids).keys() == set(ids)


def test_a_job_that_writes_pairs_does_not_wait_for_all_features(fresh, monkeypatch):
    monkeypatch.setattr("rlhf_lab.engine.job_handlers.NEW_TEXTS_BUDGET_S", 0.0)
    monkeypatch.setattr("rlhf_lab.engine.job_handlers.NEW_TEXTS_SHARE", 0.0)
    assert fresh.do(fresh.submit(JobKind.SAMPLE_PAIRS, count=9)).status is JobStatus.DONE
    assert missing(fresh) == 18 - text_features.BATCH_SIZE


@pytest.mark.parametrize(("sampling_s", "expected"), [(0.5, 1.0), (170.0, 34.0)])
def test_a_slow_job_that_writes_pairs_spends_a_share_of_its_time_on_features(fresh, monkeypatch, sampling_s, expected):
    """Otherwise features never catch up with a person who labels as fast as a large model writes pairs."""
    clock, budgets = iter([100.0, 100.0 + sampling_s]), []
    monkeypatch.setattr(job_handlers, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(job_handlers.FeatureBackfill, "run_for", lambda self, project, seconds: budgets.append(seconds))
    fresh.do(fresh.submit(JobKind.SAMPLE_PAIRS, count=2))
    assert budgets == [expected]


def test_an_idle_engine_computes_what_is_missing(fresh, monkeypatch):
    sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(10))
    monkeypatch.setattr(fresh.worker, "idle_exit_s", 0.0)
    fresh.worker._run_loop()
    assert missing(fresh) == 0


def test_a_text_beyond_the_context_is_cut(fresh):
    pair = add_pair(fresh, "sat " * 200, "not " * 200)
    text_features.add_missing_features(fresh.worker.model_cache, fresh.project.id)
    first, second = load_features(fresh.db, [pair.first.id, pair.second.id]).values()
    assert np.isfinite(first.vector).all()
    assert not np.array_equal(first.vector, second.vector)
    long_prompt = replace(pair.prompt, text="the cat " * 200)
    _, adapters = fresh.worker.model_cache.load_project(fresh.project)
    found = text_features.compute_features(adapters, [(long_prompt, pair.first), (long_prompt, pair.second)])
    assert not np.array_equal(found[pair.first.id].vector, found[pair.second.id].vector)


def test_features_that_are_not_finite_are_stored_as_empty(fresh, monkeypatch):
    def broken(backbone, batch, spec):
        features = torch.ones(len(batch.ended), 4)
        features[0, 2] = 1e6  # beyond half precision
        return features

    monkeypatch.setattr(text_features, "text_features", broken)
    add_pair(fresh, "sat", "sat")
    text_features.add_missing_features(fresh.worker.model_cache, fresh.project.id)
    assert missing(fresh) == 0
    sizes = [len(one.vector) for one in load_features(fresh.db, [1, 2]).values()]
    assert sorted(sizes) == [0, 4]


def test_it_looks_again_after_a_second_and_after_an_error_later(fresh, clock, monkeypatch, caplog):
    backfill = text_features.FeatureBackfill(fresh.worker.model_cache)
    assert not backfill.run_idle()
    add_pair(fresh, "sat", "ran")
    assert not backfill.run_idle()
    clock.now += text_features.CHECK_INTERVAL_S
    assert backfill.run_idle()
    assert missing(fresh) == 0

    def fail(*_):
        raise ModelError("the weights are gone.")

    add_pair(fresh, "sat not", "ran not")
    monkeypatch.setattr(text_features, "compute_features", fail)
    with caplog.at_level(logging.WARNING, "rlhf_lab.engine"):
        assert not backfill.run_idle()
    assert "the weights are gone" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(text_features, "time", SimpleNamespace(monotonic=lambda: clock.now))
    clock.now += text_features.RETRY_AFTER_S - 1
    assert not backfill.run_idle()
    clock.now += 1
    assert backfill.run_idle()


def test_beside_a_training_it_rests_thirty_times_as_long(fresh, clock, monkeypatch):
    backfill, compute = text_features.FeatureBackfill(fresh.worker.model_cache), text_features.compute_features

    def slow(*args):
        clock.now += 2.0
        return compute(*args)

    monkeypatch.setattr(text_features, "compute_features", slow)
    sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(8))
    left = [missing(fresh)]
    for passed in (0.0, 59.0, 1.0, 30.0, 30.0):
        clock.now += passed
        backfill.run_beside(fresh.project.id)
        left.append(missing(fresh))
    assert left == [16, 8, 8, 0, 0, 0]


def test_features_beside_a_run_do_not_change_it(lab, monkeypatch):
    """The same run twice: with nothing to compute, and with a batch at every check."""
    monkeypatch.setattr(text_features, "REST_FACTOR", 0.0)
    monkeypatch.setattr(text_features, "BATCH_SIZE", 2)
    monkeypatch.setattr(policy_run, "POLL_INTERVAL_S", 0.0)
    while text_features.add_missing_features(lab.worker.model_cache, lab.project.id):
        pass
    first, second = lab.run(), lab.run()
    assert lab.train(first).status is JobStatus.DONE
    sample_pairs(lab.worker.model_cache, lab.project, PairRequest(12))
    assert missing(lab) == 24
    lab.worker._features._next_at = 0.0
    assert lab.train(second).status is JobStatus.DONE
    assert missing(lab) == 0
    assert lab.curve(first) == lab.curve(second)
