"""A home as its operator wants to see it: where it is, what fills the disk, what the engine said last."""

import os
import shutil
from pathlib import Path
from typing import Any

TAIL_LINES = 60
TAIL_BYTES = 20_000
#: What of a home is counted together, by its first folder or the beginning of a file's name.
GROUPS = (
    ("labels and numbers (lab.db)", ("lab.db",)),
    ("runs", ("runs",)),
    ("reward models", ("reward_models",)),
    ("logs", ("engine.",)),
)


def about_home(home: Path) -> dict[str, Any]:
    """{"path", "used": [[what, bytes]], "free": bytes, "log": the engine's last lines}."""
    sizes = {what: 0 for what, _ in GROUPS} | {"other": 0}
    for folder, _, names in os.walk(home):
        for name in names:
            path = Path(folder) / name
            first = path.relative_to(home).parts[0]
            group = next((what for what, starts in GROUPS if first.startswith(starts)), "other")
            try:
                sizes[group] += path.stat().st_size
            except OSError:  # deleted this very moment
                continue
    return {
        "path": str(home),
        "used": [[what, size] for what, size in sizes.items() if size],
        "free": shutil.disk_usage(home).free,
        "log": tail(home / "engine.log") or tail(home / "engine.out"),
    }


def tail(path: Path) -> str:
    """The last lines of a log that may be large; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])
