"""app.py as a separate process, for the browser tests."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from helpers import wait_until

ROOT = Path(__file__).resolve().parents[2]
#: Contains a sitecustomize.py that every process of a lab imports.
NETWORK_GUARD = Path(__file__).parent / "network_guard"
#: Of the page's process.
MAX_MEMORY_BYTES = 300 * 2**20


@dataclass
class Lab:
    """app.py with its own home folder."""

    home: Path
    port: int = 0
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> "Lab":
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
        command = [sys.executable, "app.py", "--port", str(self.port), "--home", str(self.home), *self.options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | self.guard_environment() | self.environment
            )
        for _ in range(600):
            assert self.process.poll() is None, f"app.py ended: {self.log.read_text()[-2000:]}"
            try:
                urllib.request.urlopen(self.url, timeout=5).close()
                return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"the page was not served: {self.log.read_text()[-2000:]}")

    @property
    def log(self) -> Path:
        return self.home.parent / f"{self.home.name}.log"

    @property
    def guard_log(self) -> Path:
        return self.home.parent / f"{self.home.name}.record"

    def guard_environment(self) -> dict[str, str]:
        """Environment variables that make page and engine log forbidden actions."""
        path = os.pathsep.join(filter(None, [str(NETWORK_GUARD), os.environ.get("PYTHONPATH")]))
        return {"PYTHONPATH": path, "RLHF_LAB_RECORD": str(self.guard_log)}

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def engine_pid(self) -> int:
        from rlhf_lab.jobs.engine_process import engine_state
        from rlhf_lab.store.database import Database

        with Database.open(self.home) as db:
            row = engine_state(db).row
        assert row is not None
        return row.process.pid

    def stop(self) -> None:
        """Stop page and engine. AssertionError: the page uses too much memory, or the network guard logged something."""
        from rlhf_lab.jobs.engine_process import stop_engine
        from rlhf_lab.store.database import Database

        memory = 0
        if self.process is not None and self.process.poll() is None:
            memory = psutil.Process(self.process.pid).memory_info().rss
            self.process.terminate()
            self.process.wait(30)
        if (self.home / "lab.db").exists():
            with Database.open(self.home) as db:
                stop_engine(db, self.home)
        logged = set(self.guard_log.read_text().splitlines())
        assert "page" in logged
        assert logged <= {"page", "other"}, logged
        assert memory < MAX_MEMORY_BYTES, memory


def current_pair(page) -> str:
    """The id of the pair on the Label screen; waits until the pair can be answered."""
    page.wait_for_selector(".lab-label[data-open]")
    return page.get_attribute(".lab-label", "data-pair")


def press_key(page, key: str) -> str:
    """Press a key and wait for the next pair. Returns the pair that was on screen."""
    before = current_pair(page)
    page.keyboard.press(key)
    page.wait_for_function(
        "before => { const now = document.querySelector('.lab-label').dataset.open; return now && now !== before; }",
        arg=before,
    )
    return before


def intercept_votes(page, *handlers, marker='"pair_id"'):
    """Give the first vote requests to the handlers. Returns the list of the payloads of all votes sent from now on.

    marker: text in the body of the requests to intercept; pass another one to intercept other requests.
    """
    sent, other_urls = [], []

    def intercept(route):
        if marker not in (route.request.post_data or ""):
            other_urls.append(route.request.url)
            return route.continue_()
        sent.append(route.request.post_data_json)
        return handlers[len(sent) - 1](route) if len(sent) <= len(handlers) else route.continue_()

    page.route("**/lab-api/label/**", intercept)

    def is_active():
        headers = "{'Content-Type': 'application/json'}"
        page.evaluate(
            f"fetch('lab-api/label/presence', {{ method: 'POST', headers: {headers}, body: '{{}}' }}).then(() => 1)"
        )
        return bool(other_urls)

    wait_until(is_active, "the interception", page)  # route() returns before requests are intercepted
    return sent


def kept_requests(page) -> list[str]:
    """The uuids of the requests that the page's browser keeps because the lab has not confirmed them."""
    return page.evaluate(
        "Object.keys(localStorage).filter((name) => name.startsWith('rlhf-lab-unconfirmed-')).map((name) => name.slice(21))"
    )


def project_created_at(lab: Lab) -> float:
    """The creation time of the open project, by which a page identifies it."""
    from rlhf_lab.store.database import Database
    from rlhf_lab.store.projects import current_project

    with Database.open(lab.home) as db:
        return current_project(db).created_at
