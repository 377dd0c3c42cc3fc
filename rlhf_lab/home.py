"""Where a lab lives."""

import os
from pathlib import Path

from platformdirs import user_data_path


def default_home() -> Path:
    """RLHF_LAB_HOME, or the user's data folder."""
    return Path(os.environ.get("RLHF_LAB_HOME") or user_data_path("rlhf-lab"))
