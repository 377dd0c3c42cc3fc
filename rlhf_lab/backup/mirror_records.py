"""Records of a mirror: the manifest of a save, stored in the repository, and the state of the mirror, stored in the home."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.private_files import PRIVATE_FILE
from rlhf_lab.common.text import parse_foreign_json
from rlhf_lab.errors import MirrorError

MANIFEST_FILE = "manifest.json"
STATE_FILE = "mirror.json"
FORMAT = 1


@dataclass(frozen=True)
class ManifestFile:
    """size: bytes."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One save of a lab.

    lab: identifies the lab; unchanged when it is restored elsewhere. save: identifies this attempt to save it. taken_at: the save
    contains everything stored before this time (seconds since 1970). schema: revision of the tables. files: by path.
    """

    lab: str
    save: str
    taken_at: float
    schema: str
    files: Mapping[str, ManifestFile]

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises MirrorError."""
        try:
            values = parse_foreign_json(text)
            if values.pop("format") != FORMAT:
                raise MirrorError("The repository was written by another version of the lab. Update this one.")
            files = {path: ManifestFile(**entry) for path, entry in values.pop("files").items()}
            return cls(**values, files=files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MirrorError(
                f"{MANIFEST_FILE} in the repository cannot be read ({error}). On huggingface.co its history shows whether "
                "somebody changed it; or name another repository."
            ) from error


@dataclass
class MirrorState:
    """State of the mirror of one home, stored in its STATE_FILE.

    repository: OWNER/NAME. lab: "" until the first save. head: the commit of the last save or restore. save: the id of that save.
    attempts: ids of later saves without an answer; the Hub may have accepted them. commits: number since the history was
    squashed. saved_at: everything stored before this time is on the Hub (seconds since 1970; None: nothing is). problem: why the
    lab cannot be saved at present, and what to do; "" if it can.
    """

    repository: str
    lab: str = ""
    head: str = ""
    save: str = ""
    attempts: list[str] = field(default_factory=list)
    commits: int = 0
    saved_at: float | None = None
    problem: str = ""

    def write(self, home: Path) -> None:
        """Raises OSError."""
        write_file_atomically(home / STATE_FILE, json.dumps(dataclasses.asdict(self), indent=1), mode=PRIVATE_FILE)


def read_state(home: Path) -> MirrorState | None:
    """The state, or None if it is missing or cannot be read."""
    try:
        values: dict[str, Any] = parse_foreign_json((home / STATE_FILE).read_text(encoding="utf-8"))
        return MirrorState(**values)
    except (OSError, ValueError, TypeError):
        return None
