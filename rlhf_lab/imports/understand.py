"""A whole file, understood: rows, mapping, judgements, and everything that is wrong with it. Nothing is written here."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_lab.errors import DataError
from rlhf_lab.imports.columns import VOTES, Columns, ColumnsError, understand
from rlhf_lab.imports.files import Rows, read_rows
from rlhf_lab.imports.found import TOLD, USUAL, Found, Judgement, Limits, Problem, Row
from rlhf_lab.imports.hub import hub_rows, is_hub_name
from rlhf_lab.imports.rows import Reading, judgements
from rlhf_lab.kinds import Choice

AHEAD = 100  # rows whose columns are looked at for the mapping


@dataclass(frozen=True)
class Asked:
    """What to read and how. what: a file, or OWNER/NAME on the Hub; name: what to call it (an upload has a name of its own)."""

    what: str
    name: str = ""
    mapping: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Choice] = field(default_factory=dict)
    split: str = "train"
    config: str | None = None
    limits: Limits = USUAL


def read_all(asked: Asked) -> Found:
    """Raises DataError where there is nothing to be understood at all; else `problems` says what is wrong, by row."""
    digest, rows = _open(asked)
    held = list(itertools.islice(rows, AHEAD))
    readable = [row for row in held if isinstance(row, Row)]
    name = asked.name or Path(asked.what).name
    if not readable:
        problem = next((row for row in held if isinstance(row, Problem)), None)
        raise DataError(
            f"{name}: {problem}." if problem else f"{name} has a header and no row 1. Choose a file with rows."
        )
    names = list(dict.fromkeys(column for row in readable for column in row.columns if column))
    columns = understand(names, asked.mapping)
    reading = Reading(columns, asked.choices, asked.limits)
    _refuse_doubtful_words(readable, names, reading, name)
    found, problems, count = _collect(_again(held, rows), reading)
    used = {*columns.columns.values(), *columns.people}
    unused = tuple(column for column in names if column not in used)
    return Found(name, digest, columns.shape, columns.words, unused, count, found, problems)


def _open(asked: Asked) -> tuple[str, Rows]:
    path = Path(asked.what).expanduser()
    if not path.exists() and is_hub_name(asked.what):
        return hub_rows(asked.what, config=asked.config, split=asked.split, limits=asked.limits)
    return read_rows(path, asked.limits)


def _again(held: list[Row | Problem], rest: Rows) -> Iterator[Row | Problem]:
    yield from held
    yield from rest


def _collect(rows: Iterator[Row | Problem], reading: Reading) -> tuple[list[Judgement], list[Problem], int]:
    found: list[Judgement] = []
    problems: list[Problem] = []
    count = 0
    for row in rows:
        count += 1
        if count > reading.limits.rows:
            problems.append(
                Problem(0, f"row {count}", f"more than {reading.limits.rows:,} rows. Import the file in parts.")
            )
            break
        said = row if isinstance(row, Problem) else judgements(reading, row)
        if isinstance(said, Problem):
            problems.append(said)
        else:
            found.extend(said)
    return found, problems, count


def _refuse_doubtful_words(rows: list[Row], there: list[str], reading: Reading, name: str) -> None:
    """0 and 1 alone can mean "first, second" as well as "tie, first": only the person knows."""
    columns: Columns = reading.columns
    if reading.choices or columns.shape != VOTES:
        return
    names = columns.people or (columns.columns["choice"],)
    words = {
        str(row.columns[column]).strip()
        for row in rows
        for column in names
        if row.columns.get(column) not in (None, "")
    }
    if words and words <= {"0", "1", "0.0", "1.0"}:
        raise ColumnsError(
            f"{name}: row 1 votes with 0 or 1, and so do those after it: that can mean the first and the second text, or a tie "
            "and the first.",
            'Say which: --choices "0=first,1=second" or --choices "0=tie,1=first,2=second".',
            there,
        )


def summary_of(problems: list[Problem]) -> str:
    """The first problems, a line each."""
    lines = [str(problem) for problem in problems[:TOLD]]
    more = len(problems) - TOLD
    return "\n".join(lines + ([f"and {more:,} more"] if more > 0 else []))
