"""Sessions that were ended by logging out: a copied cookie of such a session is not accepted."""

import json
import threading
import time
from pathlib import Path

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.errors import StoreError

MAX_SESSIONS = 10_000


class EndedSessions:
    """Session ids by the time they ended, oldest first; kept in a file until their cookies expire.

    path: the file; None keeps them in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
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

    def __contains__(self, session: str) -> bool:
        return session in self._ended_at

    def add(self, session: str, max_age_s: float) -> None:
        """End a session. max_age_s: the lifetime of a cookie, after which a session need not be listed.

        Raises StoreError if the file cannot be written; the session is then ended only until the lab is restarted.
        """
        with self._lock:
            now = time.time()
            unexpired = [
                (other, at) for other, at in self._ended_at.items() if now - at <= max_age_s and other != session
            ]
            self._ended_at = dict([*unexpired, (session, now)][-MAX_SESSIONS:])
            if self._path is None:
                return
            try:
                write_file_atomically(self._path, json.dumps(self._ended_at), mode=0o600)
            except OSError as error:
                raise StoreError(
                    f"{self._path} cannot be written ({error.strerror or error}). Free some disk space and log out "
                    "again."
                ) from error
