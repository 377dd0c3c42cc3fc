"""Removes rows about running processes from a copy of the database.

They change every few seconds, and in a restored home these processes do not exist.
"""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

#: The header's file change counter and version-valid-for number, which every transaction increments (sqlite.org/fileformat.html).
_COUNTER_OFFSETS = (24, 92)
_COUNTER = (1).to_bytes(4, "big")


def clear_process_rows(database: Path) -> str:
    """Mark all engines in a copy of a database as stopped and delete the presence of pages. Returns the file's SHA-256.

    Two copies are then identical, byte for byte, if nothing but heartbeats was written in between. The file must not be open
    anywhere else.
    """
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA secure_delete=ON")  # zeroes freed bytes, so that copies do not differ there
        with connection:
            rows = connection.execute("SELECT id, started_at FROM engines ORDER BY id").fetchall()
            connection.execute("DELETE FROM presence")
            connection.execute("DELETE FROM engines")
            connection.executemany(
                "INSERT INTO engines (id, host, pid, process_started, started_at, stopped_at, state, device) "
                "VALUES (?1, '', 0, 0, ?2, ?2, '', '')",
                rows,
            )
    with database.open("r+b") as file:
        for offset in _COUNTER_OFFSETS:
            file.seek(offset)
            file.write(_COUNTER)
    with database.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
