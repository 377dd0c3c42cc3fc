"""The statements of the documentation are true."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT, ROOT / "docs", ROOT / "benchmarks" / "results", ROOT / "assets" / "model")
DOCUMENTS = sorted(path for folder in FOLDERS for path in folder.glob("*.md"))
KEY = re.compile(
    r"(objective|policy|loss|val|eval|tokens|time|memory|rewards|rejection|live)/[a-z_]+|grad_norm|lr|eps|episode|epoch"
)


def metric_keys() -> set[str]:
    """Every string in the trainers that looks like a metric's name and is a dict key or a subscript."""
    found = set()
    for path in sorted((ROOT / "rlhf_lab" / "training").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            keys = (
                list(node.keys)
                if isinstance(node, ast.Dict)
                else [node.slice]
                if isinstance(node, ast.Subscript)
                else []
            )
            found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return {key for key in found if "/" in key or key in ("grad_norm", "eps", "episode", "epoch")} | {"lr"}


def test_every_metric_is_documented_and_no_other():
    text = (ROOT / "docs" / "METRICS.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([^`<]+)`", text, re.MULTILINE))  # without objective/reward/<term>
    assert documented == metric_keys()
    assert all(KEY.fullmatch(key) for key in documented)


def test_readme_has_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\npip install -r requirements.txt && python app.py\n" in text
    assert "\npip install -r requirements.txt -r tests/requirements.txt && python -m pytest\n" in text


def test_every_installation_without_a_gpu_gets_pytorchs_cpu_build():
    """Its default build on Linux is several GB larger."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"(?:pip install (?:\.|\"\$\(grep \^torch)|uvx )[^`\n]*", text)
    assert len(commands) == 3
    assert [command for command in commands if not re.search(r"/whl/cpu$|--torch-backend auto", command)] == []
    assert "download.pytorch.org/whl/cpu" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_lead_to_files_and_headings(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        document = path.parent / file if file else path
        assert document.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, target


def test_space_uses_the_pinned_gradio():
    front = (ROOT / "README.md").read_text(encoding="utf-8").split("---\n")[1]
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    (version,) = re.findall(r"^sdk_version: (\S+)$", front, re.MULTILINE)
    assert re.findall(r"^gradio==(\S+)$", pins, re.MULTILINE) == [version]


def test_the_memory_table_of_spaces_is_what_its_command_prints(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from memory_table import SHAPES, model_facts, table

    counted = {name: model_facts(name).parameters for name in SHAPES}
    assert counted["SmolLM2-135M"] == 134_515_008  # what the weights of the model have
    assert counted["Llama 3.2 1B"] == 1_235_814_400
    text = (ROOT / "docs" / "SPACES.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- benchmarks/memory_table.py -->\n")[2].partition("\n<!-- end -->")[0]
    assert shown == table(16)


def test_every_variable_of_the_project_is_documented():
    from rlhf_lab.jobs.startup_project import VARIABLES

    text = (ROOT / "docs" / "SPACES.md").read_text(encoding="utf-8")
    assert not [variable for variable in VARIABLES.values() if f"| `{variable}` |" not in text]


def test_every_setting_of_demo_mode_is_documented_with_its_default():
    from rlhf_lab.config.demo import DemoConfig

    text = (ROOT / "docs" / "SPACES.md").read_text(encoding="utf-8")
    settings = DemoConfig().to_dict().items()
    assert not [name for name, default in settings if f"| `{name}` | {default:g} |" not in text]
