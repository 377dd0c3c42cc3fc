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

log = logging.getLogger("rlhf_lab.kernels")

#: 0: never. VECTORS: layers in C (amx_layer.py) by those too, which are else computed so only where there are tiles.
KERNELS_ENV, USE_VECTORS = "RLHF_LAB_KERNELS", "vectors"
COMPILERS = ("cc", "gcc", "clang")
SOURCES = sorted(Path(__file__).parent.joinpath("csrc").glob("*.[ch]"))
#: Every sum keeps its order: no flag lets a compiler change the numbers, but for products and sums in one rounding.
FLAGS = (
    "-std=c11", "-O3", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast",
)  # fmt: skip
#: What PyTorch found the processor to have.
VECTOR_FLAGS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mfma"),
}
#: What it is told of the numbers of tensors.
DTYPE_FLAGS: dict[torch.dtype, Sequence[str]] = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}
#: And of instructions for products of them (amx_matmul.c), by torch's name of the ability, best first.
AMX = ("amx_bf16", ("-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-DUSE_AMX"))
MATMUL_FLAGS = {torch.bfloat16: (AMX, ("avx512_bf16", ("-mavx512bf16",)))}
COMPILE_TIMEOUT_S = 60  # seconds for the compiler


def load_kernels(dtype: torch.dtype = torch.float32) -> ctypes.CDLL | None:
    """The kernels for tensors of a dtype, compiled and ready to be called; None where there are none."""
    return _load_or_explain(dtype)[0] if dtype in DTYPE_FLAGS else None


def describe(dtype: torch.dtype = torch.float32) -> str:
    """Whether there are kernels for tensors of a dtype, and why not, in words."""
    message = (
        _load_or_explain(dtype)[1] if dtype in DTYPE_FLAGS else f"no kernels: there are none for {_dtype_name(dtype)}"
    )
    return f"{message}, layers by {layer_backend(dtype)}" if layer_backend(dtype) else message


def layer_backend(dtype: torch.dtype) -> str:
    """With what layers in C multiply tensors of a dtype: "tiles", or VECTORS where those are wanted; "" where there are none."""
    kernels = load_kernels(dtype)
    if not hasattr(kernels, "layer_forward"):
        return ""
    return (
        "tiles" if hasattr(kernels, "uses_amx") else USE_VECTORS if os.environ.get(KERNELS_ENV) == USE_VECTORS else ""
    )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@functools.cache
def _load_or_explain(dtype: torch.dtype) -> tuple[ctypes.CDLL | None, str]:
    if os.environ.get(KERNELS_ENV) == "0":
        return None, f"no kernels ({KERNELS_ENV}=0)"
    try:
        kernels, message = _build(dtype)
    except (OSError, subprocess.SubprocessError, AttributeError, RuntimeError, ValueError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        kernels, message = None, f"no kernels: they could not be compiled and loaded: {' '.join(lines[-1:])}"
        log.warning("%s: %s; PyTorch's operations compute instead", _dtype_name(dtype), message)
    else:
        log.info("%s: %s", _dtype_name(dtype), message)
    return kernels, message


def _build(dtype: torch.dtype) -> tuple[ctypes.CDLL | None, str]:
    vector_flags, openmp = _vector_flags(), _openmp()
    if vector_flags is None:
        return None, "no kernels: this processor's vectors are too short for them"
    if openmp is None:
        return None, "no kernels: PyTorch does not run on GNU's OpenMP here, whose threads they would use"
    compiler = find_compiler()
    if not compiler:
        return None, f"no kernels: a C compiler ({', '.join(COMPILERS)}) on the PATH would make PPO a fifth faster"
    kernels = _compile_and_load(
        compiler, [[*vector_flags, *DTYPE_FLAGS[dtype], *matmul_flags] for matmul_flags in matmul_flag_sets(dtype)]
    )
    entries = (getattr(openmp, name) for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"))
    kernels.set_openmp_functions(*(ctypes.cast(entry, ctypes.c_void_p) for entry in entries))
    return kernels, f"kernels compiled by {' '.join(compiler)}"


def _compile_and_load(compiler: Sequence[str], option_sets: Sequence[Sequence[str]]) -> ctypes.CDLL:
    """What the compiler makes with the first of these options that it knows. Raises as `compiled_library` where it knows none."""
    options, *others = option_sets
    try:
        path = compiled_library(compiler, options)
    except subprocess.CalledProcessError:
        if not others:
            raise
        return _compile_and_load(compiler, others)
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # damaged on the disk
        path.unlink()
        return ctypes.CDLL(str(compiled_library(compiler, options)))


def matmul_flag_sets(dtype: torch.dtype) -> list[Sequence[str]]:
    """What the compiler may be told of this processor's products in a dtype, best first, with nothing as the last."""
    capabilities = torch.cpu.get_capabilities() if torch.backends.cpu.get_cpu_capability() == "AVX512" else {}
    usable = [
        entry
        for entry in MATMUL_FLAGS.get(dtype, ())
        if capabilities.get(entry[0]) and (entry is not AMX or _request_amx_permission())
    ]
    return [*(options for _, options in usable), ()]


def _request_amx_permission() -> bool:
    """Whether the kernel lends its tiles to this process, which has to ask for them once; no where it is not to have them."""
    if os.environ.get(KERNELS_ENV) == USE_VECTORS:
        return False
    request, feature = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    status: int = ctypes.CDLL(None).syscall(158, request, feature)  # arch_prctl of x86-64
    return status == 0


def _vector_flags() -> Sequence[str] | None:
    """What the compiler is told of the processor; None where PyTorch has only what every x86 has, products and sums apart."""
    capability = torch.backends.cpu.get_cpu_capability()
    lacks_vectors = capability not in VECTOR_FLAGS and platform.machine() in ("x86_64", "AMD64", "i686")
    return None if lacks_vectors else VECTOR_FLAGS.get(capability, ())


def find_compiler() -> list[str]:
    """The C compiler as words of a command: what the variable CC says, else the first one found; none where there is none."""
    cc = os.environ.get("CC", "")
    cc_path = shutil.which(cc) if cc else None
    if cc_path is not None:
        return [cc_path]
    for name, *options in [shlex.split(cc)] if cc else [[name] for name in COMPILERS]:
        path = shutil.which(name)
        if path is not None:
            return [path, *options]
    return []


def compiled_library(compiler: Sequence[str], options: Sequence[str]) -> Path:
    """The library's file, compiled unless it is there.

    Raises OSError, or subprocess.SubprocessError with what the compiler said.
    """
    command = [*compiler, *FLAGS, *options]
    compiler_version = subprocess.run(
        [*compiler, "--version"], check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S
    ).stdout
    key = hashlib.sha256(
        b"".join([repr(command).encode(), compiler_version, *(source.read_bytes() for source in SOURCES)])
    )
    path = _cache_folder() / f"{key.hexdigest()[:24]}.so"
    if not path.exists():
        _compile(command, path)
    return path


def _compile(command: Sequence[str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        output = Path(folder, path.name)
        sources = [str(source) for source in SOURCES if source.suffix == ".c"]
        subprocess.run(
            [*command, "-o", str(output), *sources, "-lm"], check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S,
            text=True, errors="replace",
        )  # fmt: skip
        with output.open("rb") as file:
            os.fsync(file.fileno())
        output.replace(path)  # whole, whoever else compiles it now


def _cache_folder() -> Path:
    """A folder of the person's own; a new one that goes with the process where that cannot be written."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (cache if cache.is_absolute() else Path("~/.cache").expanduser()) / "rlhf-lab" / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # the latter where nobody knows whose home it would be
        return Path(_temporary_cache_folder().name)


@functools.cache
def _temporary_cache_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="rlhf-lab-kernels-")


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that PyTorch runs on; None where it is not GNU's, as on macOS and Windows."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(errors="replace").splitlines() if maps.exists() else []
    libraries = {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line.rpartition("/")[2]}
    torch_libraries = [path for path in libraries if "/torch/lib/" in path or "/torch.libs/" in path]
    return ctypes.CDLL(min(torch_libraries or libraries)) if torch_libraries or len(libraries) == 1 else None
