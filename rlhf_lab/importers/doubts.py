"""Texts and numbers that can mean something else than they seem to: the user is asked, and nothing is decided silently."""

import re
from collections.abc import Collection, Iterable

from rlhf_lab.common.chat_format import looks_like_transcript, normalize_transcript
from rlhf_lab.importers.cell_parsers import is_grouped
from rlhf_lab.importers.column_mapping import ColumnMappingError
from rlhf_lab.importers.parsed_rows import SourceRow
from rlhf_lab.importers.row_parser import TEXT_MEANINGS, ParseOptions

SCORES = ("score_chosen", "score_rejected", "score_first", "score_second")
#: What chat templates write around turns.
TEMPLATE_TOKEN = re.compile(
    r"<\|[A-Za-z_]{2,30}\|>|\[/?INST\]|<</?SYS>>|</?start_of_turn>|<end_of_turn>|<extra_id_\d>|<｜[^｜\n]{2,30}｜>"
    r"|^### ?(?:Instruction|Response|Human|Assistant|User):",
    re.MULTILINE,
)
#: What stands before the first turn of a template: the token that begins a text.
TEXT_START = re.compile(r"\A(?:\s|<s>|<bos>|\[BOS\])+", re.IGNORECASE)


def reject_doubts(
    rows: Iterable[SourceRow], columns: Collection[str], options: ParseOptions, answers: Collection[str]
) -> None:
    """Raise ColumnMappingError for what only the user can decide. answers: keys of ANSWERS."""
    if "first_on_left" in options.mapping.by_meaning:  # an export of a lab says what its cells are
        return
    if "texts=plain" not in answers:
        _reject_turns_in_texts(rows, columns, options)
    if not {"numbers=decimal", "numbers=thousands"} & set(answers):
        _reject_unclear_numbers(rows, columns, options)


def _reject_turns_in_texts(rows: Iterable[SourceRow], columns: Collection[str], options: ParseOptions) -> None:
    mapping = options.mapping
    for row in rows:
        for meaning in TEXT_MEANINGS:
            value = mapping.value(row.cells, meaning)
            if not isinstance(value, str):
                continue
            reason = ""
            # Models often write such a token within or after an answer; an answer that holds turns begins with one.
            find = TEMPLATE_TOKEN.search if meaning == "prompt" else TEMPLATE_TOKEN.match
            if token := find(TEXT_START.sub("", value)):
                reason = f"holds {token[0]!r}, which a chat template writes between turns"
            elif meaning == "prompt" and looks_like_transcript(normalize_transcript(value, is_prompt=True)):
                reason = "looks like a transcript, but not like one that the lab can divide into turns"
            if reason:
                raise ColumnMappingError(
                    f"{row.location}: {mapping.by_meaning[meaning]} {reason}. As it is, all of it would be one text.",
                    "To keep the turns, write them as messages or as in docs/FORMATS.md. ",
                    columns,
                    ("texts=plain",),
                )


def _reject_unclear_numbers(rows: Iterable[SourceRow], columns: Collection[str], options: ParseOptions) -> None:
    """Raise if the points in scores can group digits, and whether they do decides which score is higher."""
    cells = [options.mapping.value(row.cells, meaning) for row in rows for meaning in SCORES]
    texts = [cell.strip() for cell in cells if isinstance(cell, str) and cell.strip()]
    with_point = [text for text in texts if "." in text]
    is_unclear = with_point and all(map(is_grouped, with_point))
    if is_unclear and (len(with_point) < len(texts) or len({text.count(".") for text in with_point}) > 1):
        raise ColumnMappingError(
            f"The scores hold {with_point[0]!r} and {next(text for text in texts if text != with_point[0])!r}.", "", columns,
            ("numbers=decimal", "numbers=thousands"),
        )  # fmt: skip
