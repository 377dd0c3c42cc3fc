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
from typing import Literal
from urllib.parse import quote

from typing_extensions import TypedDict

from rlhf_lab.backup.archive import backup_name, write_backup
from rlhf_lab.common.enums import Source
from rlhf_lab.common.private_files import PRIVATE_FILE, make_private_folder, restrict_folder
from rlhf_lab.common.records import Project
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.exporters.adapter_zip import export_adapter, export_reward_model
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.label_export import LabelExportOptions, count_left_out, export_labels
from rlhf_lab.exporters.merged_model import export_model
from rlhf_lab.exporters.run_export import export_run
from rlhf_lab.exporters.trl_recipe import export_label_recipe, export_run_recipe
from rlhf_lab.jobs.model_inspection import has_chat_template
from rlhf_lab.jobs.system_role import exports_system_role
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.runs import get_run
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.gradio_patches import save_to_cache, upload_folder
from rlhf_lab.ui.share.page import write_page
from rlhf_lab.ui.share.recording import record
from rlhf_lab.ui.shared.api import Payload

EXPORT_FOLDER = "exports"
CACHE_FOLDER = "rlhf-lab"  # our folder in Gradio's cache, which other programs use too
MAX_AGE_S = 3600.0


class ExportRequest(Payload):
    """What to export. run, reward_model: ids, "" if the page has none to choose from.

    The other fields are options of labels, dataset and label-recipe. annotators: whose labels are exported; if empty, all.
    layout: a layout that ends with "+chats" writes chat messages, and so does "training" for a model that has a chat template.
    trainer: what a label-recipe trains.
    """

    kind: Literal[
        "labels", "dataset", "label-recipe", "run", "page", "recipe", "adapter", "model", "reward-model", "backup"
    ]
    run: int | Literal[""] = ""
    reward_model: int | Literal[""] = ""
    source: Literal["human", "simulated", "all"] | None = None
    annotators: tuple[str, ...] = ()
    layout: str = "votes"
    agreement: float = 0.0
    format: str = "jsonl"
    names: bool = True
    trainer: Literal["reward", "dpo"] = "reward"


CSV_NOTE = (
    "Prompts and texts in the CSV are exactly as they were written. A spreadsheet reads one that begins with =, +, - or @ as a "
    "formula, so import these columns into it as text."
)


class Download(TypedDict):
    """A file on offer. address: relative to the page. note: warnings, or ""."""

    address: str
    name: str
    bytes: int
    note: str


def create_download(ctx: Context, request: ExportRequest) -> Download:
    """Write an export of the open project and offer it. Raises LabError."""
    work_folder, notes = ctx.home / EXPORT_FOLDER / secrets.token_hex(8), list[str]()
    try:
        file = _move_to_cache(_write(ctx, work_folder, request, notes.append))
    except OSError as error:
        raise StoreError(
            f"The file could not be written ({error.strerror or error}). Free some disk space and try again."
        ) from error
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
    cleanup_timer = threading.Timer(MAX_AGE_S + 1, functools.partial(remove_old_files, ctx.home))
    cleanup_timer.daemon = True
    cleanup_timer.start()
    return {
        "address": f"gradio_api/file={quote(file.as_posix())}",
        "name": file.name,
        "bytes": file.stat().st_size,
        "note": " ".join(filter(None, notes)),
    }


def cache_folder() -> Path:
    return upload_folder() / CACHE_FOLDER


def remove_old_files(home: Path) -> None:
    """Remove files that were offered more than an hour ago, and files that an interrupted export left."""
    for cached in cache_folder().glob("*"):
        with contextlib.suppress(OSError):  # another lab, which shares this folder, is removing it too
            for file in list(cached.iterdir()):
                if _is_expired(file):
                    file.unlink()
                    cached.rmdir()  # refused while it has other files
    for folder in (home / EXPORT_FOLDER).glob("*"):
        with contextlib.suppress(OSError):
            if _is_expired(folder):
                shutil.rmtree(folder)


def _move_to_cache(path: Path) -> Path:
    path.chmod(PRIVATE_FILE)  # Gradio keeps the mode
    cache = cache_folder()
    make_private_folder(cache)
    restrict_folder(cache)
    return save_to_cache(path, cache)


def _write(ctx: Context, work_folder: Path, request: ExportRequest, on_note: Callable[[str], None]) -> Path:
    if request.kind in ("labels", "dataset"):
        return _write_labels(ctx, work_folder, request, on_note)
    if request.kind == "label-recipe":
        project, folder = ctx.project, work_folder / f"recipe-labels-project-{ctx.project.id}"
        texts = _recipe_texts(request, ctx.db, project)
        return _zip_recipe(export_label_recipe(ctx.db, project.id, folder, texts, trainer=request.trainer), folder)
    if request.kind == "backup":
        file = work_folder / backup_name()
        write_backup(ctx.home, file)
        return file
    if request.kind == "reward-model":
        row = get_reward_model(ctx.db, _require_id(request.reward_model, "reward model"))
        if row.project_id != ctx.project.id:
            raise ConfigError("Another project has been opened. Open this one again, then export.")
        return export_reward_model(ctx.db, ctx.home, row.id, work_folder)
    return _write_run(ctx, work_folder, request, on_note)


def _write_labels(ctx: Context, work_folder: Path, request: ExportRequest, on_note: Callable[[str], None]) -> Path:
    project, options = ctx.project, _label_options(request, ctx.db, ctx.project)
    on_note(count_left_out(ctx.db, project.id, options).note())
    if options.format == "csv":
        on_note(CSV_NOTE)
    if request.kind == "labels":
        return export_labels(ctx.db, project.id, work_folder, options)
    folder = export_dataset(ctx.db, project.id, work_folder, options)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return write_zip(work_folder / f"{folder.name}.zip", work_folder, files)


def _write_run(ctx: Context, work_folder: Path, request: ExportRequest, on_note: Callable[[str], None]) -> Path:
    run = get_run(ctx.db, ctx.run(_require_id(request.run, "run")).id)
    if request.kind == "page":
        file = work_folder / f"run-{run.id}.html"
        write_page(record(ctx, run.id), file)
        return file
    if request.kind == "adapter":
        return export_adapter(ctx.db, ctx.home, run.id, work_folder)
    if request.kind == "model":
        folder = export_model(ctx.db, ctx.home, run.id, work_folder, on_note=on_note)
        return write_zip(work_folder / f"{folder.name}.zip", work_folder, sorted(folder.iterdir()), zipfile.ZIP_STORED)
    if request.kind == "recipe":
        folder = work_folder / f"recipe-run-{run.id}"
        texts = _recipe_texts(request.model_copy(update={"source": "all"}), ctx.db, ctx.project)
        return _zip_recipe(export_run_recipe(ctx.db, ctx.home, run.id, folder, texts), folder)
    return write_zip(work_folder / f"run-{run.id}.zip", work_folder, export_run(ctx.db, ctx.home, run.id, work_folder))


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
        layout=layout,
        messages=messages,
        system_role=not messages or exports_system_role(db, project),
        agreement=request.agreement,
        format=request.format,
        names=request.names,
    )


def _recipe_texts(request: ExportRequest, db: Database, project: Project) -> LabelExportOptions:
    return _label_options(request.model_copy(update={"layout": "training"}), db, project)


def _require_id(number: int | Literal[""], what: str) -> int:
    if number == "":
        raise ConfigError(f"Choose a {what} first. If there is one, reload the page.")
    return number


def _zip_recipe(files: Sequence[Path], folder: Path) -> Path:
    return write_zip(folder.with_suffix(".zip"), folder.parent, files, zipfile.ZIP_STORED)


def write_zip(path: Path, root: Path, files: Sequence[Path], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip of files under `root`, with their paths from there. Weights hardly compress: ZIP_STORED saves the time."""
    with zipfile.ZipFile(path, "w", compression) as bundle:
        for file in files:
            bundle.write(file, file.relative_to(root))
    return path
