"""Which published layout a file has, and its rows as rows of two texts.

A layout is recognised by its columns (LAYOUTS), or by the content of all cells of a column (CELL_KINDS). The user's mapping takes
precedence over a layout.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rlhf_lab.importers.cell_parsers import is_blank
from rlhf_lab.importers.column_mapping import (
    ColumnMappingError,
    cell_at,
    has_text_pair,
    is_own_export,
    is_prompt_name,
)
from rlhf_lab.importers.comparisons import (
    CellExpansion,
    Cells,
    RowExpansion,
    cut_conversations,
    expand_each,
    is_answer_list,
    is_response_list,
    join_responses,
    limit_rows,
    list_in,
    pair_ranked_messages,
    pair_rated_rows,
    split_annotations,
    split_answer_list,
    split_parallel_lists,
    split_responses,
    split_tree,
)
from rlhf_lab.importers.parsed_rows import RowError, SourceRow
from rlhf_lab.importers.vote_readings import SIGNED_SCALE

SUMMARIES = {
    "first": "summaries.0.text",
    "second": "summaries.1.text",
    "choice": "choice",
    "annotator": "worker",
    "split": "",
}
TEXT_LIST_NAMES = ("generations", "responses", "completions", "answers")
SCORE_LIST_NAMES = ("ratings", "rating", "scores")


@dataclass(frozen=True)
class Layout:
    """A published layout.

    Attributes:
        columns: paths, each of which has a value in at least one row.
        mapping, choices: as given with --map and --choices.
        expand: makes rows of two texts; None if they are that already.
    """

    name: str
    columns: tuple[str, ...]
    mapping: Mapping[str, str] = field(default_factory=dict)
    choices: str = ""
    expand: RowExpansion | None = None


LAYOUTS = (
    Layout("PandaLM", ("instruction", "response1", "response2", "annotator1"), choices="0=tie,1=first,2=second"),
    Layout("SHP", ("history", "human_ref_A", "human_ref_B", "labels"),
           {"prompt": "history", "first": "human_ref_A", "second": "human_ref_B", "choice": "labels"}, "1=first,0=second"),
    Layout("summarize_from_feedback", ("info.post", "summaries.1.text", "choice"), {"prompt": "info.post", **SUMMARIES},
           "0=first,1=second"),
    Layout("summarize_from_feedback", ("info.article", "summaries.1.text", "choice"), {"prompt": "info.article", **SUMMARIES},
           "0=first,1=second"),
    Layout("HelpSteer2", ("preference_strength", "response_1", "response_2"), {"choice": "preference_strength", "split": ""},
           SIGNED_SCALE),
    Layout("HelpSteer3", ("overall_preference", "response1", "response2"), {"choice": "overall_preference"}, SIGNED_SCALE),
    Layout("HelpSteer2", ("prompt", "response", "helpfulness"),
           {"score_first": "helpfulness_a", "score_second": "helpfulness_b", "split": ""},
           expand=pair_rated_rows("prompt", "response", "helpfulness")),
    Layout("OpenAssistant", ("prompt.replies",), expand=expand_each(split_tree)),
    Layout("OpenAssistant", ("message_id", "parent_id", "text", "role", "rank"), expand=pair_ranked_messages),
    Layout("Chatbot Arena", ("conversation_a", "conversation_b", "turn"), expand=expand_each(cut_conversations)),
    Layout("Label Studio", ("data", "annotations.0.result"), expand=expand_each(split_annotations)),
    Layout("Argilla", ("fields", "responses"), expand=expand_each(join_responses)),
    Layout("Argilla", ("*.responses.users",), expand=expand_each(join_responses)),
)  # fmt: skip


@dataclass(frozen=True)
class UnfoldedRows:
    """Rows of two texts; mapping, choices: what is known about them, as given with --map and --choices."""

    rows: Sequence[SourceRow | RowError]
    mapping: dict[str, str] = field(default_factory=dict)
    choices: str = ""


def unfold_rows(rows: Sequence[SourceRow | RowError], overrides: Mapping[str, str], max_rows: int) -> UnfoldedRows:
    """The rows of a file as at most max_rows rows of two texts.

    Raises ColumnMappingError if only the user knows which column holds the votes.
    """
    columns = list(dict.fromkeys(column for row in rows if isinstance(row, SourceRow) for column in row.cells))
    if is_own_export(columns):
        return UnfoldedRows(rows)
    has_pair = has_text_pair(columns, overrides)
    candidates = [layout for layout in LAYOUTS if not (has_pair and "score_first" in layout.mapping)]
    layout = next((layout for layout in candidates if _has_layout(layout, columns, rows)), Layout("", ()))
    if layout.expand is not None:
        rows = limit_rows(layout.expand(rows), max_rows, "comparisons")
    expansions, mapping = _expansions_of_columns(_column_kinds(rows), rows, overrides)
    for expand in expansions:
        rows = limit_rows(expand_each(expand)(rows), max_rows, "comparisons")
    mapping = {meaning: column for meaning, column in layout.mapping.items() if meaning not in overrides} | mapping
    choices = layout.choices if overrides.get("choice", mapping.get("choice")) == mapping.get("choice") else ""
    return UnfoldedRows(rows, mapping, choices)


def _has_layout(layout: Layout, columns: Sequence[str], rows: Sequence[SourceRow | RowError]) -> bool:
    """Whether each of the layout's paths has a value in at least one row. A path that begins with * may have any beginning."""
    for path in layout.columns:
        suffix = path.removeprefix("*")
        names = [name for name in columns if name.endswith(suffix)] if suffix != path else [path]
        names = [name for name in names if name.split(".", 1)[0] in columns or name in columns]
        cells = (cell_at(row.cells, name) for name in names for row in rows if isinstance(row, SourceRow))
        if all(map(is_blank, cells)):
            return False
    return True


def _expansions_of_columns(
    kinds: Mapping[str, str], rows: Iterable[SourceRow | RowError], overrides: Mapping[str, str]
) -> tuple[list[CellExpansion], dict[str, str]]:
    """(what is to be done with each row, mapping), by what the columns hold."""
    columns = {kind: [name for name in kinds if kinds[name] == kind] for kind in CELL_KINDS}
    expansions: list[CellExpansion] = []
    if columns["side"] or columns["texts"]:
        expansions.append(partial(_decode_columns, columns["side"] + columns["texts"]))
    mapping = {"choice": columns["side"][0]} if columns["side"] else {}
    if columns["rounds"] and any(map(is_prompt_name, kinds)):
        mapping["history"] = columns["rounds"][0]
    texts = [name for name in columns["texts"] if name in TEXT_LIST_NAMES]
    scores = [name for name in columns["numbers"] if name in SCORE_LIST_NAMES]
    if responses := columns["responses"]:
        if column := _choose_responses(responses, overrides):
            values = [
                item["value"] for row in rows if isinstance(row, SourceRow) for item in list_in(row.cells, column)
            ]
            mapping |= {} if any(isinstance(value, list | dict) for value in values) else {"choice": column}
            expansions.append(partial(split_responses, column))
    elif has_text_pair(kinds, overrides):
        pass
    elif len(columns["answers"]) == 1:
        expansions.append(partial(split_answer_list, columns["answers"][0]))
    elif len(texts) == len(scores) == 1:
        expansions.append(partial(split_parallel_lists, texts[0], scores[0]))
    return expansions, mapping


def _choose_responses(columns: Sequence[str], overrides: Mapping[str, str]) -> str:
    """Which of the columns with responses of people holds their votes; "" if the user maps another column."""
    if "choice" in overrides:
        return overrides["choice"] if overrides["choice"] in columns else ""
    if len(columns) > 1:
        options = " or ".join(f"--map choice={name}" for name in columns[:6])
        raise ColumnMappingError(
            f"Several columns hold answers of people: {', '.join(columns[:12])}.",
            f"Say which of them says which text is better: {options}.",
            columns,
        )
    return columns[0]


def _column_kinds(rows: Iterable[SourceRow | RowError]) -> dict[str, str]:
    """Column -> the kind of all its cells that hold something; "" for another kind than CELL_KINDS."""
    possible: dict[str, list[str] | None] = {}  # None: all cells of the column are empty so far
    for row in rows:
        for column, value in row.cells.items() if isinstance(row, SourceRow) else ():
            kinds = possible.setdefault(column, None)
            if kinds != [] and not is_blank(value) and value not in ([], {}):
                decoded = _decode(value)
                possible[column] = [
                    kind for kind in (CELL_KINDS if kinds is None else kinds) if CELL_KINDS[kind](decoded)
                ]
    return {column: kinds[0] if kinds else "" for column, kinds in possible.items()}


def _decode(value: Any) -> Any:
    """A text that is a list or an object in JSON as that; any other value unchanged."""
    if isinstance(value, str) and value[:1] in ("[", "{") and value[-1:] in ("]", "}"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _decode_columns(columns: Sequence[str], cells: Cells) -> Iterator[Cells]:
    """The cells with lists of texts instead of their JSON, and the selected side instead of {"selected": side}."""
    decoded = {name: _decode(cells[name]) for name in columns if not is_blank(cells.get(name))}
    yield cells | {name: value["selected"] if isinstance(value, dict) else value for name, value in decoded.items()}


def _is_list_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(item) in (*types, type(None)) for item in value)


def _is_rounds(value: Any) -> bool:
    """Whether a cell holds earlier rounds of a conversation: [[question, answer], …]."""
    return isinstance(value, list) and all(
        isinstance(item, list) and list(map(type, item)) == [str, str] for item in value
    )


#: What the cells of a column can hold, and how it is recognised.
CELL_KINDS: dict[str, Callable[[Any], bool]] = {
    "answers": is_answer_list,
    "responses": is_response_list,
    "side": lambda value: isinstance(value, dict) and "selected" in value,
    "rounds": _is_rounds,
    "texts": _is_list_of(str),
    "numbers": _is_list_of(int, float),
}
