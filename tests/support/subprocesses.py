"""Runs a script in one process or in several of a process group, and returns its result."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from rlhf_lab.training.distributed import SINGLE_PROCESS

HEAD = """
import contextlib, faulthandler, glob, json, os, sys
import torch
faulthandler.dump_traceback_later(280, exit=True)  # ends a deadlock with a stack trace
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
torch.set_num_threads(1)
from rlhf_lab.training.distributed import init_from_env

distributed = init_from_env()
given = json.loads(sys.argv[2])
if given.get("fake_device") and distributed.world_size > 1:
    sys.path.insert(0, sys.argv[1] + "/fake_device")
    import nccl

    nccl.install()


def answer(result):
    if distributed.is_main_process:
        print("RESULT " + json.dumps(result))

"""


TAIL = """
from rlhf_lab.training.distributed import shutdown

distributed.broadcast(None)
shutdown()
threads = []
for path in glob.glob("/proc/self/task/*/comm"):  # Linux only
    with contextlib.suppress(OSError):  # the thread has ended
        threads.append(open(path).read().strip())
if not given.get("sharded") and any("gloo" in name for name in threads):
    sys.exit(f"threads of the group run after shutdown(), and may abort the process at its exit: {threads}")
sys.stdout.flush()
os._exit(0)  # with a sharded backbone torch keeps such threads
"""


def run_here(script: str, given: dict[str, object]) -> object:
    """Like `launch` with one process, which is this one."""
    answers: list[object] = []
    exec(script, {"torch": torch, "distributed": SINGLE_PROCESS, "given": given, "answer": answers.append})
    return json.loads(json.dumps(answers[0]))


def launch(folder: Path, script: str, given: dict[str, object], processes: int) -> object:
    """The argument of `answer(…)` in the main process; the script has the variables `given` and `distributed`.

    folder: for the script. given: "sharded" for a sharded backbone, with which torch keeps the threads of the group;
    "fake_device" for several processes on the fake device (fake_device/nccl.py).
    """
    launcher = (
        [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    )
    path = folder / "child.py"
    path.write_text(HEAD + script + TAIL)
    command = [sys.executable, *launcher, str(path), str(Path(__file__).parents[1]), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))
