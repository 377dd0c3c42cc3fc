"""`python -m rlhf_lab.engine --home DIR`: the resident worker of one home. Normally the lab starts it automatically."""

import argparse
import logging
import logging.handlers
import os
import signal
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from rlhf_lab.common.logs import OneLineFormatter
from rlhf_lab.common.private_files import make_private_folder
from rlhf_lab.common.process_env import hide_environment, set_training_env, thread_count
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.errors import EngineError, LabError, StoreError
from rlhf_lab.jobs.engine_process import STATE_STARTING, record_heartbeat, this_process
from rlhf_lab.store.database import TRAINING_BUSY_TIMEOUT_S, Database

log = logging.getLogger("rlhf_lab.engine")
NICENESS = 10


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rlhf_lab.engine", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the lab's home folder")
    parser.add_argument(
        "--idle-exit", type=float, default=600.0, help="exit after this many idle seconds without an open page"
    )
    parser.add_argument("--threads", type=int, default=0, help="threads of PyTorch; 0: OMP_NUM_THREADS, or all cores")
    args = parser.parse_args(argv)
    try:
        run_engine(args.home, args.idle_exit, args.threads)
    except LabError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    return 0


def run_engine(home: Path, idle_exit_s: float, threads: int) -> None:
    """Acquire the home's lock and run the worker. Raises EngineError if another engine holds it, StoreError for a bad home."""
    home = home.resolve()
    lock = FileLock(home / "engine.lock", timeout=0)
    try:
        make_private_folder(home)
        lock.acquire()
    except Timeout as error:
        raise EngineError(
            f"another engine already works on {home}; one home has one engine. "
            f"`{lab_command()} doctor` names it; stop that one first, or choose another --home."
        ) from error
    except OSError as error:
        raise StoreError(
            f"the home {home} cannot be used: {error.strerror or error}. Check that it is a folder on a disk with "
            "free space that you may write to, or choose another with --home."
        ) from error
    with lock:
        hide_environment()
        _open_log(home)
        _lower_priority()
        db = Database.open(home, busy_timeout_s=TRAINING_BUSY_TIMEOUT_S)
        record_heartbeat(db, STATE_STARTING)
        set_training_env()
        import torch  # late: the import takes seconds, and reads environment variables that are set above

        from rlhf_lab.engine.worker import Worker

        torch.set_num_threads(threads or thread_count())
        worker = Worker(home, db, idle_exit_s=idle_exit_s)
        worker.model_cache.startup_s = time.time() - this_process().process_started
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: worker.request_exit())
        log.info("engine %d works on %s with %d threads", os.getpid(), home, torch.get_num_threads())
        worker.run()
        db.close()


def _open_log(home: Path) -> None:
    """Log to HOME/engine.log, which is rotated at 2 MiB; three old files are kept."""
    handler = logging.handlers.RotatingFileHandler(home / "engine.log", maxBytes=2 * 2**20, backupCount=3)
    handler.setFormatter(OneLineFormatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


def _lower_priority() -> None:
    """Run at low priority, so that the page and other programs of the person come first."""
    if hasattr(os, "nice"):
        os.nice(max(0, NICENESS - os.nice(0)))


if __name__ == "__main__":
    sys.exit(main())
