"""Every text of a project is written and read after its system prompt; projects on one model do not mix theirs."""

import pytest
from support import tiny_models
from support_worker import Lab

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.common.records import ChatSettings
from rlhf_lab.engine import text_features
from rlhf_lab.engine.text_features import add_missing_features
from rlhf_lab.models.sampling import sampler
from rlhf_lab.store.projects import create_project

SYSTEM = "the good king"


@pytest.fixture
def system_lab(tmp_path, model):
    lab = Lab(tmp_path / "home", model)
    texts = [(text, split) for text in tiny_models.PROMPTS for split in ("train",)] + [("a good bird", "eval")]
    project = lab.project
    lab.plain_project = project
    lab.project = create_project(
        lab.db, "kind", project.model, project.model_hash, "tiny", 3, texts, ChatSettings(SYSTEM)
    )
    yield lab
    lab.db.close()


@pytest.fixture
def prompts_read(monkeypatch):
    """The prompts, as token ids, of every sampling and of every text whose features are computed."""
    recorded, true_sample, true_batch = [], sampler._sample, text_features.make_batch

    def sample(backbone, prompts, *rest):
        recorded.extend(prompts)
        return true_sample(backbone, prompts, *rest)

    def batch(backbone, prompts, responses):
        recorded.extend(prompts)
        return true_batch(backbone, prompts, responses)

    monkeypatch.setattr(sampler, "_sample", sample)
    monkeypatch.setattr(text_features, "make_batch", batch)
    return recorded


def test_pairs_rewards_runs_completions_and_features_have_the_system_prompt(system_lab, prompts_read):
    system = tiny_models.ids(SYSTEM)

    def check():
        """The prompts since the last call."""
        assert prompts_read
        assert all(list(prompt)[: len(system)] == system for prompt in prompts_read)
        prompts_read.clear()

    system_lab.label()
    check()
    assert add_missing_features(system_lab.worker.model_cache, system_lab.project.id)
    check()
    assert system_lab.train_reward().status is JobStatus.DONE  # samples of the reference
    check()
    assert system_lab.train(system_lab.run()).status is JobStatus.DONE
    check()
    job = system_lab.submit(JobKind.COMPLETE, prompts=["the cat"], max_new_tokens=4)
    assert system_lab.do(job).status is JobStatus.DONE
    check()


def test_projects_on_one_model_keep_their_own(system_lab):
    cache = system_lab.worker.model_cache
    backbone, _ = cache.load_project(system_lab.project)
    assert backbone.encode_prompt("the cat") == tiny_models.ids(f"{SYSTEM} the cat")
    assert cache.load_project(system_lab.plain_project)[0] is backbone
    assert backbone.encode_prompt("the cat") == tiny_models.ids("the cat")
