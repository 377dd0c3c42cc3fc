"""The prompt's column, where no column has one of the usual names: the messages of a conversation; or the only text column if its
name means a prompt; else the user says which it is, or that it is the shared beginning of the two texts."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rlhf_lab.common.chat_format import is_transcript, normalize_transcript
from rlhf_lab.importers.cell_parsers import normalize_cell
from rlhf_lab.importers.cells import is_blank, read_cell
from rlhf_lab.importers.column_mapping import (
    CHOSEN_REJECTED,
    CONVERSATION_NAMES,
    FURTHER_PROMPT_NAMES,
    ColumnMapping,
    ColumnMappingError,
)
from rlhf_lab.importers.parsed_rows import SourceRow
from rlhf_lab.importers.remedies import map_option
from rlhf_lab.importers.vote_readings import is_number_or_bool


def map_prompt(
    mapping: ColumnMapping,
    overrides: Mapping[str, str],
    rows: Iterable[SourceRow],
    filled_columns: list[str],
    available: Iterable[str],
) -> ColumnMapping:
    """The mapping with the prompt's column. Raises ColumnMappingError if only the user knows it.

    available: columns and parts of columns, of which the user can choose; filled_columns: columns that hold something.
    """
    if "prompt" in mapping.by_meaning or "prompt" in overrides or overrides.get("history"):
        return mapping  # earlier turns that the user maps end with the prompt
    rows = list(rows)
    may_be_shared = mapping.row_format == CHOSEN_REJECTED
    text = "chosen" if may_be_shared else "first"
    if all(_is_whole_conversation(mapping.value(row.cells, text)) for row in rows):
        return mapping
    used = mapping.used_columns
    if "annotator" not in overrides:  # "user" can be the annotator as well as what the user of a chat wrote
        used -= {name for name in used if name.lower() == "user"}
    candidates = [
        name
        for name in filled_columns
        if name not in used
        and not (name.lower() == "history" and "history" in overrides)
        and (name.lower() in FURTHER_PROMPT_NAMES or any(_holds_text(row.cells.get(name)) for row in rows))
    ]
    conversations = [name for name in candidates if name.lower() in CONVERSATION_NAMES]
    if len(conversations) == 1:
        return replace(mapping, by_meaning=mapping.by_meaning | {"prompt": conversations[0]})
    if not candidates and not may_be_shared:
        return mapping
    if not candidates:
        sides = f"{mapping.by_meaning['chosen']} and {mapping.by_meaning['rejected']}"
        raise ColumnMappingError(
            f"No column holds the prompt. It may be the shared beginning of {sides}, if their texts begin with it.",
            f"If it is: {map_option('prompt')}.",
            available,
        )
    if len(candidates) == 1 and candidates[0].lower() in FURTHER_PROMPT_NAMES:
        return replace(mapping, by_meaning=mapping.by_meaning | {"prompt": candidates[0]})
    names = " or ".join(f'"{name}"' for name in candidates[:6])
    shared = ", or be the shared beginning of the two texts" if may_be_shared else ""
    raise ColumnMappingError(
        f"No column is called prompt. The prompt may be in {names}{shared}.",
        f"Say which: {map_option('prompt', candidates[0])}"
        + (f", or {map_option('prompt')} for the shared beginning." if shared else "."),
        available,
    )


def _is_whole_conversation(chosen: Any) -> bool:
    """Whether the chosen text is a chat or a transcript, which contains its prompt. Missing and unreadable ones may be."""
    cell = read_cell(chosen)
    chosen = cell.value
    if isinstance(chosen, list) and not cell.error:
        return len(chosen) > 1
    return bool(cell.error) or chosen is None or is_transcript(normalize_transcript(str(chosen), is_prompt=False))


def _holds_text(value: Any) -> bool:
    """Whether a cell can hold a prompt: a text that is no number, or a list or an object with one."""
    if isinstance(value, str):
        return not is_blank(value) and not is_number_or_bool(normalize_cell(value))
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and any(map(_holds_text, value))
