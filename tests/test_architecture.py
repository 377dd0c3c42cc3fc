"""The import contracts of pyproject.toml hold, the page runs without torch, and retired names do not come back."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RETIRED = tomllib.loads((ROOT / "tests" / "retired_names.toml").read_text(encoding="utf-8"))
SOURCES = sorted([*(ROOT / "rlhf_lab").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), ROOT / "app.py"])
SCRIPTS = sorted((ROOT / "assets" / "ui").rglob("*.js"))
IMPORT = re.compile(r"^import \{([^}]+)\} from '(\.[^']+)';$", re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|let) (\w+)", re.MULTILINE)


def test_import_contracts():
    """import-linter: layers, no cycles between siblings, no torch on the page's side."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_page_is_built_without_torch(tmp_path):
    script = (
        "import sys, pathlib; from rlhf_lab.ui.page import build_page; from rlhf_lab.ui.context import Context;"
        "from rlhf_lab.ui.screens.label import state;"
        f"ctx = Context.open(pathlib.Path({str(tmp_path)!r})); build_page(ctx); pair = state(ctx, 'ann')['pair'];"
        "print(pair is not None, sorted({name.split('.')[0] for name in sys.modules} & "
        "{'torch', 'transformers', 'peft', 'accelerate'}))"
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "True []"


def test_path_from_start_to_the_curve_is_unbroken_and_short():
    command = [sys.executable, "benchmarks/start_to_curve.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout.split()[-2]) <= 14  # "14 files"


def test_at_most_eight_modules_at_the_root_of_the_package():
    assert len(list((ROOT / "rlhf_lab").glob("*.py"))) <= 8


#: Modules that split texts which are no data at every kind of line end: outputs of programs and messages, files of the system.
USERS_OF_SPLITLINES = {
    "cli/doctor.py", "engine/distributed_launch.py", "exporters/run_export.py", "jobs/container_memory.py",
    "jobs/memory_estimate.py", "kernels/compile.py", "kernels/dtype_speed.py", "models/backbone.py", "ui/components/charts.py",
    "ui/screens/project.py",
}  # fmt: skip


def test_data_files_are_split_into_lines_by_one_function():
    """By `common.text.split_lines`: splitlines also splits within texts."""
    package = ROOT / "rlhf_lab"
    sources = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert {name for name, source in sources.items() if ".splitlines(" in source or ".readlines(" in source} == (
        USERS_OF_SPLITLINES
    )


@pytest.mark.parametrize("path", RETIRED["paths"])
def test_retired_path_is_gone(path):
    assert not (ROOT / path).exists(), f"{path} had a name that nobody understood: see docs/DECISIONS.md."


def definitions(source: str) -> set[str]:
    """Qualified names of the classes, functions, methods and module constants of a module, without the module's own name."""

    def names_in(body: list[ast.stmt], prefix: str) -> set[str]:
        names = set()
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    names |= names_in(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
        return names

    return names_in(ast.parse(source).body, "")


def bound_names(source: str) -> set[str]:
    """Every identifier that a module binds: classes, functions, parameters, variables, attributes."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def words_of(name: str) -> set[str]:
    """toldBy, ToldBy and told_by: {"told", "by"}."""
    return set(re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower().split("_"))


def retired_words(names: set[str]) -> list[str]:
    return sorted(name for name in names if words_of(name) & set(RETIRED["words"]))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_uses_no_retired_name(path):
    source = path.read_text(encoding="utf-8")
    package = path.relative_to(ROOT).parts[1] if len(path.relative_to(ROOT).parts) > 2 else ""
    retired = {symbol.partition(":")[2] for symbol in RETIRED["symbols"] if symbol.partition(":")[0] == package}
    assert sorted(definitions(source) & retired) == []
    assert retired_words(bound_names(source)) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_javascript_uses_no_retired_name(path):
    source = path.read_text(encoding="utf-8")
    names = set(re.findall(r"\b(?:const|let|function)\s+\(?([A-Za-z_$][\w$]*)", source))
    assert retired_words(names) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_javascript_has_short_lines_and_no_global_names(path):
    source = path.read_text(encoding="utf-8")
    assert [line for line in source.splitlines() if len(line) > 120] == []
    globals_set = ["requestAnimationFrame"] if path.name == "before_gradio.js" else []
    assert re.findall(r"\bwindow\.(\w+) = ", source) == globals_set


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_import_of_a_module_exists(path):
    source = path.read_text(encoding="utf-8")
    imports = IMPORT.findall(source)
    assert len(imports) == len(re.findall(r"^import\b", source, re.MULTILINE)) == len(re.findall(r"\bfrom '", source))
    for names, address in imports:
        exported = EXPORT.findall((path.parent / address).read_text(encoding="utf-8"))
        assert {name.strip() for name in names.split(",") if name.strip()} - set(exported) == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def told(): pass", ["told"]),
        ("class Told: pass", ["Told"]),
        ("def f(slope_of): pass", ["slope_of"]),
        ("for said in (): pass", ["said"]),
        ("self.asked = 1", ["asked"]),
        ("try: pass\nexcept E as told: pass", ["told"]),
        ("toldBy = 1", ["toldBy"]),
        ("untold = retold = 1", []),
        ("'told'; f(told=1); told", []),
    ],
)
def test_retired_words_are_noticed_wherever_a_name_is_bound(source, expected):
    assert retired_words(bound_names(source)) == expected


def test_definitions_are_qualified():
    source = "A = 1\nb: int = 2\nclass C:\n    d = 3\n    def e(self): pass\ndef f():\n    def g(): pass\n"
    assert definitions(source) == {"A", "b", "C", "C.d", "C.e", "f"}
