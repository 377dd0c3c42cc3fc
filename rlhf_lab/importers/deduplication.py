"""Assigns each imported vote to a pair: an existing one with the same two texts, a new one, or none if it is a duplicate.

Votes that the project has already (same annotator, source and answer about the same two texts in either order) are skipped, as
often as the project has them. An annotator votes once per pair. A further answer of the same annotator about the same texts is a
duplicate: it is dropped or gets a pair of its own, because equal texts can be shown twice (two models wrote the same) and rows
without an annotator can be from several people. Different pair names in the file are different pairs, even with equal texts.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.importers.parsed_rows import ParsedVote

Voter = tuple[str, bool, bool]  # annotator, whether the vote is a hidden repeat, whether it is an expert's decision


class PairKey(NamedTuple):
    """A prompt and two texts in sorted order, so the same for either order of the pair."""

    prompt: str
    text_a: str
    text_b: str

    @classmethod
    def from_texts(cls, prompt: str, first_text: str, second_text: str) -> Self:
        return cls(prompt, *sorted((first_text, second_text)))


class Answer(NamedTuple):
    """A vote without its texts."""

    voter: Voter
    source: Source
    choice: Choice
    strength: Strength | None


class VoteKey(NamedTuple):
    """An answer about two texts. FIRST means pair_key.text_a, so the key does not depend on the order of the texts."""

    pair_key: PairKey
    answer: Answer

    @classmethod
    def from_answer(cls, pair_key: PairKey, first_text: str, answer: Answer) -> Self:
        flipped = answer._replace(choice=flip_choice(answer.choice))
        return cls(pair_key, answer if first_text == pair_key.text_a else flipped)


def flip_choice(choice: Choice) -> Choice:
    """The same answer with the first and the second text swapped."""
    return {Choice.FIRST: Choice.SECOND, Choice.SECOND: Choice.FIRST}.get(choice, choice)


@dataclass(eq=False)
class PairSlot:
    """A pair and who has voted on it.

    Attributes:
        pair_id: None until the pair is stored.
        pair_name: its name in the file, once known.
        vote: the imported vote that the pair is created for; None for pairs that the project had before.
    """

    pair_key: PairKey
    first_text: str
    second_text: str
    pair_id: int | None = None
    voters: set[Voter] = field(default_factory=set)
    pair_name: str = ""
    vote: ParsedVote | None = None
    created_at: float = 0.0

    def has_same_order(self, vote: ParsedVote) -> bool:
        return self.first_text == vote.first.text and self.second_text == vote.second.text


class SlotQueue:
    """Pairs of the same two texts in order of creation. Finds the next one without a vote of a given annotator."""

    def __init__(self, slots: Iterable[PairSlot] = ()) -> None:
        self.slots = list(slots)
        self.voters = {voter for slot in self.slots for voter in slot.voters}
        self._next_index: dict[Voter, int] = {}
        self._first_unnamed = 0

    def next_for(self, voter: Voter) -> PairSlot | None:
        """The first pair without a vote of this annotator. Votes are never removed, so the search continues at the last index:
        amortised O(1) per vote."""
        index = self._next_index.get(voter, 0)
        while index < len(self.slots) and voter in self.slots[index].voters:
            index += 1
        self._next_index[voter] = index
        return self.slots[index] if index < len(self.slots) else None

    def next_unnamed(self) -> PairSlot | None:
        """The first pair without a name."""
        while self._first_unnamed < len(self.slots) and self.slots[self._first_unnamed].pair_name:
            self._first_unnamed += 1
        return self.slots[self._first_unnamed] if self._first_unnamed < len(self.slots) else None


@dataclass
class DeduplicationCounts:
    """Counts of votes.

    Attributes:
        held: skipped, because the project has them already.
        duplicates: further answers of the same annotator about the same two texts.
        dropped: how many of the duplicates were left out.
    """

    held: int = 0
    duplicates: int = 0
    dropped: int = 0


class PairIndex:
    """The pairs and votes of a project during an import, updated by each assigned vote."""

    def __init__(self) -> None:
        self.counts = DeduplicationCounts()
        self._queues: defaultdict[PairKey, SlotQueue] = defaultdict(SlotQueue)
        self._named_queues: dict[tuple[PairKey, str], SlotQueue] = {}
        self._slots_by_id: dict[int, PairSlot] = {}
        self._recorded_votes: Counter[VoteKey] = Counter()  # in the project, and assigned
        self._file_votes: Counter[VoteKey] = Counter()  # in the file, so far
        self._created_at = time.time()

    def add_existing(self, pair_id: int, pair_key: PairKey, first_text: str, second_text: str) -> None:
        """Add a pair of the project."""
        slot = PairSlot(pair_key, first_text, second_text)
        self._queues[pair_key].slots.append(slot)
        self.set_pair_id(slot, pair_id)

    def set_pair_id(self, slot: PairSlot, pair_id: int) -> None:
        """Record that a new pair was stored."""
        slot.pair_id = pair_id
        self._slots_by_id[pair_id] = slot

    def add_vote(self, pair_id: int, answer: Answer) -> None:
        """Add a vote of the project; ignored if its pair was not added."""
        slot = self._slots_by_id.get(pair_id)
        if slot is not None:
            self._record_vote(slot, VoteKey.from_answer(slot.pair_key, slot.first_text, answer))

    def assign_slot(self, vote: ParsedVote, answer: Answer, *, drop_duplicates: bool) -> PairSlot | None:
        """The pair of an imported vote; None if the project has the vote already, or if it is a duplicate to be dropped.

        Records the vote and updates `counts`.
        """
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
        """The pairs with that name; a new name is given to the first unnamed pair. Without a name: all pairs of these texts."""
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
        first, second = vote.first.text, vote.second.text
        slot = PairSlot(pair_key, first, second, pair_name=vote.pair_name, vote=vote, created_at=self._created_at)
        all_slots = self._queues[pair_key]
        all_slots.slots.append(slot)
        if queue is not all_slots:
            queue.slots.append(slot)
        return slot
