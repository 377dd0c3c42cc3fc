"""Files that people hand in are read in a process of its own (`python -m rlhf_lab.importers`).

`datasets` loads torch, and a file made to fill the memory must not take the page with it.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rlhf_lab
from rlhf_lab.errors import DataError

REPOSITORY_ROOT = Path(rlhf_lab.__file__).parents[1]
TIMEOUT_S = 300.0
#: Endings of files with rows; texts alone may also stand in a .txt.
FILE_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".ndjson")

#: run(request as JSON) -> the answer as JSON
ImportRunner = Callable[[dict[str, Any]], dict[str, Any]]


def run_in_subprocess(request: dict[str, Any]) -> dict[str, Any]:
    """Raises DataError when the process ends without an answer, or takes too long."""
    what_remains = "nothing was taken in"
    if request.get("save"):  # an import writes piece by piece, and its pieces stay
        what_remains = "what was taken in until then stays, and the same file again brings the rest"
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "rlhf_lab.importers"], input=json.dumps(request), capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False, cwd=REPOSITORY_ROOT,
        )  # fmt: skip
        result: dict[str, Any] = json.loads(completed.stdout)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"Reading took longer than {TIMEOUT_S / 60:.0f} minutes and was stopped; {what_remains}. Give a part of "
            "it, or use the command line: python -m rlhf_lab."
        ) from None
    except (OSError, ValueError):
        raise DataError(
            f"The process that reads the file ended without an answer; {what_remains}. The file may need more memory than "
            "there is: give it in parts, or on the command line (python -m rlhf_lab), which says more."
        ) from None
    return result


def read_text_column(file: str, column: str, runner: ImportRunner = run_in_subprocess) -> tuple[list[str], str]:
    """The texts of a column of a file ("": the usual one), and what a person calls them. Raises DataError."""
    result = runner({"texts": f"{file}:{column}" if column else file})
    if "error" in result:
        raise DataError(str(result["error"]))
    return list(result["texts"]), str(result["source"])
