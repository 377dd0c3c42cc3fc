"""Maps columns of a file to meanings: by common column names, or by the user's --map."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.errors import DataError

#: meaning -> usual column names, the most specific first. The column names of our own export are the meanings themselves.
MEANINGS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", "query", "context", "post"),
    "input": ("input",),  # context of an instruction, appended to it after an empty line
    "chosen": ("chosen", "preferred", "response_chosen", "better"),
    "rejected": ("rejected", "dispreferred", "response_rejected", "worse"),
    "first": ("first", "response_a", "answer_a", "completion_a", "response1", "response_1", "answer1", "output_1",
              "text_a", "left_text", "response_j", "result_x"),
    "second": ("second", "response_b", "answer_b", "completion_b", "response2", "response_2", "answer2", "output_2",
               "text_b", "right_text", "response_k", "result_y"),
    "choice": ("choice", "winner", "preference", "label", "vote", "verdict"),
    "annotators": (),  # one column per annotator: annotator1, annotator2 …
    "annotator": ("annotator", "worker", "rater", "labeler", "labeller", "judge", "user", "annotator_id", "worker_id"),
    "score_chosen": ("score_chosen", "chosen_score", "chosen_rating"),
    "score_rejected": ("score_rejected", "rejected_score", "rejected_rating"),
    "score_first": ("score_first", "score_a", "score1", "score_1", "rating_a", "score_x"),
    "score_second": ("score_second", "score_b", "score2", "score_2", "rating_b", "score_y"),
    "tie": ("tie", "is_tie"),
    "both_bad": ("both_bad",),
    "source": ("source",),
    "strength": ("strength",),
    "note": ("note",),
    "repeat": ("repeat",),
    "via": ("via",),
    "first_on_left": ("first_on_left",),
    "response_ms": ("response_ms",),
    "created_at": ("created_at", "timestamp", "tstamp"),
    "uuid": ("uuid",),
    "pair": ("pair_id", "pair", "comparison_id"),
    "reason": ("reason",),
    "split": ("split",),
    "model_hash": ("model_hash",),
    "checkpoint_chosen": ("checkpoint_chosen",),
    "checkpoint_rejected": ("checkpoint_rejected",),
    "seed_chosen": ("seed_chosen",),
    "seed_rejected": ("seed_rejected",),
    "chosen_ids": ("chosen_ids",),
    "rejected_ids": ("rejected_ids",),
}  # fmt: skip
#: Meanings that are mapped in our own exports only: elsewhere a column "source" or "reason" can mean anything.
OWN_EXPORT_MEANINGS = (
    "source",
    "reason",
    "note",
    "strength",
    "repeat",
    "via",
    "first_on_left",
    "response_ms",
    "uuid",
    "model_hash",
)
#: Further names of a column with the prompt, if no other text column is left. Beside "instruction", "input" is its context.
FURTHER_PROMPT_NAMES = ("input", "problem", "history")
#: Names of a column with the messages of a conversation, which is the prompt if no column is called so.
CONVERSATION_NAMES = ("messages", "conversations")
#: Meanings that decide what a row says. Two columns with names of one of them are asked about.
DECIDING_MEANINGS = (
    "prompt", "chosen", "rejected", "first", "second", "choice", "score_chosen", "score_rejected", "score_first", "score_second",
    "tie", "both_bad",
)  # fmt: skip
#: Row formats: how a row states the preference.
CHOSEN_REJECTED = "chosen and rejected"
TWO_TEXTS_AND_VOTE = "two texts and a vote"
TWO_TEXTS_AND_SCORES = "two texts and their scores"


class ColumnMappingError(DataError):
    """Only a person knows what the columns (or the vote words) mean.

    Args:
        message: what is unknown.
        remedy: the command line option that resolves it; the page asks with a form instead.
        columns: those of the file.
    """

    def __init__(self, message: str, remedy: str, columns: Iterable[str]) -> None:
        super().__init__(f"{message} {remedy}")
        self.message, self.columns = message, tuple(columns)


@dataclass(frozen=True)
class ColumnMapping:
    """by_meaning: meaning -> column; annotator_columns: one column of votes per annotator."""

    by_meaning: dict[str, str]
    annotator_columns: tuple[str, ...]
    row_format: str

    def value(self, row: Mapping[str, Any], meaning: str) -> Any:
        """The cell of a meaning; None if no column has it."""
        column = self.by_meaning.get(meaning)
        return None if column is None else row.get(column)

    @property
    def vote_columns(self) -> tuple[str, ...]:
        """The columns whose cells are votes."""
        return self.annotator_columns or ((self.by_meaning["choice"],) if "choice" in self.by_meaning else ())

    @property
    def used_columns(self) -> set[str]:
        return {*self.by_meaning.values(), *self.annotator_columns}

    @property
    def is_pandalm(self) -> bool:
        """Whether the columns are those of PandaLM's test set, where 0, 1 and 2 are a tie, the first and the second text."""
        columns = {"instruction": "prompt", "response1": "first", "response2": "second"}
        return "annotator1" in self.annotator_columns and all(
            self.by_meaning.get(meaning) == column for column, meaning in columns.items()
        )

    @property
    def display_mapping(self) -> dict[str, str]:
        """Every meaning with its column, for display."""
        return self.by_meaning | ({"annotators": ", ".join(self.annotator_columns)} if self.annotator_columns else {})


def parse_map(items: Iterable[str]) -> dict[str, str]:
    """["prompt=question", …] as a dict. Raises DataError for an unknown meaning."""
    mapping = {}
    for item in items:
        meaning, separator, column = item.partition("=")
        if not separator or meaning.strip() not in MEANINGS:
            raise DataError(
                f"--map {item} is not understood. Write MEANING=COLUMN, for example chosen=good_answer; "
                f"the meanings are {', '.join(MEANINGS)}."
            )
        mapping[meaning.strip()] = column.strip()
    return mapping


def map_columns(column_names: Iterable[str], overrides: Mapping[str, str] | None = None) -> ColumnMapping:
    """The mapping of a file with these columns. An override wins over a guess; "" as override means no column.

    Raises ColumnMappingError with the available columns and what is missing.
    """
    available = list(dict.fromkeys(column_names))
    overrides = dict(overrides or {})
    by_meaning: dict[str, str] = {}
    by_lowercase = {name.lower(): name for name in reversed(available)}
    is_own_export = {"first_on_left", "annotator", "source", "chosen"} <= set(available)
    annotator_columns = _find_annotator_columns(available, overrides.pop("annotators", None))
    for meaning, aliases in MEANINGS.items():
        if meaning in overrides:
            if overrides[meaning]:
                by_meaning[meaning] = _require_column(overrides[meaning], available)
        elif meaning == "input" and by_meaning.get("prompt", "").lower() != "instruction":
            continue
        elif meaning not in OWN_EXPORT_MEANINGS or is_own_export:
            match = next((by_lowercase[name] for name in aliases if name in by_lowercase), None)
            if match is not None and match not in overrides.values():
                by_meaning[meaning] = match
    row_format = _detect_row_format(by_meaning, annotator_columns, overrides, available)
    if row_format == CHOSEN_REJECTED:
        annotator_columns = ()
    unread = _unread_meanings(row_format, annotator_columns, by_meaning)
    by_meaning = {meaning: column for meaning, column in by_meaning.items() if meaning not in unread}
    return ColumnMapping(by_meaning, annotator_columns, row_format)


def reject_rival_columns(mapping: ColumnMapping, overrides: Mapping[str, str], filled_columns: Iterable[str]) -> None:
    """Raise ColumnMappingError if several columns have names of one meaning that decides what a row says.

    filled_columns: the columns that hold something.
    """
    unused = [column for column in filled_columns if column not in mapping.used_columns]
    for meaning in DECIDING_MEANINGS:
        column = mapping.by_meaning.get(meaning)
        if column is None or meaning in overrides:
            continue
        names = MEANINGS[meaning] + (FURTHER_PROMPT_NAMES if meaning == "prompt" else ())
        rivals = [column, *(name for name in unused if name.lower() in names)]
        if len(rivals) > 1:
            both = f", or --map prompt={rivals[0]} --map input={rivals[1]} for both" if meaning == "prompt" else ""
            raise ColumnMappingError(
                f'Several columns can mean "{meaning}": {_join_names(rivals)}.',
                f"Say which: {' or '.join(f'--map {meaning}={name}' for name in rivals[:6])}{both}.",
                (*mapping.used_columns, *unused),
            )


def _unread_meanings(row_format: str, annotator_columns: tuple[str, ...], columns: Mapping[str, str]) -> set[str]:
    """Meanings that rows of this format are not asked for; their columns are listed as not used."""
    sides = ("first", "second") if row_format == CHOSEN_REJECTED else ("chosen", "rejected")
    unread = {meaning for meaning in MEANINGS if any(side in meaning.split("_") for side in sides)} - {"first_on_left"}
    if annotator_columns:
        unread |= {"choice", "tie", "both_bad", "annotator", "score_first", "score_second"}
    for pair in (("score_chosen", "score_rejected"), ("score_first", "score_second")):
        if not set(pair) <= set(columns):
            unread |= set(pair)
    return unread


def _require_column(column: str, available: list[str]) -> str:
    if column not in available:
        raise ColumnMappingError(
            f'There is no column "{column}" in row 1. The columns are {_join_names(available)}.',
            "Choose one of them with --map.",
            available,
        )
    return column


def _find_annotator_columns(available: list[str], override: str | None) -> tuple[str, ...]:
    """Columns with the votes of one annotator each: the override ("A+B"), or annotator1, annotator2 …"""
    if override is not None:
        return tuple(_require_column(name.strip(), available) for name in override.split("+") if name.strip())
    matches = tuple(name for name in available if re.fullmatch(r"(annotator|rater|worker)_*[0-9]+", name.lower()))
    return matches if len(matches) > 1 else ()


def _detect_row_format(
    columns: Mapping[str, str], annotator_columns: tuple[str, ...], overrides: Mapping[str, str], available: list[str]
) -> str:
    pairs = [pair for pair in (("chosen", "rejected"), ("first", "second")) if set(pair) <= set(columns)]
    if len(pairs) > 1:
        pairs = [pair for pair in pairs if set(pair) <= set(overrides)]
        if len(pairs) != 1:
            names = [columns[meaning] for meaning in ("chosen", "rejected", "first", "second")]
            raise ColumnMappingError(
                f"There are two pairs of texts: {names[0]} and {names[1]}, {names[2]} and {names[3]}.",
                f"Say which to take: --map chosen={names[0]} --map rejected={names[1]}, or --map first={names[2]} --map "
                f"second={names[3]}.",
                available,
            )
    if ("chosen", "rejected") in pairs:
        return CHOSEN_REJECTED
    if pairs:
        if "choice" in columns or annotator_columns:
            return TWO_TEXTS_AND_VOTE
        if "score_first" in columns and "score_second" in columns:
            return TWO_TEXTS_AND_SCORES
        raise ColumnMappingError(
            f"Row 1 has two texts, but nothing says which is better. The columns are {_join_names(available)}.",
            "Say which column is the choice, or which are the scores: --map choice=COLUMN, or --map score_first=COLUMN --map "
            "score_second=COLUMN.",
            available,
        )
    if {"completion", "label"} <= set(available):
        raise DataError(
            "Row 1 has one completion and a label (unpaired preferences). The lab compares two texts: give pairs, as "
            "chosen and rejected."
        )
    raise ColumnMappingError(
        f"Row 1 has no pair of texts that the lab knows by name. The columns are {_join_names(available)}.",
        "Say which they are: --map chosen=COLUMN --map rejected=COLUMN, or --map first=COLUMN --map second=COLUMN --map "
        "choice=COLUMN.",
        available,
    )


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:12]) + (" …" if len(names) > 12 else "") if names else "none"
