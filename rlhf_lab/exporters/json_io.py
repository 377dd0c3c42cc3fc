"""Strict JSON and JSON Lines, and names of models and judges that are valid on other machines."""

import contextlib
import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, cast

#: From the beginning of a file; `datasets` takes the types of columns from the first 10 MB.
TYPED_BYTES = 5_000_000

#: Some readers of JSON Lines (str.splitlines) split lines at these characters, which JSON does not escape.
_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}


def to_strict_json(value: Any) -> Any:
    """The value with None for NaN and infinities, which strict JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_strict_json(item) for item in value]
    return value


def write_json(path: Path, value: Any) -> None:
    path.write_text(
        json.dumps(to_strict_json(value), ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]], *, compress: bool = False) -> int:
    """Write JSON Lines in UTF-8; returns the number of rows.

    JSON names no types: `datasets` takes them from the first 10 MB, and fails where a column has its first value later. Rows with
    such a value are written first.
    """
    known: set[str] = set()  # columns with a value so far
    late_lines: dict[int, bytes] = {}  # index -> line with the first value of a column
    size = count = 0
    with _open_binary(path, "wb", compress=compress) as file:
        for count, row in enumerate(rows, 1):
            values = to_strict_json(row)
            text = json.dumps(values, ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS) + "\n"
            line = text.encode()
            file.write(line)
            new = {name for name, value in values.items() if name not in known and _has_type(value)}
            if new and size > TYPED_BYTES:
                late_lines[count - 1] = line
            known |= new
            size += len(line)
    if late_lines:
        _move_to_front(path, late_lines, compress=compress)
    return count


def _has_type(value: Any) -> bool:
    """Whether a value says what its column holds."""
    return any(map(_has_type, value)) if isinstance(value, list) else value is not None


def _move_to_front(path: Path, lines: Mapping[int, bytes], *, compress: bool) -> None:
    """Move lines of a file, by index, to its beginning."""
    source_path = path.rename(path.with_name(f"{path.name}.unordered"))
    with (
        _open_binary(source_path, "rb", compress=compress) as source,
        _open_binary(path, "wb", compress=compress) as target,
    ):
        target.writelines(lines.values())
        target.writelines(line for index, line in enumerate(source) if index not in lines)
    source_path.unlink()


@contextlib.contextmanager
def _open_binary(path: Path, mode: str, *, compress: bool) -> Iterator[IO[bytes]]:
    """A file, or the content of a gzip file without a name and a time: the same bytes in every export."""
    with path.open(mode) as file:
        if not compress:
            yield file
            return
        with gzip.GzipFile(filename="", mode=mode, fileobj=file, mtime=0) as content:
            yield cast("IO[bytes]", content)


def portable_name(name: str) -> str:
    """A model's or judge's name for other machines: the last component of a path; Hub ids are unchanged."""
    windows_path = PureWindowsPath(name)
    if windows_path.drive or "\\" in name:
        return windows_path.name
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        return PurePosixPath(name).name
    return name
