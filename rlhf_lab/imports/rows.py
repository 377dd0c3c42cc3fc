"""One row of a file -> what it says: one judgement, or one for each person whose column it has."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_lab import chats
from rlhf_lab.cells import restored
from rlhf_lab.chats import UnreadableError
from rlhf_lab.imports.columns import PAIRED, SCORED, Columns
from rlhf_lab.imports.found import USUAL, Judgement, Limits, Problem, Row, Side
from rlhf_lab.imports.values import EMPTY, choice_of, ids_of, list_of, number_of, time_of, whole_of, yes_of
from rlhf_lab.kinds import Choice, Source, Strength


@dataclass(frozen=True)
class Reading:
    """How rows are read. choices: what the file's own words for a vote mean; empty: the words in use."""

    columns: Columns
    choices: Mapping[str, Choice] = field(default_factory=dict)
    limits: Limits = USUAL


class _Row:
    """A row on its way; every error names the column."""

    def __init__(self, reading: Reading, row: Row) -> None:
        self.reading, self.row = reading, row

    def said(self, meaning: str) -> Any:
        value = self.reading.columns.of(self.row.columns, meaning)
        return list_of(value) if self.row.texts_only else value

    def take(self, meaning: str, read: Any, *more: Any) -> Any:
        try:
            return read(self.said(meaning), *more)
        except UnreadableError as error:
            name = self.reading.columns.columns.get(meaning, meaning)
            raise UnreadableError(f"{name} {error}") from None

    def text(self, meaning: str, read: Any) -> str:
        return self._checked(self.reading.columns.columns.get(meaning, meaning), self.take(meaning, read))

    def _checked(self, name: str, text: str) -> str:
        most = self.reading.limits.characters
        if len(text) > most:
            raise UnreadableError(
                f"{name} has {len(text):,} characters, more than {most:,}. Shorten it or take the row out"
            )
        if "\0" in text:
            raise UnreadableError(f"{name} holds a NUL character. Remove it")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise UnreadableError(
                f"{name} holds half a character (a lone surrogate). Replace it, and save the file as UTF-8"
            )
        return text

    def word(self, meaning: str) -> str:
        """A short text that may be missing; in a CSV of ours without the apostrophe that keeps spreadsheets from computing it."""
        value = self.said(meaning)
        text = "" if value in EMPTY else str(value)
        return self._checked(meaning, restored(text) if self.row.texts_only and self.ours else text)

    @property
    def ours(self) -> bool:
        """Whether the file is an export of the lab, with all columns."""
        return "first_on_left" in self.reading.columns.columns

    def texts(self, a: str, b: str) -> tuple[str, str, str]:
        """(prompt, one text, the other)."""
        prompt = self.said("prompt")
        if prompt is None and self.reading.columns.shape == PAIRED:
            one, other = (self.take(name, lambda value: value) for name in (a, b))
            if one is None or other is None:
                raise UnreadableError(f"{a if one is None else b} is missing. Write it, or take the row out")
            try:
                found = chats.apart(one, other)
            except UnreadableError as error:
                raise UnreadableError(f"{a} {error}") from None
            prompt, one, other = (self._checked(name, text) for name, text in zip(("prompt", a, b), found, strict=True))
        else:
            prompt = self.text("prompt", chats.prompt_of)
            if more := self.word("input"):
                prompt = f"{prompt}\n\n{more}" if prompt.strip() else more
            one, other = self.text(a, chats.answer_of), self.text(b, chats.answer_of)
        if not prompt.strip():
            raise UnreadableError("prompt is empty. Write it, or take the row out")
        return prompt, one, other


def judgements(reading: Reading, row: Row) -> list[Judgement] | Problem:
    """What a row says, or why it cannot be used."""
    try:
        found = _paired(_Row(reading, row)) if reading.columns.shape == PAIRED else _voted(_Row(reading, row))
    except UnreadableError as error:
        words = str(error)
        return Problem(
            row.number, row.where, f"{words}." if ". " in words else f"{words}. Mend the row or take it out."
        )
    return found


def _paired(row: _Row) -> list[Judgement]:
    """chosen and rejected. Which of them is the first completion: what the file says, or a hash of the texts, so that the
    better one is not always the first."""
    prompt, chosen, rejected = row.texts("chosen", "rejected")
    better = _side(row, "chosen", chosen)
    worse = _side(row, "rejected", rejected)
    tie, both_bad = row.take("tie", yes_of), row.take("both_bad", yes_of)
    choice = _said_choice(row)
    if choice is None:
        choice = Choice.BOTH_BAD if both_bad else Choice.TIE if tie else _scored(row, "score_chosen", "score_rejected")
        if choice is Choice.FIRST and _mix(prompt, chosen) > _mix(prompt, rejected):
            return [_judgement(row, prompt, worse, better, Choice.SECOND)]
    if choice is Choice.SECOND:
        return [_judgement(row, prompt, worse, better, choice)]
    return [_judgement(row, prompt, better, worse, choice)]


def _said_choice(row: _Row) -> Choice | None:
    """Our own export says which completion was the first beside chosen and rejected; in other files such a column may
    say anything."""
    if not row.ours or row.said("choice") in EMPTY:
        return None
    choice: Choice = row.take("choice", choice_of, {})
    return choice


def _scored(row: _Row, first: str, second: str) -> Choice:
    """By two scores, where the file has them; the first otherwise."""
    if row.said(first) in EMPTY or row.said(second) in EMPTY:
        return Choice.FIRST
    one, other = row.take(first, number_of), row.take(second, number_of)
    if row.reading.columns.shape == PAIRED and one < other:
        raise UnreadableError(
            f"the rejected text has the higher score ({other:g}, the chosen one {one:g}). Swap them or mend the scores"
        )
    return Choice.TIE if one == other else Choice.FIRST if one > other else Choice.SECOND


def _voted(row: _Row) -> list[Judgement]:
    prompt, first, second = row.texts("first", "second")
    sides = Side(first), Side(second)
    columns = row.reading.columns
    if columns.shape == SCORED:
        for name in ("score_first", "score_second"):
            if row.said(name) in EMPTY:
                raise UnreadableError(f"{columns.columns[name]} is missing. Write the score, or take the row out")
        return [_judgement(row, prompt, *sides, _scored(row, "score_first", "score_second"))]
    if not columns.people:
        return [_judgement(row, prompt, *sides, row.take("choice", choice_of, row.reading.choices))]
    found = []
    for name in columns.people:
        value = row.row.columns.get(name)
        if value in EMPTY:
            continue
        try:
            choice = choice_of(value, row.reading.choices)
        except UnreadableError as error:
            raise UnreadableError(f"{name} {error}") from None
        found.append(_judgement(row, prompt, *sides, choice, annotator=name))
    if not found:
        raise UnreadableError(f"none of {', '.join(columns.people)} says anything. Write a vote, or take the row out")
    return found


def _side(row: _Row, which: str, text: str) -> Side:
    return Side(
        text,
        checkpoint=row.word(f"checkpoint_{which}"),
        seed=row.take(f"seed_{which}", whole_of) or 0,
        ids=row.take(f"{which}_ids", ids_of),
    )


def _judgement(row: _Row, prompt: str, first: Side, second: Side, choice: Choice, annotator: str = "") -> Judgement:
    source = row.word("source")
    if source and source not in tuple(Source):
        raise UnreadableError(f"source is {source[:40]!r}; it can be {', '.join(Source)}")
    response = row.take("response_ms", whole_of)
    if response is not None and response < 0:
        raise UnreadableError(f"response_ms is {response}; nobody answers before the question")
    return Judgement(
        row=row.row.number, prompt=prompt, first=first, second=second, choice=choice,
        annotator=annotator or row.word("annotator"), source=Source(source) if source else None,
        first_on_left=_left(row), response_ms=response, created_at=row.take("created_at", time_of),
        uuid=row.word("uuid")[:64], pair=row.word("pair"), reason=row.word("reason"), split=row.word("split"),
        model_hash=row.word("model_hash"), strength=_strength(row), note=row.word("note"),
        repeat=bool(row.take("repeat", yes_of)), via=row.word("via"),
    )  # fmt: skip


def _strength(row: _Row) -> Strength | None:
    said = row.word("strength")
    if said and said not in tuple(Strength):
        raise UnreadableError(f"strength is {said[:40]!r}; it can be {', '.join(Strength)}")
    return Strength(said) if said else None


def _left(row: _Row) -> bool | None:
    """Where the first text stood: said, or clear from a vote in words of left and right."""
    said: bool | None = row.take("first_on_left", yes_of)
    if said is None and str(row.said("choice") or "").lower() in ("left", "right"):
        return True
    return said


def _mix(prompt: str, text: str) -> bytes:
    return hashlib.sha256(f"{len(prompt)}{prompt}{text}".encode()).digest()
