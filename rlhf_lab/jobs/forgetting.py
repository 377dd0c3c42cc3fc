"""Somebody's name leaves a lab: its rows, and the reports beside the reward models."""

import json
from pathlib import Path

from rlhf_lab.errors import StoreError
from rlhf_lab.store.database import Database
from rlhf_lab.store.forgetting import forget


def forget_person(db: Database, home: Path, name: str, *, votes: bool) -> int:
    """Forget somebody (`store.forgetting.forget`); returns how many votes were theirs. LabelError; StoreError for the files."""
    gone = forget(db, name, votes=votes)
    db.empty_log()
    for path, report in gone.reports.items():
        file = home / path / "report.json"
        try:
            if file.exists():
                file.write_text(json.dumps(report, indent=1), encoding="utf-8")
        except OSError as error:
            raise StoreError(
                f"{name} is out of the lab, but still named in {file} ({error}). Change it by hand."
            ) from error
    return gone.votes
