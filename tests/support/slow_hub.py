"""A Hub whose answers never end: it sends one byte after the other, each well within the timeouts of the client."""

import socket
import threading
from contextlib import contextmanager

#: What it has sent before it becomes slow: nothing, a part of the head, or the head and a part of the body.
PARTS = {
    "head": b"HTTP/1.1 200 OK\r\nX-Padding: ",
    "body": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{",
}


@contextmanager
def slow_hub(part):
    """Its address."""
    ended = threading.Event()

    def drip(connection):
        with connection:
            try:
                connection.recv(10_000)
                connection.sendall(PARTS[part])
                while not ended.wait(0.05):
                    connection.sendall(b" ")
            except OSError:
                pass

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
