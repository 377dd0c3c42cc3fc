"""Who has the page open now. Kept only in memory, because pages report every few seconds, also to a restarted server."""

import threading
import time

from typing_extensions import TypedDict

from rlhf_lab.common.records import Role
from rlhf_lab.store.annotators import names_without_numbers
from rlhf_lab.ui.context import Context

PRESENCE_TIMEOUT_S = 40.0  # a page that has not reported for this long counts as closed
MAX_NAMES = 10_000
SHOWN_NAMES_S = 3.0  # for how long they are reused


class PageVisitor(TypedDict):
    """The visitor whose page it is. name: "" if unknown."""

    name: str
    role: Role


class Presence:
    def __init__(self) -> None:
        self._last_seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def touch(self, name: str) -> None:
        with self._lock:
            if name in self._last_seen or len(self._last_seen) < MAX_NAMES:
                self._last_seen[name] = time.monotonic()

    def remove(self, name: str) -> None:
        with self._lock:
            self._last_seen.pop(name, None)

    def clear(self) -> None:
        with self._lock:
            self._last_seen.clear()

    def names(self) -> list[str]:
        """The names of those present, sorted."""
        now = time.monotonic()
        with self._lock:
            self._last_seen = {
                name: seen_at for name, seen_at in self._last_seen.items() if now - seen_at < PRESENCE_TIMEOUT_S
            }
            return sorted(self._last_seen)

    def count(self) -> int:
        return len(self.names())


PRESENCE = Presence()


def shown_names(ctx: Context) -> dict[str, str]:
    """By stored name, the names to show without a number that only sets them apart from people of other classes."""
    project = ctx.project.id
    return ctx.cache.get(
        ("shown names", project), SHOWN_NAMES_S, lambda: names_without_numbers(ctx.db, project, PRESENCE.names())
    )
