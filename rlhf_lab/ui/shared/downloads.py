"""Exports that the page offers as downloads: written under HOME/exports, moved to Gradio's cache (from which it serves files).

The cached path contains a hash of the content, so nobody can guess it. Files are removed an hour after they were last offered.
Files that a stopped page's process left behind are removed by the next one.
"""

import contextlib
import functools
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from gradio.processing_utils import save_file_to_cache
from gradio.utils import get_upload_folder

from rlhf_lab.backup.archive import backup_name, write_backup
from rlhf_lab.common.enums import Source
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder, restrict_folder
from rlhf_lab.common.records import Project
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.exporters.adapter_zip import export_adapter, export_reward_model
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.label_export import LabelExportOptions, count_left_out_ties, export_labels, left_out_ties_note
from rlhf_lab.exporters.merged_model import export_model
from rlhf_lab.exporters.run_export import export_run
from rlhf_lab.jobs.model_inspection import has_chat_template
from rlhf_lab.jobs.system_role import exports_system_role
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.runs import get_run
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import Payload

EXPORT_FOLDER = "exports"
CACHE_FOLDER = "rlhf-lab"  # our folder in Gradio's cache, which other programs use too
MAX_AGE_S = 3600.0


class ExportRequest(Payload):
    """What to export. run, reward_model: ids, "" if the page has none to choose from.

    The other fields are options of labels and dataset. annotators: whose labels are exported; if empty, those of all. layout: a
    layout that ends with "+chats" writes chat messages, and so does "training" for a model that has a chat template.
    """

    request_id: int | None = None
    kind: Literal["labels", "dataset", "run", "adapter", "model", "reward-model", "backup"]
    run: int | Literal[""] = ""
    reward_model: int | Literal[""] = ""
    source: Literal["human", "simulated", "all"] | None = None
    annotators: tuple[str, ...] = ()
    ties: str = ""
    layout: str = "votes"
    agreement: float = 0.0
    format: str = "jsonl"
    names: bool = True


class DownloadService:
    """Creates the downloads of the open project."""

    def __init__(self, ctx: Context, cache: Path | None = None) -> None:
        self.ctx = ctx
        self.cache = cache or Path(get_upload_folder()) / CACHE_FOLDER
        self._fractions: dict[int | None, float] = {}  # request_id -> of its labels, the fraction that is written
        self.cleanup()

    def create(self, request: ExportRequest) -> dict[str, Any]:
        """Write an export; returns {"path": where the browser can fetch it, "name", "bytes", "note": a warning or ""}.

        Raises LabError.
        """
        if request.kind in ("labels", "dataset"):
            self._fractions[request.request_id] = 0.0
        work_folder, notes = self.ctx.home / EXPORT_FOLDER / secrets.token_hex(8), list[str]()
        try:
            path = self._write(work_folder, request, notes.append)
            path.chmod(PRIVATE_FILE)  # Gradio keeps the mode
            make_private_folder(self.cache)
            restrict_folder(self.cache)
            cached_path = Path(save_file_to_cache(path, cache_dir=str(self.cache)))
        except OSError as error:
            raise StoreError(
                f"The file could not be written ({error.strerror or error}). Free some disk space and try again."
            ) from error
        finally:
            self._fractions.pop(request.request_id, None)
            shutil.rmtree(work_folder, ignore_errors=True)
        cleanup_timer = threading.Timer(MAX_AGE_S + 1, self.cleanup)
        cleanup_timer.daemon = True
        cleanup_timer.start()
        size = cached_path.stat().st_size
        return {
            "path": cached_path.as_posix(),
            "name": cached_path.name,
            "bytes": size,
            "note": " ".join(filter(None, notes)),
        }

    def fraction_written(self, request_id: int) -> float | None:
        """The fraction of labels already written, for an export that is being written; None for any other."""
        return self._fractions.get(request_id)

    def _write(self, work_folder: Path, request: ExportRequest, on_note: Callable[[str], None]) -> Path:
        db, home, project = self.ctx.db, self.ctx.home, self.ctx.project
        on_progress = functools.partial(self._fractions.__setitem__, request.request_id)
        if request.kind in ("labels", "dataset"):
            options = _label_options(request, db, project)
            on_note(left_out_ties_note(count_left_out_ties(db, project.id, options)))
            if request.kind == "labels":
                return export_labels(db, project.id, work_folder, options, on_progress=on_progress)
            folder = export_dataset(db, project.id, work_folder, options, on_progress=on_progress)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            return write_zip(work_folder / f"{folder.name}.zip", work_folder, files)
        if request.kind == "backup":
            file = work_folder / backup_name()
            write_backup(home, file)
            return file
        if request.kind == "reward-model":
            row = get_reward_model(db, _require_id(request.reward_model, "reward model"))
            self._require_open_project(row.project_id)
            return export_reward_model(db, home, row.id, work_folder)
        return self._write_run(work_folder, request, on_note)

    def _write_run(self, work_folder: Path, request: ExportRequest, on_note: Callable[[str], None]) -> Path:
        db, home = self.ctx.db, self.ctx.home
        run = get_run(db, _require_id(request.run, "run"))
        self._require_open_project(run.project_id)
        if request.kind == "adapter":
            return export_adapter(db, home, run.id, work_folder)
        if request.kind == "model":
            folder = export_model(db, home, run.id, work_folder, on_note=on_note)
            return write_zip(
                work_folder / f"{folder.name}.zip", work_folder, sorted(folder.iterdir()), zipfile.ZIP_STORED
            )
        return write_zip(work_folder / f"run-{run.id}.zip", work_folder, export_run(db, home, run.id, work_folder))

    def _require_open_project(self, project_id: int) -> None:
        if project_id != self.ctx.project.id:
            raise ConfigError("Another project has been opened. Open this one again, then export.")

    def cleanup(self) -> None:
        """Remove files that were offered more than an hour ago, and files that an interrupted export left."""
        for file in self.cache.glob("*/*"):
            with contextlib.suppress(OSError):  # already removed by another page, or its folder has other files
                if _is_expired(file):
                    file.unlink()
                    file.parent.rmdir()
        for folder in (self.ctx.home / EXPORT_FOLDER).glob("*"):
            with contextlib.suppress(OSError):
                if _is_expired(folder):
                    shutil.rmtree(folder)


def _is_expired(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > MAX_AGE_S


def _label_options(request: ExportRequest, db: Database, project: Project) -> LabelExportOptions:
    if request.source is None:
        raise ConfigError("Unknown source of labels: choose human, simulated or all. Reload the page.")
    layout, _, chat_suffix = request.layout.partition("+")
    messages = bool(chat_suffix) or (layout == "training" and has_chat_template(project.model))
    return LabelExportOptions(
        None if request.source == "all" else Source(request.source),
        request.annotators,
        ties=request.ties,
        layout=layout,
        messages=messages,
        system_role=not messages or exports_system_role(db, project),
        agreement=request.agreement,
        format=request.format,
        names=request.names,
    )


def _require_id(number: int | Literal[""], what: str) -> int:
    if number == "":
        raise ConfigError(f"Choose a {what} first. If there is one, reload the page.")
    return number


def write_zip(path: Path, root: Path, files: Sequence[Path], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip of files under `root`, with their paths from there. Weights hardly compress: ZIP_STORED saves the time."""
    with zipfile.ZipFile(path, "w", compression) as bundle:
        for file in files:
            bundle.write(file, file.relative_to(root))
    return path
