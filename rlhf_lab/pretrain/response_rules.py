"""What the responses of each prompt set are made of: the slots its writer fills in code, and what a sentence may be."""

import re
from collections.abc import Mapping, Sequence
from functools import cache

from rlhf_lab.pretrain import reviews, support, tales
from rlhf_lab.pretrain.grammar import Grammar
from rlhf_lab.pretrain.recogniser import Recogniser

Parts = tuple[dict[str, Sequence[str]], tuple[str, ...]]  # slots, roots


@cache
def recogniser(prompt_set: str) -> Recogniser:
    """The rules of a prompt set's responses."""
    symbols = Grammar.load(prompt_set).symbols
    slots, roots = {"tales": _tales, "support": _support, "reviews": _reviews}[prompt_set](symbols)
    return Recogniser(symbols, slots, roots)


def _tales(symbols: Mapping[str, Sequence[str]]) -> Parts:
    names = tales.names()
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


def _support(symbols: Mapping[str, Sequence[str]]) -> Parts:
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


def _reviews(symbols: Mapping[str, Sequence[str]]) -> Parts:
    rows = [
        line.split("|") for name in symbols if name.startswith("item_") or name == "hostel" for line in symbols[name]
    ]
    named = [line for name in symbols if name.startswith("prompt_") for line in symbols[name]]
    full = [reviews.TAIL.sub("", re.sub(r" \{(setting|route)\}.*", "", line)) for line in named]
    full = [
        re.sub("^an? |{kind_of_course}", lambda m: "this {sort}" if "{" in m.group() else "this ", line)
        for line in full
    ]
    parts = [f"the {name.strip()}" for row in rows for part in row[2].split(";") for name in part.split("/")]
    slots = {
        "item": [row[0].strip() for row in rows],
        "hostel": [line.split("|")[0].strip() for line in symbols["hostel"]],
        "sort": [line.split(" ", 1)[1] for line in symbols["kind_of_course"]],
        "noun": [row[1].strip() for row in rows],
        "full": full,
        "thing": ("{noun}", *(re.sub("^(this|the) ", "", line) for line in full)),
        "part": [*symbols["part_d0"], *parts],
        "piece": [*symbols["piece_d0"], *parts],
        "speaker": ("{clerk}", "{friend}"),
    }
    return slots, ("open", "vague", "aspect", "about", "facts", "end", "addr", "frame", "reply")
