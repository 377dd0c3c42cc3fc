"""The kernels beside this file, compiled by the machine's C compiler when they are first wanted, and kept.

Nothing needs them: what they compute, PyTorch's operations compute too, in a fifth more time a PPO step (in bfloat16, where a
processor has tiles to multiply it by, in twice the time). So where there is no
compiler, or anything goes wrong with it, one line of log says so and that is all.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

log = logging.getLogger("rlhf_lab.fused")

#: 0: never. VECTORS: layers in C (tiled.py) by those too, which are else computed so only where there are tiles.
SWITCH, VECTORS = "RLHF_LAB_KERNELS", "vectors"
COMPILERS = ("cc", "gcc", "clang")
SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
#: Every sum keeps its order: no flag lets a compiler change the numbers, but for products and sums in one rounding.
FLAGS = (
    "-std=c11", "-O3", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast",
)  # fmt: skip
#: What PyTorch found the processor to have.
PROCESSORS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mfma"),
}
#: What it is told of the numbers of tensors.
KINDS: dict[torch.dtype, Sequence[str]] = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}
#: And of instructions for products of them (products.c), by torch's name of the ability, best first.
TILES = ("amx_bf16", ("-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-DTILES"))
PRODUCTS = {torch.bfloat16: (TILES, ("avx512_bf16", ("-mavx512bf16",)))}
LONGEST = 60  # seconds for the compiler


def library(dtype: torch.dtype = torch.float32) -> ctypes.CDLL | None:
    """The kernels for tensors of a dtype, compiled and ready to be called; None where there are none."""
    return _found(dtype)[0] if dtype in KINDS else None


def described(dtype: torch.dtype = torch.float32) -> str:
    """Whether there are kernels for tensors of a dtype, and why not, in words."""
    said = _found(dtype)[1] if dtype in KINDS else f"no kernels: there are none for {_name(dtype)}"
    return f"{said}, layers by {layers_by(dtype)}" if layers_by(dtype) else said


def layers_by(dtype: torch.dtype) -> str:
    """With what layers in C multiply tensors of a dtype: "tiles", or VECTORS where those are wanted; "" where there are none."""
    kernels = library(dtype)
    if not hasattr(kernels, "layer_forward"):
        return ""
    return "tiles" if hasattr(kernels, "by_tiles") else VECTORS if os.environ.get(SWITCH) == VECTORS else ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _found(dtype: torch.dtype) -> tuple[ctypes.CDLL | None, str]:
    if os.environ.get(SWITCH) == "0":
        return None, f"no kernels ({SWITCH}=0)"
    try:
        kernels, said = _made(dtype)
    except (OSError, subprocess.SubprocessError, AttributeError, RuntimeError, ValueError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        kernels, said = None, f"no kernels: they could not be compiled and loaded: {' '.join(lines[-1:])}"
        log.warning("%s: %s; PyTorch's operations compute instead", _name(dtype), said)
    else:
        log.info("%s: %s", _name(dtype), said)
    return kernels, said


def _made(dtype: torch.dtype) -> tuple[ctypes.CDLL | None, str]:
    vectors, openmp = _vectors(), _openmp()
    if vectors is None:
        return None, "no kernels: this processor's vectors are too short for them"
    if openmp is None:
        return None, "no kernels: PyTorch does not run on GNU's OpenMP here, whose threads they would use"
    compiler = compiler_here()
    if not compiler:
        return None, f"no kernels: a C compiler ({', '.join(COMPILERS)}) on the PATH would make PPO a fifth faster"
    kernels = _loaded(compiler, [[*vectors, *KINDS[dtype], *more] for more in products(dtype)])
    entries = (getattr(openmp, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"))
    kernels.use_threads_of(*(ctypes.cast(entry, ctypes.c_void_p) for entry in entries))
    return kernels, f"kernels compiled by {' '.join(compiler)}"


def _loaded(compiler: Sequence[str], ways: Sequence[Sequence[str]]) -> ctypes.CDLL:
    """What the compiler makes with the first of these options that it knows. Raises as `compiled` where it knows none."""
    options, *others = ways
    try:
        path = compiled(compiler, options)
    except subprocess.CalledProcessError:
        if not others:
            raise
        return _loaded(compiler, others)
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # damaged on the disk
        path.unlink()
        return ctypes.CDLL(str(compiled(compiler, options)))


def products(dtype: torch.dtype) -> list[Sequence[str]]:
    """What the compiler may be told of this processor's products in a dtype, best first, with nothing as the last."""
    able = torch.cpu.get_capabilities() if torch.backends.cpu.get_cpu_capability() == "AVX512" else {}
    known = [way for way in PRODUCTS.get(dtype, ()) if able.get(way[0]) and (way is not TILES or _may_use_tiles())]
    return [*(options for _, options in known), ()]


def _may_use_tiles() -> bool:
    """Whether the kernel lends its tiles to this process, which has to ask for them once; no where it is not to have them."""
    if os.environ.get(SWITCH) == VECTORS:
        return False
    ask_for, tiles = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    said: int = ctypes.CDLL(None).syscall(158, ask_for, tiles)  # arch_prctl of x86-64
    return said == 0


def _vectors() -> Sequence[str] | None:
    """What the compiler is told of the processor; None where PyTorch has only what every x86 has, products and sums apart."""
    capability = torch.backends.cpu.get_cpu_capability()
    plain = capability not in PROCESSORS and platform.machine() in ("x86_64", "AMD64", "i686")
    return None if plain else PROCESSORS.get(capability, ())


def compiler_here() -> list[str]:
    """The C compiler as words of a command: what the variable CC says, else the first one found; none where there is none."""
    chosen = os.environ.get("CC", "")
    whole = shutil.which(chosen) if chosen else None
    if whole is not None:
        return [whole]
    for name, *options in [shlex.split(chosen)] if chosen else [[name] for name in COMPILERS]:
        found = shutil.which(name)
        if found is not None:
            return [found, *options]
    return []


def compiled(compiler: Sequence[str], options: Sequence[str]) -> Path:
    """The library's file, compiled unless it is there.

    Raises OSError, or subprocess.SubprocessError with what the compiler said.
    """
    command = [*compiler, *FLAGS, *options]
    release = subprocess.run([*compiler, "--version"], check=True, capture_output=True, timeout=LONGEST).stdout
    key = hashlib.sha256(b"".join([repr(command).encode(), release, *(source.read_bytes() for source in SOURCES)]))
    path = _kept_in() / f"{key.hexdigest()[:24]}.so"
    if not path.exists():
        _compile(command, path)
    return path


def _compile(command: Sequence[str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        sources = [str(source) for source in SOURCES if source.suffix == ".c"]
        subprocess.run(
            [*command, "-o", str(made), *sources, "-lm"], check=True, capture_output=True, timeout=LONGEST,
            text=True, errors="replace",
        )  # fmt: skip
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(path)  # whole, whoever else compiles it now


def _kept_in() -> Path:
    """A folder of the person's own; a new one that goes with the process where that cannot be written."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (cache if cache.is_absolute() else Path("~/.cache").expanduser()) / "rlhf-lab" / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # the latter where nobody knows whose home it would be
        return Path(_own_folder().name)


@functools.cache
def _own_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="rlhf-lab-kernels-")


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that PyTorch runs on; None where it is not GNU's, as on macOS and Windows."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(errors="replace").splitlines() if maps.exists() else []
    found = {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line.rpartition("/")[2]}
    of_torch = [path for path in found if "/torch/lib/" in path or "/torch.libs/" in path]
    return ctypes.CDLL(min(of_torch or found)) if of_torch or len(found) == 1 else None
