"""Network addresses: the lab's own, and the origin and body of a request."""

import contextlib
import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx2 as httpx
from starlette.requests import Request

from rlhf_lab.errors import ConfigError

#: "192.0.2.1:40000", "[2001:db8::1]:40000", "[2001:db8::1]".
PORT = re.compile(r"^(?:(\d+(?:\.\d+){3}):\d+|\[([^\]]*)\](?::\d+)?)$")
WILDCARD_HOSTS = ("0.0.0.0", "::")
CONTAINER_ENV_VAR = "RLHF_LAB_CONTAINER"
#: Files that Docker and Podman create in every container.
CONTAINER_MARKERS = (Path("/.dockerenv"), Path("/run/.containerenv"))


class RequestHeaders(Protocol):
    """Headers of a request by lower-case name, as Gradio and Starlette have them."""

    def get(self, key: str, /) -> str | None: ...


def in_container() -> bool:
    """Whether this process runs in a container, whose own address others cannot reach: they reach a port of its computer.

    RLHF_LAB_CONTAINER=0 denies it, for a container in the network of its computer; 1 states it.
    """
    if stated := os.environ.get(CONTAINER_ENV_VAR):
        return stated != "0"
    return any(marker.exists() for marker in CONTAINER_MARKERS)


def network_url(host: str, port: int) -> str:
    """The lab's address in its network; "" if it listens on a loopback address, or if only the container's is known."""
    if is_loopback(host) or (host in WILDCARD_HOSTS and in_container()):
        return ""
    hostname = lan_address() if host in WILDCARD_HOSTS else host
    return f"http://{f'[{hostname}]' if ':' in hostname else hostname}:{port}/"


def parse_proxy_url(url: str) -> str:
    """The address at which a proxy serves the lab, as typed by a person, with a slash at its end. Raises ConfigError."""
    try:
        parsed = urlsplit(url.strip())
        is_invalid = (
            parsed.query or parsed.fragment or parsed.username or parsed.port == 0 or not split_origin(url.strip())[1]
        )
    except ValueError:  # an incomplete IPv6 address, or a port that is not a number
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
    """The address without a port, which some proxies add, or for IPv6 its /64 network, which one machine or household shares.
    Other texts are returned unchanged."""
    try:
        ip = ipaddress.ip_address(PORT.sub(r"\1\2", address))
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower().removesuffix(".") == "localhost"


def is_foreign_origin(headers: RequestHeaders, public_url: str = "") -> bool:
    """Whether a page of another origin (scheme, name, port) sent a request. Browsers send the page's origin with its requests;
    programs, and links that a person opens, send none.

    public_url: the address at which a proxy serves the lab. Only its origin is then accepted, because the proxy may send any name
    as Host. On a Space, https with each of the Space's names is accepted. Elsewhere, http with the host of the request is.
    X-Forwarded-Host and X-Forwarded-Proto are ignored, because any page may send them.
    """
    origin = headers.get("origin")
    if not origin:
        return False
    own_urls = [public_url] if public_url else space_urls() or [f"http://{headers.get('host') or ''}"]
    scheme, host = split_origin(origin)
    return not host or (scheme, host) not in map(split_origin, own_urls)


def space_urls() -> list[str]:
    """The addresses of this Space; empty if the lab does not run on one."""
    return [f"https://{name.strip()}" for name in os.environ.get("SPACE_HOST", "").split(",") if name.strip()]


def split_origin(url: str) -> tuple[str, str]:
    """Scheme and host of a URL as browsers write them: in lower case and ASCII, with the port unless it is the scheme's default;
    "" for a missing part."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "", ""
    return parsed.scheme, parsed.netloc.decode("ascii")


async def read_body(request: Request, max_bytes: int) -> bytes | None:
    """The body of a request; None if it is longer than max_bytes."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            return None
    return body
