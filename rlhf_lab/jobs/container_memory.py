"""The memory available to this process: the free memory of the machine, or less in a container with a limit. No torch.

psutil reports the memory of the host. A container, such as a Space, may be limited to a fraction of it, and a process that
exceeds the limit is killed. The limit is that of the process's control group or of one of its parents (cgroup version 1 or 2).
"""

from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
PROCESS_GROUPS = Path("/proc/self/cgroup")
#: Of each cgroup version: folder below the root, files with limit and usage, name of the cached file pages in memory.stat.
CGROUP_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes(cgroup_root: Path | None = None, process_groups: Path | None = None) -> int:
    """Free memory in bytes, at most what the container's limit leaves."""
    available = int(psutil.virtual_memory().available)
    return min([available, *_free_in_groups(cgroup_root or CGROUP_ROOT, process_groups or PROCESS_GROUPS)])


def _free_in_groups(cgroup_root: Path, process_groups: Path) -> list[int]:
    """Free bytes under the limit of each control group of the process; [] without limits. Cached file pages count as free."""
    free = []
    for folder, limit_file, usage_file, cached_name in CGROUP_FILES:
        for group in _groups(cgroup_root / folder, process_groups, is_v1=bool(folder)):
            limit, usage = _number(group / limit_file), _number(group / usage_file)
            if limit is not None and usage is not None:
                free.append(max(0, limit - usage + _cached_bytes(group / "memory.stat", cached_name)))
    return free


def _groups(root: Path, process_groups: Path, is_v1: bool) -> list[Path]:
    """The process's control group and its parents; a container often sees its own group as the root."""
    try:
        lines = process_groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") if is_v1 else number == "0":
            group = root / path.strip("/")
            return [group, *(parent for parent in group.parents if parent == root or root in parent.parents)]
    return [root]


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or if it contains "max"."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _cached_bytes(path: Path, name: str) -> int:
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return 0
    return sum(int(value) for key, value in (line for line in lines if len(line) == 2) if key == name)
