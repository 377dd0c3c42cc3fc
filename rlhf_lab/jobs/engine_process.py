"""The engine as a process: its state, start and stop. No torch: the page imports this module.

An engine writes a heartbeat row every few seconds, from a thread, since a training step may take longer. On its own machine an
engine is identified by pid and process start time, so that a reused pid is not mistaken for it. On other machines only the
heartbeat shows that it is alive.
"""

import contextlib
import itertools
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection, RowMapping, select, update

from rlhf_lab.common.enums import EngineState
from rlhf_lab.common.process_env import module_environment
from rlhf_lab.common.records import EngineRow, EngineStatus, ProcessIdentity
from rlhf_lab.errors import EngineError
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row

STATE_STARTING = "starting"  # of an engine that has not loaded torch yet
#: An engine that takes longer to start, or whose last heartbeat is older, is reported as dead. The limits are generous on this
#: machine, where the process can be seen and an overloaded machine may delay its heartbeat.
START_TIMEOUT_S, HEARTBEAT_TIMEOUT_S = 600.0, 120.0
REMOTE_START_TIMEOUT_S, REMOTE_HEARTBEAT_TIMEOUT_S = 120.0, 10.0
GONE_AFTER_S = 60.0  # an engine on another machine counts as gone after this long without a heartbeat
MAX_CLOCK_DIFFERENCE_S = 3600.0
#: An engine that ends while loading is restarted at once, then after 30, 60, 120 … seconds.
FAILED_START_DELAY_S, MAX_FAILED_START_DELAY_S = 30.0, 600.0
PROCESS_POLL_S = 1.0
OUTPUT_FILE = "engine.out"
_MAX_OUTPUT_BYTES = 1_000_000
_UI_SEEN_INTERVAL_S = 5.0
_START_TIME_TOLERANCE_S = 2.0  # the kernel derives start times from the clock: two readings differ by up to a second
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


# ---- processes


def this_process() -> ProcessIdentity:
    return _identity(os.getpid())


def parent_process() -> ProcessIdentity:
    return _identity(os.getppid())


def _identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(socket.gethostname(), pid, psutil.Process(pid).create_time(), boot_id())


def boot_id() -> str:
    """An id of the current boot of the kernel, the same in all containers of the machine (Linux); "" if unknown."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _find_process(process: ProcessIdentity) -> psutil.Process | None:
    """The process, if it runs on this machine. A zombie counts as ended."""
    if process.host != socket.gethostname():
        return None
    try:
        candidate = psutil.Process(process.pid)
        same_start = abs(candidate.create_time() - process.process_started) < _START_TIME_TOLERANCE_S
        return candidate if same_start and candidate.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _is_alive(process: psutil.Process) -> bool:
    """Whether a process that was found still runs, even if a change of the clock has changed its start time."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def exit_when_process_ends(process: ProcessIdentity) -> None:
    """Start a thread that exits this process soon after another process of this machine has ended."""

    watched = _find_process(process)

    def watch() -> None:
        while watched is not None and _is_alive(watched):
            time.sleep(PROCESS_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="exit with another process", daemon=True).start()


def engine_from_row(row: RowMapping) -> EngineRow:
    """The record of an engine from a row of the table `engines`, which may have further columns."""
    e = t.engines.c
    return EngineRow(
        id=row[e.id],
        process=ProcessIdentity(row[e.host], row[e.pid], row[e.process_started]),
        started_at=row[e.started_at],
        beat_at=row[e.beat_at],
        stopped_at=row[e.stopped_at],
        state=row[e.state],
        device=row[e.device],
        memory_mib=row[e.memory_mb],
    )


# ---- the engine's side


def record_heartbeat(db: Database, state: str, *, device: str = "", memory_mib: float | None = None) -> int:
    """Record that this process is the engine and alive; returns its engine id. state: shown on the page, such as "idle"."""
    values = {"state": state, "device": device, "memory_mb": memory_mib, "beat_at": time.time()}
    with db.write(durable=False) as conn:
        engine_id = _find_or_add_engine(conn, this_process())
        conn.execute(update(t.engines).where(t.engines.c.id == engine_id).values(**values))
    return engine_id


def mark_engine_stopped(db: Database, engine_id: int) -> None:
    """Record that the engine exits."""
    with db.write() as conn:
        conn.execute(update(t.engines).where(t.engines.c.id == engine_id).values(stopped_at=time.time()))


def ui_last_seen_at(db: Database) -> float | None:
    """When a page was last open (seconds since 1970); None if never."""
    return db.fetch(select(t.presence.c.seen_at).where(t.presence.c.who == "ui")).scalar()


def _find_or_add_engine(conn: Connection, process: ProcessIdentity, state: str = "") -> int:
    e = t.engines.c
    query = select(e.id, e.process_started).where(e.host == process.host, e.pid == process.pid)
    for engine_id, process_started in conn.execute(query):
        if abs(process_started - process.process_started) < _START_TIME_TOLERANCE_S:
            return int(engine_id)
    values = {"host": process.host, "pid": process.pid, "process_started": process.process_started}
    return insert_row(conn, t.engines, {**values, "started_at": time.time(), "state": state, "device": ""})


# ---- the page's side


def touch_ui(db: Database) -> None:
    """Record that a page is open. Cheap to call often, because it writes at most every few seconds."""
    now = time.time()
    last_seen_at = ui_last_seen_at(db)
    if last_seen_at is not None and 0 <= now - last_seen_at < _UI_SEEN_INTERVAL_S:
        return
    with db.write(durable=False) as conn:
        result = conn.execute(update(t.presence).where(t.presence.c.who == "ui").values(seen_at=now))
        if result.rowcount == 0:
            conn.execute(t.presence.insert().values(who="ui", seen_at=now))


def engine_state(db: Database) -> EngineStatus:
    """The state of the engine, and the row of the process that has it."""
    with db.read() as conn:
        return _engine_state(conn)


def _engine_state(conn: Connection) -> EngineStatus:
    rows = _recent_engines(conn)
    statuses = [EngineStatus(state_of_process(row), row) for row in rows]
    failed_starts = _count_failed_starts(statuses)
    for preferred_state in (EngineState.ALIVE, EngineState.STARTING):
        for status in statuses:
            if status.state is preferred_state:
                return replace(status, failed_starts=failed_starts)
    return replace(statuses[0], failed_starts=failed_starts) if statuses else EngineStatus(EngineState.ABSENT, None)


def _count_failed_starts(statuses: Sequence[EngineStatus]) -> int:
    """statuses: newest first."""
    ended = (status for status in statuses if status.state is not EngineState.STARTING)
    failed = itertools.takewhile(
        lambda status: (
            status.row is not None
            and status.state is EngineState.DEAD
            and status.row.state == STATE_STARTING
            and is_gone(status.row)
        ),
        ended,
    )
    return sum(1 for _ in failed)


def restart_delay_s(failed_starts: int) -> float:
    """Seconds between the start of an engine that ended while loading and the start of the next one."""
    if failed_starts < 2:
        return 0.0
    return float(min(FAILED_START_DELAY_S * 2 ** (failed_starts - 2), MAX_FAILED_START_DELAY_S))


def start_failure(status: EngineStatus, home: Path) -> str:
    """Why the engine does not start and what to do, if at least two in a row ended while loading; otherwise ""."""
    if status.failed_starts < 2 or status.row is None:
        return ""
    reason = _last_output_line(home, status.row.started_at) or "it gave no reason; the system may have killed it"
    delay = restart_delay_s(status.failed_starts)
    return (
        f"The engine does not start: {status.failed_starts} times in a row it ended while loading ({reason}). The "
        "usual cause is too little memory: close other programs, or raise the memory limit of the lab. The whole "
        f"message is in {OUTPUT_FILE} in the lab's home. Queued jobs are kept; the next attempt follows within {delay:.0f} "
        "s."
    )


def _last_output_line(home: Path, since: float) -> str:
    """The last line that an engine started at `since` wrote; "" if it wrote none."""
    try:
        with (home / OUTPUT_FILE).open("rb") as output:
            if os.fstat(output.fileno()).st_mtime < since - _START_TIME_TOLERANCE_S:
                return ""
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4096))
            lines = output.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    last_line = next((line for line in reversed(lines) if line.strip()), "")
    return " ".join("".join(c if c.isprintable() else " " for c in last_line).split())[:200]


def _recent_engines(conn: Connection) -> list[EngineRow]:
    query = select(t.engines).order_by(t.engines.c.id.desc()).limit(10)
    return [engine_from_row(row._mapping) for row in conn.execute(query)]


def state_of_process(row: EngineRow) -> EngineState:
    """The state of one engine process, from its row and, on this machine, from the process itself."""
    is_here = row.process.host == socket.gethostname()
    if row.stopped_at is not None:
        return EngineState.ABSENT
    if is_here and _find_process(row.process) is None:
        return EngineState.DEAD
    if row.beat_at is None or row.state == STATE_STARTING:
        timeout = START_TIMEOUT_S if is_here else REMOTE_START_TIMEOUT_S
        return EngineState.STARTING if _seconds_since(row.started_at) < timeout else EngineState.DEAD
    timeout = HEARTBEAT_TIMEOUT_S if is_here else REMOTE_HEARTBEAT_TIMEOUT_S
    return EngineState.ALIVE if _seconds_since(row.beat_at) < timeout else EngineState.DEAD


def is_gone(row: EngineRow) -> bool:
    """Whether this process can no longer write. A local process without a heartbeat still can, because it may only hang."""
    if row.process.host == socket.gethostname():
        return _find_process(row.process) is None
    last_sign = row.beat_at or row.started_at
    return row.stopped_at is not None or _seconds_since(last_sign) > GONE_AFTER_S


def _seconds_since(moment: float) -> float:
    """Infinite for a moment far in the future: the clock was set back since. Clocks of two machines may differ a little."""
    seconds = time.time() - moment
    return seconds if seconds > -MAX_CLOCK_DIFFERENCE_S else math.inf


def ensure_engine(db: Database, home: Path, command: Sequence[str] | None = None) -> EngineStatus:
    """Start the engine unless there is one. Of several concurrent callers, only one starts it.

    A local process without a heartbeat is reported as DEAD and not replaced; call `stop_engine` first. One on another machine
    counts as gone after GONE_AFTER_S. After an engine has ended while loading, the next start is delayed by `restart_delay_s`.
    """
    with db.write() as conn:  # the write lock makes "check, then start" atomic
        status = _engine_state(conn)
        if status.state in (EngineState.ALIVE, EngineState.STARTING):
            return status
        if any(row.stopped_at is None and not is_gone(row) for row in _recent_engines(conn)):
            return status
        if status.row and 0 <= time.time() - status.row.started_at < restart_delay_s(status.failed_starts):
            return status
        _find_or_add_engine(conn, start_engine(home, command), state=STATE_STARTING)
        return _engine_state(conn)


def start_engine(home: Path, command: Sequence[str] | None = None) -> ProcessIdentity:
    """Start an engine that outlives this process; its output goes to HOME/engine.out. command: run instead of the engine."""
    home = home.resolve()
    options: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS}
    try:
        with _output_file(home).open("ab") as output:
            process = subprocess.Popen(
                list(command or [sys.executable, "-m", "rlhf_lab.engine", "--home", str(home)]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=module_environment(),
                **options,
            )
        identity = _identity(process.pid)
    except (OSError, psutil.Error) as exc:
        raise EngineError(f"The engine could not be started: {exc}. See {home / OUTPUT_FILE} and try again.") from exc
    threading.Thread(target=process.wait, daemon=True).start()  # otherwise it stays a zombie while this process runs
    return identity


def _output_file(home: Path) -> Path:
    output = home / OUTPUT_FILE
    if output.exists() and output.stat().st_size > _MAX_OUTPUT_BYTES:
        output.replace(home / f"{OUTPUT_FILE}.old")
    return output


def stop_engine(db: Database, home: Path, timeout: float = 10.0) -> bool:
    """End every engine process on this machine: by SIGTERM, after `timeout` seconds by SIGKILL.

    Returns whether there was one. Raises EngineError if an engine runs on another machine or does not end.
    """
    with db.read() as conn:
        rows = [row for row in _recent_engines(conn) if row.stopped_at is None]
    stopped = False
    for row in rows:
        process = _find_process(row.process)
        if process is None:
            if state_of_process(row) is not EngineState.DEAD:
                raise EngineError(f"The engine runs on {row.process.host} (pid {row.process.pid}): stop it there.")
            continue
        if not _terminate(process, timeout):
            raise EngineError(
                f"The engine (pid {process.pid}) does not stop. See {home / OUTPUT_FILE}, or kill the process."
            )
        mark_engine_stopped(db, row.id)
        stopped = True
    return stopped


def _terminate(process: psutil.Process, timeout: float) -> bool:
    for send_signal in (process.terminate, process.kill):
        try:
            send_signal()  # psutil checks the start time again before it sends the signal
            process.wait(timeout)
        except psutil.NoSuchProcess:
            return True
        except psutil.TimeoutExpired:
            continue
        return True
    return False
