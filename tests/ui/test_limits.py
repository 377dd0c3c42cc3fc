"""Every act of a visitor has a limit for the visitor and for their address, in one table."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import REQUESTER_KEY, Role, Vote
from rlhf_lab.config.demo import DemoConfig
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabError, NotAllowedError
from rlhf_lab.jobs import engine_process, queue, scheduler
from rlhf_lab.jobs.scheduler import Scheduler
from rlhf_lab.store import pair_leases
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.pair_leases import count_active_annotators, end_leases, lease_next, lease_pair
from rlhf_lab.store.pair_selection import running_leases
from rlhf_lab.ui import limits
from rlhf_lab.ui.auth import api_clients
from rlhf_lab.ui.auth.api_clients import ApiClients
from rlhf_lab.ui.auth.oauth import OAuthProvider, oauth_routes
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.chat import api as chat
from rlhf_lab.ui.context import OPERATOR_HEADER, Context
from rlhf_lab.ui.initial_html import leave, page_routes
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.limits import API_FOLDER, LIMITS, Limit, RequestLimiter, act_of_path
from rlhf_lab.ui.page import APIS, auth_routes, build_page, count_act, launch_options, wait_text
from rlhf_lab.ui.request_checks import BadRequestError, RequestChecks, check_call
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.api import Requests, act_limits
from rlhf_lab.ui.shared.generation_requests import MAX_JOBS_OF_ADDRESS, MAX_JOBS_OF_VISITOR, submit_short_jobs

CLASS_SIZE = 30


@pytest.fixture
def shared(ctx):
    return ctx.as_multi_user(open_to_all=True).with_demo(DemoConfig())


def test_every_act_that_a_visitor_can_trigger_has_a_row(shared):
    async def build():
        return build_page(shared)

    page = asyncio.run(build())
    events = {event.fn.__name__ for event in page.fns.values() if event.fn is not None}
    assert events <= LIMITS.keys()
    routes = launch_options(shared)["app_kwargs"]["routes"]
    assert {type(route) for route in routes} == {Route}
    requests = Requests(shared, APIS)
    page_acts = {act_of_path("POST", f"{API_FOLDER}/{path}") for path in requests.endpoints}
    assert {requests.act(act) for act in page_acts} <= act_limits(APIS).keys()
    routes = [route for route in routes if not route.path.startswith(API_FOLDER)]
    provider = OAuthProvider("https://hub.example", "id", "hush", "openid", "lab.example", frozenset())
    sign_in = oauth_routes(shared.db, shared.access, provider)
    for route in [*routes, *page_routes(shared), *auth_routes(shared.db, shared.access), *sign_in]:
        for method in route.methods:
            assert act_of_path(method, route.path) in LIMITS.keys() - {"other"}, (method, route.path)
    scope = {"app": SimpleNamespace(blocks=page)}
    for event in filter(lambda event: event.fn is not None, page.fns.values()):
        scope["path"] = f"/gradio_api/run/{event.api_name}"
        assert check_call(scope, {"data": [None] * len(event.inputs)}) == event.fn.__name__


def test_times_to_wait_are_in_words():
    seconds = (1, 59, 99, 100, 119, 7199, 7200, 21_600, 21_601)
    texts = [
        "1 second",
        "59 seconds",
        "99 seconds",
        "2 minutes",
        "2 minutes",
        "120 minutes",
        "2 hours",
        "6 hours",
        "7 hours",
    ]
    assert list(map(wait_text, seconds)) == texts


def test_a_class_behind_one_address_has_room():
    for act, limit in LIMITS.items():
        assert 0 < limit.visitor < limit.address, act
        assert limit.address >= 10 * limit.visitor, act
    assert (
        min({**LIMITS, **act_limits(APIS)}[act].address for act in ("POST /join", "label/vote", "chat/ask"))
        >= 10 * CLASS_SIZE
    )


@pytest.mark.parametrize("path", ["/x", "/gradio_api/run/vote", "/api/none", "/JOIN", "/joined", "/api/next_pair/x"])
def test_unknown_paths_share_one_row(path):
    """Otherwise each of them would have a counter of its own."""
    assert act_of_path("GET", path) == "other"


def test_visitors_and_addresses_are_counted_apart_and_periods_end(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    limiter = RequestLimiter({"a": Limit(2, 5, 60.0), "other": Limit(1, 1, 10.0)})
    assert [limiter.wait_s("a", "ann", "1.1.1.1") for _ in range(3)] == [0, 0, 60]
    now[0] += 20
    assert [limiter.wait_s("a", "bob", "1.1.1.1") for _ in range(3)] == [0, 0, 60]
    assert [limiter.wait_s("a", "", "1.1.1.1") for _ in range(2)] == [0, 40]  # those that were refused did not count
    assert limiter.wait_s("a", "", "2.2.2.2") == 0
    assert [limiter.wait_s(act, "", "3.3.3.3") for act in ("x", "y")] == [0, 10]  # acts without a row share one
    now[0] += 40
    assert limiter.wait_s("a", "ann", "1.1.1.1") == 0


def test_invented_paths_and_a_wrong_secret_give_nobody_further_requests(shared):
    """Each path that the page's requests do not have counts as the same act, and a request with a wrong secret also as itself."""
    limiter, requests = RequestLimiter({**LIMITS, **act_limits(APIS)}), Requests(shared, APIS)

    def is_counted(path, **headers):
        request = SimpleNamespace(cookies={}, headers=headers, client=SimpleNamespace(host="1.1.1.1"))
        try:
            count_act(shared, limiter, request, requests.act(act_of_path("POST", f"{API_FOLDER}/{path}")))
        except BadRequestError:
            return False
        return True

    assert sum(is_counted(f"shop/{i}") for i in range(20_100)) == LIMITS["other"].address
    assert {act for act, _, _ in limiter._counts} == {"other"}
    ask_limit = act_limits(APIS)["chat/ask"].address
    assert sum(is_counted("chat/ask") for _ in range(ask_limit + 5)) == ask_limit
    assert not is_counted("chat/ask", **{OPERATOR_HEADER: "guess"})


def test_memory_of_the_counters_is_bounded(monkeypatch):
    monkeypatch.setattr(limits, "MAX_COUNTERS", 100)
    limiter = RequestLimiter()
    for i in range(1000):
        limiter.wait_s("vote", f"visitor-{i}", f"10.0.{i // 250}.{i % 250}")
    assert len(limiter._counts) <= 102


def test_requests_above_a_limit_get_429_and_the_operator_has_none(shared):
    """Through the middleware, with the visitors of a lab."""

    async def reply(request):
        return JSONResponse({})

    limiter = RequestLimiter({"GET /join": Limit(2, 4, 60.0), "other": Limit(9, 9, 60.0)})
    count = Middleware(RequestChecks, count=lambda request, act: count_act(shared, limiter, request, act))
    app = Starlette(routes=[Route("/join", reply)], middleware=[count])

    def statuses(visitor, number):
        cookies = {shared.access.login_cookie_name: shared.access.cookie_value(visitor)} if visitor else {}
        web = TestClient(app, base_url="http://lab.example", cookies=cookies)
        answers = [web.get("/join") for _ in range(number)]
        assert all(0 < int(answer.headers["retry-after"]) <= 60 for answer in answers if answer.status_code == 429)
        return [answer.status_code for answer in answers]

    ann, bob = (Visitor(Role.LABELLER, add_person(shared.db, name).name) for name in ("Ann", "Bob"))
    assert statuses(ann, 3) == [200, 200, 429]
    assert statuses(bob, 1) == [200]
    assert statuses(None, 3) == [200, 429, 429]  # the address has been used up, too
    assert statuses(Visitor(Role.OPERATOR, "operator"), 20) == [200] * 20
    with pytest.raises(BadRequestError, match="seconds"):
        count_act(
            shared,
            limiter,
            SimpleNamespace(cookies={}, headers={}, client=SimpleNamespace(host="testclient")),
            "GET /join",
        )
    count_act(replace(shared, access=Context(shared.home, shared.db).access), limiter, None, "GET /join")  # a local lab


def test_one_visitor_and_one_address_cannot_take_all_places_of_the_queue(shared, monkeypatch):
    monkeypatch.setattr(engine_process, "ensure_engine", lambda *_: None)
    place = {"name": "", "address": ""}
    monkeypatch.setattr(Context, "client_address", lambda _: place["address"])

    def ask(name, address, count=1):
        place.update(name=name, address=address)
        payloads = [{REQUESTER_KEY: name} for _ in range(count)]
        return submit_short_jobs(shared, JobKind.CHAT, name, payloads)

    jobs = [ask("ann", "1.1.1.1", 2) for _ in range(MAX_JOBS_OF_VISITOR // 2)]
    with pytest.raises(LabError, match="Try again when they are written"):
        ask("ann", "9.9.9.9")
    for i in range(MAX_JOBS_OF_ADDRESS - MAX_JOBS_OF_VISITOR):
        ask(f"visitor-{i}", "1.1.1.1")
    with pytest.raises(LabError, match="per network"):
        ask("visitor-99", "1.1.1.1")
    assert ask("zoe", "2.2.2.2")  # others still have places
    queue.cancel(shared.db, jobs[0][0].id)
    assert ask("visitor-99", "1.1.1.1")
    assert chat.MAX_ANSWERS <= MAX_JOBS_OF_VISITOR


def test_parallel_requests_do_not_pass_the_limits_of_the_queue(shared, monkeypatch):
    """All that can count the queue before one of them has submitted do so."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda *_: None)
    address, count_jobs, counted = threading.local(), queue.jobs, threading.Barrier(30)
    monkeypatch.setattr(Context, "client_address", lambda _: address.now)

    def count(*args, **choice):
        jobs = count_jobs(*args, **choice)
        with contextlib.suppress(threading.BrokenBarrierError):
            counted.wait(timeout=0.5)
        return jobs

    def ask(name, sent_from):
        address.now = sent_from
        with contextlib.suppress(LabError):
            submit_short_jobs(shared, JobKind.CHAT, name, [{REQUESTER_KEY: name}])

    def ask_at_once(*visitors):
        counted.reset()
        with ThreadPoolExecutor(30) as pool:
            list(pool.map(ask, *zip(*visitors, strict=True)))
        return len(count_jobs(shared.db))

    before = len(count_jobs(shared.db))
    monkeypatch.setattr(queue, "jobs", count)
    assert ask_at_once(*[("ann", "1.1.1.1")] * 30) - before == 6
    assert ask_at_once(*[(f"visitor-{i}", "1.1.1.1") for i in range(30)]) - before == 18
    assert ask_at_once(*[(f"guest-{i}", f"2.2.2.{i}") for i in range(30)]) - before == 24
    queue.cancel(shared.db, count_jobs(shared.db)[0].id)
    address.now = "3.3.3.3"
    with pytest.raises(LabError, match="At most 24 texts"):
        submit_short_jobs(shared, JobKind.CHAT, "zoe", [{REQUESTER_KEY: "zoe"}] * 2)  # place for one


def test_an_address_has_a_limited_number_of_program_names(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(api_clients.time, "monotonic", lambda: now[0])
    clients = ApiClients()
    names = [f"tool number {'abcdefghij'[i // 10]} {'klmnopqrst'[i % 10]}" for i in range(100)]
    for i in range(40):
        clients.bind_name(names[i], ("session", f"{i}"), "1.1.1.1")
    with pytest.raises(NotAllowedError, match="already use 40 names"):
        clients.bind_name(names[40], ("session", "x"), "1.1.1.1")
    assert clients.bind_name(names[3], ("session", "3"), "1.1.1.1") == names[3]
    assert clients.bind_name(names[41], ("session", "y"), "2.2.2.2") == names[41]
    assert clients.bind_name(names[42], ("session", "z")) == names[42]  # the operator's program
    now[0] += 601
    assert clients.bind_name(names[40], ("session", "x"), "1.1.1.1") == names[40]


def test_an_address_holds_a_limited_number_of_pairs(ctx, monkeypatch):
    """Also if each page is another visitor, because it keeps no cookie."""
    now, place = [1000.0], {"name": "", "address": ""}
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Context, "client_address", lambda _: place["address"])
    monkeypatch.setattr(Context, "visitor", lambda *_: Visitor(Role.LABELLER, place["name"]))
    lab = ctx.as_multi_user(open_to_all=True)

    def open_page(name, address="1.1.1.1"):
        place.update(name=name, address=address)
        return label.state(lab, name)

    shown = [open_page(f"visitor {i}")["pair"] for i in range(2 * CLASS_SIZE)]
    assert sum(pair is not None for pair in shown) == 40
    assert "your network have 80 pairs" in open_page("another")["waiting_text"]
    assert open_page("visitor 0")["pair"] == shown[0]  # whoever has pairs keeps them
    assert open_page("another", "2.2.2.2")["pair"] is not None
    place.update(name="a program", address="1.1.1.1")
    with pytest.raises(NotAllowedError, match="your network"):
        voting.lease_pairs(lab, ctx.project.id, "a program", LabellingConfig(), prefetch=0)
    place.update(name="visitor 1")
    leave(lab, {})
    assert open_page("third")["pair"] is not None
    now[0] += LabellingConfig().hold_s + 1
    assert open_page("fourth")["pair"] is not None


def test_the_engine_writes_a_limited_number_of_pairs_ahead(ctx, monkeypatch):
    monkeypatch.setattr(scheduler, "count_active_annotators", lambda *_: 500)
    monkeypatch.setattr(scheduler, "fewest_free_pairs", lambda *_, **__: scheduler.MAX_PAIRS_AHEAD)
    monkeypatch.setattr(scheduler, "count_pairs_ahead", lambda *_, **__: scheduler.MAX_PAIRS_AHEAD)
    Scheduler(ctx.home, ctx.db)._replenish_pairs(ctx.project, set())
    assert queue.jobs(ctx.db, kinds=[JobKind.SAMPLE_PAIRS]) == []


def test_leased_pairs_count_as_written_ahead(ctx, monkeypatch):
    """Only a vote ends that, also a skip; the engine writes what is left of the limit."""
    ahead = pair_leases.count_pairs_ahead(ctx.db, ctx.project.id)
    first, _ = pair_leases.lease_pairs(ctx.db, ctx.project.id, "Ann")
    assert pair_leases.count_pairs_ahead(ctx.db, ctx.project.id) == ahead
    skip = Vote("x", first.pair.id, "Ann", Source.HUMAN, Choice.SKIP, True)
    pair_leases.vote_on_lease(ctx.db, skip)
    assert pair_leases.count_pairs_ahead(ctx.db, ctx.project.id) == ahead - 1
    monkeypatch.setattr(scheduler, "MAX_PAIRS_AHEAD", ahead + 2)
    monkeypatch.setattr(scheduler, "fewest_free_pairs", lambda *_, **__: 0)
    Scheduler(ctx.home, ctx.db)._replenish_pairs(ctx.project, set())
    (job,) = queue.jobs(ctx.db, kinds=[JobKind.SAMPLE_PAIRS])
    assert job.payload["count"] == 3
    pair_leases.undo_last_vote(ctx.db, ctx.project.id, "Ann")
    assert pair_leases.count_pairs_ahead(ctx.db, ctx.project.id) == ahead


def test_undoing_holds_no_further_pairs(ctx, monkeypatch):
    """A visitor answers four pairs and undoes all: they hold the two of a page. A pair given back is still theirs to answer."""
    monkeypatch.setattr(Context, "client_address", lambda _: "1.1.1.1")
    monkeypatch.setattr(Context, "visitor", lambda *_: Visitor(Role.LABELLER, "Ann"))
    lab, rules = ctx.as_multi_user(open_to_all=True), LabellingConfig()

    def held():
        with ctx.db.read() as conn:
            return sorted(pair_id for pair_id, _ in running_leases(conn, time.time()))

    for i in range(4):
        leases = voting.lease_pairs(lab, ctx.project.id, "Ann", rules, prefetch=1)
        pair_leases.vote_on_lease(ctx.db, Vote(f"{i}", leases[0].pair.id, "Ann", Source.HUMAN, Choice.TIE, True), rules)
    for _ in range(4):
        label.undo(lab, label.LabelPayload(annotator="Ann"))
        assert len(held()) <= 2
    assert len(held()) == 2
    assert leases[0].pair.id not in held()
    vote = Vote("again", leases[0].pair.id, "Ann", Source.HUMAN, Choice.TIE, True)
    assert pair_leases.vote_on_lease(ctx.db, vote, rules).choice is Choice.TIE
    lease_next(ctx.db, leases[1].pair.id, "Ann", rules)
    assert held() == [leases[1].pair.id]
    limiter = limits.LeaseLimiter()
    assert [limiter.may_hold(*ask, 60) for ask in (("a", "x", 1), ("b", "x", 79), ("a", "x", 2))] == [True, True, False]


def test_a_closed_page_gives_its_pair_back(ctx):
    rules, project = LabellingConfig(), ctx.project.id
    first = lease_pair(ctx.db, project, "Ann", rules)
    assert count_active_annotators(ctx.db, project) == 1
    (closed,) = [route for route in page_routes(ctx) if route.path == "/closed"]
    web = TestClient(Starlette(routes=[closed]))
    assert web.post("/closed", json={"annotator": "Ann"}).status_code == 204
    assert count_active_annotators(ctx.db, project) == 0
    assert lease_pair(ctx.db, project, "Bob", rules).pair.id == first.pair.id
    end_leases(ctx.db, "Bob")
    again = lease_pair(ctx.db, project, "Ann", rules)  # the page is opened again
    assert again.pair.id == first.pair.id
