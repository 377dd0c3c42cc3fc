"""Runs a test against a mutant: fresh modules around one changed file, nothing written to disk.

A row is (file, name, source snippet, mutated snippet, tests). A test of `rlhf_lab/core/kl.py` is looked up in
`tests/core/test_kl.py`, then in the other files of `tests/core`; a test in another folder is named with its file:
`training/test_policy_trainer.py::test_...`. Every named test must fail. A snippet that is missing in the source, or not unique,
is an error: update the row.

The mutant is imported in place of its module. The rest of rlhf_lab, `support`, `fake_runs` and the test file are imported
again around it, and all modules are restored afterwards. The fixtures of the test file and of the conftest.py beside it are
also created again: pytest knows only those of this folder and above, and its fixtures use the original source, whose classes
and errors are different objects. Fixtures from pytest may therefore return paths, but no objects of the package.
"""

import importlib
import inspect
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The mutant does not run, or a warning (shown once per process) became an error: such a failure proves nothing.
BROKEN = (NameError, AttributeError, TypeError, ImportError, SyntaxError, Warning)


class Mutant(NamedTuple):
    file: str  # below rlhf_lab/, or support/... in tests/
    name: str
    source: str
    mutated: str
    tests: str  # names of test functions, separated by blanks; each must fail


def check_mutant(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    """Fail unless every test of the row detects the mutant."""
    source = source_path(mutant.file).read_text()
    found = source.count(mutant.source)
    assert found == 1, f"{mutant.source!r} stands {found} times in {mutant.file}: make the row follow the code."
    mutated = source.replace(mutant.source, mutant.mutated)
    for test in mutant.tests.split():
        failure = first_failure(mutant.file, mutated, test, request)
        assert failure is not None, f"{test} does not notice the mutant."
        assert not isinstance(failure, BROKEN), f"The mutant does not run, so {test} proves nothing: {failure!r}"


def check_control(file: str, test: str, request: pytest.FixtureRequest) -> None:
    """The control: the first case of the test passes with the original source. The suite itself runs all cases."""
    failure = first_failure(file, source_path(file).read_text(), test, request, max_cases=1)
    assert failure is None, f"{test} fails without any mutant: {failure!r}"


def controls(mutants: list[Mutant]) -> list[tuple[str, str]]:
    """(file, test) of every test that a row names."""
    return sorted({(mutant.file, test) for mutant in mutants for test in mutant.tests.split()})


def mutant_tests(mutants: list[Mutant]) -> tuple[Callable[..., None], Callable[..., None]]:
    """The two tests of a table: every mutant is killed, and without one the tests that kill it pass.

    The second is slow: the suite runs these tests anyway, and the control is about this module's way of running them.
    """

    @pytest.mark.parametrize("mutant", mutants, ids=[f"{mutant.file} {mutant.name}" for mutant in mutants])
    def test_mutant_is_killed(mutant: Mutant, request: pytest.FixtureRequest) -> None:
        check_mutant(mutant, request)

    @pytest.mark.slow
    @pytest.mark.parametrize(("file", "test"), controls(mutants))
    def test_without_a_mutant_it_passes(file: str, test: str, request: pytest.FixtureRequest) -> None:
        check_control(file, test, request)

    return test_mutant_is_killed, test_without_a_mutant_it_passes


def source_path(file: str) -> Path:
    """The file of a row: below rlhf_lab/, or in tests/support/."""
    return ROOT / ("tests" if file.startswith("support/") else "rlhf_lab") / file


def is_ours(name: str) -> bool:
    return name in {"rlhf_lab", "support", "fake_runs"} or name.startswith(("rlhf_lab.", "support."))


class MutantLoader(SourceFileLoader, MetaPathFinder):
    """Imports a module from `source` in place of its file."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        super().__init__(name, str(path))
        self.source = source

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, f"mutant of {self.path}", "exec")


@contextmanager
def package_with(file: str, source: str) -> Iterator[None]:
    """Within the block, `import rlhf_lab...` loads `source` in place of `file`, and new copies of all other modules."""
    name = ".".join(source_path(file).relative_to(ROOT).with_suffix("").parts).removeprefix("tests.")
    saved = {key: sys.modules.pop(key) for key in list(sys.modules) if is_ours(key)}
    loader = MutantLoader(name, source_path(file), source)
    sys.meta_path.insert(0, loader)
    try:
        importlib.import_module(name)
        yield
    finally:
        sys.meta_path.remove(loader)
        for key in [key for key in sys.modules if is_ours(key)]:
            del sys.modules[key]
        sys.modules.update(saved)


@contextmanager
def kernels_with(file: str, source: str) -> Iterator[None]:
    """Within the block, new modules whose kernels are compiled with `source` in place of `file`, in a temporary folder."""
    saved = {key: sys.modules.pop(key) for key in list(sys.modules) if is_ours(key)}
    try:
        library = importlib.import_module("rlhf_lab.kernels.compile")
        with tempfile.TemporaryDirectory() as folder:
            copies = [Path(shutil.copy(each, folder)) for each in library.SOURCES]
            Path(folder, Path(file).name).write_text(source)
            library.SOURCES, library.cache_folder = copies, lambda: Path(folder)
            library.FLAGS = tuple(
                "-O0" if flag == "-O3" else flag for flag in library.FLAGS
            )  # compiles in a sixth of the time
            dtype = (
                library.torch.bfloat16 if "#ifdef HAS_BF16_MATMUL" in source else library.torch.float32
            )  # the dtype whose kernels have its functions
            assert library.load_kernels(dtype) is not None, "the mutant does not compile"
            yield
    finally:
        for key in [key for key in sys.modules if is_ours(key)]:
            del sys.modules[key]
        sys.modules.update(saved)


def cases(function: FunctionType) -> Iterator[dict[str, object]]:
    """The arguments of every parametrized case of a test function."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names, rows = mark.args
            axes.append(
                [{names: row} if isinstance(names, str) else dict(zip(names, row, strict=True)) for row in rows]
            )
    for combination in itertools.product(*axes):
        yield {name: value for part in combination for name, value in part.items()}


def module_of(path: Path) -> ModuleType:
    """The file's code, run in a new module that is not in sys.modules."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    if path.is_file():
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def fixture(
    name: str, modules: list[ModuleType], request: pytest.FixtureRequest, created: dict, stack: ExitStack
) -> object:
    """A fixture by name, created here if one of the modules defines it. created: those of this case; stack: their teardown."""
    if name not in created:
        definition = next((found for module in modules if (found := getattr(module, name, None)) is not None), None)
        if definition is None:
            return request.getfixturevalue(name)
        function = inspect.unwrap(definition)
        arguments = {
            each: fixture(each, modules, request, created, stack) for each in inspect.signature(function).parameters
        }
        if inspect.isgeneratorfunction(function):
            created[name] = stack.enter_context(contextmanager(function)(**arguments))
        else:
            created[name] = function(**arguments)
    return created[name]


def find_test_file(file: str, test: str) -> Path:
    """The test file that defines `test`: that of the module, else another one in the same test folder."""
    package, *_, name = Path(file).parts
    default = ROOT / "tests" / package / f"test_{Path(name).stem}.py"
    for path in (default, *sorted(default.parent.glob("test_*.py"))):
        if path.is_file() and f"def {test}(" in path.read_text():
            return path
    raise LookupError(f"No file of {default.parent} defines {test}.")


def first_failure(
    file: str, source: str, test: str, request: pytest.FixtureRequest, max_cases: int | None = None
) -> BaseException | None:
    """Run one test function, all its cases or the first `max_cases`, against `source` in place of `file`."""
    named_file, _, test = test.rpartition("::")
    path = ROOT / "tests" / named_file if named_file else find_test_file(file, test)
    modules_with = package_with if file.endswith(".py") else kernels_with
    with modules_with(file, source), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        modules = [module_of(path), module_of(path.with_name("conftest.py"))]
        function = getattr(modules[0], test)
        for case in itertools.islice(cases(function), max_cases):
            with ExitStack() as stack:
                created = {
                    "tmp_path": request.getfixturevalue("tmp_path_factory").mktemp("case"),
                    "monkeypatch": stack.enter_context(pytest.MonkeyPatch.context()),
                }
                names = [name for name in inspect.signature(function).parameters if name not in case]
                arguments = {
                    name: fixture(name, modules, request, created, stack) for name in names
                }  # a missing fixture does not count as a kill
                try:
                    function(**case, **arguments)
                except (Exception, pytest.fail.Exception) as failure:
                    return failure
    return None
