"""Strict JSON and JSON Lines, and names of models and judges that are valid on other machines."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TextIO

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


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write JSON Lines in UTF-8; returns the number of rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        return dump_json_lines(file, rows)


def dump_json_lines(file: TextIO, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write JSON Lines to a file that does not translate line ends; returns the number of rows."""
    count = 0
    for row in rows:
        file.write(json.dumps(to_strict_json(row), ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS) + "\n")
        count += 1
    return count


def portable_name(name: str) -> str:
    """A model's or judge's name for other machines: the last component of a path; Hub ids are unchanged."""
    windows_path = PureWindowsPath(name)
    if windows_path.drive or "\\" in name:
        return windows_path.name
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        return PurePosixPath(name).name
    return name
