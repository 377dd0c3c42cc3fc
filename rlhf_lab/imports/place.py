"""Which pair a judgement is about: one that is there with the same two texts, a new one, or none, because it is there already.

A judgement counts once: what the project holds (the same person, source and answer about the same two texts, whichever way
round) is left out, as often as it is held. The lab lets a person vote once on a pair. A further answer of the same person to
the same two texts, whatever it says, is a duplicate: kept, it gets a pair of its own, for people are asked about equal texts
twice (where two models wrote the same), and rows that name nobody may be several people's. Where the file names its pairs, two
names are two pairs, even with equal texts (a repeated question).
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from rlhf_lab.imports.found import Judgement, Side
from rlhf_lab.kinds import Choice, Source, Strength

Voter = tuple[str, bool]  # an annotator, and whether it was the hidden repeat of a question


class Content(NamedTuple):
    """Two texts for a prompt, whichever way round."""

    prompt: str
    one: str
    other: str

    @classmethod
    def of(cls, prompt: str, first: str, second: str) -> Self:
        return cls(prompt, *sorted((first, second)))


class Answer(NamedTuple):
    """Who said what, the choice being of a first and a second text."""

    voter: Voter
    source: Source
    choice: Choice
    strength: Strength | None


class Said(NamedTuple):
    """An answer about two texts, the choice being of `content.one` and `content.other`: the same wherever they stood."""

    content: Content
    answer: Answer

    @classmethod
    def of(cls, content: Content, first: str, answer: Answer) -> Self:
        return cls(content, answer if first == content.one else answer._replace(choice=flipped(answer.choice)))


def flipped(choice: Choice) -> Choice:
    """The same answer where the first and the second text have changed places."""
    return {Choice.FIRST: Choice.SECOND, Choice.SECOND: Choice.FIRST}.get(choice, choice)


@dataclass(eq=False)
class Place:
    """A pair, there already (pair_id) or to be made, and who has voted on it."""

    content: Content
    first: str
    second: str
    pair_id: int | None = None
    voters: set[Voter] = field(default_factory=set)
    name: str = ""  # what the file calls it, once it is known
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


class Line:
    """Pairs of the same two texts in the order they were made, and how far along it each person has judged them."""

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self.places = list(places)
        self.judged = {voter for place in self.places for voter in place.voters}
        self._reached: dict[Voter, int] = {}
        self._named = 0

    def free_for(self, voter: Voter) -> Place | None:
        """The first pair that this person has not judged. Nobody's votes go away, so the search goes on where it ended:
        many duplicates of one person take one step each."""
        at = self._reached.get(voter, 0)
        while at < len(self.places) and voter in self.places[at].voters:
            at += 1
        self._reached[voter] = at
        return self.places[at] if at < len(self.places) else None

    def unnamed(self) -> Place | None:
        """The first pair that the file has no name for yet."""
        while self._named < len(self.places) and self.places[self._named].name:
            self._named += 1
        return self.places[self._named] if self._named < len(self.places) else None


@dataclass
class Counts:
    """held: the project has them; duplicates: a further answer of the same person to the same two texts, `dropped` of them
    left out."""

    held: int = 0
    duplicates: int = 0
    dropped: int = 0


class Places:
    """The pairs of a project while an import goes through its rows."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._lines: defaultdict[Content, Line] = defaultdict(Line)
        self._called: dict[tuple[Content, str], Line] = {}
        self._by_id: dict[int, Place] = {}
        self._votes: Counter[Said] = Counter()  # in the project
        self._wanted: Counter[Said] = Counter()  # in the file, so far
        self._now = time.time()

    def add(self, pair_id: int, content: Content, first: str, second: str) -> None:
        """A pair that is in the project."""
        place = Place(content, first, second)
        self._lines[content].places.append(place)
        self.made(place, pair_id)

    def made(self, place: Place, pair_id: int) -> None:
        """A new place has become a pair."""
        place.pair_id = pair_id
        self._by_id[pair_id] = place

    def cast(self, pair_id: int, answer: Answer) -> None:
        """A vote that is in the project; one on another pair than those added says nothing here."""
        place = self._by_id.get(pair_id)
        if place is not None:
            self._judged(place, Said.of(place.content, place.first, answer))

    def find(self, item: Judgement, answer: Answer, *, drop: bool) -> Place | None:
        """Where this judgement belongs; None where it is left out: it is there, or a duplicate that is to be dropped."""
        content = Content.of(item.prompt, item.first.text, item.second.text)
        said, voter = Said.of(content, item.first.text, answer), answer.voter
        line = self._line(content, item.pair)
        self._wanted[said] += 1
        if self._votes[said] >= self._wanted[said]:
            self.counts.held += 1
            return None
        if voter in line.judged:
            self.counts.duplicates += 1
            if drop:
                self.counts.dropped += 1
                return None
        place = line.free_for(voter) or self._new(line, content, item)
        self._judged(place, said)
        return place

    def _judged(self, place: Place, said: Said) -> None:
        voter = said.answer.voter
        place.voters.add(voter)
        self._votes[said] += 1
        self._lines[place.content].judged.add(voter)
        if place.name:
            self._called[place.content, place.name].judged.add(voter)

    def _line(self, content: Content, name: str) -> Line:
        """The pairs of that name; where there are none yet, the first pair without a name gets it. Without a name: all."""
        every = self._lines[content]
        if not name:
            return every
        if (content, name) not in self._called:
            place = every.unnamed()
            if place is not None:
                place.name = name
            self._called[content, name] = Line([place] if place else [])
        return self._called[content, name]

    def _new(self, line: Line, content: Content, item: Judgement) -> Place:
        place = Place(content, item.first.text, item.second.text, name=item.pair, item=item, created_at=self._now)
        every = self._lines[content]
        every.places.append(place)
        if line is not every:
            line.places.append(place)
        return place
