"""Rows of plain values as JSON Lines, JSON, CSV or Parquet."""

import contextlib
import csv
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rlhf_lab.common.csv_safety import escape_formula
from rlhf_lab.exporters.json_io import to_strict_json, write_json_lines

if TYPE_CHECKING:
    import pyarrow

#: column -> type in Parquet, where a column that contains only nulls would have none. All others are text.
COLUMN_TYPES = {
    "tie": "bool", "both_bad": "bool", "first_on_left": "bool", "repeat": "bool", "adjudication": "bool", "response_ms": "int",
    "pair_id": "int", "seed_chosen": "int", "seed_rejected": "int", "created_at": "float", "margin": "float",
    "chosen_ids": "ids", "rejected_ids": "ids",
}  # fmt: skip
TEXT_COLUMNS = ("prompt", "chosen", "rejected", "system")


#: Batches of rows with the same columns.
Batches = Iterable[Sequence[Mapping[str, Any]]]


def write_rows(path: Path, batches: Batches, format_: str) -> int:
    """Write rows in one of label_export.FORMATS, one batch after the other; returns their number.

    In CSV, cells that a spreadsheet would evaluate as a formula get an apostrophe, which `importers` removes.
    TEXT_COLUMNS are training data and are not changed.
    """
    if format_ == "parquet":
        return _write_parquet(path, batches)
    rows = itertools.chain.from_iterable(batches)
    if format_ in ("jsonl", "jsonl.gz"):
        return write_json_lines(path, rows, compress=format_ == "jsonl.gz")
    with path.open("w", encoding="utf-8", newline="") as file:
        return {"json": _dump_json, "csv": _dump_csv}[format_](file, rows)


def _dump_json(file: TextIO, rows: Iterable[Mapping[str, Any]]) -> int:
    """One list, indented by a space for each level."""
    count = 0
    for count, row in enumerate(rows, 1):
        text = json.dumps(to_strict_json(row), ensure_ascii=False, indent=1)  # line ends within texts are escaped
        file.write(("[\n " if count == 1 else ",\n ") + text.replace("\n", "\n "))
    file.write("\n]\n" if count else "[]\n")
    return count


def _dump_csv(file: TextIO, rows: Iterable[Mapping[str, Any]]) -> int:
    writer, count = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC), 0
    for count, row in enumerate(rows, 1):
        if count == 1:
            writer.writerow(list(row))
        writer.writerow([_csv_cell(name, value) for name, value in row.items()])
    return count


def _csv_cell(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool | list):
        return json.dumps(value, ensure_ascii=False)
    return escape_formula(value) if isinstance(value, str) and name not in TEXT_COLUMNS else value


def _write_parquet(path: Path, batches: Batches) -> int:
    """A row group for each batch."""
    from pyarrow import Table, parquet

    count = 0
    with contextlib.ExitStack() as stack:
        for rows in filter(None, batches):
            if not count:
                schema = _arrow_schema(rows[0])
                writer = stack.enter_context(parquet.ParquetWriter(path, schema))
            writer.write_table(Table.from_pylist([to_strict_json(row) for row in rows], schema))
            count += len(rows)
    return count


def column_kind(name: str, *, is_chat: bool) -> str:
    """What a column holds: text, bool, int, float, ids or chat. is_chat: whether texts are chats."""
    return "chat" if name in TEXT_COLUMNS and is_chat else COLUMN_TYPES.get(name, "text")


def _arrow_schema(row: Mapping[str, Any]) -> "pyarrow.Schema":
    import pyarrow as pa

    chat_type = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    arrow_types = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "ids": pa.list_(pa.int64()),
                   "chat": chat_type, "text": pa.string()}  # fmt: skip
    return pa.schema(
        [(name, arrow_types[column_kind(name, is_chat=isinstance(value, list))]) for name, value in row.items()]
    )
