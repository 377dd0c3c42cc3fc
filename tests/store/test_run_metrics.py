import dataclasses
import math

import pytest
from sqlalchemy import insert

from rlhf_lab.common.enums import EventKind, Source
from rlhf_lab.common.records import LabelSnapshot, Project, Sample, StepResult, TokenRecord
from rlhf_lab.store import reward_models, run_metrics, runs
from rlhf_lab.store.database import Database
from rlhf_lab.store.tables import metrics

TOKENS = TokenRecord(
    row=3,
    prompt="Once",
    token_ids=[7, 0],
    tokens=["Ġupon", "</s>"],
    logprob=[-0.1, -2.5],
    old_logprob=[-0.1, -2.0],
    ref_logprob=[-0.3, -1.0],
    kl=[0.2, -1.5],
    value=[0.0, 0.1],
    reward=[-0.02, 1.15],
    advantage=[1.0, -1.0],
    ratio=[1.0, 0.6065306597126334],
    clipped=[False, True],
)
SAMPLE = Sample("Far", 11, "away ${x}\n", 0.75, gold=2.0, cut=64)


@pytest.fixture
def run_id(db: Database, project: Project) -> int:
    snapshot = LabelSnapshot((), "", Source.HUMAN)
    reward_model = reward_models.add_reward_model(db, project.id, "rm", config={}, report={}, snapshot=snapshot)
    make = {"config": {}, "manifest": {}, "total_steps": 9}
    runs.create_run(db, project.id, reward_model.id, "other", **make)
    return runs.create_run(db, project.id, reward_model.id, "run", **make).id


def test_a_step_comes_back_whole(db: Database, run_id: int) -> None:
    second = dataclasses.replace(TOKENS, row=9, clipped=[True, True])
    judged = Sample("Far", 12, "", -1.0)
    run_metrics.record_step(
        db, run_id, StepResult(4, {"objective/kl": 0.1, "b": 2.0}, [TOKENS, second], [SAMPLE, judged])
    )
    assert run_metrics.metrics_since(db, run_id, 3) == [(4, {"objective/kl": 0.1, "b": 2.0})]
    assert run_metrics.token_records_at(db, run_id, 4) == [TOKENS, second]
    assert run_metrics.samples_at(db, run_id, 4) == [SAMPLE, judged]
    assert runs.get_run(db, run_id).step == 4
    for step in (3, 5):
        assert run_metrics.token_records_at(db, run_id, step) == []
        assert run_metrics.samples_at(db, run_id, step) == []
    assert run_metrics.metrics_since(db, run_id - 1, -1) == []
    assert run_metrics.sample_steps(db, run_id - 1) == []


def test_the_names_of_a_runs_metrics_are_those_of_its_first_and_newest_step(db: Database, run_id: int) -> None:
    for step, names in ((1, "cb"), (2, "d"), (10, "ab")):
        run_metrics.record_step(db, run_id, StepResult(step, dict.fromkeys(names, 0.5)))
    assert run_metrics.metric_names(db, run_id) == ["a", "b", "c"]
    assert run_metrics.metric_names(db, run_id - 1) == []


def test_metrics_after_a_step(db: Database, run_id: int) -> None:
    for step in (0, 1, 2, 10):
        run_metrics.record_step(db, run_id, StepResult(step, {"a": step / 2}))
    assert run_metrics.metrics_since(db, run_id, -1) == [
        (0, {"a": 0.0}),
        (1, {"a": 0.5}),
        (2, {"a": 1.0}),
        (10, {"a": 5.0}),
    ]
    assert run_metrics.metrics_since(db, run_id, 1) == [(2, {"a": 1.0}), (10, {"a": 5.0})]
    assert run_metrics.metrics_since(db, run_id, 10) == []
    assert run_metrics.metric_series(db, run_id, ["a", "none"], after_step=1) == {
        "a": [(2, 1.0), (10, 5.0)],
        "none": [],
    }


def test_a_step_recorded_again_replaces_its_rows(db: Database, run_id: int) -> None:
    run_metrics.record_step(db, run_id, StepResult(1, {"a": 1.0}, [TOKENS], [SAMPLE]))
    run_metrics.record_step(db, run_id, StepResult(2, {"a": 2.0, "gone": 1.0}, [TOKENS, TOKENS], [SAMPLE, SAMPLE]))
    repeated = dataclasses.replace(SAMPLE, text="another")
    for _ in range(2):
        run_metrics.record_step(db, run_id, StepResult(2, {"a": 3.0}, [TOKENS], [repeated]))
    assert run_metrics.metrics_since(db, run_id, 0) == [(1, {"a": 1.0}), (2, {"a": 3.0})]
    assert len(run_metrics.token_records_at(db, run_id, 2)) == 1
    assert run_metrics.samples_at(db, run_id, 1) == [SAMPLE]
    assert run_metrics.samples_at(db, run_id, 2) == [repeated]


def test_a_step_that_cannot_be_stored_leaves_the_old_one(db: Database, run_id: int) -> None:
    run_metrics.record_step(db, run_id, StepResult(1, {"a": 1.0}, [TOKENS], [SAMPLE]))
    broken = dataclasses.replace(TOKENS, tokens=[object()])
    with pytest.raises(Exception, match="object"):
        run_metrics.record_step(db, run_id, StepResult(2, {"a": 2.0}, [broken]))
    with pytest.raises(Exception, match="object"):
        run_metrics.record_step(db, run_id, StepResult(1, {"a": 2.0}, [broken]))
    assert run_metrics.metrics_since(db, run_id, -1) == [(1, {"a": 1.0})]
    assert run_metrics.token_records_at(db, run_id, 1) == [TOKENS]
    assert run_metrics.samples_at(db, run_id, 1) == [SAMPLE]
    assert runs.get_run(db, run_id).step == 1


def test_deleting_later_steps_keeps_events(db: Database, run_id: int) -> None:
    for each in (run_id - 1, run_id):
        for step in range(5):
            run_metrics.record_step(db, each, StepResult(step, {"a": 1.0}, [TOKENS], [SAMPLE]))
    event = runs.add_event(db, run_id, EventKind.SET, {"lr": 1.0})
    runs.mark_event_applied(db, event.id, 4)
    run_metrics.delete_steps_after(db, run_id, 2)
    assert [step for step, _ in run_metrics.metrics_since(db, run_id, -1)] == [0, 1, 2]
    assert run_metrics.sample_steps(db, run_id) == [0, 1, 2]
    assert run_metrics.token_records_at(db, run_id, 2) == [TOKENS]
    assert run_metrics.token_records_at(db, run_id, 3) == []
    assert runs.get_run(db, run_id).step == 2
    assert [event.applied_step for event in runs.events(db, run_id)] == [4]
    assert run_metrics.sample_steps(db, run_id - 1) == [0, 1, 2, 3, 4]


def test_nan_and_infinity_are_stored(db: Database, run_id: int) -> None:
    numbers = {"nan": math.nan, "inf": math.inf, "minus": -math.inf, "tiny": 5e-324, "third": 1 / 3}
    nan_row = dataclasses.replace(TOKENS, kl=[math.nan, math.inf])
    run_metrics.record_step(db, run_id, StepResult(1, numbers, [nan_row], [Sample("p", 1, "t", math.nan)]))
    ((_, result),) = run_metrics.metrics_since(db, run_id, 0)
    assert math.isnan(result.pop("nan"))
    assert result == {"inf": math.inf, "minus": -math.inf, "tiny": 5e-324, "third": 1 / 3}
    assert math.isnan(run_metrics.metric_series(db, run_id, ["nan"])["nan"][0][1])
    (record,) = run_metrics.token_records_at(db, run_id, 1)
    assert math.isnan(record.kl[0])
    assert record.kl[1] == math.inf
    (sample,) = run_metrics.samples_at(db, run_id, 1)
    assert math.isnan(sample.score)
    assert sample.gold is None


def test_thinning_keeps_peaks_and_the_end_of_a_long_curve(db: Database, run_id: int) -> None:
    values = [math.sin(step / 50) for step in range(5000)]
    values[1234], values[3333], values[2000] = 50.0, -50.0, math.nan
    with db.write() as conn:
        rows = [{"run_id": run_id, "name": "a", "step": step, "value": value} for step, value in enumerate(values)]
        conn.execute(insert(metrics), rows)
    thinned = run_metrics.metric_series(db, run_id, ["a"], max_points=100)["a"]
    assert 90 <= len(thinned) <= 100
    assert [step for step, _ in thinned] == sorted({step for step, _ in thinned})
    assert all(values[step] == value for step, value in thinned)
    assert {(1234, 50.0), (3333, -50.0)} <= set(thinned)
    assert (thinned[0][0], thinned[-1][0]) == (0, 4999)
    assert len(run_metrics.metric_series(db, run_id, ["a"])["a"]) <= 1000
