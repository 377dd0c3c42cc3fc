"""Parser rules for the responses of each prompt set: the slots that its generator fills in code, and the sentence roots."""

import re
from collections.abc import Mapping, Sequence
from functools import cache

from rlhf_lab.embedded_model import reviews, support, tales
from rlhf_lab.embedded_model.grammar import Grammar
from rlhf_lab.embedded_model.grammar_parser import GrammarParser

SlotRules = tuple[dict[str, Sequence[str]], tuple[str, ...]]  # slots, roots


@cache
def response_parser(prompt_set: str) -> GrammarParser:
    """The parser of a prompt set's responses."""
    symbols = Grammar.load(prompt_set).symbols
    slots, roots = {"tales": _tales_rules, "support": _support_rules, "reviews": _reviews_rules}[prompt_set](symbols)
    return GrammarParser(symbols, slots, roots)


def _tales_rules(symbols: Mapping[str, Sequence[str]]) -> SlotRules:
    names = tales.hero_names()
    slots = {
        "name": (*names, "he", "she"),
        "he": ("he", "she", *names),
        "his": ("his", "her"),
        "him": ("him", "her"),
        "himself": ("himself", "herself"),
        "who": [
            who for name in ("vague", "usual", "exact") for line in symbols[f"friend_{name}"] for who in line.split("|")
        ],
        "sp": ("{name}", "{who}"),
        "vo": ("{name}", "friend", "neighbour"),
        "line": ("{state}", "{reply}", "{accept}", "{beg}", "{quiz}"),
        "core": [f"{{{name}}}" for name in symbols if name.split("_")[0] in ("core", "extra", "tell")],
    }
    return slots, ("open", "mind", "meet", "manner", "close", "say", "ask", "muse")


def _support_rules(symbols: Mapping[str, Sequence[str]]) -> SlotRules:
    things = [line.split("|") for name in ("item", "machine") for line in symbols[name]]
    steps = [line.split("|") for line in symbols["howto"]]
    items = [*(thing[0] for thing in things), *(row[0] for row in steps), *symbols["wear"]]
    slots = {
        "item": items,
        "item2": items,
        "thing": ("{item}", "{colour} {item}"),
        "part": [part for thing in things for part in thing[1].split(",")],
        "colour2": symbols["colour"],
        "task": [row[1].replace("@", "the {item}") for row in steps],
        "taskit": [row[1].replace("@", "it") for row in steps],
        "step": [step for row in steps for step in row[2:]],
        "order": ("{number}",),
        "forref": ("", "for order {number}"),
        "nil": ("",),
        "when": ("", *(line for name in symbols if name.startswith("when_") for line in symbols[name])),
        "fact": ("{factb}", "{factn}", "{factg}"),
        "q": [f"{{q{piece}}}" for piece in support.QUOTABLE],
    }
    return slots, (
        "open",
        "ackc",
        "ackt",
        "ackq",
        *(f"say{p}" for p in support.QUOTABLE if p != "cry"),
        "quote",
        "close",
    )


def _reviews_rules(symbols: Mapping[str, Sequence[str]]) -> SlotRules:
    rows = [
        line.split("|") for name in symbols if name.startswith("item_") or name == "hostel" for line in symbols[name]
    ]
    prompt_templates = [line for name in symbols if name.startswith("prompt_") for line in symbols[name]]
    full_names = [
        reviews.TRAILING_PHRASE.sub("", re.sub(r" \{(setting|route)\}.*", "", line)) for line in prompt_templates
    ]
    full_names = [
        re.sub("^an? |{kind_of_course}", lambda m: "this {sort}" if "{" in m.group() else "this ", line)
        for line in full_names
    ]
    part_names = [f"the {name.strip()}" for row in rows for part in row[2].split(";") for name in part.split("/")]
    slots = {
        "item": [row[0].strip() for row in rows],
        "hostel": [line.split("|")[0].strip() for line in symbols["hostel"]],
        "sort": [line.split(" ", 1)[1] for line in symbols["kind_of_course"]],
        "noun": [row[1].strip() for row in rows],
        "full": full_names,
        "thing": ("{noun}", *(re.sub("^(this|the) ", "", line) for line in full_names)),
        "part": [*symbols["part_d0"], *part_names],
        "piece": [*symbols["piece_d0"], *part_names],
        "speaker": ("{clerk}", "{friend}"),
    }
    return slots, ("open", "vague", "aspect", "about", "facts", "end", "addr", "frame", "reply")
