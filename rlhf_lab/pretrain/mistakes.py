"""What a reader stumbles over in samples, counted: names from nowhere, phrases no grammar writes, words never side by side."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from rlhf_lab.pretrain.response_rules import recogniser
from rlhf_lab.pretrain.tales import names

_WORD = re.compile(r"[A-Za-z']+|[.,!?;:]")


def strange_names(prompts: Sequence[str], responses: Sequence[str]) -> list[bool]:
    """For each response, whether it names somebody (of the tales' heroes) whom its prompt does not."""
    name = re.compile(rf"\b({'|'.join(names())})\b")
    return [bool({*name.findall(r)} - {*name.findall(p)}) for p, r in zip(prompts, responses, strict=True)]


def unwritable(prompt_set: str, responses: Sequence[str], ended: Sequence[bool]) -> list[bool]:
    """For each response, whether the grammar could not have written it.

    ended: whether it ended by itself; of one that was cut off, what is there is looked at.
    """
    readings = [recogniser(prompt_set).read(response) for response in responses]
    return [
        not (reading.whole if end else reading.furthest == len(reading.line))
        for reading, end in zip(readings, ended, strict=True)
    ]


def never_side_by_side(lines: Iterable[str], corpus: Path) -> list[bool]:
    """For each line, whether two neighbouring words or marks of it stand so nowhere in the file `corpus`.

    The last word is left out: a line that was cut off ends within one.
    """
    known = set(pairwise(_WORD.findall(corpus.read_text(encoding="utf-8"))))
    return [bool(set(pairwise(_WORD.findall(line)[:-1])) - known) for line in lines]
