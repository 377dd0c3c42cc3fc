"""Erase a person from a lab: from its rows, and from the report files of reward models."""

import json
from pathlib import Path
from typing import Any

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.errors import StoreError
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows


def erase_person_data(db: Database, home: Path, name: str, *, votes: bool) -> int:
    """Erase a person's rows (`erase_person_rows`) and their name in report files; returns how many votes they had.

    Raises LabelError, and StoreError for a file that cannot be changed; the database is not changed then.
    """

    def write_report(path: str, report: dict[str, Any]) -> None:
        file = home / path / "report.json"
        try:
            if file.exists():
                write_file_atomically(file, json.dumps(report, indent=1))
        except OSError as error:
            raise StoreError(
                f"{name} could not be erased, because {file} cannot be changed ({error.strerror or error}). Check the disk and "
                "the folder, then try again."
            ) from error

    vote_count = erase_person_rows(db, name, votes=votes, write_report=write_report)
    db.truncate_log()
    return vote_count
