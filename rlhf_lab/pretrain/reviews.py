"""Short reviews of things, places, services, books, films, trips and classes, as a prompt set of the corpus."""

import random
import re
from functools import cache

from rlhf_lab.pretrain.grammar import Grammar, tidy
from rlhf_lab.pretrain.text import Text

# Every kind of thing that is reviewed, with the family whose phrases it shares.
FAMILIES = {
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
MOODS = {-2: "m2", -1: "m1", 0: "z0", 1: "p1", 2: "p2"}
PAST = frozenset(("show", "eatery", "place", "trip", "course", "service"))  # told in the past tense
WORDS = ((14, 19), (22, 30), (34, 43))
SENTENCES = ((2,), (2, 2, 3), (3, 4, 4, 5))
MAX_PROMPT_WORDS = 12
MAX_PLANS = 400
_WORD = re.compile(r"[a-z']+")
_INNER_QUOTE = re.compile(r', "([a-z])')
TAIL = re.compile(r" (from|for|at|in|on|by|with|along|to|through|round|across|near) .*")
# Words that may stand twice in one text; any other repeated word makes the writer draw again.
_PLAIN_WORDS = """
a an the and or but if of to in on at by for with from as so it its is was are were be been i my me we our us you your
he she they them their his her this that these those not no had has have did do does would will can could one two who
what which than then there all about so more some out up
"""
_PLAIN = frozenset(_PLAIN_WORDS.split())
_DAYS = frozenset(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"))


class _Fresh(Grammar):
    """A grammar that does not draw the same alternative twice, as long as there is another."""

    def __init__(self, symbols: dict[str, tuple[str, ...]]) -> None:
        super().__init__(symbols)
        self.used: set[tuple[str, str]] = set()

    def expand(self, symbol: str, rng: random.Random, slots: dict[str, str]) -> str:
        """One random unused expansion of `symbol`."""
        lines = self.symbols.get(symbol, ())
        fresh = [line for line in lines if (symbol, line) not in self.used] or list(lines)
        if not fresh:
            return super().expand(symbol, rng, slots)
        line = rng.choice(fresh)
        self.used.add((symbol, line))
        return self.fill(line, rng, slots)


@cache
def _grammar() -> Grammar:
    return Grammar.load("reviews")


@cache
def _view(kind: str, mood: int, detail: int) -> dict[str, tuple[str, ...]]:
    """The symbols with the pools that fit this kind, mood and detail joined under their bare names."""
    owners = dict.fromkeys(("", "_past" if kind in PAST else "_now", f"_{FAMILIES[kind]}", f"_{kind}"))
    suffixes = [owner + level for owner in owners for level in ("", f"_{MOODS[mood]}", f"_d{detail}") if owner + level]
    view = dict(_grammar().symbols)
    for name, lines in _grammar().symbols.items():
        for suffix in suffixes:
            if name.endswith(suffix):
                bare = name.removesuffix(suffix)
                view[bare] = view.get(bare, ()) + lines
    return view


def prompt(rng: random.Random) -> tuple[str, dict[str, str]]:
    """The prompt, and what it fixed: the kind, the noun, the noun with its description, and its parts."""
    while True:
        kind = rng.choice(tuple(FAMILIES))
        view = _view(kind, 0, 1)
        fresh = _Fresh(view)
        template = rng.choice(view[f"prompt_{kind}"])
        pool = "hostel" if "{hostel}" in template else f"item_{kind}"
        item, noun, parts = (field.strip() for field in fresh.expand(pool, rng, {}).split("|"))
        named = tidy(fresh.fill(template, rng, {"item": item, "hostel": item}))
        text = f"Review of {named[0].lower()}{named[1:]}:"
        if len(text.split()) <= MAX_PROMPT_WORDS:
            full = TAIL.sub("", re.sub("^an? ", "this ", text.removeprefix("Review of ").rstrip(":")))
            # "blue kettle"; only the noun where a proper name describes it ("the Lantern Cafe")
            thing = re.sub("^(this|the) ", "", full)
            thing = thing if thing[0].islower() else noun
            return text, {"kind": kind, "noun": noun, "full": full, "thing": thing, "parts": parts}


def _body(rng: random.Random, detail: int) -> str:
    """The symbol of a sentence in the middle."""
    weights = ((6, 3, 2, 0), (0, 9, 3, 0), (0, 5, 2, 5))[detail]
    return rng.choices(("vague", "aspect", "about", "facts"), weights)[0]


def _plan(rng: random.Random, axes: dict[str, int]) -> list[str]:
    """The symbols of the sentences, in order."""
    polite = {-1: "rude", 0: "", 1: "polite"}[axes["politeness"]]
    count = rng.choice(SENTENCES[axes["length"]])
    quotes: list[list[str]] = []
    if axes["dialogue"]:
        manner = f"quote_{polite}" if polite and (axes["length"] == 0 or rng.random() < 0.7) else "quote"
        quotes.append([manner])
    if axes["dialogue"] == 2:
        if (quotes[0] == ["quote"] or axes["mood"] == 0) and rng.random() < 0.7:
            quotes[0].append("reply")
        else:
            quotes.append(["quote"])
    spoken = any(group[0] != "quote" for group in quotes)
    last = []
    if polite and (not spoken or (axes["length"] and rng.random() < 0.5)):
        last.append(f"addr_{polite}")
    room = count - sum(len(group) for group in quotes) - len(last)
    if room > 1 and rng.random() < (0.4, 0.4, 0.3)[axes["detail"]]:
        last.insert(rng.randrange(len(last) + 1), "end")
        room -= 1
    first = []
    if room > 0 and rng.random() < (0.7 if axes["length"] else 0.5):
        first.append("open" if axes["detail"] < 2 or room > 1 or rng.random() < 0.5 else "facts")
        room -= 1
    middle = [*quotes, *([_body(rng, axes["detail"])] for _ in range(room))]
    if axes["detail"] == 2 and room > 0 and ["facts"] not in middle and rng.random() < 0.6:
        middle[-1] = ["facts"]
    rng.shuffle(middle)
    return first + [symbol for group in middle for symbol in group] + last


def _sentence(symbol: str, fresh: _Fresh, rng: random.Random, slots: dict[str, str]) -> str:
    """One sentence; a quoted line gets its words and somebody fit to speak them."""
    if not symbol.startswith("quote"):
        return fresh.expand(symbol, rng, slots)
    manner = symbol.removeprefix("quote")
    clerk = manner == "_polite" or (manner == "_rude" and rng.random() < 0.4)
    line = fresh.expand(f"say{manner}", rng, slots)
    speaker = fresh.expand("clerk" if clerk else "friend", rng, slots)
    return fresh.expand("frame", rng, {**slots, "say": line, "speaker": speaker})


def _repeats(text: str, noun: str) -> bool:
    """Whether a word that carries meaning or a day of the week stands twice (the reviewed noun: three times)."""
    seen: dict[str, int] = {}
    for word in _WORD.findall(text.lower()):
        if word not in _PLAIN:
            key = "a day of the week" if word in _DAYS else word
            seen[key] = seen.get(key, 0) + 1
    return any(number > (2 if word in noun.split() else 1) for word, number in seen.items())


def _compose(rng: random.Random, axes: dict[str, int], slots: dict[str, str]) -> str:
    """A response of the right length that repeats no word; "" if a few hundred plans gave none."""
    view = dict(_view(slots["kind"], axes["mood"], axes["detail"]))
    if rng.random() < (1.0, 0.5, 0.0)[axes["detail"]]:
        slots = {**slots, "thing": slots["noun"]}
    if axes["detail"]:
        parts = [part.strip().split("/")[axes["detail"] - 1] for part in slots["parts"].split(";")]
        view["piece"] = view["part"] = tuple(f"the {part}" for part in parts)
    low, high = WORDS[axes["length"]]
    for _ in range(MAX_PLANS):
        fresh = _Fresh(view)
        sentences: list[str] = []
        for symbol in _plan(rng, axes):
            for _ in range(6):
                sentence = _sentence(symbol, fresh, rng, slots)
                if not _repeats(" ".join([*sentences, sentence]), slots["noun"]):
                    break
            sentences.append(sentence)
        response = _INNER_QUOTE.sub(lambda m: f', "{m.group(1).upper()}', tidy(" ".join(sentences)))
        if low <= len(response.split()) <= high and not _repeats(response, slots["noun"]):
            return response
    return ""


def write(rng: random.Random) -> Text:
    """A prompt and one review for it, written to freshly drawn axes."""
    text, slots = prompt(rng)
    length = rng.randrange(3)
    axes = {
        "mood": rng.randint(-2, 2),
        "length": length,
        "dialogue": rng.choices((0, 1, 2), (40, 35, 25 if length else 0))[0],
        "detail": rng.randrange(3),
        "politeness": rng.choices((-1, 0, 1), (3, 4, 3))[0],
    }
    response = _compose(rng, axes, slots)
    return Text(text, response, axes) if response else write(rng)
