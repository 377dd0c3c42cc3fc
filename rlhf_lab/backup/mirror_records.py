"""What a mirror writes down: the manifest of a save, in the repository, and the state of the mirror, in the home."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.private_files import PRIVATE_FILE
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

    lab: identifies the lab, also after it was restored elsewhere. save: identifies this attempt to save it. taken_at: everything
    that was stored before is in the save (seconds since 1970). schema: revision of the tables. files: by path.
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
            values = json.loads(text)
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
    """Of the mirror of one home; kept in its STATE_FILE.

    repository: OWNER/NAME. lab: "" until the first save. head: the commit that the last save or restore left. save: that save.
    attempts: saves since then, which the Hub may have accepted without our knowing. commits: since the history was squashed.
    saved_at: everything stored before is on the Hub (seconds since 1970; None: nothing is). problem: why it cannot be saved now
    and what to do; "" while it can.
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
    """None: there is none that can be read."""
    try:
        values: dict[str, Any] = json.loads((home / STATE_FILE).read_text(encoding="utf-8"))
        return MirrorState(**values)
    except (OSError, ValueError, TypeError):
        return None
