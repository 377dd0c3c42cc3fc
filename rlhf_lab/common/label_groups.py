"""Groups of labels that must be held out together, so that a model is never tested on what it has learned.

Labels are in one group if they are about the same prompt or about the same two texts, directly or through other labels. Prompts
and texts are the same if they have one `normal_form`: people import lists in which a prompt occurs twice with and without a
full stop, and a model that has learned one of these labels knows the other."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

MIN_GROUPS = 5
_WORD = re.compile(r"[^\W_]+")
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")


class LabelKeys(NamedTuple):
    """Digests of the normal forms of a label's prompt (16 bytes) and of its two texts, in either order (32 bytes)."""

    prompt: bytes
    texts: bytes


def normal_form(text: str) -> str:
    """The words of a text, without differences in case, width, Unicode form, white space, punctuation and invisible characters; a
    text without words as it is, with single spaces."""
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(_WORD.findall(visible)) or " ".join(visible.split())


@lru_cache(maxsize=4096)  # several labels follow each other on one prompt and on one pair
def _digest(text: str) -> bytes:
    return blake2b(normal_form(text).encode(), digest_size=16).digest()


def label_keys(prompt: str, first: str, second: str) -> LabelKeys:
    return LabelKeys(_digest(prompt), b"".join(sorted((_digest(first), _digest(second)))))


def group_labels(labels: Sequence[LabelKeys]) -> list[int]:
    """The group of each label, numbered by the first label of the group.

    A group with more than half of the labels would leave too few others to learn from. It is split by texts (in a project with
    one prompt) or, if that gives fewer than MIN_GROUPS and than by prompt, by prompt (if all answers are "yes" and "no");
    `are_split` is then true.
    """
    first_of_key: dict[bytes, int] = {}
    parents = list(range(len(labels)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = i = parents[parents[i]]
        return i

    for i, label in enumerate(labels):
        for key in (label.prompt, label.texts):
            joined = root(first_of_key.setdefault(key, i)), root(i)
            parents[max(joined)] = min(joined)
    groups = [root(i) for i in range(len(labels))]
    largest, size = Counter(groups).most_common(1)[0] if groups else (0, 0)
    if 2 * size <= len(labels):
        return groups
    texts, prompts = (
        {label[key] for label, group in zip(labels, groups, strict=True) if group == largest} for key in (1, 0)
    )
    by = 1 if len(texts) >= min(MIN_GROUPS, len(prompts)) else 0
    return [first_of_key[label[by]] if group == largest else group for label, group in zip(labels, groups, strict=True)]


def are_split(labels: Sequence[LabelKeys], groups: Sequence[int]) -> bool:
    """Whether labels about one prompt, or about the same two texts, are in several groups."""
    group_of_key: dict[bytes, int] = {}
    return any(
        group_of_key.setdefault(key, group) != group
        for label, group in zip(labels, groups, strict=True)
        for key in label
    )
