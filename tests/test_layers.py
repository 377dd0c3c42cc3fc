"""Imports go one way, and the page's side never loads torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rlhf_lab"

#: What each part may import of ours, besides itself.
BOTTOM = {
    "config",
    "policy_config",
    "settings",
    "labelling",
    "kinds",
    "records",
    "errors",
    "intervals",
    "seeds",
    "runtime",
    "home",
    "assets",
    "chats",
}
STORE = BOTTOM | {"store"}
JOBS = STORE | {"jobs", "judges"}
EXPORTS = {"exports", "imports", "quality"}
CORE = BOTTOM | {"core"}
MODELS = CORE | {"models"}
TRAINERS = MODELS | {"trainers"}
ALLOWED = {
    "errors": set(),
    "intervals": {"errors"},
    "kinds": set(),
    "records": {"kinds"},
    "seeds": set(),
    "runtime": set(),
    "home": set(),
    "config": {"errors", "kinds", "policy_config", "settings"},
    "policy_config": {"errors", "kinds", "settings"},
    "settings": {"errors"},
    "labelling": {"errors", "records", "settings"},
    "assets": {"errors"},
    "judges": {"errors", "kinds"},
    "chats": set(),
    "core": {"errors", "intervals", "kinds"},
    "models": CORE,
    "trainers": MODELS,
    "pretrain": {"config", "errors", "seeds"},
    "store": BOTTOM,
    "exports": STORE | {"__init__"},
    "imports": STORE,
    "quality": STORE | {"exports"},
    "jobs": STORE | {"judges"},
    "engine": TRAINERS | JOBS | {"pretrain"},
    "ui": JOBS | EXPORTS,
    "cli": TRAINERS | JOBS | EXPORTS | {"engine", "pretrain", "__init__"},
    "__main__": {"cli", "runtime"},
    "__init__": set(),
}
HEAVY = {"torch", "transformers", "peft", "accelerate"}
LIGHT = (
    "config",
    "policy_config",
    "settings",
    "labelling",
    "records",
    "errors",
    "intervals",
    "seeds",
    "runtime",
    "home",
    "assets",
    "judges",
    "chats",
    "store",
    "exports",
    "imports",
    "quality",
    "jobs",
    "ui",
)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_imports_go_one_way(path):
    part = part_of(path)
    known = set(ALLOWED)
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("rlhf_lab.")} & known
    assert ours <= ALLOWED[part] | {part}


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_the_light_parts_import_no_torch(path):
    if part_of(path) in LIGHT:
        assert not {name.split(".")[0] for name in imports(path)} & HEAVY


def test_a_page_is_built_without_torch(tmp_path):
    script = (
        "import sys, pathlib; from rlhf_lab.ui.page import build_page; from rlhf_lab.ui.context import Context;"
        "from rlhf_lab.ui.label import state;"
        f"ctx = Context.open(pathlib.Path({str(tmp_path)!r})); build_page(ctx); shown = state(ctx, 'ann')['pair'];"
        "print(shown is not None, sorted({name.split('.')[0] for name in sys.modules} & "
        "{'torch', 'transformers', 'peft', 'accelerate'}))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True []"
