"""Part "Import preferences": preview a file or a Hub data set, map its columns, import it; list and undo earlier imports.

Votes that the project already has are not changed. If a row is invalid, nothing is imported, unless such rows are skipped. Files
are read in a separate process (`services/import_process.py`).
"""

from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder
from pydantic import Field

from rlhf_lab.common.enums import Source
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.errors import ConfigError, DataError
from rlhf_lab.importers.column_mapping import ANSWERS, MEANINGS
from rlhf_lab.importers.hub_reader import is_hub_id
from rlhf_lab.importers.summary import format_undo
from rlhf_lab.store.import_batches import ImportRecord, preview_undo, project_imports, undo_import
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import Payload, unusable
from rlhf_lab.ui.shared.events import if_changed, operator_action
from rlhf_lab.ui.shared.import_process import (
    FILE_SUFFIXES,
    REPOSITORY_ROOT,
    ImportProcessRequest,
    ImportRunner,
    run_in_subprocess,
)
from rlhf_lab.ui.shared.widgets import SILENT_MULTIPLE_EVENT, widget

MAX_UPLOAD_BYTES = 5_000_000  # the command line has no such limit
#: Meanings that the form shows at once; the others of the command line are under "Further columns".
MAIN_MEANINGS = (
    "prompt", "input", "system", "history", "chosen", "rejected", "first", "second", "choice", "tie", "both_bad", "annotator",
    "annotators", "score_first", "score_second", "score_chosen", "score_rejected", "pair", "created_at", "split",
)  # fmt: skip
#: Keys of the importers' preview that the page knows by another name.
PREVIEW_KEYS = {
    "doubts": "warnings", "broken": "error_count", "problems": "errors", "first": "first_rows", "shape": "layout",
}  # fmt: skip


class ImportAction(Payload):
    """action: "preview" or "import" data; "ask" what undoing an import would delete; take it "back", that is undo it.

    path, name: of an uploaded file; otherwise dataset, split, config: on the Hub. choices: meaning of the words of votes, such as
    "0=first,1=second"; answers: keys of ANSWERS.
    """

    action: str = ""
    path: str = ""
    name: str = ""
    dataset: str = ""
    split: str = "train"
    config: str = ""
    column_mapping: dict[str, str] = Field(default_factory=dict)
    choices: str = ""
    answers: list[str] = Field(default_factory=list)
    source: Source | None = None
    annotator: str = ""
    use_prompts: bool = False
    drop_duplicates: bool = False
    skip_broken: bool = False
    project: int | None = None
    import_id: int | None = Field(None, alias="import")


def build(ctx: Context, operator: gr.BrowserState) -> None:
    controller = ImportController(ctx)
    data = {
        "suffixes": list(FILE_SUFFIXES),
        "lab_command": lab_command(),
        "max_bytes": MAX_UPLOAD_BYTES,
        "main_meanings": list(MAIN_MEANINGS),
        "further_meanings": [name for name in MEANINGS if name not in MAIN_MEANINGS],
    }

    def get_state(query: dict[str, Any]) -> dict[str, Any]:
        return if_changed(list_imports(ctx), query)

    @operator_action(ctx, ImportAction)
    def action(payload: ImportAction) -> dict[str, Any]:
        return controller.handle_action(payload)

    component = widget(
        "import_data",
        "runs/import_data/view.js",
        events=("action",),
        server_functions={"get_state": get_state},
        data=data,
        label="Import preferences",
    )
    component.action(action, operator, component, **SILENT_MULTIPLE_EVENT)


def list_imports(ctx: Context) -> dict[str, Any]:
    """The imports of the open project, newest first."""
    project = ctx.project
    return {"project": project.id, "imports": [import_row(record) for record in project_imports(ctx.db, project.id)]}


def import_row(record: ImportRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "imported_by": record.who,
        "created_at": record.created_at,
        "taken_back_at": record.taken_back_at,
        "votes": record.votes,
        "votes_left": record.votes_left,
        "pairs": record.pairs,
        "pairs_left": record.pairs_left,
    }


class ImportController:
    """Previews, imports and undoes imports for the page."""

    def __init__(self, ctx: Context, runner: ImportRunner = run_in_subprocess, uploads: Path | None = None) -> None:
        self.ctx, self.runner = ctx, runner
        self.uploads = (uploads or Path(get_upload_folder())).resolve()

    def handle_action(self, payload: ImportAction) -> dict[str, Any]:
        """The reply to an action. A reply with "columns" asks the person for the meaning of these columns. Raises LabError."""
        match payload.action:
            case "ask" | "back":
                return self.undo_import(payload)
            case "preview" | "import":
                return self.read_data(payload)
        raise ConfigError(f'The lab cannot "{payload.action}" here. Reload the page and try again.')

    def read_data(self, payload: ImportAction) -> dict[str, Any]:
        request = self.build_request(payload)
        if payload.source is None:
            raise ConfigError("Choose whose votes these are: of people, or simulated.")
        request |= {"source": payload.source, "annotator": payload.annotator.strip()[:60]}
        if payload.action == "import":
            request |= {
                "save": True,
                "who": self.ctx.visitor().registered_name or "operator",
                "use_prompts": payload.use_prompts,
                "drop_duplicates": payload.drop_duplicates,
                "skip_broken": payload.skip_broken,
            }
        result = self.runner(request)
        if "columns" in result:
            how = "Choose an answer below." if result["answers"] else "Fill in the fields below, then press Look again."
            return {"error": f"{result['error']} {how}", "columns": result["columns"], "answers": result["answers"]}
        if "error" in result:
            raise DataError(str(result["error"]))
        preview = {PREVIEW_KEYS.get(key, key): value for key, value in result["preview"].items()}
        return {"message": result.get("message", ""), "preview": preview}

    def undo_import(self, payload: ImportAction) -> dict[str, Any]:
        """Undo an import, or only count what would be deleted. The page names the project that it shows, because another one
        may be open now."""
        project_id, import_id = payload.project, payload.import_id
        if project_id is None or import_id is None:
            raise unusable("project" if project_id is None else "import")
        if project_id != self.ctx.project.id:
            raise ConfigError("Another project has been opened. Reload the list.")
        if payload.action == "ask":
            return {"deletion_summary": format_undo(preview_undo(self.ctx.db, project_id, import_id))}
        undone = format_undo(undo_import(self.ctx.db, project_id, import_id), completed=True)
        return {"message": f"Undone: {undone}"}

    def build_request(self, payload: ImportAction) -> ImportProcessRequest:
        """What to read: an uploaded file or a data set of the Hub, no other file of this machine. Raises ConfigError."""
        mapping = payload.column_mapping
        request: ImportProcessRequest = {
            "home": str(self.ctx.home),
            "project": self.ctx.project.id,
            "map": {key: mapping[key] for key in MEANINGS if key in mapping},
            "choices": payload.choices,
            "answers": [answer for answer in payload.answers if answer in ANSWERS],
        }
        if payload.path:
            path = Path(payload.path).resolve()
            if not path.is_relative_to(self.uploads) or not path.is_file():
                raise ConfigError("The uploaded file is missing. Choose it again.")
            name = Path(payload.name or path.name).name[:80]
            return {**request, "what": str(path), "name": name, "bytes": 20 * MAX_UPLOAD_BYTES}
        dataset = payload.dataset.strip()
        if not is_hub_id(dataset) or (REPOSITORY_ROOT / dataset).exists():
            raise ConfigError("Choose a file, or enter the name of a data set on the Hub as OWNER/NAME.")
        config: ImportProcessRequest = {"config": payload.config.strip()} if payload.config.strip() else {}
        return {**request, **config, "what": dataset, "split": payload.split or "train"}
