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

from rlhf_lab import exports
from rlhf_lab.errors import ConfigError, StoreError
from rlhf_lab.kinds import Source
from rlhf_lab.store.runs import get_reward_model, get_run
from rlhf_lab.ui.context import Context

FOLDER = "exports"
CACHED = "rlhf-lab"  # our folder in Gradio's cache, which other programs use too
KEPT_S = 3600.0
SOURCES: dict[str, Source | None] = {**{source.value: source for source in Source}, "all": None}


class Offers:
    """What the page made for its visitors, of the open project."""

    def __init__(self, ctx: Context, cache: Path | None = None) -> None:
        self.ctx = ctx
        self.cache = cache or Path(get_upload_folder()) / CACHED
        self.tidy()

    def make(self, said: dict[str, Any]) -> dict[str, Any]:
        """Write what the page asked for; {"path": what the browser may fetch, "name", "bytes"}.

        said: {"what": labels | dataset | run | adapter | reward-model, …}; labels of "annotators" only, or of all. Raises
        LabError for what cannot be read, found or written.
        """
        out = self.ctx.home / FOLDER / secrets.token_hex(8)
        try:
            path = self._write(out, said)
            offered = Path(save_file_to_cache(path, cache_dir=str(self.cache)))
        except OSError as error:
            raise StoreError(
                f"The file could not be written ({error.strerror or error}). Free some disk space and try again."
            ) from error
        finally:
            shutil.rmtree(out, ignore_errors=True)
        later = threading.Timer(KEPT_S + 1, self.tidy)
        later.daemon = True
        later.start()
        return {"path": offered.as_posix(), "name": offered.name, "bytes": offered.stat().st_size}

    def _write(self, out: Path, said: dict[str, Any]) -> Path:
        what, db, project = said.get("what"), self.ctx.db, self.ctx.project
        if what == "labels":
            return exports.export_labels(db, project.id, out, _labels(said))
        if what == "dataset":
            folder = exports.export_dataset(db, project.id, out, _labels(said))
            return zipped(out / f"{folder.name}.zip", out, sorted(path for path in folder.rglob("*") if path.is_file()))
        if what in ("run", "adapter"):
            run = get_run(db, _number(said, "run"))
            self._ours(run.project_id)
            if what == "adapter":
                return exports.export_adapter(db, self.ctx.home, run.id, out)
            return zipped(out / f"run-{run.id}.zip", out, exports.export_run(db, self.ctx.home, run.id, out))
        if what == "reward-model":
            row = get_reward_model(db, _number(said, "reward_model"))
            self._ours(row.project_id)
            return exports.export_reward_model(db, self.ctx.home, row.id, out)
        raise ConfigError(f'"{what}" cannot be exported here. Reload the page and try again.')

    def _ours(self, project_id: int) -> None:
        if project_id != self.ctx.project.id:
            raise ConfigError("Another project was opened meanwhile. Open this one again, then export.")

    def tidy(self) -> None:
        """Remove what was offered more than an hour ago, and what an interrupted export left."""
        for file in self.cache.glob("*/*"):
            with contextlib.suppress(OSError):  # another page was quicker, or more is offered from its folder
                if _over(file):
                    file.unlink()
                    file.parent.rmdir()
        for folder in (self.ctx.home / FOLDER).glob("*"):
            with contextlib.suppress(OSError):
                if _over(folder):
                    shutil.rmtree(folder)


def _over(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > KEPT_S


def _labels(said: dict[str, Any]) -> exports.LabelExport:
    """Which labels and in which form. Raises ConfigError for what is no answer."""
    if said.get("source") not in SOURCES:
        raise ConfigError(f"Labels are by {', '.join(SOURCES)}; the page asked for others. Reload it.")
    layout, _, chats = str(said.get("layout", "votes")).partition("+")
    agreement = said.get("agreement", 0)
    if not isinstance(agreement, int | float):
        raise ConfigError("The share of agreement is no number. Reload the page.")
    annotators = said.get("annotators", [])
    if not isinstance(annotators, list) or not all(isinstance(name, str) for name in annotators):
        raise ConfigError("The page named no annotators. Reload it.")
    return exports.LabelExport(
        SOURCES[str(said["source"])], tuple(annotators), ties=str(said.get("ties")), layout=layout, messages=bool(chats),
        agreement=float(agreement), format=str(said.get("format", "jsonl")), names=said.get("names") is not False,
    )  # fmt: skip


def zipped(path: Path, root: Path, files: Sequence[Path]) -> Path:
    """A zip of files under `root`, with their paths from there."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in files:
            bundle.write(file, file.relative_to(root))
    return path


def _number(said: dict[str, Any], name: str) -> int:
    try:
        return int(said[name])
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"Choose a {name.replace('_', ' ')} first; there is none yet, or the page is old.") from None
