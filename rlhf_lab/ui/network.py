"""Under which address the lab is reached, by this computer alone or by others in its network; reading requests."""

import contextlib
import ipaddress
import os
import socket
from typing import Protocol
from urllib.parse import urlsplit

import httpx2 as httpx
from starlette.requests import Request

from rlhf_lab.errors import ConfigError

WILDCARD_HOSTS = ("0.0.0.0", "::")


class RequestHeaders(Protocol):
    """Headers of a request by lower-case name; Gradio's and Starlette's are such."""

    def get(self, key: str, /) -> str | None: ...


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
        is_invalid = (
            parsed.query or parsed.fragment or parsed.username or parsed.port == 0 or not split_origin(url.strip())[1]
        )
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


def network_of(address: str) -> str:
    """What one machine or household has: an IPv4 address, or the /64 network of an IPv6 address. Other texts as they are."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))


def is_loopback(host: str) -> bool:
    """Whether the address is one that only this computer reaches."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower().removesuffix(".") == "localhost"


def is_foreign_origin(headers: RequestHeaders, public_url: str = "") -> bool:
    """Whether a page of another origin (scheme, name, port) sent a request. Browsers state the origin of the page with whatever
    it sends; programs, and links that somebody opens, have none.

    public_url: where a proxy serves the lab; its origin is then the only own one, because the proxy may send any name as Host.
    On a Space those are https and each of its names. Elsewhere it is http, which the lab speaks, and the host that the browser
    asked for. X-Forwarded-Host and X-Forwarded-Proto do not count: any page may send them.
    """
    origin = headers.get("origin")
    if not origin:
        return False
    own_urls = [public_url] if public_url else space_urls() or [f"http://{headers.get('host') or ''}"]
    scheme, host = split_origin(origin)
    return not host or (scheme, host) not in map(split_origin, own_urls)


def space_urls() -> list[str]:
    """The addresses of the Space that this is; none elsewhere."""
    return [f"https://{name.strip()}" for name in os.environ.get("SPACE_HOST", "").split(",") if name.strip()]


def split_origin(url: str) -> tuple[str, str]:
    """Scheme and host of a URL as browsers write them: in lower case and ASCII, with a port that is not the scheme's usual one;
    "" where there is none."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "", ""
    return parsed.scheme, parsed.netloc.decode("ascii")


async def read_body(request: Request, max_bytes: int) -> bytes | None:
    """The body of a request; None where it is longer than max_bytes."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            return None
    return body
