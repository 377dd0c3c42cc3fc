"""Files that the operator uploaded through Gradio's route: imports, backups, texts of a run."""

from pathlib import Path

from gradio.utils import get_upload_folder

from rlhf_lab.errors import ConfigError


def uploaded_file(path: str) -> Path:
    """The uploaded file at this path. Raises ConfigError for any other file of this machine."""
    file = Path(path).resolve()
    if not file.is_relative_to(Path(get_upload_folder()).resolve()) or not file.is_file():
        raise ConfigError("The uploaded file is missing. Choose it again.")
    return file
