"""A tiny lab, and calls in the middle of a training step."""

import shutil

import pytest
from support import tiny_models
from support_engine_process import Home
from support_worker import Lab

from rlhf_lab.common.enums import JobKind, JobStatus
from rlhf_lab.jobs import engine_process
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.training.offline import updates as offline_updates
from rlhf_lab.training.policy import update


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A model with a context of 96 tokens; jobs have texts of up to 64, more than other tests' models read."""
    with pytest.MonkeyPatch.context() as change:
        change.setitem(tiny_models.SIZES, "context", 96)
        return tiny_models.save_llama(tmp_path_factory.mktemp("long"))


@pytest.fixture
def fresh(tmp_path, model, small_score_unit):
    """A lab without labels."""
    lab = Lab(tmp_path / "home", model)
    yield lab
    lab.db.close()


@pytest.fixture(scope="session")
def labelled_home(tmp_path_factory, model):
    """The home of a lab with labels and a reward model."""
    lab = Lab(tmp_path_factory.mktemp("labelled") / "home", model)
    lab.label()
    assert lab.train_reward().status is JobStatus.DONE
    lab.db.close()
    return lab.folder


@pytest.fixture
def lab(tmp_path, labelled_home, small_score_unit):
    """A copy of the labelled lab, which a test may change."""
    lab = Lab(shutil.copytree(labelled_home, tmp_path / "home"))
    lab.worker.model_cache.load_project(lab.project)
    yield lab
    lab.db.close()


@pytest.fixture
def at(monkeypatch):
    """at(2, function): call the function once, in the middle of the step after step 2."""

    def plan(step, function):
        done = []

        def wrap(module, name):
            accumulate = getattr(module, name)

            def wrapped(state, *args):
                if state.steps_done == step and not done:
                    done.append(True)
                    function()
                    state.on_progress.__self__._polled_at = 0.0
                return accumulate(state, *args)

            monkeypatch.setattr(module, name, wrapped)

        wrap(update, "minibatch_backward")
        wrap(offline_updates, "_preference_backward")
        wrap(offline_updates, "_sft_backward")

    return plan


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("home"))
    yield home
    engine_process.stop_engine(home.db, home.folder)
    home.db.close()


@pytest.fixture(scope="module")
def reward_model_id(home):
    label_with_judge(home.db, home.project.id, JUDGES["cheerful"], 12)
    job = home.submit(JobKind.TRAIN_REWARD, source="simulated", config={"folds": 0, "epochs": 1})
    return home.done(job).result["reward_model_id"]


@pytest.fixture(scope="module")
def undisturbed(home, reward_model_id):
    run, job = home.run(reward_model_id)
    assert home.done(job).status is JobStatus.DONE
    return run
