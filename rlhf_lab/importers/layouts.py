"""Which published layout a file has, and its rows as rows of two texts.

A layout is recognised by its columns (LAYOUTS), or by what all cells of a column hold. The user's mapping takes
precedence over a layout.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rlhf_lab.importers.cell_parsers import SIGNED_SCALE, name_key
from rlhf_lab.importers.cells import Kind, is_empty_cell, one_result, read_cell
from rlhf_lab.importers.column_mapping import (
    MEANINGS,
    ColumnMappingError,
    cell_at,
    has_meaning,
    has_text_pair,
    is_annotator_name,
    is_own_export,
)
from rlhf_lab.importers.comparisons import (
    CellExpansion,
    Cells,
    RowExpansion,
    cut_conversations,
    expand_each,
    join_responses,
    limit_rows,
    list_in,
    pair_ranked_messages,
    pair_rated_rows,
    pair_text_lists,
    split_annotations,
    split_answer_list,
    split_candidates,
    split_parallel_lists,
    split_ranking,
    split_rejected_response,
    split_responses,
    split_tree,
)
from rlhf_lab.importers.options import find_options
from rlhf_lab.importers.parsed_rows import RowError, SourceRow, list_columns, list_filled_columns
from rlhf_lab.importers.remedies import map_option

SUMMARIES = {
    "first": "summaries.0.text",
    "second": "summaries.1.text",
    "choice": "choice",
    "annotator": "worker",
    "split": "",
}
PRODIGY = {"first": "options.0.text", "second": "options.1.text", "choice": "accept"}
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
    Layout("OpenAI", ("input.messages", "preferred_output", "non_preferred_output"),
           {"prompt": "input.messages", "chosen": "preferred_output", "rejected": "non_preferred_output"}),
    Layout("ms-swift", ("messages", "rejected_messages"), {"prompt": "", "chosen": "messages", "rejected": "rejected_messages"}),
    Layout("ms-swift", ("messages", "rejected_response"), expand=expand_each(split_rejected_response)),
    Layout("Amazon Nova", ("messages.*.candidates",), expand=expand_each(split_candidates)),
    Layout("Prodigy", ("text", "options.1.text", "accept"), {"prompt": "text", **PRODIGY}),
    Layout("Prodigy", ("options.1.text", "accept"), PRODIGY),
    Layout("Argilla", ("fields", "responses"), expand=expand_each(join_responses)),
    Layout("Argilla", ("*.responses.users",), expand=expand_each(join_responses)),
)  # fmt: skip


@dataclass(frozen=True)
class ExpandedRows:
    """Rows of two texts; mapping, choices: what is known about them, as given with --map and --choices."""

    rows: Sequence[SourceRow | RowError]
    mapping: dict[str, str] = field(default_factory=dict)
    choices: str = ""


def expand_rows(
    rows: Sequence[SourceRow | RowError], overrides: Mapping[str, str], max_rows: int, answers: Collection[str] = ()
) -> ExpandedRows:
    """The rows of a file as at most max_rows rows of two texts. answers: keys of ANSWERS.

    Raises ColumnMappingError if only the user knows which column holds the votes, or which texts of two lists are compared.
    """
    columns = list_columns(rows)
    if is_own_export(columns):
        return ExpandedRows(rows)
    has_pair = has_text_pair(columns, overrides)
    candidates = [layout for layout in LAYOUTS if not (has_pair and _makes_pairs(layout))]
    layout = next((layout for layout in candidates if _has_layout(layout, columns, rows)), Layout("", ()))
    if layout.expand is not None:
        rows = limit_rows(layout.expand(rows), max_rows, "comparisons")
    kinds = _column_kinds(rows)
    kinds |= dict.fromkeys(_plain_columns(kinds, rows, {**layout.mapping, **overrides}, answers), Kind.OTHER)
    expansions, mapping = _expansions_of_columns(kinds, rows, {**layout.mapping, **overrides})
    expansions += _expansions_of_text_lists(kinds, rows, overrides, answers)
    source_rows = [row for row in rows if isinstance(row, SourceRow)]
    is_paired = not {Kind.RESPONSES, Kind.RANKING, Kind.ANSWERS}.isdisjoint(kinds.values())
    known = {**layout.mapping, **overrides}
    if not is_paired and (options := find_options(list(kinds), known, source_rows, answers)) is not None:
        expansions.append(options.expand)
        mapping |= {"choice": options.vote} if options.vote else {}
    for expand in expansions:
        rows = limit_rows(expand_each(expand)(rows), max_rows, "comparisons")
    mapping = {meaning: column for meaning, column in layout.mapping.items() if meaning not in overrides} | mapping
    choices = layout.choices if overrides.get("choice", mapping.get("choice")) == mapping.get("choice") else ""
    return ExpandedRows(rows, mapping, choices)


def _makes_pairs(layout: Layout) -> bool:
    """Whether a layout makes two texts of what is none; a file with a pair of texts does not have it."""
    return "score_first" in layout.mapping or layout.name in ("OpenAI", "ms-swift", "Amazon Nova")


def _has_layout(layout: Layout, columns: Sequence[str], rows: Sequence[SourceRow | RowError]) -> bool:
    """Whether each of the layout's paths has a value in at least one row. A path that begins with * may have any beginning;
    NAME.*.KEY is the key of any item of a list."""
    for path in layout.columns:
        if ".*." in path:
            name, key = path.split(".*.")
            lists = (read_cell(row.cells.get(name)).decoded for row in rows if isinstance(row, SourceRow))
            items = (item for value in lists if isinstance(value, list) for item in value)
            if not any(isinstance(item, dict) and item.get(key) for item in items):
                return False
            continue
        suffix = path.removeprefix("*")
        names = [name for name in columns if name.endswith(suffix)] if suffix != path else [path]
        names = [name for name in names if name.split(".", 1)[0] in columns or name in columns]
        cells = (cell_at(row.cells, name) for name in names for row in rows if isinstance(row, SourceRow))
        if all(map(is_empty_cell, cells)):
            return False
    return True


def _expansions_of_columns(
    kinds: Mapping[str, Kind], rows: Iterable[SourceRow | RowError], known: Mapping[str, str]
) -> tuple[list[CellExpansion], dict[str, str]]:
    """(what is to be done with each row, mapping), by what the columns hold. known: the mapping of the user and the layout.

    A column with answers of people, or with a selected side, holds the votes if it is called so; else only if nothing else
    says the vote.
    """
    columns = {kind: [name for name in kinds if kinds[name] is kind] for kind in Kind}
    expansions: list[CellExpansion] = []
    texts = [name for name in columns[Kind.TEXTS] if name in TEXT_LIST_NAMES]
    scores = [name for name in columns[Kind.NUMBERS] if name in SCORE_LIST_NAMES]
    has_scored_list = len(columns[Kind.ANSWERS]) == 1 or len(texts) == len(scores) == 1
    votes = columns[Kind.SIDE] + columns[Kind.RESPONSES]
    others = [name for name in list_filled_columns(rows) if name not in votes]
    if has_scored_list or _says_vote(others, known):
        votes = [name for name in votes if has_meaning(name, "choice")]
    vote = _choose_votes([*votes, *(name for name in others if votes and has_meaning(name, "choice"))], known)
    decoded = columns[Kind.TEXTS] + ([vote] if vote in columns[Kind.SIDE] else [])
    if decoded:
        expansions.append(partial(_decode_columns, decoded))
    mapping = {"choice": vote} if vote in columns[Kind.SIDE] else {}
    turns = columns[Kind.CHAT] + columns[Kind.ROUNDS]
    histories = [name for name in turns if name_key(name) == "history" and name not in known.values()]
    if histories and (any(has_meaning(name, "prompt") for name in kinds) or "prompt" in known):
        mapping["history"] = histories[0]
    if vote in columns[Kind.RESPONSES]:
        values = [item["value"] for row in rows if isinstance(row, SourceRow) for item in list_in(row.cells, vote)]
        mapping |= {} if any(isinstance(value, list | dict) for value in values) else {"choice": vote}
        expansions.append(partial(split_responses, vote))
    elif has_text_pair(kinds, known):
        pass
    elif len(columns[Kind.ANSWERS]) == 1:
        expansions.append(partial(split_answer_list, columns[Kind.ANSWERS][0]))
    elif len(columns[Kind.RANKING]) == 1:
        expansions.append(partial(split_ranking, columns[Kind.RANKING][0]))
    elif len(texts) == len(scores) == 1:
        expansions.append(partial(split_parallel_lists, texts[0], scores[0]))
    return expansions, mapping


def _plain_columns(
    kinds: Mapping[str, Kind], rows: Iterable[SourceRow | RowError], known: Mapping[str, str], answers: Collection[str]
) -> list[str]:
    """Columns with texts that look like lists, such as '["a"]', and are taken as the texts that they are.

    They are lists if prompt and answers all are, as turns; or if chosen and rejected are and the user says how to compare them.
    """
    inputs = [name for name in kinds if has_meaning(name, "input") or name == known.get("input")]
    lists = _list_columns(kinds, known)
    sides = {"chosen", "rejected"} <= set(lists) or {"first", "second"} <= set(lists)
    if "texts=plain" not in answers and (
        ("prompt" in lists and sides) or any(answer.startswith("lists=") for answer in answers)
        or _find_text_lists(kinds, known, rows)
    ):  # fmt: skip
        return _columns_of_strings(inputs, rows)
    return _columns_of_strings([*inputs, *lists.values()], rows)


def _list_columns(kinds: Mapping[str, Kind], known: Mapping[str, str]) -> dict[str, str]:
    """Meaning -> the column with lists of texts that has it."""
    lists = [name for name, kind in kinds.items() if kind is Kind.TEXTS]
    by_meaning = {
        meaning: next((name for name in lists if name == known.get(meaning) or has_meaning(name, meaning)), "")
        for meaning in ("prompt", "chosen", "rejected", "first", "second")
    }
    return {meaning: name for meaning, name in by_meaning.items() if name}


def _find_text_lists(
    kinds: Mapping[str, Kind], known: Mapping[str, str], rows: Iterable[SourceRow | RowError]
) -> tuple[str, ...]:
    """The columns of the chosen and the rejected texts if a cell of them is a list of texts; else none.

    If the prompt is a list too, they are turns. A list of one text, if it is no text that only looks like one, is that text.
    """
    if "prompt" in _list_columns(kinds, known):
        return ()
    sides = tuple(
        next((name for name in kinds if name == known.get(meaning) or has_meaning(name, meaning)), "")
        for meaning in ("chosen", "rejected")
    )
    cells = [row.cells.get(name) for row in rows if isinstance(row, SourceRow) for name in sides]
    return sides if all(sides) and any(map(_is_unclear_list, cells)) else ()


def _is_unclear_list(cell: Any) -> bool:
    texts = read_cell(cell)
    return texts.kind is Kind.TEXTS and not texts.error and (len(texts.decoded) > 1 or isinstance(cell, str))


def _columns_of_strings(columns: Iterable[str], rows: Iterable[SourceRow | RowError]) -> list[str]:
    cells = [row.cells for row in rows if isinstance(row, SourceRow)]
    return [name for name in columns if any(isinstance(row.get(name), str) for row in cells)]


def _expansions_of_text_lists(
    kinds: Mapping[str, Kind],
    rows: Iterable[SourceRow | RowError],
    overrides: Mapping[str, str],
    answers: Collection[str],
) -> list[CellExpansion]:
    """What is to be done with rows that have lists of chosen or rejected texts."""
    sides = _find_text_lists(kinds, overrides, rows)
    if not sides or "texts=plain" in answers:
        return []
    chosen, rejected = sides
    choices = ("lists=all", "lists=paired")
    answer = next((answer for answer in choices if answer in answers), "")
    if not answer:
        plain = ("texts=plain",) if _columns_of_strings((chosen, rejected), rows) else ()
        message = f"{chosen} and {rejected} hold lists of one or several texts."
        raise ColumnMappingError(message, answers=(*choices, *plain), columns=kinds)
    return [partial(pair_text_lists, chosen, rejected, answer == "lists=paired")]


def _says_vote(columns: Collection[str], known: Mapping[str, str]) -> bool:
    """Whether one of these columns, or the known mapping, says which text is better."""
    mentioned = {
        meaning
        for meaning in MEANINGS
        if (known[meaning] if meaning in known else any(has_meaning(name, meaning) for name in columns))
    }
    pairs = (("chosen", "rejected"), ("first_wins", "second_wins"), ("score_first", "score_second"))
    is_decided = "choice" in mentioned or any(mentioned.issuperset(pair) for pair in pairs)
    return is_decided or "annotators" in mentioned or sum(map(is_annotator_name, columns)) > 1


def _choose_votes(columns: Sequence[str], known: Mapping[str, str]) -> str:
    """Which of the columns with answers of people or selected sides holds the votes; "" if none does."""
    if "choice" in known:
        return known["choice"]
    if len(columns) > 1:
        options = " or ".join(map_option("choice", name) for name in columns[:6])
        raise ColumnMappingError(
            f"Several columns hold answers of people: {', '.join(columns[:12])}.",
            f"Say which of them says which text is better: {options}.",
            columns=columns,
        )
    return columns[0] if columns else ""


def _column_kinds(rows: Iterable[SourceRow | RowError]) -> dict[str, Kind]:
    """Column -> the kind of all its cells that hold something; OTHER if they are of several kinds."""
    kinds: dict[str, Kind] = {}
    for row in rows:
        for column, value in row.cells.items() if isinstance(row, SourceRow) else ():
            kind, known = read_cell(value).kind, kinds.get(column, Kind.BLANK)
            kinds[column] = kind if known is Kind.BLANK else known if kind in (Kind.BLANK, known) else Kind.OTHER
    return kinds


def _decode_columns(columns: Sequence[str], cells: Cells) -> Iterator[Cells]:
    """The cells with lists of texts instead of their JSON, and the selected side instead of {"selected": side}."""
    decoded = {name: read_cell(cells[name]).decoded for name in columns if not is_empty_cell(cells.get(name))}
    yield cells | {name: one_result(value).get("selected", value) for name, value in decoded.items()}
