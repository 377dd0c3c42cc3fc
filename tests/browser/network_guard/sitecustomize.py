"""Python imports this first in every process of a lab under test; it logs forbidden actions to the file RLHF_LAB_RECORD.

RLHF_LAB_FREE_MEMORY: bytes of free memory that psutil reports instead of the real ones.

Forbidden in every process: looking up or connecting to another machine. In the page's process: importing torch and the like.
Each process first logs what it is, so that a guard that did not start is detected.
"""

import os
import socket
import sys
from types import SimpleNamespace

RECORD, FREE = os.environ["RLHF_LAB_RECORD"], os.environ.get("RLHF_LAB_FREE_MEMORY")
IS_PAGE = "app.py" in sys.orig_argv
ENGINE_PACKAGES = {"torch", "transformers", "peft"}
LOCAL_HOSTS = {"", "localhost", "0.0.0.0", "::", "::1", "None"}
#: Finds this computer's own address in its network; nothing is sent (ui/network.py).
OWN_ADDRESS = ("192.0.2.1", 9)


def log(line: str) -> None:
    with open(RECORD, "a") as record:  # noqa: PTH123  the hook must not import anything
        record.write(f"{line}\n")


def is_elsewhere(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else str(host)
    return name not in LOCAL_HOSTS and not name.startswith("127.")


def hook(event: str, args: tuple) -> None:
    if event == "import":
        package = args[0].partition(".")[0]
        if IS_PAGE and package in ENGINE_PACKAGES:
            log(f"the page imports {package}")
    elif event == "socket.connect":
        sock, address = args
        is_own = sock.type == socket.SOCK_DGRAM and address == OWN_ADDRESS
        if sock.family != socket.AF_UNIX and is_elsewhere(address[0]) and not is_own:
            log(f"{sys.orig_argv} connects to {address}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and is_elsewhere(args[0]):
        log(f"{sys.orig_argv} looks up {args[0]}")


if FREE:
    import psutil

    psutil.virtual_memory = lambda: SimpleNamespace(available=int(FREE))
log("page" if IS_PAGE else "other")
sys.addaudithook(hook)
