"""The installed package: what the wheel carries, and its command."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rlhf_lab import __version__, entry_point
from rlhf_lab.cli import main as command_line
from rlhf_lab.cli import serve
from rlhf_lab.common import program_names
from rlhf_lab.store.runs import no_such_run

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_versions_are_the_same():
    assert PYPROJECT["project"]["version"] == __version__


def test_the_package_works_with_the_folders_that_its_wheel_carries(tmp_path):
    """Laid out like the wheel: without app.py and the root folder of the repository."""
    shutil.copytree(ROOT / "rlhf_lab", tmp_path / "rlhf_lab", ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile
        (tmp_path / target).parent.mkdir(exist_ok=True)
        copy(ROOT / source, tmp_path / target)
    code = (
        "from rlhf_lab.common.bundled_assets import embedded_model_folder\n"
        "from rlhf_lab.ui.shared.glossary import definitions\n"
        "from rlhf_lab.ui.page import initial_body_html\n"
        "from rlhf_lab.ui.scripts import MODULES\n"
        "assert 'label/view.js' in MODULES\n"
        "assert definitions() and len(initial_body_html()) > 10_000\n"
        "from rlhf_lab.common.program_names import lab_command, page_command\n"
        "print(embedded_model_folder(), page_command(), lab_command(), sep='|')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.stdout.strip() == f"{tmp_path / 'rlhf_lab' / 'assets' / 'model'}|rlhf-lab|rlhf-lab", done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], "page"), (["--port", "7861"], "page"), (["doctor", "--json"], "command line"), (["--help"], "help")],
)
def test_the_command_serves_the_lab_or_runs_a_command(monkeypatch, capsys, arguments, expected):
    monkeypatch.setattr(serve, "main", lambda: "help" if "--help" in arguments else "page")
    monkeypatch.setattr(command_line, "main", lambda: "command line")
    monkeypatch.setattr(sys, "argv", ["rlhf-lab", *arguments])
    assert entry_point.main() == expected
    sys.modules.pop("rlhf_lab.__main__", None)  # other tests run it
    assert capsys.readouterr().out == ("RLHF Lab is starting …\n" if expected == "page" else "")


def test_app_py_and_the_command_print_the_version(monkeypatch, capsys):
    done = subprocess.run(
        [sys.executable, "app.py", "--version"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout, done.returncode) == (f"{PYPROJECT['project']['version']}\n", 0), done.stderr
    monkeypatch.setattr(sys, "argv", ["/venv/bin/rlhf-lab", "--version"])
    with pytest.raises(SystemExit, match="0"):
        entry_point.main()
    assert capsys.readouterr().out == done.stdout


@pytest.mark.parametrize(
    ("started", "page", "command"),
    [
        ("/venv/bin/rlhf-lab", "rlhf-lab", "rlhf-lab"),
        ("rlhf-lab.exe", "rlhf-lab", "rlhf-lab"),
        ("app.py", "python app.py", "python -m rlhf_lab"),
        (str(ROOT / "rlhf_lab" / "__main__.py"), "python app.py", "python -m rlhf_lab"),
    ],
)
def test_messages_name_the_command_that_started_the_lab(monkeypatch, capsys, started, page, command):
    monkeypatch.setattr(sys, "argv", [started])
    assert (program_names.page_command(), program_names.lab_command()) == (page, command)
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    help_text = capsys.readouterr().out
    assert help_text.startswith(f"usage: {command} [-h]")
    assert f"`{page}` starts the page" in " ".join(help_text.split())
    assert f"runs: {command} runs" in str(no_such_run(9))


def test_the_container_has_what_the_page_needs():
    """The build context contains only these paths; the Dockerfile copies them."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(kept) == ["app.py", "assets", "docs/METRICS.md", "requirements.txt", "rlhf_lab"]
    for path in kept:
        assert (ROOT / path).exists()
        assert f"COPY {path} " in dockerfile
