"""Limits wrong join codes and passwords."""

import logging
import threading
import time
from collections import OrderedDict, deque

#: For one address, which is blocked afterwards. A class behind one router shares an address, so a few typos must be allowed.
MAX_FAILURES_PER_MINUTE = 30
#: For all addresses together: afterwards wrong codes are no longer answered, and a warning is logged.
MAX_TOTAL_FAILURES_PER_MINUTE = 600
MAX_COUNTED_ADDRESSES = 10_000

logger = logging.getLogger(__name__)


class FailedAttemptLimiter:
    """Counts failed attempts of the last minute, for each address and for all together.

    An address with too many failures is blocked, even with a correct code; otherwise it could continue guessing. Too many
    failures of all addresses together block nobody; otherwise an attacker with many addresses could lock everybody out.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()  # the address that failed last is the last
        self._total: deque[float] = deque(maxlen=MAX_TOTAL_FAILURES_PER_MINUTE)
        self._lock = threading.Lock()

    def is_blocked(self, address: str) -> bool:
        with self._lock:
            return _is_used_up(self._by_address.get(address))

    def record_failure(self, address: str) -> bool:
        """Returns whether all addresses together have failed too often."""
        with self._lock:
            now, was_used_up = time.monotonic(), _is_used_up(self._total)
            failures = self._by_address.setdefault(address, deque(maxlen=MAX_FAILURES_PER_MINUTE))
            self._by_address.move_to_end(address)
            if len(self._by_address) > MAX_COUNTED_ADDRESSES:
                self._by_address.popitem(last=False)
            failures.append(now)
            self._total.append(now)
            is_used_up = _is_used_up(self._total)
        if is_used_up and not was_used_up:
            logger.warning(
                "%d wrong %s within a minute: somebody may be guessing. Correct ones are still accepted.",
                MAX_TOTAL_FAILURES_PER_MINUTE, self._what,
            )  # fmt: skip
        return is_used_up


def _is_used_up(failures: "deque[float] | None") -> bool:
    return failures is not None and len(failures) == failures.maxlen and time.monotonic() - failures[0] < 60.0
