"""The shipped reward functions. Words are separated by white space; values are between -1 and 1."""

import json
import operator
import re
from collections.abc import Callable
from typing import NoReturn

RewardFunction = Callable[[str, str], float]

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "×": operator.mul}
EXERCISE = re.compile(r"(-?\d+)\s*([-+*×])\s*(\d+)")
NUMBER = re.compile(r"-?\d+")
MAX_DIGITS = 1000  # of a result; Python refuses to convert numbers of more than 4300


def length_window(min_words: int, max_words: int) -> RewardFunction:
    """1 from min_words to max_words; below in proportion to the words, above falling to 0 at twice max_words."""

    def reward(prompt: str, response: str) -> float:
        count = len(response.split())
        if count < min_words:
            return count / min_words
        return 1.0 if count <= max_words else max(0.0, 2.0 - count / max_words)

    return reward


def regular_expression(pattern: str) -> RewardFunction:
    """1 if the pattern occurs in the response, else 0."""
    compiled = re.compile(pattern)
    return lambda _, response: float(compiled.search(response) is not None)


def valid_json(_: str, response: str) -> float:
    """1 if the whole response is a JSON object or array, else 0."""
    try:
        value = json.loads(response, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return 0.0
    return float(isinstance(value, dict | list))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def repetition(_: str, response: str) -> float:
    """Minus the share of three-word sequences that occurred before in the response: 0 without repetition, nearly -1 at worst."""
    words = response.lower().split()
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    return len(set(trigrams)) / len(trigrams) - 1.0 if trigrams else 0.0


def arithmetic(prompt: str, response: str) -> float:
    """1 if the last number of the response is the result of the last exercise in the prompt, like "3 + 4"; else 0."""
    exercises = EXERCISE.findall(prompt)
    if not exercises:
        raise ValueError('the prompt has no exercise like "3 + 4": choose the prompt set arithmetic')
    left, sign, right = exercises[-1]
    numbers, result = NUMBER.findall(response), OPERATIONS[sign](int(left), int(right))
    return float(bool(numbers) and len(numbers[-1]) <= MAX_DIGITS and int(numbers[-1]) == result)
