"""Files that the operator uploaded through Gradio's route: imports, backups, texts of a run."""

from pathlib import Path

from rlhf_lab.errors import ConfigError
from rlhf_lab.ui.gradio_patches import upload_folder


def uploaded_file(path: str) -> Path:
    """The uploaded file at this path. Raises ConfigError for any other file of this machine."""
    file = Path(path).resolve()
    if not file.is_relative_to(upload_folder().resolve()) or not file.is_file():
        raise ConfigError("The uploaded file is missing. Choose it again.")
    return file
