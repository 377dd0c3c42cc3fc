"""Could a grammar have written this text? Its phrases read backwards.

Each template is taken as a rule, each slot as any phrase that some text may put there: a text the grammar writes is always
recognised, one that breaks off, doubles or mixes phrases is not. What a whole text must keep to (one mood, one customer, no
word twice, the right article and commas) is not looked at.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NUMBER = "number"  # the slot of digits
SENTENCE = ""  # the slot of a whole sentence
_SLOT = re.compile(r"\{([a-z_0-9]+)(?::[0-9]+)?\}")
_DIGITS = re.compile(r"[0-9]+")
_DROPPED = re.compile(r"[\s,~]|(?<=\ba)n\b", re.IGNORECASE)


def squeezed(text: str) -> str:
    """The text in small letters, without spaces, commas and the n of "an": what tidying changes is not looked at."""
    return _DROPPED.sub("", text).lower()


@dataclass(frozen=True)
class Rules:
    """What a slot may say. A rule is literal, slot, literal, …, literal; `by_letter` holds those that begin with a literal."""

    by_letter: dict[str, list[list[str]]] = field(default_factory=dict)
    others: list[list[str]] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Iterable[str]) -> "Rules":
        rules = cls()
        for rule in sorted(
            {tuple(p if i % 2 else squeezed(p) for i, p in enumerate(_SLOT.split(line))) for line in lines}
        ):
            (rules.by_letter.setdefault(rule[0][0], []) if rule[0] else rules.others).append(list(rule))
        return rules


class Recogniser:
    """The rules of one prompt set.

    symbols: alternatives by symbol, as in `Grammar`; slots: alternatives of the slots that the writer's code fills, before which
    a slot means every symbol of its name, whatever its suffix; roots: the slots a sentence may be.
    """

    def __init__(
        self, symbols: Mapping[str, Iterable[str]], slots: Mapping[str, Iterable[str]], roots: Iterable[str]
    ) -> None:
        self._symbols = symbols
        self._slots = {**slots, SENTENCE: [f"{{{root}}}" for root in roots]}
        self._rules: dict[str, Rules] = {}

    def rules(self, slot: str) -> Rules:
        if slot not in self._rules:
            named = [n for n in sorted(self._symbols) if n == slot or n.startswith(f"{slot}_")]
            self._rules[slot] = Rules.of(self._slots.get(slot) or [line for n in named for line in self._symbols[n]])
        return self._rules[slot]

    def read(self, text: str) -> "Reading":
        return Reading(self, squeezed(text))


class Reading:
    """One squeezed text read from its beginning, in all ways the rules allow.

    stops: where a whole sentence may end (0 among them). furthest: how far the text is the beginning of one the grammar could
    write, both in letters of the line.
    """

    def __init__(self, recogniser: Recogniser, line: str) -> None:
        self.line, self._recogniser = line, recogniser
        self.furthest = 0
        self._ends: dict[tuple[str, int], frozenset[int]] = {}
        self.stops = {0}
        waiting = [0]
        while waiting:
            more = self._slot(SENTENCE, waiting.pop()) - self.stops
            self.stops |= more
            waiting += more

    @property
    def whole(self) -> bool:
        """Whether the grammar could have written it all."""
        return len(self.line) in self.stops

    def _slot(self, slot: str, at: int) -> frozenset[int]:
        if (slot, at) not in self._ends:
            if slot == NUMBER:
                found = _DIGITS.match(self.line, at)
                self._ends[slot, at] = frozenset([found.end()] if found else [])
                self.furthest = max(self.furthest, found.end() if found else 0)
            else:
                rules = self._recogniser.rules(slot)
                fit = rules.others + rules.by_letter.get(self.line[at : at + 1], [])
                self._ends[slot, at] = frozenset(end for rule in fit for end in self._rule(rule, at))
        return self._ends[slot, at]

    def _rule(self, rule: list[str], at: int) -> set[int]:
        here = {at}
        for i, part in enumerate(rule):
            if i % 2:
                here = {end for start in here for end in self._slot(part, start)}
            elif part:
                here = {start + len(part) for start in here if self._literal(part, start)}
            if not here:
                break
        return here

    def _literal(self, part: str, start: int) -> bool:
        for i, letter in enumerate(part, start):
            if self.line[i : i + 1] != letter:
                return False
            self.furthest = max(self.furthest, i + 1)
        return True
