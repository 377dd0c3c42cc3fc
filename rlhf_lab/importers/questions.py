"""Texts, numbers and dates that can mean something else than they seem to: the user is asked, and nothing is decided silently."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlhf_lab.common.chat_format import (
    CONTENT_KEYS,
    UnreadableError,
    begins_with_turn,
    is_message,
    is_transcript,
    looks_like_transcript,
    normalize_transcript,
    parse_prompt,
    role_of,
    without_prompt,
)
from rlhf_lab.importers.cell_parsers import (
    NOTATIONS,
    choice_of_name,
    choice_of_word,
    day_and_month,
    is_number_or_bool,
    normalize_cell,
    read_number,
)
from rlhf_lab.importers.cells import Kind, is_empty_cell, is_printed_object, is_rounds, read_cell
from rlhf_lab.importers.column_mapping import (
    CHOSEN_REJECTED,
    CONVERSATION_NAMES,
    FURTHER_PROMPT_NAMES,
    ColumnMapping,
    ColumnMappingError,
    cell_at,
)
from rlhf_lab.importers.parsed_rows import LeftOut, RowError, SourceRow
from rlhf_lab.importers.remedies import map_option
from rlhf_lab.importers.row_options import ParseOptions, votes_in
from rlhf_lab.importers.row_parser import TEXT_MEANINGS, cut_prompt
from rlhf_lab.importers.speakers import divide_turns
from rlhf_lab.importers.text_names import reject_unknown_sides

FURTHER_TEXTS = ("system", "input")
SCORES = (("score_chosen", "score_rejected"), ("score_first", "score_second"))
MAX_NAME_CHARS = 30  # of a speaker
NEARLY_ALL = 0.9  # of the rows
MIN_RANKED_ROWS = 4  # fewer may hold the numbers from 1 on by chance
#: Kind of doubt -> why a row is left out.
UNDIVIDED = {
    "parts": "holds a list or an object",
    "texts": "holds turns that are not divided",
    "chats": "holds messages that cannot be read",
}
KEEP_TURNS = "To keep the turns, write them as messages or as in docs/FORMATS.md"
#: What chat templates write around turns.
TEMPLATE_TOKEN = re.compile(
    r"<\|[A-Za-z_]{2,30}\|>|\[/?INST\]|<</?SYS>>|</?start_of_turn>|<end_of_turn>|<extra_id_\d>|<｜[^｜\n]{2,30}｜>"
    r"|^### ?(?:Instruction|Response|Human|Assistant|User):",
    re.MULTILINE,
)
#: What stands before the first turn of a template: the token that begins a text.
TEXT_START = re.compile(r"\A(?:\s|<s>|<bos>|\[BOS\])+", re.IGNORECASE)

#: A list of texts in quotes without its end.
CUT_LIST = re.compile(r"""\s*\[\s*(["'])(?!.*\1\s*\])(?!.*\]\s*\Z)""", re.DOTALL)


def resolve_text_questions(rows: Iterable[SourceRow | RowError], options: ParseOptions) -> list[SourceRow | RowError]:
    """The rows; LeftOut in place of those with texts in doubt that the user leaves out.

    Raises ColumnMappingError for what only the user can decide.
    """
    resolved: list[SourceRow | RowError] = []
    rows = list(rows)
    printed = _printed_columns(rows, options)
    for row in rows:
        key, column, reason = ("", "", "")
        if isinstance(row, SourceRow) and "first_on_left" not in options.mapping.by_meaning:  # no export of a lab
            key, column, reason = _find_ambiguity(row, options, printed)
        if not key:
            resolved.append(row)
            continue
        answer = "chats" if key == "chats" else "texts"
        if f"{answer}=skip" not in options.answers:
            message = f"{row.location}: {column} {reason}."
            raise ColumnMappingError(message, answers=(f"{answer}=plain", f"{answer}=skip"))
        resolved.append(LeftOut(row.row_number, row.location, f"{column} {UNDIVIDED[key]}"))
    return resolved


def texts_of(rows: Iterable[SourceRow | RowError], options: ParseOptions, meaning: str) -> list[str]:
    """The texts in the column of a meaning that are no chats."""
    cells = (read_cell(options.mapping.value(row.cells, meaning)) for row in rows if isinstance(row, SourceRow))
    return [cell.value for cell in cells if cell.kind is Kind.TEXT]


def _printed_columns(rows: Iterable[SourceRow | RowError], options: ParseOptions) -> set[str]:
    """The meanings of columns at least half of whose texts look like objects that a program printed."""
    shares = {meaning: list(map(is_printed_object, texts_of(rows, options, meaning))) for meaning in TEXT_MEANINGS}
    return {
        meaning for meaning, are_printed in shares.items() if are_printed and 2 * sum(are_printed) >= len(are_printed)
    }


def _find_ambiguity(row: SourceRow, options: ParseOptions, printed: Collection[str]) -> tuple[str, str, str]:
    """(key of UNDIVIDED, column, what its text looks like) for the first text in doubt; three times "" for none."""
    mapping = options.mapping
    for meaning in (*TEXT_MEANINGS, *FURTHER_TEXTS):
        column = mapping.by_meaning.get(meaning, "")
        value, problem = _try_chat(mapping.value(row.cells, meaning), meaning)
        if not problem and meaning in printed and isinstance(value, str) and is_printed_object(value):
            problem = "looks like an object that a program printed, in a form that the lab cannot read"
        if problem and "chats=plain" not in options.answers:
            return "chats", column, problem
        if "texts=plain" in options.answers or meaning not in TEXT_MEANINGS:
            continue
        if meaning != "prompt" and not problem and (reason := _hidden_parts(value, meaning, column)):
            return "parts", column, reason
        if not isinstance(value, str):
            continue
        if _is_transcript_of(options.speakers, value, meaning, options):
            if all(options.speakers.values()):
                continue
            return "texts", column, "is a transcript"
        if "prompt" in mapping.by_meaning and meaning != "prompt":
            reason = _hidden_turns_of_answer(without_prompt(value, _prompt_alone(row, options)))
        else:
            reason = _hidden_turns(value, meaning)
        if reason:
            return "texts", column, f"{reason}. As it is, all of it would be one text. {KEEP_TURNS}"
    return "", "", ""


def _is_transcript_of(speakers: Iterable[str], text: str, meaning: str, options: ParseOptions) -> bool:
    is_prompt = meaning == "prompt" or "prompt" not in options.mapping.by_meaning
    return divide_turns(text, dict.fromkeys(speakers, "user"), is_prompt=is_prompt) is not text


def _try_chat(value: Any, meaning: str) -> tuple[Any, str]:
    """(the messages in a cell or the cell, what says that a text holds messages that would be one text or "")."""
    cell = read_cell(value)
    if cell.error:
        return value, cell.error
    chat = cell.value
    is_hidden = isinstance(chat, list) and isinstance(value, str) and meaning in FURTHER_TEXTS
    return chat, "holds messages, where the lab reads one text" if is_hidden else ""


def _hidden_parts(value: Any, meaning: str, column: str) -> str:
    """What says that a cell is a list of texts, whole or cut off, or an object one part of which is the text; or ""."""
    cell = read_cell(value)
    parts = cell.decoded
    keys = [key for key in CONTENT_KEYS if isinstance(parts, dict) and isinstance(parts.get(key), str)]
    if len(keys) == 1 and not is_message(parts):
        return f'is an object with "{keys[0]}". If that is the text: {map_option(meaning, f"{column}.{keys[0]}")}'
    if not isinstance(value, str):
        return ""
    if cell.kind is Kind.TEXTS:
        return "looks like a list of texts. As it is, all of it would be one text"
    return (
        "begins as a list of texts that does not end. As it is, it would be one text" if CUT_LIST.match(value) else ""
    )


def _prompt_alone(row: SourceRow, options: ParseOptions) -> str:
    """The stored prompt of a row; "" if it cannot be read, or has an input after it."""
    value, _ = _try_chat(options.mapping.value(row.cells, "prompt"), "prompt")
    if not is_empty_cell(options.mapping.value(row.cells, "input")):
        return ""
    try:
        return parse_prompt(normalize_transcript(value, is_prompt=True) if isinstance(value, str) else value)
    except UnreadableError:
        return ""


def _hidden_turns_of_answer(text: str) -> str:
    """As `_hidden_turns`, for an answer beside a column with the prompt."""
    if begins_with_turn(text):
        return "begins with the name of a speaker, but not with the turns of the prompt"
    return _hidden_token(text, "chosen")


def _hidden_token(text: str, meaning: str) -> str:
    """What says that a text holds a token of a chat template, or ""."""
    # Models often write such a token within or after an answer; an answer that holds turns begins with one.
    find = TEMPLATE_TOKEN.search if meaning == "prompt" else TEMPLATE_TOKEN.match
    if token := find(TEXT_START.sub("", text)):
        return f"holds {token[0]!r}, which a chat template writes between turns"
    return ""


def _hidden_turns(text: str, meaning: str) -> str:
    """What says that a text holds turns that the lab does not divide, or ""."""
    if reason := _hidden_token(text, meaning):
        return reason
    transcript = normalize_transcript(text, is_prompt=meaning == "prompt")
    is_known = meaning != "prompt" and is_transcript(transcript)
    if not is_known and looks_like_transcript(transcript):
        return "looks like a transcript, but not like one that the lab can divide into turns"
    return ""


def reject_contradictions(rows: Iterable[SourceRow], options: ParseOptions) -> None:
    """Raise ColumnMappingError if a vote is the name of one text in its row, and as a word means the other one."""
    is_answered = not {"votes=names", "votes=words"}.isdisjoint(options.answers)
    for row in rows:
        votes = votes_in(row, options.mapping)
        names = options.names_in(row) if votes else {}
        for vote in votes:
            if (name := choice_of_name(vote, names)) is None:
                continue
            for pair in (*options.name_columns.sure, *options.name_columns.possible):
                if normalize_cell(vote) in (normalize_cell(cell_at(row.cells, column)) for column in pair):
                    reject_unknown_sides(options.mapping, pair, options.answers)
            word = choice_of_word(vote, options.choices)
            if word in (None, name) or is_answered:
                continue
            if options.choices or choice_of_name(vote, options.unambiguous_names_in(row)) is None:
                raise ColumnMappingError(
                    f'{row.location}: the vote is "{str(vote)[:40]}", the name of the {name} text in this row, but as a word it '
                    f"means {word}.",
                    answers=("votes=names", "votes=words"),
                )


def reject_speakers(rows: Iterable[SourceRow], options: ParseOptions) -> None:
    """Raise ColumnMappingError if all pairs of earlier turns begin with what may be names of several speakers."""
    if "history" not in options.mapping.by_meaning or "history=rounds" in options.answers:
        return
    names: dict[str, None] = {}
    for row in rows:
        rounds = read_cell(options.mapping.value(row.cells, "history")).decoded
        starts = [question for question, _ in rounds] if is_rounds(rounds) else []
        names |= (
            {} if any(map(role_of, starts)) else dict.fromkeys(starts)
        )  # with roles it is a chat, or an error of its row
        if not all(map(_may_be_name, names)):
            return
    if len(names) > 1:
        column = options.mapping.by_meaning["history"]
        shown = " and ".join(map(repr, list(names)[:2]))
        raise ColumnMappingError(
            f"{column} holds pairs that begin with {shown}: questions, or names of speakers.",
            "If they are names, call the speakers user, assistant and system in the file, or leave the column out: "
            f"{map_option('history')}. ",
            ("history=rounds",),
        )


def _may_be_name(text: str) -> bool:
    return (
        0 < len(text) <= MAX_NAME_CHARS
        and re.fullmatch(r"[^\W_][\w'’.-]*(?: [\w'’.-]+){0,2}", text.strip()) is not None
    )


def find_notation(rows: Sequence[SourceRow], options: ParseOptions) -> str:
    """How the scores are written, as `parse_number` takes it. Raises ColumnMappingError if only the user knows.

    Without a question, a point comes before decimals: all scores can be read so, and no other reading changes which is higher.
    """
    if answered := next((notation for notation in NOTATIONS if f"numbers={notation}" in options.answers), ""):
        return answered
    meanings = [names for names in SCORES if set(names) <= set(options.mapping.by_meaning)]
    pairs = [[options.mapping.value(row.cells, name) for name in names] for row in rows for names in meanings]
    cells = [cell for pair in pairs for cell in pair if isinstance(cell, str)]
    cells = [cell for cell in cells if any(read_number(cell, name) is not None for name in NOTATIONS)]
    unclear = [cell for cell in cells if read_number(cell, "") is None]
    fitting = [name for name in NOTATIONS if all(read_number(cell, name) is not None for cell in cells)]
    signs = [_sign(pair, "") for pair in pairs]
    if not unclear and all(signs == [_sign(pair, name) for pair in pairs] for name in fitting):
        return ""
    example = unclear[0] if unclear else next(cell for cell in cells if "." in cell)
    other = next((cell for cell in cells if cell != example), example)
    shown = f"{example!r} and {other!r}" if other != example else repr(example)
    offered = [f"numbers={name}" for name in fitting or NOTATIONS]
    raise ColumnMappingError(f"The scores hold {shown}.", answers=offered)


def _sign(pair: Sequence[object], notation: str) -> int | None:
    """Which of two scores is higher: 1 the first, -1 the second, 0 neither; None if one is not a number."""
    a, b = (read_number(cell, notation) for cell in pair)
    return None if a is None or b is None else (a > b) - (a < b)


def find_day_first(rows: Iterable[SourceRow], options: ParseOptions) -> bool | None:
    """Whether the day comes first in dates such as 11/28/2026; None if there are none. Raises ColumnMappingError if only the user
    knows, because no date of the file has a day after the 12th."""
    for answer, day_first in (("dates=day_first", True), ("dates=month_first", False)):
        if answer in options.answers:
            return day_first
    values = [options.mapping.value(row.cells, "created_at") for row in rows]
    dates = [date for value in values if (date := day_and_month(value))]
    fits_day, fits_month = all(month <= 12 for _, month in dates), all(month <= 12 for month, _ in dates)
    if not dates or fits_day != fits_month:
        return fits_day if dates else None
    example = next(value for value in values if day_and_month(value))
    raise ColumnMappingError(
        f"{options.mapping.by_meaning['created_at']} holds dates such as {example[:40]!r}.",
        f"If they are not times, leave the column out: {map_option('created_at')}. ",
        ("dates=day_first", "dates=month_first"),
    )


def find_repeated_prompt(rows: Iterable[SourceRow], options: ParseOptions) -> bool:
    """Whether answers that begin with their plain prompt are what follows it.

    Raises ColumnMappingError if both answers of nearly all rows do, and the user has not said so.
    """
    if "prompt" not in options.mapping.by_meaning or "first_on_left" in options.mapping.by_meaning:
        return False
    sides = ("chosen", "rejected") if options.mapping.row_format == CHOSEN_REJECTED else ("first", "second")
    pairs = [
        (_prompt_alone(row, options).rstrip(), [options.mapping.value(row.cells, side) for side in sides])
        for row in rows
    ]
    plain = [(prompt, texts) for prompt, texts in pairs if all(isinstance(text, str) for text in texts)]
    repeats = [
        (prompt, texts)
        for prompt, texts in plain
        if all(cut_prompt(text, prompt) != text and without_prompt(text, prompt) is text for text in texts)
    ]
    if not repeats or len(repeats) < NEARLY_ALL * len(plain):
        return False
    if not {"prompts=cut", "prompts=keep"} & set(options.answers):
        raise ColumnMappingError(
            f"Both answers begin with the prompt, in {len(repeats)} of {len(plain)} rows, as {repeats[0][0][:40]!r} does.",
            answers=("prompts=cut", "prompts=keep"),
        )
    return "prompts=cut" in options.answers


def find_ranks(rows: Iterable[SourceRow], options: ParseOptions) -> bool:
    """Whether the lower of two scores is better.

    Raises ColumnMappingError if the user has not said so and the scores may be ranks: a column is called so, or the texts of each
    row have the numbers from 1 on, each once.
    """
    names = next((pair for pair in SCORES if set(pair) <= set(options.mapping.by_meaning)), ())
    if not names or {"scores=high", "scores=low"} & set(options.answers):
        return "scores=low" in options.answers
    column = options.mapping.by_meaning[names[0]]
    groups: dict[int, list[float | None]] = defaultdict(list)
    for row in rows:
        groups[row.row_number] += [read_number(options.mapping.value(row.cells, name), "") for name in names]
    counted = [
        set(numbers) == set(range(1, len(set(numbers)) + 1)) and len(set(numbers)) > 1 for numbers in groups.values()
    ]
    may_be_ranks = len(counted) >= MIN_RANKED_ROWS and all(counted)
    if may_be_ranks or re.search(r"(?i)(?<![a-z])rank(?:ing)?(?![a-z])|Rank", column):
        raise ColumnMappingError(
            f"The numbers in {column} may be scores, or ranks, of which 1 is the best.",
            answers=("scores=high", "scores=low"),
        )
    return False


def map_prompt(
    mapping: ColumnMapping,
    overrides: Mapping[str, str],
    rows: Iterable[SourceRow],
    filled_columns: list[str],
) -> ColumnMapping:
    """The mapping with the prompt's column. Raises ColumnMappingError if only the user knows it.

    filled_columns: columns that hold something.
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
        and (name.lower() in FURTHER_PROMPT_NAMES or any(_contains_text(row.cells.get(name)) for row in rows))
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
        )
    if len(candidates) == 1 and candidates[0].lower() in FURTHER_PROMPT_NAMES:
        return replace(mapping, by_meaning=mapping.by_meaning | {"prompt": candidates[0]})
    names = " or ".join(f'"{name}"' for name in candidates[:6])
    shared = ", or be the shared beginning of the two texts" if may_be_shared else ""
    raise ColumnMappingError(
        f"No column is called prompt. The prompt may be in {names}{shared}.",
        f"Say which: {map_option('prompt', candidates[0])}"
        + (f", or {map_option('prompt')} for the shared beginning." if shared else "."),
    )


def _is_whole_conversation(chosen: Any) -> bool:
    """Whether the chosen text is a chat or a transcript, which contains its prompt. Missing and unreadable ones may be."""
    cell = read_cell(chosen)
    chosen = cell.value
    if isinstance(chosen, list) and not cell.error:
        return len(chosen) > 1
    return bool(cell.error) or chosen is None or is_transcript(normalize_transcript(str(chosen), is_prompt=False))


def _contains_text(value: Any) -> bool:
    """Whether a cell can hold a prompt: a text that is not a number, or a list or an object with one."""
    if isinstance(value, str):
        return not is_empty_cell(value) and not is_number_or_bool(normalize_cell(value))
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and any(map(_contains_text, value))
