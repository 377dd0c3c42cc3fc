"""Reads uploaded files in a separate process, `python -m rlhf_lab.importers`.

`datasets` loads torch, and a malicious file that exhausts the memory must not end the page's process.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import rlhf_lab
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.errors import DataError

REPOSITORY_ROOT = Path(rlhf_lab.__file__).parents[1]
TIMEOUT_S = 300.0
#: Suffixes of files with rows; plain texts may also be in a .txt file.
FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".ndjson")


class ImportProcessRequest(TypedDict, total=False):
    """The request of `rlhf_lab.importers.__main__`: data to preview, with "save" to import it, or "texts" to read,
    or "metrics" of a run to add."""

    texts: str
    metrics: str
    run_name: str
    updates_per_step: int
    home: str
    project: int
    what: str
    name: str
    bytes: int
    split: str
    config: str
    map: dict[str, str]
    choices: str
    answers: list[str]
    source: str
    annotator: str
    save: bool
    who: str
    use_prompts: bool
    drop_duplicates: bool
    skip_broken: bool


#: Sends a request and returns the reply, both as JSON.
ImportRunner = Callable[[ImportProcessRequest], dict[str, Any]]


def run_in_subprocess(request: ImportProcessRequest) -> dict[str, Any]:
    """Run the import process. Raises DataError if it ends without a reply or exceeds TIMEOUT_S."""
    what_remains = "nothing was imported"
    if request.get("save"):  # an import commits in chunks
        what_remains = "rows imported until then are kept; import the same file again to add the rest"
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "rlhf_lab.importers"], input=json.dumps(request), capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False, cwd=REPOSITORY_ROOT,
        )  # fmt: skip
        reply: dict[str, Any] = json.loads(completed.stdout)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"Reading took longer than {TIMEOUT_S / 60:.0f} minutes and was stopped; {what_remains}. Import a part "
            f"of the file, or use the command line: {lab_command()} import."
        ) from None
    except (OSError, ValueError):
        raise DataError(
            f"The process that reads the file ended unexpectedly; {what_remains}. It may have run out of memory: "
            f"import the file in parts, or use the command line ({lab_command()} import), which prints more details."
        ) from None
    return reply


def read_text_column(file: str, column: str, runner: ImportRunner = run_in_subprocess) -> tuple[list[str], str]:
    """The texts of a column of a file ("" for the default column), and their source as shown to a person. Raises DataError."""
    reply = runner({"texts": f"{file}:{column}" if column else file})
    if "error" in reply:
        raise DataError(str(reply["error"]))
    return list(reply["texts"]), str(reply["source"])
