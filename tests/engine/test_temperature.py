"""The engine samples all texts of a project at the project's temperature; a run may have its own."""

import ast
from pathlib import Path

import pytest
from support_worker import Lab

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.models.sampling import sampler
from rlhf_lab.store.projects import get_project, set_max_new_tokens, set_temperature

PACKAGE = Path(sampler.__file__).parents[2]


@pytest.fixture
def temperatures(monkeypatch):
    """The temperature of every sampling, in order."""
    recorded, true_sample = [], sampler._sample

    def sample(backbone, prompts, uniform, temperature, on_progress):
        recorded.append(temperature)
        return true_sample(backbone, prompts, uniform, temperature, on_progress)

    monkeypatch.setattr(sampler, "_sample", sample)
    return recorded


@pytest.fixture
def cool_lab(tmp_path, model):
    lab = Lab(tmp_path / "home", model)
    set_temperature(lab.db, lab.project.id, 0.7)
    lab.project = get_project(lab.db, lab.project.id)
    yield lab
    lab.db.close()


def test_pairs_reference_samples_completions_and_runs_have_the_projects_temperature(cool_lab, temperatures):
    def taken():
        """The different temperatures since the last call."""
        different = set(temperatures)
        temperatures.clear()
        return different

    cool_lab.label()
    assert taken() == {0.7}
    job = cool_lab.do(cool_lab.submit(JobKind.SAMPLE_PAIRS, count=2))
    assert (job.status, taken()) == (JobStatus.DONE, {0.7})
    assert cool_lab.train_reward().status is JobStatus.DONE  # reference samples
    assert taken() == {0.7}
    for sampling in ("information", "uncertainty", "diversity"):  # candidates, and reference samples
        job = cool_lab.do(cool_lab.submit(JobKind.SAMPLE_PAIRS, count=2, sampling=sampling))
        assert (job.status, taken()) == (JobStatus.DONE, {0.7})
    run_id = cool_lab.run(temperature=0.4, steps=2, sample_every=1)
    assert cool_lab.train(run_id).status is JobStatus.DONE  # rollouts and fixed samples have the run's
    assert taken() == {0.4}
    for checkpoint in ("base", f"run/{run_id}/latest"):
        request = {"prompts": ["the cat"], "checkpoint": checkpoint, "max_new_tokens": 4}
        assert cool_lab.do(cool_lab.submit(JobKind.COMPLETE, **request)).status is JobStatus.DONE
        assert taken() == {0.7}
        cool_lab.do(cool_lab.submit(JobKind.COMPLETE, temperature=1.5, **request))
        assert taken() == {1.5}


def test_pairs_reference_samples_completions_and_tournaments_have_the_projects_length(cool_lab, monkeypatch):
    """The run has its own."""
    lengths, true_sample = set(), sampler._sample

    def sample(backbone, prompts, uniform, temperature, on_progress):
        lengths.add(uniform.shape[1])
        return true_sample(backbone, prompts, uniform, temperature, on_progress)

    monkeypatch.setattr(sampler, "_sample", sample)
    set_max_new_tokens(cool_lab.db, cool_lab.project.id, 11)
    for kind, payload in (
        (JobKind.SAMPLE_PAIRS, {"count": 12}),
        (JobKind.COMPLETE, {"prompts": ["the cat"]}),
        (JobKind.COMPLETE, {"prompts": ["the cat"], "leave_out": True}),
    ):
        assert cool_lab.do(cool_lab.submit(kind, **payload)).status is JobStatus.DONE
    cool_lab.project = get_project(cool_lab.db, cool_lab.project.id)
    cool_lab.label()
    assert cool_lab.train_reward().status is JobStatus.DONE  # reference samples
    assert lengths == {11}


def test_reference_texts_are_sampled_again_only_if_something_has_changed(cool_lab, temperatures):
    def train():
        """How many batches were sampled."""
        temperatures.clear()
        assert cool_lab.train_reward().status is JobStatus.DONE
        return len(temperatures)

    cool_lab.label()
    first = train()
    assert (first > 0, train()) == (True, 0)
    set_temperature(cool_lab.db, cool_lab.project.id, 0.8)
    assert (train(), train()) == (first, 0)
    set_max_new_tokens(cool_lab.db, cool_lab.project.id, 11)
    assert (train(), train()) == (first, 0)


def test_a_reward_model_that_ignores_an_attribute_has_more_reference_texts(cool_lab):
    cool_lab.label()
    for changes in ({}, {"length": "ignore"}):
        assert cool_lab.train_reward(**changes).status is JobStatus.DONE
    counts = [len(reference.responses) for reference in cool_lab.worker.model_cache.references.values()]
    assert counts == [128, 384]


def test_texts_depend_on_the_temperature(cool_lab):
    request = {"prompts": ["the cat", "moon", "the king"], "max_new_tokens": 12}
    texts = {}
    for temperature in (0.7, 1.0):
        set_temperature(cool_lab.db, cool_lab.project.id, temperature)
        texts[temperature] = cool_lab.do(cool_lab.submit(JobKind.COMPLETE, **request)).result["texts"]
    assert texts[0.7] != texts[1.0]


def calls_of_samplers(path):
    """(line, names of keyword arguments) of each call of a sampling function that the file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rlhf_lab")
        for alias in node.names
        if alias.name in ("sample", "sample_responses")
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function, names = node.func.id, {keyword.arg for keyword in node.keywords}
            if function == "partial" and isinstance(node.args[0], ast.Name):
                function = node.args[0].id
            if function in imported:
                yield node.lineno, names


def test_no_code_samples_at_a_default_temperature():
    calls = {(path.name, line): names for path in PACKAGE.rglob("*.py") for line, names in calls_of_samplers(path)}
    assert {name for name, _ in calls} >= {
        "completions.py",
        "pair_sampling.py",
        "trainer.py",
        "demo.py",
        "evaluation.py",
    }
    assert [place for place, names in calls.items() if "temperature" not in names] == []
