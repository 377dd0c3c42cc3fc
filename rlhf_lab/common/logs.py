"""Protects logs against forged lines and floods: one line per message, no control characters, no frequent repetitions."""

import codecs
import copy
import logging
import sys
import threading
import time
from typing import Any

from rlhf_lab.common.text import cut_middle

#: The same message is logged at most once in this many seconds.
REPEAT_INTERVAL_S = 60.0
MAX_REMEMBERED_MESSAGES = 200
#: Of a line: an error of others may have megabytes.
MAX_LINE_CHARS = 2000
#: Looked up now, because that opens a file, which fails when too many connections are open, and just that has to be logged.
_ESCAPE = codecs.lookup("unicode_escape").encode


def escape_unprintable(text: str) -> str:
    r"""Replace line breaks, terminal escapes and invisible characters by Python's escapes, such as "\n" and "\x1b"."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _ESCAPE(c)[0].decode() for c in text)


class OneLineFormatter(logging.Formatter):
    """Escapes line breaks in messages, so that names, texts and paths cannot start a new line. Tracebacks are indented."""

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)
        record.msg, record.args = escape_unprintable(cut_middle(record.getMessage().rstrip(), MAX_LINE_CHARS)), ()
        record.exc_text = None  # may be cached by another formatter
        return super().format(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  the name is logging's
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"    {escape_unprintable(cut_middle(line, MAX_LINE_CHARS))}" for line in lines)


class RepeatFilter(logging.Filter):
    """Drops messages that were logged less than REPEAT_INTERVAL_S ago: a failure every second gives one line per minute."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._logged_at: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.name, cut_middle(record.getMessage(), MAX_LINE_CHARS)), time.monotonic()
        with self._lock:
            if now - self._logged_at.get(key, -REPEAT_INTERVAL_S) < REPEAT_INTERVAL_S:
                return False
            self._logged_at.pop(key, None)
            self._logged_at[key] = now
            if len(self._logged_at) > MAX_REMEMBERED_MESSAGES:
                del self._logged_at[next(iter(self._logged_at))]
        return True


def log_to_stderr() -> None:
    """Log warnings and errors of this process, including those of libraries, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter("%(message)s"))
    handler.addFilter(RepeatFilter())
    logging.getLogger().addHandler(handler)


def make_handlers_safe(logger_name: str) -> None:
    """Apply the same formatter and filter to the handlers that a library added to its own logger."""
    for handler in logging.getLogger(logger_name).handlers:
        handler.setFormatter(OneLineFormatter("%(levelname)s: %(message)s"))
        handler.addFilter(RepeatFilter())
