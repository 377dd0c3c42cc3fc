"""Judges from a file: their scores, and the errors of a file or a function."""

from pathlib import Path

import pytest

from rlhf_lab.common.enums import Choice
from rlhf_lab.errors import ConfigError
from rlhf_lab.judges.builtin import load_judge, prefer

OUTSIDE = """
from dataclasses import dataclass

@dataclass
class Count:
    vowels: int

def vowels(text):
    return Count(sum(letter in "aeiou" for letter in text)).vowels

def has_cat(text):
    return "cat" in text

def fails(text):
    raise KeyError("oops")

def words(text):
    return "many"

def nothing(text):
    pass

def infinite(text):
    return float("inf")

def huge(text):
    return 10**400

def other_words(prompt, response):
    return len(set(response.split()) - set(prompt.split()))

def prompt_only(prompt, response, weight=2.0, *, bonus=1.0):
    return weight * len(prompt) + bonus

def optional(response="", weight=2.0):
    return weight * len(response)

any_number = lambda *texts: len(texts)

def fails_on(prompt, response):
    raise KeyError("oops")

def three(prompt, response, more):
    return 1.0

def none():
    return 1.0

def keyword(response, *, weight):
    return 1.0

number = 3
"""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "my judges" / "mine.py"
    path.parent.mkdir()
    path.write_text(OUTSIDE, encoding="utf-8")
    return path


def test_a_custom_judge_scores_and_prefers(outside: Path) -> None:
    judge = load_judge(f"{outside}:vowels")
    assert judge.name == "vowels"
    assert judge.score("", "banana") == 3.0
    assert isinstance(judge.score("", "banana"), float)
    assert prefer(judge, "", "aaa", "b") is Choice.FIRST
    assert load_judge(f"{outside}:has_cat").score("", "a cat") == 1.0


@pytest.mark.parametrize(
    ("name", "expected"), [("other_words", 2.0), ("prompt_only", 13.0), ("optional", 20.0), ("any_number", 1.0)]
)
def test_a_function_of_two_required_parameters_gets_the_prompt(outside: Path, name: str, expected: float) -> None:
    """ "a word" has 6 characters, "words a is" has 10."""
    judge = load_judge(f"{outside}:{name}")
    assert judge.score("a word", "words a is") == expected


def test_the_prompt_can_decide_a_preference(outside: Path) -> None:
    judge = load_judge(f"{outside}:other_words")
    assert prefer(judge, "a b", "a b", "a c") is Choice.SECOND
    assert prefer(judge, "a c", "a b", "a c") is Choice.FIRST


@pytest.mark.parametrize("name", ["three", "none", "keyword"])
def test_other_signatures_are_refused(outside: Path, name: str) -> None:
    expected = rf"'{name}' in .*cannot be called .*`def {name}\(prompt: str, response: str\) -> float:`"
    with pytest.raises(ConfigError, match=expected):
        load_judge(f"{outside}:{name}")


def test_an_edited_file_is_imported_again(outside: Path) -> None:
    assert load_judge(f"{outside}:has_cat").score("", "dog") == 0.0
    outside.write_text("def has_cat(text): return 12.5", encoding="utf-8")
    assert load_judge(f"{outside}:has_cat").score("", "dog") == 12.5


@pytest.mark.parametrize("name", ["fails", "words", "nothing", "infinite", "huge", "fails_on"])
def test_an_error_names_the_custom_judge(outside: Path, name: str) -> None:
    judge = load_judge(f"{outside}:{name}")
    with pytest.raises(ConfigError) as caught:
        judge.score("", "The cat sat on the mat and thought about its long and happy life.")
    message = str(caught.value)
    assert f"{outside}:{name}" in message
    assert "'The cat sat on the mat and thought about" in message
    assert "long and happy" not in message


@pytest.mark.parametrize(("name", "reason"), [("missing", "no function 'missing'"), ("number", "is not a function")])
def test_a_missing_or_wrong_function_is_refused(outside: Path, name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load_judge(f"{outside}:{name}")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.py", tmp_path):
        with pytest.raises(ConfigError, match="does not exist"):
            load_judge(f"{path}:f")


@pytest.mark.parametrize("code", ["def f(:", "import no_such_module_here", "1 / 0", "raise SystemExit(3)"])
def test_a_file_that_cannot_be_imported_is_refused(tmp_path: Path, code: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(code, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_judge(f"{path}:f")


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "judge.txt"
    path.write_text(OUTSIDE, encoding="utf-8")
    with pytest.raises(ConfigError, match="not a Python file"):
        load_judge(f"{path}:vowels")
