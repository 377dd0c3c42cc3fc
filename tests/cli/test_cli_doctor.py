"""The doctor: no failed check on a healthy machine, and each possible problem is named with its remedy."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rlhf_lab.cli import doctor
from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import JobKind
from rlhf_lab.jobs import queue
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def without_torch(monkeypatch):
    """Skips the import of torch in a separate process, which takes seconds."""
    monkeypatch.setattr(doctor, "_DEVICE_SCRIPT", "print('a device')")


@pytest.fixture
def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_doctor(capsys, home, port):
    status = main(["doctor", "--json", "--home", str(home), "--port", str(port)])
    (line,) = capsys.readouterr().out.strip().splitlines()
    report = json.loads(line)
    assert report["ok"] is (status == 0)
    return report["checks"]


def failed_checks(checks):
    return [name for name, check in checks.items() if not check["ok"]]


def test_a_missing_home_is_not_created(home, capsys, free_port, without_torch):
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == []
    assert checks[f"home {home}"]["what"] == "writable; there is no lab yet: python app.py creates one"
    assert not home.exists()


def test_healthy_installation(home, capsys, free_port):
    Database.open(home).close()
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == []
    assert checks["port"]["what"] == f"{free_port} is free: the page can use it"
    assert "trains in" in checks["device"]["what"]
    assert checks[f"home {home}"]["what"] == "writable; 0 projects, 0 runs"
    assert checks["engine"]["what"].startswith("none is running and nothing waits")
    assert [path.name for path in home.iterdir() if not path.name.startswith("lab.db")] == []


def test_doctor_runs_where_torch_cannot_be_imported(tmp_path, free_port):
    for name in ("torch", "transformers", "peft"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('broken installation')")
    command = [sys.executable, "-m", "rlhf_lab", "doctor", "--home", str(tmp_path / "home"), "--port", str(free_port)]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "broken installation" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise OSError('libtorch is broken')", "libtorch is broken"),
        ("import sys; sys.exit(3)", "it ended with exit status 3"),
    ],
)
def test_broken_torch(home, capsys, monkeypatch, free_port, code, words):
    monkeypatch.setattr(doctor, "_DEVICE_SCRIPT", code)
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == ["device"]
    assert words in checks["device"]["what"]
    assert "pip install -r requirements.txt" in checks["device"]["what"]


def test_invalid_dtype_setting(home, capsys, monkeypatch, free_port):
    monkeypatch.setenv("RLHF_LAB_DTYPE", "half")
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == ["device"]
    assert checks["device"]["what"].endswith("set it to float32 or bfloat16, or unset it.")


def test_torch_import_timeout(home, capsys, monkeypatch, free_port):
    monkeypatch.setattr(doctor, "_DEVICE_SCRIPT", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "TORCH_TIMEOUT_S", 0.1)
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == ["device"]
    assert "very busy" in checks["device"]["what"]


def test_a_home_that_is_a_file(home, without_torch, capsys, free_port):
    home.write_text("a file, not a folder")
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == [f"home {home}"]
    assert "engine" not in checks


def test_read_only_home(home, without_torch, capsys, monkeypatch, free_port):
    def refuse(dir):
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == [f"home {home}"]
    assert "Permission denied" in checks[f"home {home}"]["what"]


def test_a_full_disk_and_little_memory(home, without_torch, capsys, monkeypatch, free_port):
    monkeypatch.setattr(doctor, "MIN_FREE_MB", 2**40)
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == ["disk", "memory"]
    assert "--home" in checks["disk"]["what"]


def test_a_megabyte_is_a_million_bytes_as_on_the_page(home, without_torch, capsys, monkeypatch, free_port):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=2_345_678_901))
    assert run_doctor(capsys, home, free_port)["disk"]["what"] == "2345 MB free"


# ---- the port


class Answer(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        return


@pytest.mark.parametrize(("body", "ok"), [(b"<title>RLHF Lab</title>", True), (b"<title>Other</title>", False)])
def test_port_in_use(home, without_torch, capsys, body, ok):
    handler = type("Handler", (Answer,), {"body": body})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        number = server.server_address[1]
        checks = run_doctor(capsys, home, number)
        server.shutdown()
        thread.join()
    assert checks["port"]["ok"] is ok
    assert (f"python app.py --port {number + 1}" in checks["port"]["what"]) is not ok


# ---- the engine


def engine_row(home, **changes):
    """A row as an engine writes it; by default that of this process, with a heartbeat of just now."""
    me = psutil.Process()
    values = {
        "host": socket.gethostname(), "pid": me.pid, "process_started": me.create_time(),
        "started_at": time.time() - 60, "beat_at": time.time(), "state": "idle", "device": "cpu", "memory_mb": 321.4,
    }  # fmt: skip
    with Database.open(home) as db, db.write() as conn:
        insert_row(conn, t.engines, values | changes)


def wait_for_it(home):
    with Database.open(home) as db:
        queue.submit(db, JobKind.TRAIN_POLICY, None, {"run_id": 1})


GONE = {"process_started": 1.0}  # this pid was recycled: the engine that had it is dead


def test_engine_alive(home, without_torch, capsys, free_port):
    engine_row(home)
    wait_for_it(home)
    check = run_doctor(capsys, home, free_port)["engine"]
    assert check["ok"]
    assert check["what"].startswith(f"alive (pid {os.getpid()} on ")
    assert check["what"].endswith(" s ago; cpu, 337 MB; 1 job waits")


def test_engine_silent(home, without_torch, capsys, free_port):
    engine_row(home, beat_at=time.time() - 600)
    checks = run_doctor(capsys, home, free_port)
    assert failed_checks(checks) == ["engine"]
    assert "does not respond, last heartbeat 10 min ago" in checks["engine"]["what"]
    assert "stop-engine" in checks["engine"]["what"]


def test_engine_vanished(home, without_torch, capsys, free_port):
    engine_row(home, beat_at=time.time() - 4 * 3600, **GONE)
    check = run_doctor(capsys, home, free_port)["engine"]
    assert check["ok"]
    assert "ended unexpectedly, last heartbeat 4 h ago; no job is waiting" in check["what"]
    wait_for_it(home)
    check = run_doctor(capsys, home, free_port)["engine"]
    assert not check["ok"]
    assert "1 job waits" in check["what"]
    assert "python app.py" in check["what"]
    assert str(home / "engine.out") in check["what"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda: {"stopped_at": 5.0}, "none is running and nothing waits"),
        (lambda: {"beat_at": None, "started_at": time.time()}, "starting for"),
        (lambda: {"beat_at": None, "started_at": time.time() - 3600}, "does not respond, last heartbeat never"),
    ],
)
def test_other_engine_states(home, without_torch, capsys, free_port, changes, words):
    engine_row(home, **changes())
    assert words in run_doctor(capsys, home, free_port)["engine"]["what"]
