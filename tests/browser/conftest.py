"""A real lab (app.py as a process) and a real Chromium. A page must log no console errors and contact no other machine."""

import os
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from browser_lab import Lab
from helpers import PAGE_TIMEOUT_MS, describe_pages
from prepared_labs import idle_lab, temporary_project, without_engine

from rlhf_lab.store.database import Database
from rlhf_lab.ui.scripts import MODULES

REQUIRED = os.environ.get("RLHF_LAB_REQUIRE_BROWSER") == "1"
#: The headless shell is the same Chromium without its window; a page takes half of the CPU time.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser")
MODULE_ADDRESS = "http://127.0.0.1:9/"  # no server: `module_page` replies to everything
CHROMIUM = os.environ.get("RLHF_LAB_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add what the open pages show to the report of a failed test."""
    report = yield
    if report.failed and "chromium" in getattr(item, "funcargs", {}):
        report.sections.append(("what the pages showed", describe_pages(item.funcargs["chromium"])))
    return report


@pytest.fixture(scope="package")
def chromium():
    """The browser. Without one the tests are skipped; with RLHF_LAB_REQUIRE_BROWSER=1 they fail."""
    try:
        from playwright.sync_api import expect, sync_playwright

        expect.set_options(timeout=PAGE_TIMEOUT_MS)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            yield browser
            browser.close()
    except Exception as error:
        if REQUIRED:
            raise
        pytest.skip(f"no Chromium to drive (set RLHF_LAB_CHROMIUM to its path): {type(error).__name__}")


@pytest.fixture(scope="module")
def module_page(chromium):
    """An empty page without a lab, which can import the page's modules."""
    context = chromium.new_context()
    page = context.new_page()

    def serve(route):
        name = route.request.url.removeprefix(MODULE_ADDRESS)
        if name in MODULES:
            route.fulfill(body=MODULES[name], content_type="text/javascript; charset=utf-8")
        elif not name:
            route.fulfill(body="<!doctype html><body></body>", content_type="text/html")
        else:
            route.fulfill(status=204)

    page.route("**", serve)
    page.goto(MODULE_ADDRESS)
    yield page
    context.close()


@pytest.fixture(scope="package")
def shared_lab(tmp_path_factory):
    with without_engine(idle_lab(tmp_path_factory.mktemp("lab") / "home")) as lab:
        yield lab


@pytest.fixture(scope="module")
def lab(shared_lab):
    """A running lab without an engine, shared with other files, and a project of this file. Ids do not start at 1."""
    with Database.open(shared_lab.home) as db, temporary_project(db, shared_lab.home, idle=True):
        yield shared_lab


@pytest.fixture
def db(lab):
    with Database.open(lab.home) as database:
        yield database


@pytest.fixture
def fresh_project(lab):
    """A new project, open in the lab during the test, for which the lab's engine samples pairs."""
    with Database.open(lab.home) as db, temporary_project(db, lab.home) as project:
        yield project


@pytest.fixture
def idle_project(lab):
    """Like `fresh_project`, with a full pool, for a lab without an engine."""
    with Database.open(lab.home) as db, temporary_project(db, lab.home, idle=True) as project:
        yield project


@pytest.fixture(scope="package")
def idle_visitors(chromium):
    """Unused browser contexts by their options.

    They are reused because Chromium caches downloaded and compiled scripts per context: a page in a new context takes a third
    more CPU time.
    """
    return defaultdict(list)


@pytest.fixture
def open_page(chromium, idle_visitors):
    """open_page(lab, **context options): a page of a new visitor. It may log no console error and contact no other machine."""
    visitors, messages = [], []

    def open_(lab: Lab, **options):
        idle = idle_visitors[repr(sorted(options.items()))]
        # Without motion: the light of a busy engine alone takes 7 % of a core.
        defaults = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
        context = idle.pop() if idle else chromium.new_context(**{**defaults, **options})
        context.set_default_timeout(PAGE_TIMEOUT_MS)
        visitors.append((context, idle))
        page = context.new_page()
        page.on("console", lambda m: messages.append(f"console: {m.text}") if m.type == "error" else None)
        page.on("pageerror", lambda error: messages.append(f"page error: {error}"))
        page.on("request", lambda r: messages.append(f"request: {r.url}") if is_elsewhere(r.url) else None)
        page.on("dialog", lambda dialog: (messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(lab.url)
        return page

    open_.console_messages = messages
    yield open_
    for context, idle in visitors:
        if context in chromium.contexts:  # the test has not closed it
            forget_everything(context)
            idle.append(context)
    assert not messages


def forget_everything(context) -> None:
    """Reset a context to that of a new visitor: no pages, cookies, stored data or interceptions; online."""
    origins = {"/".join(frame.url.split("/")[:3]) for page in context.pages for frame in page.frames}
    for page in context.pages:
        page.close()
    context.unroute_all()
    context.set_offline(False)
    context.clear_cookies()
    context.clear_permissions()
    page = context.new_page()
    session = context.new_cdp_session(page)
    for origin in origins:
        if origin.startswith("http"):
            session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
    page.close()


def is_elsewhere(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "about:", "chrome"))
