"""Parses a whole file: rows, column mapping, votes and errors. Writes nothing."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_lab.common.enums import Choice
from rlhf_lab.errors import DataError
from rlhf_lab.importers.column_mapping import TWO_TEXTS_AND_VOTE, ColumnMappingError, map_columns
from rlhf_lab.importers.hub_reader import is_hub_id, read_hub_rows
from rlhf_lab.importers.parsed_rows import (
    DEFAULT_LIMITS,
    MAX_LISTED_ERRORS,
    Limits,
    ParsedFile,
    ParsedVote,
    RowError,
    SourceRow,
)
from rlhf_lab.importers.readers import RowStream, read_rows
from rlhf_lab.importers.row_parser import ParseOptions, parse_votes

MAPPING_SAMPLE_ROWS = 100  # rows whose columns determine the mapping


@dataclass(frozen=True)
class ImportRequest:
    """What to read and how. name: replaces the file name, for uploads; choices: meanings of the file's vote words."""

    path_or_hub_id: str
    name: str = ""
    mapping: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Choice] = field(default_factory=dict)
    split: str = "train"
    config_name: str | None = None
    limits: Limits = DEFAULT_LIMITS


def parse_file(request: ImportRequest) -> ParsedFile:
    """Parse a file. Raises DataError if no row can be read or mapped; other problems are in `errors`, by row."""
    digest, rows = _open_rows(request)
    first_rows = list(itertools.islice(rows, MAPPING_SAMPLE_ROWS))
    readable_rows = [row for row in first_rows if isinstance(row, SourceRow)]
    name = request.name or Path(request.path_or_hub_id).name
    if not readable_rows:
        error = next((row for row in first_rows if isinstance(row, RowError)), None)
        raise DataError(f"{name}: {error}." if error else f"{name} has a header and no row 1. Choose a file with rows.")
    column_names = list(dict.fromkeys(column for row in readable_rows for column in row.cells if column))
    mapping = map_columns(column_names, request.mapping)
    options = ParseOptions(mapping, request.choices, request.limits)
    _reject_ambiguous_votes(readable_rows, column_names, options, name)
    votes, errors, row_count = _parse_rows(itertools.chain(first_rows, rows), options)
    used_columns = {*mapping.by_meaning.values(), *mapping.annotator_columns}
    unused_columns = tuple(column for column in column_names if column not in used_columns)
    return ParsedFile(
        name, digest, mapping.row_format, mapping.display_mapping, unused_columns, row_count, votes, errors
    )


def _open_rows(request: ImportRequest) -> tuple[str, RowStream]:
    path = Path(request.path_or_hub_id).expanduser()
    if not path.exists() and is_hub_id(request.path_or_hub_id):
        return read_hub_rows(
            request.path_or_hub_id, config_name=request.config_name, split=request.split, limits=request.limits
        )
    return read_rows(path, request.limits)


def _parse_rows(rows: RowStream, options: ParseOptions) -> tuple[list[ParsedVote], list[RowError], int]:
    votes: list[ParsedVote] = []
    errors: list[RowError] = []
    row_count = 0
    for row in rows:
        row_count += 1
        if row_count > options.limits.max_rows:
            errors.append(
                RowError(
                    0, f"row {row_count}", f"more than {options.limits.max_rows:,} rows. Import the file in parts."
                )
            )
            break
        result = row if isinstance(row, RowError) else parse_votes(options, row)
        if isinstance(result, RowError):
            errors.append(result)
        else:
            votes.extend(result)
    return votes, errors, row_count


def _reject_ambiguous_votes(rows: list[SourceRow], available: list[str], options: ParseOptions, name: str) -> None:
    """Raise if all votes are 0 or 1, which can mean "first, second" as well as "tie, first": only a person knows."""
    mapping = options.mapping
    if options.choices or mapping.row_format != TWO_TEXTS_AND_VOTE:
        return
    vote_columns = mapping.annotator_columns or (mapping.by_meaning["choice"],)
    vote_values = {
        str(row.cells[column]).strip()
        for row in rows
        for column in vote_columns
        if row.cells.get(column) not in (None, "")
    }
    if vote_values and vote_values <= {"0", "1", "0.0", "1.0"}:
        raise ColumnMappingError(
            f"{name}: row 1 votes with 0 or 1, and so do those after it: that can mean the first and the second text, or a tie "
            "and the first.",
            'Say which: --choices "0=first,1=second" or --choices "0=tie,1=first,2=second".',
            available,
        )


def summarize_errors(errors: list[RowError]) -> str:
    """The first errors, one per line."""
    lines = [str(error) for error in errors[:MAX_LISTED_ERRORS]]
    remaining = len(errors) - MAX_LISTED_ERRORS
    return "\n".join(lines + ([f"and {remaining:,} more"] if remaining > 0 else []))
