"""Runs a script as one process, or as several that find each other, and hands back what it prints."""

import json
import subprocess
import sys
from pathlib import Path

HEAD = """
import contextlib, faulthandler, glob, json, os, sys
import torch
faulthandler.dump_traceback_later(280, exit=True)  # processes that wait for each other end, and say where
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
torch.set_num_threads(1)
from rlhf_lab.training.distributed import init_from_env

distributed = init_from_env()
given = json.loads(sys.argv[2])
if given.get("fake_device") and distributed.world_size > 1:
    sys.path.insert(0, sys.argv[1] + "/fake_device")
    import nccl

    nccl.pretend()


def answer(what):
    if distributed.is_main_process:
        print("RESULT " + json.dumps(what))

"""


TAIL = """
from rlhf_lab.training.distributed import shutdown

distributed.broadcast(None)
shutdown()
about = []
for path in glob.glob("/proc/self/task/*/comm"):  # Linux; elsewhere nothing is looked at
    with contextlib.suppress(OSError):  # it ended in between
        about.append(open(path).read().strip())
if not given.get("sharded") and any("gloo" in name for name in about):
    sys.exit(f"threads of the group are about after shutdown(), and may abort the process at its end: {about}")
"""


def launch(folder: Path, script: str, given: dict[str, object], processes: int) -> object:
    """What the script says with `answer(…)` in the leading process; it finds `given` and its `distributed`. folder: where it is
    written. given: with "sharded" for a backbone dealt out, for torch itself then keeps the group beyond its end; with
    "fake_device" for several processes whose models lie on devices that are not the CPU (fake_device/nccl.py)."""
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
