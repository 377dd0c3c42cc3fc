"""The best checkpoint of a run with a KL budget: where it is recorded, named and exported."""

import pytest

from rlhf_lab.common.enums import EventKind, JobKind
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters.adapter_zip import BEST, export_adapter
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import add_event, get_run, mark_event_applied


def test_the_best_checkpoint_can_be_named_and_exported(lab, tmp_path):
    """A run with a KL budget names its best checkpoint; a run without a budget has none."""
    run_id, without = lab.run(lr=1e-3, steps=2, checkpoint_every=1, kl_budget=50.0), lab.run(lr=1e-3, steps=1)
    for each in (run_id, without):
        lab.train(each)
    metrics = metric_series(lab.db, run_id, ["eval/best_step", "eval/kl"])
    best = int(metrics["eval/best_step"][-1][1])
    assert [step for step, _ in metrics["eval/kl"]] == [1, 2]

    def complete(name):
        return lab.do(lab.submit(JobKind.COMPLETE, prompts=["the cat"], max_new_tokens=8, checkpoint=name))

    assert complete(f"run/{run_id}/best").result["checkpoint"] == f"run/{run_id}/{best}"
    assert f"run {without} has no best checkpoint" in complete(f"run/{without}/best").error
    exported = export_adapter(lab.db, lab.folder, run_id, tmp_path / "out", step=BEST)
    assert exported.name == f"run-{run_id}-step-{best:06d}.zip"
    with pytest.raises(StoreError, match=f"Run {without} has no best checkpoint"):
        export_adapter(lab.db, lab.folder, without, tmp_path / "none", step=BEST)


def test_an_interrupted_run_goes_on_with_its_unit_and_its_best_checkpoint(lab):
    """A resume repeats the switch to another reward model and keeps what was measured after it. Each process repeats it itself:
    sent again by the main one, it would reset what the others have loaded."""
    run_id = lab.run(lr=1e-3, steps=2, checkpoint_every=1, kl_budget=50.0)
    lab.train(run_id)
    switch = add_event(
        lab.db, run_id, EventKind.SWITCH_REWARD, {"reward_model_id": get_run(lab.db, run_id).reward_model_id}
    )
    mark_event_applied(lab.db, switch.id, 1)
    run = PolicyRun(lab.worker.model_cache, run_id)
    assert run._applied_events == []
    state = run.trainer.state
    assert state.steps_done == 2
    assert state.kl_control.score_unit is not None
    assert state.kl_control.best is not None
