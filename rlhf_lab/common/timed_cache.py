"""Values that are reused for some seconds."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
MAX_ENTRIES = 64


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    computed_at: float | None = None
    value: Any = None


class TimedCache:
    """Computes a value once for all threads that ask for it, so that many polling pages cost no more than one."""

    def __init__(self) -> None:
        self._lock, self._entries = threading.Lock(), OrderedDict[Hashable, _Entry]()

    def get(self, key: Hashable, seconds: float, compute: Callable[[], T]) -> T:
        """The value of `compute` from at most `seconds` ago. An exception is not stored."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > MAX_ENTRIES:
                self._entries.popitem(last=False)
        with entry.lock:
            now = time.monotonic()
            if entry.computed_at is None or now - entry.computed_at > seconds:
                entry.value, entry.computed_at = compute(), now
            value: T = entry.value
            return value
