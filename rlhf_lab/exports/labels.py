"""Labels as preference data: TRL's {"prompt", "chosen", "rejected"}, and everything else that is known of a vote."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from rlhf_lab.chats import chat
from rlhf_lab.errors import LabelError
from rlhf_lab.exports.staging import staging
from rlhf_lab.exports.table_files import write_rows
from rlhf_lab.exports.wanted import LabelExport
from rlhf_lab.kinds import Choice, Source
from rlhf_lab.records import Project
from rlhf_lab.store import tables as t
from rlhf_lab.store.comparisons import vote_counts
from rlhf_lab.store.database import Database
from rlhf_lab.store.people import NEWCOMER
from rlhf_lab.store.projects import FIRST, SECOND, get_project

USUAL = LabelExport()
SIDES_UNKNOWN = "import unsided"  # votes.via of an imported vote of which nobody knows where the texts stood
_OF_A_SIDE = ("text", "token_ids", "checkpoint", "seed")


def export_labels(
    db: Database, project_id: int, out: Path, wanted: LabelExport = USUAL, *, force: bool = False
) -> Path:
    """The live votes of a project as labels-project-ID.jsonl (or .csv …), in the order they were cast; skips say nothing and
    are left out.

    Ties and "both are bad" have tie = true and the first completion as chosen. created_at: seconds since 1970.
    Raises LabelError when there is nothing to write, StoreError for an unknown project or a failed write.
    """
    project = get_project(db, project_id)
    with staging(out, force=force) as stage:
        path = stage.add(f"labels-project-{project_id}.{wanted.format}")
        if write_rows(path, label_rows(db, project, wanted), wanted.format) == 0:
            raise LabelError(_nothing(db, project_id, wanted))
    return stage.paths[0]


def label_rows(db: Database, project: Project, wanted: LabelExport) -> Iterator[dict[str, Any]]:
    """The rows of an export, as they are written."""
    query = _query(project.id, wanted)
    with db.read() as conn:
        agreed = _agreed(conn.execute(query.with_only_columns(t.votes.c.pair_id, t.votes.c.choice)), wanted)
        nameless = {} if wanted.names else _nameless(conn)
        for row in conn.execute(query):
            if wanted.drops_ties and row.choice in (Choice.TIE, Choice.BOTH_BAD):
                continue
            if agreed is None or (row.pair_id, row.choice) in agreed:
                yield _label(row, project, wanted, nameless.get(row.annotator, row.annotator))


def _query(project_id: int, wanted: LabelExport) -> Select[*tuple[Any, ...]]:
    v, p = t.votes.c, t.pairs.c
    query = (
        select(
            v.uuid, v.pair_id, v.annotator, v.source, v.choice, v.first_on_left, v.response_ms, v.created_at, v.strength,
            v.note, v.repeat, v.via, p.reason, t.prompts.c.text.label("prompt"), t.prompts.c.split,
            *(getattr(side.c, name).label(f"{side.name}_{name}") for side in (FIRST, SECOND) for name in _OF_A_SIDE),
        )
        .select_from(t.votes)
        .join(t.pairs, p.id == v.pair_id)
        .join(FIRST, FIRST.c.id == p.first_id)
        .join(SECOND, SECOND.c.id == p.second_id)
        .join(t.prompts, t.prompts.c.id == FIRST.c.prompt_id)
        .where(p.project_id == project_id, v.undone_at.is_(None), v.choice != Choice.SKIP)
        .order_by(v.id)
    )  # fmt: skip
    if wanted.layout != "votes":
        query = query.where(v.repeat.is_(False))  # a hidden repeat measures its annotator; it is no further label
    if wanted.source is not None:
        query = query.where(v.source == wanted.source)
    if wanted.annotators:
        query = query.where(v.annotator.in_(wanted.annotators))
    return query


def _nameless(conn: Connection) -> dict[str, str]:
    """What people are called where none is named: by their first vote, so that it is the same next time and tells nothing."""
    v = t.votes.c
    first = select(func.min(v.id)).where(v.source == Source.HUMAN).group_by(v.annotator)
    found = conn.execute(select(v.annotator, v.uuid).where(v.id.in_(first)))
    return {who: f"{NEWCOMER}{hashlib.sha256(uuid.encode()).hexdigest()[:12]}" for who, uuid in found}


def _agreed(votes: Any, wanted: LabelExport) -> set[tuple[int, Choice]] | None:
    """(pair, choice) that enough of the pair's votes say; None where that is not asked for."""
    if wanted.agreement <= 0:
        return None
    said = Counter((pair_id, choice) for pair_id, choice in votes)
    of_pair: Counter[int] = Counter()
    for (pair_id, _), count in said.items():
        of_pair[pair_id] += count
    return {(pair_id, choice) for (pair_id, choice), n in said.items() if n >= wanted.agreement * of_pair[pair_id]}


def _label(row: Row[*tuple[Any, ...]], project: Project, wanted: LabelExport, annotator: str) -> dict[str, Any]:
    found = row._mapping
    sides = ("second", "first") if row.choice is Choice.SECOND else ("first", "second")
    chosen, rejected = ({name: found[f"{side}_{name}"] for name in _OF_A_SIDE} for side in sides)
    label = _texts(row.prompt, chosen["text"], rejected["text"], wanted)
    if wanted.layout != "votes":
        return label
    label |= {
        "tie": row.choice in (Choice.TIE, Choice.BOTH_BAD), "both_bad": row.choice is Choice.BOTH_BAD,
        "choice": row.choice.value, "source": row.source.value, "annotator": annotator,
        "first_on_left": None if row.via == SIDES_UNKNOWN else row.first_on_left, "response_ms": row.response_ms,
        "created_at": row.created_at, "strength": row.strength.value if row.strength else None, "note": row.note,
        "repeat": row.repeat, "via": row.via, "uuid": row.uuid, "pair_id": row.pair_id, "reason": row.reason,
        "split": row.split, "checkpoint_chosen": chosen["checkpoint"], "checkpoint_rejected": rejected["checkpoint"],
        "seed_chosen": chosen["seed"], "seed_rejected": rejected["seed"],
    }  # fmt: skip
    if wanted.token_ids:
        ids = {"chosen_ids": list(chosen["token_ids"]), "rejected_ids": list(rejected["token_ids"])}
        label |= ids | {"model_hash": project.model_hash}
    return label


def _texts(prompt: str, chosen: str, rejected: str, wanted: LabelExport) -> dict[str, Any]:
    if not wanted.messages:
        if wanted.layout == "implicit":
            return {"chosen": prompt + chosen, "rejected": prompt + rejected}
        return {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    asked = chat(prompt)
    better, worse = ([{"role": "assistant", "content": text}] for text in (chosen, rejected))
    if wanted.layout == "implicit":
        return {"chosen": asked + better, "rejected": asked + worse}
    return {"prompt": asked, "chosen": better, "rejected": worse}


def _nothing(db: Database, project_id: int, wanted: LabelExport) -> str:
    """Why there is nothing to write, and where there is something."""
    said = {kind: sum(n for choice, n in counts.items() if choice is not Choice.SKIP)
            for kind, counts in vote_counts(db, project_id).items()}  # fmt: skip
    who = f" by {', '.join(wanted.annotators)}" if wanted.annotators else ""
    whose = f"{wanted.source.value} " if wanted.source else ""
    agreed = f" that {wanted.agreement:.0%} agree on" if wanted.agreement else ""
    return (
        f"Project {project_id} has no {whose}labels{who}{agreed} to export; in all it has {said[Source.HUMAN]} of people and "
        f"{said[Source.SIMULATED]} simulated ones, ties included. Label some, or ask for others (--source, --annotator, --ties)."
    )
