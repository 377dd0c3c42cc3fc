"""Transcripts whose speakers have names of their own ("Customer:", "H:", "## Instruction:"): recognised by their shape, and
divided into messages when somebody says who is the user."""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from rlhf_lab.importers.column_mapping import ColumnMappingError

_LABEL = re.compile(
    r"^[ \t]*(?P<mark>#{1,6}[ \t]*|[*_]{1,2}|[<\[])?(?P<name>[^\W\d_][\w .'’-]{0,29}?)[*_>\]]{0,2}[ \t]*[:：](?!//)[*_]{0,2}",
    re.MULTILINE,
)
USER_FIRST, ASSISTANT_FIRST = "turns=first_is_user", "turns=second_is_user"


def find_speakers(texts: Collection[str], column: str, answers: Collection[str]) -> dict[str, str]:
    """Name of a speaker in lower case -> role, if at least half of the texts are transcripts; "" if they are left out.

    Raises ColumnMappingError if the user has not said what such texts are.
    """
    found = list(filter(None, map(_alternating_speakers, texts)))
    if 2 * len(found) < len(texts) or not any(is_sure for _, is_sure in found) or "texts=plain" in answers:
        return {}
    pairs = [pair for pair, _ in Counter(pair for pair, _ in found).most_common()]
    roles = ("user", "assistant") if USER_FIRST in answers else ("assistant", "user")
    if not {USER_FIRST, ASSISTANT_FIRST} & set(answers):
        if "texts=skip" not in answers:
            first, second = pairs[0]
            raise ColumnMappingError(
                f'{column} looks like a transcript of "{first}" and "{second}", in {len(found)} of {len(texts)} rows. '
                f'In the first answer "{first}" is the user, in the second one "{second}".',
                answers=(USER_FIRST, ASSISTANT_FIRST, "texts=plain", "texts=skip"),
            )
        roles = ("", "")
    speakers: dict[str, str] = {}
    for pair in pairs:
        speakers = dict(zip(pair, roles, strict=True)) | speakers
    return speakers


def _alternating_speakers(text: str) -> tuple[tuple[str, str], bool] | None:
    """(the two names that begin lines in turn, whether they surely are speakers); None for other texts.

    Three turns, or two whose names are marked ("## Question:") and the last of which is open, are a transcript.
    """
    labels = list(_LABEL.finditer(text))
    counts = Counter(label["name"].casefold() for label in labels)
    names = {name for name, _ in counts.most_common(2)}
    turns = [label for label in labels if label["name"].casefold() in names]
    order = [label["name"].casefold() for label in turns]
    if len(names) < 2 or any(a == b for a, b in itertools.pairwise(order)):
        return None
    is_open = not text[turns[-1].end() :].strip() and all(label["mark"] for label in turns)
    return (order[0], order[1]), len(turns) > 2 or is_open


def divide_turns(text: str, speakers: Mapping[str, str], *, is_prompt: bool) -> Any:
    """The messages of a transcript; what comes before them is one of the system. Of other texts, and of an answer that does not
    begin with a speaker, the text."""
    labels = [label for label in _LABEL.finditer(text) if speakers.get(label["name"].casefold())] if speakers else []
    before = text[: labels[0].start()].strip() if labels else text
    if not labels or (before and not is_prompt):
        return text
    ends = [*(label.start() for label in labels[1:]), len(text)]
    chat = [
        {"role": speakers[label["name"].casefold()], "content": text[label.end() : end].strip()}
        for label, end in zip(labels, ends, strict=True)
    ]
    is_open = is_prompt and chat[-1] == {"role": "assistant", "content": ""}
    return [{"role": "system", "content": before}] * bool(before) + chat[: len(chat) - is_open]
