"""The home of a lab, and paths in it."""

import errno
import os
from pathlib import Path

from platformdirs import user_data_path

from rlhf_lab.common.storage import HOME_NAME, mounted_storage

STORE_VARIABLE = "RLHF_LAB_STORE"
RUNS_FOLDER = "runs"
REWARD_MODELS_FOLDER = "reward_models"
SPEED_FILE = "speed.json"
DEMO_FILE = "demo.json"
ACCESS_FILE = "access.json"
ENDED_SESSIONS_FILE = "ended_sessions.json"
_PTX_TEXTS = "ptx_texts.json"


def regular_file(path: Path) -> Path:
    """The path of a file that a person names, before it is opened. Raises OSError for a pipe, a socket or a device, also behind a
    link: it may be endless. A missing file or a folder is left to the reader."""
    if path.exists() and not path.is_file() and not path.is_dir():
        kind = "a pipe" if path.is_fifo() else "a socket" if path.is_socket() else "a device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
    return path


def existing_path(text: str) -> Path | None:
    """The file or folder of this name, with ~ for the home of a person; None if there is none, or if none can have the name."""
    try:
        path = Path(text).expanduser()
        return path if text and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, an unknown user, a NUL character
        return None


def default_home() -> Path:
    """The home that is used if none is given.

    It is RLHF_LAB_HOME if set; otherwise a folder on the storage mounted at /data; otherwise, or if a lab already exists there, a
    folder in the user's data folder.
    """
    if chosen := os.environ.get("RLHF_LAB_HOME"):
        return Path(chosen)
    usual, storage = user_data_path("rlhf-lab"), mounted_storage()
    return usual if storage is None or (usual / "lab.db").exists() else storage / HOME_NAME


def user_cache_folder() -> Path:
    """The folder of what this user's labs compute once on a machine. Raises RuntimeError without a home directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (cache if cache.is_absolute() else Path("~/.cache").expanduser()) / "rlhf-lab"


def database_url_override() -> str | None:
    """RLHF_LAB_STORE, the URL of a database to use instead of the home's lab.db; None if not set."""
    return os.environ.get(STORE_VARIABLE) or None


def run_folder(home: Path, run_id: int) -> Path:
    """The folder of a run's checkpoints."""
    return home / RUNS_FOLDER / str(run_id)


def ptx_texts_file(home: Path, run_id: int) -> Path:
    """The file with a run's own pretraining texts, a JSON list."""
    return run_folder(home, run_id) / _PTX_TEXTS
