"""Rows of a data set on the Hugging Face Hub. `datasets` loads torch: never use this in the page's process."""

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from rlhf_lab.errors import DataError
from rlhf_lab.importers.parsed_rows import DEFAULT_LIMITS, Limits, RowError, SourceRow
from rlhf_lab.importers.readers import RowStream

HUB_ID_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(text: str) -> bool:
    return HUB_ID_PATTERN.fullmatch(text) is not None


def read_hub_rows(
    hub_id: str, *, config_name: str | None = None, split: str = "train", limits: Limits = DEFAULT_LIMITS
) -> tuple[str, RowStream]:
    """(digest of the rows, the rows). Streams the first limits.max_rows rows; nothing is stored on disk.

    Raises DataError if there is no such data set or split, or no network.
    """
    rows = list(_stream_rows(hub_id, config_name, split, limits))
    hasher = hashlib.sha256()
    for row in rows:
        hasher.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return hasher.hexdigest(), _number_rows(rows, limits)


def _stream_rows(hub_id: str, config_name: str | None, split: str, limits: Limits) -> Iterator[dict[str, Any]]:
    import datasets

    try:
        stream = datasets.load_dataset(hub_id, config_name, split=split, streaming=True)
        for index, cells in enumerate(stream):
            if index > limits.max_rows:
                return
            yield dict(cells)
    except Exception as error:  # Hub, network and dataset loaders raise exceptions of many types
        reason = str(error).strip().split("\n", 1)[0][:200].rstrip(".") or type(error).__name__
        raise DataError(
            f"{hub_id} ({split}) could not be read from the Hub: {reason}. Check the name, the split (--split) and the "
            "network; or download a file of it and import that."
        ) from error


def _number_rows(rows: list[dict[str, Any]], limits: Limits) -> RowStream:
    for row_number, cells in enumerate(rows[: limits.max_rows], 1):
        yield SourceRow(row_number, f"row {row_number}", cells)
    if len(rows) > limits.max_rows:
        location = f"row {limits.max_rows + 1}"
        yield RowError(
            0, location, f"more than {limits.max_rows:,} rows. Take a part of them, as in --split train[:1000]"
        )
