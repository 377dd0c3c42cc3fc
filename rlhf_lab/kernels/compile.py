"""The kernels in csrc/, compiled by the machine's C compiler when first needed, and cached.

They are optional: with PyTorch's operations a PPO step takes a fifth more time (twice the time in bfloat16 on a
processor with AMX). These are used, and one line is logged, if there is no compiler or it fails.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from rlhf_lab.common.atomic import atomic_file
from rlhf_lab.common.paths import user_cache_folder

log = logging.getLogger("rlhf_lab.kernels")

#: 0: no kernels. USE_VECTORS: layers in C (amx_layer.py) also by AVX-512 vectors; by default they need AMX tiles.
KERNELS_ENV, USE_VECTORS = "RLHF_LAB_KERNELS", "vectors"
COMPILERS = ("cc", "gcc", "clang")
SOURCES = sorted(Path(__file__).parent.joinpath("csrc").glob("*.[ch]"))
#: No flag lets the compiler reorder sums; only multiply-adds may be fused.
FLAGS = (
    "-std=c11", "-O3", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast",
)  # fmt: skip
#: By the capability that PyTorch reports.
VECTOR_FLAGS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mfma"),
}
DTYPE_FLAGS: dict[torch.dtype, Sequence[str]] = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}
#: Options for bfloat16 matrix products (amx_matmul.c), by PyTorch's name of the capability, best first.
AMX = ("amx_bf16", ("-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-DUSE_AMX"))
MATMUL_FLAGS = {torch.bfloat16: (AMX, ("avx512_bf16", ("-mavx512bf16",)))}
COMPILE_TIMEOUT_S = 60  # seconds for the compiler


def load_kernels(dtype: torch.dtype = torch.float32) -> ctypes.CDLL | None:
    """The compiled kernels for tensors of a dtype; None if there are none."""
    return _load_or_explain(dtype)[0] if dtype in DTYPE_FLAGS else None


def describe(dtype: torch.dtype = torch.float32) -> str:
    """A sentence that says whether there are kernels for a dtype, and if not, why."""
    message = (
        _load_or_explain(dtype)[1] if dtype in DTYPE_FLAGS else f"no kernels: there are none for {_dtype_name(dtype)}"
    )
    return f"{message}, layers by {layer_backend(dtype)}" if layer_backend(dtype) else message


def layer_backend(dtype: torch.dtype) -> str:
    """How layers in C multiply tensors of a dtype: "tiles", or USE_VECTORS if requested; "" if there are none."""
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
        log.warning("%s: %s; PyTorch's operations are used instead", _dtype_name(dtype), message)
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
    """The library compiled with the first option set that the compiler accepts. Raises as `compiled_library` if it
    accepts none.
    """
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
    """Compiler options for this processor's matrix products in a dtype, best first, ending with none."""
    capabilities = torch.cpu.get_capabilities() if torch.backends.cpu.get_cpu_capability() == "AVX512" else {}
    usable = [
        entry
        for entry in MATMUL_FLAGS.get(dtype, ())
        if capabilities.get(entry[0]) and (entry is not AMX or _request_amx_permission())
    ]
    return [*(options for _, options in usable), ()]


def _request_amx_permission() -> bool:
    """Whether the operating system grants this process AMX tiles, which must be requested once; False if they are
    disabled.
    """
    if os.environ.get(KERNELS_ENV) == USE_VECTORS:
        return False
    request, feature = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    status: int = ctypes.CDLL(None).syscall(158, request, feature)  # arch_prctl of x86-64
    return status == 0


def _vector_flags() -> Sequence[str] | None:
    """Compiler options for this processor; None on x86 without fused multiply-add."""
    capability = torch.backends.cpu.get_cpu_capability()
    lacks_vectors = capability not in VECTOR_FLAGS and platform.machine() in ("x86_64", "AMD64", "i686")
    return None if lacks_vectors else VECTOR_FLAGS.get(capability, ())


def find_compiler() -> list[str]:
    """The C compiler as a command: that of the variable CC, else the first one found; empty if there is none."""
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
    """The library's file, compiled unless it is cached.

    Raises OSError, or subprocess.SubprocessError with the compiler's output.
    """
    command = [*compiler, *FLAGS, *options]
    compiler_version = subprocess.run(
        [*compiler, "--version"], check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S
    ).stdout
    key = hashlib.sha256(
        b"".join([repr(command).encode(), compiler_version, *(source.read_bytes() for source in SOURCES)])
    )
    path = cache_folder() / f"{key.hexdigest()[:24]}.so"
    if not path.exists():
        _compile(command, path)
    return path


def _compile(command: Sequence[str], path: Path) -> None:
    with atomic_file(path) as output:  # another process may be compiling it as well
        sources = [str(source) for source in SOURCES if source.suffix == ".c"]
        subprocess.run(
            [*command, "-o", str(output), *sources, "-lm"], check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S,
            text=True, errors="replace",
        )  # fmt: skip
        output.chmod(0o700)  # whatever the umask: see `_sharing_problem`


def cache_folder() -> Path:
    """The user's cache folder; a temporary folder if it cannot be written, or if another user could put a library there."""
    try:
        folder = user_cache_folder() / "kernels"
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o700)
        _close_to_group(folder)
        if (problem := _sharing_problem(folder)) is not None:
            log.warning("%s; the kernels are compiled into a private folder instead, at every start", problem)
            return Path(_temporary_cache_folder().name)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return Path(_temporary_cache_folder().name)


def _close_to_group(folder: Path) -> None:
    """Remove group write permission (usual with umask 002) from our own folders, and delete libraries that may be the group's."""
    for path in (folder.parent, folder):
        status = path.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if is_ours and status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH:
            path.chmod(0o700)
            for library in folder.glob("*.so"):
                library.unlink()


def _sharing_problem(folder: Path) -> str | None:
    """Why another user (root excepted) could put a library into the folder or replace one; None if none can.

    A library is code that this process runs.
    """
    for path in (folder, folder.parent, folder.parent.parent, *folder.glob("*.so")):
        status = path.stat() if path == folder.parent.parent else path.lstat()  # the user's cache folder may be a link
        if status.st_uid not in (os.geteuid(), 0):
            return f"{path} belongs to another user"
        if stat.S_ISLNK(status.st_mode):
            return f"{path} is a link"
        is_sticky = (
            path == folder.parent.parent and status.st_mode & stat.S_ISVTX
        )  # other users cannot replace our files in a sticky folder
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
            return f"others may write to {path} (delete it, or take the permission away)"
    for path in {*folder.parent.parent.parents, *folder.resolve().parents[2:]}:
        if path.stat().st_mode & stat.S_IWOTH and not path.stat().st_mode & stat.S_ISVTX:
            return f"everybody may write to {path} (take the permission away)"
    return None


@functools.cache
def _temporary_cache_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="rlhf-lab-kernels-")


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that PyTorch uses; None unless it is GNU's (it is not on macOS and Windows)."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(errors="replace").splitlines() if maps.exists() else []
    libraries = {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line.rpartition("/")[2]}
    torch_libraries = [path for path in libraries if "/torch/lib/" in path or "/torch.libs/" in path]
    return ctypes.CDLL(min(torch_libraries or libraries)) if torch_libraries or len(libraries) == 1 else None
