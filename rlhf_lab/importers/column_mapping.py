"""Maps columns of a file to meanings: by common column names, or by the user's --map."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import name_key
from rlhf_lab.importers.cells import read_cell
from rlhf_lab.importers.remedies import map_option

#: meaning -> usual column names, the most specific first, compared by `name_key`. The column names of our own export are the
#: meanings themselves.
MEANINGS: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", "query", "context", "post"),
    "input": ("input",),  # context of an instruction, appended to it after an empty line
    "system": ("system", "system_prompt"),  # a message of the system before the prompt
    "history": (),  # earlier turns of the conversation; a column of this name, if its cells hold turns
    "chosen": ("chosen", "preferred", "response_chosen", "chosen_response", "better"),
    "rejected": ("rejected", "dispreferred", "response_rejected", "rejected_response", "worse"),
    "first": ("first", "response_a", "answer_a", "completion_a", "response_1", "answer_1", "output_1", "text_a", "left_text",
              "response_j", "result_x", "conversation_a"),
    "second": ("second", "response_b", "answer_b", "completion_b", "response_2", "answer_2", "output_2", "text_b", "right_text",
               "response_k", "result_y", "conversation_b"),
    "choice": ("choice", "winner", "preference", "label", "vote", "verdict"),
    "annotators": (),  # one column per annotator: annotator1, annotator2 …
    "annotator": ("annotator", "worker", "rater", "labeler", "labeller", "judge", "user", "annotator_id", "worker_id"),
    "score_chosen": ("score_chosen", "chosen_score", "chosen_rating", "rating_chosen", "chosen_avg_rating"),
    "score_rejected": ("score_rejected", "rejected_score", "rejected_rating", "rating_rejected", "rejected_avg_rating"),
    "score_first": ("score_first", "score_a", "score_1", "rating_a", "score_x", "overall_score_a", "fine_grained_score_a"),
    "score_second": ("score_second", "score_b", "score_2", "rating_b", "score_y", "overall_score_b", "fine_grained_score_b"),
    "first_wins": ("winner_model_a", "winner_a"),  # true or false, as tie and both_bad
    "second_wins": ("winner_model_b", "winner_b"),
    "tie": ("tie", "is_tie", "winner_tie"),
    "both_bad": ("both_bad", "winner_both_bad", "winner_tie_bothbad"),
    "source": ("source",),
    "strength": ("strength",),
    "note": ("note",),
    "repeat": ("repeat",),
    "adjudication": ("adjudication",),
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
    "adjudication",
    "via",
    "first_on_left",
    "response_ms",
    "uuid",
    "model_hash",
)
#: Further names of a column with the prompt, if no other text column is left. With "instruction", "input" is its context.
FURTHER_PROMPT_NAMES = ("input", "problem", "history")
#: Names of a column with the messages of a conversation, which is the prompt if no column is called so.
CONVERSATION_NAMES = ("messages", "conversations")
#: Meanings that decide what a row says. If two columns have names of the same one, the user is asked.
DECIDING_MEANINGS = (
    "prompt", "chosen", "rejected", "first", "second", "choice", "score_chosen", "score_rejected", "score_first", "score_second",
    "tie", "both_bad",
)  # fmt: skip
#: Answers to questions that no mapping of columns and words answers, with what they mean.
ANSWERS = {
    "texts=plain": "take the texts as they are",
    "texts=skip": "leave out the rows with such texts",
    "turns=first_is_user": "divide them into turns: the first of the two is the user",
    "turns=second_is_user": "divide them into turns: the second of the two is the user",
    "chats=plain": "take such cells as texts",
    "chats=skip": "leave out the rows with such cells",
    "history=rounds": "each pair is a question and its answer",
    "prompts=cut": "store what follows the prompt",
    "prompts=keep": "take the answers as they are",
    "status=skip": "leave out such rows",
    "status=count": "these rows count too",
    "options=from_zero": "0 is the first text",
    "options=from_one": "1 is the first text",
    "ranking=order": "each list names the texts, the best first",
    "ranking=ranks": "each list holds the ranks of the texts; the lowest number is the best",
    "scores=high": "the higher number is better",
    "scores=low": "the lower number is better, as 1 is the best rank",
    "sides=same": "the columns of a (1, left …) belong to the first text",
    "sides=swapped": "the columns of a (1, left …) belong to the second text",
    "votes=names": "such a vote means the text of that name",
    "votes=words": "such a vote means what the word says",
    "numbers=decimal": "the point comes before decimals",
    "numbers=thousands": "the point groups the digits, and a comma comes before decimals",
    "dates=day_first": "the day comes before the month",
    "dates=month_first": "the month comes before the day",
    "lists=all": "compare each chosen text with each rejected one",
    "lists=paired": "compare the chosen and the rejected text at the same place",
    "file=row": "the file is one row",
    "file=columns": "each list is a column",
}
#: Row formats: how a row states the preference.
CHOSEN_REJECTED = "chosen and rejected"
TWO_TEXTS_AND_VOTE = "two texts and a vote"
TWO_TEXTS_AND_SCORES = "two texts and their scores"


class ColumnMappingError(DataError):
    """The meaning of the columns (or of the vote words) is ambiguous; the user has to state it.

    Args:
        message: what is unknown.
        remedy: the command line option that resolves it; the page shows the same with the fields of its form.
        answers: keys of ANSWERS among which the user can choose.
        columns: those among which the user can choose; `parse_file` adds those that can be mapped.
    """

    def __init__(
        self, message: str, remedy: str = "", answers: Iterable[str] = (), columns: Iterable[str] = ()
    ) -> None:
        self.answers = {answer: ANSWERS[answer] for answer in answers}
        options = " or ".join(f"--answer {answer} ({meaning})" for answer, meaning in self.answers.items())
        super().__init__(f"{message} {remedy}{f'Say which: {options}.' if options else ''}")
        self.message, self.remedy, self.columns = message, remedy, tuple(columns)


@dataclass(frozen=True)
class ColumnMapping:
    """by_meaning: meaning -> column; annotator_columns: one column of votes per annotator."""

    by_meaning: dict[str, str]
    annotator_columns: tuple[str, ...]
    row_format: str

    def value(self, row: Mapping[str, Any], meaning: str) -> Any:
        """The cell of a meaning; None if no column has it."""
        column = self.by_meaning.get(meaning)
        return None if column is None else cell_at(row, column)

    @property
    def vote_columns(self) -> tuple[str, ...]:
        """The columns whose cells are votes."""
        return self.annotator_columns or ((self.by_meaning["choice"],) if "choice" in self.by_meaning else ())

    @property
    def used_columns(self) -> set[str]:
        paths = {*self.by_meaning.values(), *self.annotator_columns}
        return paths | {path[: match.start()] for path in paths for match in re.finditer(r"[.]", path)}

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
    by_key = {name_key(name): name for name in reversed(available)}
    own_export = is_own_export(available)
    annotator_columns = _find_annotator_columns(available, overrides.pop("annotators", None))
    for meaning, aliases in MEANINGS.items():
        if meaning in overrides:
            if overrides[meaning]:
                by_meaning[meaning] = _require_column(overrides[meaning], available)
        elif meaning == "input" and by_meaning.get("prompt", "").lower() != "instruction":
            continue
        elif meaning not in OWN_EXPORT_MEANINGS or own_export:
            match = next((by_key[name_key(name)] for name in aliases if name_key(name) in by_key), None)
            if match is not None and match not in overrides.values():
                by_meaning[meaning] = match
    row_format = _detect_row_format(by_meaning, annotator_columns, overrides, available)
    if row_format == CHOSEN_REJECTED:
        annotator_columns = ()
    unread = _unread_meanings(row_format, annotator_columns, by_meaning)
    by_meaning = {meaning: column for meaning, column in by_meaning.items() if meaning not in unread}
    return ColumnMapping(by_meaning, annotator_columns, row_format)


def cell_at(row: Mapping[str, Any], path: str) -> Any:
    """The cell of a column, or a part of it as in "options.0.text", also if it is written as text; None if there is none."""
    if path in row:
        return row[path]
    column = column_of(path, row)
    value: Any = row.get(column)
    for name in path.removeprefix(column).removeprefix(".").split(".") if column != path else ():
        value = read_cell(value).decoded
        if isinstance(value, list):
            value = value[int(name)] if name.isdecimal() and int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value


def column_of(path: str, columns: Collection[str]) -> str:
    """The column that a path is a part of; names of columns can hold dots too."""
    ends = [len(path), *(match.start() for match in re.finditer(r"[.]", path))]
    return max((path[:end] for end in ends if path[:end] in columns), key=len, default="")


def is_own_export(column_names: Iterable[str]) -> bool:
    """Whether the columns are those of a lab's export of votes."""
    return {"first_on_left", "annotator", "source", "chosen"} <= set(column_names)


def is_annotator_name(name: str) -> bool:
    """Whether a column has the votes of one of several annotators: annotator1, annotator2 …"""
    return re.fullmatch(r"(annotator|rater|worker)_*[0-9]+", name.lower()) is not None


def has_meaning(name: str, meaning: str) -> bool:
    """Whether a column's name is one of the usual ones of a meaning."""
    return name_key(name) in map(name_key, MEANINGS[meaning])


def has_text_pair(column_names: Iterable[str], overrides: Mapping[str, str]) -> bool:
    """Whether two columns have names of the two texts, or the user says which they are."""
    keys = set(map(name_key, column_names))
    named = {
        name for name, aliases in MEANINGS.items() if name in overrides or not keys.isdisjoint(map(name_key, aliases))
    }
    return {"chosen", "rejected"} <= named or {"first", "second"} <= named


def with_second_score(overrides: Mapping[str, str], available: Iterable[str]) -> dict[str, str]:
    """The user's mapping; if it names only the first score's column, the second is added: "…_b" for "…_a", "…_2" for "…_1"."""
    column = overrides.get("score_first", "")
    successor = column[:-1] + {"a": "b", "A": "B", "0": "1", "1": "2"}.get(column[-1:], "")
    return ({"score_second": successor} if column and successor in available else {}) | dict(overrides)


def reject_ambiguous_columns(
    mapping: ColumnMapping, overrides: Mapping[str, str], filled_columns: Iterable[str]
) -> None:
    """Raise ColumnMappingError if several columns have names of one meaning that decides what a row says.

    filled_columns: those with a value in at least one row.
    """
    unused = [column for column in filled_columns if column not in mapping.used_columns]
    unused = [column for column in unused if name_key(column) != "history" or "history" not in overrides]
    for meaning in DECIDING_MEANINGS:
        column = mapping.by_meaning.get(meaning)
        if column is None or meaning in overrides:
            continue
        names = [name_key(name) for name in MEANINGS[meaning] + (FURTHER_PROMPT_NAMES if meaning == "prompt" else ())]
        candidates = [column, *(name for name in unused if name_key(name) in names)]
        if len(candidates) > 1:
            histories = [name for name in candidates if name_key(name) == "history"]
            prompts = [name for name in candidates if name not in histories]
            also = [map_option("input", name) for name in prompts[1:2]] + [map_option("history", *histories)] * bool(
                histories
            )
            both = (
                f", or {' '.join((map_option('prompt', prompts[0]), *also))} for all"
                if meaning == "prompt" and prompts and also
                else ""
            )
            raise ColumnMappingError(
                f'Several columns can mean "{meaning}": {_join_names(candidates)}.',
                f"Say which: {' or '.join(map_option(meaning, name) for name in candidates[:6])}{both}.",
            )


def _unread_meanings(row_format: str, annotator_columns: tuple[str, ...], columns: Mapping[str, str]) -> set[str]:
    """Meanings that rows of this format are not asked for; their columns are listed as not used."""
    sides = ("first", "second") if row_format == CHOSEN_REJECTED else ("chosen", "rejected")
    unread = {meaning for meaning in MEANINGS if any(side in meaning.split("_") for side in sides)} - {"first_on_left"}
    if annotator_columns:
        unread |= {"choice", "first_wins", "second_wins", "tie", "both_bad", "annotator", "score_first", "score_second"}
    if "choice" in columns:
        unread |= {"first_wins", "second_wins"}
    for pair in (("score_chosen", "score_rejected"), ("score_first", "score_second")):
        if not set(pair) <= set(columns):
            unread |= set(pair)
    return unread


def _require_column(column: str, available: list[str]) -> str:
    if not column_of(column, available):
        raise ColumnMappingError(
            f'There is no column "{column}" in row 1. The columns are {_join_names(available)}.',
            "Choose one of them.",
        )
    return column


def _find_annotator_columns(available: list[str], override: str | None) -> tuple[str, ...]:
    """Columns with the votes of one annotator each: the override ("A+B"), or annotator1, annotator2 …"""
    if override is not None:
        return tuple(_require_column(name.strip(), available) for name in override.split("+") if name.strip())
    matches = tuple(filter(is_annotator_name, available))
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
                f"Say which to take: {map_option('chosen', names[0])} {map_option('rejected', names[1])}, or "
                f"{map_option('first', names[2])} {map_option('second', names[3])}.",
            )
    if ("chosen", "rejected") in pairs:
        return CHOSEN_REJECTED
    if pairs:
        if "choice" in columns or annotator_columns or {"first_wins", "second_wins"} <= set(columns):
            return TWO_TEXTS_AND_VOTE
        if "score_first" in columns and "score_second" in columns:
            return TWO_TEXTS_AND_SCORES
        raise ColumnMappingError(
            f"Row 1 has two texts, but nothing says which is better. The columns are {_join_names(available)}.",
            "Say which column is the choice, or which are the scores: --map choice=COLUMN, or --map "
            "score_first=COLUMN --map score_second=COLUMN.",
        )
    if {"completion", "label"} <= set(available):
        raise DataError(
            "Row 1 has one completion and a label (unpaired preferences). The lab compares two texts: give pairs, as "
            "chosen and rejected."
        )
    raise ColumnMappingError(
        f"Row 1 has no pair of texts that the lab knows by name. The columns are {_join_names(available)}.",
        "Say which they are: --map chosen=COLUMN --map rejected=COLUMN, or --map first=COLUMN --map second=COLUMN "
        "--map choice=COLUMN.",
    )


def _join_names(names: list[str]) -> str:
    return ", ".join(names[:12]) + (" …" if len(names) > 12 else "") if names else "none"
