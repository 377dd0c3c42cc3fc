"""Runs a test against a mutant: fresh modules around one changed file, nothing written to disk.

A row is (file, name, source snippet, mutated snippet, tests). A test of `rlhf_lab/core/kl.py` is looked up in
`tests/core/test_kl.py`, then in the other files of `tests/core`; a test elsewhere is named with its file: `training/test_policy_trainer.py::test_...`. Every named test
must fail; a snippet that is gone from the source, or no longer unique, fails loudly: then the row must follow the code.

The mutant is imported in place of its module; the rest of rlhf_lab, `support`, `fake_runs` and the test file are imported
afresh around it, and all modules are put back afterwards. So are the fixtures of the test file and of the conftest.py beside it:
pytest knows those of this folder and above alone, and what it makes is of the true source, whose classes and errors are others.
What comes from pytest may hold paths, but nothing of ours.
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
#: The mutant does not run at all, or a warning (shown once a process) was taken for a failure: that proves nothing.
BROKEN = (NameError, AttributeError, TypeError, ImportError, SyntaxError, Warning)


class Mutant(NamedTuple):
    file: str  # below rlhf_lab/, or support/... in tests/
    name: str
    source: str
    mutated: str
    tests: str  # names of test functions, separated by blanks; each must fail


def check_mutant(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    """Fails unless every test of the row notices."""
    source = source_path(mutant.file).read_text()
    found = source.count(mutant.source)
    assert found == 1, f"{mutant.source!r} stands {found} times in {mutant.file}: make the row follow the code."
    mutated = source.replace(mutant.source, mutant.mutated)
    for test in mutant.tests.split():
        failure = first_failure(mutant.file, mutated, test, request)
        assert failure is not None, f"{test} does not notice the mutant."
        assert not isinstance(failure, BROKEN), f"The mutant does not run, so {test} proves nothing: {failure!r}"


def check_control(file: str, test: str, request: pytest.FixtureRequest) -> None:
    """The control: run the same way, the test's first case passes on the true source. The suite itself runs all cases."""
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
    """While inside, `import rlhf_lab...` finds `source` in place of `file`, and fresh modules around it."""
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
    """While inside, fresh modules whose kernels are compiled with `source` in place of `file`, and kept in a folder that goes."""
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
            )  # who has its functions
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
    """The file's code, run in a module that nobody else has."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    if path.is_file():
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def fixture(
    name: str, modules: list[ModuleType], request: pytest.FixtureRequest, made: dict, stack: ExitStack
) -> object:
    """A fixture by name, made anew where one of the modules has it; `made` holds those of this case, `stack` what ends them."""
    if name not in made:
        own = next((found for module in modules if (found := getattr(module, name, None)) is not None), None)
        if own is None:
            return request.getfixturevalue(name)
        function = inspect.unwrap(own)
        given = {each: fixture(each, modules, request, made, stack) for each in inspect.signature(function).parameters}
        if inspect.isgeneratorfunction(function):
            made[name] = stack.enter_context(contextmanager(function)(**given))
        else:
            made[name] = function(**given)
    return made[name]


def find_test_file(file: str, test: str) -> Path:
    """The test file that defines `test`: that of the module itself, else one of the others in the same folder of tests."""
    package, *_, name = Path(file).parts
    own = ROOT / "tests" / package / f"test_{Path(name).stem}.py"
    for path in (own, *sorted(own.parent.glob("test_*.py"))):
        if path.is_file() and f"def {test}(" in path.read_text():
            return path
    raise LookupError(f"No file of {own.parent} defines {test}.")


def first_failure(
    file: str, source: str, test: str, request: pytest.FixtureRequest, max_cases: int | None = None
) -> BaseException | None:
    """Run one test function, all its cases or the first `max_cases`, against `source` in place of `file`."""
    named_file, _, test = test.rpartition("::")
    path = ROOT / "tests" / named_file if named_file else find_test_file(file, test)
    around = package_with if file.endswith(".py") else kernels_with
    with around(file, source), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        modules = [module_of(path), module_of(path.with_name("conftest.py"))]
        function = getattr(modules[0], test)
        for case in itertools.islice(cases(function), max_cases):
            with ExitStack() as stack:
                made = {
                    "tmp_path": request.getfixturevalue("tmp_path_factory").mktemp("case"),
                    "monkeypatch": stack.enter_context(pytest.MonkeyPatch.context()),
                }
                names = [name for name in inspect.signature(function).parameters if name not in case]
                given = {
                    name: fixture(name, modules, request, made, stack) for name in names
                }  # a missing one is no kill
                try:
                    function(**case, **given)
                except (Exception, pytest.fail.Exception) as failure:
                    return failure
    return None
