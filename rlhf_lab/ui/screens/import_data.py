"""Part "Import preferences": a file or a Hub data set, looked at first, its columns mapped, then taken in: what is there already
stays as it is, and with a row that cannot be used nothing is, unless such rows are left out. Below it what was imported so far,
each to be taken back.

All the reading of files happens in a process of its own: `options`.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from rlhf_lab.common.enums import Source
from rlhf_lab.errors import ConfigError, DataError
from rlhf_lab.importers import MEANINGS
from rlhf_lab.importers.hub_reader import is_hub_id
from rlhf_lab.importers.summary import format_undo
from rlhf_lab.store.import_batches import preview_undo, project_imports, undo_import
from rlhf_lab.ui.components.widgets import SILENT_MULTIPLE_EVENT, widget
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.events import if_changed, operator_action, server_function, show_errors
from rlhf_lab.ui.screens.train import parse_int
from rlhf_lab.ui.services.import_process import FILE_SUFFIXES, REPOSITORY_ROOT, ImportRunner, run_in_subprocess

MAX_UPLOAD_BYTES = 5_000_000  # what the page takes as an upload; the command line takes more
#: What a person maps by hand; the rest is found by its name.
MAPPABLE_COLUMNS = (
    "prompt",
    "chosen",
    "rejected",
    "first",
    "second",
    "choice",
    "annotator",
    "annotators",
    "score_first",
    "score_second",
)
OPTION_FLAGS = ("use_prompts", "drop_duplicates", "skip_broken")


def build(ctx: Context, operator: gr.BrowserState) -> None:
    controller = ImportController(ctx)
    data = {
        "kinds": list(FILE_SUFFIXES),
        "most": MAX_UPLOAD_BYTES,
        "meanings": [name for name in MAPPABLE_COLUMNS if name in MEANINGS],
    }

    def look(query: dict[str, Any]) -> dict[str, Any]:
        return if_changed(list_imports(ctx), query)

    component = widget("data", server_functions=[server_function(look)], data=data, label="Import preferences")

    def act(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        return operator_action(ctx, secret, event, controller.handle_action)

    component.act(show_errors(act), operator, component, **SILENT_MULTIPLE_EVENT)


def list_imports(ctx: Context) -> dict[str, Any]:
    """The imports of the open project, newest first."""
    project = ctx.project
    return {
        "project": project.id,
        "imports": [asdict(batch) for batch in project_imports(ctx.db, project.id)],
    }


class ImportController:
    """Takes what the page hands in, and back what it took."""

    def __init__(self, ctx: Context, runner: ImportRunner = run_in_subprocess, uploads: Path | None = None) -> None:
        self.ctx, self.runner = ctx, runner
        self.uploads = (uploads or Path(get_upload_folder())).resolve()

    def handle_action(self, payload: dict[str, Any]) -> dict[str, Any]:
        """{"do": "preview" | "import", …}, {"do": "ask" | "back", "project", "import"}. Raises LabError; with "columns" the page
        asks what those mean."""
        if payload.get("do") in ("ask", "back"):
            return self.undo_import(payload)
        if payload.get("do") not in ("preview", "import"):
            raise ConfigError(f'The lab cannot "{payload.get("do")}" here. Reload the page and try again.')
        request = self.build_request(payload)
        source = payload.get("source")
        if source not in tuple(Source):
            raise ConfigError("Say whose votes these are: of people, or simulated.")
        request |= {"source": source, "annotator": str(payload.get("annotator") or "").strip()[:60]}
        if payload["do"] == "import":
            request |= {"save": True, "who": self.ctx.visitor().registered_name or "operator"}
            request |= {name: bool(payload.get(name)) for name in OPTION_FLAGS}
        result = self.runner(request)
        if "columns" in result:
            return {
                "error": f"{result['error']} Say above what they mean, and look again.",
                "columns": result["columns"],
            }
        if "error" in result:
            raise DataError(str(result["error"]))
        return {"done": result.get("words", ""), "preview": result["preview"]}

    def undo_import(self, payload: dict[str, Any]) -> dict[str, Any]:
        """What would go with an import, or what went. The page says which project it showed: another may be open by now."""
        project_id, import_id = parse_int(payload, "project"), parse_int(payload, "import")
        if project_id != self.ctx.project.id:
            raise ConfigError("Another project was opened meanwhile. Look at the list again.")
        if payload["do"] == "ask":
            return {"goes": format_undo(preview_undo(self.ctx.db, project_id, import_id))}
        return {"done": f"Taken back: {format_undo(undo_import(self.ctx.db, project_id, import_id), completed=True)}"}

    def build_request(self, payload: dict[str, Any]) -> dict[str, Any]:
        """What to read. Only what was uploaded, or a name on the Hub: no other file of this machine."""
        mapping = payload.get("map") or {}
        if not isinstance(mapping, dict) or not all(isinstance(column, str) for column in mapping.values()):
            raise ConfigError("The page sent no mapping of columns. Reload it and try again.")
        request: dict[str, Any] = {
            "home": str(self.ctx.home),
            "project": self.ctx.project.id,
            "map": {key: mapping[key] for key in MAPPABLE_COLUMNS if key in mapping},
            "choices": str(payload.get("choices") or ""),
        }
        if payload.get("path"):
            path = Path(str(payload["path"])).resolve()
            if not path.is_relative_to(self.uploads) or not path.is_file():
                raise ConfigError("That file is not here (any more). Choose it again.")
            return request | {
                "what": str(path),
                "name": Path(str(payload.get("name") or path.name)).name[:80],
                "bytes": 20 * MAX_UPLOAD_BYTES,
            }
        name = str(payload.get("hub") or "").strip()
        if not is_hub_id(name) or (REPOSITORY_ROOT / name).exists():
            raise ConfigError("Choose a file, or write the name of a data set on the Hub as OWNER/NAME.")
        return request | {"what": name, "split": str(payload.get("split") or "train")}
