"""Where the lab is reached: by this computer alone, or by others in its network."""

import contextlib
import ipaddress
import socket
from urllib.parse import urlsplit

from rlhf_lab.errors import ConfigError

EVERYWHERE = ("0.0.0.0", "::")


def address_for_others(host: str, port: int) -> str:
    """The lab's address in its network; "" where it listens on this computer's own alone."""
    if is_loopback(host):
        return ""
    name = reached_at() if host in EVERYWHERE else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/"


def behind_proxy(said: str) -> str:
    """The address at which a proxy serves the lab, as a person says it, with a slash at its end. Raises ConfigError."""
    try:
        given = urlsplit(said.strip())
        odd = given.query or given.fragment or given.username or given.port == 0
    except ValueError:  # half an IPv6 address, no number for a port
        given, odd = urlsplit(""), True
    if odd or given.scheme not in ("http", "https") or not given.hostname:
        raise ConfigError(
            f"--url {said}: give the address that people open, such as https://lab.example.org/ or with a path."
        )
    return f"{given.scheme}://{given.netloc}{given.path.rstrip('/')}/"


def reached_at() -> str:
    """This computer's address in its network, as far as it knows; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches the address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
