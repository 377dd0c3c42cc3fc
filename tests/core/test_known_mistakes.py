"""docs/FROM_THE_TEXTS.md names only existing functions, tests, mutants, metrics and settings."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "FROM_THE_TEXTS.md").read_text(encoding="utf-8")
ERRATA = TEXT.partition("## Errata")[2]
MUTANTS = sorted((ROOT / "tests" / "mutation").glob("*core*.py"))


def quoted(pattern, text=TEXT):
    """The texts in backticks that match completely, without duplicates."""
    return sorted({name for name in re.findall(r"`([^`]+)`", text) if re.fullmatch(pattern, name)})


def rows(text):
    """The table rows below their heading, cells stripped."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def defined_tests():
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return found


def mutants():
    """name -> names of the tests that kill it, out of every Mutant(...) row; f-strings count without their braces."""
    found = {}
    for path in MUTANTS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Mutant":
                killers = " ".join(
                    part.value for part in ast.walk(node.args[4]) if isinstance(part, ast.Constant)
                )  # CAT and a file's name stand before the test's
                found[node.args[1].value] = set(re.findall(r"test_\w+(?!\w*\.py)", killers))
    return found


@pytest.mark.parametrize("name", quoted(r"(core|models|training|support)(\.\w+){2}"))
def test_function_exists(name):
    module, _, attribute = name.rpartition(".")
    package = "" if module.startswith("support.") else "rlhf_lab."
    assert callable(getattr(importlib.import_module(package + module), attribute))


def test_tests_exist():
    named = set(quoted(r"test_\w+"))
    assert len(named) > 50
    assert named <= defined_tests()


def test_metrics_and_settings_exist():
    documented = (ROOT / "docs" / "METRICS.md").read_text(encoding="utf-8")
    metrics = quoted(r"(objective|policy|loss|val|tokens)/\w+")
    assert metrics
    assert [name for name in metrics if f"| `{name}` |" not in documented] == []
    settings = {item.name for config in (PolicyConfig, RewardConfig) for item in fields_of(config)}
    named = set(re.findall(r"setting `(\w+)`", TEXT))
    assert named
    assert named <= settings


def test_every_row_names_its_place_in_the_browser():
    pages = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "rlhf_lab" / "ui" / "learn").glob("*_pages.js")
    )
    titles = set(re.findall(r"^  title: '(.+)',$", pages, re.MULTILINE))
    places = [row[4] for row in rows(TEXT.partition("## What they say")[2].partition("## Errata")[0])[1:]]
    assert len(places) > 40
    for place in places:
        assert re.match(r"(Label|Reward model|Train|Learn): ", place), place
        assert set(re.findall(r"\*(.+?)\*", place)) <= titles, place


def test_every_erratum_is_a_mutant_that_its_tests_kill():
    """The tests of a row are among those that the mutation suite runs against its mutants."""
    table, tests_by_mutant = rows(ERRATA), mutants()
    assert len(table) >= 20
    for row in table[1:]:  # the first is the line under the heading
        named = re.findall(r'"([^"]+)"', row[3])
        assert named, row
        assert set(named) <= set(tests_by_mutant), row
        assert set(quoted(r"test_\w+", row[4])) <= set().union(*(tests_by_mutant[name] for name in named)), row


def test_every_public_function_of_the_core_is_in_the_document():
    helpers = {
        "masked_var", "centred", "is_last_token", "check_masked", "broadcast_to_tokens", "token_mean", "explained_variance",
        "flatten", "unflatten",
    }  # fmt: skip
    for module in ("advantages", "policy_losses", "reward_scaling", "trpo"):
        tree = ast.parse((ROOT / "rlhf_lab" / "core" / f"{module}.py").read_text(encoding="utf-8"))
        public = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")} - helpers
        assert [name for name in sorted(public) if f"`core.{module}.{name}`" not in TEXT] == []
