"""Custom prompts from text files: one prompt per line, JSON Lines, or CSV. Errors name the line.

A prompt may be a conversation: messages, or a transcript. A final answer is dropped, because the model writes it.
"""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_lab.common.chat_format import TURN_SEPARATOR, UnreadableError, is_transcript, prompt_of_chat, validate_chat
from rlhf_lab.common.paths import regular_file
from rlhf_lab.common.text import parse_foreign_json, pluralize, split_lines
from rlhf_lab.errors import ConfigError

MIN_PROMPTS, MAX_PROMPTS = 4, 20_000
MAX_PROMPT_CHARS = 2_000
MAX_BYTES = 2_000_000
MAX_REPORTED_ERRORS = 5
PROMPT_COLUMNS = ("prompt", "text", "instruction", "question")
CONVERSATION_COLUMNS = ("messages", "conversations")
PROMPT_FILE_SUFFIXES = (".txt", ".jsonl", ".csv")


def read_prompt_file(path: Path) -> list[str]:
    """The prompts of a file. Raises ConfigError."""
    try:
        if regular_file(path).stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path.name} has more than {MAX_BYTES // 1_000_000} MB. Give a part of it.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The prompts in {path} cannot be read ({error}). Give a UTF-8 text file with one prompt per line."
        ) from error
    return parse_prompts(text, path.name)


def parse_prompts(text: str, name: str = "prompts.txt") -> list[str]:
    """The distinct prompts of a text, in order. name: ends in .jsonl or .csv; otherwise the text has one prompt per line.

    Raises ConfigError for invalid lines, and for too few or too many prompts.
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ConfigError(f"These are more than {MAX_BYTES // 1_000_000} MB of prompts. Give fewer of them.")
    text = text.removeprefix("\ufeff")
    suffix = Path(name).suffix.lower()
    rows = _parse_jsonl(text) if suffix == ".jsonl" else _parse_csv(text) if suffix == ".csv" else _parse_lines(text)
    prompts: dict[str, None] = {}
    errors: list[str] = []
    for line_number, prompt in rows:
        if problem := _invalid_reason(prompt):
            errors.append(f"line {line_number}: {problem}")
        elif isinstance(prompt, str) and prompt.strip():
            prompts[_without_margins(prompt)] = None
    if errors:
        more = f"; and {len(errors) - MAX_REPORTED_ERRORS} more" if len(errors) > MAX_REPORTED_ERRORS else ""
        raise ConfigError(
            f"{pluralize(len(errors), 'line')} cannot be used. {'; '.join(errors[:MAX_REPORTED_ERRORS])}{more}. "
            "Correct them and try again."
        )
    if not MIN_PROMPTS <= len(prompts) <= MAX_PROMPTS:
        count_message = (
            "There is 1 different prompt" if len(prompts) == 1 else f"There are {len(prompts):,} different prompts"
        )
        raise ConfigError(
            f"{count_message}; {MIN_PROMPTS} to {MAX_PROMPTS:,} are needed: some to train on, some to evaluate with."
        )
    return list(prompts)


def _without_margins(prompt: str) -> str:
    """A prompt without surrounding white space, except for the two line breaks with which a transcript begins."""
    return TURN_SEPARATOR + prompt.strip() if is_transcript(prompt) else prompt.strip()


def _invalid_reason(prompt: str | UnreadableError) -> str:
    if isinstance(prompt, UnreadableError):
        return str(prompt)
    if len(prompt) > MAX_PROMPT_CHARS:
        return f"{len(prompt):,} characters, more than {MAX_PROMPT_CHARS:,}"
    return "a NUL character" if "\0" in prompt else ""


def _parse_lines(text: str) -> Iterator[tuple[int, str | UnreadableError]]:
    """One prompt per line. `\\n` written within a line is a line break."""
    for number, line in enumerate(split_lines(text), 1):
        yield number, line.strip().replace("\\n", "\n")


def _parse_jsonl(text: str) -> Iterator[tuple[int, str | UnreadableError]]:
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        try:
            value = parse_foreign_json(line)
        except json.JSONDecodeError as error:
            yield number, UnreadableError(f"not JSON, {error.msg.lower()} at character {error.colno}")
            continue
        except ValueError as error:  # nested too deeply, or a number of thousands of digits
            yield number, UnreadableError(f"not usable JSON, {error}")
            continue
        if isinstance(value, dict):
            value = next((value[name] for name in (*PROMPT_COLUMNS, *CONVERSATION_COLUMNS) if name in value), None)
        if isinstance(value, list):
            value = _conversation(value)
        is_prompt = isinstance(value, (str, UnreadableError))
        yield (
            number,
            value if is_prompt else UnreadableError('neither a text nor {"prompt": "a text"}, nor a list of messages'),
        )


def _conversation(messages: list[Any]) -> str | UnreadableError:
    """The prompt of a conversation."""
    try:
        chat = validate_chat(messages)
    except UnreadableError as error:
        return UnreadableError(f"it {error}")
    while chat and chat[-1]["role"] == "assistant":
        chat.pop()
    return prompt_of_chat(chat) if chat else UnreadableError("a conversation without a message of the user")


def _parse_csv(text: str) -> Iterator[tuple[int, str | UnreadableError]]:
    """Reads the column that the header names with one of PROMPT_COLUMNS; without such a header, the first column."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    column: int | None = None
    try:
        for row in reader:
            if column is None:
                header = [cell.strip().lower() for cell in row]
                matches = [header.index(name) for name in PROMPT_COLUMNS if name in header]
                column = matches[0] if matches else 0
                if matches:
                    continue
            if any(cell.strip() for cell in row):
                yield reader.line_num, row[column] if column < len(row) else UnreadableError("a missing column")
    except csv.Error as error:
        yield reader.line_num, UnreadableError(f"not CSV ({error})")
