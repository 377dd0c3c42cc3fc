"""Attributes of a text that labels may reward although nobody meant them, such as its length. No torch.

Each attribute is a number that needs no model. `core/attribute_effects.py` measures how labels depend on them, and a reward
model can be told to ignore some (`RewardConfig.ignored`).
"""

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: A heading or an item of a list in Markdown, or a numbered line.
LIST_LINE = re.compile(r"\s*([-*+•]\s|#{1,6}\s|\(?\d{1,3}[.)]\s)")
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Attribute:
    """measure(prompt, text): its value. step: a difference of values that `step_text` says in words."""

    label: str
    step_text: str
    step: float
    measure: Callable[[str, str], float]


def log_length(_: str, text: str) -> float:
    """log(1 + characters)."""
    return math.log1p(len(text.strip()))


def list_share(_: str, text: str) -> float:
    """The share of lines that are items of a list or headings; empty lines do not count."""
    lines = [line for line in text.split("\n") if line.strip()]
    return sum(LIST_LINE.match(line) is not None for line in lines) / len(lines) if lines else 0.0


@functools.cache
def is_exclamation(character: str) -> bool:
    """Whether it is an exclamation mark of any script, by its Unicode name, or a pictograph: a symbol of the blocks Miscellaneous
    Symbols and Dingbats, one from U+1F000 on, or a wide one before the CJK blocks."""
    if unicodedata.category(character) != "So":
        return "EXCLAMATION" in unicodedata.name(character, "")
    code = ord(character)
    is_wide = unicodedata.east_asian_width(character) == "W"
    return 0x2600 <= code < 0x27C0 or code >= 0x1F000 or (code < 0x2E80 and is_wide)


def log_exclamations(_: str, text: str) -> float:
    """log(1 + exclamation marks and emoji). Emoji of several pictographs count as these, a flag as its two letters."""
    return math.log1p(sum(count for character, count in Counter(text).items() if is_exclamation(character)))


def copied_share(prompt: str, text: str) -> float:
    """The share of the text's words that occur in the prompt, without regard to case."""
    words, known = WORD.findall(text.lower()), set(WORD.findall(prompt.lower()))
    return sum(word in known for word in words) / len(words) if words else 0.0


CUT = "cut"  # measured from the tokens: a text that was cut off has no stop token
#: By the name of the setting that ignores the attribute.
ATTRIBUTES = {
    "length": Attribute("length", "Texts half as long", -math.log(2), log_length),
    CUT: Attribute("being cut off", "Texts that are cut off", 1.0, lambda _, __: 0.0),
    "lists": Attribute("lists and headings", "Texts with a list or headings in half of the lines", 0.5, list_share),
    "exclamations": Attribute(
        "exclamation marks and emoji",
        "Texts with one exclamation mark or emoji instead of none",
        math.log(2),
        log_exclamations,
    ),
    "copied": Attribute(
        "words copied from the prompt",
        "Texts that copy a further tenth of their words from the prompt",
        0.1,
        copied_share,
    ),
}


def ignored_in(config: Mapping[str, object]) -> tuple[str, ...]:
    """The attributes that a stored config of a reward model ignores."""
    return tuple(name for name in ATTRIBUTES if config.get(name) == "ignore")


def attribute_labels(names: Iterable[str]) -> str:
    """The named attributes as people call them, such as "length, being cut off"."""
    return ", ".join(ATTRIBUTES[name].label for name in names)


def attribute_values(
    prompts: Sequence[str], texts: Sequence[str], cut: Iterable[bool], names: Sequence[str] = tuple(ATTRIBUTES)
) -> NDArray[np.float64]:
    """(N, A) values of the named attributes of N texts. cut: whether each was cut off."""
    rows = [
        [float(is_cut) if name == CUT else ATTRIBUTES[name].measure(prompt, text) for name in names]
        for prompt, text, is_cut in zip(prompts, texts, cut, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
