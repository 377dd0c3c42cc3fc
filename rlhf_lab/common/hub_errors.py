"""Errors of the Hub's client in one line, without the token, and waits that are too long for a person."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
#: The client itself waits as long as the Hub asks for, up to five times; longer waits are left to the person.
MAX_WAIT_S = 60.0


#: For all requests together of one act of a person, who waits for it. The client's timeouts are for each part of an answer.
DEADLINE_S = 60.0


class HubBusyError(Exception):
    """The Hub asks to wait for longer than MAX_WAIT_S. wait_s: how long."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"the Hub accepts no request for {wait_s:,.0f} seconds")
        self.wait_s = wait_s


class HubSlowError(Exception):
    """The Hub has not answered completely within DEADLINE_S."""

    def __init__(self) -> None:
        super().__init__(f"it has not answered completely within {DEADLINE_S:.0f} seconds")


def by_deadline(ask: Callable[[], T]) -> T:
    """The result of requests to the Hub, or their error; raises HubSlowError after DEADLINE_S. They then go on in their own
    thread until the Hub ends them, and what they bring is dropped."""
    outcome = Future[T]()

    def run() -> None:
        try:
            outcome.set_result(ask())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True, name="hub").start()
    try:
        return outcome.result(DEADLINE_S)
    except TimeoutError:
        if outcome.done():  # a timeout of the client
            return outcome.result()
        raise HubSlowError from None


def limit_waits(timeout_s: float | None = None) -> None:
    """Let the client raise HubBusyError instead of waiting for longer than MAX_WAIT_S, also when it has recreated its session, as
    after a connection error. timeout_s: for an answer; None: that of the client."""
    from huggingface_hub import get_session, set_client_factory
    from huggingface_hub.utils import _http

    factory = _http._GLOBAL_CLIENT_FACTORY
    if not isinstance(factory, _LimitedFactory) or factory.timeout_s != timeout_s:
        factory = _LimitedFactory(factory.factory if isinstance(factory, _LimitedFactory) else factory, timeout_s)
        set_client_factory(factory)
    factory.limit(get_session())


class _LimitedFactory:
    def __init__(self, factory: Callable[[], Any], timeout_s: float | None) -> None:
        self.factory, self.timeout_s = factory, timeout_s

    def __call__(self) -> Any:
        return self.limit(self.factory())

    def limit(self, session: Any) -> Any:
        if self.timeout_s is not None:
            session.timeout = self.timeout_s
        if _check_wait not in (hooks := session.event_hooks)["response"]:
            session.event_hooks = {**hooks, "response": [*hooks["response"], _check_wait]}
        return session


def _check_wait(response: Any) -> None:
    if response.status_code in (429, 503) and (wait_s := retry_after_s(response.headers)) > MAX_WAIT_S:
        raise HubBusyError(wait_s)


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Seconds from the headers Retry-After and RateLimit of a reply; 0 without them."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(headers)
    seconds = str(headers.get("Retry-After", ""))
    return float(max(int(seconds) if seconds.isdigit() else 0, limit.reset_in_seconds if limit else 0))


def first_line(error: BaseException, token: str | None) -> str:
    """The first 300 characters of the message's first line; the class of an error without a message."""
    line = (str(error).strip() or type(error).__name__).split("\n", 1)[0]
    return (line.replace(token, "…") if token else line)[:300]  # cut last: a part of the token would not be replaced
