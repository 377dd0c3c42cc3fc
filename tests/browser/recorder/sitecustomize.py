"""Python imports this first in every process of a lab under test, which then writes what it must not do into a file.

RLHF_LAB_FREE_MEMORY: the bytes of memory that the machine seems to have free.

Every process: look up or reach another machine. The page's process: import what only the engine may. Each begins with a
line that says which it is, so that a recorder that never came to life is noticed.
"""

import os
import socket
import sys
from types import SimpleNamespace

RECORD, FREE = os.environ["RLHF_LAB_RECORD"], os.environ.get("RLHF_LAB_FREE_MEMORY")
IS_PAGE = "app.py" in sys.orig_argv
ENGINES_OWN = {"torch", "transformers", "peft"}
HERE = {"", "localhost", "0.0.0.0", "::", "::1", "None"}
#: Asked for this computer's own address in its network; nothing is sent (ui/network.py).
OWN_ADDRESS = ("192.0.2.1", 9)


def note(words: str) -> None:
    with open(RECORD, "a") as record:  # noqa: PTH123  a bare hook: nothing may be imported here
        record.write(f"{words}\n")


def is_elsewhere(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else str(host)
    return name not in HERE and not name.startswith("127.")


def hook(event: str, args: tuple) -> None:
    if event == "import":
        package = args[0].partition(".")[0]
        if IS_PAGE and package in ENGINES_OWN:
            note(f"the page imports {package}")
    elif event == "socket.connect":
        probe, address = args
        own = probe.type == socket.SOCK_DGRAM and address == OWN_ADDRESS
        if probe.family != socket.AF_UNIX and is_elsewhere(address[0]) and not own:
            note(f"{sys.orig_argv} connects to {address}")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname") and is_elsewhere(args[0]):
        note(f"{sys.orig_argv} looks up {args[0]}")


if FREE:
    import psutil

    psutil.virtual_memory = lambda: SimpleNamespace(available=int(FREE))
note("page" if IS_PAGE else "other")
sys.addaudithook(hook)
