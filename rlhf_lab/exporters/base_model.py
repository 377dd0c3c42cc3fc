"""The base model of an export: its files, its name on other machines, and what the header of a card says about it."""

import re
from pathlib import Path
from typing import Any

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL, embedded_model_folder
from rlhf_lab.common.model_folder import CARD_FILE, TOKENIZER_PATTERNS
from rlhf_lab.common.records import Project
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters.json_io import portable_name
from rlhf_lab.store.database import Database
from rlhf_lab.store.import_batches import project_imports

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_LICENSE_ID = re.compile(r"[a-z0-9][a-z0-9.+-]*")
MAX_CARD_BYTES = 1_000_000


def base_model_name(model: str) -> str:
    """Name of the base model on another machine."""
    return "assets/model" if model == EMBEDDED_MODEL else portable_name(model)


def base_folder(project: Project) -> Path:
    """The files of a project's model. Raises StoreError if they are not on this machine."""
    if project.model == EMBEDDED_MODEL:
        return embedded_model_folder()
    folder = Path(project.model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(project.model, local_files_only=True))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"The base model {project.model} is not on this machine, and this export needs its files. Put its folder "
                "back (for a model of the Hub: open the project once, which fetches it), or export the adapter alone."
            ) from error
    return folder


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a model folder that belong to its tokenizer and chat template."""
    return sorted({path for pattern in TOKENIZER_PATTERNS for path in folder.glob(pattern) if path.is_file()})


def card_origin(db: Database, project: Project) -> dict[str, Any]:
    """Fields of a model card's header that depend on the project: base_model, datasets, and those of the base's licence.

    Only what the Hub knows is named: a base with an id there, and data sets that were imported from there. The licence is that of
    the base's own card; without one the field is missing.
    """
    origin: dict[str, Any] = dict(_license(project))
    if _HUB_ID.fullmatch(project.model) and not Path(project.model).is_dir():
        origin["base_model"] = project.model
    names = {record.name for record in project_imports(db, project.id) if record.votes_left}
    if datasets := sorted(name for name in names if _HUB_ID.fullmatch(name)):
        origin["datasets"] = datasets
    return origin


def _license(project: Project) -> dict[str, str]:
    from huggingface_hub.repocard import metadata_load

    try:
        card = base_folder(project) / CARD_FILE
        header = metadata_load(card) if card.stat().st_size <= MAX_CARD_BYTES else None
    except Exception:  # no file, or a header that is no YAML: it was written by others
        return {}
    fields = {name: (header or {}).get(name) for name in ("license", "license_name", "license_link")}
    if not isinstance(fields["license"], str) or not _LICENSE_ID.fullmatch(fields["license"]):
        return {}
    if "://" not in str(fields["license_link"]):  # of a file beside the base's card
        del fields["license_link"]
    return {name: value for name, value in fields.items() if isinstance(value, str)}
