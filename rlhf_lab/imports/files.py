"""Rows of a local file: JSON Lines, JSON, CSV (also with ; or tabs), Parquet, each also as .gz where that is usual.

Read by Python's own readers and not by `datasets`, whose errors do not say which row they are about.
"""

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_lab.errors import DataError
from rlhf_lab.imports.found import USUAL, Limits, Problem, Row

Rows = Iterator[Row | Problem]
CSV_KINDS = (".csv", ".tsv", ".tab")
DELIMITERS = ",;\t|"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read_rows(path: Path, limits: Limits = USUAL) -> tuple[str, Rows]:
    """(SHA-256 of the file, its rows and what is wrong with them in order). DataError: no row of it can be read."""
    content = _content(path, limits)
    digest = hashlib.sha256(content).hexdigest()
    if content[:4] == b"PAR1":
        return digest, _parquet(path.name, content, limits)
    if plain_name(path).endswith(".parquet"):
        raise DataError(f"{path.name} is not a Parquet file: it does not begin as one. Copy or download it again.")
    if content[:2] == b"PK":
        raise DataError(
            f"{path.name} is a zip archive or a spreadsheet. Unpack it, or save the sheet as CSV, and import that."
        )
    name = plain_name(path)
    plain, cut = _unpacked(path.name, content, limits)
    if b"\0" in plain[:1000] and plain[:2] not in UTF_16:
        raise DataError(
            f"{path.name} holds no text but something else. Choose a CSV, JSON, JSON Lines or Parquet file."
        )
    text, cut = _text(path.name, plain, cut)
    if not text.strip() and not cut:
        raise DataError(f"{path.name} is empty: there is no row 1. Choose the file that holds the preferences.")
    return digest, _with_cut(_text_rows(name, text), cut)


def read_lines(path: Path, limits: Limits = USUAL) -> list[str]:
    """The lines of a text, unpacked. DataError: it cannot be read to its end."""
    text, cut = _text(path.name, *_unpacked(path.name, _content(path, limits), limits))
    if cut:
        raise DataError(f"{path.name}: {cut}.")
    return text.splitlines()


def plain_name(path: Path) -> str:
    """The name that tells what a file holds, packed or not, in whatever letters."""
    return path.name.lower().removesuffix(".gz")


def _content(path: Path, limits: Limits) -> bytes:
    try:
        size = path.stat().st_size
        if size > limits.bytes:
            raise DataError(f"{path.name} has {size:,} bytes, more than {limits.bytes:,}. Import it in parts.")
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path.name} cannot be read ({error.strerror or error}). Check the name, and that it is a file you may read."
        ) from error


def _unpacked(name: str, content: bytes, limits: Limits) -> tuple[bytes, str]:
    """The bytes behind gzip, as far as they go, and what is wrong after them."""
    if content[:2] != b"\x1f\x8b":
        return content, ""
    parts, size = [], 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            while part := packed.read1(1 << 20):
                parts.append(part)
                size += len(part)
                if size > limits.bytes:
                    raise DataError(
                        f"{name} unpacks to more than {limits.bytes:,} bytes. Unpack it yourself and import it in parts."
                    )
    except (EOFError, zlib.error, OSError) as error:
        return b"".join(parts), f"the gzip stream is damaged here ({error}). Copy or download the file again"
    return b"".join(parts), ""


def _text(name: str, content: bytes, cut: str) -> tuple[str, str]:
    """The characters, as far as they can be read, and what is wrong after them."""
    if content[:2] in UTF_16:
        raise DataError(f"{name} is in UTF-16 from row 1 on. Save it as UTF-8 and import that.")
    try:
        return content.decode("utf-8-sig"), cut
    except UnicodeDecodeError as error:
        if cut and error.end >= len(content):  # the unpacking broke within a character
            return content[: error.start].decode("utf-8-sig"), cut
        line = content.count(b"\n", 0, error.start) + 1
        place = f"byte 0x{content[error.start]:02x}"
        words = f"{place} in line {line} is not UTF-8. Save the file as UTF-8 and import that"
        whole = content[: content.rfind(b"\n", 0, error.start) + 1]
        return whole.decode("utf-8-sig") or "\n", words


def _with_cut(rows: Rows, cut: str) -> Rows:
    """The rows, and after them where the file breaks off; the row at the break is half a row and is not told of."""
    if not cut:
        yield from rows
        return
    last = 0
    for row in rows:
        if isinstance(row, Row):
            last = row.number
            yield row
    yield Problem(0, f"row {last + 1}", cut)


def _text_rows(name: str, text: str) -> Rows:
    start = text.lstrip()[:1]
    if name.endswith(CSV_KINDS) or (start not in ("{", "[") and not name.endswith((".json", ".jsonl", ".ndjson"))):
        return _csv(text)
    if start == "[" and not name.endswith((".jsonl", ".ndjson")):
        return _array(text, text.index("[") + 1)
    if name.endswith(".json") and (at := _list_inside(text)) is not None:
        return _array(text, at)
    return _lines(text)


def _lines(text: str) -> Rows:
    number = 0
    for line, words in enumerate(text.split("\n"), 1):
        if not words.strip():
            continue
        number += 1
        yield _object(number, f"row {number} (line {line})", words)


def _object(number: int, where: str, words: str) -> Row | Problem:
    try:
        value = json.loads(words)
    except json.JSONDecodeError as error:
        return Problem(number, where, f"not JSON: {error.msg.lower()} at character {error.colno}. {_MEND}")
    except (RecursionError, ValueError) as error:
        return Problem(number, where, f"not JSON that can be read ({type(error).__name__}). {_MEND}")
    return _row(number, where, value)


_MEND = "Mend the row or take it out"


def _row(number: int, where: str, value: Any) -> Row | Problem:
    if isinstance(value, dict):
        return Row(number, where, value)
    kind = {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
    return Problem(number, where, f'{kind} where an object belongs. Write {{"prompt": …, "chosen": …, "rejected": …}}')


def _list_inside(text: str) -> int | None:
    """Where the rows begin in {"data": [ … ]}, or None: one object, or JSON Lines under the name .json."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict):
        lists = [name for name, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)]
        if len(lists) == 1 and "chosen" not in value:
            at = text.find(json.dumps(lists[0], ensure_ascii=False))
            return text.index("[", at) + 1 if at >= 0 else None  # a name that is written with escapes is not looked for
    return None


def _array(text: str, at: int) -> Rows:
    """Item by item, so that a mistake is known by its row."""
    decoder, number, line, counted = json.JSONDecoder(), 0, 1, 0
    while True:
        at = _past_space(text, at)
        line, counted = line + text.count("\n", counted, at), at
        number += 1
        where = f"row {number} (line {line})"
        if text[at : at + 1] == "]":
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            said = error.msg.lower() if isinstance(error, json.JSONDecodeError) else type(error).__name__
            yield Problem(0, where, f"not JSON: {said}. The rows after it cannot be told apart. {_MEND}")
            return
        yield _row(number, where, value)
        at = _past_space(text, at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "]":
            yield Problem(
                0,
                f"row {number + 1}",
                "the list breaks off here: a comma or ] is missing. Copy or download the file again",
            )
            return


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _csv(text: str) -> Rows:
    csv.field_size_limit(2**31 - 1)
    head = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    number = line = 0
    try:
        for cells in reader:
            line, begun = reader.line_num, line + 1
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                if problem := _header_problem(header):
                    yield Problem(0, "header", problem)
                    return
                continue
            number += 1
            where = f"row {number} (line {begun})"
            if len(cells) != len(header):
                yield Problem(
                    number, where,
                    f"{len(cells)} columns for {len(header)} in the header. Put texts with {delimiter!r} in quotes",
                )  # fmt: skip
                continue
            yield Row(number, where, dict(zip(header, cells, strict=True)), texts_only=True)
    except csv.Error as error:
        words = f"not CSV ({error}). A quote inside a text is written twice; close every quote that was opened"
        yield Problem(0, f"row {number + 1} (line {line + 1})", words)


def _header_problem(header: list[str]) -> str:
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        return f"two columns are called {twice[0]!r}. Rename one in row 1 of the file"
    return ""


def _parquet(name: str, content: bytes, limits: Limits) -> Rows:
    import pyarrow
    from pyarrow import parquet

    number = size = 0
    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        for batch in file.iter_batches(batch_size=200):
            size += batch.nbytes
            if size > limits.bytes:
                raise DataError(f"{name} unpacks to more than {limits.bytes:,} bytes. Import it in parts.")
            for columns in batch.to_pylist():
                number += 1
                yield Row(number, f"row {number}", columns)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        said = str(error).split("\n", 1)[0][:120]
        yield Problem(0, f"row {number + 1}", f"the Parquet file is damaged here ({said}). Copy or download it again")
