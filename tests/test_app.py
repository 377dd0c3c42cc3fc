"""`python app.py`: serves the lab without torch, prints at exit what is still running, refuses invalid addresses."""

import gc
import importlib.metadata
import os
import platform
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.fake_hub import FakeHub, model

from rlhf_lab.cli import serve
from rlhf_lab.cli.serve import access_instructions, shutdown_message
from rlhf_lab.common import process_env
from rlhf_lab.common.enums import JobKind
from rlhf_lab.common.paths import default_home
from rlhf_lab.common.records import Role
from rlhf_lab.config.demo import DemoConfig
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.memory_estimate import DeviceMemory
from rlhf_lab.jobs.startup_project import VARIABLES, StartupPhase
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import projects
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.header import api as header
from rlhf_lab.ui.network import is_loopback
from rlhf_lab.ui.page import launch_options
from rlhf_lab.ui.people.api import invitation

ROOT = Path(__file__).resolve().parents[1]


def start(home: Path) -> tuple[subprocess.Popen, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "app.py", "--port", str(port), "--home", str(home)]
    previous_handler = signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # a job started in the background ignores it, and so its children
    try:
        server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    return server, f"http://127.0.0.1:{port}/"


def end(server: subprocess.Popen, home: Path) -> str:
    server.send_signal(signal.SIGINT)
    output = server.communicate(timeout=60)[0]
    with Database.open(home) as db:
        engine_process.stop_engine(db, home)
    return output


def wait_until(condition) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def fetch(url: str, server: subprocess.Popen) -> str:
    for _ in range(600):
        assert server.poll() is None, "app.py ended"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the page was not served within a minute")


@pytest.mark.parametrize(
    ("words", "spin_count"), [("demo --labels 9", "10000"), ("sft", "10000"), ("pretrain", "3000")]
)
def test_spin_count_of_commands_that_train_in_their_own_process(words, spin_count, monkeypatch):
    """`pretrain` runs beside processes that write texts. A value set by the user is not changed."""
    monkeypatch.setattr(process_env, "_set_malloc_options", lambda options: None)
    monkeypatch.setattr(sys, "argv", ["rlhf_lab", *words.split()])
    for before, after in ((None, spin_count), ("7", "7")):
        environment = {} if before is None else {"GOMP_SPINCOUNT": before}
        monkeypatch.setattr(process_env.os, "environ", environment)
        runpy.run_module("rlhf_lab.__main__")
        assert (environment["GOMP_SPINCOUNT"], environment["OMP_WAIT_POLICY"]) == (after, "passive")
        assert environment["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "64"  # else a long bfloat16 training takes all memory


@pytest.mark.parametrize(
    ("stated", "count"), [(None, 3), ("", 3), ("0", 3), ("some", 3), ("1", 1), (" 8 ", 8), ("5,2", 5)]
)
def test_threads_of_a_training(stated, count, monkeypatch):
    """On a machine with more cores than this process may use."""
    monkeypatch.setattr(process_env.os, "sched_getaffinity", lambda pid: {0, 4, 5}, raising=False)
    monkeypatch.setattr(process_env.os, "environ", {} if stated is None else {"OMP_NUM_THREADS": stated})
    assert process_env.thread_count() == count
    monkeypatch.delattr(process_env.os, "sched_getaffinity")
    monkeypatch.setattr(process_env.os, "cpu_count", lambda: 7)
    assert process_env.thread_count() == (7 if count == 3 else count)


def test_freeze_gc():
    with process_env.freeze_gc():
        assert not gc.isenabled()
        cycle = [object() for _ in range(3)]
        cycle.append(cycle)
    assert gc.isenabled()
    assert not any(found is cycle for found in gc.get_objects())
    with pytest.raises(KeyError), process_env.freeze_gc():
        raise KeyError
    assert gc.isenabled()
    gc.unfreeze()


HEAPS = """
import ctypes, sys, threading
from rlhf_lab.common import process_env

if sys.argv[1] == "small":
    process_env.limit_malloc_arenas()
libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
for _ in range(3):
    thread = threading.Thread(target=libc.malloc, args=(1000,))
    thread.start()
    thread.join()
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="one heap a thread is a habit of glibc")
def test_threads_share_one_malloc_arena(tmp_path):
    heaps = []
    for arenas in ("small", "as it is"):
        subprocess.run([sys.executable, "-c", HEAPS, arenas, tmp_path / "heaps"], check=True, cwd=ROOT, timeout=120)
        heaps.append((tmp_path / "heaps").read_text().count("<heap nr="))
    assert heaps[0] == 1 < heaps[1]


def test_malloc_arenas_are_limited_before_the_page_is_built(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(process_env, "limit_malloc_arenas", lambda: calls.append("small"))

    def build(_):
        calls.append("built")
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "build_page", build)
    with Database.open(tmp_path) as db, pytest.raises(KeyboardInterrupt):
        serve.serve(Context(tmp_path, db), "127.0.0.1", 0)
    assert calls == ["small", "built"]


def test_a_port_in_use_is_an_error_with_what_to_do(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        command = [sys.executable, "app.py", "--port", str(port), "--home", str(tmp_path)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        f"error: 127.0.0.1:{port} cannot be served: another program uses the port, or the address is not one of this "
        "computer. Choose others with --port and --host.\n"
    )


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads the number of wake-ups from /proc")
def test_an_idle_page_rarely_wakes_up(tmp_path):
    """Gradio's queue alone would wake up 800 times a second."""

    def wake_ups() -> int:
        files = Path(f"/proc/{server.pid}/task").glob("*/status")
        return sum(int(re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", file.read_text())[1]) for file in files)

    server, url = start(tmp_path)
    try:
        fetch(url, server)
        before, start_time = wake_ups(), time.monotonic()
        time.sleep(3)
        rate = (wake_ups() - before) / (time.monotonic() - start_time)
    finally:
        end(server, tmp_path)
    assert rate < 300


def test_a_signal_that_another_thread_receives_ends_the_page():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    other = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            serve.wait_for_interrupt()
    finally:
        signal.signal(signal.SIGTERM, before)
        other.join()


def test_the_page_is_served_without_torch_and_ctrl_c_prints_a_farewell(tmp_path):
    server, url = start(tmp_path)
    try:
        page = fetch(url, server)
        script = re.search(r"assets/index-[\w-]+\.js", page)
        assert script is not None
        with urllib.request.urlopen(url + script[0]) as reply:
            cache_control = reply.headers["cache-control"]
        assert server.stdout is not None
        first = [server.stdout.readline() for _ in range(2)]  # only after the second it waits for Ctrl-C
        loaded = {Path(item.path).name for item in psutil.Process(server.pid).memory_maps()}
    finally:
        output = end(server, tmp_path)
    assert "RLHF Lab" in page
    assert cache_control == "public, max-age=31536000, immutable"  # sent by the lab, not by Gradio
    assert (tmp_path / "lab.db").is_file()
    assert not [name for name in loaded if "torch" in name]
    assert "Traceback" not in output
    assert first[0] == "RLHF Lab is starting …\n"
    assert url in first[1]
    assert "The page has ended" in output


def test_shutdown_message_names_the_run_and_how_to_stop_it(tmp_path):
    with Database.open(tmp_path) as db:
        assert "no engine is running" in shutdown_message(db, tmp_path)
        engine_id = engine_process.record_heartbeat(db, "working")  # this process plays the engine
        queue.submit(db, JobKind.TRAIN_POLICY, None, {"run_id": 7})
        job = queue.claim(db, [JobKind.TRAIN_POLICY], engine_id)
        assert job is not None
        queue.update_progress(db, job.id, 0.25, 30.0)
        words = shutdown_message(db, tmp_path / "a home")
        assert "--home" not in shutdown_message(db, default_home().resolve())
    assert "PPO run 7, 25% done" in words
    assert f"python app.py --home '{tmp_path}/a home'" in words
    assert f"stop-engine --home '{tmp_path}/a home'" in words


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_hosts(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "example.org"])
def test_other_hosts_are_not_loopback(host):
    assert not is_loopback(host)


def test_access_instructions_in_multi_user_mode(tmp_path, monkeypatch):
    monkeypatch.delenv("RLHF_LAB_OPERATOR_SECRET", raising=False)
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    single_user = Context.open(tmp_path)
    assert access_instructions(single_user, "http://127.0.0.1:7860/") == ""
    closed, open_ = (single_user.as_multi_user(open_to_all=everybody) for everybody in (False, True))
    instructions = access_instructions(closed, "http://192.168.1.7:7860/")
    assert f"http://192.168.1.7:7860/enter?key={closed.operator_secret}" in instructions
    assert "http://192.168.1.7:7860/join  with the code ABC234" in instructions
    assert "ABC234" not in access_instructions(open_, "http://192.168.1.7:7860/")
    assert "can be guessed" not in instructions
    monkeypatch.setenv("RLHF_LAB_OPERATOR_SECRET", "five big cats")
    chosen = Context.open(tmp_path)
    short = access_instructions(chosen.as_multi_user(open_to_all=False), "http://192.168.1.7:7860/")
    assert "give RLHF_LAB_OPERATOR_SECRET 16 characters or more" in short
    chosen.db.close()
    monkeypatch.setenv("SPACE_HOST", "me-lab.hf.space")
    assert "https://me-lab.hf.space/enter?key=" in access_instructions(closed, "http://0.0.0.0:7860/")
    single_user.db.close()


def test_behind_a_proxy_the_lab_is_multi_user_with_its_address(tmp_path, served):
    assert serve.main(["--home", str(tmp_path), "--url", "https://lab.example.org:8443/rlhf"]) == 0
    assert served[0].access.is_multi_user
    address = "https://lab.example.org:8443/rlhf/"
    assert f"{address}enter?key=" in access_instructions(served[0], served[0].public_url)
    assert invitation(served[0], "http://localhost:7860/")["link"].startswith(f"{address}join?code=")
    assert launch_options(served[0])["root_path"] == address.rstrip("/")
    assert "root_path" not in launch_options(replace(served[0], behind_proxy=False))


@pytest.mark.parametrize(
    "url",
    [
        "lab.example.org",
        "ftp://lab.example.org",
        "https://",
        "https://a@b/",
        "https://b/?x=1",
        "https://[::1",
        "https://b:x/",
        "https://\u200d.b/",
    ],
)
def test_invalid_proxy_urls_are_refused(tmp_path, capsys, url):
    assert serve.main(["--home", str(tmp_path), "--url", url]) == 1
    assert f"--url {url}: give the address that people open" in capsys.readouterr().err
    assert not (tmp_path / "lab.db").exists()


@pytest.fixture
def served(monkeypatch):
    """The labs that `serve.main` would have served, as (context, host)."""
    found = []
    monkeypatch.delenv("SPACE_ID", raising=False)
    for name in ("RLHF_LAB_OPERATOR_SECRET", serve.DEMO_MODE_ENV_VAR, *VARIABLES.values()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(serve, "serve", lambda ctx, host, port: found.append(ctx) or 0)
    yield found
    for ctx in found:
        ctx.db.close()


def test_the_model_option_selects_the_project(tmp_path, served, capsys, monkeypatch):
    folder = model(tmp_path / "small")
    home = ["--home", str(tmp_path / "home")]
    for chosen in (str(folder), "embedded", str(folder)):
        assert serve.main([*home, "--model", chosen]) == 0
    assert serve.main(home) == 0
    opened = [ctx.project for ctx in served[-1:]]
    assert [project.model for project in opened] == [str(folder)]
    assert len(projects(served[-1].db)) == 2
    hub = FakeHub(tmp_path / "cache").use(monkeypatch)
    hub.models["someone/small"] = folder
    assert serve.main([*home, "--model", "someone/small"]) == 0
    assert served[-1].project.model == "someone/small"
    assert len(served[-1].project.model_hash) == 64  # its files are here
    printed = capsys.readouterr()
    assert "Downloading someone/small, 0 MB" in printed.out
    assert printed.err == ""


def test_the_system_prompt_selects_the_project_too(tmp_path, served, capsys):
    home = ["--home", str(tmp_path / "home")]
    for prompt in ("Be kind.", "Be terse.", "Be kind."):
        assert serve.main([*home, "--model", "embedded", "--system-prompt", prompt]) == 0
        assert served[-1].project.system_prompt == prompt
    assert len(projects(served[-1].db)) == 2
    assert serve.main([*home, "--system-prompt", "Be kind."]) == 1
    assert "Also give its model" in capsys.readouterr().err


def test_the_temperature_option_sets_that_of_the_open_project(tmp_path, served, capsys):
    home = ["--home", str(tmp_path / "home")]
    assert serve.main([*home, "--model", "embedded"]) == 0
    assert serve.main([*home, "--model", str(model(tmp_path / "small")), "--temperature", "0.6"]) == 0
    assert capsys.readouterr().err == "The project's texts are sampled at temperature 0.6.\n"
    assert serve.main(home) == 0
    assert [project.temperature for project in projects(served[-1].db)] == [1, 0.6]
    assert served[-1].project.temperature == 0.6
    assert serve.main([*home, "--temperature", "9"]) == 1
    assert "temperature = 9" in capsys.readouterr().err
    assert served[-1].project.temperature == 0.6


@pytest.mark.parametrize(("more", "status"), [([], 0), (["--model", "no/such/folder/here"], 1)])
def test_the_database_is_closed_at_exit(tmp_path, served, monkeypatch, capsys, more, status):
    closed = []
    monkeypatch.setattr(Database, "close", lambda db, close=Database.close: (closed.append(db), close(db)))
    opened_by_app = serve.Context.open
    contexts = []
    monkeypatch.setattr(serve.Context, "open", lambda home: contexts.append(opened_by_app(home)) or contexts[-1])
    assert serve.main(["--home", str(tmp_path), *more]) == status
    assert contexts[0].db in closed


def test_a_too_large_model_is_refused_unless_it_has_a_project_already(tmp_path, served, capsys, monkeypatch):
    options = ["--home", str(tmp_path / "home"), "--model", str(model(tmp_path / "large"))]
    module = "rlhf_lab.jobs.startup_project.detect_device"
    monkeypatch.setattr(module, lambda: DeviceMemory("cpu", "a small machine", 10**8))
    assert serve.main(options) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: --model: ")
    assert (
        "large does not fit: a run with it needs about 0.7 GB of memory, and 0.1 GB are free here (a small machine)"
        in err
    )
    assert served == []
    monkeypatch.setattr(module, lambda: DeviceMemory("cpu", "a large machine", 10**10))
    assert serve.main(options) == 0
    monkeypatch.setattr(module, lambda: DeviceMemory("cpu", "a small machine", 10**8))
    assert serve.main(options) == 0  # the engine may hold it at this moment
    assert "large is too large: a run with it needs" in capsys.readouterr().err


def test_variables_stand_for_options_that_are_missing(tmp_path, served, monkeypatch, capsys):
    home, folder = ["--home", str(tmp_path / "home")], str(model(tmp_path / "small"))
    for name, value in {"MODEL": folder, "PROMPTS": "reviews", "TEMPERATURE": "0,6", "SYSTEM_PROMPT": ""}.items():
        monkeypatch.setenv(f"RLHF_LAB_{name}", value)
    assert serve.main(home) == 0
    project = served[-1].project
    assert (project.model, project.prompt_set, project.temperature) == (folder, "reviews", 0.6)
    assert serve.main([*home, "--prompts", "support", "--temperature", "0.9"]) == 0
    project = served[-1].project
    assert (project.model, project.prompt_set, project.temperature) == (folder, "support", 0.9)
    monkeypatch.setenv("RLHF_LAB_TEMPERATURE", "warm")
    capsys.readouterr()
    assert serve.main(home) == 1
    assert (
        capsys.readouterr().err
        == 'error: RLHF_LAB_TEMPERATURE: "warm" is not a temperature. Give a number such as 0.7.\n'
    )
    assert len(projects(served[-1].db)) == 2


def test_a_space_opens_whatever_its_variables_say(tmp_path, served, monkeypatch):
    monkeypatch.setenv("SPACE_ID", "somebody/lab")
    monkeypatch.setenv("RLHF_LAB_MODEL", "no such model")
    assert serve.main(["--home", str(tmp_path / "home")]) == 0
    (ctx,) = served
    assert ctx.project.model == "embedded"
    assert ctx.startup.start()
    wait_until(lambda: ctx.startup.state().phase is StartupPhase.FAILED)
    assert 'RLHF_LAB_MODEL: "no such model" is neither a folder nor a Hub id' in ctx.startup.state().message
    monkeypatch.setenv("RLHF_LAB_MODEL", "")
    assert serve.main(["--home", str(tmp_path / "home")]) == 0
    assert served[1].startup is None


def test_demo_mode_by_option_and_variable(tmp_path, served, monkeypatch, capsys):
    home, state = ["--home", str(tmp_path / "home")], tmp_path / "home" / "demo.json"
    monkeypatch.delenv("RLHF_LAB_JOIN_CODE", raising=False)
    assert serve.main(home) == serve.main([*home, "--demo-mode"]) == 0
    assert served[0].demo is None
    assert not served[0].access.is_multi_user
    assert (served[1].demo.config, served[1].access.default_role) == (DemoConfig(), Role.LABELLER)
    state_at_start = state.read_text()
    monkeypatch.setenv(serve.DEMO_MODE_ENV_VAR, "max_steps=7")
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    assert serve.main(home) == 0
    assert (served[2].demo.config.max_steps, served[2].access.default_role) == (7, Role.VIEWER)
    assert served[2].scheduler.demo is served[2].demo
    assert state.read_text() == state_at_start
    monkeypatch.setenv(serve.DEMO_MODE_ENV_VAR, "yes")
    assert serve.main(home) == 1
    assert capsys.readouterr().err == (
        'error: RLHF_LAB_DEMO_MODE: "yes" is not a setting. Write NAME=VALUE, such as max_steps=20.\n'
    )
    monkeypatch.setenv(serve.DEMO_MODE_ENV_VAR, "")
    assert serve.main(home) == 0
    assert (served[3].demo, state.exists()) == (None, False)


def test_the_tracker_of_the_page_replaces_the_variable_and_must_be_installed(tmp_path, served, monkeypatch, capsys):
    def version(name, original=importlib.metadata.version):
        if name == "wandb":
            raise importlib.metadata.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    home = ["--home", str(tmp_path / "home")]
    monkeypatch.setenv("RLHF_LAB_TRACK", "mlflow")
    assert serve.main([*home, "--track", "off"]) == 0
    assert os.environ["RLHF_LAB_TRACK"] == "off"
    assert serve.main([*home, "--track", "wandb"]) == 1
    assert "wandb, which is not installed" in capsys.readouterr().err
    monkeypatch.setenv("RLHF_LAB_TRACK", "mlflow")
    assert serve.main(home) == 1
    monkeypatch.setenv("SPACE_ID", "somebody/lab")  # which an error would restart again and again
    assert serve.main(home) == 0
    warning = header.state(served[-1])["warning"]
    assert warning.startswith('Runs are not logged (RLHF_LAB_TRACK). There is no tracker "mlflow"')
    assert "RLHF_LAB_TRACK" not in os.environ


def test_a_space_opens_without_demo_mode_where_its_variable_cannot_be_used(tmp_path, served, monkeypatch, capsys):
    home, state = ["--home", str(tmp_path / "home")], tmp_path / "home" / "demo.json"
    monkeypatch.setenv("SPACE_ID", "somebody/lab")
    monkeypatch.setenv(serve.DEMO_MODE_ENV_VAR, "1")
    assert serve.main(home) == 0
    state_at_start = state.read_text()
    monkeypatch.setenv(serve.DEMO_MODE_ENV_VAR, "max_stepz=3")
    capsys.readouterr()
    assert serve.main(home) == 0
    ctx = served[-1]
    assert (ctx.demo, state.read_text()) == (None, state_at_start)
    warning = header.state(ctx)["warning"]
    assert warning.startswith("Demo mode is off. RLHF_LAB_DEMO_MODE: unknown setting(s) max_stepz; known: ")
    assert warning.endswith(
        ". The operator can correct this in the settings of the Space; RLHF_LAB_DEMO_MODE=1 switches demo mode on "
        "with its "
        "default limits."
    )
    assert capsys.readouterr().err == f"error: {warning}\n"
    assert serve.main([*home, "--demo-mode", "max_stepz=3"]) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "no such/model at all"], "neither a folder nor a Hub id"),
        (["--model", "{here}"], "there is no config.json"),
        (["--model", "someone/gone"], "could not|cannot be reached"),
        (["--model", "someone/broken"], "The download was interrupted (OSError: check the network). Start it again"),
        (["--auth-file", "{here}/none.txt"], "none.txt cannot be read"),
        (["--auth-file", "{here}/bad.txt"], "bad.txt, line 1: there is no password"),
    ],
)
def test_invalid_models_and_files_are_refused_without_a_project(tmp_path, served, capsys, monkeypatch, options, words):
    hub = FakeHub(tmp_path / "cache").use(monkeypatch)
    hub.models["someone/broken"] = model(tmp_path / "remote")
    (tmp_path / "bad.txt").write_text("Ann")
    if options[1] == "someone/broken":
        monkeypatch.setattr(
            "rlhf_lab.jobs.hub_download.download_model", lambda facts, stop: (_ for _ in ()).throw(OSError("no"))
        )
    arguments = [option.format(here=tmp_path) for option in options]
    assert serve.main(["--home", str(tmp_path / "home"), *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert any(part in err for part in words.split("|"))
    assert served == []
    with Database.open(tmp_path / "home") as db:
        assert projects(db) == []


def test_an_auth_file_makes_the_lab_multi_user(tmp_path, served, monkeypatch):
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    (tmp_path / "people.txt").write_text("Ann:x")
    home, people = ["--home", str(tmp_path / "home")], ["--auth-file", str(tmp_path / "people.txt")]
    for more in ([], people, [*people, "--public-labelling"]):
        assert serve.main([*home, *more]) == 0
    single_user, closed, public = served
    assert not single_user.access.is_multi_user
    assert (closed.access.default_role, list(closed.access.password_entries)) == (Role.VIEWER, ["Ann"])
    assert public.access.default_role is Role.LABELLER
    assert "http://127.0.0.1:1/enter  with name and password" in access_instructions(closed, "http://127.0.0.1:1/")
    monkeypatch.setenv("SPACE_ID", "somebody/lab")
    monkeypatch.delenv("RLHF_LAB_JOIN_CODE")
    for more in ([], people):
        assert serve.main([*home, *more]) == 0
    assert [ctx.access.default_role for ctx in served[3:]] == [Role.LABELLER, Role.VIEWER]


STUBS = """
import inspect, sys
opened = []
sys.addaudithook(lambda event, args: event == "open" and str(args[0]).endswith(".pyi") and opened.append(args[0]))
import rlhf_lab.ui
from rlhf_lab.errors import LabError
assert not opened, opened[:3]
assert inspect.getfile(LabError).endswith("errors.py")
"""


def test_gradio_import_generates_no_type_stubs():
    subprocess.run([sys.executable, "-c", STUBS], check=True, cwd=ROOT, timeout=120)
