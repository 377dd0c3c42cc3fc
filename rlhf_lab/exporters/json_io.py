"""Values as text that any reader of JSON takes back unchanged, and names that mean something on another machine."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

#: Line ends to some readers of JSON Lines (str.splitlines), but not to JSON, which leaves them as they are.
_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}


def to_strict_json(value: Any) -> Any:
    """The value with NaN and infinities as None: strict JSON has neither."""
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
    """JSON Lines in UTF-8; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(
                json.dumps(to_strict_json(row), ensure_ascii=False, allow_nan=False).translate(_LINE_ENDS) + "\n"
            )
            count += 1
    return count


def portable_name(name: str) -> str:
    """A model's or a judge's name; of a path only its last part, which says enough and nothing about this machine.

    A Hub id ("owner/name") stays as it is.
    """
    windows_path = PureWindowsPath(name)
    if windows_path.drive or "\\" in name:
        return windows_path.name
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        return PurePosixPath(name).name
    return name
