"""app.py as a process of its own, for the browser tests."""

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
from helpers import until

ROOT = Path(__file__).resolve().parents[2]
#: Every process of a lab imports the sitecustomize that lies here.
RECORDER = Path(__file__).parent / "recorder"
#: What the page's process may take, in bytes.
MOST_MEMORY = 300 * 2**20


@dataclass
class Lab:
    """app.py on a home of its own."""

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
                command, cwd=ROOT, stdout=log, stderr=log, env=os.environ | self.recorded() | self.environment
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
    def record(self) -> Path:
        return self.home.parent / f"{self.home.name}.record"

    def recorded(self) -> dict[str, str]:
        """The environment in which page and engine write down what they must not do."""
        path = os.pathsep.join(filter(None, [str(RECORDER), os.environ.get("PYTHONPATH")]))
        return {"PYTHONPATH": path, "RLHF_LAB_RECORD": str(self.record)}

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

    def end(self) -> None:
        """End page and engine. AssertionError: the page has grown, or one of them did what it must not."""
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
        noted = set(self.record.read_text().splitlines())
        assert "page" in noted
        assert noted <= {"page", "other"}, noted
        assert memory < MOST_MEMORY, memory


def pair_of(page) -> str:
    """The pair on the Label screen; waits until there is one that takes answers."""
    page.wait_for_selector(".lab-label[data-open]")
    return page.get_attribute(".lab-label", "data-pair")


def press(page, key: str) -> str:
    """Press a key and wait for the next pair; returns the pair that was on screen."""
    before = pair_of(page)
    page.keyboard.press(key)
    page.wait_for_function(
        "before => { const now = document.querySelector('.lab-label').dataset.open; return now && now !== before; }",
        arg=before,
    )
    return before


def votes_cut(page, *ways):
    """The way to the server is cut for so many votes; returns what was sent, these and all after them."""
    sent, asked = [], []

    def cut(route):
        if '"pair_id"' not in (route.request.post_data or ""):
            asked.append(route.request.url)
            return route.continue_()
        sent.append(route.request.post_data_json["event_data"])
        return ways[len(sent) - 1](route) if len(sent) <= len(ways) else route.continue_()

    page.route("**/gradio_api/**", cut)

    def cut_now():
        page.evaluate("fetch('gradio_api/app_id').then((reply) => reply.text())")
        return any(url.endswith("app_id") for url in asked)

    until(cut_now, "the cut", page)  # Chromium says so before requests really go that way
    return sent
