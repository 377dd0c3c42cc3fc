"""How to type the commands of this installation, for messages: from a clone of the repository, or of the installed package."""

import sys
from pathlib import Path

INSTALLED_NAME = "rlhf-lab"
_REPOSITORY = Path(__file__).resolve().parents[2]


def page_command() -> str:
    """What starts the page: "rlhf-lab" for the installed package, else "python app.py"."""
    return INSTALLED_NAME if _is_installed() else "python app.py"


def lab_command() -> str:
    """What comes before the name of a command: "rlhf-lab" for the installed package, else "python -m rlhf_lab"."""
    return INSTALLED_NAME if _is_installed() else "python -m rlhf_lab"


def _is_installed() -> bool:
    """Whether `rlhf-lab` started this process, or there is no app.py beside the package, as in the engine of an installed lab."""
    return Path(sys.argv[0]).stem == INSTALLED_NAME or not (_REPOSITORY / "app.py").is_file()
