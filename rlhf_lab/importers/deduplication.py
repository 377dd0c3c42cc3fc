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

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.importers.parsed_rows import ParsedCompletion, ParsedVote

Voter = tuple[str, bool]  # an annotator, and whether it was the hidden repeat of a question


class PairKey(NamedTuple):
    """Two texts for a prompt, whichever way round."""

    prompt: str
    text_a: str
    text_b: str

    @classmethod
    def from_texts(cls, prompt: str, first_text: str, second_text: str) -> Self:
        return cls(prompt, *sorted((first_text, second_text)))


class Answer(NamedTuple):
    """Who said what, the choice being of a first and a second text."""

    voter: Voter
    source: Source
    choice: Choice
    strength: Strength | None


class VoteKey(NamedTuple):
    """An answer about two texts, the choice being of `content.one` and `content.other`: the same wherever they stood."""

    pair_key: PairKey
    answer: Answer

    @classmethod
    def from_answer(cls, pair_key: PairKey, first_text: str, answer: Answer) -> Self:
        return cls(
            pair_key, answer if first_text == pair_key.text_a else answer._replace(choice=flip_choice(answer.choice))
        )


def flip_choice(choice: Choice) -> Choice:
    """The same answer where the first and the second text have changed places."""
    return {Choice.FIRST: Choice.SECOND, Choice.SECOND: Choice.FIRST}.get(choice, choice)


@dataclass(eq=False)
class PairSlot:
    """A pair, there already (pair_id) or to be made, and who has voted on it."""

    pair_key: PairKey
    first_text: str
    second_text: str
    pair_id: int | None = None
    voters: set[Voter] = field(default_factory=set)
    pair_name: str = ""  # what the file calls it, once it is known
    vote: ParsedVote | None = None  # the judgement it is made for
    created_at: float = 0.0

    def has_same_order(self, vote: ParsedVote) -> bool:
        return self.first_text == vote.first.text and self.second_text == vote.second.text

    def completions(self) -> tuple[ParsedCompletion, ParsedCompletion]:
        assert self.vote is not None
        return self.vote.first, self.vote.second

    @property
    def reason(self) -> str:
        return self.vote.reason if self.vote else ""

    @property
    def model_hash(self) -> str:
        return self.vote.model_hash if self.vote else ""


class SlotQueue:
    """Pairs of the same two texts in the order they were made, and how far along it each person has judged them."""

    def __init__(self, slots: Iterable[PairSlot] = ()) -> None:
        self.slots = list(slots)
        self.voters = {voter for slot in self.slots for voter in slot.voters}
        self._next_index: dict[Voter, int] = {}
        self._first_unnamed = 0

    def next_for(self, voter: Voter) -> PairSlot | None:
        """The first pair that this person has not judged. Nobody's votes go away, so the search goes on where it ended:
        many duplicates of one person take one step each."""
        index = self._next_index.get(voter, 0)
        while index < len(self.slots) and voter in self.slots[index].voters:
            index += 1
        self._next_index[voter] = index
        return self.slots[index] if index < len(self.slots) else None

    def next_unnamed(self) -> PairSlot | None:
        """The first pair that the file has no name for yet."""
        while self._first_unnamed < len(self.slots) and self.slots[self._first_unnamed].pair_name:
            self._first_unnamed += 1
        return self.slots[self._first_unnamed] if self._first_unnamed < len(self.slots) else None


@dataclass
class DeduplicationCounts:
    """held: the project has them; duplicates: a further answer of the same person to the same two texts, `dropped` of them
    left out."""

    held: int = 0
    duplicates: int = 0
    dropped: int = 0


class PairIndex:
    """The pairs of a project while an import goes through its rows."""

    def __init__(self) -> None:
        self.counts = DeduplicationCounts()
        self._queues: defaultdict[PairKey, SlotQueue] = defaultdict(SlotQueue)
        self._named_queues: dict[tuple[PairKey, str], SlotQueue] = {}
        self._slots_by_id: dict[int, PairSlot] = {}
        self._recorded_votes: Counter[VoteKey] = Counter()  # in the project
        self._file_votes: Counter[VoteKey] = Counter()  # in the file, so far
        self._created_at = time.time()

    def add_existing(self, pair_id: int, pair_key: PairKey, first_text: str, second_text: str) -> None:
        """A pair that is in the project."""
        slot = PairSlot(pair_key, first_text, second_text)
        self._queues[pair_key].slots.append(slot)
        self.set_pair_id(slot, pair_id)

    def set_pair_id(self, slot: PairSlot, pair_id: int) -> None:
        """A new place has become a pair."""
        slot.pair_id = pair_id
        self._slots_by_id[pair_id] = slot

    def add_vote(self, pair_id: int, answer: Answer) -> None:
        """A vote that is in the project; one on another pair than those added says nothing here."""
        slot = self._slots_by_id.get(pair_id)
        if slot is not None:
            self._record_vote(slot, VoteKey.from_answer(slot.pair_key, slot.first_text, answer))

    def assign_slot(self, vote: ParsedVote, answer: Answer, *, drop_duplicates: bool) -> PairSlot | None:
        """Where this judgement belongs; None where it is left out: it is there, or a duplicate that is to be dropped."""
        pair_key = PairKey.from_texts(vote.prompt, vote.first.text, vote.second.text)
        vote_key, voter = VoteKey.from_answer(pair_key, vote.first.text, answer), answer.voter
        queue = self._queue_for(pair_key, vote.pair_name)
        self._file_votes[vote_key] += 1
        if self._recorded_votes[vote_key] >= self._file_votes[vote_key]:
            self.counts.held += 1
            return None
        if voter in queue.voters:
            self.counts.duplicates += 1
            if drop_duplicates:
                self.counts.dropped += 1
                return None
        slot = queue.next_for(voter) or self._add_slot(queue, pair_key, vote)
        self._record_vote(slot, vote_key)
        return slot

    def _record_vote(self, slot: PairSlot, vote_key: VoteKey) -> None:
        voter = vote_key.answer.voter
        slot.voters.add(voter)
        self._recorded_votes[vote_key] += 1
        self._queues[slot.pair_key].voters.add(voter)
        if slot.pair_name:
            self._named_queues[slot.pair_key, slot.pair_name].voters.add(voter)

    def _queue_for(self, pair_key: PairKey, pair_name: str) -> SlotQueue:
        """The pairs of that name; where there are none yet, the first pair without a name gets it. Without a name: all."""
        all_slots = self._queues[pair_key]
        if not pair_name:
            return all_slots
        if (pair_key, pair_name) not in self._named_queues:
            slot = all_slots.next_unnamed()
            if slot is not None:
                slot.pair_name = pair_name
            self._named_queues[pair_key, pair_name] = SlotQueue([slot] if slot else [])
        return self._named_queues[pair_key, pair_name]

    def _add_slot(self, queue: SlotQueue, pair_key: PairKey, vote: ParsedVote) -> PairSlot:
        slot = PairSlot(
            pair_key,
            vote.first.text,
            vote.second.text,
            pair_name=vote.pair_name,
            vote=vote,
            created_at=self._created_at,
        )
        all_slots = self._queues[pair_key]
        all_slots.slots.append(slot)
        if queue is not all_slots:
            queue.slots.append(slot)
        return slot
