"""Export of labels: which votes and in which form (LabelExportOptions), and the rows of the file.

The ids of the votes are read first, then the rows in batches. One query for all rows would sort them, texts included, before it
returned the first one: half of the time of an export.
"""

import hashlib
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Select, func, select

from rlhf_lab.common.chat_format import chat_of_prompt, plain_prompt, turns_of_prompt, without_system_role
from rlhf_lab.common.enums import VIA_SIDES_UNKNOWN, Choice, Source
from rlhf_lab.common.progress import FractionCallback, ignore_fraction
from rlhf_lab.common.records import Project
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import ConfigError, LabelError
from rlhf_lab.exporters.output_folder import atomic_output
from rlhf_lab.exporters.tabular import write_rows
from rlhf_lab.store import tables as t
from rlhf_lab.store.annotators import VISITOR_PREFIX
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import FIRST_COMPLETION, SECOND_COMPLETION, get_labelling_config, get_project
from rlhf_lab.store.votes import is_final_label, vote_counts

TIES = ("keep", "drop")
#: training: the labels that a training uses, with all columns; votes: every vote with all columns, for archives; explicit,
#: implicit: exactly TRL's documented columns, of the same labels as training.
LAYOUTS = ("training", "votes", "explicit", "implicit")
FULL_LAYOUTS = ("training", "votes")
FORMATS = ("jsonl", "jsonl.gz", "json", "csv", "parquet")
BATCH_ROWS = 1000  # rows that are in memory at a time


@dataclass(frozen=True)
class LabelExportOptions:
    """Which votes are exported, and how.

    Attributes:
        source: None: both; each row names its source.
        annotators: only these; empty: all.
        agreement: keep a vote only if at least this share of the pair's selected votes have the same choice.
        messages: texts as chat messages, TRL's conversational format. Prompts begin with the project's system prompt, as the
            model read them; without messages the layouts training and votes have it in a column, and the others cannot hold it.
        system_role: False: messages of the system are at the beginning of the first user message, as for a model whose chat
            template has no place for them.
        token_ids: also the sampled token ids, and the hash of the weights that they belong to.
        names: False replaces people's names by pseudonyms, the same in every export of a lab; judges and notes stay.
        gold: also the votes on gold pairs. The layout votes always has them; the others have them also if the project's trainings
            learn from them.
    """

    source: Source | None = Source.HUMAN
    annotators: tuple[str, ...] = ()
    ties: str = "keep"
    agreement: float = 0.0
    layout: str = "votes"
    messages: bool = False
    system_role: bool = True
    token_ids: bool = False
    format: str = "jsonl"
    names: bool = True
    gold: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for an unknown ties, layout or format, or an agreement outside 0 … 1."""
        for name, value, allowed in (
            ("ties", self.ties, TIES), ("layout", self.layout, LAYOUTS), ("format", self.format, FORMATS),
        ):  # fmt: skip
            if value not in allowed:
                raise ConfigError(f'{name} = "{value}" is unknown; choose one of {", ".join(allowed)}.')
        if not 0.0 <= self.agreement <= 1.0:
            raise ConfigError(f"agreement = {self.agreement} is not a share; give a number from 0 to 1.")
        if self.token_ids and self.layout not in FULL_LAYOUTS:
            raise ConfigError(f"Token ids go with the layouts {' and '.join(FULL_LAYOUTS)} only; TRL makes its own.")

    @property
    def drops_ties(self) -> bool:
        """A training would take the chosen text of a tie for the better one."""
        return self.ties == "drop" or self.layout != "votes"

    @property
    def contains_system_prompt(self) -> bool:
        """TRL's columns hold one as a message only."""
        return self.messages or self.layout in FULL_LAYOUTS

    def to_dict(self) -> dict[str, object]:
        """For the provenance file. annotators: only their number if names are left out."""
        return {
            "source": self.source.value if self.source else "all", "names": self.names,
            "annotators": list(self.annotators) if self.names else len(self.annotators),
            "ties": "drop" if self.drops_ties else "keep", "agreement": self.agreement, "layout": self.layout,
            "messages": self.messages, "system_role": self.system_role, "token_ids": self.token_ids, "format": self.format,
            "gold": self.gold,
        }  # fmt: skip


class LeftOut(NamedTuple):
    """How many votes an export leaves out because they choose neither text, and because their pair has a known answer: they test
    a person and are no opinion about the texts."""

    ties: int
    gold: int

    def note(self) -> str:
        """What to say of them, or ""."""
        notes = []
        if self.ties:
            votes = pluralize(self.ties, "vote")
            notes.append(f"{votes} left out, because a tie has no better text and a training would learn from one.")
        if self.gold:
            notes.append(
                f"{pluralize(self.gold, 'vote')} on gold pairs left out, because no training learns from them."
            )
        return " ".join(notes)


DEFAULT_OPTIONS = LabelExportOptions()


def export_labels(
    db: Database, project_id: int, out_dir: Path, options: LabelExportOptions = DEFAULT_OPTIONS, *, force: bool = False,
    on_progress: FractionCallback = ignore_fraction,
) -> Path:  # fmt: skip
    """The votes of a project as labels-project-ID.jsonl (or .csv …), in the order they were cast, without undone votes and skips.
    In long JSON Lines, rows with the first value of a column come first (`write_json_lines`).

    Ties and "both are bad" have tie = true and the first completion as chosen. created_at: seconds since 1970. on_progress gets
    the fraction of the rows that are written, after every BATCH_ROWS.
    Raises LabelError if there is nothing to write, StoreError for an unknown project or a failed write.
    """
    project = get_project(db, project_id)
    with atomic_output(out_dir, force=force) as output:
        path = output.add(f"labels-project-{project_id}.{options.format}")
        if write_rows(path, label_batches(db, project, options, on_progress), options.format) == 0:
            raise LabelError(nothing_to_export_message(db, project_id, options))
    return output.paths[0]


def label_batches(
    db: Database, project: Project, options: LabelExportOptions, on_progress: FractionCallback = ignore_fraction,
    only: Container[int] | None = None,
) -> Iterator[list[dict[str, Any]]]:  # fmt: skip
    """The rows of an export, at most BATCH_ROWS at a time; after each batch on_progress gets the fraction read so far.

    only: ids of votes; all others are left out.
    """
    drops_gold = leaves_out_gold(db, project.id, options)
    with db.read() as conn:
        vote_ids = _vote_ids(conn, project.id, options, drops_ties=options.drops_ties, drops_gold=drops_gold)
        vote_ids = [vote_id for vote_id in vote_ids if only is None or vote_id in only]
        pseudonyms = {} if options.names else _pseudonyms(conn)
        for start in range(0, len(vote_ids), BATCH_ROWS):
            batch_ids = vote_ids[start : start + BATCH_ROWS]
            yield [
                _label_row(row, project, options, pseudonyms.get(row.annotator, row.annotator))
                for row in conn.execute(_rows_query(batch_ids, options))
            ]
            on_progress((start + len(batch_ids)) / len(vote_ids))


def leaves_out_gold(db: Database, project_id: int, options: LabelExportOptions) -> bool:
    """Whether an export has no votes on gold pairs; see `LabelExportOptions.gold`."""
    return options.layout != "votes" and not (options.gold or get_labelling_config(db, project_id).gold_training)


def count_left_out(db: Database, project_id: int, options: LabelExportOptions) -> LeftOut:
    drops_ties, drops_gold = options.drops_ties, leaves_out_gold(db, project_id, options)
    with db.read() as conn:
        exported, with_ties, with_both = (
            len(_vote_ids(conn, project_id, options, drops_ties=ties, drops_gold=gold))
            for ties, gold in ((drops_ties, drops_gold), (False, drops_gold), (False, False))
        )
    return LeftOut(ties=with_ties - exported, gold=with_both - with_ties)


def _vote_ids(
    conn: Connection, project_id: int, options: LabelExportOptions, *, drops_ties: bool, drops_gold: bool
) -> list[int]:
    """The votes that are exported, oldest first."""
    v, p = t.votes.c, t.pairs.c
    is_selected: list[ColumnElement[bool]] = [
        p.project_id == project_id,
        v.undone_at.is_(None),
        v.choice != Choice.SKIP,
    ]
    if options.layout != "votes":
        is_selected.append(is_final_label())  # no hidden repeats, and an expert's decision in place of the votes
    if drops_gold:
        is_selected.append(p.gold.is_(None))
    if options.source is not None:
        is_selected.append(v.source == options.source)
    if options.annotators:
        is_selected.append(v.annotator.in_(options.annotators))
    votes = select(v.id).join(t.pairs, p.id == v.pair_id).where(*is_selected)
    exported = votes.where(v.choice.not_in([Choice.TIE, Choice.BOTH_BAD])) if drops_ties else votes
    if options.agreement <= 0:
        return list(conn.execute(exported.order_by(v.id)).scalars())
    agreed_choices = _agreed_choices(conn, votes, options.agreement)
    rows = conn.execute(exported.with_only_columns(v.id, v.pair_id, v.choice).order_by(v.id))
    return [row.id for row in rows if (row.pair_id, row.choice) in agreed_choices]


def _agreed_choices(conn: Connection, votes: Select[Any], agreement: float) -> set[tuple[int, Choice]]:
    """(pair id, choice) that at least this share of the pair's votes have."""
    v = t.votes.c
    counted = votes.with_only_columns(v.pair_id, v.choice, func.count()).group_by(v.pair_id, v.choice)
    choice_counts = {(pair_id, choice): count for pair_id, choice, count in conn.execute(counted)}
    pair_totals: Counter[int] = Counter()
    for (pair_id, _), count in choice_counts.items():
        pair_totals[pair_id] += count
    return {key for key, count in choice_counts.items() if count / pair_totals[key[0]] >= agreement}


def _rows_query(vote_ids: Sequence[int], options: LabelExportOptions) -> Select[*tuple[Any, ...]]:
    v, p = t.votes.c, t.pairs.c
    return (
        select(
            v.uuid,
            v.pair_id,
            v.annotator,
            v.source,
            v.choice,
            v.first_on_left,
            v.response_ms,
            v.created_at,
            v.strength,
            v.note,
            v.repeat,
            v.via,
            v.adjudication,
            p.gold,
            p.reason,
            t.prompts.c.text.label("prompt"),
            t.prompts.c.split,
            *(
                getattr(side.c, name).label(f"{side.name}_{name}")
                for side in (FIRST_COMPLETION, SECOND_COMPLETION)
                for name in _completion_columns(options)
            ),
        )
        .select_from(t.votes)
        .join(t.pairs, p.id == v.pair_id)
        .join(FIRST_COMPLETION, FIRST_COMPLETION.c.id == p.first_id)
        .join(SECOND_COMPLETION, SECOND_COMPLETION.c.id == p.second_id)
        .join(t.prompts, t.prompts.c.id == FIRST_COMPLETION.c.prompt_id)
        .where(v.id.in_(vote_ids))
        .order_by(v.id)
    )


def _completion_columns(options: LabelExportOptions) -> tuple[str, ...]:
    return ("text", "checkpoint", "seed", *(("token_ids",) if options.token_ids else ()))


def _pseudonyms(conn: Connection) -> dict[str, str]:
    """Annotator -> pseudonym: a hash of the uuid of the first vote, so it is stable and reveals nothing."""
    v = t.votes.c
    first_vote_ids = select(func.min(v.id)).where(v.source == Source.HUMAN).group_by(v.annotator)
    rows = conn.execute(select(v.annotator, v.uuid).where(v.id.in_(first_vote_ids)))
    return {annotator: f"{VISITOR_PREFIX}{hashlib.sha256(uuid.encode()).hexdigest()[:12]}" for annotator, uuid in rows}


def _label_row(
    row: Row[*tuple[Any, ...]], project: Project, options: LabelExportOptions, annotator: str
) -> dict[str, Any]:
    values = row._mapping
    side_names = ("second", "first") if row.choice is Choice.SECOND else ("first", "second")
    chosen, rejected = (
        {name: values[f"{side}_{name}"] for name in _completion_columns(options)} for side in side_names
    )
    label = _text_columns(row.prompt, chosen["text"], rejected["text"], project.system_prompt, options)
    if options.layout not in FULL_LAYOUTS:
        return label
    label |= {
        "tie": row.choice in (Choice.TIE, Choice.BOTH_BAD), "both_bad": row.choice is Choice.BOTH_BAD,
        "choice": row.choice.value, "source": row.source.value, "annotator": annotator,
        "first_on_left": None if row.via == VIA_SIDES_UNKNOWN else row.first_on_left, "response_ms": row.response_ms,
        "created_at": row.created_at, "strength": row.strength.value if row.strength else None, "note": row.note,
        "repeat": row.repeat, "adjudication": row.adjudication, "gold": row.gold.value if row.gold else None, "via": row.via,
        "uuid": row.uuid, "pair_id": row.pair_id, "reason": row.reason,
        "split": row.split, "checkpoint_chosen": chosen["checkpoint"], "checkpoint_rejected": rejected["checkpoint"],
        "seed_chosen": chosen["seed"], "seed_rejected": rejected["seed"],
    }  # fmt: skip
    if options.token_ids:
        ids = {"chosen_ids": list(chosen["token_ids"]), "rejected_ids": list(rejected["token_ids"])}
        label |= ids | {"model_hash": project.model_hash}
    return label


def _text_columns(
    prompt: str, chosen: str, rejected: str, system_prompt: str, options: LabelExportOptions
) -> dict[str, Any]:
    turns = turns_of_prompt(prompt, system_prompt)
    prompt_messages = turns if options.system_role else without_system_role(turns)
    if not options.messages:
        if options.layout == "implicit":
            text = plain_prompt(prompt)
            return {"chosen": text + chosen, "rejected": text + rejected}
        columns = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        if system_prompt and options.contains_system_prompt:
            has_own = chat_of_prompt(prompt)[0]["role"] == "system"
            columns["system"] = "" if has_own else system_prompt
        return columns
    chosen_messages, rejected_messages = ([{"role": "assistant", "content": text}] for text in (chosen, rejected))
    if options.layout == "implicit":
        return {"chosen": prompt_messages + chosen_messages, "rejected": prompt_messages + rejected_messages}
    return {"prompt": prompt_messages, "chosen": chosen_messages, "rejected": rejected_messages}


def nothing_to_export_message(db: Database, project_id: int, options: LabelExportOptions) -> str:
    """Why there is nothing to write, and what other labels there are."""
    label_counts = {
        source: sum(n for choice, n in counts.items() if choice is not Choice.SKIP)
        for source, counts in vote_counts(db, project_id).items()
    }
    annotator_text = f" by {', '.join(options.annotators)}" if options.annotators else ""
    source_text = f"{options.source.value} " if options.source else ""
    agreement_text = f" that {options.agreement:.0%} agree on" if options.agreement else ""
    return (
        f"Project {project_id} has no {source_text}labels{annotator_text}{agreement_text} to export; in all it has "
        f"{label_counts[Source.HUMAN]} of people and {label_counts[Source.SIMULATED]} simulated ones, ties included. Label "
        "some, or choose those of another source or annotator; ties and votes on gold pairs are in an export of every vote "
        "(layout votes)."
    )
