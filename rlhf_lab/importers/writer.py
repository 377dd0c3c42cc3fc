"""Writes imported votes to a project's tables in chunks of a few hundred, so that people who vote meanwhile wait only briefly.

Each chunk is one short transaction with its prompts, completions, pairs and votes. An interrupted import leaves complete chunks;
importing the same file again adds the rest, because votes that the project has are skipped. Concurrent imports are safe too.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, insert, select, update

from rlhf_lab.common.bundled_assets import complete_splits
from rlhf_lab.common.enums import VIA_IMPORT, VIA_SIDES_UNKNOWN, Source
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import DataError, StoreError
from rlhf_lab.importers.deduplication import Answer, PairIndex, PairSlot, flip_choice
from rlhf_lab.importers.parsed_rows import IMPORTED, ParsedCompletion, ParsedFile, ParsedVote
from rlhf_lab.importers.parser import summarize_errors
from rlhf_lab.importers.project_index import ProjectIndex, adapt_to_project
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.import_batches import CHUNK_PAUSE_S, CHUNK_SIZE
from rlhf_lab.store.projects import get_project


class AssignedVote(NamedTuple):
    """A vote to be stored."""

    vote: ParsedVote
    slot: PairSlot
    annotator: str


@dataclass(frozen=True)
class ImportTarget:
    """Where votes are stored, and how.

    Attributes:
        source, annotator: of rows that name none.
        drop_duplicates: leave out further votes of an annotator about the same two texts.
        use_prompts: new prompts are also used for sampling and PPO; otherwise they only carry their labels.
        skip_broken: leave out rows with an error instead of importing nothing.
        who: name of the person who imports.
    """

    project_id: int
    source: Source = Source.HUMAN
    annotator: str = IMPORTED
    drop_duplicates: bool = False
    use_prompts: bool = False
    skip_broken: bool = False
    who: str = ""


@dataclass(frozen=True)
class ImportResult:
    """Counts of what was written and what was left out.

    Attributes:
        held, duplicates, dropped: see DeduplicationCounts.
        broken: rows with an error.
        same_texts: votes on a pair of equal texts.
    """

    votes: int = 0
    pairs: int = 0
    prompts: int = 0
    held: int = 0
    duplicates: int = 0
    dropped: int = 0
    broken: int = 0
    same_texts: int = 0
    annotators: list[str] = field(default_factory=list)

    @property
    def skipped(self) -> int:
        return self.held + self.dropped + self.broken


def save_import(db: Database, parsed_file: ParsedFile, target: ImportTarget) -> ImportResult:
    """Write the votes that the project does not have yet.

    Raises:
        DataError: names the rows with errors; nothing was written.
        StoreError: only a part could be written; the message says how much. That part is kept.
    """
    parsed_file = adapt_to_project(db, parsed_file, target.project_id)
    if parsed_file.errors and not target.skip_broken:
        raise DataError(
            f"{pluralize(len(parsed_file.errors), 'row')} of {parsed_file.name} cannot be used; nothing was imported. Correct "
            "the file, or have such rows left out (on the command line: --skip-broken).\n"
            + summarize_errors(parsed_file.errors)
        )
    if not parsed_file.votes:
        raise DataError(f"{parsed_file.name} holds no row that can be used.\n{summarize_errors(parsed_file.errors)}")
    return _ImportWriter(db, parsed_file, target).run()


def count_duplicates(db: Database | None, parsed_file: ParsedFile, target: ImportTarget) -> dict[str, int]:
    """DeduplicationCounts of an import as a dict. Writes nothing. db: None for a new project."""
    pair_index = PairIndex() if db is None else _ImportWriter(db, parsed_file, target).project_index.pair_index
    _assign_slots(pair_index, parsed_file.votes, target)
    return asdict(pair_index.counts)


def _assign_slots(pair_index: PairIndex, votes: Sequence[ParsedVote], target: ImportTarget) -> list[AssignedVote]:
    """The votes to be stored, each with its pair."""
    assigned = []
    for vote in votes:
        annotator = vote.annotator or target.annotator
        answer = Answer(
            (annotator, vote.repeat, vote.adjudication), vote.source or target.source, vote.choice, vote.strength
        )
        slot = pair_index.assign_slot(vote, answer, drop_duplicates=target.drop_duplicates)
        if slot is not None:
            assigned.append(AssignedVote(vote, slot, annotator))
    return assigned


def _via(vote: ParsedVote) -> str:
    """votes.via of an imported vote: as in the file, if that is an export of a lab."""
    return vote.via or (VIA_SIDES_UNKNOWN if vote.first_on_left is None else VIA_IMPORT)


class _ImportWriter:
    """One import. Reads and decides all it can before the first write transaction."""

    def __init__(self, db: Database, parsed_file: ParsedFile, target: ImportTarget) -> None:
        self.db, self.parsed_file, self.target = db, parsed_file, target
        self.project_index = ProjectIndex(get_project(db, target.project_id))
        split_by_prompt = parsed_file.split_by_prompt
        with db.read() as conn:
            self.project_index.load(conn, split_by_prompt)
        known_prompts = self.project_index.prompt_ids
        new_splits = {text: split for text, split in split_by_prompt.items() if text not in known_prompts}
        if not target.use_prompts:
            new_splits = {text: split or "train" for text, split in new_splits.items()}
        self.prompt_splits = dict(complete_splits(new_splits))
        self.pair_count = self.prompt_count = self.import_id = 0

    def run(self) -> ImportResult:
        parsed_votes, vote_count, annotators = self.parsed_file.votes, 0, set[str]()
        for start in range(0, len(parsed_votes), CHUNK_SIZE):
            if start:
                time.sleep(CHUNK_PAUSE_S)
            try:
                with self.db.write() as conn:
                    assigned = self._write_chunk(conn, parsed_votes[start : start + CHUNK_SIZE])
            except StoreError as error:
                raise type(error)(f"{error}{self._partial_result_message(vote_count)}") from error
            vote_count += len(assigned)
            annotators |= {entry.annotator for entry in assigned}
        return ImportResult(
            votes=vote_count, pairs=self.pair_count, prompts=self.prompt_count, broken=len(self.parsed_file.errors),
            same_texts=sum(vote.first.text == vote.second.text for vote in parsed_votes), annotators=sorted(annotators),
            **asdict(self.project_index.pair_index.counts),
        )  # fmt: skip

    def _partial_result_message(self, vote_count: int) -> str:
        if not vote_count:
            return ""
        return (
            f" Already imported and kept: {pluralize(vote_count, 'vote')} from {self.parsed_file.name}. "
            "Import it again to add the rest: nothing is imported twice."
        )

    def _write_chunk(self, conn: Connection, votes: Sequence[ParsedVote]) -> list[AssignedVote]:
        self.project_index.catch_up(conn)
        self.import_id = self.import_id or self._insert_import(conn)
        self._insert_prompts(conn, votes)
        assigned = self._drop_already_voted(conn, _assign_slots(self.project_index.pair_index, votes, self.target))
        self._insert_pairs(conn, assigned)
        self._insert_votes(conn, assigned)
        self.project_index.mark_synced(conn)
        return assigned

    def _insert_import(self, conn: Connection) -> int:
        values = {"project_id": self.project_index.project.id, "name": self.parsed_file.name, "who": self.target.who[:60],
                  "use_prompts": self.target.use_prompts, "created_at": time.time()}  # fmt: skip
        return insert_row(conn, t.imports, values)

    def _insert_prompts(self, conn: Connection, votes: Sequence[ParsedVote]) -> None:
        """Insert the new prompts. With `use_prompts`, known prompts that only carried labels are enabled for sampling."""
        prompts, prompt_ids = dict.fromkeys(vote.prompt for vote in votes), self.project_index.prompt_ids
        new_prompts = [text for text in prompts if text not in prompt_ids]
        if self.target.use_prompts:
            existing_ids = [prompt_ids[text] for text in prompts if text in prompt_ids]
            statement = update(t.prompts).where(t.prompts.c.id.in_(existing_ids), t.prompts.c.labels_only.is_(True))
            conn.execute(statement.values(labels_only=False, import_id=self.import_id))
        values = [
            {"project_id": self.project_index.project.id, "text": text, "labels_only": not self.target.use_prompts,
             "split": self.prompt_splits[text], "import_id": self.import_id if self.target.use_prompts else None}
            for text in new_prompts
        ]  # fmt: skip
        prompt_ids |= dict(zip(new_prompts, _insert_returning_ids(conn, t.prompts, values), strict=True))
        self.prompt_count += len(new_prompts)

    def _drop_already_voted(self, conn: Connection, assigned: list[AssignedVote]) -> list[AssignedVote]:
        """Drop votes whose annotator has restored a vote on the pair (redo) since the import read it."""
        v = t.votes.c
        pair_ids = [entry.slot.pair_id for entry in assigned if entry.slot.pair_id is not None]
        rows = conn.execute(
            select(v.pair_id, v.annotator, v.repeat, v.adjudication).where(
                v.pair_id.in_(pair_ids), v.undone_at.is_(None)
            )
        )
        already_voted = {tuple(row) for row in rows}
        remaining = [
            entry
            for entry in assigned
            if (entry.slot.pair_id, entry.annotator, entry.vote.repeat, entry.vote.adjudication) not in already_voted
        ]
        self.project_index.pair_index.counts.held += len(assigned) - len(remaining)
        return remaining

    def _insert_pairs(self, conn: Connection, assigned: list[AssignedVote]) -> None:
        """Insert the new pairs and their completions."""
        slots = list(dict.fromkeys(entry.slot for entry in assigned if entry.slot.pair_id is None))
        votes = [slot.vote for slot in slots if slot.vote is not None]  # as each new pair has
        completion_ids = _insert_returning_ids(
            conn,
            t.completions,
            [
                self._completion_values(slot, vote, completion)
                for slot, vote in zip(slots, votes, strict=True)
                for completion in (vote.first, vote.second)
            ],
        )
        values = [
            {
                "project_id": self.project_index.project.id,
                "first_id": completion_ids[2 * i],
                "second_id": completion_ids[2 * i + 1],
                "reason": votes[i].reason or f"import of {self.parsed_file.name[:80]}",
                "created_at": slot.created_at,
                "import_id": self.import_id,
            }
            for i, slot in enumerate(slots)
        ]
        for slot, pair_id in zip(slots, _insert_returning_ids(conn, t.pairs, values), strict=True):
            self.project_index.pair_index.set_pair_id(slot, pair_id)
        self.pair_count += len(values)

    def _completion_values(self, slot: PairSlot, vote: ParsedVote, completion: ParsedCompletion) -> dict[str, Any]:
        """Token ids are kept only if the same weights sampled them. A prefix marks checkpoints of other labs."""
        same_model = bool(vote.model_hash) and vote.model_hash == self.project_index.project.model_hash
        checkpoint = completion.checkpoint or IMPORTED
        if not checkpoint.startswith(IMPORTED):
            checkpoint = f"{IMPORTED}/{checkpoint}"
        return {
            "prompt_id": self.project_index.prompt_ids[slot.pair_key.prompt], "text": completion.text,
            "token_ids": list(completion.token_ids) if same_model else [], "checkpoint": checkpoint, "seed": completion.seed,
            "created_at": slot.created_at,
        }  # fmt: skip

    def _insert_votes(self, conn: Connection, assigned: list[AssignedVote]) -> None:
        v = t.votes.c
        file_uuids = [entry.vote.uuid for entry in assigned if entry.vote.uuid]
        used_uuids = set(conn.execute(select(v.uuid).where(v.uuid.in_(file_uuids))).scalars())
        values = []
        for vote, slot, annotator in assigned:
            is_flipped = not slot.has_same_order(vote)
            vote_uuid = vote.uuid if vote.uuid and vote.uuid not in used_uuids else str(uuid.uuid4())
            used_uuids.add(vote_uuid)
            on_left = vote.first_on_left
            if on_left is None:
                on_left = uuid.uuid5(uuid.NAMESPACE_OID, f"{vote.row_number} {annotator}").int % 2 == 0
            values.append({
                "uuid": vote_uuid, "pair_id": slot.pair_id, "annotator": annotator, "source": vote.source or self.target.source,
                "choice": flip_choice(vote.choice) if is_flipped else vote.choice, "first_on_left": on_left is not is_flipped,
                "strength": vote.strength, "note": vote.note, "repeat": vote.repeat, "via": _via(vote),
                "adjudication": vote.adjudication,
                "response_ms": vote.response_ms, "created_at": slot.created_at if vote.created_at is None else vote.created_at,
                "import_id": self.import_id,
            })  # fmt: skip
        _insert_returning_ids(conn, t.votes, values)
        statement = update(t.pairs).where(t.pairs.c.id.in_({entry.slot.pair_id for entry in assigned}))
        conn.execute(
            statement.where(t.pairs.c.taken_back_at.is_not(None)).values(taken_back_at=None, import_id=self.import_id)
        )


def _insert_returning_ids(conn: Connection, table: Table, values: list[dict[str, Any]]) -> list[int]:
    """Insert rows; returns their ids in the order of the values."""
    if not values:
        return []
    return list(conn.execute(insert(table).returning(table.c.id, sort_by_parameter_order=True), values).scalars())
