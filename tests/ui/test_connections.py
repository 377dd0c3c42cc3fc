"""Limits of connections, on a real server: how many there are, how many of one address, and how long one may be silent."""

import contextlib
import http.client
import resource
import socket
import subprocess
import sys
import threading
import time

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from rlhf_lab.ui import connections
from rlhf_lab.ui.connections import ConnectionLimits, LimitedProtocol, limited_protocol, limits_of
from rlhf_lab.ui.middleware import PIECE_BYTES, BodyPieces

LONG = 20_000_000
REQUEST = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n"
#: macOS has only the first address of the loopback network.
several_addresses = pytest.mark.skipif(sys.platform != "linux", reason="uses several loopback addresses")


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"got {len(await request.body())}")


async def long(request: Request) -> PlainTextResponse:
    return PlainTextResponse("x" * LONG)


@pytest.fixture
def serve(monkeypatch):
    """serve(limits, head_s): a server; returns its port."""
    running = []

    def start(limits, head_s=30.0, read_s=30.0):
        monkeypatch.setattr(connections, "HEAD_S", head_s)
        monkeypatch.setattr(connections, "READ_S", read_s)
        routes = [Route("/", hello, methods=["GET", "POST"]), Route("/long", long)]
        app = Starlette(routes=routes, middleware=[Middleware(BodyPieces)])
        config = uvicorn.Config(app, port=0, http=limited_protocol(limits), log_level="warning", timeout_keep_alive=30)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        running.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return server.servers[0].sockets[0].getsockname()[1]

    yield start
    for server, thread in running:
        server.should_exit = server.force_exit = True
        thread.join(10)


@pytest.fixture
def connect():
    """connect(port, address): a connection from this address of this computer."""
    with contextlib.ExitStack() as opened:
        yield lambda port, address="127.0.0.1": opened.enter_context(
            socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(address, 0))
        )


def answer(connection, request=REQUEST):
    """The status of a response, which is read to its end."""
    connection.sendall(request)
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


def until(condition):
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


@several_addresses
def test_silent_connections_of_one_address_keep_nobody_else_out(serve, connect):
    limits = ConnectionLimits(10, 5)
    port = serve(limits)
    silent = [connect(port) for _ in range(8)]
    until(lambda: limits._counts.total() == 5)
    assert b"503" in silent[5].recv(1000)
    assert b"Connection: close" in silent[6].recv(1000)
    others = [connect(port, f"127.0.0.{2 + i}") for i in range(5)]
    assert [answer(other) for other in others] == [200] * 5
    with contextlib.suppress(ConnectionError):  # the eleventh; it may be reset while it sends
        assert answer(connect(port, "127.0.0.9")) == 503
    for connection in silent:
        connection.close()
    until(lambda: limits._counts.total() == 5)
    assert answer(connect(port)) == 200


def test_places_are_given_back(serve, connect):
    limits = ConnectionLimits(4, 2)
    port = serve(limits)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            assert answer(connection) == 200
        until(lambda: not limits._counts)


@pytest.mark.parametrize("part", [b"", b"G", REQUEST[:-2]])
def test_a_connection_without_a_whole_head_ends(serve, connect, part):
    connection = connect(serve(ConnectionLimits(4, 2), head_s=0.2))
    connection.sendall(part)
    assert connection.recv(1000) == b""


def test_one_character_after_the_other_does_not_keep_it_open(serve, connect):
    connection = connect(serve(ConnectionLimits(4, 2), head_s=0.3))

    def send_slowly():
        for _ in range(3000):
            connection.sendall(b"G")
            time.sleep(0.01)

    with pytest.raises(ConnectionError):
        send_slowly()


def test_a_second_request_has_the_same_time_and_a_slow_body_is_read(serve, connect):
    limits = ConnectionLimits(4, 2)
    port = serve(limits, head_s=0.3)
    connection = connect(port)
    assert answer(connection) == 200
    connection.sendall(b"POST / HTTP/1.1\r\nHost: lab\r\nContent-Length: 2\r\n\r\n")
    time.sleep(0.6)  # longer than a head may take
    assert answer(connection, b"ab") == 200
    connection.sendall(REQUEST[:20])
    assert connection.recv(1000) == b""
    until(lambda: not limits._counts)


@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_body_that_nobody_reads_does_not_keep_it_open(serve, connect, framing):
    """The response comes before the body, of which one part follows."""
    limits = ConnectionLimits(4, 2)
    connection = connect(serve(limits, head_s=0.3))
    assert answer(connection, f"GET /unknown HTTP/1.1\r\nHost: lab\r\n{framing}\r\n\r\n".encode()) == 404
    connection.sendall(b"1")
    connection.settimeout(5)
    assert connection.recv(1000) == b""
    until(lambda: not limits._counts)


def test_a_response_that_nobody_reads_is_not_kept(serve, connect, monkeypatch):
    """The server keeps a piece of it, and closes the connection in the end."""
    limits, kept, pause = ConnectionLimits(4, 2), [], LimitedProtocol.pause_writing

    def pause_writing(protocol):
        kept.append(protocol.transport.get_write_buffer_size())
        pause(protocol)

    monkeypatch.setattr(LimitedProtocol, "pause_writing", pause_writing)
    connection = connect(serve(limits, read_s=0.5))
    connection.sendall(b"GET /long HTTP/1.1\r\nHost: lab\r\n\r\n")
    until(lambda: kept)
    until(lambda: not limits._counts)
    assert max(kept) <= 3 * PIECE_BYTES


def test_a_response_that_is_read_slowly_is_whole(serve, connect):
    connection = connect(serve(ConnectionLimits(4, 2), read_s=1.0))
    connection.sendall(b"GET /long HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")
    count, began = 0, time.monotonic()
    while part := connection.recv(1_000_000):
        count += len(part)
        time.sleep(max(0.0, 1.5 * count / LONG - (time.monotonic() - began)))
    assert count > LONG
    assert time.monotonic() - began > 1.4


def test_a_proxy_may_have_all_connections_and_a_network_half():
    assert (limits_of(256, behind_proxy=False).most, limits_of(256, behind_proxy=False).most_of_network) == (128, 64)
    assert (limits_of(256, behind_proxy=True).most, limits_of(256, behind_proxy=True).most_of_network) == (128, 128)
    six = limited_protocol(ConnectionLimits(1, 1)).limits
    assert (six.take("2001:db8::/64"), six.take("2001:db8::/64")) == (True, False)


@pytest.mark.parametrize(("soft", "hard", "expected"), [(256, 256, 256), (256, 512, 512), (600, 20_000, 8192)])
def test_the_process_may_open_as_many_files_as_the_system_allows(soft, hard, expected):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("this system allows fewer files")
    code = (
        f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from rlhf_lab.ui.connections import raise_open_file_limit\n"
        "print(raise_open_file_limit(), *r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(expected), str(expected), str(hard)]
