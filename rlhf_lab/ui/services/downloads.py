"""Files made for a download: written under HOME/exports, handed to Gradio's cache (which may serve them), then removed.

The cache's path holds a hash of the content, so nobody finds a file that was not offered. An hour after it was last
offered it goes; what a page that ended leaves there, the next one removes.
"""

import contextlib
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradio.processing_utils import save_file_to_cache
from gradio.utils import get_upload_folder

from rlhf_lab import exporters
from rlhf_lab.common.enums import Source
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.store.runs import get_reward_model, get_run
from rlhf_lab.ui.context import Context

EXPORT_FOLDER = "exports"
CACHE_FOLDER = "rlhf-lab"  # our folder in Gradio's cache, which other programs use too
MAX_AGE_S = 3600.0
SOURCE_CHOICES: dict[str, Source | None] = {**{source.value: source for source in Source}, "all": None}


class DownloadService:
    """What the page made for its visitors, of the open project."""

    def __init__(self, ctx: Context, cache: Path | None = None) -> None:
        self.ctx = ctx
        self.cache = cache or Path(get_upload_folder()) / CACHE_FOLDER
        self.cleanup()

    def create(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Write what the page asked for; {"path": what the browser may fetch, "name", "bytes"}.

        said: {"what": labels | dataset | run | adapter | reward-model, …}; labels of "annotators" only, or of all. Raises
        LabError for what cannot be read, found or written.
        """
        work_folder = self.ctx.home / EXPORT_FOLDER / secrets.token_hex(8)
        try:
            path = self._write(work_folder, payload)
            cached_path = Path(save_file_to_cache(path, cache_dir=str(self.cache)))
        except OSError as error:
            raise StoreError(
                f"The file could not be written ({error.strerror or error}). Free some disk space and try again."
            ) from error
        finally:
            shutil.rmtree(work_folder, ignore_errors=True)
        cleanup_timer = threading.Timer(MAX_AGE_S + 1, self.cleanup)
        cleanup_timer.daemon = True
        cleanup_timer.start()
        return {"path": cached_path.as_posix(), "name": cached_path.name, "bytes": cached_path.stat().st_size}

    def _write(self, work_folder: Path, payload: dict[str, Any]) -> Path:
        export_kind, db, project = payload.get("what"), self.ctx.db, self.ctx.project
        if export_kind == "labels":
            return exporters.export_labels(db, project.id, work_folder, _parse_label_options(payload))
        if export_kind == "dataset":
            folder = exporters.export_dataset(db, project.id, work_folder, _parse_label_options(payload))
            return write_zip(
                work_folder / f"{folder.name}.zip",
                work_folder,
                sorted(path for path in folder.rglob("*") if path.is_file()),
            )
        if export_kind in ("run", "adapter"):
            run = get_run(db, _parse_id(payload, "run"))
            self._require_open_project(run.project_id)
            if export_kind == "adapter":
                return exporters.export_adapter(db, self.ctx.home, run.id, work_folder)
            return write_zip(
                work_folder / f"run-{run.id}.zip",
                work_folder,
                exporters.export_run(db, self.ctx.home, run.id, work_folder),
            )
        if export_kind == "reward-model":
            row = get_reward_model(db, _parse_id(payload, "reward_model"))
            self._require_open_project(row.project_id)
            return exporters.export_reward_model(db, self.ctx.home, row.id, work_folder)
        raise ConfigError(f'"{export_kind}" cannot be exported here. Reload the page and try again.')

    def _require_open_project(self, project_id: int) -> None:
        if project_id != self.ctx.project.id:
            raise ConfigError("Another project was opened meanwhile. Open this one again, then export.")

    def cleanup(self) -> None:
        """Remove what was offered more than an hour ago, and what an interrupted export left."""
        for file in self.cache.glob("*/*"):
            with contextlib.suppress(OSError):  # another page was quicker, or more is offered from its folder
                if _is_expired(file):
                    file.unlink()
                    file.parent.rmdir()
        for folder in (self.ctx.home / EXPORT_FOLDER).glob("*"):
            with contextlib.suppress(OSError):
                if _is_expired(folder):
                    shutil.rmtree(folder)


def _is_expired(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > MAX_AGE_S


def _parse_label_options(payload: dict[str, Any]) -> exporters.LabelExportOptions:
    """Which labels and in which form. Raises ConfigError for what is no answer."""
    if payload.get("source") not in SOURCE_CHOICES:
        raise ConfigError(f"Labels are by {', '.join(SOURCE_CHOICES)}; the page asked for others. Reload it.")
    layout, _, chat_suffix = str(payload.get("layout", "votes")).partition("+")
    agreement = payload.get("agreement", 0)
    if not isinstance(agreement, int | float):
        raise ConfigError("The share of agreement is no number. Reload the page.")
    annotators = payload.get("annotators", [])
    if not isinstance(annotators, list) or not all(isinstance(name, str) for name in annotators):
        raise ConfigError("The page named no annotators. Reload it.")
    return exporters.LabelExportOptions(
        SOURCE_CHOICES[str(payload["source"])],
        tuple(annotators),
        ties=str(payload.get("ties")),
        layout=layout,
        messages=bool(chat_suffix),
        agreement=float(agreement),
        format=str(payload.get("format", "jsonl")),
        names=payload.get("names") is not False,
    )


def write_zip(path: Path, root: Path, files: Sequence[Path]) -> Path:
    """A zip of files under `root`, with their paths from there."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in files:
            bundle.write(file, file.relative_to(root))
    return path


def _parse_id(payload: dict[str, Any], name: str) -> int:
    try:
        return int(payload[name])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"Choose a {name.replace('_', ' ')} first; there is none yet, or the page is old.") from None
