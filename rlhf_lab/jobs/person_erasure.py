"""Erase a person from a lab: from its rows, and from the report files of reward models."""

import json
from pathlib import Path

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.errors import StoreError
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows


def erase_person_data(db: Database, home: Path, name: str, *, votes: bool) -> int:
    """Erase a person's rows (`erase_person_rows`) and their name in report files; returns how many votes they had.

    Raises LabelError, and StoreError for files that cannot be changed.
    """
    erased = erase_person_rows(db, name, votes=votes)
    db.truncate_log()
    for path, report in erased.reports.items():
        file = home / path / "report.json"
        try:
            if file.exists():
                write_file_atomically(file, json.dumps(report, indent=1))
        except OSError as error:
            raise StoreError(
                f"{name} was removed from the lab, but is still named in {file} ({error.strerror or error}). Edit the file "
                "by hand."
            ) from error
    return erased.votes
