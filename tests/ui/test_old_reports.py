"""Reports of reward models that earlier versions wrote: every screen still answers."""

import json
import math

import pytest
from fake_runs import a_run

from rlhf_lab.store import tables as t
from rlhf_lab.store.reward_model_list import accuracy_of
from rlhf_lab.ui.page import APIS
from rlhf_lab.ui.shared.api import UNUSABLE_REQUEST_MESSAGE, Requests

READS = {endpoint.path: endpoint for api in APIS for endpoint in api.endpoints.values() if endpoint.is_read}
REPORTS = [
    {},
    {"accuracy": None},
    {"accuracy": 0.75},
    {"accuracy": math.nan, "accuracy_low": math.nan, "accuracy_high": math.nan},
    {"accuracy": 0.75, "accuracy_low": None, "accuracy_high": None, "weights": None, "disagreements": None},
]


@pytest.mark.parametrize("report", REPORTS, ids=json.dumps)
def test_every_read_answers_with_a_report_of_an_old_home(ctx, report):
    run = a_run(ctx)
    with ctx.db.write() as conn:
        conn.execute(t.reward_models.update().values(report=report))
    requests, values = Requests(ctx, APIS), {"model": run.reward_model_id, "run": run.id, "runs": [run.id], "step": 0}
    failed = []
    for path, endpoint in READS.items():
        payload = {name: values[name] for name in endpoint.payload.model_fields if name in values}
        answer = requests.answer(endpoint, payload).decode()
        if UNUSABLE_REQUEST_MESSAGE in answer or "NaN" in answer:
            failed.append(path)
    assert failed == []


def test_an_accuracy_that_was_not_measured_is_none():
    assert [tuple(accuracy_of(report)) for report in REPORTS] == [
        (None, None, None), (None, None, None), (0.75, None, None), (None, None, None), (0.75, None, None),
    ]  # fmt: skip
