"""Which pair a judgement is about: one that is there with the same two texts, or a new one.

The lab lets a person vote once on a pair. The same person on the same two texts again is a duplicate: kept, it gets a pair of
its own. Where the file names its pairs, two names are two pairs, even with equal texts (a repeated question).
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from rlhf_lab.imports.found import Judgement, Side
from rlhf_lab.kinds import Choice

Voter = tuple[str, bool]  # an annotator, and whether it was the hidden repeat of a question


class Content(NamedTuple):
    """Two texts for a prompt, whichever way round."""

    prompt_id: int
    one: str
    other: str

    @classmethod
    def of(cls, prompt_id: int, first: str, second: str) -> Self:
        return cls(prompt_id, *sorted((first, second)))


def content_of(prompt_id: int, item: Judgement) -> Content:
    return Content.of(prompt_id, item.first.text, item.second.text)


def flipped(choice: Choice) -> Choice:
    """The same answer where the first and the second text have changed places."""
    return {Choice.FIRST: Choice.SECOND, Choice.SECOND: Choice.FIRST}.get(choice, choice)


@dataclass
class Place:
    """A pair, there already (pair_id) or to be made, and who has voted on it."""

    prompt_id: int
    first: str
    second: str
    pair_id: int | None = None
    annotators: set[Voter] = field(default_factory=set)
    name: str | None = None  # what the file calls it, once it is known
    item: Judgement | None = None  # the judgement it is made for
    created_at: float = 0.0

    def same_way(self, item: Judgement) -> bool:
        return self.first == item.first.text and self.second == item.second.text

    def sides(self) -> tuple[Side, Side]:
        assert self.item is not None
        return self.item.first, self.item.second

    @property
    def reason(self) -> str:
        return self.item.reason if self.item else ""

    @property
    def model_hash(self) -> str:
        return self.item.model_hash if self.item else ""


class Places:
    """The pairs of a project while an import goes through its rows."""

    def __init__(self, known: Iterable[tuple[Content, Place]]) -> None:
        self._held: defaultdict[Content, list[Place]] = defaultdict(list)
        for content, place in known:
            self._held[content].append(place)
        self._new: list[Place] = []
        self._now = time.time()
        self.duplicates = 0

    def find(self, content: Content, item: Judgement, annotator: Voter, *, drop: bool) -> Place | None:
        """Where this judgement belongs; None for a duplicate that is to be dropped."""
        held = self._held[content]
        mine = self._called(held, item.pair) if item.pair else held
        place = next((place for place in mine if annotator not in place.annotators), None)
        if any(annotator in place.annotators for place in mine):
            self.duplicates += 1
            if drop:
                return None
        if place is None:
            place = Place(content.prompt_id, item.first.text, item.second.text, name=item.pair or None)
            place.item, place.created_at = item, self._now
            held.append(place)
            self._new.append(place)
        place.annotators.add(annotator)
        return place

    @staticmethod
    def _called(held: list[Place], name: str) -> list[Place]:
        """The places of that name; where there are none yet, the first pair without a name gets it."""
        found = [place for place in held if place.name == name]
        if not found and (place := next((place for place in held if place.name is None), None)):
            place.name = name
            found = [place]
        return found

    def new(self) -> Iterator[Place]:
        yield from self._new
