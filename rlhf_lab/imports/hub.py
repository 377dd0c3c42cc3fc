"""Rows of a data set on the Hugging Face Hub, through `datasets`, which loads torch: never in the page's process."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from rlhf_lab.errors import DataError
from rlhf_lab.imports.files import Rows
from rlhf_lab.imports.found import USUAL, Limits, Problem, Row

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


def hub_rows(name: str, *, config: str | None = None, split: str = "train", limits: Limits = USUAL) -> tuple[str, Rows]:
    """(digest of the rows, the rows). The first limits.rows are read as they arrive; nothing is kept on disk.

    DataError: there is no such data set or split, or no network.
    """
    rows = list(_read(name, config, split, limits))
    said = hashlib.sha256()
    for row in rows:
        said.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return said.hexdigest(), _numbered(rows, limits)


def _read(name: str, config: str | None, split: str, limits: Limits) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        stream = datasets.load_dataset(name, config, split=split, streaming=True)
        for number, columns in enumerate(stream):
            if number > limits.rows:
                return
            yield dict(columns)
    except Exception as error:  # the Hub, the network, a loader: each raises its own
        said = str(error).strip().split("\n", 1)[0][:200].rstrip(".") or type(error).__name__
        raise DataError(
            f"{name} ({split}) could not be read from the Hub: {said}. Check the name, the split (--split) and the network; or "
            "download a file of it and import that."
        ) from error


def _numbered(rows: list[dict[str, Any]], limits: Limits) -> Rows:
    for number, columns in enumerate(rows[: limits.rows], 1):
        yield Row(number, f"row {number}", columns)
    if len(rows) > limits.rows:
        where = f"row {limits.rows + 1}"
        yield Problem(0, where, f"more than {limits.rows:,} rows. Take a part of them, as in --split train[:1000]")
