"""Part "Import": preview preferences in a file or a Hub data set, map the columns, import them; list and undo earlier imports.
And the metrics of a run that was made elsewhere.

Votes that the project already has are not changed. If a row is invalid, nothing is imported, unless such rows are skipped. Files
are read in a separate process (`ui/shared/import_process.py`).
"""

from pathlib import Path
from typing import Any

from pydantic import Field
from typing_extensions import TypedDict

from rlhf_lab.common.enums import Source
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.records import Role
from rlhf_lab.errors import ConfigError, DataError
from rlhf_lab.importers.column_mapping import ANSWERS, MEANINGS
from rlhf_lab.importers.hub_reader import is_hub_id
from rlhf_lab.importers.run_metrics import visible
from rlhf_lab.importers.summary import format_undo
from rlhf_lab.jobs.run_control import MAX_RUN_NAME_CHARS, check_name
from rlhf_lab.store.import_batches import ImportRecord, preview_undo, project_imports, undo_import
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import Api, LongText, Payload
from rlhf_lab.ui.shared.import_process import (
    FILE_SUFFIXES,
    REPOSITORY_ROOT,
    ImportProcessRequest,
    run_in_subprocess,
)
from rlhf_lab.ui.shared.uploads import uploaded_file
from rlhf_lab.ui.shared.widgets import widget

api = Api("import_data")
MAX_UPLOAD_BYTES = 5_000_000  # the command line has no such limit
#: Meanings that the form shows at once; the others of the command line are under "Further columns".
MAIN_MEANINGS = (
    "prompt", "input", "system", "history", "chosen", "rejected", "first", "second", "choice", "tie", "both_bad", "annotator",
    "annotators", "score_first", "score_second", "score_chosen", "score_rejected", "pair", "created_at", "split",
)  # fmt: skip


class DataPayload(Payload):
    """path, name: of an uploaded file; otherwise dataset, split, config: on the Hub.

    choices: meaning of the words of votes, such as "0=first,1=second"; answers: keys of ANSWERS. source: whose votes these are.
    default_annotator: who voted, where the data name nobody.
    """

    path: str = ""
    name: str = ""
    dataset: str = ""
    split: str = "train"
    config: str = ""
    column_mapping: dict[str, str] = Field(default_factory=dict)
    choices: LongText = ""
    answers: list[str] = Field(default_factory=list)
    source: Source
    default_annotator: str = ""


class ImportPayload(DataPayload):
    """project: the one for which the page shows a preview."""

    project: int | None = None
    use_prompts: bool = False
    drop_duplicates: bool = False
    skip_broken: bool = False


class RunMetricsPayload(Payload):
    """path, name: of an uploaded file. run_name: "" for the file's. updates_per_step: so many steps of the file are one here."""

    path: str
    name: str = ""
    run_name: str = ""
    updates_per_step: int = Field(1, ge=1, le=10_000, title="Updates in a step")


class ImportId(Payload):
    """project: the one that the page shows, because another one may be open now."""

    project: int
    import_id: int


class PreviewRow(TypedDict):
    row: int
    prompt: str
    turns: list[dict[str, str]]
    first: str
    second: str
    choice: str
    annotator: str


class Preview(TypedDict):
    """What would be imported. mapping: the column of each meaning. choices: the number of votes by choice. people: the number of
    annotators. warnings, left_out: sentences, or "". errors: the first of error_count rows that cannot be used."""

    name: str
    layout: str
    mapping: dict[str, str]
    columns: list[str]
    unused: list[str]
    rows: int
    votes: int
    prompts: int
    people: int
    choices: dict[str, int]
    warnings: str
    left_out: str
    errors: list[str]
    error_count: int
    first_rows: list[PreviewRow]


class ImportQuestion(TypedDict):
    """What only a person can answer: which of these columns means what, or one of the answers, by key."""

    text: str
    columns: list[str]
    answers: dict[str, str]


class DataReply(TypedDict):
    """A question, or a preview, with a message after an import. project: the open one."""

    project: int
    question: ImportQuestion | None
    preview: Preview | None
    message: str


class ImportList(TypedDict):
    project: int
    imports: list[ImportRecord]


def build(ctx: Context) -> None:
    data = {
        "suffixes": list(FILE_SUFFIXES),
        "lab_command": lab_command(),
        "max_bytes": MAX_UPLOAD_BYTES,
        "max_run_name_chars": MAX_RUN_NAME_CHARS,
        "main_meanings": list(MAIN_MEANINGS),
        "further_meanings": [name for name in MEANINGS if name not in MAIN_MEANINGS],
    }
    widget("import_data", "runs/import_data/view.js", data=data, label="Import")


@api.read(Payload)
def imports(ctx: Context, query: Payload) -> ImportList:
    """The imports of the open project, newest first."""
    project = ctx.project
    return {"project": project.id, "imports": project_imports(ctx.db, project.id)}


@api.action(DataPayload, role=Role.OPERATOR)
def preview(ctx: Context, payload: DataPayload) -> DataReply:
    return read_data(ctx, process_request(ctx, payload))


@api.action(ImportPayload, role=Role.OPERATOR)
def save(ctx: Context, payload: ImportPayload) -> DataReply:
    """Import data."""
    if payload.project is not None:
        require_open_project(
            ctx, payload.project, "Nothing was imported. Read the data again, to see what this one gets."
        )
    return read_data(
        ctx,
        {
            **process_request(ctx, payload),
            "save": True,
            "who": ctx.visitor().registered_name or "operator",
            "use_prompts": payload.use_prompts,
            "drop_duplicates": payload.drop_duplicates,
            "skip_broken": payload.skip_broken,
        },
    )


@api.action(RunMetricsPayload, role=Role.OPERATOR)
def import_run(ctx: Context, payload: RunMetricsPayload) -> str:
    """Add a run that was made elsewhere, with its metrics; returns what was added."""
    path = uploaded_file(payload.path)
    name = check_name(payload.run_name or visible(Path(payload.name or path.name).name)[-MAX_RUN_NAME_CHARS:])
    result = run_in_subprocess(
        {
            "metrics": str(path), "home": str(ctx.home), "project": ctx.project.id, "run_name": name,
            "updates_per_step": payload.updates_per_step,
        }
    )  # fmt: skip
    if "error" in result:
        raise DataError(str(result["error"]))
    return str(result["message"])


@api.action(ImportId, role=Role.OPERATOR)
def summarize_undo(ctx: Context, payload: ImportId) -> str:
    """What undoing an import would delete."""
    require_open_project(ctx, payload.project)
    return format_undo(preview_undo(ctx.db, payload.project, payload.import_id))


@api.action(ImportId, role=Role.OPERATOR)
def undo(ctx: Context, payload: ImportId) -> str:
    require_open_project(ctx, payload.project)
    return f"Undone: {format_undo(undo_import(ctx.db, payload.project, payload.import_id), completed=True)}"


def require_open_project(ctx: Context, project_id: int, advice: str = "Reload the list.") -> None:
    if project_id != ctx.project.id:
        raise ConfigError(f"Another project has been opened. {advice}")


def process_request(ctx: Context, payload: DataPayload) -> ImportProcessRequest:
    """What to read: an uploaded file or a data set of the Hub, no other file of this machine. Raises ConfigError."""
    mapping = payload.column_mapping
    request: ImportProcessRequest = {
        "home": str(ctx.home),
        "project": ctx.project.id,
        "map": {key: mapping[key] for key in MEANINGS if key in mapping},
        "choices": payload.choices,
        "answers": [answer for answer in payload.answers if answer in ANSWERS],
        "source": payload.source,
        "annotator": payload.default_annotator.strip()[:60],
    }
    if payload.path:
        path = uploaded_file(payload.path)
        name = Path(payload.name or path.name).name[:80]
        return {**request, "what": str(path), "name": name, "bytes": 20 * MAX_UPLOAD_BYTES}
    dataset = payload.dataset.strip()
    if not is_hub_id(dataset) or (REPOSITORY_ROOT / dataset).exists():
        raise ConfigError("Choose a file, or enter the name of a data set on the Hub as OWNER/NAME.")
    config: ImportProcessRequest = {"config": payload.config.strip()} if payload.config.strip() else {}
    return {**request, **config, "what": dataset, "split": payload.split or "train"}


def read_data(ctx: Context, request: ImportProcessRequest) -> DataReply:
    """Raises DataError for an error that no answer of the person resolves."""
    project, result = ctx.project.id, run_in_subprocess(request)
    if "columns" in result:
        how = (
            "Choose an answer below."
            if result["answers"]
            else "Fill in the fields below, then press Read the data again."
        )
        question: ImportQuestion = {
            "text": f"{result['error']} {how}",
            "columns": result["columns"],
            "answers": result["answers"],
        }
        return {"project": project, "question": question, "preview": None, "message": ""}
    if "error" in result:
        raise DataError(str(result["error"]))
    preview = preview_of(result["preview"])
    return {"project": project, "question": None, "preview": preview, "message": result.get("message", "")}


def preview_of(importers_preview: dict[str, Any]) -> Preview:
    """A preview of `importers.summary.build_preview` with the page's names."""
    known = importers_preview
    return {
        "name": known["name"], "layout": known["shape"], "mapping": known["mapping"], "columns": known["columns"],
        "unused": known["unused"], "rows": known["rows"], "votes": known["votes"], "prompts": known["prompts"],
        "people": known["people"], "choices": known["choices"], "warnings": known["doubts"], "left_out": known["left_out"],
        "errors": known["problems"], "error_count": known["broken"], "first_rows": known["first"],
    }  # fmt: skip
