"""Prompt set "tales": the first sentence of a tiny tale, and a continuation with a mood, dialogue and an ending."""

import random
import re
from collections import Counter
from functools import cache
from itertools import count

from rlhf_lab.embedded_model.grammar import CorpusText, Grammar, tidy

FAMILIES = ("home", "travel", "search", "make", "wait")
MOOD_LEVELS = {-2: ("gloomy", "down"), -1: ("sad", "down"), 0: ("plain",), 1: ("glad", "up"), 2: ("merry", "up")}
DETAIL_LEVELS = ("vague", "usual", "exact")
MANNER_LEVELS = {-1: "rude", 0: "calm", 1: "polite"}
WORD_RANGES = ((16, 20), (22, 30), (34, 43))
PROMPT_WORD_RANGE = (8, 18)

_LEVELS = {level for levels in MOOD_LEVELS.values() for level in levels} | {*DETAIL_LEVELS, *MANNER_LEVELS.values()}
_DETAIL_SLOTS = ("when", "where", "gift", "food", "lasting", "far", "crowd", "dusk")
_SUFFIX = re.compile(r"(fully|iness|iest|ing|ily|ed|es|ly|ful|y|s|e)$")
_PRONOUNS = {
    "she": {"he": "she", "him": "her", "his": "her", "himself": "herself"},
    "he": {"he": "he", "him": "him", "his": "his", "himself": "himself"},
}

# Alternative sequences of parts by (length, dialogue). "manner" parts occur only in polite or rude texts.
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
    """The phrase file; symbols of these levels are also available without the levels in their name (`open_home`, `when` …)."""
    symbols = dict(_base_grammar().symbols)
    levels = {*MOOD_LEVELS[mood], DETAIL_LEVELS[detail], MANNER_LEVELS[politeness]}
    for symbol, lines in _base_grammar().symbols.items():
        name_parts = symbol.split("_")
        symbol_levels = {name_part for name_part in name_parts if name_part in _LEVELS}
        if symbol_levels and symbol_levels <= levels:
            symbols["_".join(name_part for name_part in name_parts if name_part not in _LEVELS)] = lines
    return Grammar(symbols)


@cache
def _base_grammar() -> Grammar:
    """The phrase file."""
    return Grammar.load("tales")


def hero_names() -> tuple[str, ...]:
    """All names of heroes."""
    return _base_grammar().symbols["she"] + _base_grammar().symbols["he"]


def generate_prompt(rng: random.Random) -> tuple[str, dict[str, str]]:
    """The first sentence of a tale, and its slots: family, name, kind, topic and pronouns."""
    grammar = _base_grammar()
    family, gender = rng.choice(FAMILIES), rng.choice(("she", "he"))
    slots = {"family": family, **_PRONOUNS[gender], "name": grammar.expand(gender, rng, {})}
    slots["topic"] = grammar.expand(f"topic_{family}", rng, {})
    while True:
        slots["kind"] = grammar.expand("kind", rng, {})
        text = tidy(grammar.expand(f"prompt_{family}", rng, dict(slots)))
        if PROMPT_WORD_RANGE[0] <= len(text.split()) <= PROMPT_WORD_RANGE[1] and not _has_repeats(text, slots):
            return text, slots


def generate_text(rng: random.Random) -> CorpusText:
    """A prompt and a response with random axes."""
    prompt_text, slots = generate_prompt(rng)
    length = rng.randrange(3)
    axes = {
        "mood": rng.randint(-2, 2),
        "length": length,
        "dialogue": rng.choices((0, 1, 2), (54, 46, 0) if length == 0 else (33, 30, 37))[0],
        "detail": rng.randrange(3),
        "politeness": rng.randint(-1, 1),
    }
    low, high = WORD_RANGES[length]
    target_words = rng.randint(low, high)
    for attempt in count(1):
        if attempt % 400 == 0:
            prompt_text, slots = generate_prompt(rng)
        response = _try_response(axes, slots, rng)
        word_count = len(response.split())
        is_near_target = abs(word_count - target_words) <= 1 + attempt // 40
        if (
            response
            and is_near_target
            and low <= word_count <= high
            and not _has_repeats(prompt_text + " " + response, slots)
        ):
            return CorpusText(prompt_text, response, axes)
    raise AssertionError("unreachable")


def _try_response(axes: dict[str, int], slots: dict[str, str], rng: random.Random) -> str:
    """A response of any length; "" if its parts do not fit together."""
    grammar = _grammar(axes["mood"], axes["detail"], axes["politeness"])
    plan = _plan(axes, rng).split()
    templates: list[str] = []
    for part_name in plan:
        templates.append(_vary_reference(_part_template(part_name, grammar.symbols, slots, rng), templates, rng))
    template = " ".join(templates)
    counts = Counter(re.findall(r"\{([a-z_]+)\}", template))
    if any(counts[slot] > 1 for slot in (*_DETAIL_SLOTS, "sky", "mly", "mway")):
        return ""
    detail_count = sum(counts[slot] for slot in _DETAIL_SLOTS) + bool(counts["who"])
    if axes["detail"] != 1 and detail_count < len(plan) / 2:
        return ""
    friend, friend_again = grammar.expand("friend", rng, {}).split("|")
    text = grammar.fill(template, rng, {**slots, "who": "@"}).replace("@", friend, 1).replace("@", friend_again)
    text = re.sub(r'(, ")([a-z])', lambda m: m.group(1) + m.group(2).upper(), tidy(text))
    text = text.replace("~", "").replace(" ,", ",")
    return "" if " home" in text and slots["family"] != "travel" else text


def _plan(axes: dict[str, int], rng: random.Random) -> str:
    """The parts of the response in order, separated by spaces."""
    if axes["dialogue"] == 0 and axes["politeness"]:
        return rng.choice(_MANNER_PLANS[axes["length"]].split("|"))
    plan = rng.choice(_PLANS[axes["length"], axes["dialogue"]].split("|"))
    if axes["politeness"] and axes["dialogue"] == 1:
        plan = plan.replace("meet", rng.choice(("meet", "manner")))
    return plan


def _part_template(
    part_name: str, symbols: dict[str, tuple[str, ...]], slots: dict[str, str], rng: random.Random
) -> str:
    """The template of one part: a narrated sentence, or a spoken line in a frame."""
    if part_name == "open":
        return rng.choice(symbols[f"open_{slots['family']}"])
    if part_name in ("mind", "meet", "manner", "close"):
        return rng.choice(symbols[part_name])
    if part_name == "plead":
        kind = rng.choice(("beg", "quiz"))
        line = rng.choice(symbols[kind]).replace("{plea}", rng.choice(symbols["plea"]))
    else:
        kind = part_name if part_name in ("reply", "accept") else "state"
        pool = symbols[f"tell_{slots['family']}"] if part_name == "tell" else symbols["core"]
        core = rng.choice(pool if kind != "state" or part_name == "tell" else pool + symbols["extra"])
        line = rng.choice(symbols[kind]).replace("{core}", core)
    hero = part_name in ("muse", "reply", "accept")
    frame = rng.choice(symbols["ask" if kind == "quiz" else "muse" if part_name == "muse" else "say"])
    line = line.replace("{vo}", rng.choice(("friend", "neighbour")) if hero else "{name}")
    return frame.replace("{line}", line).replace("{sp}", "{name}" if hero else "{who}")


def _vary_reference(sentence: str, previous: list[str], rng: random.Random) -> str:
    """Name the hero if the other character was mentioned last; often use a pronoun if the hero was."""
    if previous and "{who}" in previous[-1] and "{name}" not in sentence:
        return sentence.replace("{he}", "{name}", 1)
    if not previous or "{who}" in previous[-1] or "{mly}" in sentence:
        return sentence
    if sentence.startswith("{name} ") and rng.random() < 0.6:
        return sentence.replace("{name}", "{he}", 1)
    return sentence


def _has_repeats(text: str, slots: dict[str, str]) -> bool:
    """Whether a content word, or two with the same stem, occurs twice."""
    allowed_repeats = {*_base_grammar().symbols["common"], slots["name"].lower(), slots["topic"], slots["kind"]}
    words = [word for word in re.findall(r"[a-z]{4,}|joy", text.lower()) if word not in allowed_repeats]
    stems = Counter(word[:3] if word.startswith("joy") else _SUFFIX.sub("", word)[:5] for word in words)
    return any(n > 1 for n in stems.values())
