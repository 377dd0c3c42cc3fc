"""The names of the commands for use in messages; they depend on whether the package is installed or run from a repository."""

import sys
from pathlib import Path

INSTALLED_NAME = "rlhf-lab"
_REPOSITORY = Path(__file__).resolve().parents[2]


def page_command() -> str:
    """The command that starts the page: "rlhf-lab" for the installed package, otherwise "python app.py"."""
    return INSTALLED_NAME if _is_installed() else "python app.py"


def lab_command() -> str:
    """The program before the name of a command: "rlhf-lab" for the installed package, otherwise "python -m rlhf_lab"."""
    return INSTALLED_NAME if _is_installed() else "python -m rlhf_lab"


def _is_installed() -> bool:
    """Whether `rlhf-lab` started this process, or the package has no app.py beside it, as in the engine of an installed lab."""
    return Path(sys.argv[0]).stem == INSTALLED_NAME or not (_REPOSITORY / "app.py").is_file()
