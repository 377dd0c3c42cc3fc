"""Prompt set "support": a customer's message as the prompt, the shop's reply as the response.

A reply has a few pieces (greeting, fact, what the shop will do, what the customer can do, atmosphere, closing words). Each
piece is a politeness frame around a phrase about the problem, with a mood; some are quoted.
"""

import random
import re
from collections import Counter
from functools import cache
from itertools import pairwise

from rlhf_lab.embedded_model.grammar import CorpusText, Grammar, tidy
from rlhf_lab.errors import ConfigError

COMPLAINTS = ("late", "broken", "colour", "missing", "refund", "small", "large", "wrong", "twice", "charge", "faulty")
QUESTIONS = ("howto", "sizeask", "invoice", "address", "cancel", "stock", "guarantee", "gift", "collect")
KINDS = (*COMPLAINTS, *QUESTIONS, "praise")
CLOTHING_KINDS = ("small", "large", "sizeask")  # only about clothes
ADVICE_KINDS = ("howto", "sizeask")  # the reply says what the customer can do
WORD_RANGES = ((14, 19), (22, 30), (34, 43))
PIECE_COUNTS = ((1, 2), (2, 3), (3, 4))  # (least, most) by length; sometimes one fewer
PIECE_ORDER = ("open", "ack", "fact", "we", "you", "air", "cry", "close")
QUOTABLE = ("fact", "we", "you", "air", "cry")
MAX_ATTEMPTS = 4000
_REPEATABLE = frozenset(("{nil}", ".", "!"))


@cache
def _grammar() -> Grammar:
    """The phrase file."""
    return Grammar.load("support")


class _VoiceGrammar(Grammar):
    """The grammar of one speaker: `{day}` is looked up as day, day_m<mood>, day_p<politeness>, ….

    No alternative is used twice while there is an unused one.
    """

    def __init__(self, rng: random.Random, kind: str, axes: dict[str, int]) -> None:
        super().__init__(_grammar().symbols)
        self.rng = rng
        tone = "bbngg"[axes["mood"] + 2]
        self.suffixes = (
            "",
            f"_m{axes['mood'] + 2}",
            f"_p{axes['politeness'] + 2}_{kind}",
            f"_p{axes['politeness'] + 2}",
            f"_d{axes['detail']}",
            f"_{kind}",
            f"{tone}_{kind}",
        )
        self.used: set[str] = set()

    def expand(self, symbol: str, rng: random.Random, slots: dict[str, str]) -> str:
        """An unused expansion of `symbol` for the axes of this speaker."""
        lines = next(
            (self.symbols[symbol + suffix] for suffix in self.suffixes if symbol + suffix in self.symbols), None
        )
        if lines is None:
            raise ConfigError(f"support.txt has no symbol [{symbol}] for any of {', '.join(self.suffixes[1:])}")
        line = rng.choice([line for line in lines if line not in self.used] or lines)
        if line not in _REPEATABLE:
            self.used.add(line)
        return self.fill(line, rng, slots)


def generate_prompt(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A customer's message, "Customer: …\\nShop:", and its slots (kind, item, colour, part, order …)."""
    symbols = _grammar().symbols
    kind = rng.choice(KINDS)
    slots = {"kind": kind, "nil": "", "order": ""}
    item, parts = rng.choice(symbols["machine" if kind == "faulty" else "item"]).split("|")
    if kind in CLOTHING_KINDS or (
        kind not in ("broken", "missing", "faulty", "guarantee", "howto") and rng.random() < 0.15
    ):
        item = rng.choice(symbols["wear"])
    steps = rng.choice(symbols["howto"]).split("|")
    if kind == "howto":
        item = steps[0]
    slots["item"] = item
    slots["part"] = rng.choice(parts.split(","))
    slots["colour"], slots["colour2"] = rng.sample(symbols["colour"], 2)
    slots["flaw"] = rng.choice(symbols["flaw"])
    slots["item2"] = rng.choice([name for line in symbols["item"] if (name := line.split("|")[0]) != item])
    coloured = f"{slots['colour']} {item}"
    slots["thing"] = coloured if kind == "colour" or rng.random() < 0.5 else item
    slots["task"] = steps[1].replace("@", f"the {item}")
    slots["taskit"] = steps[1].replace("@", "it")
    slots["step0"], slots["step1"], slots["step2"], slots["step3"] = steps[2:]
    message = _grammar().expand(f"prompt_{kind}", rng, {**slots, "task": steps[1].replace("@", f"my {slots['thing']}")})
    if slots["colour"] not in message:
        slots["thing"] = item  # the shop only knows colours that the customer mentioned
    if kind not in ("sizeask", "stock") and rng.random() < 0.7 and len(message.split()) < 15:
        slots["order"] = str(rng.randint(1000, 9999))
        message = f"{message} {_grammar().expand('ordernote', rng, slots)}"
    return f"Customer: {tidy(message)}\nShop:", slots


def _plan(rng: random.Random, core: str, axes: dict[str, int]) -> list[tuple[str, bool]]:
    """The pieces of a reply in order, and for each whether it is quoted speech."""
    pieces = {core}
    greeting = rng.choice(("open", "ack"))
    others = [piece for piece in (greeting, "fact", "we", "you", "air", "close") if piece != core]
    length, quote_count = axes["length"], axes["dialogue"]
    if (quote_count > 0 and rng.random() < (0.6, 0.2, 0.2)[length]) or (length, quote_count) == (1, 2):
        pieces.add("cry")  # the shortest quoted line
    low, high = PIECE_COUNTS[length]
    target_count = rng.randint(low - (rng.random() < 0.2), high)
    pieces.update(rng.sample(others, max(target_count - len(pieces), 0)))
    order = list(PIECE_ORDER)
    if rng.random() < 0.4:
        order[2], order[3] = order[3], order[2]
    if rng.random() < 0.3:
        order.insert(rng.randint(2, 4), order.pop(5))
    plan = [piece for piece in order if piece in pieces]
    quoted_pieces = pieces & {"cry"}
    quotable_pieces = [piece for piece in plan if piece in QUOTABLE and piece not in quoted_pieces]
    quoted_pieces.update(rng.sample(quotable_pieces, min(quote_count - len(quoted_pieces), len(quotable_pieces))))
    return [(piece, piece in quoted_pieces) for piece in plan]


def _compose(rng: random.Random, slots: dict[str, str], axes: dict[str, int]) -> str | None:
    """One attempt at a reply; None if its plan has too few quotable pieces."""
    kind = slots["kind"]
    plan = _plan(rng, "you" if kind in ADVICE_KINDS else "we", axes)
    if sum(is_quoted for _, is_quoted in plan) != axes["dialogue"]:
        return None
    grammar = _VoiceGrammar(rng, kind, axes)
    mentions_order = slots["order"] and axes["detail"] == 2 and axes["length"] > 0
    all_slots = {**slots, "forref": f"for order {slots['order']}" if mentions_order else ""}
    if axes["length"] == 0 and axes["dialogue"] and rng.random() < (0.4, 0.4, 0.25)[axes["detail"]]:
        all_slots["when"] = ""
    brief = axes["detail"] == 2 and axes["length"] == 0
    all_slots["step"] = slots["step3" if brief else f"step{axes['detail']}"]
    sentences: list[str] = []
    quote_count = 0
    for piece, is_quoted in plan:
        if is_quoted:
            line = grammar.expand(f"q{piece}", rng, all_slots)
            frame = "quote_cry" if piece == "cry" else "quote_second" if quote_count and rng.random() < 0.7 else "quote"
            sentences.append(grammar.expand(frame, rng, {**all_slots, "q": line}))
            quote_count += 1
        elif piece in QUOTABLE:
            sentences.append(grammar.expand(f"say{piece}", rng, all_slots))
        elif piece == "ack":
            ack_type = "c" if kind in COMPLAINTS else "t" if kind == "praise" else "q"
            sentences.append(grammar.expand(f"ack{ack_type}", rng, all_slots))
        else:
            sentences.append(grammar.expand(piece, rng, all_slots))
    reply = re.sub(r"\s+([,.!?])", r"\1", re.sub(r"\s+", " ", " ".join(sentences)))
    reply = re.sub(r",+(?=[,.!?])", "", reply)
    reply = re.sub(r'((?:^|[.!?]"? |, )")([a-z])', lambda m: m.group(1) + m.group(2).upper(), reply)
    return tidy(reply)


def _has_repeats(reply: str, message: str) -> bool:
    """Whether a content word (by stem), trigram or word pair repeats; more repeats are allowed for words of the message."""
    message_stems = {word[:5] for word in re.findall(r"[a-z0-9]+", message.lower())}
    words = re.findall(r"[a-z0-9']+", reply.lower())
    common = set(_grammar().symbols["common"][0].split())
    counts = Counter(word[:5] for word in words if len(word) >= 4 and word not in common)
    trigrams = Counter(zip(words, words[1:], words[2:], strict=False))
    return (
        any(n > (3 if stem in message_stems else 1) for stem, n in counts.items())
        or any(n > 1 for n in trigrams.values())
        or any(a == b for a, b in pairwise(words))
    )


def generate_text(rng: random.Random) -> CorpusText:
    """A customer's message and a reply with random axes."""
    length = rng.randrange(3)
    weights = ((62, 38, 0), (60, 25, 15), (56, 14, 30))[length]
    axes = {
        "mood": rng.randint(-2, 2),
        "politeness": rng.randint(-2, 2),
        "detail": rng.randrange(3),
        "length": length,
        "dialogue": rng.choices((0, 1, 2), weights)[0],
    }
    low, high = WORD_RANGES[length]
    for attempt in range(MAX_ATTEMPTS):
        if attempt % 400 == 0:  # try another customer
            message, slots = generate_prompt(rng)
        reply = _compose(rng, slots, axes)
        if reply is not None and low <= len(reply.split()) <= high and not _has_repeats(reply, message):
            return CorpusText(message, reply, axes)
    raise ConfigError(f"support.txt gave no reply of {low} to {high} words with {axes}")
