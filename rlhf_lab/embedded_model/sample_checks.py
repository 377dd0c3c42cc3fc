"""What a reader stumbles over in samples, counted: names from nowhere, phrases no grammar writes, words never side by side."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from rlhf_lab.embedded_model.grammar_parser_rules import response_parser
from rlhf_lab.embedded_model.tales import hero_names

_WORD = re.compile(r"[A-Za-z']+|[.,!?;:]")


def names_not_in_prompt(prompts: Sequence[str], responses: Sequence[str]) -> list[bool]:
    """For each response, whether it names somebody (of the tales' heroes) whom its prompt does not."""
    name_pattern = re.compile(rf"\b({'|'.join(hero_names())})\b")
    return [
        bool({*name_pattern.findall(r)} - {*name_pattern.findall(p)}) for p, r in zip(prompts, responses, strict=True)
    ]


def not_in_grammar(prompt_set: str, responses: Sequence[str], ended: Sequence[bool]) -> list[bool]:
    """For each response, whether the grammar could not have written it.

    ended: whether it ended by itself; of one that was cut off, what is there is looked at.
    """
    parses = [response_parser(prompt_set).parse(response) for response in responses]
    return [
        not (parse.is_complete if has_ended else parse.furthest == len(parse.text))
        for parse, has_ended in zip(parses, ended, strict=True)
    ]


def has_unseen_bigram(lines: Iterable[str], corpus: Path) -> list[bool]:
    """For each line, whether two neighbouring words or marks of it stand so nowhere in the file `corpus`.

    The last word is left out: a line that was cut off ends within one.
    """
    seen_bigrams = set(pairwise(_WORD.findall(corpus.read_text(encoding="utf-8"))))
    return [bool(set(pairwise(_WORD.findall(line)[:-1])) - seen_bigrams) for line in lines]
