"""Attributes of texts, worked out by hand, in several scripts."""

import math

import numpy as np
import pytest

from rlhf_lab.common.text_attributes import ATTRIBUTES, attribute_values

LISTED = "# Title\n\nOne line.\n- first\n  2) second\n3. third\n"


@pytest.mark.parametrize(
    ("name", "prompt", "text", "expected"),
    [
        ("length", "", " four \n", math.log(5)),
        ("length", "", "", 0.0),
        ("length", "", "日本語", math.log(4)),
        ("lists", "", LISTED, 4 / 5),
        ("lists", "", "3 apples\n-5 degrees\nstar*", 0.0),
        ("lists", "", "", 0.0),
        ("lists", "", "• 一\n• 二", 1.0),
        ("exclamations", "", "No.", 0.0),
        ("exclamations", "", "Yes! Good 😀 太好了！", math.log(4)),
        ("exclamations", "", "¡Sí! ¿Qué? ‼ ⁉", math.log(5)),
        ("exclamations", "", "\u055c\u07f9\u1944", math.log(4)),  # of Armenian, N'Ko and Limbu
        ("exclamations", "", "❗❤\ufe0f⭐⏰✓", math.log(6)),
        ("exclamations", "", "👍\U0001f3fd 🇫🇷", math.log(4)),  # a thumb of some colour; the letters F and R
        ("exclamations", "", "© ™ ° → ─ ㈱ ⿰ 1\ufe0f\u20e3 ǃ", 0.0),
        ("copied", "The king's cat", "the CAT sat", 2 / 3),
        ("copied", "anything", "", 0.0),
        ("copied", "кот спит", "Кот не спит", 2 / 3),
    ],
)
def test_values_by_hand(name, prompt, text, expected):
    assert ATTRIBUTES[name].measure(prompt, text) == pytest.approx(expected)


def test_rows_have_the_named_attributes_in_their_order():
    values = attribute_values(["a", "b c"], ["a!", "c"], [True, False], ("copied", "cut", "exclamations"))
    assert values.dtype == np.float64
    assert values == pytest.approx(np.array([[1.0, 1.0, math.log(2)], [1.0, 0.0, 0.0]]))


def test_no_texts_and_no_attributes_have_empty_arrays():
    assert attribute_values([], [], []).shape == (0, len(ATTRIBUTES))
    assert attribute_values(["a"], ["b"], [False], ()).shape == (1, 0)
