"""Odd values in every field of every request, as they arrive over HTTP: a reply or a sentence, never an unexpected error."""

import functools
import json
import random
from types import SimpleNamespace

import fake_runs
import pytest
from fake_runs import a_run, step
from gradio.context import LocalContext
from pydantic import TypeAdapter, ValidationError

from rlhf_lab.common.records import Role
from rlhf_lab.config.demo import DemoConfig
from rlhf_lab.errors import LabError
from rlhf_lab.store.annotators import add_person
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.page import APIS
from rlhf_lab.ui.request_checks import BadRequestError, parse_json
from rlhf_lab.ui.shared.api import MAX_TEXT_CHARS, UNUSABLE_REQUEST_MESSAGE, Requests, parse_payload

ODD = (
    None, True, 0, -1, 1, 2, 2**63 - 1, -(2**63) + 1, 1e308, 5e-324, "", "x", "1", "-1", "\ud800", "a\0b", "é" * 300,
    "x" * 100_000, "http://[",
    "/etc/passwd", "../../etc/passwd", "/" * 5000, "~nobody-of-this-name", "a\nb", "\u202e", "%s%n{x}", "<b>", "run/1/latest",
    f"run/{9**30}/latest", "base", "embedded", "2026-01-01", [], [None], ["x"], [1, 2], [2**62], ["base", "base"], [[[]]],
    [{"prompt": 1}], [{"path": "/etc/passwd"}], {}, {"a": 1}, {"x": {"y": [1]}}, {"seed": -1}, {"total_steps": "x"}, {"1": None},
)  # fmt: skip
#: What a field is given while another one is odd: the first that it accepts.
ORDINARY = ("x", 1, [], {}, True, None, ["x"], {"a": 1}, "left")
SAMPLE_SIZE = 600


@pytest.fixture(params=["operator", "labeller", "viewer"])
def requests(request, ctx, monkeypatch):
    """The requests of all screens, of a lab with runs and a reward model and without a Hub: on a laptop by its operator, in demo
    mode by others."""

    def offline(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", offline)
    monkeypatch.setattr("rlhf_lab.jobs.engine_process.stop_engine", lambda *arguments, **options: None)
    complete = functools.partial(fake_runs.reward_model, accuracy_low=0.7, accuracy_high=0.9)
    monkeypatch.setattr(fake_runs, "reward_model", complete)
    run = a_run(ctx, steps=3)
    for at in range(3):
        step(ctx, run, at)
    a_run(ctx, name="b")
    if request.param == "operator":
        yield Requests(ctx, APIS)
        return
    lab = ctx.as_multi_user(open_to_all=False).with_demo(DemoConfig())
    cookie = lab.access.cookie_value(Visitor(Role.LABELLER, add_person(ctx.db, "Ann").name))
    cookies = {lab.access.login_cookie_name: cookie} if request.param == "labeller" else {}
    visit = SimpleNamespace(cookies=cookies, headers={"host": "lab.example"}, client=SimpleNamespace(host="10.1.1.1"))
    token = LocalContext.request.set(visit)
    yield Requests(lab, APIS)
    LocalContext.request.reset(token)


def ordinary(field):
    for value in ORDINARY:
        try:
            TypeAdapter(field.annotation).validate_python(value)
        except ValidationError:
            continue
        return value
    return None


def cases(requests):
    for path, endpoint in sorted(requests.endpoints.items()):
        fields = endpoint.payload.model_fields
        defaults = {name: ordinary(field) for name, field in fields.items() if field.is_required()}
        yield path, defaults
        yield from ((path, {**defaults, name: value}) for name in fields for value in ODD)
        yield from ((path, dict.fromkeys(fields, value)) for value in ODD)


def check(requests, some_cases):
    for path, payload in some_cases:
        try:
            data = parse_json(json.dumps(payload).encode())
        except BadRequestError:
            continue
        answer = json.loads(requests.answer(requests.endpoints[path], data))
        assert set(answer) <= {"reply", "revision", "error", "field"}, (path, payload)
        if requests.ctx.access.is_multi_user:
            assert str(requests.ctx.home) not in json.dumps(answer), (path, str(payload)[:500])
        assert answer.get("error") != UNUSABLE_REQUEST_MESSAGE, (path, str(payload)[:500])


LONG = "x" * (MAX_TEXT_CHARS + 1)
TOO_LONG = (LONG, [LONG], {LONG: 1}, {"a": LONG}, [{"role": "user", "content": LONG}], [[LONG]], {"x": {"y": LONG}})


@pytest.mark.parametrize("requests", ["operator"], indirect=True)
def test_no_message_repeats_a_text_of_any_length(requests):
    """Not those of the log either: no handler gets a text that is longer than its field allows."""
    count = 0
    for path, endpoint in sorted(requests.endpoints.items()):
        fields = endpoint.payload.model_fields
        defaults = {name: ordinary(field) for name, field in fields.items() if field.is_required()}
        for name in fields:
            for value in TOO_LONG:
                message = refusal(endpoint, {**defaults, name: value})
                assert 0 < len(message) < 300, (path, name, message[:300])
                count += "has more than" in message
            assert len(refusal(endpoint, {**defaults, name: "9" * 100_000})) < 300, (path, name)
    assert count > 100


def refusal(endpoint, data):
    """Why data are refused before the handler gets them; "" if they are not."""
    try:
        parse_payload(endpoint.payload, data)
    except LabError as error:
        return str(error)
    return ""


def test_a_sample_of_odd_requests(requests):
    check(requests, random.Random(57).sample(list(cases(requests)), SAMPLE_SIZE))


@pytest.mark.slow
def test_all_odd_requests(requests):
    check(requests, cases(requests))
