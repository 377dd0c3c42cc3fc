"""Judgements into a project's tables, some hundred at a time, so that whoever votes meanwhile hardly waits.

Each piece is one short transaction with its prompts, texts, pairs and votes: an import that is cut off leaves whole pieces, and
the same file again brings the rest, because what is there is not taken in twice. So do two imports at once.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, Table, insert, select, update

from rlhf_lab.assets import split
from rlhf_lab.counted import counted
from rlhf_lab.errors import DataError, StoreError
from rlhf_lab.imports.found import IMPORTED, Found, Judgement, Side
from rlhf_lab.imports.place import Answer, Place, Places, flipped
from rlhf_lab.imports.there import There
from rlhf_lab.imports.understand import summary_of
from rlhf_lab.kinds import Source
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, insert_row
from rlhf_lab.store.imports import PIECE, REST_S
from rlhf_lab.store.projects import get_project

SIDED, UNSIDED = "import", "import unsided"  # votes.via: does anybody know where the two texts stood?

Chosen = list[tuple[Judgement, Place, str]]  # a judgement that is to be kept, its pair, and who said it


@dataclass(frozen=True)
class Into:
    """Where judgements go, and what to do with what the file does not say.

    source, annotator: of rows that name none. use_prompts: prompts the project does not have yet become its own, for
    sampling and PPO too; without it they only carry their labels. skip_broken: leave out rows with a problem.
    drop_duplicates: leave out what somebody says of two texts who has said something of them before. who: imports it.
    """

    project_id: int
    source: Source = Source.HUMAN
    annotator: str = IMPORTED
    drop_duplicates: bool = False
    use_prompts: bool = False
    skip_broken: bool = False
    who: str = ""


@dataclass(frozen=True)
class Saved:
    """What was written, and what was left out: held (the project has it), broken.

    duplicates: a further answer of the same person to the same two texts, `dropped` of them left out.
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


def save(db: Database, found: Found, into: Into) -> Saved:
    """Write what was found and is not there yet.

    DataError names the rows with problems; then nothing is written. StoreError: not all could be written; it says how much
    is in, and stays in.
    """
    if found.problems and not into.skip_broken:
        raise DataError(
            f"{counted(len(found.problems), 'row')} of {found.name} cannot be used; nothing was imported. Mend the file, or have "
            f"such rows left out (on the command line: --skip-broken).\n{summary_of(found.problems)}"
        )
    if not found.judgements:
        raise DataError(f"{found.name} holds no row that can be used.\n{summary_of(found.problems)}")
    return _Writing(db, found, into).run()


def doubts_of(db: Database | None, found: Found, into: Into) -> dict[str, int]:
    """{"held", "duplicates", …}: what an import would meet (see `Saved`). Nothing is written. db: None for a new project."""
    places = Places() if db is None else _Writing(db, found, into).there.places
    _place(places, found.judgements, into)
    return asdict(places.counts)


def _place(places: Places, judgements: Sequence[Judgement], into: Into) -> Chosen:
    """Every judgement that is to be kept, its pair, and who said it."""
    chosen: Chosen = []
    for item in judgements:
        annotator = item.annotator or into.annotator
        answer = Answer((annotator, item.repeat), item.source or into.source, item.choice, item.strength)
        place = places.find(item, answer, drop=into.drop_duplicates)
        if place is not None:
            chosen.append((item, place, annotator))
    return chosen


def _via(item: Judgement) -> str:
    """The door an imported vote came through; the one that its export names, if it does."""
    return item.via[:20] or (UNSIDED if item.first_on_left is None else SIDED)


class _Writing:
    """One import. Whatever can be looked up and decided beforehand is, while nobody waits."""

    def __init__(self, db: Database, found: Found, into: Into) -> None:
        self.db, self.found, self.into = db, found, into
        self.there = There(get_project(db, into.project_id))
        prompts = {item.prompt: item.split for item in found.judgements}
        with db.read() as conn:
            self.there.read(conn, prompts)
        new = [text for text in prompts if text not in self.there.prompts]
        parts = dict(split(new)) if new and into.use_prompts else {}
        self.parts = {
            text: said if said in ("train", "eval") else parts.get(text, "train") for text, said in prompts.items()
        }
        self.pairs = self.prompts = self.id = 0

    def run(self) -> Saved:
        judgements, votes, people = self.found.judgements, 0, set[str]()
        for start in range(0, len(judgements), PIECE):
            if start:
                time.sleep(REST_S)
            try:
                with self.db.write() as conn:
                    chosen = self._piece(conn, judgements[start : start + PIECE])
            except StoreError as error:
                raise type(error)(f"{error}{self._so_far(votes)}") from error
            votes += len(chosen)
            people |= {annotator for _, _, annotator in chosen}
        return Saved(
            votes=votes, pairs=self.pairs, prompts=self.prompts, broken=len(self.found.problems),
            same_texts=sum(item.first.text == item.second.text for item in judgements), annotators=sorted(people),
            **asdict(self.there.places.counts),
        )  # fmt: skip

    def _so_far(self, votes: int) -> str:
        if not votes:
            return ""
        return (
            f" What is in stays: {counted(votes, 'vote')} of {self.found.name}. Import it again for the rest: nothing is "
            "taken in twice."
        )

    def _piece(self, conn: Connection, judgements: Sequence[Judgement]) -> Chosen:
        self.there.catch_up(conn)
        self.id = self.id or self._begin(conn)
        self._make_prompts(conn, judgements)
        chosen = self._still_free(conn, _place(self.there.places, judgements, self.into))
        self._make_pairs(conn, chosen)
        self._cast(conn, chosen)
        self.there.mark(conn)
        return chosen

    def _begin(self, conn: Connection) -> int:
        values = {"project_id": self.there.project.id, "name": self.found.name, "who": self.into.who[:60],
                  "use_prompts": self.into.use_prompts, "created_at": time.time()}  # fmt: skip
        return insert_row(conn, t.imports, values)

    def _make_prompts(self, conn: Connection, judgements: Sequence[Judgement]) -> None:
        """Those new to the project; those that only carried labels become its own where that is wished."""
        wanted, known = dict.fromkeys(item.prompt for item in judgements), self.there.prompts
        new = [text for text in wanted if text not in known]
        if self.into.use_prompts:
            mine = [known[text] for text in wanted if text in known]
            idle = update(t.prompts).where(t.prompts.c.id.in_(mine), t.prompts.c.labels_only.is_(True))
            conn.execute(idle.values(labels_only=False, import_id=self.id))
        values = [
            {"project_id": self.there.project.id, "text": text, "labels_only": not self.into.use_prompts,
             "split": self.parts[text], "import_id": self.id if self.into.use_prompts else None}
            for text in new
        ]  # fmt: skip
        known |= dict(zip(new, _insert(conn, t.prompts, values), strict=True))
        self.prompts += len(new)

    def _still_free(self, conn: Connection, chosen: Chosen) -> Chosen:
        """Without those whose person has brought back a vote on the pair (redo) since the import looked."""
        v = t.votes.c
        there = [place.pair_id for _, place, _ in chosen if place.pair_id is not None]
        rows = conn.execute(select(v.pair_id, v.annotator, v.repeat).where(v.pair_id.in_(there), v.undone_at.is_(None)))
        taken = {(row.pair_id, row.annotator, row.repeat) for row in rows}
        free = [one for one in chosen if (one[1].pair_id, one[2], one[0].repeat) not in taken]
        self.there.places.counts.held += len(chosen) - len(free)
        return free

    def _make_pairs(self, conn: Connection, chosen: Chosen) -> None:
        """Completions and pairs of the places that are new."""
        places = list(dict.fromkeys(place for _, place, _ in chosen if place.pair_id is None))
        ids = _insert(
            conn, t.completions, [self._completion(place, side) for place in places for side in place.sides()]
        )
        values = [
            {"project_id": self.there.project.id, "first_id": ids[2 * i], "second_id": ids[2 * i + 1],
             "reason": place.reason or f"import of {self.found.name[:80]}", "created_at": place.created_at,
             "import_id": self.id}
            for i, place in enumerate(places)
        ]  # fmt: skip
        for place, pair_id in zip(places, _insert(conn, t.pairs, values), strict=True):
            self.there.places.made(place, pair_id)
        self.pairs += len(values)

    def _completion(self, place: Place, side: Side) -> dict[str, Any]:
        """Token ids count only where the same weights wrote them; another lab's runs are not this one's."""
        ours = bool(place.model_hash) and place.model_hash == self.there.project.model_hash
        checkpoint = side.checkpoint or IMPORTED
        if not checkpoint.startswith(IMPORTED):
            checkpoint = f"{IMPORTED}/{checkpoint}"
        return {
            "prompt_id": self.there.prompts[place.content.prompt], "text": side.text,
            "token_ids": list(side.ids) if ours else [], "checkpoint": checkpoint, "seed": side.seed,
            "created_at": place.created_at,
        }  # fmt: skip

    def _cast(self, conn: Connection, chosen: Chosen) -> None:
        v = t.votes.c
        wanted = [item.uuid for item, _, _ in chosen if item.uuid]
        taken = set(conn.execute(select(v.uuid).where(v.uuid.in_(wanted))).scalars())
        values = []
        for item, place, annotator in chosen:
            turned = not place.same_way(item)
            name = item.uuid if item.uuid and item.uuid not in taken else str(uuid.uuid4())
            taken.add(name)
            on_left = item.first_on_left
            if on_left is None:
                on_left = uuid.uuid5(uuid.NAMESPACE_OID, f"{item.row} {annotator}").int % 2 == 0
            values.append({
                "uuid": name, "pair_id": place.pair_id, "annotator": annotator, "source": item.source or self.into.source,
                "choice": flipped(item.choice) if turned else item.choice, "first_on_left": on_left is not turned,
                "strength": item.strength, "note": item.note[:1000], "repeat": item.repeat, "via": _via(item),
                "response_ms": item.response_ms, "created_at": place.created_at if item.created_at is None else item.created_at,
                "import_id": self.id,
            })  # fmt: skip
        _insert(conn, t.votes, values)
        again = update(t.pairs).where(t.pairs.c.id.in_({place.pair_id for _, place, _ in chosen}))
        conn.execute(again.where(t.pairs.c.taken_back_at.is_not(None)).values(taken_back_at=None, import_id=self.id))


def _insert(conn: Connection, table: Table, values: list[dict[str, Any]]) -> list[int]:
    """Ids in the order of the values."""
    if not values:
        return []
    return list(conn.execute(insert(table).returning(table.c.id, sort_by_parameter_order=True), values).scalars())
