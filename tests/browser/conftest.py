"""A real lab (app.py as its own process) and a real Chromium. Every page must leave a clean console and stay on this machine."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = os.environ.get("RLHF_LAB_REQUIRE_BROWSER") == "1"
CHROMIUM = os.environ.get("RLHF_LAB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: Waiting for a machine that may be busy, in milliseconds.
PATIENCE = 60_000


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium():
    """The browser; without one the tests skip, and fail where RLHF_LAB_REQUIRE_BROWSER=1."""
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            yield browser
            browser.close()
    except Exception as error:
        if REQUIRED:
            raise
        pytest.skip(f"no Chromium to drive (set RLHF_LAB_CHROMIUM to its path): {type(error).__name__}")


@dataclass
class Lab:
    """app.py on a home of its own."""

    home: Path
    port: int = 0
    process: subprocess.Popen | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> "Lab":
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        command = [sys.executable, "app.py", "--port", str(self.port), "--home", str(self.home)]
        with (self.home.parent / f"{self.home.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        for _ in range(900):
            assert self.process.poll() is None, "app.py ended"
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
                return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the page was not served")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def engine_pid(self) -> int:
        from rlhf_lab.jobs.supervisor import engine_state
        from rlhf_lab.store.database import Database

        with Database.open(self.home) as db:
            row = engine_state(db).row
        assert row is not None
        return row.process.pid

    def end(self) -> None:
        from rlhf_lab.jobs.supervisor import stop_engine
        from rlhf_lab.store.database import Database

        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        if (self.home / "lab.db").exists():
            with Database.open(self.home) as db:
                stop_engine(db, self.home)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("lab") / "home").start()
    yield lab
    lab.end()


@pytest.fixture
def open_page(chromium):
    """open_page(lab, **context options) → a page, its own person. At the end: no console error, no request to elsewhere."""
    contexts, said = [], []

    def open_(lab: Lab, **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: said.append(f"console: {m.text}") if m.type == "error" else None)
        page.on("pageerror", lambda error: said.append(f"page error: {error}"))
        page.on("request", lambda r: said.append(f"request: {r.url}") if is_elsewhere(r.url) else None)
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(lab.url)
        return page

    open_.said = said
    yield open_
    for context in contexts:
        context.close()
    assert not said


def is_elsewhere(url: str) -> bool:
    return not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "about:", "chrome"))
