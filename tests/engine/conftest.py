"""A tiny lab, and disturbances in the middle of a step."""

import pytest
import tiny
from workplace import Lab

from rlhf_lab.records import JobStatus
from rlhf_lab.trainers.policy import PolicyTrainer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Texts of jobs are up to 64 tokens long: more than the context of the other tests' models."""
    with pytest.MonkeyPatch.context() as change:
        change.setitem(tiny.SIZES, "context", 96)
        return tiny.save_llama(tmp_path_factory.mktemp("long"))


@pytest.fixture
def lab(tmp_path, model):
    made = Lab(tmp_path / "home", model)
    made.label()
    assert made.train_reward().status is JobStatus.DONE
    yield made
    made.db.close()


@pytest.fixture
def at(monkeypatch):
    """at(2, what): call `what` in the middle of the step after step 2, once."""

    def plan(step, what):
        accumulate, done = PolicyTrainer.accumulate, []

        def disturbed(trainer, *args):
            if trainer.step == step and not done:
                done.append(True)
                what()
                trainer.tick.__self__._looked = 0.0
            return accumulate(trainer, *args)

        monkeypatch.setattr(PolicyTrainer, "accumulate", disturbed)

    return plan
