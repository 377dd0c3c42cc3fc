import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rlhf_lab.common.enums import EngineState, JobKind, JobStatus
from rlhf_lab.common.process_env import TRAINING_ENV
from rlhf_lab.errors import EngineError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store.database import Database

ABSENT, STARTING, ALIVE, DEAD = EngineState

ENGINE = """
import signal, sys, time
from pathlib import Path
from rlhf_lab.jobs import engine_process
from rlhf_lab.store.database import Database
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Database.open(Path(sys.argv[1])) as db:
    while True:
        print("beat", flush=True)
        engine_process.record_heartbeat(db, "idle", device="cpu", memory_mib=12.5)
        time.sleep(0.1)
"""


def command(home: Path, *options: str) -> list[str]:
    return [sys.executable, "-c", ENGINE, str(home), *options]


@pytest.fixture(autouse=True)
def no_engine_outlives_a_test(home: Path) -> Iterator[None]:
    yield
    for process in psutil.process_iter(["cmdline"]):
        if str(home) in (process.info["cmdline"] or []) and process.pid != os.getpid():
            process.kill()


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def state(db: Database) -> EngineState:
    return engine_process.engine_state(db).state


# ---- what rows mean


def test_a_heartbeat_identifies_the_process(db: Database) -> None:
    assert engine_process.engine_state(db).row is None
    assert state(db) is ABSENT
    engine_id = engine_process.record_heartbeat(db, "idle", device="cuda", memory_mib=812.5)
    assert engine_process.record_heartbeat(db, "step 3", device="cuda") == engine_id
    result = engine_process.engine_state(db)
    assert (result.state, result.row.id, result.row.state, result.row.device) == (ALIVE, engine_id, "step 3", "cuda")
    assert result.row.memory_mib is None
    assert result.row.process == engine_process.this_process()
    assert result.row.process.pid == os.getpid()
    assert result.row.beat_at == pytest.approx(time.time(), abs=5)
    engine_process.mark_engine_stopped(db, engine_id)
    assert state(db) is ABSENT
    assert engine_process.engine_state(db).row.stopped_at is not None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"beat_at": -119}, ALIVE),  # its process exists: the machine is overloaded
        ({"beat_at": -121}, DEAD),
        ({"beat_at": +3}, ALIVE),  # the clock was set back
        ({"beat_at": None, "started_at": -590}, STARTING),
        ({"beat_at": None, "started_at": -610}, DEAD),
        # it loads torch without a heartbeat
        ({"beat_at": -589, "started_at": -590, "state": "starting"}, STARTING),
        ({"beat_at": -609, "started_at": -610, "state": "starting"}, DEAD),
        ({"beat_at": None, "started_at": -110, "host": "elsewhere"}, STARTING),
        ({"beat_at": None, "started_at": -130, "host": "elsewhere"}, DEAD),
        ({"beat_at": 0, "process_started": 1.0}, DEAD),  # a recycled pid
        ({"beat_at": None, "started_at": 0, "process_started": 1.0}, DEAD),
        ({"beat_at": 0, "pid": 2**22 + 1}, DEAD),  # no such process
        ({"beat_at": -9, "host": "elsewhere", "pid": 2**22 + 1}, ALIVE),
        ({"beat_at": -11, "host": "elsewhere"}, DEAD),
        ({"beat_at": +600, "host": "elsewhere"}, ALIVE),  # its clock is ahead
        ({"beat_at": +7200, "host": "elsewhere"}, DEAD),  # the clock was set back
        ({"beat_at": None, "started_at": +7200, "host": "elsewhere"}, DEAD),
        ({"beat_at": 0, "stopped_at": 0}, ABSENT),
    ],
)
def test_what_a_row_means(db: Database, engine_row: Callable[..., int], changes: dict, expected: EngineState) -> None:
    now = time.time()
    clocks = ("beat_at", "started_at", "stopped_at")
    engine_row(**{key: now + value if key in clocks and value is not None else value for key, value in changes.items()})
    assert state(db) is expected


def test_an_engine_that_starts_slowly_is_starting_until_it_ends(
    db: Database, engine_row: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an overloaded machine torch needs five minutes to load; then the process ends."""
    start = time.time()
    engine_id = engine_row(started_at=start, beat_at=start, state=engine_process.STATE_STARTING)
    for seconds in (0.0, 11.0, 121.0, 300.0):
        monkeypatch.setattr(engine_process.time, "time", lambda seconds=seconds: start + seconds)
        assert state(db) is STARTING
    monkeypatch.setattr(engine_process, "_find_process", lambda process: None)
    status = engine_process.engine_state(db)
    assert (status.state, status.row.id, status.failed_starts) == (DEAD, engine_id, 1)


def test_a_live_engine_takes_precedence_over_newer_dead_ones(db: Database, engine_row: Callable[..., int]) -> None:
    old = engine_row(process_started=1.0)
    assert state(db) is DEAD
    alive = engine_row()
    engine_row(process_started=2.0)
    result = engine_process.engine_state(db)
    assert (result.state, result.row.id) == (ALIVE, alive)
    engine_process.mark_engine_stopped(db, alive)
    last = engine_row(process_started=3.0, stopped_at=time.time())
    assert engine_process.engine_state(db).row.id == last != old
    assert state(db) is ABSENT  # it was an older one that crashed


def test_ui_presence(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_process.ui_last_seen_at(db) is None
    engine_process.touch_ui(db)
    first = engine_process.ui_last_seen_at(db)
    assert first == pytest.approx(time.time(), abs=5)
    now = time.time()
    monkeypatch.setattr(engine_process.time, "time", lambda: now + 2)
    engine_process.touch_ui(db)
    assert engine_process.ui_last_seen_at(db) == first  # written a moment ago
    monkeypatch.setattr(engine_process.time, "time", lambda: now + 7)
    engine_process.touch_ui(db)
    assert engine_process.ui_last_seen_at(db) == now + 7
    monkeypatch.setattr(engine_process.time, "time", lambda: now - 3600)  # the clock was set back
    engine_process.touch_ui(db)
    assert engine_process.ui_last_seen_at(db) == now - 3600


# ---- processes


def test_an_engine_is_started_found_and_stopped(db: Database, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")  # a value set by the user is kept
    started = engine_process.ensure_engine(db, home, command(home))
    assert started.state is STARTING
    process = started.row.process
    assert os.getsid(process.pid) == process.pid != os.getsid(0)  # detached: Ctrl-C in this terminal does not reach it
    wait_for(lambda: state(db) is ALIVE)
    result = engine_process.engine_state(db)
    assert (result.row.id, result.row.process, result.row.state) == (started.row.id, process, "idle")
    assert engine_process.ensure_engine(db, home, command(home)).row.id == started.row.id
    environment = psutil.Process(process.pid).environ()
    ours = {name: os.environ.get(name, value) for name, value in TRAINING_ENV.items()}
    assert ours["GOMP_SPINCOUNT"] == "7"
    assert {name: environment[name] for name in TRAINING_ENV} == ours
    assert engine_process.stop_engine(db, home)
    assert not psutil.pid_exists(process.pid)
    assert state(db) is ABSENT
    assert not engine_process.stop_engine(db, home)
    assert (home / "engine.out").read_text().startswith("beat\n")


def test_the_default_command_is_the_engine_of_this_package(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home.mkdir()
    monkeypatch.chdir(tmp_path)  # from any working directory
    monkeypatch.setattr(sys, "executable", "/bin/echo")
    engine_process.start_engine(home)
    wait_for(lambda: (home / "engine.out").read_text() == f"-m rlhf_lab.engine --home {home.resolve()}\n")
    (home / "engine.out").unlink()
    code = "import rlhf_lab; print(rlhf_lab.__file__)"
    engine_process.start_engine(home, [os.path.realpath(psutil.Process().exe()), "-c", code])
    wait_for(
        lambda: (home / "engine.out").read_text() == f"{Path(engine_process.__file__).parents[1] / '__init__.py'}\n"
    )


def test_of_many_callers_at_once_one_starts_it(db: Database, home: Path) -> None:
    rows: list[int] = []
    start = threading.Barrier(4)

    def ensure() -> None:
        start.wait()
        rows.append(engine_process.ensure_engine(db, home, command(home)).row.id)

    threads = [threading.Thread(target=ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rows) == 4
    assert len(set(rows)) == 1
    with db.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM engines").scalar() == 1
    engine_process.stop_engine(db, home)


def test_a_killed_engine_is_dead_and_the_next_takes_its_job(db: Database, home: Path) -> None:
    first = engine_process.ensure_engine(db, home, command(home)).row
    job = queue.submit(db, JobKind.TRAIN_POLICY, None, {})
    queue.claim(db, [JobKind.TRAIN_POLICY], first.id)
    assert queue.requeue_interrupted(db) == []
    os.kill(first.process.pid, signal.SIGKILL)
    wait_for(lambda: state(db) is DEAD, 5)
    wait_for(
        lambda: not psutil.pid_exists(first.process.pid), 5
    )  # it is a child of this process, and no zombie is left
    second = engine_process.ensure_engine(db, home, command(home)).row
    assert second.id != first.id
    assert [requeued.id for requeued in queue.requeue_interrupted(db)] == [job.id]
    assert queue.get_job(db, job.id).status is JobStatus.QUEUED
    engine_process.stop_engine(db, home)


def failing_start(home: Path, text: str) -> list[str]:
    """A program that ends like an engine that runs out of memory."""
    return [sys.executable, "-c", f"import sys; print({text!r}); sys.exit(1)", str(home)]


def test_an_engine_that_ends_while_loading_is_not_restarted_in_a_tight_loop(
    db: Database, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "Traceback\nRuntimeError: std::bad_alloc\x1b[31m\x07"
    ids = set()
    for _ in range(20):
        ids.add(engine_process.ensure_engine(db, home, failing_start(home, lines)).row.id)
        wait_for(lambda: state(db) is DEAD, 5)
    assert len(ids) == 2  # one immediate restart, then none before a delay
    status = engine_process.engine_state(db)
    assert status.failed_starts == 2
    failure = engine_process.start_failure(status, home)
    assert "2 times in a row it ended while loading (RuntimeError: std::bad_alloc [31m)" in failure
    assert "too little memory" in failure
    assert "within 30 s" in failure
    now = time.time()
    monkeypatch.setattr(engine_process.time, "time", lambda: now + 31)
    third = engine_process.ensure_engine(db, home, failing_start(home, ""))
    assert third.row.id not in ids
    wait_for(lambda: state(db) is DEAD, 5)
    assert engine_process.engine_state(db).failed_starts == 3


@pytest.mark.parametrize(
    ("failed", "delay"), [(0, 0), (1, 0), (2, 30), (3, 60), (4, 120), (6, 480), (7, 600), (10, 600)]
)
def test_the_delay_before_another_start_doubles_up_to_ten_minutes(failed: int, delay: float) -> None:
    assert engine_process.restart_delay_s(failed) == delay


def test_only_engines_that_ended_while_loading_are_failed_starts(db: Database, engine_row: Callable[..., int]) -> None:
    dead = {"process_started": 1.0}
    for row in (dead | {"state": "starting"}, dead | {"state": "idle"}):
        engine_row(**row)
    assert engine_process.engine_state(db).failed_starts == 0  # the newest one had loaded
    for number in (2.0, 3.0):
        engine_row(process_started=number, state="starting")
    engine_row(state="starting", beat_at=None, started_at=time.time())
    status = engine_process.engine_state(db)
    assert (status.state, status.failed_starts) == (STARTING, 2)


def test_a_start_that_failed_without_output_says_so(db: Database, home: Path, engine_row: Callable[..., int]) -> None:
    (home / "engine.out").write_text("of an older engine\n")
    os.utime(home / "engine.out", (1.0, 1.0))
    for number in (1.0, 2.0):
        engine_row(process_started=number, state="starting", started_at=time.time())
    failure = engine_process.start_failure(engine_process.engine_state(db), home)
    assert "it gave no reason" in failure
    assert "older" not in failure


def test_a_zombie_is_dead(db: Database, engine_row: Callable[..., int]) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    engine_row(pid=child.pid, process_started=psutil.Process(child.pid).create_time())
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert state(db) is DEAD
    child.wait()


def test_an_engine_that_ignores_sigterm_is_killed(db: Database, home: Path) -> None:
    process = engine_process.ensure_engine(db, home, command(home, "deaf")).row.process
    wait_for(lambda: state(db) is ALIVE)
    assert engine_process.stop_engine(db, home, timeout=0.3)
    assert not psutil.pid_exists(process.pid)
    assert state(db) is ABSENT


def test_an_engine_without_heartbeat_is_not_replaced_but_can_be_stopped(db: Database, home: Path) -> None:
    process = engine_process.ensure_engine(db, home, command(home)).row.process
    wait_for(lambda: state(db) is ALIVE)
    os.kill(process.pid, signal.SIGSTOP)
    with db.write() as conn:
        conn.exec_driver_sql("UPDATE engines SET beat_at = beat_at - 3600")
    status = engine_process.ensure_engine(db, home, command(home))
    assert (status.state, status.row.process) == (DEAD, process)
    job = queue.submit(db, JobKind.COMPLETE, None, {})
    queue.claim(db, [JobKind.COMPLETE], status.row.id)
    assert queue.requeue_interrupted(db) == []  # it may continue later
    assert engine_process.stop_engine(db, home, timeout=0.3)
    assert [requeued.id for requeued in queue.requeue_interrupted(db)] == [job.id]


def test_a_recycled_pid_is_never_killed(db: Database, home: Path, engine_row: Callable[..., int]) -> None:
    unrelated = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        engine_row(pid=unrelated.pid, process_started=psutil.Process(unrelated.pid).create_time() - 100)
        assert not engine_process.stop_engine(db, home, timeout=0.3)
        time.sleep(0.2)
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def test_an_engine_on_another_machine_is_not_stopped(db: Database, home: Path, engine_row: Callable[..., int]) -> None:
    engine_row(host="elsewhere", pid=42)
    assert engine_process.ensure_engine(db, home, ["/bin/false"]).row.process.host == "elsewhere"
    with pytest.raises(EngineError, match=r"runs on elsewhere \(pid 42\): stop it there"):
        engine_process.stop_engine(db, home)


def test_a_missing_program_is_an_engine_error(db: Database, home: Path) -> None:
    with pytest.raises(EngineError, match=r"could not be started.*engine\.out"):
        engine_process.ensure_engine(db, home, ["/no/such/python"])
    assert state(db) is ABSENT


def test_engine_out_is_rotated(db: Database, home: Path) -> None:
    (home / "engine.out").write_text("old\n" * 300_000)
    engine_process.start_engine(home, ["/bin/echo", "new"])
    wait_for(lambda: (home / "engine.out").read_text() == "new\n")
    assert (home / "engine.out.old").stat().st_size == 1_200_000
    engine_process.start_engine(home, ["/bin/echo", "newer"])
    wait_for(lambda: (home / "engine.out").read_text() == "new\nnewer\n")


def test_the_page_side_imports_nothing_heavy() -> None:
    code = "import sys, rlhf_lab.jobs.queue, rlhf_lab.store.run_metrics, rlhf_lab.store.votes"
    heavy = "print({'torch', 'transformers', 'peft', 'alembic'} & set(sys.modules))"
    root = Path(engine_process.__file__).parents[2]
    outputs = subprocess.check_output([sys.executable, "-c", f"{code}; {heavy}"], cwd=root, text=True)
    assert outputs == "set()\n"


BOUND = """
import json, sys, time
import psutil
from rlhf_lab.jobs import engine_process
from rlhf_lab.common.records import ProcessIdentity
engine_process.exit_when_process_ends(ProcessIdentity(**json.loads(sys.argv[1])))
if psutil.LINUX:  # where psutil derives start times from the clock
    started_at = psutil.boot_time()
    psutil._psplatform.boot_time = lambda: started_at + 3600.0  # the clock was set forward
print("bound", flush=True)
time.sleep(120)
"""


def test_a_bound_process_ends_with_the_other_and_ignores_clock_steps():
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    identity = json.dumps(dataclasses.asdict(engine_process._identity(other.pid)))
    bound = subprocess.Popen([sys.executable, "-c", BOUND, identity], stdout=subprocess.PIPE, text=True)
    try:
        assert bound.stdout.readline() == "bound\n"
        with pytest.raises(subprocess.TimeoutExpired):
            bound.wait(2 * engine_process.PROCESS_POLL_S)
        other.kill()  # not waited for: a zombie counts as ended
        assert bound.wait(60) == 1
    finally:
        for process in (bound, other):
            process.kill()
            process.communicate()


def test_the_engine_gets_no_secret_of_the_page(tmp_path, monkeypatch):
    """It starts the processes of own reward functions. It needs the Hub's token, to download models."""
    secrets = {"RLHF_LAB_OPERATOR_SECRET": "s1", "RLHF_LAB_JOIN_CODE": "s2", "OAUTH_CLIENT_SECRET": "s3"}
    for name, value in (secrets | {"HF_TOKEN": "t", "RLHF_LAB_HOME": "h"}).items():
        monkeypatch.setenv(name, value)
    program = "import os; print(*sorted(name for name in os.environ if name[:5] in ('RLHF_', 'OAUTH', 'HF_TO')))"
    identity = engine_process.start_engine(tmp_path, [sys.executable, "-c", program])
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(identity.pid).wait(30)
    output = (tmp_path / engine_process.OUTPUT_FILE).read_text().split()
    assert {"HF_TOKEN", "RLHF_LAB_HOME"} <= set(output)
    assert not secrets.keys() & set(output)
