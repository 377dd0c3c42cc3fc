"""Rows of a local file, or of the one data file in a folder: JSON Lines, JSON, CSV (also with ; or tabs), Parquet; text formats
also gzipped. The kind of JSON is recognised by its content.

Python's own readers are used, because the errors of `datasets` do not name the row.
"""

import csv
import gzip
import hashlib
import io
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from rlhf_lab.common.chat_format import is_message
from rlhf_lab.common.paths import regular_file
from rlhf_lab.common.text import split_lines
from rlhf_lab.errors import DataError
from rlhf_lab.importers.cells import CONVERSATION_KEYS, UniqueNameDecoder, read_cell
from rlhf_lab.importers.column_mapping import ColumnMappingError, has_text_pair
from rlhf_lab.importers.left_out import TABLE_LINE, is_table_line
from rlhf_lab.importers.parsed_rows import DEFAULT_LIMITS, LeftOut, Limits, RowError, SourceRow

RowStream = Iterator[SourceRow | RowError]
CSV_SUFFIXES = (".csv", ".tsv", ".tab")
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
JSON_SUFFIXES = (".json", *JSON_LINES_SUFFIXES)
PROVENANCE_FILE = "provenance.json"  # beside the data of an exported folder
MAX_FOLDER_ENTRIES = 1_000
DELIMITERS = ",;\t|"
SEPARATOR_LINE = re.compile(r'[\r\n]*"?sep=([^\r\n"])"?\r?\n', re.IGNORECASE)
#: Names of the rows of an object: their numbers, or the ids that Argilla gives them.
ROW_KEY = re.compile(r"[0-9]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ROW_COUNT = re.compile(r"\(?\d+ rows?.*")  # after a table of psql
UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")
MAX_COLUMNS = 1_000  # number of different columns in all rows
MAX_COLUMN_NAME_CHARS = 200
MAX_TABLE_LINES = 5  # before the header
PARQUET_BATCH_ROWS = 5_000


def read_rows(path: Path, limits: Limits = DEFAULT_LIMITS, answers: Collection[str] = ()) -> tuple[str, RowStream]:
    """(SHA-256 of the file, its rows and row errors in order). answers: keys of ANSWERS.

    Raises DataError if no row can be read, ColumnMappingError if only the user knows what the rows are.
    """
    path = _data_file(path) if path.is_dir() else path
    content = _read_bytes(path, limits)
    digest = hashlib.sha256(content).hexdigest()
    if content[:4] == b"PAR1":
        return digest, _limit_columns(_parse_parquet(content))
    if content.startswith(b"version https://git-lfs.github.com/spec/"):
        raise DataError(
            f"{path.name} is a pointer of Git LFS, not the data itself. Fetch the file with: git lfs pull, and import that."
        )
    if re.match(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html)", content[:200], re.IGNORECASE):
        raise DataError(f"{path.name} is a web page, not data. Download the file itself, for example its raw form.")
    if uncompressed_name(path).endswith(".parquet"):
        raise DataError(f"{path.name} is not a Parquet file: it does not begin as one. Copy or download it again.")
    if content[:2] == b"PK":
        raise DataError(
            f"{path.name} is a zip archive or a spreadsheet. Unpack it, or save the sheet as CSV, and import that."
        )
    name = uncompressed_name(path)
    decompressed, damage = _decompress(path.name, content, limits)
    if b"\0" in decompressed[:1000] and decompressed[:2] not in UTF_16_BOMS:
        raise DataError(
            f"{path.name} holds no text but something else. Choose a CSV, JSON, JSON Lines or Parquet file."
        )
    text, damage = _decode_text(path.name, decompressed, damage)
    if not text.strip() and not damage:
        raise DataError(f"{path.name} is empty: there is no row 1. Choose the file that holds the data.")
    return digest, _limit_columns(_append_damage_error(_parse_text(name, text, answers), damage))


def _data_file(folder: Path) -> Path:
    """The one data file in a folder or the folders in it, as `export dataset` writes it."""
    entries = [path for path in itertools.islice(folder.rglob("*"), MAX_FOLDER_ENTRIES) if path.is_file()]
    suffixes = (*CSV_SUFFIXES, *JSON_SUFFIXES, ".parquet")
    files = [path for path in entries if uncompressed_name(path).endswith(suffixes) and path.name != PROVENANCE_FILE]
    if len(files) == 1:
        return files[0]
    names = ", ".join(sorted(str(path.relative_to(folder)) for path in files)[:6])
    found = f"{len(files):,} data files ({names})" if files else "no data file"
    raise DataError(f"{folder.name} is a folder with {found}. Check the name, or give that of one file.")


def _limit_columns(rows: RowStream) -> RowStream:
    """The rows before the one that exceeds MAX_COLUMNS different columns, then an error."""
    columns: set[str] = set()
    for row in rows:
        if isinstance(row, SourceRow) and not columns.issuperset(row.cells):
            columns.update(row.cells)
            if error_message := _check_columns(columns):
                yield RowError(0, row.location, error_message)
                return
        yield row


def _check_columns(names: Iterable[str]) -> str:
    """What is wrong with the names or the number of columns; "" if nothing is."""
    counts = Counter(names)
    if len(counts) > MAX_COLUMNS:
        return f"there are more than {MAX_COLUMNS:,} different columns. Keep those with the texts and the votes"
    if long_name := next((name for name in counts if len(name) > MAX_COLUMN_NAME_CHARS), ""):
        return (
            f"a column's name has {len(long_name):,} characters ({long_name[:40]!r} …), more than "
            f"{MAX_COLUMN_NAME_CHARS}. Write the names of the columns in row 1"
        )
    if duplicates := sorted(name for name, count in counts.items() if name and count > 1):
        return f"two columns are called {duplicates[0]!r}. Rename one in row 1 of the file"
    return ""


def read_lines(path: Path, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """The first `limits.max_rows` lines of a text file that are not blank, decompressed. Raises DataError if the file cannot be
    read to its end."""
    text, damage = _decode_text(path.name, *_decompress(path.name, _read_bytes(path, limits), limits))
    if damage:
        raise DataError(f"{path.name}: {damage}.")
    return list(itertools.islice((line for line in split_lines(text) if line.strip()), limits.max_rows))


def uncompressed_name(path: Path) -> str:
    """The lower-case file name without .gz; its suffix determines the format."""
    return path.name.lower().removesuffix(".gz")


def _read_bytes(path: Path, limits: Limits) -> bytes:
    try:
        size = regular_file(path).stat().st_size
        if size > limits.max_bytes:
            raise DataError(f"{path.name} has {size:,} bytes, more than {limits.max_bytes:,}. Import it in parts.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path.name} cannot be read ({error.strerror or error}). Check the name, and that it is a file you may "
            "read."
        ) from error


def _decompress(name: str, content: bytes, limits: Limits) -> tuple[bytes, str]:
    """(decompressed bytes up to the first damage, message about the damage or "")."""
    if content[:2] != b"\x1f\x8b":
        return content, ""
    chunks, size = [], 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as gzip_file:
            while chunk := gzip_file.read1(1 << 20):
                chunks.append(chunk)
                size += len(chunk)
                if size > limits.max_bytes:
                    raise DataError(
                        f"{name} unpacks to more than {limits.max_bytes:,} bytes. Unpack it yourself and import it "
                        "in parts."
                    )
    except (EOFError, zlib.error, OSError) as error:
        return b"".join(chunks), f"the gzip stream is damaged here ({error}). Copy or download the file again"
    return b"".join(chunks), ""


def _decode_text(name: str, content: bytes, damage: str) -> tuple[str, str]:
    """(text up to the first damage, message about the damage or "")."""
    if content[:2] in UTF_16_BOMS:
        raise DataError(f"{name} is in UTF-16 from row 1 on. Save it as UTF-8 and import that.")
    try:
        return content.decode("utf-8-sig"), damage
    except UnicodeDecodeError as error:
        if damage and error.end >= len(content):  # decompression stopped within a character
            return content[: error.start].decode("utf-8-sig"), damage
        line_number = content.count(b"\n", 0, error.start) + 1
        bad_byte = f"byte 0x{content[error.start]:02x}"
        message = f"{bad_byte} in line {line_number} is not UTF-8. Save the file as UTF-8 and import that"
        complete_lines = content[: content.rfind(b"\n", 0, error.start) + 1]
        return complete_lines.decode("utf-8-sig") or "\n", message


def _append_damage_error(rows: RowStream, damage: str) -> RowStream:
    """The rows, then an error where the file breaks off. Row errors are dropped: the row at the break is incomplete."""
    if not damage:
        yield from rows
        return
    last_row_number = 0
    for row in rows:
        if isinstance(row, SourceRow):
            last_row_number = row.row_number
            yield row
    yield RowError(0, f"row {last_row_number + 1}", damage)


def _parse_text(name: str, text: str, answers: Collection[str]) -> RowStream:
    start = _skip_whitespace(text, 0)
    if name.endswith(CSV_SUFFIXES) or (text[start : start + 1] not in ("{", "[") and not name.endswith(JSON_SUFFIXES)):
        return _parse_csv(text)
    if _is_json_lines(text, start):
        return _parse_json_lines(text)
    if text[start] == "[":
        return _parse_json_values(text, start + 1)
    return _parse_json_objects(name, text, start, answers)


def _is_json_lines(text: str, start: int) -> bool:
    """Whether the first line is a JSON value and others follow. start: index of the first character."""
    line_end = text.find("\n", start)
    end = len(text) if line_end < 0 else line_end
    if text[start : start + 1] not in ("{", "["):
        return True
    if _skip_whitespace(text, end) == len(text):
        return False
    try:
        json.loads(text[start:end])
    except (ValueError, RecursionError):
        return False
    return True


def _json_problem(error: Exception) -> str:
    """Why JSON cannot be read, in words."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg.lower()
    if isinstance(error, RecursionError):
        return "brackets are nested too deeply"
    return "a number has too many digits" if "digits" in str(error) else "it holds a value that JSON does not have"


def _parse_json_objects(name: str, text: str, start: int, answers: Collection[str]) -> RowStream:
    """Rows of a file that is one object, or several that are spread over lines; of any other file its lines.

    One object is a row, or holds the rows: {"data": [row, …]}, {"0": row, …} or a table of pandas, or all values of each
    column: {"prompt": [text, …], …}.
    """
    decoder = UniqueNameDecoder()
    try:
        value, end = decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return _parse_json_lines(text)
    if _skip_whitespace(text, end) < len(text):
        return _parse_json_values(text, start, is_list=False)
    if name.endswith(".json") and (pos := _find_row_list(name, text, start, value, decoder.outer_name)) is not None:
        return _parse_json_values(text, pos)
    if error_message := decoder.repetition_error():
        return iter([RowError(1, "row 1 (line 1)", error_message)])
    has_rows = bool(value) and all(ROW_KEY.fullmatch(key) and isinstance(row, dict) for key, row in value.items())
    if has_rows and name.endswith(".json"):
        rows: Iterable[Any] = value.values()
    elif _is_split_table(value):
        rows = (dict(zip(value["columns"], cells, strict=True)) for cells in value["data"])
    elif "file=row" not in answers and (columns := _columns_of(name, value)):
        if name.endswith(JSON_LINES_SUFFIXES) and "\n" not in text.strip() and "file=columns" not in answers:
            raise ColumnMappingError(
                f"{name} is one object whose values are lists: {', '.join(columns)}.",
                answers=("file=row", "file=columns"),
                columns=columns,
            )
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    else:
        return iter([SourceRow(1, "row 1 (line 1)", value)])
    return (_make_row(number, f"row {number}", row) for number, row in enumerate(rows, 1))


def _is_split_table(value: dict[str, Any]) -> bool:
    """Whether an object is a table as pandas writes it with orient="split": {"columns": [name, …], "data": [[cell, …], …]}."""
    columns, data = value.get("columns"), value.get("data")
    if not isinstance(columns, list) or not isinstance(data, list) or set(value) - {"columns", "index", "data"}:
        return False
    has_names = all(isinstance(name, str) for name in columns) and len(set(columns)) == len(columns)
    return has_names and all(isinstance(cells, list) and len(cells) == len(columns) for cells in data)


def _columns_of(name: str, value: dict[str, Any]) -> dict[str, list[Any]]:
    """The columns of an object that holds a list, or an object with numbered keys, for each; {} for an object that is a row.

    Raises ColumnMappingError for an object that holds several lists of rows.
    """
    if splits := _find_splits(value):
        names = ", ".join(splits)[:200]
        raise ColumnMappingError(
            f"{name} holds several lists of rows: {names}. Save the one to import in its own file, unless they are one row.",
            answers=("file=row",),
            columns=splits,
        )
    is_numbered = all(
        isinstance(column, dict) and column and list(column) == [*map(str, range(len(column)))]
        for column in value.values()
    )
    columns = [list(column.values()) if is_numbered else column for column in value.values()]
    if len(columns) < 2 or not all(
        isinstance(column, list) and len(column) == len(columns[0]) > 0 for column in columns
    ):
        return {}
    is_conversation = all(read_cell(column).is_chat for column in columns) or any(
        name in CONVERSATION_KEYS and is_message(column[0]) for name, column in zip(value, columns, strict=True)
    )
    return {} if is_conversation and not is_numbered else dict(zip(value, columns, strict=True))


def _find_splits(value: dict[str, Any]) -> list[str]:
    """The names of several lists of rows: all that an object holds, or rows with two texts; [] if there are none."""
    lists = {
        name: item for name, item in value.items()
        if isinstance(item, list) and item and all(isinstance(row, dict) and not is_message(row) for row in item)
    }  # fmt: skip
    is_all = all(name in lists or item == [] for name, item in value.items())
    has_pairs = all(has_text_pair(rows[0], {}) for rows in lists.values())
    return list(lists) if len(lists) > 1 and (is_all or has_pairs) else []


def _parse_json_lines(text: str) -> RowStream:
    row_number = 0
    decoder = UniqueNameDecoder()
    for line_number, line_text in enumerate(split_lines(text), 1):
        if not line_text.strip():
            continue
        row_number += 1
        location = f"row {row_number} (line {line_number})"
        yield _parse_json_object(row_number, location, line_text, decoder)


def _parse_json_object(
    row_number: int, location: str, line_text: str, decoder: UniqueNameDecoder
) -> SourceRow | RowError:
    try:
        value = decoder.decode(line_text)
    except json.JSONDecodeError as error:
        return RowError(
            row_number, location, f"not JSON: {error.msg.lower()} at character {error.colno}. {_FIX_ROW_HINT}"
        )
    except (RecursionError, ValueError) as error:
        return RowError(row_number, location, f"not JSON that can be read: {_json_problem(error)}. {_FIX_ROW_HINT}")
    finally:
        error_message = decoder.repetition_error()
    return RowError(row_number, location, error_message) if error_message else _make_row(row_number, location, value)


_FIX_ROW_HINT = "Correct the row or take it out"


def _make_row(row_number: int, location: str, value: Any) -> SourceRow | RowError:
    if isinstance(value, dict):
        return SourceRow(row_number, location, value)
    type_name = {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
    return RowError(
        row_number, location, f'{type_name} where an object belongs. Write {{"prompt": …, "chosen": …, "rejected": …}}'
    )


def _find_row_list(name: str, text: str, start: int, value: dict[str, Any], repeated_name: str) -> int | None:
    """Index of the first row in {"data": [ … ]}; None if the object has not one such list. value: the decoded text from start."""
    list_keys = [key for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)]
    if list_keys and repeated_name:
        raise DataError(f'{name}: "{repeated_name[:40]}" occurs twice in an object. Keep one of them, or rename one.')
    if len(list_keys) == 1 and "chosen" not in value:
        return _value_start(text, start, list_keys[0]) + 1
    return None


def _value_start(text: str, start: int, key: str) -> int:
    """Index of the value of a key of the object at `start`, which is valid JSON and has the key."""
    decoder, pos = json.JSONDecoder(), start
    while True:
        name, pos = decoder.raw_decode(text, _skip_whitespace(text, pos + 1))  # after { or ,
        pos = _skip_whitespace(text, _skip_whitespace(text, pos) + 1)  # after :
        if name == key:
            return pos
        pos = _skip_whitespace(text, decoder.raw_decode(text, pos)[1])


def _parse_json_values(text: str, pos: int, is_list: bool = True) -> RowStream:
    """Decode value by value, so that an error has its row. pos: index of the first one; is_list: with commas and a ]."""
    decoder, row_number, line_number, counted_to = UniqueNameDecoder(), 0, 1, 0
    while True:
        pos = _skip_whitespace(text, pos)
        line_number, counted_to = line_number + text.count("\n", counted_to, pos), pos
        row_number += 1
        location = f"row {row_number} (line {line_number})"
        if text[pos : pos + 1] == ("]" if is_list else ""):
            return
        try:
            value, pos = decoder.raw_decode(text, pos)
        except (ValueError, RecursionError) as error:
            reason = f"not JSON: {_json_problem(error)}. The rows after it cannot be told apart"
            yield RowError(0, location, f"{reason}. {_FIX_ROW_HINT}")
            return
        error_message = decoder.repetition_error()
        yield RowError(row_number, location, error_message) if error_message else _make_row(row_number, location, value)
        pos = _skip_whitespace(text, pos)
        if text[pos : pos + 1] == "," and is_list:
            pos += 1
        elif text[pos : pos + 1] != "]" and is_list:
            yield RowError(
                0,
                f"row {row_number + 1}",
                "the list breaks off here: a comma or ] is missing. Copy or download the file again",
            )
            return


_WHITESPACE = re.compile(r"[ \t\r\n]*")


def _skip_whitespace(text: str, pos: int) -> int:
    match = _WHITESPACE.match(text, pos)
    return match.end() if match else pos


def _parse_csv(text: str) -> RowStream:
    csv.field_size_limit(2**31 - 1)
    separator_line = SEPARATOR_LINE.match(text)  # written for Excel
    header_line = next(
        (line for line in text.split("\n", MAX_TABLE_LINES) if line.strip() and not is_table_line([line])), ""
    )
    delimiter = separator_line[1] if separator_line else max(DELIMITERS, key=header_line.count)
    lines = io.StringIO(text, newline="")
    skipped_lines = text.count("\n", 0, separator_line.end()) if separator_line else 0
    is_table = delimiter == "|" and (
        header_line.strip().startswith("|") or any(is_table_line([line]) for line in text.split("\n", MAX_TABLE_LINES))
    )
    reader = csv.reader(
        itertools.islice(lines, skipped_lines, None), delimiter=delimiter, strict=True,
        quoting=csv.QUOTE_NONE if is_table else csv.QUOTE_MINIMAL,
    )  # fmt: skip
    header: list[str] | None = None
    row_number, line_number = 0, skipped_lines
    try:
        for line in reader:
            cells = line
            line_number, start_line = reader.line_num + skipped_lines, line_number + 1
            if not any(cell.strip() for cell in cells):
                continue
            if is_table:  # of Markdown, psql or MySQL, whose cells are padded
                is_framed = len(cells) > 2 and not cells[0].strip() and not cells[-1].strip()
                cells = [cell.strip() for cell in (cells[1:-1] if is_framed else cells)]
            if header is None and is_table_line(cells):
                continue
            if header is None:
                header = [cell.strip() or f"column_{number}" for number, cell in enumerate(cells, 1)]
                if header_error := _check_columns(header):
                    yield RowError(0, "header", header_error)
                    return
                continue
            row_number += 1
            location = f"row {row_number} (line {start_line})"
            if len(cells) != len(header) and (is_table_line(cells) or (is_table and ROW_COUNT.fullmatch(cells[0]))):
                yield LeftOut(row_number, location, TABLE_LINE)
                continue
            if len(cells) != len(header):
                message = (
                    f"{len(cells)} columns for {len(header)} in the header. Put texts with {delimiter!r} in quotes"
                )
                yield RowError(row_number, location, message)
                continue
            yield SourceRow(row_number, location, dict(zip(header, cells, strict=True)), strings_only=True)
    except csv.Error as error:
        message = f"not CSV ({error}). A quote inside a text is written twice; close every quote that was opened"
        yield RowError(0, f"row {row_number + 1} (line {line_number + 1})", message)


def _parse_parquet(content: bytes) -> RowStream:
    import pyarrow
    from pyarrow import parquet

    row_number = 0
    try:
        metadata = parquet.read_metadata(io.BytesIO(content))
        # The parts of a column with lists and structures count as columns.
        is_wide = metadata.num_columns > MAX_COLUMNS
        names = map(str, range(metadata.num_columns)) if is_wide else metadata.schema.to_arrow_schema().names
        if header_error := _check_columns(names):
            yield RowError(0, "header", header_error)
            return
        # In a thread of pyarrow, running out of memory would end the process.
        file = parquet.ParquetFile(io.BytesIO(content), pre_buffer=False)
        for batch in file.iter_batches(PARQUET_BATCH_ROWS, use_threads=False):
            for cells in batch.to_pylist():
                row_number += 1
                yield SourceRow(row_number, f"row {row_number}", cells)
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).split("\n", 1)[0][:120]
        yield RowError(
            0, f"row {row_number + 1}", f"the Parquet file is damaged here ({reason}). Copy or download it again"
        )
