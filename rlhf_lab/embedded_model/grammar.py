"""A context-free text grammar read from phrase files.

In a phrase file `[symbol]` starts a symbol, every following non-empty line is one alternative, and `#` starts a comment line.
In an alternative, `{name}` is replaced by the caller's slot (`slots["name"]`), else by a random alternative of the symbol
`name`, recursively. `{name:1}`, `{name:2}` … are sampled once per tag and text.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.common.text import split_lines
from rlhf_lab.errors import ConfigError

PHRASES = Path(__file__).parent / "phrases"
#: {name} or {name:tag}; groups: name, tag.
SLOT_PATTERN = re.compile(r"\{([a-z_0-9]+)(?::([0-9]+))?\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])")
_SENTENCE_START = re.compile(r"(^|[.!?]\s+|[.!?]\"\s+)(\"?)([a-z])")


class Grammar:
    """The symbols of one phrase file with their alternatives."""

    def __init__(self, symbols: Mapping[str, tuple[str, ...]]) -> None:
        self.symbols = dict(symbols)

    @classmethod
    def load(cls, name: str) -> "Grammar":
        """Read `phrases/<name>.txt`."""
        symbols: dict[str, list[str]] = {}
        current: list[str] | None = None
        for line_number, line in enumerate(split_lines((PHRASES / f"{name}.txt").read_text(encoding="utf-8")), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("[") and text.endswith("]"):
                current = symbols.setdefault(text[1:-1], [])
            elif current is None:
                raise ConfigError(f"{name}.txt line {line_number}: a phrase comes before the first [symbol]")
            else:
                current.append(text)
        return cls({symbol: tuple(lines) for symbol, lines in symbols.items()})

    def expand(self, symbol: str, rng: random.Random, slots: dict[str, str]) -> str:
        """A random expansion of `symbol`. Tagged samples are stored in `slots` as "name:tag". Raises ConfigError if unknown."""
        if symbol not in self.symbols:
            raise ConfigError(f"the grammar has no symbol [{symbol}]; known: {', '.join(sorted(self.symbols))}")
        return self.fill(rng.choice(self.symbols[symbol]), rng, slots)

    def fill(self, template: str, rng: random.Random, slots: dict[str, str]) -> str:
        """Replace every {slot} of `template`."""

        def replace(match: re.Match[str]) -> str:
            name, tag = match.group(1), match.group(2)
            key = f"{name}:{tag}" if tag else name
            if key in slots:
                return slots[key]
            text = self.expand(name, rng, slots)
            if tag:
                slots[key] = text
            return text

        return SLOT_PATTERN.sub(replace, template)


def tidy(text: str) -> str:
    """Collapse spaces, write "an" before a vowel, capitalise the start of each sentence."""
    text = re.sub(r"\s+", " ", text).strip()
    text = _ARTICLE.sub(r"\1n ", text)
    return _SENTENCE_START.sub(lambda m: m.group(1) + m.group(2) + m.group(3).upper(), text)


@dataclass(frozen=True)
class CorpusText:
    """A prompt, a response, and the axes of the response (mood, length, dialogue …)."""

    prompt: str
    response: str
    axes: dict[str, int]
