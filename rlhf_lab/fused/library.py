"""The kernels beside this file, compiled by the machine's C compiler when they are first wanted, and kept.

Nothing needs them: what they compute, PyTorch's operations compute too, in a fifth more time a PPO step. So where there is no
compiler, or it fails, one line of log says so and that is all.
"""

import ctypes
import functools
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

log = logging.getLogger("rlhf_lab.fused")

SWITCH = "RLHF_LAB_KERNELS"  # 0: never
COMPILERS = ("cc", "gcc", "clang")
SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
#: Every sum keeps its order: no flag lets a compiler change the numbers, but for products and sums in one rounding.
FLAGS = (
    "-std=c11", "-O3", "-shared", "-fPIC", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
)  # fmt: skip
#: What PyTorch found the processor to have.
VECTORS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mfma"),
}
LONGEST = 60  # seconds for the compiler


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, ready to be called; None where there are none."""
    if os.environ.get(SWITCH) == "0":
        return None
    compiler, openmp = compiler_here(), _openmp()
    if openmp is None:
        log.info("PyTorch does not run on GNU's OpenMP here, so kernels would have one thread: its operations compute")
        return None
    if not compiler:
        log.info("no C compiler (%s): PyTorch's operations compute instead, a fifth slower", ", ".join(COMPILERS))
        return None
    try:
        return _loaded(compiled(compiler), openmp)
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        log.warning("%s did not compile the kernels, so PyTorch's operations compute: %s", compiler[0], said[-1:])
        return None


def described() -> str:
    """Whether there are kernels, in words."""
    if library() is not None:
        return f"kernels compiled by {' '.join(compiler_here())}"
    if os.environ.get(SWITCH) == "0":
        return f"no kernels ({SWITCH}=0)"
    if _openmp() is None:
        return "no kernels: PyTorch does not run on GNU's OpenMP here"
    return "no kernels: a C compiler (gcc or clang) on the PATH would make PPO a fifth faster"


def compiler_here() -> list[str]:
    """The C compiler as words of a command: what the variable CC says, else the first one found; none where there is none."""
    chosen = shlex.split(os.environ.get("CC", ""))
    for name, *options in [chosen] if chosen else [[name] for name in COMPILERS]:
        found = shutil.which(name)
        if found is not None:
            return [found, *options]
    return []


def compiled(compiler: Sequence[str], folder: Path | None = None) -> Path:
    """The library's file, compiled unless it is there. folder: where it is kept; by itself, the person's folder for such.

    Raises OSError, or subprocess.SubprocessError with what the compiler said.
    """
    command = [*compiler, *FLAGS, *VECTORS.get(torch.backends.cpu.get_cpu_capability(), ())]
    release = subprocess.run([*compiler, "--version"], check=True, capture_output=True, timeout=LONGEST).stdout
    key = hashlib.sha256(b"".join([repr(command).encode(), release, *(source.read_bytes() for source in SOURCES)]))
    folder = folder or _kept_in()
    path = folder / f"{key.hexdigest()[:24]}.so"
    if not path.exists():
        _compile(command, path)
    return path


def _compile(command: Sequence[str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        sources = [str(source) for source in SOURCES if source.suffix == ".c"]
        subprocess.run(
            [*command, "-o", str(made), *sources, "-lm"], check=True, capture_output=True, text=True, timeout=LONGEST
        )
        made.replace(path)  # whole, whoever else compiles it now


def _kept_in() -> Path:
    """A folder of the person's own; a new one that goes with the process where that cannot be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "rlhf-lab" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(_own_folder().name)


@functools.cache
def _own_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="rlhf-lab-kernels-")


def _loaded(path: Path, openmp: ctypes.CDLL) -> ctypes.CDLL:
    kernels = ctypes.CDLL(str(path))
    entries = (getattr(openmp, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"))
    kernels.use_threads_of(*(ctypes.cast(entry, ctypes.c_void_p) for entry in entries))
    return kernels


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that PyTorch runs on; None where it is not GNU's, as on macOS and Windows."""
    maps = Path("/proc/self/maps")
    found = re.findall(r"(/\S*libgomp\S*\.so\S*)", maps.read_text()) if maps.exists() else []
    of_torch = [path for path in found if "/torch" in path] or found
    return ctypes.CDLL(of_torch[0]) if of_torch else None
