"""Prompt set "tales": the first sentence of a tiny tale, and a continuation with a mood, some talk, and an ending."""

import random
import re
from collections import Counter
from functools import cache
from itertools import count

from rlhf_lab.pretrain.grammar import Grammar, tidy
from rlhf_lab.pretrain.text import Text

FAMILIES = ("home", "travel", "search", "make", "wait")
MOODS = {-2: ("gloomy", "down"), -1: ("sad", "down"), 0: ("plain",), 1: ("glad", "up"), 2: ("merry", "up")}
DETAILS = ("vague", "usual", "exact")
MANNERS = {-1: "rude", 0: "calm", 1: "polite"}
WORDS = ((16, 20), (22, 30), (34, 43))
PROMPT_WORDS = (8, 18)

_LEVELS = {level for names in MOODS.values() for level in names} | set(DETAILS) | set(MANNERS.values())
_DETAIL_SLOTS = ("when", "where", "gift", "food", "lasting", "far", "crowd", "dusk")
_ENDING = re.compile(r"(fully|iness|iest|ing|ily|ed|es|ly|ful|y|s|e)$")
_PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
}

# The parts of a response by (length, dialogue). "manner" parts stand only in texts that are polite or rude.
_PLANS: dict[tuple[int, int], str] = {
    (0, 0): "open|open close|mind close|meet close|open meet",
    (0, 1): "tell|tell|tell close|tell close|plead|remark|muse|plead close|remark close|muse close",
    (1, 0): "open mind close|open meet close|open close|meet mind close|open mind",
    (1, 1): "open remark close|open plead close|tell close|tell mind|open muse|open muse close",
    (1, 2): "tell reply|tell reply close|remark reply close|plead accept|plead accept close",
    (2, 0): "open meet mind close|open mind meet close|open meet mind|open mind close|open meet close",
    (2, 1): (
        "open meet remark close|open meet plead close|open mind muse close|open muse meet close|"
        "open mind plead close|tell mind meet close|tell mind close"
    ),
    (2, 2): (
        "open plead accept close|open remark reply close|tell reply mind close|open plead accept|"
        "tell reply close|open mind plead accept"
    ),
}
_MANNER_PLANS = {
    0: "manner close|manner|open manner",
    1: "open manner close|manner mind close|open manner|open mind manner",
    2: "open manner mind close|open meet manner close|open mind manner|open manner close|manner mind close",
}


@cache
def _grammar(mood: int, detail: int, politeness: int) -> Grammar:
    """The phrase file with every symbol of these levels known by its bare name too (`open_home`, `when`, `state` …)."""
    symbols = dict(_base().symbols)
    levels = {*MOODS[mood], DETAILS[detail], MANNERS[politeness]}
    for symbol, lines in _base().symbols.items():
        stems = symbol.split("_")
        marks = {stem for stem in stems if stem in _LEVELS}
        if marks and marks <= levels:
            symbols["_".join(stem for stem in stems if stem not in _LEVELS)] = lines
    return Grammar(symbols)


@cache
def _base() -> Grammar:
    """The phrase file as it stands."""
    return Grammar.load("tales")


def names() -> tuple[str, ...]:
    """Every name a hero may have."""
    return _base().symbols["she"] + _base().symbols["he"]


def prompt(rng: random.Random) -> tuple[str, dict[str, str]]:
    """The first sentence of a tale, and what it fixed: family, name, kind, topic and the pronouns."""
    grammar = _base()
    family, gender = rng.choice(FAMILIES), rng.choice(("she", "he"))
    slots = {"family": family, **_PRONOUNS[gender], "name": grammar.expand(gender, rng, {})}
    slots["topic"] = grammar.expand(f"topic_{family}", rng, {})
    while True:
        slots["kind"] = grammar.expand("kind", rng, {})
        text = tidy(grammar.expand(f"prompt_{family}", rng, dict(slots)))
        if PROMPT_WORDS[0] <= len(text.split()) <= PROMPT_WORDS[1] and not _repeats(text, slots):
            return text, slots


def write(rng: random.Random) -> Text:
    """A prompt, and a response written to freshly drawn axes."""
    start, slots = prompt(rng)
    length = rng.randrange(3)
    axes = {
        "mood": rng.randint(-2, 2),
        "length": length,
        "dialogue": rng.choices((0, 1, 2), (54, 46, 0) if length == 0 else (33, 30, 37))[0],
        "detail": rng.randrange(3),
        "politeness": rng.randint(-1, 1),
    }
    low, high = WORDS[length]
    target = rng.randint(low, high)
    for attempt in count(1):
        if attempt % 400 == 0:
            start, slots = prompt(rng)
        response = _attempt(axes, slots, rng)
        words = len(response.split())
        near = abs(words - target) <= 1 + attempt // 40
        if response and near and low <= words <= high and not _repeats(start + " " + response, slots):
            return Text(start, response, axes)
    raise AssertionError("unreachable")


def _attempt(axes: dict[str, int], slots: dict[str, str], rng: random.Random) -> str:
    """One response of no particular length; empty if its parts do not go together."""
    grammar = _grammar(axes["mood"], axes["detail"], axes["politeness"])
    plan = _plan(axes, rng).split()
    parts: list[str] = []
    for part in plan:
        parts.append(_refer(_part(part, grammar.symbols, slots, rng), parts, rng))
    template = " ".join(parts)
    counts = Counter(re.findall(r"\{([a-z_]+)\}", template))
    if any(counts[slot] > 1 for slot in (*_DETAIL_SLOTS, "sky", "mly", "mway")):
        return ""
    shown = sum(counts[slot] for slot in _DETAIL_SLOTS) + bool(counts["who"])
    if axes["detail"] != 1 and shown < len(plan) / 2:
        return ""
    friend, pal = grammar.expand("friend", rng, {}).split("|")
    text = grammar.fill(template, rng, {**slots, "who": "@"}).replace("@", friend, 1).replace("@", pal)
    text = re.sub(r'(, ")([a-z])', lambda m: m.group(1) + m.group(2).upper(), tidy(text))
    text = text.replace("~", "").replace(" ,", ",")
    return "" if " home" in text and slots["family"] != "travel" else text


def _plan(axes: dict[str, int], rng: random.Random) -> str:
    """The parts of the response, in order."""
    if axes["dialogue"] == 0 and axes["politeness"]:
        return rng.choice(_MANNER_PLANS[axes["length"]].split("|"))
    plan = rng.choice(_PLANS[axes["length"], axes["dialogue"]].split("|"))
    if axes["politeness"] and axes["dialogue"] == 1:
        plan = plan.replace("meet", rng.choice(("meet", "manner")))
    return plan


def _part(part: str, symbols: dict[str, tuple[str, ...]], slots: dict[str, str], rng: random.Random) -> str:
    """The raw template of one part: a narrated sentence, or a spoken line in its frame."""
    if part == "open":
        return rng.choice(symbols[f"open_{slots['family']}"])
    if part in ("mind", "meet", "manner", "close"):
        return rng.choice(symbols[part])
    if part == "plead":
        kind = rng.choice(("beg", "quiz"))
        line = rng.choice(symbols[kind]).replace("{plea}", rng.choice(symbols["plea"]))
    else:
        kind = part if part in ("reply", "accept") else "state"
        pool = symbols[f"tell_{slots['family']}"] if part == "tell" else symbols["core"]
        core = rng.choice(pool if kind != "state" or part == "tell" else pool + symbols["extra"])
        line = rng.choice(symbols[kind]).replace("{core}", core)
    hero = part in ("muse", "reply", "accept")
    frame = rng.choice(symbols["ask" if kind == "quiz" else "muse" if part == "muse" else "say"])
    line = line.replace("{vo}", rng.choice(("friend", "neighbour")) if hero else "{name}")
    return frame.replace("{line}", line).replace("{sp}", "{name}" if hero else "{who}")


def _refer(sentence: str, before: list[str], rng: random.Random) -> str:
    """The hero by name where the other character stood last, and often by pronoun where the hero did."""
    if before and "{who}" in before[-1] and "{name}" not in sentence:
        return sentence.replace("{he}", "{name}", 1)
    if not before or "{who}" in before[-1] or "{mly}" in sentence:
        return sentence
    if sentence.startswith("{name} ") and rng.random() < 0.6:
        return sentence.replace("{name}", "{he}", 1)
    return sentence


def _repeats(text: str, slots: dict[str, str]) -> bool:
    """Whether a content word (or one that begins alike) stands twice."""
    free = {*_base().symbols["common"], slots["name"].lower(), slots["topic"], slots["kind"]}
    words = [word for word in re.findall(r"[a-z]{4,}|joy", text.lower()) if word not in free]
    stems = Counter(word[:3] if word.startswith("joy") else _ENDING.sub("", word)[:5] for word in words)
    return any(number > 1 for number in stems.values())
