"""SHA-256 of files."""

import hashlib
from pathlib import Path


def file_sha256(*paths: Path) -> str:
    """The digest of the files' contents, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
