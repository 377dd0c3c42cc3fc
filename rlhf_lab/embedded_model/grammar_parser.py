"""A chart parser that checks whether a grammar could have generated a text.

Each template is a rule; a slot matches any phrase that a generated text may have there. Generated texts are always accepted;
texts that break off, repeat phrases or mix them are not. Constraints on the whole text (one mood, one customer, no repeated
word, "a" or "an") are not checked.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rlhf_lab.embedded_model.grammar import SLOT_PATTERN

NUMBER_SLOT = "number"  # digits
SENTENCE_SLOT = "."  # a whole sentence
_DIGITS = re.compile(r" ?[0-9]+")
_IGNORED_CHARS = re.compile(r"~|\s(?=[\s,.!?])|(?<=\ba)n\b", re.IGNORECASE)


def normalize(text: str) -> str:
    """Lower case, single spaces, "an" written as "a"."""
    return _IGNORED_CHARS.sub("", text).lower().replace("\n", " ")


def normalized_offsets(text: str) -> list[int]:
    """For each character of the text and for its end, the offset in the normalized text."""
    ignored = {match.start() for match in _IGNORED_CHARS.finditer(text)}
    offsets = [0]
    for i in range(len(text)):
        offsets.append(offsets[-1] + (i not in ignored))
    return offsets


#: literal, slot, literal, …, literal. Words and slots include the space before them.
Rule = tuple[str, ...]


@dataclass(frozen=True)
class RuleSet:
    """The rules of a slot: rules that start with a literal, by its first character, and rules that start with a slot."""

    by_first_char: dict[str, list[Rule]] = field(default_factory=dict)
    slot_first: list[Rule] = field(default_factory=list)

    @classmethod
    def from_rules(cls, rules: Iterable[Rule]) -> "RuleSet":
        rule_set = cls()
        for rule in sorted(set(rules)):
            (rule_set.by_first_char.setdefault(rule[0][0], []) if rule[0] else rule_set.slot_first).append(rule)
        return rule_set


def parse_rule(template: str, leading_space: bool) -> Rule:
    """The rule of a template. leading_space: whether a space precedes it."""
    segments = SLOT_PATTERN.split(template)
    del segments[2::3]  # the tags
    for i in range(0, len(segments), 2):
        segments[i] = normalize(segments[i])
        if segments[i].endswith(" ") and i + 1 < len(segments):
            segments[i], segments[i + 1] = segments[i][:-1], " " + segments[i + 1]
    if leading_space and template:
        if not segments[0]:
            segments[1] = " " + segments[1].strip()
        elif segments[0][0] not in " ,.!?":
            segments[0] = " " + segments[0]
    return tuple(segments)


class GrammarParser:
    """The rules of one prompt set.

    Args:
        symbols: alternatives by symbol, as in `Grammar`.
        slots: alternatives of the slots that the generator fills in code. Any other slot matches every symbol of its name,
            with any suffix.
        roots: the slots that can be a whole sentence.
    """

    def __init__(
        self, symbols: Mapping[str, Iterable[str]], slots: Mapping[str, Iterable[str]], roots: Iterable[str]
    ) -> None:
        self._symbols = symbols
        self._slots = {**slots, SENTENCE_SLOT: [f"{{{root}}}" for root in roots]}
        self._rule_sets: dict[str, RuleSet] = {}

    def rules_for(self, slot: str) -> RuleSet:
        if slot not in self._rule_sets:
            name = slot.strip()
            symbol_names = [n for n in sorted(self._symbols) if n == name or n.startswith(f"{name}_")]
            templates = self._slots.get(name) or [template for n in symbol_names for template in self._symbols[n]]
            self._rule_sets[slot] = RuleSet.from_rules(parse_rule(template, slot[0] == " ") for template in templates)
        return self._rule_sets[slot]

    def parse(self, text: str) -> "ParseResult":
        return ParseResult(self, normalize(f" {text.strip()}" if text.strip() else ""))


class ParseResult:
    """All parses of a normalized text with a leading space.

    Attributes:
        sentence_ends: offsets where a sentence can end, including 0.
        furthest: length of the longest prefix that the grammar can generate.
        slots_at: for each offset, the slots that can start there.
        literals_at: for each offset, the remainders of literals that can continue there.
    """

    def __init__(self, parser: GrammarParser, text: str) -> None:
        self.text, self._parser = text, parser
        self.furthest = 0
        self.slots_at: list[set[str]] = [set() for _ in range(len(text) + 1)]
        self.literals_at: list[set[str]] = [set() for _ in range(len(text) + 1)]
        self._slot_ends: dict[tuple[str, int], frozenset[int]] = {}
        self.sentence_ends = {0}
        pending = [0]
        while pending:
            new_ends = self._parse_slot(" " + SENTENCE_SLOT, pending.pop()) - self.sentence_ends
            self.sentence_ends |= new_ends
            pending += new_ends

    @property
    def is_complete(self) -> bool:
        """Whether the grammar can generate the whole text."""
        return len(self.text) in self.sentence_ends

    def _parse_slot(self, slot: str, pos: int) -> frozenset[int]:
        if (slot, pos) not in self._slot_ends:
            self.slots_at[pos].add(slot)
            if slot.strip() == NUMBER_SLOT:
                match = _DIGITS.match(self.text, pos)
                self._slot_ends[slot, pos] = frozenset([match.end()] if match else ())
                if match:
                    self.furthest = max(self.furthest, match.end())
                    for digit_pos in range(pos + 1, match.end() + 1):
                        self.slots_at[digit_pos].add(NUMBER_SLOT)
            else:
                rule_set = self._parser.rules_for(slot)
                candidates = rule_set.slot_first + rule_set.by_first_char.get(self.text[pos : pos + 1], [])
                if self.text[pos : pos + 1] in (".", "!", "?"):
                    candidates = candidates + rule_set.by_first_char.get(",", [])
                self._slot_ends[slot, pos] = frozenset(
                    end for rule in candidates for end in self._parse_rule(rule, pos)
                )
        return self._slot_ends[slot, pos]

    def _parse_rule(self, rule: Rule, pos: int) -> set[int]:
        positions = {pos}
        for i, segment in enumerate(rule):
            if i % 2:
                positions = {end for start in positions for end in self._parse_slot(segment, start)}
            elif segment:
                positions = {end for start in positions if (end := self._parse_literal(segment, start)) >= 0}
            if not positions:
                break
        return positions

    def _parse_literal(self, literal: str, start: int) -> int:
        """End offset of the literal at `start`, or -1. A comma before another punctuation mark is optional."""
        pos = start
        for i, expected in enumerate(literal):
            if pos > len(self.text):
                return -1
            self.literals_at[pos].add(literal[i:])
            actual = self.text[pos : pos + 1]
            if actual == expected:
                pos += 1
                self.furthest = max(self.furthest, pos)
            elif expected != "," or actual not in (".", "!", "?", ","):
                return -1
        return pos
