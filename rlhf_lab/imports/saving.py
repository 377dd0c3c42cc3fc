"""Judgements into a project's tables, all in one transaction or none."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table, insert, select, update

from rlhf_lab.assets import split
from rlhf_lab.errors import DataError
from rlhf_lab.imports.found import Found, Judgement, Side
from rlhf_lab.imports.place import Content, Place, Places, Voter, content_of, flipped
from rlhf_lab.imports.understand import summary_of
from rlhf_lab.kinds import Source
from rlhf_lab.records import Project
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database, in_chunks
from rlhf_lab.store.projects import FIRST, SECOND, get_project

IMPORTED = "imported"
SIDED, UNSIDED = "import", "import unsided"  # votes.via: does anybody know where the two texts stood?


@dataclass(frozen=True)
class Into:
    """Where judgements go, and what to do with what the file does not say.

    source, annotator: of rows that name none. use_prompts: prompts the project does not have yet become its own, for
    sampling and PPO too; without it they only carry their labels. skip_broken: leave out rows with a problem.
    """

    project_id: int
    source: Source = Source.HUMAN
    annotator: str = IMPORTED
    drop_duplicates: bool = False
    use_prompts: bool = False
    skip_broken: bool = False


@dataclass(frozen=True)
class Saved:
    """What was written. duplicates: the same person on the same two texts again, `dropped` of them left out."""

    votes: int = 0
    pairs: int = 0
    prompts: int = 0
    duplicates: int = 0
    dropped: int = 0
    broken: int = 0
    same_texts: int = 0
    annotators: list[str] = field(default_factory=list)


def save(db: Database, found: Found, into: Into) -> Saved:
    """Write what was found. DataError names the rows with problems; then, and after any other error, nothing is written."""
    if found.problems and not into.skip_broken:
        raise DataError(
            f"{_rows(len(found.problems))} of {found.name} cannot be used; nothing was imported. Mend the file, or have "
            f"such rows left out (on the command line: --skip-broken).\n{summary_of(found.problems)}"
        )
    if not found.judgements:
        raise DataError(f"{found.name} holds no row that can be used.\n{summary_of(found.problems)}")
    project = get_project(db, into.project_id)
    with db.write() as conn:
        writing = _Writing(conn, project, found, into)
        return writing.run()


def duplicates_of(db: Database, found: Found, into: Into) -> int:
    """How many judgements are of a person who said something of the same two texts before, in the project or in the file."""
    project = get_project(db, into.project_id)
    with db.read() as conn:
        return _Writing(conn, project, found, into).duplicates()


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def _via(item: Judgement) -> str:
    """The door an imported vote came through; the one that its export names, if it does."""
    return item.via[:20] or (UNSIDED if item.first_on_left is None else SIDED)


class _Writing:
    """One import inside its transaction."""

    def __init__(self, conn: Connection, project: Project, found: Found, into: Into) -> None:
        self.conn, self.project, self.found, self.into = conn, project, found, into

    def run(self) -> Saved:
        judgements = self.found.judgements
        prompts, new_prompts = self._prompts(judgements)
        places, chosen = self._placed(prompts)
        dropped = len(judgements) - len(chosen)
        pairs = self._pairs(list(places.new()))
        self._votes(chosen)
        return Saved(
            votes=len(chosen), pairs=pairs, prompts=new_prompts, duplicates=places.duplicates, dropped=dropped,
            broken=len(self.found.problems), same_texts=sum(item.first.text == item.second.text for item in judgements),
            annotators=sorted({annotator for _, _, annotator in chosen}),
        )  # fmt: skip

    def duplicates(self) -> int:
        """The duplicates that run() would meet; nothing is written, and prompts that are new have a number below 0."""
        known = self._known_prompts()
        texts = dict.fromkeys(item.prompt for item in self.found.judgements)
        places, _ = self._placed({text: known.get(text, -1 - i) for i, text in enumerate(texts)})
        return places.duplicates

    def _placed(self, prompts: Mapping[str, int]) -> tuple[Places, list[tuple[Judgement, Place, str]]]:
        """Every judgement that is to be kept, its pair, and who said it."""
        places = Places(self._known(prompts))
        chosen: list[tuple[Judgement, Place, str]] = []
        for item in self.found.judgements:
            content = content_of(prompts[item.prompt], item)
            annotator = item.annotator or self.into.annotator
            place = places.find(content, item, (annotator, item.repeat), drop=self.into.drop_duplicates)
            if place is not None:
                chosen.append((item, place, annotator))
        return places, chosen

    def _known_prompts(self) -> dict[str, int]:
        p = t.prompts.c
        rows = self.conn.execute(select(p.text, p.id).where(p.project_id == self.project.id))
        return {row.text: row.id for row in rows}

    def _prompts(self, judgements: Sequence[Judgement]) -> tuple[dict[str, int], int]:
        """text -> id, those new to the project made; and how many those are."""
        p = t.prompts.c
        known = self._known_prompts()
        wanted = {item.prompt: item.split for item in judgements if item.prompt not in known}
        parts = dict(split(list(wanted))) if wanted and self.into.use_prompts else {}
        values = [
            {"project_id": self.project.id, "text": text, "labels_only": not self.into.use_prompts,
             "split": said if said in ("train", "eval") else parts.get(text, "train")}
            for text, said in wanted.items()
        ]  # fmt: skip
        if self.into.use_prompts:
            mine = sorted({known[item.prompt] for item in judgements if item.prompt in known})
            for some in in_chunks(mine):
                self.conn.execute(update(t.prompts).where(p.id.in_(some)).values(labels_only=False))
        known |= dict(zip(wanted, self._insert(t.prompts, values), strict=True))
        return known, len(values)

    def _known(self, prompts: Mapping[str, int]) -> Iterator[tuple[Content, Place]]:
        """The pairs there are about these prompts, with who has voted on them."""
        ids = sorted(set(prompts.values()))
        for some in in_chunks(ids):
            c = t.pairs.c
            query = (
                select(c.id, FIRST.c.prompt_id, FIRST.c.text.label("first"), SECOND.c.text.label("second"))
                .join(FIRST, FIRST.c.id == c.first_id)
                .join(SECOND, SECOND.c.id == c.second_id)
                .where(c.project_id == self.project.id, FIRST.c.prompt_id.in_(some))
                .order_by(c.id)
            )
            rows = self.conn.execute(query).all()
            voters: dict[int, set[Voter]] = {}
            for few in in_chunks([row.id for row in rows]):
                v = t.votes.c
                said = self.conn.execute(
                    select(v.pair_id, v.annotator, v.repeat).where(v.pair_id.in_(few), v.undone_at.is_(None))
                )
                for vote in said:
                    voters.setdefault(vote.pair_id, set()).add((vote.annotator, vote.repeat))
            for row in rows:
                place = Place(
                    row.prompt_id, row.first, row.second, pair_id=row.id, annotators=voters.get(row.id, set())
                )
                yield Content.of(row.prompt_id, row.first, row.second), place

    def _pairs(self, places: Sequence[Place]) -> int:
        """Completions and pairs of the places that are new."""
        sides = [self._completion(place, side) for place in places for side in place.sides()]
        ids = self._insert(t.completions, sides)
        values = [
            {"project_id": self.project.id, "first_id": ids[2 * i], "second_id": ids[2 * i + 1],
             "reason": place.reason or f"import of {self.found.name[:80]}", "created_at": place.created_at}
            for i, place in enumerate(places)
        ]  # fmt: skip
        for place, pair_id in zip(places, self._insert(t.pairs, values), strict=True):
            place.pair_id = pair_id
        return len(values)

    def _completion(self, place: Place, side: Side) -> dict[str, Any]:
        """Token ids count only where the same weights wrote them; another lab's runs are not this one's."""
        ours = bool(place.model_hash) and place.model_hash == self.project.model_hash
        checkpoint = side.checkpoint or IMPORTED
        if not checkpoint.startswith(IMPORTED):
            checkpoint = f"{IMPORTED}/{checkpoint}"
        return {
            "prompt_id": place.prompt_id, "text": side.text, "token_ids": list(side.ids) if ours else [],
            "checkpoint": checkpoint, "seed": side.seed, "created_at": place.created_at,
        }  # fmt: skip

    def _votes(self, chosen: Sequence[tuple[Judgement, Place, str]]) -> None:
        v = t.votes.c
        wanted = [item.uuid for item, _, _ in chosen if item.uuid]
        taken: set[str] = set()
        for start in range(0, len(wanted), 5_000):
            taken |= set(self.conn.execute(select(v.uuid).where(v.uuid.in_(wanted[start : start + 5_000]))).scalars())
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
            })  # fmt: skip
        self._insert(t.votes, values)

    def _insert(self, table: Table, values: list[dict[str, Any]]) -> list[int]:
        """Ids in the order of the values."""
        ids: list[int] = []
        for start in range(0, len(values), 5_000):
            query = insert(table).returning(table.c.id, sort_by_parameter_order=True)
            ids += self.conn.execute(query, values[start : start + 5_000]).scalars()
        return ids
