"""Under which address the lab is reached, by this computer alone or by others in its network; reading requests."""

import contextlib
import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.requests import Request

from rlhf_lab.errors import ConfigError

WILDCARD_HOSTS = ("0.0.0.0", "::")


def network_url(host: str, port: int) -> str:
    """The lab's address in its network; "" where it listens on a loopback address."""
    if is_loopback(host):
        return ""
    hostname = lan_address() if host in WILDCARD_HOSTS else host
    return f"http://{f'[{hostname}]' if ':' in hostname else hostname}:{port}/"


def parse_proxy_url(url: str) -> str:
    """The address under which a proxy serves the lab, from what a person typed, with a slash at its end. Raises ConfigError."""
    try:
        parsed = urlsplit(url.strip())
        is_invalid = parsed.query or parsed.fragment or parsed.username or parsed.port == 0
    except ValueError:  # half an IPv6 address, no number for a port
        parsed, is_invalid = urlsplit(""), True
    if is_invalid or parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ConfigError(
            f"--url {url}: give the address that people open, such as https://lab.example.org/ or with a path."
        )
    return f"{parsed.scheme}://{parsed.netloc}{parsed.path.rstrip('/')}/"


def lan_address() -> str:
    """This computer's address in its network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def is_loopback(host: str) -> bool:
    """Whether the address is one that only this computer reaches."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


async def read_body(request: Request, max_bytes: int) -> bytes | None:
    """The body of a request; None where it is longer than max_bytes."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            return None
    return body
