"""No request says anything about a run of another project: the answer is that for a run that does not exist."""

import json

import pytest
from fake_runs import KL, SCORE, a_run

from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.records import Sample, StepResult
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.projects import open_project
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import get_run, set_run_status
from rlhf_lab.ui.page import APIS
from rlhf_lab.ui.shared.api import Requests

ENDPOINTS = {
    endpoint.path: endpoint
    for api in APIS
    for endpoint in api.endpoints.values()
    if {"run", "runs"} & set(endpoint.payload.model_fields)
}
#: Fields that these requests need beside the run.
MORE = {
    "step": 1, "metric": KL, "name": "new", "action": "stop", "kind": "run", "source": "all",
}  # fmt: skip
NOWHERE = 99


def test_the_requests_about_runs_are_known():
    """A request with a field of another name would not be walked."""
    others = {
        name
        for api in APIS
        for endpoint in api.endpoints.values()
        for name in endpoint.payload.model_fields
        if "run" in name.split("_") or "runs" in name.split("_")
    }
    assert others == {"run", "runs", "run_name"}  # run_name: of one that is imported
    reads = {path for path, endpoint in ENDPOINTS.items() if endpoint.is_read}
    assert reads >= {"train/samples", "train/tokens", "train/metric_points", "train/points", "share/replay"}


@pytest.fixture
def run(ctx):
    """A finished run of a project that is not open, and a run of the one that is."""
    there = a_run(ctx)
    folder = ctx.home / "runs" / str(there.id) / "step-000001"
    folder.mkdir(parents=True)
    record_step(ctx.db, there.id, StepResult(0, {}, samples=[Sample("p", 1, "secret", 0.0)]))
    record_step(ctx.db, there.id, StepResult(1, {KL: 7.5, SCORE: 8.5}, samples=[Sample("p", 1, "secret", 0.5)]))
    set_run_status(ctx.db, there.id, RunStatus.STOPPED)
    open_project(ctx.db, new_project(ctx.db, custom_prompts={"Hi": "train"}, prompt_set="own").id)
    a_run(ctx)
    return there


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_run_of_another_project_is_none(ctx, run, path):
    endpoint = ENDPOINTS[path]
    name = "run" if "run" in endpoint.payload.model_fields else "runs"

    def answer(run_id):
        raw = Requests(ctx, APIS).answer(endpoint, MORE | {name: run_id if name == "run" else [run_id]}).decode()
        reply = json.loads(raw.replace(f"un {run_id}", "un N").replace(f'"run": {run_id}', '"run": N'))
        return {key: value for key, value in reply.items() if key != "revision"}

    first = answer(run.id)
    assert "secret" not in json.dumps(first)
    without_times = [json.loads(json.dumps(one), parse_float=lambda _: "number") for one in (first, answer(NOWHERE))]
    assert without_times[0] == without_times[1]
    assert get_run(ctx.db, run.id).name == run.name
    assert get_run(ctx.db, run.id).status is RunStatus.STOPPED
