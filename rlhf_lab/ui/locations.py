"""Leaves out of what visitors read where things are on the server: the paths of its folders and the addresses of its database.

In a message of an error, everything that looks like a path or an address is left out. Replies contain texts of people, so of
them only the locations of this lab are.
"""

import json
import logging
import re
from collections.abc import Collection
from urllib.parse import urlsplit

from rlhf_lab.common.text import cut_middle

log = logging.getLogger("rlhf_lab.ui.requests")
_REST = r"[^\s\"'`<>(),;]*[^\s\"'`<>(),;:.]"  # of an address, without the punctuation after it
_NAME = r"[^\s/\\\"'`<>(),;:]*[^\s/\\\"'`<>(),;:.]"
_ADDRESS = rf"\b\d{{1,3}}(?:\.\d{{1,3}}){{3}}\b|[A-Za-z][A-Za-z0-9+.-]{{0,30}}://{_REST}"
_PATH = rf"(?<![\w.~])(?:[/\\]{_NAME}){{2,}}[/\\]?|(?:~|\b[A-Za-z]:)(?:[/\\]{_NAME})+[/\\]?"
HIDDEN = "…"
#: Of a message that a page shows. It may repeat what was typed, which can have a million characters.
MAX_MESSAGE_CHARS = 2_000


def without_locations(message: str, known: Collection[str]) -> str:
    """A message without paths, addresses, and the known locations, which may contain spaces; then shortened, because a part of an
    address would not be recognised. The log gets the whole message."""
    hosts = [re.escape(host) for location in known if "://" in location and (host := urlsplit(location).hostname)]
    shown = re.sub("|".join(_known(known)) or "(?!)", HIDDEN, message)
    shown = re.sub("|".join([_ADDRESS, *hosts, _PATH]), HIDDEN, shown)
    if shown != message:
        log.warning("A visitor was shown an error without its locations: %s", message)
    return cut_middle(shown, MAX_MESSAGE_CHARS)


def without_known_locations(body: bytes, known: Collection[str]) -> bytes:
    """JSON without the known locations and what is in them."""
    escaped = [json.dumps(location, ensure_ascii=False)[1:-1] for location in known]
    pattern = "|".join(_known(escaped))
    return re.sub(pattern.encode(), HIDDEN.encode(), body) if pattern else body


def _known(locations: Collection[str]) -> list[str]:
    """Patterns, the longest location first. One of a single component, such as /data, may be a word of a text."""
    named = sorted({location.rstrip("/") for location in locations if location.count("/") > 1}, key=len, reverse=True)
    return [re.escape(location) + rf"(?![\w-]|\.\w)(?:[/\\]{_NAME})*" for location in named]
