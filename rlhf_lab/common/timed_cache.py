"""Values that are reused for some seconds."""

import math
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
    is_kept: bool  # it never expires, so others make room before it
    lock: threading.Lock = field(default_factory=threading.Lock)
    computed_at: float | None = None
    value: Any = None


class TimedCache:
    """Computes a value once for all threads that ask for it, so that many polling pages cost no more than one."""

    def __init__(self) -> None:
        self._lock, self._entries = threading.Lock(), OrderedDict[Hashable, _Entry]()

    def get(self, key: Hashable, seconds: float, compute: Callable[[], T]) -> T:
        """The value of `compute` from at most `seconds` ago. After an exception nothing is stored."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry(is_kept=math.isinf(seconds)))
            self._entries.move_to_end(key)
            if len(self._entries) > MAX_ENTRIES:
                oldest = next((other for other, its in self._entries.items() if not its.is_kept), key)
                del self._entries[oldest]
        with entry.lock:
            now = time.monotonic()
            if entry.computed_at is None or now - entry.computed_at > seconds:
                try:
                    entry.value, entry.computed_at = compute(), now
                except BaseException:
                    with self._lock:
                        if self._entries.get(key) is entry and entry.computed_at is None:
                            del self._entries[key]
                    raise
            value: T = entry.value
            return value
