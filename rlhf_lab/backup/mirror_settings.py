"""Repository and token of a mirror, as the operator entered them on the page. Backups and saves to the Hub exclude them."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.private_files import PRIVATE_FILE
from rlhf_lab.errors import ConfigError, StoreError

SETTINGS_FILE = "mirror_settings.json"


@dataclass(frozen=True)
class MirrorSettings:
    """repository: OWNER/NAME. token: "" to use the stored login of the Hub's client."""

    repository: str
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not all("!" <= character <= "~" for character in self.token):
            raise ConfigError(
                "The token has spaces or other characters that no token has. Copy it again, and all of it."
            )


def read_settings(home: Path) -> MirrorSettings | None:
    """The settings, or None if none were entered. Raises StoreError for a file that cannot be read."""
    try:
        return MirrorSettings(**json.loads((home / SETTINGS_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, ConfigError):  # the text of the error may contain the token
        raise StoreError(
            f"{home / SETTINGS_FILE} cannot be read. Delete it, start the lab again, and enter repository and token under Runs & "
            "data → Backup."
        ) from None


def write_settings(home: Path, settings: MirrorSettings) -> None:
    """Raises StoreError."""
    try:
        write_file_atomically(home / SETTINGS_FILE, json.dumps(asdict(settings), indent=1), mode=PRIVATE_FILE)
    except OSError as error:
        raise StoreError(
            f"{home / SETTINGS_FILE} cannot be written ({error.strerror or error}). Free some disk space and try again."
        ) from error


def delete_settings(home: Path) -> None:
    (home / SETTINGS_FILE).unlink(missing_ok=True)
