"""A process that restores an empty home, then votes and saves without a pause until it is killed.

python tests/support/saving_process.py HOME LOG: LOG is made when it begins; each line is a stored vote, its uuid and when it was
stored.
"""

import sys
import threading
import time
import uuid
from pathlib import Path

import huggingface_hub.hf_api  # noqa: F401  slow imports come first

from rlhf_lab.backup.hub_mirror import HubMirror
from rlhf_lab.backup.hub_repository import HubRepository
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.errors import HubUnavailableError
from rlhf_lab.store.database import Database
from rlhf_lab.store.votes import cast_vote


def vote_for_ever(db: Database, log: Path) -> None:
    with log.open("a") as file:
        while True:
            name = uuid.uuid4().hex
            cast_vote(db, Vote(name, 1, f"voter {name}", Source.HUMAN, Choice.FIRST, True))
            file.write(f"{name} {time.time()!r}\n")
            file.flush()
            time.sleep(0.01)


def main() -> None:
    home, log = Path(sys.argv[1]), Path(sys.argv[2])
    log.touch()
    mirror = HubMirror(home, HubRepository("someone/lab"))
    while True:
        try:
            mirror.restore()
            break
        except HubUnavailableError:
            time.sleep(0.05)
    with Database.open(home) as db:
        threading.Thread(target=vote_for_ever, args=(db, log), daemon=True).start()
        while True:
            try:
                mirror.save()
            except HubUnavailableError:
                time.sleep(0.05)


if __name__ == "__main__":
    main()
