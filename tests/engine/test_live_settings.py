"""Beta and lr set by hand in the engine: pauses, resumes, and states of version 0.2.0, which wrote beta into its controller."""

import json

import pytest

from rlhf_lab.common.checkpoint_index import STATE_FILE, checkpoint_folder, checkpoint_steps
from rlhf_lab.common.enums import JobStatus
from rlhf_lab.jobs import run_control
from rlhf_lab.store.run_metrics import metric_series

BUDGET = {"kl_budget": 4.0, "beta": 0.1, "steps": 6, "checkpoint_every": 2}


def curve_of(lab, run_id, name):
    return [value for _, value in metric_series(lab.db, run_id, [name], max_points=100)[name]]


def newest_state_file(lab, run_id):
    run_folder = lab.folder / "runs" / str(run_id)
    return checkpoint_folder(run_folder, checkpoint_steps(run_folder)[-1]) / STATE_FILE


def as_version_0_2_0_wrote_it(lab, run_id, **numbers):
    """Turn the run's newest checkpoint into one without a record of what was set by hand; numbers: changed ones."""
    path = newest_state_file(lab, run_id)
    state = json.loads(path.read_text())
    del state["numbers"]["set_by_hand"]
    state["numbers"] |= numbers
    path.write_text(json.dumps(state))


def stopped_after(lab, at, step, before=(), **config):
    """A run stopped in the step after `step`, with values set in step 1 of it."""
    run_id = lab.run(**BUDGET | config)
    at(1, lambda: [run_control.set_live_setting(lab.db, run_id, *change) for change in before])
    at(step, lambda: run_control.stop(lab.db, run_id))
    lab.train(run_id)
    return run_id


def test_values_set_by_hand_survive_a_stop_and_are_handed_back(lab, at):
    run_id = stopped_after(lab, at, 3, before=[("beta", 0.5), ("lr", 2e-4)])
    at(4, lambda: run_control.set_live_setting(lab.db, run_id, "beta", "automatic"))
    assert lab.train(run_id).status is JobStatus.DONE
    betas, rates = curve_of(lab, run_id, "objective/kl_coef"), curve_of(lab, run_id, "lr")
    assert betas[2:5] == [0.5] * 3
    assert 0.0 <= betas[5] < 0.1  # of a base of 0.1, far below the budget
    assert rates[2:] == [2e-4] * 4


def test_a_run_of_version_0_2_0_keeps_the_beta_that_was_set(lab, at):
    """There the setter had made the base of the controller 10⁶ times as large."""
    run_id = stopped_after(lab, at, 3, before=[("beta", 0.5)])
    as_version_0_2_0_wrote_it(lab, run_id, kl_budget=[5e5, 0.04], beta=0.5)
    at(4, lambda: run_control.set_live_setting(lab.db, run_id, "beta", "automatic"))
    assert lab.train(run_id).status is JobStatus.DONE
    betas = curve_of(lab, run_id, "objective/kl_coef")
    assert betas[2:5] == [0.5] * 3
    assert 0.0 <= betas[5] < 0.1
    assert json.loads(newest_state_file(lab, run_id).read_text())["numbers"]["kl_budget"][0] == 0.1


@pytest.mark.parametrize("before", [(), [("lr", 2e-4)]])
def test_a_run_of_version_0_2_0_in_which_nobody_set_beta_goes_on_unchanged(lab, at, before):
    """An lr that was set went on being adapted there, and does so still."""
    run_id = stopped_after(lab, at, 3, before=before)
    lr = {"lr": 1.7e-4} if before else {}
    as_version_0_2_0_wrote_it(lab, run_id, **lr)
    assert lab.train(run_id).status is JobStatus.DONE
    if not before:
        plain = lab.run(**BUDGET)
        lab.train(plain)
        assert lab.curve(run_id) == lab.curve(plain)
    else:
        assert curve_of(lab, run_id, "lr")[3:] != [2e-4] * 3
