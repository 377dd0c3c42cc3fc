"""Parses one row: its cells by their meaning, and its vote, or one vote per annotator column."""

import hashlib
import re
from collections.abc import Collection
from typing import Any

from rlhf_lab.common import chat_format
from rlhf_lab.common.chat_format import UnreadableError
from rlhf_lab.common.csv_safety import unescape_formula
from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.person_names import normalize_name
from rlhf_lab.importers.cell_parsers import (
    EMPTY_VALUES,
    normalize_cell,
    parse_bool,
    parse_choice,
    parse_int,
    parse_named,
    parse_number,
    parse_timestamp,
    parse_token_ids,
)
from rlhf_lab.importers.cells import Kind, is_empty_cell, other_message_keys, parse_turns, read_cell
from rlhf_lab.importers.column_mapping import CHOSEN_REJECTED, TWO_TEXTS_AND_SCORES, TWO_TEXTS_AND_VOTE, cell_at
from rlhf_lab.importers.parsed_rows import ParsedCompletion, ParsedVote, RowError, SourceRow
from rlhf_lab.importers.remedies import map_option
from rlhf_lab.importers.row_options import ParseOptions, votes_in
from rlhf_lab.importers.speakers import divide_turns

TEXT_MEANINGS = ("prompt", "chosen", "rejected", "first", "second")
RESPONSE_MEANINGS = ("chosen", "rejected", "first", "second")
STRENGTH_BY_GRADE = {"1": Strength.SLIGHTLY, "2": Strength.CLEARLY, "3": Strength.MUCH}
MAX_LENGTHS = {"note": 1000, "uuid": 64, "via": 20}  # what a lab stores of a vote


class RowCells:
    """The cells of one row by their meaning; every error names the column."""

    def __init__(self, options: ParseOptions, row: SourceRow) -> None:
        self.options, self.row = options, row
        #: Whether the file is an export of a lab, with all columns.
        self.is_own_export = "first_on_left" in options.mapping.by_meaning
        self._values: dict[str, Any] = {}  # meaning -> its cell

    def value(self, meaning: str) -> Any:
        if meaning not in self._values:
            value = self.options.mapping.value(self.row.cells, meaning)
            self._values[meaning] = self._contents(meaning, value) if meaning in TEXT_MEANINGS else value
        return self._values[meaning]

    def _contents(self, meaning: str, value: Any) -> Any:
        """A text or a chat as that, however it is written. An export of a lab says what its cells are."""
        if self.is_own_export and not (self.row.strings_only and self.options.holds_chats):
            return value
        try:
            value = read_cell(value).contents
        except UnreadableError as error:
            if "chats=plain" not in self.options.answers:
                raise UnreadableError(f"{self.column(meaning)} {error}") from None
        if isinstance(value, list):
            self.options.other_keys.update(f"{key} (in {self.column(meaning)})" for key in other_message_keys(value))
        elif isinstance(value, str) and not self.is_own_export:
            has_prompt = "prompt" in self.options.mapping.by_meaning
            is_prompt = meaning == "prompt" or not has_prompt
            value = divide_turns(value, self.options.speakers, is_prompt=is_prompt)
            if is_prompt and isinstance(value, str):
                return chat_format.normalize_transcript(value, is_prompt=meaning == "prompt")
        return value

    def response(self, meaning: str) -> Any:
        """One of the two texts; None if it is missing. CSV has no null: only in an export of a lab is an empty cell a text."""
        value = self.value(meaning)
        return None if self.row.strings_only and not self.is_own_export and is_empty_cell(value) else value

    def parse(self, meaning: str, parse_cell: Any, *args: Any) -> Any:
        value = self.response(meaning) if meaning in RESPONSE_MEANINGS else self.value(meaning)
        return parse_named(self.column(meaning), parse_cell, value, *args)

    def column(self, meaning: str) -> str:
        """The file's name of the column, for messages."""
        return self.options.mapping.by_meaning.get(meaning, meaning)

    def text(self, meaning: str, parse_cell: Any, *args: Any) -> str:
        return self._check_text(self.column(meaning), self.parse(meaning, parse_cell, *args))

    def _check_text(self, column: str, text: str, max_length: int | None = None) -> str:
        max_length = max_length or self.options.limits.max_characters
        if len(text) > max_length:
            raise UnreadableError(
                f"{column} has {len(text):,} characters, more than {max_length:,}. Shorten it or take the row out"
            )
        if "\0" in text:
            raise UnreadableError(f"{column} holds a NUL character. Remove it")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise UnreadableError(
                f"{column} holds half a character (a lone surrogate). Replace it, and save the file as UTF-8"
            )
        return text

    def short_text(self, meaning: str) -> str:
        """An optional text, "" if missing. Removes the apostrophe that our CSV export puts before spreadsheet formulas."""
        value = _only_text(self.value(meaning))
        is_empty_input = meaning == "input" and read_cell(value).kind is Kind.BLANK
        if is_empty_input or value in (*EMPTY_VALUES, [], {}):
            return ""
        if isinstance(value, list | dict | bool):
            # Without a meaning, "input" could be the prompt.
            prompt = f"{map_option('prompt', self.column('prompt'))} " if meaning == "input" else ""
            raise UnreadableError(
                f"{self.column(meaning)} is {chat_format.type_name(value)}, not a text. Write it as a text, or leave the "
                f"column out: {prompt}{map_option(meaning)}"
            )
        text = str(value)
        if self.row.strings_only and self.is_own_export:
            text = unescape_formula(text)
        return self._check_text(self.column(meaning), text, MAX_LENGTHS.get(meaning))

    def word(self, meaning: str, allowed: Collection[str]) -> str:
        """One of the allowed words; "" if missing."""
        text = self.short_text(meaning)
        if text not in ("", *allowed):
            raise UnreadableError(
                f"{self.column(meaning)} is {text[:40]!r}; it can be {', '.join(allowed)}. Correct it, or leave the column out: "
                f"{map_option(meaning)}"
            )
        return text

    def annotator(self) -> str:
        """The annotator's name as a lab stores names, so that one person has one name however a file writes it."""
        text = self.short_text("annotator")
        if self.is_own_export or not text:
            return text
        name = normalize_name(normalize_cell(self.value("annotator")))
        self.options.spellings.setdefault(name, set()).add(text)
        return name

    def _split_shared_prefix(self, meaning_a: str, meaning_b: str) -> tuple[str, str, str]:
        """(prompt, text a, text b) of two conversations that begin with the prompt."""
        a, b = (self.parse(name, chat_format.require_conversation) for name in (meaning_a, meaning_b))
        column_a, column_b = self.column(meaning_a), self.column(meaning_b)
        if isinstance(a, str) is not isinstance(b, str):
            kinds = ("text", "chat") if isinstance(a, str) else ("chat", "text")
            raise UnreadableError(
                f"{column_a} is a {kinds[0]} and {column_b} is a {kinds[1]}. Write both in the same way"
            )
        prompt, text_a, text_b = parse_named(f"{column_a} and {column_b}", chat_format.split_shared_prefix, a, b)
        return (
            self._check_text(column_a, prompt), self._check_text(column_a, text_a), self._check_text(column_b, text_b),
        )  # fmt: skip

    def _join_turns(self, meaning_a: str, meaning_b: str) -> tuple[str, str, str]:
        """(prompt, text a, text b) of a list with the user's turns and two lists with answers to them."""
        turns, *sides = (self.value(meaning) for meaning in ("prompt", meaning_a, meaning_b))
        if any(len(side) != len(turns) for side in sides):
            raise UnreadableError(
                f"{self.column('prompt')}, {self.column(meaning_a)} and {self.column(meaning_b)} have different numbers of turns"
            )
        chats = [
            [{"role": role, "content": text} for pair in zip(turns, side, strict=True)
             for role, text in zip(("user", "assistant"), pair, strict=True)]
            for side in sides
        ]  # fmt: skip
        return chat_format.split_shared_prefix(*chats)

    def prompt_and_texts(self, meaning_a: str, meaning_b: str) -> tuple[str, str, str]:
        """(prompt, text a, text b)."""
        by_meaning = self.options.mapping.by_meaning
        if all(_is_text_list(self.value(meaning)) for meaning in ("prompt", meaning_a, meaning_b)):
            texts = zip((meaning_a, meaning_a, meaning_b), self._join_turns(meaning_a, meaning_b), strict=True)
            prompt, text_a, text_b = (self._check_text(self.column(meaning), text) for meaning, text in texts)
        elif "prompt" not in by_meaning and "history" in by_meaning:
            prompt = self.text("history", _parse_open_history)
            text_a, text_b = (self.text(name, _parse_response, prompt, False, False) for name in (meaning_a, meaning_b))
        elif "prompt" not in by_meaning and self._may_begin_with_prompt(meaning_a):
            prompt, text_a, text_b = self._split_shared_prefix(meaning_a, meaning_b)
        else:
            prompt = self.text("prompt", _parse_prompt)
            if input_text := self.short_text("input"):
                prompt = f"{prompt}\n\n{input_text}" if prompt.strip() else input_text
            text_a, text_b = (
                self.text(name, _parse_response, prompt, self.is_own_export, self.options.cuts_prompt)
                for name in (meaning_a, meaning_b)
            )
        if not prompt.strip():
            raise UnreadableError(f"{self.column('prompt')} is empty. Write it, or take the row out")
        return self._with_earlier_turns(prompt), text_a, text_b

    def _may_begin_with_prompt(self, meaning: str) -> bool:
        value = self.value(meaning)
        is_chat = isinstance(value, list) or (isinstance(value, str) and chat_format.is_transcript(value))
        return is_chat or self.options.mapping.row_format == CHOSEN_REJECTED

    def _with_earlier_turns(self, prompt: str) -> str:
        """The prompt after the system's message and earlier turns that other columns hold."""
        system, turns = self.text("system", _parse_optional_text), self.parse("history", _parse_earlier_turns)
        if not system.strip() and not turns:
            return prompt
        chat = chat_format.chat_of_prompt(prompt)
        repeats = max(
            count for count in range(min(len(chat), len(turns)) + 1) if turns[len(turns) - count :] == chat[:count]
        )
        chat = turns + chat[repeats:]
        return self._check_text("prompt", chat_format.prompt_of_chat(chat_format.with_system_prompt(chat, system)))


def _parse_prompt(value: Any) -> str:
    """A prompt from a text, a chat, or a list of one text."""
    return chat_format.parse_prompt(_only_text(value))


def cut_prompt(text: str, prompt: str) -> str:
    """The text after a plain prompt; a text that does not begin with it, or goes on with the same word, unchanged."""
    beginning = prompt.rstrip()
    is_within_word = re.match(r"\w\w", text[len(beginning) - 1 : len(beginning) + 1]) is not None
    return text if not beginning or is_within_word else text.removeprefix(beginning)


def _parse_open_history(value: Any) -> str:
    """The prompt in a cell with turns that end with the question."""
    turns = _parse_earlier_turns(value)
    if not turns or turns[-1]["role"] != "user":
        raise UnreadableError(f"does not end with a question, and no column holds it: {map_option('prompt', 'COLUMN')}")
    return chat_format.prompt_of_chat(turns)


def _parse_response(value: Any, prompt: str, is_own_export: bool, cuts_prompt: bool) -> str:
    """A response in the forms that `parse_prompt` reads, after nothing or after the prompt. An export has it alone."""
    value = _only_text(value)
    if isinstance(value, str) and not is_own_export:
        answer = chat_format.without_prompt(value, prompt)
        return cut_prompt(value, prompt) if cuts_prompt and answer is value else answer
    return chat_format.parse_response(value, prompt)


def _only_text(value: Any) -> Any:
    return value[0] if _is_text_list(value) and len(value) == 1 else value


def _is_text_list(value: Any) -> bool:
    """Whether a value is a list of texts, as of the user's turns of a conversation; missing ones are null."""
    return isinstance(value, list) and read_cell(value).kind is Kind.TEXTS


def _parse_optional_text(value: Any) -> str:
    return "" if is_empty_cell(value) else chat_format.require_text(chat_format.join_parts(value))


def _parse_earlier_turns(value: Any) -> chat_format.Chat:
    turns = [] if is_empty_cell(value) else parse_turns(value)
    return chat_format.validate_chat(turns) if turns else []


def parse_votes(options: ParseOptions, row: SourceRow) -> list[ParsedVote] | RowError:
    """The votes of a row, or why it cannot be used."""
    parse = _parse_chosen_rejected if options.mapping.row_format == CHOSEN_REJECTED else _parse_two_texts
    try:
        return parse(RowCells(options, row))
    except UnreadableError as error:
        message = str(error)
        remedy = "." if ". " in message else ". Correct the row or take it out."
        return RowError(row.row_number, row.location, message + remedy)


def _parse_chosen_rejected(cells: RowCells) -> list[ParsedVote]:
    """The vote of a row with chosen and rejected. Their order is what the file says, else by a hash of the texts, so that the
    chosen one is not always the first."""
    prompt, chosen, rejected = cells.prompt_and_texts("chosen", "rejected")
    chosen_completion = _parse_completion(cells, "chosen", chosen)
    rejected_completion = _parse_completion(cells, "rejected", rejected)
    vote = _vote_beside_chosen(cells)
    choice = _combine(cells, vote, _choice_from_scores(cells, "score_chosen", "score_rejected")) or Choice.FIRST
    is_order_known = cells.is_own_export and vote is not None
    if choice is Choice.FIRST and not is_order_known and _order_key(prompt, chosen) > _order_key(prompt, rejected):
        choice = Choice.SECOND
    if choice is Choice.SECOND:
        return [_make_vote(cells, prompt, rejected_completion, chosen_completion, choice)]
    return [_make_vote(cells, prompt, chosen_completion, rejected_completion, choice)]


def _vote_beside_chosen(cells: RowCells) -> Choice | None:
    """The vote of a row that has chosen and rejected; None if it has none.

    In our own export it says whether the chosen text was the first or the second; elsewhere it repeats that chosen is better,
    or it is a tie.
    """
    value = cells.value("choice")
    if is_empty_cell(value):
        return None
    try:
        words, names = ({}, {}) if cells.is_own_export else (cells.options.choices, cells.options.names_in(cells.row))
        choice: Choice = cells.parse("choice", parse_choice, words, names)
    except UnreadableError as error:
        raise UnreadableError(f"{error}, or leave the column out: {map_option('choice')}") from None
    if choice is Choice.SECOND and not cells.is_own_export:
        raise UnreadableError(
            f"{cells.column('choice')} is {str(value)[:40]!r}, the second text, but {cells.column('chosen')} is called the "
            f"better one. Correct one of them, or leave the column out: {map_option('choice')}"
        )
    return choice


def _combine(cells: RowCells, vote: Choice | None, by_scores: Choice | None) -> Choice | None:
    """What a row says with its vote, its scores and its columns tie and both_bad. Raises UnreadableError if they contradict."""
    texts = (Choice.FIRST, Choice.SECOND)
    if vote in texts and by_scores in texts and vote is not by_scores and not cells.is_own_export:
        scores = f"{cells.column('score_first')} and {cells.column('score_second')}"
        raise UnreadableError(
            f"{cells.column('choice')} is {str(cells.value('choice'))[:40]!r}, but {scores} say the opposite. "
            "Correct one of them"
        )
    says = "the vote is" if vote else "the scores say"
    vote = vote or by_scores
    flags = {Choice(meaning): cells.parse(meaning, parse_bool) for meaning in ("tie", "both_bad")}
    for choice, flag in flags.items():
        if vote is not None and (vote not in flags if flag else flag is False and vote is choice):
            raise UnreadableError(
                f"{cells.column(choice)} is {str(cells.value(choice))[:40]!r}, but {says} {vote.value!r}. Correct one of them"
            )
    ties = [choice for choice in (Choice.BOTH_BAD, Choice.TIE) if flags[choice] or vote is choice]
    return ties[0] if ties else vote


def _choice_from_scores(cells: RowCells, first_meaning: str, second_meaning: str) -> Choice | None:
    """By two scores, if the row has both."""
    if cells.value(first_meaning) in EMPTY_VALUES or cells.value(second_meaning) in EMPTY_VALUES:
        return None
    first_score, second_score = (
        cells.parse(meaning, parse_number, cells.options.notation) for meaning in (first_meaning, second_meaning)
    )
    difference = (second_score - first_score) if cells.options.is_rank else (first_score - second_score)
    if cells.options.mapping.row_format == CHOSEN_REJECTED and difference < 0:
        raise UnreadableError(
            f"{cells.column(second_meaning)} is {second_score:g} and {cells.column(first_meaning)} is {first_score:g}: the "
            f"rejected text has the {'lower' if cells.options.is_rank else 'higher'} score. Swap them or correct the scores"
        )
    if first_score == second_score:
        return Choice.TIE
    return Choice.FIRST if difference > 0 else Choice.SECOND


def _reject_further_options(cells: RowCells) -> None:
    """Raise for a row whose texts are two items of a longer list: of three options, a vote for the third says nothing."""
    parents = {cells.column(meaning).rpartition(".")[0].rpartition(".")[0] for meaning in ("first", "second")}
    (parent,) = parents if len(parents) == 1 else ("",)
    options = read_cell(cell_at(cells.row.cells, parent)).decoded if parent else None
    if isinstance(options, list) and len(options) > 2:
        raise UnreadableError(f"{parent} holds {len(options)} texts, where two are compared")


def _reject_shared_names(cells: RowCells) -> None:
    """Raise for a vote that is the id of both texts, also if it is a word for one of them."""
    shared = cells.options.shared_names_in(cells.row)
    for vote in votes_in(cells.row, cells.options.mapping) if shared else ():
        if normalize_cell(vote).casefold() in shared:
            raise UnreadableError(f"{cells.column('choice')} is {str(vote)[:40]!r}, and both texts have this name")


def _parse_two_texts(cells: RowCells) -> list[ParsedVote]:
    _reject_further_options(cells)
    _reject_shared_names(cells)
    prompt, first, second = cells.prompt_and_texts("first", "second")
    completions = ParsedCompletion(first), ParsedCompletion(second)
    mapping, by_meaning = cells.options.mapping, cells.options.mapping.by_meaning
    if mapping.row_format == TWO_TEXTS_AND_SCORES:
        for name in ("score_first", "score_second"):
            if cells.value(name) in EMPTY_VALUES:
                raise UnreadableError(f"{mapping.by_meaning[name]} is missing. Write the score, or take the row out")
    if not mapping.annotator_columns:
        vote = _parse_winner(cells) if mapping.row_format == TWO_TEXTS_AND_VOTE else None
        choice = _combine(cells, vote, _choice_from_scores(cells, "score_first", "score_second"))
        if choice is None:
            flags = [
                by_meaning[name] for name in ("first_wins", "second_wins", "tie", "both_bad") if name in by_meaning
            ]
            raise UnreadableError(f"none of {', '.join(flags)} is true. Write the vote, or take the row out")
        return [_make_vote(cells, prompt, *completions, choice)]
    votes = []
    for name in mapping.annotator_columns:
        value = cell_at(cells.row.cells, name)
        if is_empty_cell(value):
            continue
        choice = parse_named(name, parse_choice, value, cells.options.choices, cells.options.names_in(cells.row))
        votes.append(_make_vote(cells, prompt, *completions, choice, annotator=name))
    if not votes:
        raise UnreadableError(
            f"none of {', '.join(mapping.annotator_columns)} says anything. Write a vote, or take the row out"
        )
    return votes


def _parse_winner(cells: RowCells) -> Choice | None:
    """The vote of a row with two texts: a word, or columns of which one is true. None if only a tie can be true."""
    if "choice" in cells.options.mapping.by_meaning:
        names = cells.options.names_in(cells.row)
        choice: Choice = cells.parse("choice", parse_choice, cells.options.choices, names)
        return choice
    winners = {Choice.FIRST: "first_wins", Choice.SECOND: "second_wins"}
    true = [choice for choice, meaning in winners.items() if cells.parse(meaning, parse_bool)]
    if len(true) > 1:
        raise UnreadableError(
            f"{cells.column('first_wins')} and {cells.column('second_wins')} are both true. Correct one of them"
        )
    return true[0] if true else None


def _parse_completion(cells: RowCells, role: str, text: str) -> ParsedCompletion:
    return ParsedCompletion(
        text,
        checkpoint=cells.short_text(f"checkpoint_{role}"),
        seed=cells.parse(f"seed_{role}", parse_int) or 0,
        token_ids=cells.parse(f"{role}_ids", parse_token_ids),
    )


def _make_vote(
    cells: RowCells,
    prompt: str,
    first: ParsedCompletion,
    second: ParsedCompletion,
    choice: Choice,
    annotator: str = "",
) -> ParsedVote:
    source = cells.word("source", tuple(Source))
    response_ms = cells.parse("response_ms", parse_int)
    if response_ms is not None and response_ms < 0:
        raise UnreadableError(f"{cells.column('response_ms')} is {response_ms}; nobody answers before the question")
    return ParsedVote(
        row_number=cells.row.row_number,
        prompt=prompt,
        first=first,
        second=second,
        choice=choice,
        annotator=annotator or cells.annotator(),
        source=Source(source) if source else None,
        first_on_left=_parse_first_on_left(cells),
        response_ms=response_ms,
        created_at=_parse_created_at(cells),
        uuid=cells.short_text("uuid"),
        pair_name=cells.short_text("pair"),
        reason=cells.short_text("reason"),
        split=cells.word("split", ("train", "eval")),
        model_hash=cells.short_text("model_hash"),
        strength=_parse_strength(cells),
        note=cells.short_text("note"),
        repeat=bool(cells.parse("repeat", parse_bool)),
        adjudication=bool(cells.parse("adjudication", parse_bool)),
        via=cells.short_text("via"),
    )


def _parse_created_at(cells: RowCells) -> float | None:
    try:
        created_at: float | None = cells.parse(
            "created_at", parse_timestamp, cells.is_own_export, cells.options.day_first
        )
    except UnreadableError as error:
        raise UnreadableError(f"{error}. Correct it, or leave the column out: {map_option('created_at')}") from None
    return created_at


def _parse_strength(cells: RowCells) -> Strength | None:
    if cells.options.is_graded:
        return STRENGTH_BY_GRADE.get(normalize_cell(cells.value("choice")).lstrip("-"))
    text = cells.word("strength", tuple(Strength))
    return Strength(text) if text else None


def _parse_first_on_left(cells: RowCells) -> bool | None:
    """Whether the first text was on the left: by its column, or implied by a vote "left" or "right"."""
    first_on_left: bool | None = cells.parse("first_on_left", parse_bool)
    if (
        cells.options.mapping.row_format != CHOSEN_REJECTED
        and first_on_left is None
        and str(cells.value("choice") or "").lower() in ("left", "right")
    ):
        return True
    return first_on_left


def _order_key(prompt: str, text: str) -> bytes:
    return hashlib.sha256(f"{len(prompt)}{prompt}{text}".encode()).digest()
