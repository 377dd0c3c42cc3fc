"""Errors of the Hub's client in one line, without the token, and waits that are too long for a person."""

from collections.abc import Mapping
from typing import Any

#: The client itself waits as long as the Hub asks for, up to five times; longer waits are left to the person.
MAX_WAIT_S = 60.0


class HubBusyError(Exception):
    """The Hub asks to wait for longer than MAX_WAIT_S. wait_s: how long."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"the Hub accepts no request for {wait_s:,.0f} seconds")
        self.wait_s = wait_s


def refuse_long_waits(session: Any) -> None:
    """Let the client's session raise HubBusyError instead of waiting for longer than MAX_WAIT_S."""
    if _check_wait not in (hooks := session.event_hooks)["response"]:
        session.event_hooks = {**hooks, "response": [*hooks["response"], _check_wait]}


def _check_wait(response: Any) -> None:
    if response.status_code in (429, 503) and (wait_s := retry_after_s(response.headers)) > MAX_WAIT_S:
        raise HubBusyError(wait_s)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds from the headers Retry-After and RateLimit of a reply; 0 without them."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]  # exported lazily

    limit = parse_ratelimit_headers(headers)
    seconds = str(headers.get("Retry-After", ""))
    return float(max(int(seconds) if seconds.isdigit() else 0, limit.reset_in_seconds if limit else 0))


def first_line(error: BaseException, token: str | None) -> str:
    """The first 300 characters of the message's first line; the class of an error without a message."""
    line = (str(error).strip() or type(error).__name__).split("\n", 1)[0]
    return (line.replace(token, "…") if token else line)[:300]  # cut last: a part of the token would not be replaced
