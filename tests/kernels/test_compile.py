"""The kernels are compiled once and cached; after any failure there are none, and one log line says so."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlhf_lab.kernels import compile


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache folder; the results of `load_kernels` in memory are cleared before and after.

    Kernels are compiled without optimisation, in a sixth of the time.
    """
    monkeypatch.setattr(compile, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in compile.FLAGS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(compile.KERNELS_ENV, raising=False)
    compile._load_or_explain.cache_clear()
    yield tmp_path / "cache"
    compile._load_or_explain.cache_clear()


@pytest.fixture
def usable_processor(monkeypatch):
    """Vectors and threads that kernels can use, whatever this machine has; only a compiler decides."""
    monkeypatch.setattr(compile, "_vector_flags", lambda: ())
    monkeypatch.setattr(compile, "_openmp", SimpleNamespace)


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_no_kernels_without_a_compiler(own_cache, usable_processor, tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level("INFO", "rlhf_lab.kernels"):
        assert compile.load_kernels() is None
    assert "a C compiler (cc, gcc, clang) on the PATH would make PPO a fifth faster" in caplog.text
    assert compile.describe() in caplog.text


def test_kernels_are_compiled_per_dtype(kernels, own_cache, tmp_path, monkeypatch):
    """A compiler that cannot compile the bfloat16 kernels still compiles the others."""
    refuses = f'case "$*" in *BFLOAT16*) exit 1;; esac\nexec {" ".join(compile.find_compiler())} "$@"'
    monkeypatch.setenv("CC", script(tmp_path / "cc", refuses))
    assert compile.load_kernels(torch.float32) is not None
    assert compile.load_kernels(torch.bfloat16) is None
    assert compile.describe(torch.float32).startswith("kernels compiled by")
    assert compile.describe(torch.bfloat16).startswith("no kernels: they could not be compiled")
    assert compile.load_kernels(torch.float64) is None
    assert compile.describe(torch.float64) == "no kernels: there are none for float64"


def test_falls_back_to_older_instructions_if_the_compiler_lacks_the_newest(kernels, own_cache, tmp_path, monkeypatch):
    refuses = f'case "$*" in *-mamx*|*-mavx512bf16*) exit 1;; esac\nexec {" ".join(compile.find_compiler())} "$@"'
    monkeypatch.setenv("CC", script(tmp_path / "cc", refuses))
    monkeypatch.setattr(compile, "matmul_flag_sets", lambda _: [("-mavx512bf16", "-mamx-bf16"), ("-mavx512bf16",), ()])
    assert compile.load_kernels(torch.bfloat16) is not None
    assert compile.layer_backend(torch.bfloat16) == ""


@pytest.mark.parametrize("chosen", ["no-such-compiler", 'gcc "'])
def test_no_kernels_if_CC_does_not_exist(own_cache, usable_processor, monkeypatch, chosen):
    monkeypatch.setenv("CC", chosen)
    assert compile.load_kernels() is None


def test_no_kernels_without_gnu_openmp(own_cache, usable_processor, monkeypatch):
    """A kernel with one thread would be slower than PyTorch with all threads."""
    monkeypatch.setattr(compile, "_openmp", lambda: None)
    assert compile.load_kernels() is None
    assert "GNU's OpenMP" in compile.describe()


@pytest.mark.parametrize(("machine", "is_supported"), [("x86_64", False), ("aarch64", True)])
def test_no_kernels_on_processors_without_fma(own_cache, monkeypatch, machine, is_supported):
    monkeypatch.setattr(compile.torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    monkeypatch.setattr(compile.platform, "machine", lambda: machine)
    assert (compile._vector_flags() is not None) is is_supported
    if not is_supported:
        assert compile.load_kernels() is None


@pytest.mark.parametrize("folder", ["/opt/of mine/torch/lib/", "/opt/torch.libs/"])
def test_prefers_the_openmp_library_of_torch(monkeypatch, tmp_path, folder):
    lines = [
        f"7f0-7f1 r-xp 00000000 fe:00 12 {path}" for path in ("/usr/lib/libgomp.so.1", f"{folder}libgomp.so.1", "/x.so")
    ]
    (tmp_path / "maps").write_text("\n".join(lines))
    monkeypatch.setattr(compile, "Path", lambda *_: tmp_path / "maps")
    monkeypatch.setattr(compile.ctypes, "CDLL", lambda path: path)
    assert compile._openmp() == f"{folder}libgomp.so.1"
    (tmp_path / "maps").write_text("\n".join([lines[0], lines[0].replace(".1", ".2")]))
    assert compile._openmp() is None


def test_CC_may_contain_options(kernels, own_cache, monkeypatch):
    plain = compile.find_compiler()
    monkeypatch.setenv("CC", f"{plain[0]} -g0")
    assert compile.find_compiler() == [plain[0], "-g0"]
    assert compile.load_kernels() is not None


def test_a_compiler_error_is_logged(own_cache, usable_processor, tmp_path, monkeypatch, caplog):
    """In any encoding."""
    failing = '[ "$1" = --version ] || { printf "no f\\344hler left" >&2; exit 1; }'
    monkeypatch.setenv("CC", script(tmp_path / "a compiler", failing))
    assert compile.load_kernels() is None
    assert "could not be compiled and loaded: no f\ufffdhler left; PyTorch's operations are used" in caplog.text
    assert not list(own_cache.rglob("*.so"))


def test_an_unloadable_library_is_logged(own_cache, usable_processor, tmp_path, monkeypatch, caplog):
    made = 'while [ "$1" != -o ]; do [ "$1" = --version ] && exit 0; shift; done; echo nothing > "$2"'
    monkeypatch.setenv("CC", script(tmp_path / "cc", made))
    assert compile.load_kernels() is None
    assert "PyTorch's operations are used instead" in caplog.text


def test_a_failed_compilation_leaves_no_library(own_cache, usable_processor, tmp_path, monkeypatch):
    half = 'while [ "$1" != -o ]; do [ "$1" = --version ] && exit 0; shift; done; echo half > "$2"; exit 1'
    monkeypatch.setenv("CC", script(tmp_path / "cc", half))
    assert compile.load_kernels() is None
    assert not list(own_cache.rglob("*.so"))


def test_kernels_can_be_disabled(own_cache, monkeypatch):
    monkeypatch.setenv(compile.KERNELS_ENV, "0")
    assert compile.load_kernels() is None
    assert compile.describe() == "no kernels (RLHF_LAB_KERNELS=0)"


def test_describe(kernels, own_cache, tmp_path, monkeypatch):
    assert compile.describe() == f"kernels compiled by {compile.find_compiler()[0]}"
    compile._load_or_explain.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "a C compiler (cc, gcc, clang) on the PATH" in compile.describe()


def path_of(compiler, capability=None):
    vectors = compile._vector_flags() if capability is None else compile.VECTOR_FLAGS.get(capability, ())
    return compile.compiled_library(compiler, vectors)


def test_kernels_are_compiled_once(kernels, own_cache, monkeypatch):
    compiler = compile.find_compiler()
    path = path_of(compiler)
    assert path.is_relative_to(own_cache)
    assert [path] == list(own_cache.rglob("*.so"))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    monkeypatch.setattr(compile, "_compile", lambda *_: pytest.fail("compiled twice"))
    assert path_of(compiler) == path


def test_a_damaged_library_is_compiled_again(kernels, own_cache):
    path = path_of(compile.find_compiler())
    path.write_bytes(b"")
    assert compile.load_kernels() is not None
    assert path.stat().st_size > 10_000


def test_library_depends_on_source_and_processor(kernels, own_cache, tmp_path, monkeypatch):
    compiler = compile.find_compiler()
    monkeypatch.setattr(compile, "_compile", lambda *_: None)
    paths = [path_of(compiler, capability) for capability in ("AVX512", "AVX2", "DEFAULT")]
    other = tmp_path / "rows.c"
    other.write_text("/* changed */")
    monkeypatch.setattr(compile, "SOURCES", [other])
    paths.append(path_of(compiler, "AVX512"))
    assert len(set(paths)) == 4


@pytest.mark.parametrize("capability", ["DEFAULT", "AVX2"])
def test_kernels_compile_for_other_processors(kernels, own_cache, capability):
    if compile.platform.machine() != "x86_64":
        pytest.skip("these are options for x86")
    assert path_of(compile.find_compiler(), capability).stat().st_size > 10_000


@pytest.mark.parametrize("case", ["a file in its place", "a relative one", "nobody's home"])
def test_unwritable_cache_folder_compiles_for_this_process(kernels, own_cache, monkeypatch, case):
    if case == "a file in its place":
        own_cache.write_text("a file where the folder should be")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "here")

    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    if case == "nobody's home":
        monkeypatch.setattr(compile.Path, "expanduser", no_home)
    elif case == "a relative one":
        monkeypatch.setattr(compile.Path, "expanduser", lambda _: own_cache)
    path = path_of(compile.find_compiler())
    assert path.exists()
    assert path.is_relative_to(own_cache) is (case == "a relative one")


def test_kernels_run_on_pytorchs_threads(kernels):
    """One OpenMP library in the process, so one pool of threads."""
    code = (
        "import torch, re\nfrom pathlib import Path\nfrom rlhf_lab.kernels import c_ops\ntorch.set_num_threads(2)\n"
        "x = torch.randn(5000, 64)\nc_ops.rms_norm(x, torch.ones(64), 1e-6)\n"
        "print(len(set(re.findall(r'/\\S*gomp\\S*|/\\S*iomp\\S*', Path('/proc/self/maps').read_text()))))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=root, env=os.environ
    )
    assert done.stdout.strip() == "1"


def test_fewer_threads_than_requested_do_all_the_work(kernels):
    code = (
        "import torch\nfrom rlhf_lab.kernels import c_ops\ntorch.set_num_threads(4)\nx = torch.randn(5000, 64)\n"
        "found = c_ops.swiglu(x, x)\ntorch.testing.assert_close(found, torch.nn.functional.silu(x) * x)"
    )
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_THREAD_LIMIT": "2"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, env=environment)


def make_untrusted(cache, case):
    """The kernels' folder as an attacker may have prepared it; without a second user, which would need root."""
    folder = cache / "rlhf-lab" / "kernels"
    folder.mkdir(parents=True, mode=0o700)
    if case == "folder that everybody may write to":
        folder.chmod(0o777)
    elif case == "parent that everybody may write to":
        folder.parent.chmod(0o777)
    elif case == "cache that everybody may write to":
        cache.chmod(0o777)
    elif case == "folder above the cache that everybody may write to":
        cache.parent.chmod(0o777)
    elif case == "sticky folder":
        folder.chmod(0o1777)
    elif case == "sticky parent":
        folder.parent.chmod(0o1777)
    elif case == "sticky library":
        (folder / "0123.so").write_bytes(b"")
        (folder / "0123.so").chmod(0o1666)
    elif case == "sticky cache":
        cache.chmod(0o1777)
    elif case == "link":
        target = cache / "elsewhere"
        folder.rename(target)
        folder.symlink_to(target)
    elif case == "library that everybody may write to":
        (folder / "0123.so").write_bytes(b"")
        (folder / "0123.so").chmod(0o666)


@pytest.mark.parametrize(
    "case",
    ["folder that everybody may write to", "parent that everybody may write to",
     "cache that everybody may write to", "link", "library that everybody may write to", "folder of another user",
     "sticky folder", "sticky parent", "sticky library", "folder above the cache that everybody may write to"],
)  # fmt: skip
def test_a_cache_folder_that_others_can_write_to_is_not_used(own_cache, monkeypatch, caplog, case):
    make_untrusted(own_cache, case)
    if case == "folder of another user":
        monkeypatch.setattr(compile.os, "geteuid", lambda: 4321)
        monkeypatch.setattr(compile.Path, "lstat", lambda path: SimpleNamespace(st_uid=1234, st_mode=0o40700))
    folder = compile.cache_folder()
    assert not folder.is_relative_to(own_cache)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "private folder" in caplog.text


@pytest.mark.parametrize("shared", ["rlhf-lab", "rlhf-lab/kernels"])
def test_a_cache_folder_of_ones_own_is_closed_to_the_group_and_emptied(own_cache, shared):
    folder = own_cache / "rlhf-lab" / "kernels"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "0123.so").write_bytes(b"")
    (own_cache / shared).chmod(0o775)
    assert compile.cache_folder() == folder
    assert stat.S_IMODE((own_cache / shared).stat().st_mode) == 0o700
    assert list(folder.iterdir()) == []  # the group may have written the library


def test_kernels_compiled_with_an_open_umask_are_found_again(own_cache):
    own_cache.mkdir(exist_ok=True)
    own_cache.chmod(0o700)
    before = os.umask(0o002)
    try:
        library = compile.compiled_library(compile.find_compiler(), [])
    finally:
        os.umask(before)
    assert stat.S_IMODE(library.stat().st_mode) & 0o022 == 0
    written_at = library.stat().st_mtime_ns
    assert compile.compiled_library(compile.find_compiler(), []) == library
    assert library.stat().st_mtime_ns == written_at


@pytest.mark.parametrize("case", ["nothing", "sticky cache"])
def test_a_cache_folder_of_ones_own_is_used(own_cache, case):
    """In a folder such as /tmp others cannot replace it."""
    make_untrusted(own_cache, case)
    (own_cache / "rlhf-lab" / "kernels" / "0123.so").write_bytes(b"")
    (own_cache / "rlhf-lab" / "kernels" / "0123.so").chmod(0o755)
    assert compile.cache_folder() == own_cache / "rlhf-lab" / "kernels"
