"""Parses one row: one vote, or one vote per annotator column."""

import hashlib

from rlhf_lab.common.chat_format import UnreadableError
from rlhf_lab.common.enums import Choice, Source, Strength
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
from rlhf_lab.importers.cells import is_empty_cell, read_cell
from rlhf_lab.importers.column_mapping import CHOSEN_REJECTED, TWO_TEXTS_AND_SCORES, TWO_TEXTS_AND_VOTE, cell_at
from rlhf_lab.importers.parsed_rows import ParsedCompletion, ParsedVote, RowError, SourceRow
from rlhf_lab.importers.remedies import map_option
from rlhf_lab.importers.row_cells import RowCells
from rlhf_lab.importers.row_options import ParseOptions, votes_in

STRENGTH_BY_GRADE = {"1": Strength.SLIGHTLY, "2": Strength.CLEARLY, "3": Strength.MUCH}


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
            raise UnreadableError(f"{cells.column('choice')} is {str(vote)[:40]!r}, and both texts are called so")


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
