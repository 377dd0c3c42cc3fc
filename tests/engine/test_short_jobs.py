"""Short jobs of the engine: explanations, completions, pairs, scores in advance, progress reports."""

import base64
import gc
import weakref

import numpy as np
import pytest
import torch
from support import tiny_models
from support_worker import REWARD, Lab

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine import job_handlers, job_progress
from rlhf_lab.engine import pair_sampling as pairs_module
from rlhf_lab.engine import worker as worker_module
from rlhf_lab.engine.completions import shortened_to_context, token_pieces
from rlhf_lab.engine.pair_sampling import MAX_PAIR_ATTEMPTS, PairRequest, sample_pairs
from rlhf_lab.engine.text_features import FEATURES, feature_vectors, token_share
from rlhf_lab.errors import LabelError, ModelError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.model_speed import ModelSpeed
from rlhf_lab.jobs.time_estimate import WorkCount
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.features import token_states
from rlhf_lab.models.sampling.sampler import Sampled, sample, uniforms
from rlhf_lab.store.projects import count_pairs, create_project, get_pair
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.reward_scores import _scores_of, unjudged_pairs
from rlhf_lab.training import evaluation


def newest(lab):
    return latest_reward_model(lab.db, lab.project.id)


def test_explain_returns_scores_and_token_contributions(lab):
    items = [{"prompt": "the cat", "text": "sat not good"}, {"prompt": "moon", "text": "ran"}]
    done = lab.do(lab.submit(JobKind.EXPLAIN, reward_model_id=newest(lab).id, items=items))
    first, second = done.result["items"]
    assert [first["tokens"], second["tokens"]] == [["sat", " not", " good", ""], ["ran", ""]]
    assert sum(first["token_scores"]) / 4 == pytest.approx(first["score"], abs=1e-5)
    scorer = lab.worker.model_cache.reward_model(newest(lab).id, "job reward")
    backbone = scorer.backbone
    alone = scorer.scores([backbone.encode_prompt("moon")], [[tiny_models.ID["ran"], tiny_models.EOS]])
    assert second["score"] == pytest.approx(float(alone[0]), abs=1e-5)
    rows = [(backbone.encode_prompt("moon"), [tiny_models.ID["ran"], tiny_models.EOS])]
    expected = feature_vectors(scorer.adapters, rows)[0]
    stored = np.frombuffer(base64.b64decode(second["features"]), "<f2")
    assert stored == pytest.approx(expected, abs=2e-3)


def test_what_words_contribute_to_the_features_adds_up(lab):
    """The parts of a text, and their weights; a part of one token is its hidden state times 0.9 over the number of tokens."""
    parts = [{"prompt": "the cat", "text": "sat not good", "first": a, "end": b} for a, b in ((0, 1), (1, 3), (3, 4))]
    items = [{"prompt": "the cat", "text": "sat not good"}, *parts]
    done = lab.do(lab.submit(JobKind.EXPLAIN, reward_model_id=newest(lab).id, items=items))
    vectors = [np.frombuffer(base64.b64decode(item["features"]), "<f2").astype(float) for item in done.result["items"]]
    assert sum(vectors[1:]) == pytest.approx(vectors[0], abs=4e-3)
    assert [item["share"] for item in done.result["items"]] == pytest.approx([1.0, 0.225, 0.45, 0.325])
    scorer = lab.worker.model_cache.reward_model(newest(lab).id, "job reward")
    assert done.result["has_adapter"] is (scorer.adapter is not None)
    row = scorer.backbone.encode_prompt("the cat"), [tiny_models.ID["sat"], tiny_models.EOS]
    batch = make_batch(scorer.backbone, [row[0]], [row[1]])
    with scorer.adapters.using(None), torch.no_grad():
        states = token_states(scorer.backbone, batch, FEATURES)[0]
    vector, share = token_share(scorer.adapters, row, slice(0, 1))
    assert share == pytest.approx(0.45)
    assert vector == pytest.approx(0.45 * states[0].numpy(), abs=2e-3)


def test_a_last_token_head_has_no_token_contributions(lab):
    lab.do(lab.submit(JobKind.TRAIN_REWARD, source="simulated", config=REWARD | {"pooling": "last"}))
    job = lab.submit(JobKind.EXPLAIN, reward_model_id=newest(lab).id, items=[{"prompt": "moon", "text": "ran"}])
    (item,) = lab.do(job).result["items"]
    assert item["token_scores"] is None
    assert isinstance(item["score"], float)


def test_a_text_that_does_not_fit_is_refused_with_advice(lab):
    items = [{"prompt": "the cat", "text": "sat " * 200}]
    job = lab.do(lab.submit(JobKind.EXPLAIN, reward_model_id=newest(lab).id, items=items))
    assert job.status is JobStatus.FAILED
    assert "Shorten the text" in job.error


def test_completions_have_token_contributions_on_request(lab):
    ask = {"prompts": ["the cat", "moon"], "max_new_tokens": 5, "reward_model_id": newest(lab).id}
    plain = lab.do(lab.submit(JobKind.COMPLETE, **ask)).result
    assert "token_scores" not in plain
    detailed = lab.do(lab.submit(JobKind.COMPLETE, words=True, **ask)).result
    assert detailed["texts"] == plain["texts"]
    for text, ids, words, shares, score in zip(*(detailed[k] for k in ("texts", "tokens", "words", "token_scores", "scores")),
                                               strict=True):  # fmt: skip
        assert "".join(words) == text
        assert len(words) == len(shares) == len(ids)
        assert sum(shares) / len(shares) == pytest.approx(score, abs=1e-5)


class Bytes:
    """A tokenizer whose tokens are bytes; 0 ends a text."""

    eos_ids = (0,)

    def decode(self, ids):
        return bytes(i for i in ids if i).decode("utf-8", "replace")


def test_token_pieces_of_a_two_byte_character_and_without_eos():
    assert token_pieces(Bytes(), [*"né!".encode(), 0], "né!") == ["n", "", "é", "!", ""]
    assert token_pieces(Bytes(), list(b"ab"), "ab") == ["a", "b"]
    assert token_pieces(Bytes(), [0], "") == [""]


def test_responses_are_shortened_to_the_context(llama_folder):
    backbone = tiny_models.load(llama_folder)  # its context is 48
    length = len(backbone.encode_prompt("the king and the frog"))
    assert shortened_to_context(backbone, ["moon", "the king and the frog"], 64) == 48 - length
    assert shortened_to_context(backbone, ["moon"], 7) == 7
    with pytest.raises(ModelError, match="Shorten"):
        shortened_to_context(backbone, ["the " * 48], 64)
    backbone.model.config.max_position_embeddings = 1000
    assert shortened_to_context(backbone, ["moon"], 96) == 96


def texts_of(pairs):
    return [(pair.prompt.text, pair.first.text, pair.second.text) for pair in pairs]


def test_the_nth_pair_does_not_depend_on_the_batches(fresh, tmp_path, model):
    other = Lab(tmp_path / "other", model)
    at_once = sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(7))
    bit_by_bit = [
        pair for n in (2, 1, 4) for pair in sample_pairs(other.worker.model_cache, other.project, PairRequest(n))
    ]
    other.db.close()
    assert texts_of(at_once) == texts_of(bit_by_bit)
    assert len(set(texts_of(at_once))) == 7
    assert all(pair.first.token_ids != pair.second.token_ids for pair in at_once)


def test_the_first_pairs_are_stored_before_the_others_are_sampled(fresh, tmp_path, model, monkeypatch):
    other, counts_while_sampling = Lab(tmp_path / "other", model), []
    at_once = sample_pairs(other.worker.model_cache, other.project, PairRequest(7))
    other.db.close()
    original = pairs_module.sample

    def spy(*args, **options):
        counts_while_sampling.append(count_pairs(fresh.db, fresh.project.id))
        return original(*args, **options)

    monkeypatch.setattr(pairs_module, "sample", spy)
    pairs = sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(7, stored_first=2))
    assert counts_while_sampling[0] == 0
    assert set(counts_while_sampling[1:]) == {2}
    assert texts_of(pairs) == texts_of(at_once)


def test_progress_of_pairs_counts_tokens(fresh, monkeypatch):
    """Two pairs are sampled first, then five, each batch in two rounds of 16 tokens."""
    original, fractions = pairs_module.sample, []

    def in_two_rounds(*args, on_progress, **options):
        on_progress()
        on_progress()
        return original(*args, **options)

    monkeypatch.setattr(pairs_module, "sample", in_two_rounds)
    request = PairRequest(7, stored_first=2, max_new_tokens=32)
    sample_pairs(fresh.worker.model_cache, fresh.project, request, on_fraction=fractions.append)
    assert fractions[:4] == pytest.approx([1 / 7, 2 / 7, 4.5 / 7, 1])


def test_a_job_stores_the_first_pairs_of_a_project_early(fresh, monkeypatch):
    requests = []
    monkeypatch.setattr(
        job_handlers, "sample_pairs", lambda cache, project, request, **_: requests.append(request) or []
    )
    fresh.do(fresh.submit(JobKind.SAMPLE_PAIRS, count=5))
    monkeypatch.undo()
    sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(1))
    monkeypatch.setattr(
        job_handlers, "sample_pairs", lambda cache, project, request, **_: requests.append(request) or []
    )
    fresh.do(fresh.submit(JobKind.SAMPLE_PAIRS, count=5))
    assert [request.stored_first for request in requests] == [2, 0]


def test_pairs_end_when_all_responses_are_equal(fresh, monkeypatch):
    calls = []

    def constant(backbone, prompts, uniforms, **_):
        calls.append(len(prompts))
        return Sampled([[tiny_models.ID["cat"], tiny_models.EOS] for _ in prompts], [[0.0, 0.0] for _ in prompts])

    monkeypatch.setattr(pairs_module, "sample", constant)
    with pytest.raises(LabelError, match="0 of 3 pairs"):
        sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(3))
    assert calls == [6] * MAX_PAIR_ATTEMPTS  # both sides of three pairs together
    assert count_pairs(fresh.db, fresh.project.id) == 0
    job = fresh.do(fresh.submit(JobKind.SAMPLE_PAIRS, count=3, max_new_tokens=2))
    assert job.status is JobStatus.FAILED


def test_pairs_before_a_failed_one_are_stored(fresh, monkeypatch):
    sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(1))
    both_sides, stuck = pairs_module._sample_sides, 3

    def broken(backbone, spec, indices, attempt, on_progress):
        completions = both_sides(backbone, spec, indices, attempt, on_progress)
        return completions[:1] * 2 if stuck in indices else completions

    monkeypatch.setattr(pairs_module, "PAIR_BATCH_SIZE", 1)
    monkeypatch.setattr(pairs_module, "_sample_sides", broken)
    with pytest.raises(LabelError, match="2 of 5 pairs"):
        sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(5))
    assert count_pairs(fresh.db, fresh.project.id) == 3


def test_a_pair_of_equal_texts_is_sampled_again(fresh, monkeypatch):
    both_sides = pairs_module._sample_sides

    def equal_at_first(backbone, spec, indices, attempt, on_progress):
        completions = both_sides(backbone, spec, indices, attempt, on_progress)
        return completions if attempt > 1 else completions[: len(indices)] * 2

    monkeypatch.setattr(pairs_module, "_sample_sides", equal_at_first)
    assert len(sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(4))) == 4


def test_unlabelled_pairs_are_scored_by_the_newest_reward_model(lab):
    row = newest(lab)
    scorer = lab.worker.model_cache.reward_model(row.id, "job reward")
    pairs = unjudged_pairs(lab.db, lab.project.id, 400)
    assert len(pairs) == 12
    done = lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=2, max_new_tokens=8))
    pairs = unjudged_pairs(lab.db, lab.project.id, 400)
    assert [pair.id for pair in pairs[12:]] == done.result["pair_ids"]
    assert max(len(side.token_ids) for pair in pairs[12:] for side in (pair.first, pair.second)) <= 8
    for pair in (pairs[0], pairs[-1]):
        for side in (pair.first, pair.second):
            alone = scorer.scores([scorer.backbone.encode_prompt(pair.prompt.text)], [list(side.token_ids)])
            with lab.db.read() as conn:
                kept = _scores_of(conn, row.id, [side.id])
            assert kept[side.id] == pytest.approx(float(alone[0]), abs=1e-4)


def test_reward_training_reports_losses_and_stage(lab, monkeypatch):
    reports, fractions, update = [], [], queue.update_progress

    def listen(db, job_id, progress, eta_s, partial_result):
        fractions.append(progress)
        assert update(db, job_id, progress, eta_s, partial_result)
        if partial_result is not None:
            reports.append(partial_result)
        assert queue.get_job(db, job_id).result == reports[-1]
        return True

    monkeypatch.setattr(queue, "update_progress", listen)
    job = lab.submit(
        JobKind.TRAIN_REWARD, source="simulated", config=REWARD | {"folds": 2, "batch_size": 4, "warm_start": False}
    )
    assert lab.do(job).status is JobStatus.DONE
    stages = list(dict.fromkeys(one["stage"] for one in reports))
    assert stages[-3:] == ["", "validation", "final"]
    longest = int(stages[0].rpartition(" ")[2])
    tokens = [0, *range(16, longest, 16)]
    assert stages[:-3] == [f"sampling 128 reference texts, token {token} of {longest}" for token in tokens]
    assert fractions == sorted(fractions)
    assert 0.0 == fractions[0] < fractions[stages.index("")] < fractions[-1] == 1.0
    assert reports[-1] == {"loss": newest(lab).report["loss"], "stage": "final"}
    assert [len(one["loss"]) for one in reports if one["stage"] == "final"] == [1, 2, 3, 3]  # the last: all is done


def test_a_run_reports_its_step(lab, monkeypatch):
    reports, times_left = [], []

    def listen(db, job_id, progress, eta_s, partial_result):
        reports.append(partial_result)
        times_left.append(eta_s)
        return True

    monkeypatch.setattr(queue, "update_progress", listen)
    run_id = lab.run(steps=2)
    lab.train(run_id)
    assert times_left[-2:] == [None, 0.0]  # one step says too little
    sampled = [report.pop("sampling") for report in reports if "sampling" in report]
    assert reports[-2:] == [{"run_id": run_id, "step": 1}, {"run_id": run_id, "step": 2}]
    assert {report["step"] for report in reports[:-2]} == {0}
    assert [(one["done"], one["total"]) for one in sampled] == [(0, 2), (0, 6), (6, 6)]  # shown samples, then a batch


def test_pairs_of_a_policy_are_sampled_from_it(lab):
    """With the stored seeds the run's adapter samples the stored texts again, and the base model others."""
    run_id = lab.run(lr=0.3)
    lab.train(run_id)
    name = f"run/{run_id}/latest"
    made = lab.do(lab.submit(JobKind.SAMPLE_PAIRS, count=6, checkpoint=name, max_new_tokens=8)).result
    pairs = [get_pair(lab.db, pair_id) for pair_id in made["pair_ids"]]
    texts = [text for pair in pairs for text in (pair.first, pair.second)]
    backbone, adapters = lab.worker.model_cache.load_project(lab.project)
    requested = [backbone.encode_prompt(pair.prompt.text) for pair in pairs for _ in range(2)]
    uniform = uniforms([text.seed for text in texts], 8)
    with adapters.using(lab.worker.model_cache.load_checkpoint(name, "again")):
        assert [tuple(row) for row in sample(backbone, requested, uniform).tokens] == [text.token_ids for text in texts]
    with adapters.using(None):
        assert [tuple(row) for row in sample(backbone, requested, uniform).tokens] != [text.token_ids for text in texts]


def test_the_latest_checkpoint_is_the_newest_intact_one(lab):
    run_id = lab.run(lr=0.3, steps=2, checkpoint_every=1)
    lab.train(run_id)
    folder = lab.folder / "runs" / str(run_id)

    def write(step):
        asks = {"prompts": ["the cat"], "max_new_tokens": 8, "checkpoint": f"run/{run_id}/{step}"}
        return lab.do(lab.submit(JobKind.COMPLETE, **asks))

    one, latest = write(1).result, write("latest").result
    assert (latest["checkpoint"], latest["note"], one["note"]) == (f"run/{run_id}/2", "", "")
    weights = folder / "step-000002" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    fallen = write("latest").result
    assert fallen["checkpoint"] == f"run/{run_id}/1"
    assert fallen["note"] == "The checkpoint of step 2 is damaged; the one of step 1 was used."
    assert fallen["tokens"] == one["tokens"] != latest["tokens"]
    (folder / "step-000001" / "adapter_model.safetensors").unlink()
    assert f"every checkpoint of run {run_id} is damaged" in write("latest").error
    assert lab.do(lab.submit(JobKind.COMPLETE, prompts=["the cat"], max_new_tokens=2)).result["checkpoint"] == "base"


def test_loading_another_projects_model_frees_the_previous_one(lab, tmp_path):
    other = tiny_models.save_gpt2(tmp_path / "gpt2")
    other_project = create_project(lab.db, "other", str(other), "", "tiny", 0, [("the cat", "train")])
    asks = {"prompts": ["the cat"], "max_new_tokens": 2}
    assert lab.do(lab.submit(JobKind.COMPLETE, **asks)).status is JobStatus.DONE
    before = weakref.ref(lab.worker.model_cache.load_project(lab.project)[0].model)
    assert before() is not None
    assert lab.do(lab.submit(JobKind.COMPLETE, other_project.id, **asks)).status is JobStatus.DONE
    assert lab.worker.model_cache.load_project(other_project)[0].name == str(other)
    gc.collect()
    assert before() is None


def test_the_eta_of_reward_training_depends_on_its_updates_alone(monkeypatch):
    """Without the 30 s of sampling the reference; an update takes 2 s; a restart of the fit restarts the estimate."""
    clock, reports = iter([30.0, 32.0, 36.0, 50.0, 53.0]), []
    monkeypatch.setattr(job_progress.time, "monotonic", lambda: next(clock))
    watch = job_handlers._FitProgressReporter(lambda progress: reports.append(progress.eta_s), 128)
    for done in (1, 2, 4):
        watch.on_update(done, 100, 0.7, "validation")
    watch.restart("again")
    for done in (1, 2):
        watch.on_update(done, 100, 0.7, "validation")
    assert reports == [None, 2.0 * 98, 2.0 * 96, None, 3.0 * 98]


def test_the_progress_of_a_reward_job_moves_while_it_samples():
    """Sampling takes a quarter of the job: 32 of 64 tokens are an eighth, and two of four updates half of the other 3/4."""
    reports = []
    reporter = job_handlers._FitProgressReporter(reports.append, 128, sampling_share=0.25)
    for tokens in (0, 32, 64):
        reporter.on_tokens(tokens, 64)
    reporter.report_reading()
    for done in (2, 4):
        reporter.on_update(done, 4, 0.7, "validation")
    assert [report.fraction for report in reports] == [0.0, 0.125, 0.25, 0.25, 0.625, 1.0]
    sampling = "sampling 128 reference texts, token {} of 64"
    texts = [*map(sampling.format, (0, 32, 64)), "", "validation", "validation"]
    assert [report.partial_result["stage"] for report in reports] == texts


def test_the_share_of_sampling_is_that_of_the_measured_rates():
    """128 texts of 10 tokens, each 1.28 s, and 60 + 128 texts of 20 tokens that are read, each 0.001 s: 12.8 and 3.76 s."""
    speed = ModelSpeed("cpu", forward=[0.001], sampling={"128": [1.28]}, prompt_tokens=10, response_tokens=[10])
    share = job_handlers._sampling_share(WorkCount(speed, 64), RewardConfig(epochs=0), 30)
    assert share == pytest.approx(12.8 / (12.8 + 3.76))
    ignoring = job_handlers._sampling_share(WorkCount(speed, 64), RewardConfig(epochs=0, length="ignore"), 30)
    assert ignoring == pytest.approx(38.4 / (38.4 + 3.76 + 2 * 2.56))  # 384 texts: 256 more are sampled and read
    unmeasured = job_handlers._sampling_share(WorkCount(ModelSpeed("cpu"), 64), RewardConfig(), 30)
    assert unmeasured == job_handlers.UNMEASURED_SAMPLING_SHARE


def test_a_run_has_as_much_time_as_the_sampling_of_pairs_beside_it(lab, monkeypatch):
    now, claimed = [1000.0], []

    def run_job(job):
        claimed.append(job.kind)
        now[0] += 10

    monkeypatch.setattr(worker_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(lab.worker, "run_job", run_job)
    monkeypatch.setattr(lab.worker._features, "run_beside", lambda project_id: None)
    for kind in (JobKind.SAMPLE_PAIRS, JobKind.SAMPLE_PAIRS, JobKind.COMPLETE):
        lab.submit(kind, count=1)

    def next_job():
        before = len(claimed)
        lab.worker.run_short_job(lab.project.id)
        return claimed[before] if len(claimed) > before else None

    assert next_job() is JobKind.SAMPLE_PAIRS  # from 1000 to 1010: the next pairs from 1020 on
    assert next_job() is JobKind.COMPLETE  # a person waits for this job
    now[0] = 1019.9
    assert next_job() is None
    now[0] = 1020.0
    assert next_job() is JobKind.SAMPLE_PAIRS


def test_the_texts_of_best_of_n_have_other_random_numbers_than_those_of_the_base(lab, monkeypatch):
    """With one seed for all columns: the first text of the base would otherwise be one of the first four."""
    used, original = [], evaluation.uniforms
    monkeypatch.setattr(evaluation, "uniforms", lambda seeds, length: used.append(seeds) or original(seeds, length))
    for best_of in (1, 4, 16):
        more = {"best_of": best_of} if best_of > 1 else {}
        lab.do(lab.submit(JobKind.COMPLETE, prompts=["the cat"] * best_of, seed=3, max_new_tokens=2, **more))
    assert [len(seeds) for seeds in used] == [1, 4, 16]
    assert len({seed for seeds in used for seed in seeds}) == 21
