"""Labels as preference data: TRL's {"prompt", "chosen", "rejected"}, and everything else that is known of a vote."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select

from rlhf_lab.errors import ConfigError, LabelError
from rlhf_lab.exports.staging import staging
from rlhf_lab.exports.words import write_lines
from rlhf_lab.records import Choice, Source
from rlhf_lab.store import tables as t
from rlhf_lab.store.comparisons import vote_counts
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import FIRST, SECOND, get_project

TIES = ("keep", "drop")


def export_labels(
    db: Database, project_id: int, out: Path, *, source: Source | None = Source.HUMAN, annotator: str | None = None,
    ties: str = "keep", token_ids: bool = False, force: bool = False,
) -> Path:  # fmt: skip
    """The live votes of a project as labels-project-ID.jsonl, in the order they were cast; skips say nothing and are left out.

    source: people's, simulated, or (None) both; each row says whose it is. annotator: only this one's. ties: "keep" writes
    ties and "both are bad" with tie = true and the first completion as chosen, "drop" leaves them out. token_ids: also the
    sampled ids as chosen_ids and rejected_ids. created_at: seconds since 1970.
    Raises LabelError when there is nothing to write, StoreError for an unknown project or a failed write.
    """
    if ties not in TIES:
        raise ConfigError(f'ties = "{ties}" is unknown; choose one of {", ".join(TIES)}.')
    get_project(db, project_id)
    with staging(out, force=force) as stage:
        path = stage.add(f"labels-project-{project_id}.jsonl")
        if write_lines(path, _rows(db, project_id, source, annotator, ties == "drop", token_ids)) == 0:
            raise LabelError(_nothing(db, project_id, source, annotator))
    return stage.paths[0]


def _rows(
    db: Database, project_id: int, source: Source | None, annotator: str | None, drop_ties: bool, token_ids: bool
) -> Iterator[dict[str, Any]]:
    v, p = t.votes.c, t.pairs.c
    query = (
        select(
            v.uuid, v.pair_id, v.annotator, v.source, v.choice, v.first_on_left, v.response_ms, v.created_at, p.reason,
            t.prompts.c.text.label("prompt"), t.prompts.c.split,
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
    if source is not None:
        query = query.where(v.source == source)
    if annotator is not None:
        query = query.where(v.annotator == annotator)
    if drop_ties:
        query = query.where(v.choice.not_in([Choice.TIE, Choice.BOTH_BAD]))
    with db.read() as conn:
        for row in conn.execute(query):
            yield _label(row, token_ids)


_OF_A_SIDE = ("text", "token_ids", "checkpoint", "seed")


def _label(row: Row[*tuple[Any, ...]], token_ids: bool) -> dict[str, Any]:
    found = row._mapping
    sides = ("second", "first") if row.choice is Choice.SECOND else ("first", "second")
    chosen, rejected = ({name: found[f"{side}_{name}"] for name in _OF_A_SIDE} for side in sides)
    label = {
        "prompt": row.prompt, "chosen": chosen["text"], "rejected": rejected["text"],
        "tie": row.choice in (Choice.TIE, Choice.BOTH_BAD), "both_bad": row.choice is Choice.BOTH_BAD,
        "choice": row.choice.value, "source": row.source.value, "annotator": row.annotator,
        "first_on_left": row.first_on_left, "response_ms": row.response_ms, "created_at": row.created_at,
        "uuid": row.uuid, "pair_id": row.pair_id, "reason": row.reason, "split": row.split,
        "checkpoint_chosen": chosen["checkpoint"], "checkpoint_rejected": rejected["checkpoint"],
        "seed_chosen": chosen["seed"], "seed_rejected": rejected["seed"],
    }  # fmt: skip
    if token_ids:
        label |= {"chosen_ids": list(chosen["token_ids"]), "rejected_ids": list(rejected["token_ids"])}
    return label


def _nothing(db: Database, project_id: int, source: Source | None, annotator: str | None) -> str:
    """Why there is nothing to write, and where there is something."""
    said = {kind: sum(n for choice, n in counts.items() if choice is not Choice.SKIP)
            for kind, counts in vote_counts(db, project_id).items()}  # fmt: skip
    who = f" by {annotator}" if annotator else ""
    whose = f"{source.value} " if source else ""
    return (
        f"Project {project_id} has no {whose}labels{who} to export; in all it has {said[Source.HUMAN]} of people and "
        f"{said[Source.SIMULATED]} simulated ones, ties included. Label some, or ask for others (--source, --annotator, --ties)."
    )
