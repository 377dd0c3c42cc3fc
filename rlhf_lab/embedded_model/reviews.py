"""Prompt set "reviews": short reviews of things, places, services, books, films, trips and classes."""

import random
import re
from functools import cache

from rlhf_lab.embedded_model.grammar import CorpusText, Grammar, tidy

# Reviewed kind -> family whose phrases it shares.
KIND_FAMILIES = {
    "kitchen": "thing",
    "furniture": "thing",
    "tool": "thing",
    "gadget": "thing",
    "wear": "wear",
    "food": "food",
    "eatery": "eatery",
    "book": "story",
    "show": "story",
    "place": "place",
    "trip": "trip",
    "course": "course",
    "service": "service",
}
MOOD_SUFFIXES = {-2: "m2", -1: "m1", 0: "z0", 1: "p1", 2: "p2"}
PAST_TENSE_KINDS = frozenset(("show", "eatery", "place", "trip", "course", "service"))  # reviewed in the past tense
WORD_RANGES = ((14, 19), (22, 30), (34, 43))
SENTENCE_COUNTS = ((2,), (2, 2, 3), (3, 4, 4, 5))
MAX_PROMPT_WORDS = 12
MAX_ATTEMPTS = 400
_WORD = re.compile(r"[a-z']+")
_INNER_QUOTE = re.compile(r', "([a-z])')
TRAILING_PHRASE = re.compile(r" (from|for|at|in|on|by|with|along|to|through|round|across|near) .*")
# Words that may repeat in a text; any other repeated word is rejected.
_COMMON_WORD_LIST = """
a an the and or but if of to in on at by for with from as so it its is was are were be been i my me we our us you your
he she they them their his her this that these those not no had has have did do does would will can could one two who
what which than then there all about so more some out up
"""
_COMMON_WORDS = frozenset(_COMMON_WORD_LIST.split())
_WEEKDAYS = frozenset(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"))


class _NonRepeatingGrammar(Grammar):
    """A grammar that uses no alternative twice while there is an unused one."""

    def __init__(self, symbols: dict[str, tuple[str, ...]]) -> None:
        super().__init__(symbols)
        self.used: set[tuple[str, str]] = set()

    def expand(self, symbol: str, rng: random.Random, slots: dict[str, str]) -> str:
        """A random unused expansion of `symbol`."""
        lines = self.symbols.get(symbol, ())
        unused = [line for line in lines if (symbol, line) not in self.used] or list(lines)
        if not unused:
            return super().expand(symbol, rng, slots)
        line = rng.choice(unused)
        self.used.add((symbol, line))
        return self.fill(line, rng, slots)


@cache
def _grammar() -> Grammar:
    return Grammar.load("reviews")


@cache
def _symbols_for(kind: str, mood: int, detail: int) -> dict[str, tuple[str, ...]]:
    """All symbols; those for this kind, mood and detail are also merged under their name without suffix."""
    owner_suffixes = dict.fromkeys(
        ("", "_past" if kind in PAST_TENSE_KINDS else "_now", f"_{KIND_FAMILIES[kind]}", f"_{kind}")
    )
    suffixes = [
        owner + level
        for owner in owner_suffixes
        for level in ("", f"_{MOOD_SUFFIXES[mood]}", f"_d{detail}")
        if owner + level
    ]
    symbols = dict(_grammar().symbols)
    for name, lines in _grammar().symbols.items():
        for suffix in suffixes:
            if name.endswith(suffix):
                base_name = name.removesuffix(suffix)
                symbols[base_name] = symbols.get(base_name, ()) + lines
    return symbols


def generate_prompt(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A prompt, and its slots: kind, noun, noun with description (full, thing) and parts."""
    while True:
        kind = rng.choice(tuple(KIND_FAMILIES))
        symbols = _symbols_for(kind, 0, 1)
        grammar = _NonRepeatingGrammar(symbols)
        template = rng.choice(symbols[f"prompt_{kind}"])
        pool = "hostel" if "{hostel}" in template else f"item_{kind}"
        item, noun, parts = (field.strip() for field in grammar.expand(pool, rng, {}).split("|"))
        description = tidy(grammar.fill(template, rng, {"item": item, "hostel": item}))
        text = f"Review of {description[0].lower()}{description[1:]}:"
        if len(text.split()) <= MAX_PROMPT_WORDS:
            full = TRAILING_PHRASE.sub("", re.sub("^an? ", "this ", text.removeprefix("Review of ").rstrip(":")))
            # "blue kettle", but only the noun for a proper name ("the Lantern Cafe")
            thing = re.sub("^(this|the) ", "", full)
            thing = thing if thing[0].islower() else noun
            return text, {"kind": kind, "noun": noun, "full": full, "thing": thing, "parts": parts}


def _middle_symbol(rng: random.Random, detail: int) -> str:
    """The symbol of a middle sentence."""
    weights = ((6, 3, 2, 0), (0, 9, 3, 0), (0, 5, 2, 5))[detail]
    return rng.choices(("vague", "aspect", "about", "facts"), weights)[0]


def _plan(rng: random.Random, axes: dict[str, int]) -> list[str]:
    """The symbols of the sentences, in order."""
    politeness = {-1: "rude", 0: "", 1: "polite"}[axes["politeness"]]
    count = rng.choice(SENTENCE_COUNTS[axes["length"]])
    quotes: list[list[str]] = []
    if axes["dialogue"]:
        manner = f"quote_{politeness}" if politeness and (axes["length"] == 0 or rng.random() < 0.7) else "quote"
        quotes.append([manner])
    if axes["dialogue"] == 2:
        if (quotes[0] == ["quote"] or axes["mood"] == 0) and rng.random() < 0.7:
            quotes[0].append("reply")
        else:
            quotes.append(["quote"])
    spoken = any(group[0] != "quote" for group in quotes)
    closing = []
    if politeness and (not spoken or (axes["length"] and rng.random() < 0.5)):
        closing.append(f"addr_{politeness}")
    remaining = count - sum(len(group) for group in quotes) - len(closing)
    if remaining > 1 and rng.random() < (0.4, 0.4, 0.3)[axes["detail"]]:
        closing.insert(rng.randrange(len(closing) + 1), "end")
        remaining -= 1
    opening = []
    if remaining > 0 and rng.random() < (0.7 if axes["length"] else 0.5):
        opening.append("open" if axes["detail"] < 2 or remaining > 1 or rng.random() < 0.5 else "facts")
        remaining -= 1
    middle = [*quotes, *([_middle_symbol(rng, axes["detail"])] for _ in range(remaining))]
    if axes["detail"] == 2 and remaining > 0 and ["facts"] not in middle and rng.random() < 0.6:
        middle[-1] = ["facts"]
    rng.shuffle(middle)
    return opening + [symbol for group in middle for symbol in group] + closing


def _expand_sentence(symbol: str, grammar: _NonRepeatingGrammar, rng: random.Random, slots: dict[str, str]) -> str:
    """One sentence; a quote gets a line and a speaker that fits it."""
    if not symbol.startswith("quote"):
        return grammar.expand(symbol, rng, slots)
    manner = symbol.removeprefix("quote")
    by_clerk = manner == "_polite" or (manner == "_rude" and rng.random() < 0.4)
    line = grammar.expand(f"say{manner}", rng, slots)
    speaker = grammar.expand("clerk" if by_clerk else "friend", rng, slots)
    return grammar.expand("frame", rng, {**slots, "say": line, "speaker": speaker})


def _has_repeats(text: str, noun: str) -> bool:
    """Whether a content word or a day of the week occurs twice (the reviewed noun: three times)."""
    counts: dict[str, int] = {}
    for word in _WORD.findall(text.lower()):
        if word not in _COMMON_WORDS:
            key = "a day of the week" if word in _WEEKDAYS else word
            counts[key] = counts.get(key, 0) + 1
    return any(count > (2 if word in noun.split() else 1) for word, count in counts.items())


def _compose(rng: random.Random, axes: dict[str, int], slots: dict[str, str]) -> str:
    """A response of the right length without repeated words; "" if MAX_ATTEMPTS plans gave none."""
    symbols = dict(_symbols_for(slots["kind"], axes["mood"], axes["detail"]))
    if rng.random() < (1.0, 0.5, 0.0)[axes["detail"]]:
        slots = {**slots, "thing": slots["noun"]}
    if axes["detail"]:
        parts = [part.strip().split("/")[axes["detail"] - 1] for part in slots["parts"].split(";")]
        symbols["piece"] = symbols["part"] = tuple(f"the {part}" for part in parts)
    low, high = WORD_RANGES[axes["length"]]
    for _ in range(MAX_ATTEMPTS):
        grammar = _NonRepeatingGrammar(symbols)
        sentences: list[str] = []
        for symbol in _plan(rng, axes):
            for _ in range(6):
                sentence = _expand_sentence(symbol, grammar, rng, slots)
                if not _has_repeats(" ".join([*sentences, sentence]), slots["noun"]):
                    break
            sentences.append(sentence)
        response = _INNER_QUOTE.sub(lambda m: f', "{m.group(1).upper()}', tidy(" ".join(sentences)))
        if low <= len(response.split()) <= high and not _has_repeats(response, slots["noun"]):
            return response
    return ""


def generate_text(rng: random.Random) -> CorpusText:
    """A prompt and a review with random axes."""
    prompt_text, slots = generate_prompt(rng)
    length = rng.randrange(3)
    axes = {
        "mood": rng.randint(-2, 2),
        "length": length,
        "dialogue": rng.choices((0, 1, 2), (40, 35, 25 if length else 0))[0],
        "detail": rng.randrange(3),
        "politeness": rng.choices((-1, 0, 1), (3, 4, 3))[0],
    }
    response = _compose(rng, axes, slots)
    return CorpusText(prompt_text, response, axes) if response else generate_text(rng)
