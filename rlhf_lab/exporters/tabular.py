"""Rows of plain values as JSON Lines, JSON, CSV or Parquet."""

import csv
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.common.csv_safety import escape_formula
from rlhf_lab.exporters.json_io import to_strict_json, write_json_lines

#: column -> type for Parquet, where a column with nothing but null would have none. All others are text.
COLUMN_TYPES = {
    "tie": "bool", "both_bad": "bool", "first_on_left": "bool", "repeat": "bool", "adjudication": "bool", "response_ms": "int",
    "pair_id": "int", "seed_chosen": "int", "seed_rejected": "int", "created_at": "float", "margin": "float",
    "chosen_ids": "ids", "rejected_ids": "ids",
}  # fmt: skip
TEXT_COLUMNS = ("prompt", "chosen", "rejected")


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], format_: str) -> int:
    """Write rows with the same columns in one of label_export.FORMATS; returns their number.

    In CSV, cells that a spreadsheet would evaluate as a formula get an apostrophe, which `importers` removes; not so
    TEXT_COLUMNS, which are training data.
    """
    if format_ == "jsonl":
        return write_json_lines(path, rows)
    if format_ == "jsonl.gz":
        count = write_json_lines(path, rows)
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        return count
    row_list = list(rows)
    if format_ == "json":
        path.write_text(
            json.dumps([to_strict_json(row) for row in row_list], ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
    elif format_ == "csv":
        _write_csv(path, row_list)
    else:
        _write_parquet(path, row_list)
    return len(row_list)


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
            writer.writerow(list(rows[0]))
            writer.writerows([_csv_cell(name, value) for name, value in row.items()] for row in rows)


def _csv_cell(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool | list):
        return json.dumps(value, ensure_ascii=False)
    return escape_formula(value) if isinstance(value, str) and name not in TEXT_COLUMNS else value


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    chat_type = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    arrow_types = {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "ids": pa.list_(pa.int64())}
    fields = [
        (
            name,
            chat_type
            if name in TEXT_COLUMNS and isinstance(value, list)
            else arrow_types.get(COLUMN_TYPES.get(name, ""), pa.string()),
        )
        for name, value in (rows[0] if rows else {}).items()
    ]
    parquet.write_table(pa.Table.from_pylist([to_strict_json(row) for row in rows], pa.schema(fields)), path)
