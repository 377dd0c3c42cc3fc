"""Persistent storage mounted at /data, as in a Hugging Face Space with storage. It outlives the disk of the container."""

import os
from pathlib import Path

STORAGE = Path("/data")
HOME_NAME = "rlhf-lab"


def mounted_storage() -> Path | None:
    """/data, if something is mounted there that this process may write to; otherwise None."""
    return STORAGE if os.path.ismount(STORAGE) and os.access(STORAGE, os.W_OK) else None


def storage_note(home: Path) -> str:
    """A note to show after the path of a home: that it is on the mounted storage; "" if it is not."""
    return f" (on the storage that is mounted at {STORAGE})" if is_on_storage(home) else ""


def is_on_storage(home: Path) -> bool:
    """Whether a home outlives the disk of its container."""
    storage = mounted_storage()
    return storage is not None and home.is_relative_to(storage)


def keep_models_on_storage() -> None:
    """On a Space: let the Hub's client store downloaded models on the mounted storage, unless HF_HOME is set.

    Must be called before huggingface_hub is imported, which reads the variable at import.
    """
    storage = mounted_storage()
    if storage is not None and os.environ.get("SPACE_ID"):
        os.environ.setdefault("HF_HOME", str(storage / "huggingface"))
