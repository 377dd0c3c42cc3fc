"""Parses a whole file: rows, column mapping, votes and errors. Writes nothing."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlhf_lab.common.chat_format import is_transcript, normalize_transcript
from rlhf_lab.common.enums import Choice
from rlhf_lab.errors import DataError
from rlhf_lab.importers.cell_parsers import (
    fitting_readings,
    has_unclear_numbers,
    normalize_cell,
    parse_choice_words,
    ticked_key,
)
from rlhf_lab.importers.cells import is_empty_cell, read_cell
from rlhf_lab.importers.column_mapping import (
    CHOSEN_REJECTED,
    ColumnMapping,
    ColumnMappingError,
    column_of,
    is_annotator_name,
    map_columns,
    reject_ambiguous_columns,
    with_second_score,
)
from rlhf_lab.importers.comparisons import limit_rows
from rlhf_lab.importers.hub_reader import is_hub_id, read_hub_rows
from rlhf_lab.importers.layouts import ExpandedRows, expand_rows
from rlhf_lab.importers.left_out import leave_out_doubtful, leave_out_rows
from rlhf_lab.importers.memory_limit import limited_memory
from rlhf_lab.importers.parsed_rows import (
    DEFAULT_LIMITS,
    MAX_LISTED_ERRORS,
    LeftOut,
    Limits,
    ParsedFile,
    ParsedVote,
    RowError,
    SourceRow,
    list_columns,
    list_filled_columns,
)
from rlhf_lab.importers.questions import (
    find_day_first,
    find_notation,
    find_ranks,
    find_repeated_prompt,
    map_prompt,
    reject_contradictions,
    reject_speakers,
    resolve_text_questions,
    texts_of,
)
from rlhf_lab.importers.readers import RowStream, read_rows
from rlhf_lab.importers.remedies import choices_option, map_option
from rlhf_lab.importers.row_options import ParseOptions, votes_in
from rlhf_lab.importers.row_parser import parse_votes
from rlhf_lab.importers.speakers import find_speakers
from rlhf_lab.importers.text_names import find_name_columns, follow_texts, is_reversed, reject_reversed_sides

UNNAMED_COLUMN = "unnamed_column"
MAX_NESTED_PATHS = 40


@dataclass(frozen=True)
class ImportRequest:
    """What to read and how.

    Attributes:
        name: replaces the file name, for uploads.
        choices: meanings of the file's vote words.
        answers: keys of ANSWERS, which answer the importer's questions.
    """

    path_or_hub_id: str
    name: str = ""
    mapping: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Choice] = field(default_factory=dict)
    split: str = "train"
    config_name: str | None = None
    limits: Limits = DEFAULT_LIMITS
    answers: frozenset[str] = frozenset()


def parse_file(request: ImportRequest) -> ParsedFile:
    """Parse a file. Raises DataError if no row can be read or mapped; other problems are in `errors`, by row."""
    with limited_memory(_name_of(request), request.limits):
        return _parse_file(request)


def _parse_file(request: ImportRequest) -> ParsedFile:
    digest, row_stream = _open_rows(request)
    file_rows = limit_rows(
        leave_out_rows(map(_name_columns, row_stream), request.mapping.values()), request.limits.max_rows, "rows"
    )
    expanded = expand_rows(file_rows, request.mapping, request.limits.max_rows, request.answers)
    readable_rows = [row for row in expanded.rows if isinstance(row, SourceRow)]
    name = _name_of(request)
    if not readable_rows:
        error = next((row for row in expanded.rows if isinstance(row, RowError)), None)
        reason = "compares no two texts" if file_rows else "has a header and no row 1"
        raise DataError(f"{name}: {str(error).rstrip('.')}." if error else f"{name} {reason}. Choose a file with rows.")
    available = [*list_columns(readable_rows), *_nested_paths(readable_rows[0].cells)]
    filled_columns = list_filled_columns(readable_rows)
    try:
        mapping = _find_mapping(request, expanded, readable_rows, available, filled_columns)
        unused_columns = [column for column in filled_columns if column not in mapping.used_columns]
        rows = leave_out_doubtful(expanded.rows, unused_columns, request.answers)
        readable_rows = [row for row in rows if isinstance(row, SourceRow)]
        options = _resolve_questions(request, mapping, expanded.choices, readable_rows, available)
        votes, errors = _parse_rows(resolve_text_questions(rows, options), options)
    except ColumnMappingError as problem:
        problem.columns = tuple(available)
        raise
    left_out = Counter(error.message for error in errors if isinstance(error, LeftOut))
    return ParsedFile(
        name, digest, mapping.row_format, mapping.display_mapping,
        (*unused_columns, *_unused_parts(mapping, readable_rows), *sorted(options.other_keys)), len(file_rows), votes,
        [error for error in errors if not isinstance(error, LeftOut)], tuple(available), dict(left_out),
        {name: sorted(spellings) for name, spellings in options.spellings.items() if len(spellings) > 1},
    )  # fmt: skip


def _find_mapping(
    request: ImportRequest,
    expanded: ExpandedRows,
    rows: list[SourceRow],
    available: list[str],
    filled_columns: list[str],
) -> ColumnMapping:
    """The meaning of each column. Raises ColumnMappingError for what only the user knows."""
    overrides = with_second_score(expanded.mapping | dict(request.mapping), list_columns(rows))
    mapping = follow_texts(map_columns(available, overrides), request.mapping, request.answers)
    reject_ambiguous_columns(mapping, overrides, filled_columns)
    _reject_unread_ties(mapping, overrides, rows, filled_columns)
    return map_prompt(mapping, overrides, rows, filled_columns)


def _resolve_questions(
    request: ImportRequest, mapping: ColumnMapping, choices: str, rows: list[SourceRow], available: list[str]
) -> ParseOptions:
    """How the rows are parsed, by what the user said about votes, texts, numbers and dates. choices: those of the layout.

    Raises ColumnMappingError for what is open.
    """
    is_swapped = is_reversed(mapping) or "sides=swapped" in request.answers
    options = ParseOptions(
        mapping,
        request.answers,
        request.choices or parse_choice_words("" if is_swapped else choices),
        request.limits,
        holds_chats=_holds_chats(mapping, rows),
        name_columns=find_name_columns(mapping, available, is_swapped),
    )
    _reject_unclear_votes(rows, options, _name_of(request))
    reject_contradictions(rows, options)
    reject_speakers(rows, options)
    meaning = next(name for name in ("prompt", "chosen", "first") if name in mapping.by_meaning)
    texts = (normalize_transcript(text, is_prompt=True) for text in texts_of(rows, options, meaning))
    transcripts = [text for text in texts if not is_transcript(text)]
    return replace(
        options,
        speakers=find_speakers(transcripts, mapping.by_meaning[meaning], request.answers),
        cuts_prompt=find_repeated_prompt(rows, options),
        is_rank=find_ranks(rows, options),
        notation=find_notation(rows, options),
        day_first=find_day_first(rows, options),
    )


def _name_columns(row: SourceRow | RowError) -> SourceRow | RowError:
    """The row with a name for a column without one: --map cannot say ""."""
    if isinstance(row, RowError) or "" not in row.cells:
        return row
    return replace(row, cells={name or UNNAMED_COLUMN: value for name, value in row.cells.items()})


def _nested_paths(cells: Mapping[str, Any]) -> list[str]:
    """Paths of the texts, numbers and chats in lists and objects of a row, which --map can name: "options.0.text"."""
    paths: list[str] = []
    decoded = ((name, read_cell(value).decoded) for name, value in cells.items())
    stack = [(name, value) for name, value in decoded if isinstance(value, dict | list)]
    while stack and len(paths) < MAX_NESTED_PATHS:
        path, value = stack.pop(0)
        is_chat = read_cell(value).is_chat
        if (is_chat and "." in path) or (ticked_key(value) is not value and value):
            paths.append(path)
        if isinstance(value, dict | list) and not is_chat:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            stack.extend((f"{path}.{name}", item) for name, item in itertools.islice(items, MAX_NESTED_PATHS))
        elif not isinstance(value, dict | list):
            paths.append(path)
    return paths


def _unused_parts(mapping: ColumnMapping, rows: Iterable[SourceRow]) -> list[str]:
    """Parts of objects that hold something and are not mapped, where another part of the object is."""
    columns = {column for row in rows for column in row.cells}
    parents = [(column_of(path, columns), path) for path in mapping.by_meaning.values()]
    used = {(parent, path.removeprefix(f"{parent}.").split(".")[0]) for parent, path in parents if parent != path}
    parts: dict[str, None] = {}
    for column in {parent for parent, _ in used}:
        for row in rows:
            value = row.cells.get(column)
            for key, item in value.items() if isinstance(value, dict) else ():
                if (column, key) not in used and not is_empty_cell(item) and item not in ([], {}):
                    parts[f"{column}.{key}"] = None
    return list(parts)


def _holds_chats(mapping: ColumnMapping, rows: Iterable[SourceRow]) -> bool:
    """Whether texts can be chats that are written as text: in a CSV export of a lab all of them are, or none."""
    names = ("prompt", "chosen", "rejected")
    return "first_on_left" not in mapping.by_meaning or all(
        read_cell(mapping.value(row.cells, name)).is_chat for row in rows for name in names
    )


def _reject_unread_ties(
    mapping: ColumnMapping,
    overrides: Mapping[str, str],
    rows: Iterable[SourceRow],
    filled_columns: Iterable[str],
) -> None:
    """Raise if a column beside chosen and rejected holds the word "tie", and no column is known to hold votes."""
    if mapping.row_format != CHOSEN_REJECTED or "choice" in mapping.by_meaning or "choice" in overrides:
        return
    unused = [name for name in filled_columns if name not in mapping.used_columns and not is_annotator_name(name)]
    for row in rows:
        for column in unused:
            value = row.cells.get(column)
            if isinstance(value, str) and value.lower() == "tie":
                raise ColumnMappingError(
                    f'"{column}" is "tie" in {row.location}, although that has a chosen and a rejected text.',
                    f"Say whether such rows are ties: {map_option('choice', column)}, with --choices for its words, or "
                    f"{map_option('choice')}.",
                )


def _name_of(request: ImportRequest) -> str:
    """The name of the file, or the id of the data set on the Hub."""
    return request.name or (request.path_or_hub_id if _is_on_hub(request) else Path(request.path_or_hub_id).name)


def _is_on_hub(request: ImportRequest) -> bool:
    return not Path(request.path_or_hub_id).expanduser().exists() and is_hub_id(request.path_or_hub_id)


def _open_rows(request: ImportRequest) -> tuple[str, RowStream]:
    if _is_on_hub(request):
        return read_hub_rows(
            request.path_or_hub_id, config_name=request.config_name, split=request.split, limits=request.limits
        )
    return read_rows(Path(request.path_or_hub_id).expanduser(), request.limits, request.answers)


def _parse_rows(rows: Iterable[SourceRow | RowError], options: ParseOptions) -> tuple[list[ParsedVote], list[RowError]]:
    votes: list[ParsedVote] = []
    errors: list[RowError] = []
    splits: dict[str, tuple[str, int]] = {}  # prompt -> its split and the row that gives it
    for row in rows:
        result = row if isinstance(row, RowError) else parse_votes(options, row)
        if not isinstance(result, RowError):
            result = _find_split_conflict(row, result, splits, options) or result
        if isinstance(result, RowError):
            errors.append(result)
        else:
            votes.extend(result)
    return votes, errors


def _find_split_conflict(
    row: SourceRow | RowError, votes: list[ParsedVote], splits: dict[str, tuple[str, int]], options: ParseOptions
) -> RowError | None:
    """The error of a row that puts a prompt in another split than an earlier row does. Adds new splits to `splits`."""
    vote = votes[0]
    if not vote.split:
        return None
    split, row_number = splits.setdefault(vote.prompt, (vote.split, vote.row_number))
    if split == vote.split:
        return None
    column = options.mapping.by_meaning["split"]
    message = f"{column} is {vote.split!r}, but {split!r} in row {row_number} for the same prompt."
    return RowError(row.row_number, row.location, f"{message} Give the prompt one split.")


def _reject_unclear_votes(rows: list[SourceRow], options: ParseOptions, name: str) -> None:
    """Raise if votes are numbers that several readings fit: only the user knows which one the file means."""
    if options.choices:
        return
    locations: dict[str, str] = {}  # vote -> location of its first occurrence
    for row in rows:
        votes = votes_in(row, options.mapping)
        names = {*options.names_in(row), *options.shared_names_in(row)} if votes else set()
        for item in votes:
            if normalize_cell(item) not in names:
                locations.setdefault(normalize_cell(item, is_vote=True), row.location)
    reject_reversed_sides(options.mapping, locations)
    if not has_unclear_numbers(locations):
        return
    readings = fitting_readings(locations)
    is_beside = options.mapping.row_format == CHOSEN_REJECTED
    no_votes = f" If they are not votes: {map_option('choice')}." if is_beside else ""
    unclear = f"{name}: {next(iter(locations.values()))} and the rows after it vote with {_join_words(locations)}."
    if readings:
        raise ColumnMappingError(
            unclear + " That can mean " + " or ".join(f'"{reading}"' for reading in readings) + ".",
            f"Say which: {choices_option(readings[0])}.{no_votes}",
        )
    raise ColumnMappingError(
        f"{unclear} The lab does not know what these numbers mean.",
        f"State the meaning of each: {choices_option('NUMBER=first,NUMBER=second,NUMBER=tie')}.{no_votes}",
    )


def _join_words(words: Iterable[str]) -> str:
    """ "0, 1 and tie": at most ten of the words."""
    shown = sorted(word[:40] for word in words)
    if len(shown) > 10:
        return ", ".join(shown[:10]) + " and others"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def summarize_errors(errors: list[RowError]) -> str:
    """The first errors, one per line."""
    lines = [str(error) for error in errors[:MAX_LISTED_ERRORS]]
    remaining = len(errors) - MAX_LISTED_ERRORS
    return "\n".join(lines + ([f"and {remaining:,} more"] if remaining > 0 else []))
