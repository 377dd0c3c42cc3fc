"""A small text grammar: phrase files in, sentences out.

A phrase file is plain text. `[symbol]` opens a symbol; every following non-empty line is one alternative; `#` starts a
comment line. Inside an alternative, `{name}` is replaced first from the caller's slots (`slots["name"]`) and otherwise by a
random alternative of the symbol `name`, recursively. `{name:1}`, `{name:2}` … draw once per tag and text, so that a thing
named twice stays the same thing.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_lab.errors import ConfigError

PHRASES = Path(__file__).parent / "phrases"
_SLOT = re.compile(r"\{([a-z_0-9]+)(?::([0-9]+))?\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])")
_SENTENCE_START = re.compile(r"(^|[.!?]\s+|[.!?]\"\s+)(\"?)([a-z])")


class Grammar:
    """The symbols of one phrase file.

    Raises ConfigError for an unknown symbol, with the alternative that asked for it.
    """

    def __init__(self, symbols: Mapping[str, tuple[str, ...]]) -> None:
        self.symbols = dict(symbols)

    @classmethod
    def load(cls, name: str) -> "Grammar":
        """Read `phrases/<name>.txt`."""
        symbols: dict[str, list[str]] = {}
        current: list[str] | None = None
        for line_number, line in enumerate((PHRASES / f"{name}.txt").read_text(encoding="utf-8").splitlines(), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("[") and text.endswith("]"):
                current = symbols.setdefault(text[1:-1], [])
            elif current is None:
                raise ConfigError(f"{name}.txt line {line_number}: a phrase stands before the first [symbol]")
            else:
                current.append(text)
        return cls({symbol: tuple(lines) for symbol, lines in symbols.items()})

    def expand(self, symbol: str, rng: random.Random, slots: dict[str, str]) -> str:
        """One random expansion of `symbol`. Tagged draws are remembered in `slots` under "name:tag"."""
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

        return _SLOT.sub(replace, template)


def tidy(text: str) -> str:
    """Spaces collapsed, "a" before a vowel letter made "an", each sentence begun with a capital."""
    text = re.sub(r"\s+", " ", text).strip()
    text = _ARTICLE.sub(r"\1n ", text)
    return _SENTENCE_START.sub(lambda m: m.group(1) + m.group(2) + m.group(3).upper(), text)


@dataclass(frozen=True)
class CorpusText:
    """A prompt, one response for it, and the axes the response was written to (mood, length, dialogue …)."""

    prompt: str
    response: str
    axes: dict[str, int]
