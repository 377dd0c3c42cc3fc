"""Own prompts, as people have them: a prompt a line, JSON Lines, or CSV. What cannot be read is said with its line."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

from rlhf_lab.counted import counted
from rlhf_lab.errors import ConfigError

LEAST, MOST = 4, 20_000
LONGEST = 2_000  # characters of a prompt
MAX_BYTES = 2_000_000
TOLD = 5  # mistakes named at once
FIELDS = ("prompt", "text", "instruction", "question")
KINDS = (".txt", ".jsonl", ".csv")


def read_prompt_file(path: Path) -> list[str]:
    """The prompts of a file. Raises ConfigError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path.name} has more than {MAX_BYTES // 1_000_000} MB. Give a part of it.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The prompts in {path} cannot be read ({error}). Give a UTF-8 text file, a prompt a line."
        ) from error
    return parse_prompts(text, path.name)


def parse_prompts(text: str, name: str = "prompts.txt") -> list[str]:
    """The prompts of a text, each once, in order; `name` ends in .jsonl or .csv, or it is a prompt a line.

    Raises ConfigError that names the first lines that cannot be used, or says that there are too few or too many.
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ConfigError(f"These are more than {MAX_BYTES // 1_000_000} MB of prompts. Give a part of them.")
    text = text.removeprefix("\ufeff")
    kind = Path(name).suffix.lower()
    rows = _jsonl(text) if kind == ".jsonl" else _csv(text) if kind == ".csv" else _lines(text)
    found: dict[str, None] = {}
    wrong: list[str] = []
    for line, prompt in rows:
        if problem := _problem(prompt):
            wrong.append(f"line {line}: {problem}")
        elif isinstance(prompt, str) and prompt.strip():
            found[prompt.strip()] = None
    if wrong:
        more = f"; and {len(wrong) - TOLD} more" if len(wrong) > TOLD else ""
        raise ConfigError(
            f"{counted(len(wrong), 'line')} cannot be used. {'; '.join(wrong[:TOLD])}{more}. Mend them and try again."
        )
    if not LEAST <= len(found) <= MOST:
        have = "There is 1 different prompt" if len(found) == 1 else f"There are {len(found):,} different prompts"
        raise ConfigError(f"{have}; {LEAST} to {MOST:,} are needed: some to train on, some to evaluate with.")
    return list(found)


class _Wrong:
    """What stands where a prompt should, in words."""

    def __init__(self, words: str) -> None:
        self.words = words


def _problem(prompt: "str | _Wrong") -> str:
    if isinstance(prompt, _Wrong):
        return prompt.words
    if len(prompt) > LONGEST:
        return f"{len(prompt):,} characters, more than {LONGEST:,}"
    return "a NUL character" if "\0" in prompt else ""


def _lines(text: str) -> Iterator[tuple[int, "str | _Wrong"]]:
    """`\\n` inside a line stands for a line break."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, line.strip().replace("\\n", "\n")


def _jsonl(text: str) -> Iterator[tuple[int, "str | _Wrong"]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            yield number, _Wrong(f"not JSON, {error.msg.lower()} at character {error.colno}")
            continue
        if isinstance(value, dict):
            value = next((value[name] for name in FIELDS if name in value), None)
        yield number, value if isinstance(value, str) else _Wrong('neither a text nor {"prompt": "a text"}')


def _csv(text: str) -> Iterator[tuple[int, "str | _Wrong"]]:
    """The column that a header names, or the first of a file without one."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    column: int | None = None
    try:
        for row in reader:
            if column is None:
                header = [cell.strip().lower() for cell in row]
                named = [header.index(name) for name in FIELDS if name in header]
                column = named[0] if named else 0
                if named:
                    continue
            if any(cell.strip() for cell in row):
                yield reader.line_num, row[column] if column < len(row) else _Wrong("a column too few")
    except csv.Error as error:
        yield reader.line_num, _Wrong(f"not CSV ({error})")
