"""Texts and explanations belong to the person who requested them; texts of a blind test are hidden before they are judged."""

import shutil
from types import SimpleNamespace

import pytest
from fake_runs import run_with_checkpoint
from gradio.context import LocalContext

from rlhf_lab.common.enums import JobKind, JobStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Role
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.compare import api as compare
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.shared import generation_requests
from rlhf_lab.ui.shared.api import parse_payload

SAMPLING = {"models": ["base"], "seed": 7, "temperature": 1, "max_new_tokens": 8, "reward_model_id": ""}
NOT_YOURS = "belongs to somebody else"


@pytest.fixture
def ctx(tmp_path, project_home, monkeypatch):
    """A multi-user lab with the labellers Ann and Bob and reward model 1."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: None)
    with Database.open(shutil.copytree(project_home, tmp_path, dirs_exist_ok=True)) as db:
        project = current_project(db)
        add_person(db, "Ann")
        add_person(db, "Bob")
        snapshot = LabelSnapshot((), "", Source.HUMAN)
        add_reward_model(db, project.id, "x", config={}, report={}, snapshot=snapshot)
        yield Context(tmp_path, db).as_multi_user(open_to_all=False)


@pytest.fixture
def act_as(ctx):
    """act_as(name): from now on that person sends the requests; "" is a viewer, "operator" the operator."""
    tokens = []

    def become(name):
        role = Role.OPERATOR if name == "operator" else Role.LABELLER
        cookies = {ctx.access.login_cookie_name: ctx.access.cookie_value(Visitor(role, name))} if name else {}
        request = SimpleNamespace(cookies=cookies, headers={"host": "lab.example"})
        tokens.append(LocalContext.request.set(request))

    yield become
    for token in reversed(tokens):
        LocalContext.request.reset(token)


@pytest.fixture
def screen(ctx, calls):
    return calls(compare, ctx)


def request_texts(screen):
    return screen.sample({"prompt": "Once", "samples": 1} | SAMPLING)["jobs"]


def finish(ctx, job_id, texts):
    queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
    queue.finish(ctx.db, job_id, {"texts": texts})


def test_the_requester_reads_their_texts_and_nobody_else_does(ctx, screen, act_as):
    act_as("Ann")
    job_ids = request_texts(screen)
    finish(ctx, job_ids[0], ["Ann's text"])
    assert screen.completions({"jobs": job_ids})["columns"][0]["texts"] == ["Ann's text"]
    for name in ("Bob", "operator", ""):
        act_as(name)
        (column,) = screen.completions({"jobs": job_ids, "annotator": "Ann"})["columns"]
        assert set(column) == {"is_waiting", "error"}
        assert not column["is_waiting"]
        assert NOT_YOURS in column["error"]


def test_a_missing_job_and_another_persons_job_get_the_same_answer(screen, act_as):
    act_as("Ann")
    job_ids = request_texts(screen)
    act_as("Bob")
    assert screen.completions({"jobs": job_ids}) == screen.completions({"jobs": [9999]})


def test_the_requester_cancels_their_texts_and_nobody_else_does(ctx, screen, act_as):
    act_as("Ann")
    (job_id,) = request_texts(screen)
    act_as("Bob")
    assert NOT_YOURS in screen.cancel({"jobs": [job_id], "annotator": "Ann"})["error"]
    assert queue.get_job(ctx.db, job_id).status is JobStatus.QUEUED
    act_as("Ann")
    assert screen.cancel({"jobs": [job_id]}) is None
    assert queue.get_job(ctx.db, job_id).status is JobStatus.CANCELLED


def test_nothing_is_cancelled_if_one_of_the_jobs_is_another_persons(ctx, screen, act_as):
    act_as("Ann")
    (annas,) = request_texts(screen)
    act_as("Bob")
    (bobs,) = request_texts(screen)
    assert NOT_YOURS in screen.cancel({"jobs": [bobs, annas]})["error"]
    assert queue.get_job(ctx.db, bobs).status is JobStatus.QUEUED


def test_blind_test_texts_are_neither_read_nor_cancelled_by_job_number(ctx, screen, act_as):
    run_with_checkpoint(ctx, 40)
    request = SAMPLING | {"models": ["base", "run/1/40"], "pairs": 1}
    act_as("operator")
    test = blind_test.start_test(ctx, parse_payload(blind_test.StartTestPayload, request))
    finish(ctx, test.first_job, ["a"])
    for name in ("operator", "Ann", ""):
        act_as(name)
        for job_id in (test.first_job, test.second_job):
            assert NOT_YOURS in screen.completions({"jobs": [job_id]})["columns"][0]["error"]
            assert (NOT_YOURS if name else "only view this lab") in screen.cancel({"jobs": [job_id]})["error"]
    assert queue.get_job(ctx.db, test.second_job).status is JobStatus.QUEUED


def test_jobs_without_a_requester_are_nobodys(ctx, screen, act_as):
    """Those of the command line and of earlier versions."""
    job = queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, {"prompts": ["p"], "checkpoint": "base"})
    for name in ("operator", "Ann", ""):
        act_as(name)
        assert NOT_YOURS in screen.completions({"jobs": [job.id]})["columns"][0]["error"]


def test_an_explanation_is_read_by_its_requester_alone(ctx, calls, act_as):
    screen = calls(reward, ctx)
    act_as("Ann")
    job_id = screen.explain({"model": 1, "prompt": "p", "text": "Ann's secret"})["job"]
    assert screen.explanation({"job": job_id}) == {"is_waiting": True, "running": False}
    for name in ("Bob", "operator", ""):
        act_as(name)
        reply = screen.explanation({"job": job_id, "annotator": "Ann"})
        assert set(reply) == {"is_waiting", "failure"}
        assert not reply["is_waiting"]
        assert NOT_YOURS in reply["failure"]
    assert screen.explanation({"job": job_id}) == screen.explanation({"job": 9999})


def test_erasing_a_person_removes_their_name_from_unfinished_jobs(ctx, screen, act_as):
    act_as("Ann")
    (job_id,) = request_texts(screen)
    erase_person_rows(ctx.db, "Ann", votes=False)
    assert "Ann" not in str(queue.get_job(ctx.db, job_id).payload)
    with pytest.raises(LabError):
        generation_requests.own_job(ctx, job_id, JobKind.COMPLETE, "Ann")
