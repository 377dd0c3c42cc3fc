"""Imports go one way, and the page's side never loads torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.import_scanner import imports, package_of, touches

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "rlhf_lab"

#: What each part may import of ours, besides itself.
BOTTOM = {
    "checkpoints",
    "config",
    "counted",
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
    "cells",
    "precision",
}
STORE = BOTTOM | {"store"}
JOBS = STORE | {"jobs", "judges"}
EXPORTS = {"exports", "imports", "quality"}
CORE = BOTTOM | {"core", "fused"}
MODELS = CORE | {"models"}
TRAINERS = MODELS | {"trainers"}
ALLOWED = {
    "errors": set(),
    "intervals": {"errors"},
    "kinds": set(),
    "records": {"kinds"},
    "seeds": set(),
    "passwords": set(),
    "runtime": set(),
    "home": set(),
    "checkpoints": set(),
    "counted": set(),
    "config": {"errors", "kinds", "policy_config", "settings"},
    "policy_config": {"errors", "kinds", "settings"},
    "settings": {"errors"},
    "labelling": {"errors", "records", "settings"},
    "assets": {"errors"},
    "judges": {"errors", "judge_files", "kinds"},
    "judge_files": {"errors"},
    "chats": set(),
    "cells": set(),
    "precision": {"errors"},
    "fused": {"errors"},
    "core": {"errors", "intervals", "kinds", "fused"},
    "models": CORE,
    "trainers": MODELS,
    "pretrain": {"errors", "seeds", "settings"},
    "store": BOTTOM,
    "exports": STORE | {"__init__"},
    "imports": STORE,
    "quality": STORE | {"exports"},
    "jobs": STORE | {"judges"},
    "engine": TRAINERS | JOBS | {"pretrain"},
    "ui": JOBS | EXPORTS | {"passwords"},
    "cli": TRAINERS | JOBS | EXPORTS | {"engine", "passwords", "pretrain", "__init__"},
    "__main__": {"cli", "runtime"},
    "__init__": set(),
}
HEAVY = {"torch", "transformers", "peft", "accelerate"}
LIGHT = (
    "checkpoints",
    "config",
    "counted",
    "policy_config",
    "settings",
    "labelling",
    "records",
    "errors",
    "intervals",
    "seeds",
    "passwords",
    "runtime",
    "home",
    "assets",
    "judges",
    "judge_files",
    "chats",
    "cells",
    "precision",
    "store",
    "exports",
    "imports",
    "quality",
    "jobs",
    "ui",
)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    return imports(path.read_text(encoding="utf-8"), package_of(path, ROOT))


def ours(found: set[str]) -> set[str]:
    """The parts of rlhf_lab among the imported names."""
    return {name.split(".")[1] for name in found if name.startswith("rlhf_lab.")} & set(ALLOWED)


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_imports_go_one_way(path):
    part = part_of(path)
    assert ours(imports_of(path)) <= ALLOWED[part] | {part}


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES])
def test_the_light_parts_import_no_torch(path):
    if part_of(path) in LIGHT:
        assert not {name.split(".")[0] for name in imports_of(path)} & HEAVY


@pytest.mark.parametrize(
    "line",
    [
        "import rlhf_lab.judges.builtin",
        "import os, rlhf_lab.judges.builtin as known",
        "from rlhf_lab.judges.builtin import builtin",
        "from rlhf_lab.judges.builtin.builtin import JUDGES",
        "from .. import judges",
        "from ..judges import JUDGES",
        "def f():\n    from ..judges import JUDGES",
        'import importlib\nimportlib.import_module("rlhf_lab.judges.builtin")',
        'from importlib import import_module\nimport_module("..judges", package=__package__)',
        'load = lambda: import_module(name="rlhf_lab.judges.builtin")',
        '__import__("rlhf_lab.judges.builtin")',
    ],
)
def test_the_import_finder_sees_every_form(line):
    found = imports(line, "rlhf_lab.embedded_model")
    assert touches(found, "rlhf_lab.judges.builtin")
    assert ours(found) == {"judges"}
    assert not touches(
        imports(line.replace("judges", "judges_of_old"), "rlhf_lab.embedded_model"), "rlhf_lab.judges.builtin"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from . import kl", {"rlhf_lab.core", "rlhf_lab.core.kl"}),
        ("from .kl import full_kl", {"rlhf_lab.core.kl", "rlhf_lab.core.kl.full_kl"}),
        ("from ..store import runs", {"rlhf_lab.store", "rlhf_lab.store.runs"}),
        ('import_module(".kl", __package__)', {"rlhf_lab.core.kl"}),
        ("import_module(name)", set()),  # not to be known before it runs
        ('find("rlhf_lab.store")', set()),
    ],
)
def test_relative_imports_become_absolute(line, expected):
    assert imports(line, "rlhf_lab.core") == expected


def test_a_package_and_its_modules_are_one_package():
    for name in ("__init__.py", "kl.py"):
        assert package_of(PACKAGE / "core" / name, ROOT) == "rlhf_lab.core"
    assert package_of(PACKAGE / "config.py", ROOT) == "rlhf_lab"


def test_a_page_is_built_without_torch(tmp_path):
    script = (
        "import sys, pathlib; from rlhf_lab.ui.page import build_page; from rlhf_lab.ui.context import Context;"
        "from rlhf_lab.ui.screens.label import state;"
        f"ctx = Context.open(pathlib.Path({str(tmp_path)!r})); build_page(ctx); shown = state(ctx, 'ann')['pair'];"
        "print(shown is not None, sorted({name.split('.')[0] for name in sys.modules} & "
        "{'torch', 'transformers', 'peft', 'accelerate'}))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True []"
