"""Somebody's name leaves a lab: its rows, and the reports beside the reward models."""

import json
from pathlib import Path

from rlhf_lab.errors import StoreError
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows


def erase_person_data(db: Database, home: Path, name: str, *, votes: bool) -> int:
    """Forget somebody (`store.erasure.erase_person_rows`); returns how many votes were theirs. LabelError; StoreError for the files."""
    erased = erase_person_rows(db, name, votes=votes)
    db.truncate_log()
    for path, report in erased.reports.items():
        file = home / path / "report.json"
        try:
            if file.exists():
                file.write_text(json.dumps(report, indent=1), encoding="utf-8")
        except OSError as error:
            raise StoreError(
                f"{name} is out of the lab, but still named in {file} ({error}). Change it by hand."
            ) from error
    return erased.votes
