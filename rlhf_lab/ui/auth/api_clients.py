"""Binds the annotator names of API programs to the clients that use them."""

import threading
import time
from typing import Literal

from rlhf_lab.common.person_names import latin_spelling, lookalike_keys, mixed_scripts, normalize_name
from rlhf_lab.errors import LabelError, NotAllowedError
from rlhf_lab.ui.auth.visitors import JoinCode, is_join_code

MAX_TOOL_NAME_LENGTH = 50
NAME_IDLE_S = 600
#: Names of programs of one address: each gets a pair, and the engine writes pairs ahead for it.
MAX_NAMES_OF_ADDRESS = 40

#: What identifies a client: the "name" in its cookie, else the "session" that it chose, else its "address". The kind is part of
#: the key, because a program may choose any session, also one that looks like a name or an address.
Client = tuple[Literal["name", "session", "address"], str]


class ApiClients:
    """A name, and all names that look like it, belong to the client that first used it, until that client has made no call for
    NAME_IDLE_S seconds or the page's process is restarted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # look-alike key of a name -> (client, time of its last call, its name and address)
        self._owners: dict[str, tuple[Client, float, tuple[str, str]]] = {}

    def check_code(self, code: str, join_code: JoinCode, address: str) -> None:
        """Raises NotAllowedError for another code than the lab's join code, and after too many wrong ones."""
        if join_code.failures.is_blocked(address):
            raise NotAllowedError("Too many wrong codes in the last minute. Wait a minute and try again.")
        if not is_join_code(code, join_code.value):
            join_code.failures.record_failure(address)
            raise NotAllowedError("Labelling needs the lab's join code here: give it as `code`.")

    def bind_name(self, name: str, client: Client, address: str = "") -> str:
        """Bind a name to a client; returns the normalized name. address: of the client; "" if there is no limit of its names.

        Raises LabelError for an invalid name, NotAllowedError for a name that another client uses or that looks like one, and if
        the address has too many names.
        """
        name = normalize_name(name)
        if (
            not 1 <= len(name) <= MAX_TOOL_NAME_LENGTH
            or not name.isprintable()
            or latin_spelling(name).casefold().startswith(("api:", "judge:"))
        ):
            raise LabelError(
                f"Pass the name of the annotator: `name`, 1 to {MAX_TOOL_NAME_LENGTH} characters, without api: or judge:."
            )
        if scripts := mixed_scripts(name):
            raise LabelError(
                f"A word of `name` mixes letters of several alphabets ({', '.join(scripts)}). Write each word in one "
                "alphabet."
            )
        now, keys = time.monotonic(), lookalike_keys(name)
        with self._lock:
            for key, (_, called_at, _) in list(self._owners.items()):
                if now - called_at > NAME_IDLE_S:
                    del self._owners[key]
            if any(key in self._owners and self._owners[key][0] != client for key in keys):
                raise NotAllowedError(
                    f'Another client uses the name "{name}", or one that looks like it. Choose another one; this one is free '
                    f"again when its client has called nothing for {NAME_IDLE_S // 60} minutes."
                )
            others = {owner for _, _, owner in self._owners.values() if owner[1] == address} - {(name, address)}
            if address and len(others) >= MAX_NAMES_OF_ADDRESS:
                raise NotAllowedError(
                    f"Programs of your network already use {MAX_NAMES_OF_ADDRESS} names. Use one of them, or try again when a "
                    f"name has not been used for {NAME_IDLE_S // 60} minutes."
                )
            self._owners.update(dict.fromkeys(keys, (client, now, (name, address))))
        return name
