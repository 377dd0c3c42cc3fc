"""The import contracts of pyproject.toml hold, and the page runs without torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "rlhf_lab" / "ui").rglob("*.js"))
IMPORT = re.compile(r"^import \{([^}]+)\} from '(\.[^']+)';$", re.MULTILINE)
EXPORT = re.compile(r"^export (?:(?:async )?(?:function|class|const|let)|\{) (\w+)", re.MULTILINE)


def test_import_contracts():
    """import-linter: layers, no cycles between siblings, no torch on the page's side."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_page_is_built_without_torch(tmp_path):
    script = (
        "import sys, pathlib; from rlhf_lab.ui.page import build_page; from rlhf_lab.ui.context import Context;"
        "from rlhf_lab.ui.label.api import state;"
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
    "cli/doctor.py", "engine/distributed_launch.py", "engine/tracker_process.py", "jobs/container_memory.py",
    "jobs/memory_estimate.py", "kernels/compile.py", "kernels/dtype_speed.py", "models/backbone.py", "ui/shared/glossary.py",
    "ui/project/api.py",
}  # fmt: skip


def test_data_files_are_split_into_lines_by_one_function():
    """By `common.text.split_lines`: splitlines also splits within texts."""
    package = ROOT / "rlhf_lab"
    sources = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert {name for name, source in sources.items() if ".splitlines(" in source or ".readlines(" in source} == (
        USERS_OF_SPLITLINES
    )


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
