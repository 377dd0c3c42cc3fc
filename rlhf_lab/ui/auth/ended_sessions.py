"""Sessions that were ended by logging out: a copied cookie of such a session is not accepted."""

import json
import math
import threading
import time
from pathlib import Path

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.errors import StoreError

#: Log-outs of one name that are listed individually while their cookies are valid. The next one ends all sessions of the name.
MAX_SESSIONS_OF_NAME = 100


class EndedSessions:
    """When sessions ended, kept in a file until their cookies expire. Only people who have logged in can add one, so the list has
    at most MAX_SESSIONS_OF_NAME entries for each person, account and line of the password file.

    path: the file; None keeps them in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
        #: By "SESSION NAME"; by "* NAME" for all sessions of a name until then; by "SESSION" if an earlier version wrote it.
        self._ended_at: dict[str, float] = {}
        if path is None or not path.exists():
            return
        try:
            self._ended_at = {str(session): float(at) for session, at in json.loads(path.read_text("utf-8")).items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise StoreError(
                f"{path} cannot be used ({error}). It lists who logged out. Delete it together with access.json in "
                "the same folder: everybody has to log in again."
            ) from error

    def has(self, session: str, name: str, signed_at: float) -> bool:
        """Whether a session has ended. signed_at: when its cookie was signed, in seconds since 1970."""
        ended_at = self._ended_at
        is_listed = f"{session} {name}" in ended_at or session in ended_at
        return is_listed or signed_at <= ended_at.get(f"* {name}", -math.inf)

    def add(self, session: str, name: str, max_age_s: float) -> None:
        """End a session of a name. max_age_s: the lifetime of a cookie, after which a session need not be listed.

        Raises StoreError if the file cannot be written; the session is then ended only until the lab is restarted.
        """
        with self._lock:
            now = time.time()
            unexpired = {key: at for key, at in self._ended_at.items() if now - at <= max_age_s}
            same_name = {key for key in unexpired if key.partition(" ")[2] == name}
            if len(same_name | {f"{session} {name}"}) > MAX_SESSIONS_OF_NAME:
                session, unexpired = "*", {key: at for key, at in unexpired.items() if key not in same_name}
            self._ended_at = unexpired | {f"{session} {name}": now}
            if self._path is None:
                return
            try:
                write_file_atomically(self._path, json.dumps(self._ended_at), mode=0o600)
            except OSError as error:
                raise StoreError(
                    f"{self._path} cannot be written ({error.strerror or error}). Free some disk space and log out "
                    "again."
                ) from error
