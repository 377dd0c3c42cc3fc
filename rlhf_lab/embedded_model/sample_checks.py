"""Checks of samples: names that are not in the prompt, phrases outside the grammar, and overlap with the training text."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from rlhf_lab.embedded_model.grammar_parser_rules import response_parser
from rlhf_lab.embedded_model.tales import hero_names

_WORD = re.compile(r"[A-Za-z']+|[.,!?;:]")


def names_not_in_prompt(prompts: Sequence[str], responses: Sequence[str]) -> list[bool]:
    """For each response, whether it contains a hero's name that is not in its prompt."""
    name_pattern = re.compile(rf"\b({'|'.join(hero_names())})\b")
    return [
        bool({*name_pattern.findall(r)} - {*name_pattern.findall(p)}) for p, r in zip(prompts, responses, strict=True)
    ]


def not_in_grammar(prompt_set: str, responses: Sequence[str], ended: Sequence[bool]) -> list[bool]:
    """For each response, whether the grammar cannot generate it. Truncated responses (not `ended`) are checked as prefixes."""
    parses = [response_parser(prompt_set).parse(response) for response in responses]
    return [
        not (parse.is_complete if has_ended else parse.furthest == len(parse.text))
        for parse, has_ended in zip(parses, ended, strict=True)
    ]


def longest_overlaps(texts: Iterable[str], corpus: Path) -> list[dict[str, int]]:
    """For each text: "words", the length of its longest run of words that is in the training text; "whole", whether the
    training text contains all of it."""
    corpus_text = corpus.read_text(encoding="utf-8")
    overlaps = []
    for text in texts:
        words = text.split()
        longest = 0
        for start in range(len(words)):
            while start + longest < len(words) and " ".join(words[start : start + longest + 1]) in corpus_text:
                longest += 1
        overlaps.append({"words": longest, "whole": int(f" {text}\n" in corpus_text)})
    return overlaps


def has_unseen_bigram(lines: Iterable[str], corpus: Path) -> list[bool]:
    """For each line, whether it contains a bigram of words or punctuation marks that is not in the file `corpus`.

    The last word is ignored: it may be truncated.
    """
    seen_bigrams = set(pairwise(_WORD.findall(corpus.read_text(encoding="utf-8"))))
    return [bool(set(pairwise(_WORD.findall(line)[:-1])) - seen_bigrams) for line in lines]
