"""The engine records the duration of its jobs, from which the page estimates how long a stage will take."""

from statistics import median

import pytest
from support_worker import REWARD

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.common.paths import SPEED_FILE
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine import completions, job_handlers, model_cache, pair_sampling, policy_run, text_features, worker
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.jobs.time_estimate import WorkCount, count_held_out, count_policy_step, count_reward, project_speed
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.store.projects import newest_pairs
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.run_metrics import metrics_since
from rlhf_lab.store.runs import get_run
from rlhf_lab.training.policy import train_state


@pytest.fixture
def clock(monkeypatch):
    """The clock of sampling, features and stages; it advances only when a test sets it."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    instance = Clock()
    for module in (completions, job_handlers, model_cache, pair_sampling, text_features):
        monkeypatch.setattr(module, "time", instance)
    return instance


def stored(lab):
    return project_speed(lab.folder, lab.db, lab.project)


def takes(clock, seconds, function):
    def slow(*args, **options):
        clock.now += seconds
        return function(*args, **options)

    return slow


def test_pairs_give_the_rates_of_sampling_and_of_a_forward_pass(fresh, clock, monkeypatch):
    monkeypatch.setattr(pair_sampling, "sample", takes(clock, 8.0, pair_sampling.sample))
    monkeypatch.setattr(text_features, "map_by_length", takes(clock, 0.5, text_features.map_by_length))
    monkeypatch.setattr(job_handlers, "EARLY_PAIRS", 1)
    assert stored(fresh) is None
    done = fresh.do(fresh.submit(JobKind.SAMPLE_PAIRS, count=5, max_new_tokens=6))
    assert done.status is JobStatus.DONE, done.error
    pairs = newest_pairs(fresh.db, fresh.project.id, 5)
    backbone = load_backbone(fresh.project.model, device="cpu")
    texts = [side for pair in pairs for side in (pair.first, pair.second)]
    speed = stored(fresh)
    first, others = texts[:2], texts[2:]
    assert speed.sampling == {
        str(len(batch)): [pytest.approx(8.0 * len(batch) / sum(len(t.token_ids) for t in batch), rel=1e-3)]
        for batch in (first, others)
    }
    sampled = [*first, *(pair.first for pair in pairs[1:]), *(pair.second for pair in pairs[1:])]
    lengths = [len(text.token_ids) for text in sampled]
    assert speed.response_tokens == [length if length < 6 else None for length in lengths]
    prompt_tokens = [len(backbone.encode_prompt(pair.prompt.text)) for pair in pairs]
    assert speed.prompt_tokens == pytest.approx(sum(prompt_tokens[1:]) / 4)
    assert len(speed.forward) == 1  # eight texts; the last two are no whole batch
    assert 0.5 / (8 * (6 + max(prompt_tokens))) < speed.forward[0] < 0.5 / 8
    assert len(speed.load) == 1
    assert speed.head_cost == pytest.approx(head_cost(backbone))


def head_cost(backbone):
    """The vocabulary is in the embeddings and in the head, where they are not tied."""
    vocabulary = backbone.model.lm_head.weight.numel()
    layers = sum(weight.numel() for name, weight in backbone.model.named_parameters() if ".layers." in name)
    norm = backbone.model.model.norm.weight.numel()
    return vocabulary / (layers + norm)


def test_selected_pairs_are_recorded_as_a_stage_of_their_own(lab, clock, monkeypatch):
    lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=4, max_new_tokens=6))
    speed = lab.worker.model_cache.speed
    speed.sampling, speed.response_tokens = {"8": [0.5]}, [10]
    monkeypatch.setattr(speed, "record_sampling", lambda *_: None)
    monkeypatch.setattr(speed, "record_texts", lambda *_: None)
    monkeypatch.setattr(job_handlers, "sample_pairs", takes(clock, 20.0, job_handlers.sample_pairs))
    lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=4, max_new_tokens=6, sampling="diversity"))
    assert stored(lab).stages["diversity pairs"] == [4.0]  # 20 s, where 8 responses of 10 tokens take 5
    speed.response_tokens = []  # only texts of a checkpoint were sampled so far
    done = lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=4, max_new_tokens=6, sampling="diversity"))
    assert (done.status, stored(lab).stages["diversity pairs"]) == (JobStatus.DONE, [4.0])


@pytest.fixture
def fixed_rates(lab, monkeypatch):
    """The speed of the lab's model, with fixed rates, because jobs during a stage would change them."""
    speed = lab.worker.model_cache.speed
    speed.record_forward(1.0, 1000)
    for name in ("record_forward", "record_sampling", "record_texts"):
        monkeypatch.setattr(speed, name, lambda *_: None)
    return speed


def test_reward_model_is_compared_with_what_was_counted(lab, fixed_rates):
    assert lab.train_reward(epochs=0).status is JobStatus.DONE
    row = latest_reward_model(lab.db, lab.project.id)
    counted = count_reward(WorkCount(fixed_rates, 64), RewardConfig(**REWARD | {"epochs": 0}), 12, 12)
    assert stored(lab).stages["reward model"][-1] == pytest.approx(row.report["seconds"] / counted.low, rel=1e-3)


def test_reward_model_with_an_adapter_counts_its_last_fit(lab, fixed_rates):
    lab.train_reward(warm_start=False)
    row = latest_reward_model(lab.db, lab.project.id)
    counted = count_reward(WorkCount(fixed_rates, 64), RewardConfig(**REWARD | {"warm_start": False}), 12, 12)
    assert stored(lab).stages["reward model"][-1] == pytest.approx(row.report["seconds"] / counted.high, rel=1e-3)


@pytest.mark.parametrize(("reward", "scoring_pass"), [({"epochs": 0}, False), ({"warm_start": False}, True)], ids=str)
def test_run_is_compared_step_by_step_without_its_first(lab, fixed_rates, reward, scoring_pass):
    """A reward model with an adapter does not share the pass of the reference."""
    lab.train_reward(**reward)
    run_id = lab.run(steps=4, checkpoint_every=2, kl_budget=4.0)
    assert lab.train(run_id).status is JobStatus.DONE
    config = PolicyConfig.from_dict(get_run(lab.db, run_id).config)
    ratios = []
    for step, metrics in metrics_since(lab.db, run_id, 1):
        counted = count_policy_step(fixed_rates, config, scoring_pass=scoring_pass) + (
            count_held_out(fixed_rates, config, scoring_pass=scoring_pass) if step in (2, 4) else 0
        )
        ratios.append(sum(metrics[f"time/{part}"] for part in ("rollout", "score", "update")) / counted)
    assert len(ratios) == 3
    assert stored(lab).stages["ppo"][-1] == pytest.approx(median(ratios), rel=1e-3)


class ClockOfShortJobs:
    """Advances by 90 s with each short job, and by a microsecond when it is read."""

    now = 0.0

    def monotonic(self):
        self.now += 1e-6
        return self.now

    def run_short_job(self, *_):
        self.now += 90.0


@pytest.fixture
def short_jobs(lab, monkeypatch):
    """Short jobs at every opportunity; their clock is that of runs and reward models."""
    clock = ClockOfShortJobs()
    monkeypatch.setattr(lab.worker, "run_short_job", clock.run_short_job)
    monkeypatch.setattr(policy_run, "POLL_INTERVAL_S", -1.0)
    for module in (completions, model_cache, policy_run, train_state, worker):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize("settings", [{}, {"algorithm": "sft", "sample_every": 1}], ids=str)
def test_step_times_exclude_short_jobs(lab, short_jobs, settings):
    run_id = lab.run(steps=2, **settings)
    done = lab.train(run_id)
    assert done.status is JobStatus.DONE, done.error
    for step, metrics in metrics_since(lab.db, run_id, 0):
        assert not step or sum(metrics[f"time/{part}"] for part in ("rollout", "score", "update")) < 1
    assert short_jobs.now > 3 * 90


def test_reward_model_time_excludes_short_jobs(lab, short_jobs, monkeypatch):
    sampling = []
    speed = lab.worker.model_cache.speed
    monkeypatch.setattr(speed, "record_sampling", lambda seconds, _: sampling.append(seconds))
    done = lab.train_reward(epochs=0)
    assert done.status is JobStatus.DONE, done.error
    assert short_jobs.now > 90
    assert [seconds < 1 for seconds in sampling] == [True]
    assert latest_reward_model(lab.db, lab.project.id).report["seconds"] < 1


def test_another_environment_is_measured_anew(lab):
    cache = lab.worker.model_cache
    cache.speed.record_forward(1.0, 1000)
    cache.save_speed()
    assert reloaded(lab).speed.forward == cache.speed.forward
    environment = cache.speed.environment
    cache.speed.environment = "another one"
    cache.save_speed()
    again = reloaded(lab).speed
    assert (again.environment, again.forward) == (environment, [])


def reloaded(lab):
    cache = ModelCache(lab.folder, lab.db, "cpu")
    cache.load_project(lab.project)
    return cache


def test_only_the_main_process_writes(lab, monkeypatch):
    (lab.folder / SPEED_FILE).unlink()
    cache = lab.worker.model_cache
    cache.distributed = type("Distributed", (), {"is_main_process": False})()
    cache.save_speed()
    ModelCache(lab.folder, lab.db).save_speed()  # nothing is loaded
    assert not (lab.folder / SPEED_FILE).exists()


def test_completions_count_as_sampling(lab, clock, monkeypatch):
    monkeypatch.setattr(completions, "sample_responses", takes(clock, 3.0, completions.sample_responses))
    done = lab.do(lab.submit(JobKind.COMPLETE, prompts=["the cat", "moon", "moon"], max_new_tokens=4))
    tokens = sum(map(len, done.result["tokens"]))
    speed = lab.worker.model_cache.speed
    assert speed.sampling["3"] == [pytest.approx(3.0 * 3 / tokens, rel=1e-3)]
