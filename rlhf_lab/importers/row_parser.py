"""Parses one row: one vote, or one vote per annotator column."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rlhf_lab.common import chat_format
from rlhf_lab.common.chat_format import UnreadableError
from rlhf_lab.common.csv_safety import unescape_formula
from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.person_names import normalize_name
from rlhf_lab.importers.cell_parsers import (
    EMPTY_VALUES,
    choice_of_word,
    is_number_or_bool,
    name_key,
    normalize_cell,
    parse_bool,
    parse_choice,
    parse_int,
    parse_number,
    parse_timestamp,
    parse_token_ids,
)
from rlhf_lab.importers.cells import Kind, is_blank, other_message_keys, parse_turns, read_cell
from rlhf_lab.importers.column_mapping import (
    CHOSEN_REJECTED,
    TWO_TEXTS_AND_SCORES,
    TWO_TEXTS_AND_VOTE,
    ColumnMapping,
    cell_at,
)
from rlhf_lab.importers.parsed_rows import DEFAULT_LIMITS, Limits, ParsedCompletion, ParsedVote, RowError, SourceRow
from rlhf_lab.importers.remedies import map_option
from rlhf_lab.importers.speakers import divide_turns
from rlhf_lab.importers.text_names import NameColumns

ID_KEYS = ("id", "key", "name", "label", "model")  # of an object with one of the texts
TEXT_MEANINGS = ("prompt", "chosen", "rejected", "first", "second")
RESPONSE_MEANINGS = ("chosen", "rejected", "first", "second")
STRENGTH_BY_GRADE = {"1": Strength.SLIGHTLY, "2": Strength.CLEARLY, "3": Strength.MUCH}
MAX_LENGTHS = {"note": 1000, "uuid": 64, "via": 20}  # what a lab stores of a vote


@dataclass(frozen=True)
class ParseOptions:
    """How rows are parsed.

    Attributes:
        choices: meanings of the file's vote words; empty: what the row and the columns call the texts, and CHOICE_BY_WORD.
        holds_chats: whether texts can be chats that are written as text.
        is_plain: whether cells that look like a chat and cannot be read as one are texts.
        notation: of scores, as `parse_number` takes it.
        day_first: as `parse_timestamp` takes it.
        name_columns: columns with what the row calls the first and the second text, such as model_a and model_b.
        words_first: whether a word with a known meaning is never a name.
        speakers: of transcripts that the user divides, as `divide_turns` takes them.
        cuts_prompt: whether answers that begin with a plain prompt are what follows it.
        is_rank: whether the lower of two scores is better.
        other_keys: is filled with the keys of messages that are not used, as "key (in column)".
        spellings: is filled with the names of annotators, each with the spellings that mean it.
    """

    mapping: ColumnMapping
    choices: Mapping[str, Choice] = field(default_factory=dict)
    limits: Limits = DEFAULT_LIMITS
    holds_chats: bool = True
    is_plain: bool = False
    notation: str = ""
    day_first: bool | None = None
    name_columns: NameColumns = field(default_factory=NameColumns)
    words_first: bool = False
    speakers: Mapping[str, str] = field(default_factory=dict)
    cuts_prompt: bool = False
    is_rank: bool = False
    other_keys: set[str] = field(default_factory=set)
    spellings: dict[str, set[str]] = field(default_factory=dict)

    @cached_property
    def is_graded(self) -> bool:
        """Whether votes are on a scale from -3 to 3, whose numbers say how much better the text is."""
        return {"-3", "3"} <= set(self.choices)

    @cached_property
    def text_names(self) -> dict[str, Choice]:
        """The names of the columns with the two texts, which votes can use."""
        columns = {choice: self.mapping.by_meaning.get(choice.value, "") for choice in (Choice.FIRST, Choice.SECOND)}
        return {name_key(column): choice for choice, column in columns.items() if name_key(column)}

    def names_in(self, row: SourceRow) -> dict[str, Choice]:
        """What a vote can call the two texts of a row: the ids beside them, the cells of `name_columns`, their columns' names.

        A name that means both texts means neither.
        """
        names = _names_of(self._possible_sides(row)) | self.sure_names_in(row)
        if self.words_first:
            names = {name: choice for name, choice in names.items() if choice_of_word(name, self.choices) is None}
        return names

    def sure_names_in(self, row: SourceRow) -> dict[str, Choice]:
        """As `names_in`; those that come before the usual meaning of a word."""
        return self.text_names | _names_of(self._sure_sides(row))

    def shared_names_in(self, row: SourceRow) -> set[str]:
        """The names, in lower case, that a row gives both texts."""
        names = ((normalize_cell(a).casefold(), normalize_cell(b).casefold()) for a, b in self._sure_sides(row))
        return {a for a, b in names if a == b and a not in ("", "none", "nan")}

    def _sure_sides(self, row: SourceRow) -> list[tuple[Any, Any]]:
        columns = [self.mapping.by_meaning.get(choice.value, "") for choice in (Choice.FIRST, Choice.SECOND)]
        sides = [(cell_at(row.cells, a), cell_at(row.cells, b)) for a, b in self.name_columns.sure]
        return sides + list(zip(*(_ids_beside(row, column) for column in columns), strict=True))

    def _possible_sides(self, row: SourceRow) -> list[tuple[Any, Any]]:
        cells = [(cell_at(row.cells, a), cell_at(row.cells, b)) for a, b in self.name_columns.possible]
        return [pair for pair in cells if all(isinstance(cell, str) and not is_number_or_bool(cell) for cell in pair)]


def _names_of(sides: Iterable[tuple[Any, Any]]) -> dict[str, Choice]:
    """The names in pairs of cells; not those that both texts have."""
    named: dict[str, Choice] = {}
    names = [tuple(map(normalize_cell, pair)) for pair in sides]
    for first, second in [*((a.casefold(), b.casefold()) for a, b in names), *names]:
        if first != second:
            named |= {first: Choice.FIRST, second: Choice.SECOND}
    return {name: choice for name, choice in named.items() if not is_blank(name) and name.lower() != "none"}


def votes_in(row: SourceRow, mapping: ColumnMapping) -> list[Any]:
    """The votes of a row as they are written."""
    cells = [read_cell(cell_at(row.cells, column)).decoded for column in mapping.vote_columns]
    return [item for cell in cells for item in (cell if isinstance(cell, list) else [cell]) if not is_blank(item)]


def _ids_beside(row: SourceRow, column: str) -> tuple[Any, ...]:
    """The cells of ID_KEYS in the object that holds a text: of "options.0.text" those of "options.0"."""
    parent = read_cell(cell_at(row.cells, column.rpartition(".")[0])).decoded if "." in column else None
    return tuple(parent.get(key) if isinstance(parent, Mapping) else None for key in ID_KEYS)


class _RowParser:
    """Parses cells of one row by their meaning; every error names the column."""

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
            if not self.options.is_plain:
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
        return None if self.row.strings_only and not self.is_own_export and is_blank(value) else value

    def parse(self, meaning: str, parse_cell: Any, *args: Any) -> Any:
        value = self.response(meaning) if meaning in RESPONSE_MEANINGS else self.value(meaning)
        try:
            return parse_cell(value, *args)
        except UnreadableError as error:
            raise UnreadableError(f"{self.column(meaning)} {error}") from None

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
        try:
            prompt, text_a, text_b = chat_format.split_shared_prefix(a, b)
        except UnreadableError as error:
            raise UnreadableError(f"{column_a} and {column_b} {error}") from None
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
    return "" if is_blank(value) else chat_format.require_text(chat_format.join_parts(value))


def _parse_earlier_turns(value: Any) -> chat_format.Chat:
    turns = [] if is_blank(value) else parse_turns(value)
    return chat_format.validate_chat(turns) if turns else []


def parse_votes(options: ParseOptions, row: SourceRow) -> list[ParsedVote] | RowError:
    """The votes of a row, or why it cannot be used."""
    parse = _parse_chosen_rejected if options.mapping.row_format == CHOSEN_REJECTED else _parse_two_texts
    try:
        return parse(_RowParser(options, row))
    except UnreadableError as error:
        message = str(error)
        remedy = "." if ". " in message else ". Correct the row or take it out."
        return RowError(row.row_number, row.location, message + remedy)


def _parse_chosen_rejected(parser: _RowParser) -> list[ParsedVote]:
    """The vote of a row with chosen and rejected. Their order is what the file says, else by a hash of the texts, so that the
    chosen one is not always the first."""
    prompt, chosen, rejected = parser.prompt_and_texts("chosen", "rejected")
    chosen_completion = _parse_completion(parser, "chosen", chosen)
    rejected_completion = _parse_completion(parser, "rejected", rejected)
    vote = _vote_beside_chosen(parser)
    choice = _combine(parser, vote, _choice_from_scores(parser, "score_chosen", "score_rejected")) or Choice.FIRST
    is_order_known = parser.is_own_export and vote is not None
    if choice is Choice.FIRST and not is_order_known and _order_key(prompt, chosen) > _order_key(prompt, rejected):
        choice = Choice.SECOND
    if choice is Choice.SECOND:
        return [_make_vote(parser, prompt, rejected_completion, chosen_completion, choice)]
    return [_make_vote(parser, prompt, chosen_completion, rejected_completion, choice)]


def _vote_beside_chosen(parser: _RowParser) -> Choice | None:
    """The vote of a row that has chosen and rejected; None if it has none.

    In our own export it says whether the chosen text was the first or the second; elsewhere it repeats that chosen is better,
    or it is a tie.
    """
    value = parser.value("choice")
    if is_blank(value):
        return None
    try:
        words, names = (
            ({}, {}) if parser.is_own_export else (parser.options.choices, parser.options.names_in(parser.row))
        )
        choice: Choice = parser.parse("choice", parse_choice, words, names)
    except UnreadableError as error:
        raise UnreadableError(f"{error}, or leave the column out: {map_option('choice')}") from None
    if choice is Choice.SECOND and not parser.is_own_export:
        raise UnreadableError(
            f"{parser.column('choice')} is {str(value)[:40]!r}, the second text, but {parser.column('chosen')} is called the "
            f"better one. Correct one of them, or leave the column out: {map_option('choice')}"
        )
    return choice


def _combine(parser: _RowParser, vote: Choice | None, by_scores: Choice | None) -> Choice | None:
    """What a row says with its vote, its scores and its columns tie and both_bad. Raises UnreadableError if they contradict."""
    texts = (Choice.FIRST, Choice.SECOND)
    if vote in texts and by_scores in texts and vote is not by_scores and not parser.is_own_export:
        scores = f"{parser.column('score_first')} and {parser.column('score_second')}"
        raise UnreadableError(
            f"{parser.column('choice')} is {str(parser.value('choice'))[:40]!r}, but {scores} say the opposite. "
            "Correct one of them"
        )
    says = "the vote is" if vote else "the scores say"
    vote = vote or by_scores
    flags = {Choice(meaning): parser.parse(meaning, parse_bool) for meaning in ("tie", "both_bad")}
    for choice, flag in flags.items():
        if vote is not None and (vote not in flags if flag else flag is False and vote is choice):
            raise UnreadableError(
                f"{parser.column(choice)} is {str(parser.value(choice))[:40]!r}, but {says} {vote.value!r}. Correct one of them"
            )
    ties = [choice for choice in (Choice.BOTH_BAD, Choice.TIE) if flags[choice] or vote is choice]
    return ties[0] if ties else vote


def _choice_from_scores(parser: _RowParser, first_meaning: str, second_meaning: str) -> Choice | None:
    """By two scores, if the row has both."""
    if parser.value(first_meaning) in EMPTY_VALUES or parser.value(second_meaning) in EMPTY_VALUES:
        return None
    first_score, second_score = (
        parser.parse(meaning, parse_number, parser.options.notation) for meaning in (first_meaning, second_meaning)
    )
    difference = (second_score - first_score) if parser.options.is_rank else (first_score - second_score)
    if parser.options.mapping.row_format == CHOSEN_REJECTED and difference < 0:
        raise UnreadableError(
            f"{parser.column(second_meaning)} is {second_score:g} and {parser.column(first_meaning)} is {first_score:g}: the "
            f"rejected text has the {'lower' if parser.options.is_rank else 'higher'} score. Swap them or correct the scores"
        )
    if first_score == second_score:
        return Choice.TIE
    return Choice.FIRST if difference > 0 else Choice.SECOND


def _reject_further_options(parser: _RowParser) -> None:
    """Raise for a row whose texts are two items of a longer list: of three options, a vote for the third says nothing."""
    parents = {parser.column(meaning).rpartition(".")[0].rpartition(".")[0] for meaning in ("first", "second")}
    (parent,) = parents if len(parents) == 1 else ("",)
    options = read_cell(cell_at(parser.row.cells, parent)).decoded if parent else None
    if isinstance(options, list) and len(options) > 2:
        raise UnreadableError(f"{parent} holds {len(options)} texts, where two are compared")


def _reject_shared_names(parser: _RowParser) -> None:
    """Raise for a vote that is the id of both texts, also if it is a word for one of them."""
    shared = parser.options.shared_names_in(parser.row)
    for vote in votes_in(parser.row, parser.options.mapping) if shared else ():
        if normalize_cell(vote).casefold() in shared:
            raise UnreadableError(f"{parser.column('choice')} is {str(vote)[:40]!r}, and both texts are called so")


def _parse_two_texts(parser: _RowParser) -> list[ParsedVote]:
    _reject_further_options(parser)
    _reject_shared_names(parser)
    prompt, first, second = parser.prompt_and_texts("first", "second")
    completions = ParsedCompletion(first), ParsedCompletion(second)
    mapping, by_meaning = parser.options.mapping, parser.options.mapping.by_meaning
    if mapping.row_format == TWO_TEXTS_AND_SCORES:
        for name in ("score_first", "score_second"):
            if parser.value(name) in EMPTY_VALUES:
                raise UnreadableError(f"{mapping.by_meaning[name]} is missing. Write the score, or take the row out")
    if not mapping.annotator_columns:
        vote = _parse_winner(parser) if mapping.row_format == TWO_TEXTS_AND_VOTE else None
        choice = _combine(parser, vote, _choice_from_scores(parser, "score_first", "score_second"))
        if choice is None:
            flags = [
                by_meaning[name] for name in ("first_wins", "second_wins", "tie", "both_bad") if name in by_meaning
            ]
            raise UnreadableError(f"none of {', '.join(flags)} is true. Write the vote, or take the row out")
        return [_make_vote(parser, prompt, *completions, choice)]
    votes = []
    for name in mapping.annotator_columns:
        value = cell_at(parser.row.cells, name)
        if is_blank(value):
            continue
        try:
            choice = parse_choice(value, parser.options.choices, parser.options.names_in(parser.row))
        except UnreadableError as error:
            raise UnreadableError(f"{name} {error}") from None
        votes.append(_make_vote(parser, prompt, *completions, choice, annotator=name))
    if not votes:
        raise UnreadableError(
            f"none of {', '.join(mapping.annotator_columns)} says anything. Write a vote, or take the row out"
        )
    return votes


def _parse_winner(parser: _RowParser) -> Choice | None:
    """The vote of a row with two texts: a word, or columns of which one is true. None if only a tie can be true."""
    if "choice" in parser.options.mapping.by_meaning:
        names = parser.options.names_in(parser.row)
        choice: Choice = parser.parse("choice", parse_choice, parser.options.choices, names)
        return choice
    winners = {Choice.FIRST: "first_wins", Choice.SECOND: "second_wins"}
    true = [choice for choice, meaning in winners.items() if parser.parse(meaning, parse_bool)]
    if len(true) > 1:
        raise UnreadableError(
            f"{parser.column('first_wins')} and {parser.column('second_wins')} are both true. Correct one of them"
        )
    return true[0] if true else None


def _parse_completion(parser: _RowParser, role: str, text: str) -> ParsedCompletion:
    return ParsedCompletion(
        text,
        checkpoint=parser.short_text(f"checkpoint_{role}"),
        seed=parser.parse(f"seed_{role}", parse_int) or 0,
        token_ids=parser.parse(f"{role}_ids", parse_token_ids),
    )


def _make_vote(
    parser: _RowParser,
    prompt: str,
    first: ParsedCompletion,
    second: ParsedCompletion,
    choice: Choice,
    annotator: str = "",
) -> ParsedVote:
    source = parser.short_text("source")
    if source and source not in tuple(Source):
        raise UnreadableError(f"{parser.column('source')} is {source[:40]!r}; it can be {', '.join(Source)}")
    response_ms = parser.parse("response_ms", parse_int)
    if response_ms is not None and response_ms < 0:
        raise UnreadableError(f"{parser.column('response_ms')} is {response_ms}; nobody answers before the question")
    return ParsedVote(
        row_number=parser.row.row_number,
        prompt=prompt,
        first=first,
        second=second,
        choice=choice,
        annotator=annotator or parser.annotator(),
        source=Source(source) if source else None,
        first_on_left=_parse_first_on_left(parser),
        response_ms=response_ms,
        created_at=_parse_created_at(parser),
        uuid=parser.short_text("uuid"),
        pair_name=parser.short_text("pair"),
        reason=parser.short_text("reason"),
        split=_parse_split(parser),
        model_hash=parser.short_text("model_hash"),
        strength=_parse_strength(parser),
        note=parser.short_text("note"),
        repeat=bool(parser.parse("repeat", parse_bool)),
        adjudication=bool(parser.parse("adjudication", parse_bool)),
        via=parser.short_text("via"),
    )


def _parse_created_at(parser: _RowParser) -> float | None:
    try:
        created_at: float | None = parser.parse(
            "created_at", parse_timestamp, parser.is_own_export, parser.options.day_first
        )
    except UnreadableError as error:
        raise UnreadableError(f"{error}. Correct it, or leave the column out: {map_option('created_at')}") from None
    return created_at


def _parse_split(parser: _RowParser) -> str:
    text = parser.short_text("split")
    if text not in ("", "train", "eval"):
        raise UnreadableError(
            f"{parser.column('split')} is {text[:40]!r}; it can be train, eval. Correct it, or leave the column out: "
            f"{map_option('split')}"
        )
    return text


def _parse_strength(parser: _RowParser) -> Strength | None:
    if parser.options.is_graded:
        return STRENGTH_BY_GRADE.get(normalize_cell(parser.value("choice")).lstrip("-"))
    text = parser.short_text("strength")
    if text and text not in tuple(Strength):
        raise UnreadableError(f"{parser.column('strength')} is {text[:40]!r}; it can be {', '.join(Strength)}")
    return Strength(text) if text else None


def _parse_first_on_left(parser: _RowParser) -> bool | None:
    """Whether the first text was on the left: by its column, or implied by a vote "left" or "right"."""
    first_on_left: bool | None = parser.parse("first_on_left", parse_bool)
    if (
        parser.options.mapping.row_format != CHOSEN_REJECTED
        and first_on_left is None
        and str(parser.value("choice") or "").lower() in ("left", "right")
    ):
        return True
    return first_on_left


def _order_key(prompt: str, text: str) -> bytes:
    return hashlib.sha256(f"{len(prompt)}{prompt}{text}".encode()).digest()
