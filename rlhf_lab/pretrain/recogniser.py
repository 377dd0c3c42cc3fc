"""Could a grammar have written this text? Its phrases read backwards.

Each template is taken as a rule, each slot as any phrase that some text may put there: a text the grammar writes is always
recognised, one that breaks off, doubles or mixes phrases is not. What a whole text must keep to (one mood, one customer, no
word twice, "a" or "an") is not looked at.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NUMBER = "number"  # the slot of digits
SENTENCE = "."  # the slot of a whole sentence
_SLOT = re.compile(r"\{([a-z_0-9]+)(?::[0-9]+)?\}")
_DIGITS = re.compile(r" ?[0-9]+")
_DROPPED = re.compile(r"~|\s(?=[\s,.!?])|(?<=\ba)n\b", re.IGNORECASE)


def plain(text: str) -> str:
    """The text in small letters, single spaces, and without the n of "an"."""
    return _DROPPED.sub("", text).lower().replace("\n", " ")


def places(text: str) -> list[int]:
    """For each character of the text and its end, where it stands in the plain text."""
    dropped = {match.start() for match in _DROPPED.finditer(text)}
    found = [0]
    for i in range(len(text)):
        found.append(found[-1] + (i not in dropped))
    return found


Rule = tuple[
    str, ...
]  # literal, slot, literal, …, literal; a word brings the space before it along, and so does a slot


@dataclass(frozen=True)
class Rules:
    """What a slot may say. `by_letter` holds the rules that begin with a literal."""

    by_letter: dict[str, list[Rule]] = field(default_factory=dict)
    others: list[Rule] = field(default_factory=list)

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> "Rules":
        found = cls()
        for rule in sorted(set(rules)):
            (found.by_letter.setdefault(rule[0][0], []) if rule[0] else found.others).append(rule)
        return found


def rule_of(line: str, spaced: bool) -> Rule:
    """spaced: whether a space comes before it all."""
    parts = _SLOT.split(line)
    for i in range(0, len(parts), 2):
        parts[i] = plain(parts[i])
        if parts[i].endswith(" ") and i + 1 < len(parts):
            parts[i], parts[i + 1] = parts[i][:-1], " " + parts[i + 1]
    if spaced and line:
        if not parts[0]:
            parts[1] = " " + parts[1].strip()
        elif parts[0][0] not in " ,.!?":
            parts[0] = " " + parts[0]
    return tuple(parts)


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
            name = slot.strip()
            named = [n for n in sorted(self._symbols) if n == name or n.startswith(f"{name}_")]
            lines = self._slots.get(name) or [line for n in named for line in self._symbols[n]]
            self._rules[slot] = Rules.of(rule_of(line, slot[0] == " ") for line in lines)
        return self._rules[slot]

    def read(self, text: str) -> "Reading":
        return Reading(self, plain(f" {text.strip()}" if text.strip() else ""))


class Reading:
    """One plain text, a space before it, read from its beginning in all ways the rules allow.

    stops: where a whole sentence may end (0 among them). furthest: how far the text is the beginning of one the grammar could
    write. asked: for each place, the slots that may begin there; begun: for each place, what may follow of literals begun.
    """

    def __init__(self, recogniser: Recogniser, line: str) -> None:
        self.line, self._recogniser = line, recogniser
        self.furthest = 0
        self.asked: list[set[str]] = [set() for _ in range(len(line) + 1)]
        self.begun: list[set[str]] = [set() for _ in range(len(line) + 1)]
        self._ends: dict[tuple[str, int], frozenset[int]] = {}
        self.stops = {0}
        waiting = [0]
        while waiting:
            more = self._slot(" " + SENTENCE, waiting.pop()) - self.stops
            self.stops |= more
            waiting += more

    @property
    def whole(self) -> bool:
        """Whether the grammar could have written it all."""
        return len(self.line) in self.stops

    def _slot(self, slot: str, at: int) -> frozenset[int]:
        if (slot, at) not in self._ends:
            self.asked[at].add(slot)
            if slot.strip() == NUMBER:
                found = _DIGITS.match(self.line, at)
                self._ends[slot, at] = frozenset([found.end()] if found else ())
                if found:
                    self.furthest = max(self.furthest, found.end())
                    for place in range(at + 1, found.end() + 1):
                        self.asked[place].add(NUMBER)
            else:
                rules = self._recogniser.rules(slot)
                fit = rules.others + rules.by_letter.get(self.line[at : at + 1], [])
                if self.line[at : at + 1] in (".", "!", "?"):
                    fit = fit + rules.by_letter.get(",", [])
                self._ends[slot, at] = frozenset(end for rule in fit for end in self._rule(rule, at))
        return self._ends[slot, at]

    def _rule(self, rule: Rule, at: int) -> set[int]:
        here = {at}
        for i, part in enumerate(rule):
            if i % 2:
                here = {end for start in here for end in self._slot(part, start)}
            elif part:
                here = {end for start in here if (end := self._literal(part, start)) >= 0}
            if not here:
                break
        return here

    def _literal(self, part: str, start: int) -> int:
        """Where it ends; -1 if it is not there. A comma before another mark is left out."""
        at = start
        for i, letter in enumerate(part):
            if at > len(self.line):
                return -1
            self.begun[at].add(part[i:])
            now = self.line[at : at + 1]
            if now == letter:
                at += 1
                self.furthest = max(self.furthest, at)
            elif letter != "," or now not in (".", "!", "?", ","):
                return -1
        return at
