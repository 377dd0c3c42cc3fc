"""How many connections the page's process has, how many of them one address, and how long one stays without a request.

Uvicorn would accept connections until the process may open no more files, and wait for the first request on each for ever: a few
hundred silent connections would keep everybody else out. A proxy in front of the lab is the client of all, so it has to limit
its own clients.
"""

import asyncio
import logging
from collections import Counter
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from rlhf_lab.ui.network import network_of

log = logging.getLogger("rlhf_lab.ui.connections")
#: Within which a connection sends the head of a request: the first one, and each after a response.
HEAD_S = 10.0
#: Within which a client takes a piece of a response (`middleware.PIECE_BYTES`).
READ_S = 60.0
#: More files than this are of no use; systems allow between 256 and millions.
MAX_OPEN_FILES = 8192
REFUSAL_MESSAGE = (
    "Too many connections to this lab are open, or too many from your network. Close other pages of the lab, or try again "
    "in a minute.\n"
)
REFUSAL = (
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 60\r\nConnection: close\r\n"
    f"Content-Length: {len(REFUSAL_MESSAGE)}\r\n\r\n{REFUSAL_MESSAGE}"
).encode()


class ConnectionLimits:
    """The open connections of all networks (`network_of`). Used by the thread that answers requests alone."""

    def __init__(self, most: int, most_of_network: int) -> None:
        self.most, self.most_of_network = most, most_of_network
        self._counts: Counter[str] = Counter()

    def take(self, network: str) -> bool:
        """Count a new connection; False, without counting it, if there are too many."""
        if self._counts.total() >= self.most or self._counts[network] >= self.most_of_network:
            return False
        self._counts[network] += 1
        return True

    def give_back(self, network: str) -> None:
        self._counts[network] -= 1
        if not self._counts[network]:
            del self._counts[network]


def limits_of(open_files: int, *, behind_proxy: bool) -> ConnectionLimits:
    """Half of the files that the process may open are left for the database and for files that are sent. One network has half of
    the connections at most: a class behind one router, and room for others."""
    most = open_files // 2
    return ConnectionLimits(most, most if behind_proxy else most // 2)


def raise_open_file_limit() -> int:
    """Let the process open as many files as the system allows it, up to MAX_OPEN_FILES. Returns how many it may."""
    try:
        import resource
    except ImportError:  # Windows, where files have no such limit
        return MAX_OPEN_FILES
    soft, hard = (
        MAX_OPEN_FILES if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft < (wanted := min(hard, MAX_OPEN_FILES)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        soft = wanted
    return soft


def limited_protocol(limits: ConnectionLimits) -> type[H11Protocol]:
    """Uvicorn's protocol with these limits."""
    return type("Protocol", (LimitedProtocol,), {"limits": limits})


class LimitedProtocol(H11Protocol):
    """One connection. network: None if it was refused."""

    limits: ClassVar[ConnectionLimits]
    network: str | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def _should_upgrade_to_ws(self) -> bool:
        """Never: the lab has no WebSockets, and one would be handed to a protocol that does not give the place back."""
        return False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        network = network_of(self.client[0]) if self.client else ""
        if self.limits.take(network):
            self.network = network
            self._watch_head()
            return
        log.warning("Connections are refused: too many are open, or too many from one network.")
        transport.write(REFUSAL)
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        if self.network is not None:
            self.limits.give_back(self.network)
            self.network = None

    def data_received(self, data: bytes) -> None:
        if self.network is not None:
            super().data_received(data)
            self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _watch_head(self) -> None:
        """Start the timer when no request of the connection is being answered. What arrives then does not restart it: a part of a
        head, or of the body of a request that was answered without it."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)
