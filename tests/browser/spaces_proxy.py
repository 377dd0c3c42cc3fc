"""A TLS proxy like the one in front of a Space: https, and X-Forwarded-Proto. One request per connection."""

import asyncio
import datetime
import ssl
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def tls_context(folder: Path) -> ssl.SSLContext:
    """With a self-signed certificate."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    (folder / "cert.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


class TlsProxy:
    """Serves http://127.0.0.1:`upstream_port`/ at https://localhost:PORT/."""

    def __init__(self, upstream_port: int, folder: Path) -> None:
        self.upstream_port, self.ssl, self.port = upstream_port, tls_context(folder), 0
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.thread.start()
        assert self.ready.wait(30)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/"

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.ended.set)
        self.thread.join()

    async def _serve(self) -> None:
        self.loop, self.ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0, ssl=self.ssl)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await self.ended.wait()
        server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one request and its reply, which may be a stream."""
        target = None
        try:
            first, _, headers = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            forwarded = [
                line for line in headers.split(b"\r\n") if line and not line.lower().startswith(b"connection:")
            ]
            upstream, target = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            target.write(b"\r\n".join([first, *forwarded, b"X-Forwarded-Proto: https", b"Connection: close", b"", b""]))
            sent = asyncio.create_task(copy_stream(reader, target))
            await copy_stream(upstream, writer)
            sent.cancel()
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            for end in (target, writer):
                if end is not None:
                    end.transport.abort()


async def copy_stream(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(1 << 16):
        target.write(chunk)
        await target.drain()
