"""Files that people hand in are read in a process of its own (`python -m rlhf_lab.imports`).

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

ROOT = Path(rlhf_lab.__file__).parents[1]
PATIENCE_S = 300.0
#: Endings of files with rows; texts alone may also stand in a .txt.
KINDS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".ndjson")

#: run(request as JSON) -> the answer as JSON
Run = Callable[[dict[str, Any]], dict[str, Any]]


def in_a_process(request: dict[str, Any]) -> dict[str, Any]:
    """Raises DataError when the process ends without an answer, or takes too long."""
    left = "nothing was taken in"
    if request.get("save"):  # an import writes piece by piece, and its pieces stay
        left = "what was taken in until then stays, and the same file again brings the rest"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "rlhf_lab.imports"], input=json.dumps(request), capture_output=True, text=True,
            timeout=PATIENCE_S, check=False, cwd=ROOT,
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"Reading took longer than {PATIENCE_S / 60:.0f} minutes and was stopped; {left}. Give a part of "
            "it, or use the command line: python -m rlhf_lab."
        ) from None
    except (OSError, ValueError):
        raise DataError(
            f"The process that reads the file ended without an answer; {left}. The file may need more memory than "
            "there is: give it in parts, or on the command line (python -m rlhf_lab), which says more."
        ) from None
    return answer


def texts_in(file: str, column: str, run: Run = in_a_process) -> tuple[list[str], str]:
    """The texts of a column of a file ("": the usual one), and what a person calls them. Raises DataError."""
    answer = run({"texts": f"{file}:{column}" if column else file})
    if "error" in answer:
        raise DataError(str(answer["error"]))
    return list(answer["texts"]), str(answer["source"])
