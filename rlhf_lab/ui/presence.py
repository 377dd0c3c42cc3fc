"""Who has the page open now. Kept in memory: a server that starts again asks its pages, and they tell within seconds."""

import threading
import time

HERE_S = 40.0  # a page that said nothing for this long is gone
MOST = 10_000


class Presence:
    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._lock = threading.Lock()

    def touch(self, name: str) -> None:
        with self._lock:
            if name in self._seen or len(self._seen) < MOST:
                self._seen[name] = time.monotonic()

    def forget(self, name: str) -> None:
        with self._lock:
            self._seen.pop(name, None)

    def names(self) -> list[str]:
        """Who is here, by name."""
        now = time.monotonic()
        with self._lock:
            self._seen = {name: at for name, at in self._seen.items() if now - at < HERE_S}
            return sorted(self._seen)

    def count(self) -> int:
        return len(self.names())


PRESENCE = Presence()
