"""Previews and results of imports as text and JSON, for the command line and the page."""

from collections.abc import Sequence
from typing import Any

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.text import pluralize
from rlhf_lab.importers.parsed_rows import MAX_LISTED_ERRORS, ParsedFile, ParsedVote
from rlhf_lab.importers.writer import ImportResult
from rlhf_lab.store.import_batches import ImportUndo

PREVIEW_VOTES = 5  # votes in a preview
PREVIEW_CHARS = 600  # of each of their texts
PREVIEW_TURNS = 4  # of a conversation, in the terminal


def build_preview(parsed_file: ParsedFile, duplicate_counts: dict[str, int] | None = None) -> dict[str, Any]:
    """What would be imported, as JSON. duplicate_counts: from `writer.count_duplicates`, if known."""
    choices: dict[str, int] = {}
    for vote in parsed_file.votes:
        choices[vote.choice.value] = choices.get(vote.choice.value, 0) + 1
    annotators = sorted({vote.annotator for vote in parsed_file.votes if vote.annotator})
    payload = {
        "name": parsed_file.name,
        "digest": parsed_file.digest,
        "shape": parsed_file.row_format,
        "mapping": parsed_file.mapping,
        "unused": list(parsed_file.unused_columns),
        "columns": list(parsed_file.columns),
        "left_out": left_out_text(parsed_file),
        "rows": parsed_file.row_count,
        "votes": len(parsed_file.votes),
        "choices": choices,
        "prompts": len({vote.prompt for vote in parsed_file.votes}),
        "annotators": annotators[:50],
        "people": len(annotators),
        "first": [_preview_row(vote) for vote in parsed_file.votes[:PREVIEW_VOTES]],
        "same_texts": sum(vote.first.text == vote.second.text for vote in parsed_file.votes),
        "empty_texts": sum(not (vote.first.text.strip() and vote.second.text.strip()) for vote in parsed_file.votes),
        "problems": [str(error) for error in parsed_file.errors[:MAX_LISTED_ERRORS]],
        "broken": len(parsed_file.errors),
        "same_names": same_names_text(parsed_file),
        **(duplicate_counts or {}),
    }
    return payload | {"doubts": _warning_text(payload)}


def left_out_text(parsed_file: ParsedFile) -> str:
    """How many rows and votes do not count, and why; "" if all do."""
    counts = [f"{count:,} × {reason}" for reason, count in parsed_file.left_out.items()]
    return f"Left out, because they hold no vote that counts: {', '.join(counts)}." if counts else ""


def same_names_text(parsed_file: ParsedFile) -> str:
    """The annotators whose names the file writes in several ways; "" if there are none."""
    names = [" and ".join(map(repr, spellings)) for spellings in parsed_file.same_names.values()]
    return f"Taken as one annotator each: {'; '.join(names[:12])}{' …' if len(names) > 12 else ''}." if names else ""


def _warning_text(payload: dict[str, Any]) -> str:
    """What to check before importing, or ""."""
    warnings = {
        "held": ("vote", " already in this project, left out"),
        "duplicates": (
            "vote",
            " by a person who has already compared the same two texts, in the file or in this project",
        ),
        "same_texts": ("comparison", " of a text with itself, which a reward model cannot learn from"),
        "empty_texts": ("comparison", " with an empty text"),
    }
    phrases = [
        pluralize(payload[name], noun) + suffix for name, (noun, suffix) in warnings.items() if payload.get(name)
    ]
    return " ".join(filter(None, (f"Please check: {'; '.join(phrases)}." if phrases else "", payload["same_names"])))


def _preview_row(vote: ParsedVote) -> dict[str, Any]:
    """turns: the prompt's messages, each cut like the texts."""
    prompt, first, second = (text[:PREVIEW_CHARS] for text in (vote.prompt, vote.first.text, vote.second.text))
    turns = [turn | {"content": turn["content"][:PREVIEW_CHARS]} for turn in turns_of_prompt(vote.prompt)]
    return {
        "row": vote.row_number, "prompt": prompt, "turns": turns, "first": first, "second": second,
        "choice": vote.choice.value, "annotator": vote.annotator,
    }  # fmt: skip


def format_preview(payload: dict[str, Any]) -> str:
    """A preview (of `build_preview`) for the terminal."""
    mapping = ", ".join(f"{meaning} = {column}" for meaning, column in payload["mapping"].items())
    lines = [
        f"{payload['name']}: {pluralize(payload['rows'], 'row')}, {pluralize(payload['votes'], 'vote')} on "
        f"{pluralize(payload['prompts'], 'prompt')} ({payload['shape']})",
        f"columns: {mapping}" + (f"; {_unused_text(payload['unused']).lower()}" if payload["unused"] else ""),
        "votes: " + (", ".join(f"{n:,} {choice}" for choice, n in payload["choices"].items()) or "none")
        + (f"; {pluralize(payload['people'], 'annotator')}" if payload["people"] else ""),
    ]  # fmt: skip
    for row in payload["first"]:
        lines.append(
            f"row {row['row']}: {row['choice']}: "
            + " | ".join((_format_turns(row["turns"]), _shorten(row["first"]), _shorten(row["second"])))
        )
    return "\n".join([*lines, *filter(None, (payload["left_out"], payload["doubts"])), *payload["problems"]])


def _format_turns(turns: Sequence[dict[str, str]]) -> str:
    """A prompt: one message of the user as it is, the last turns of a conversation with the name of each speaker."""
    if [turn["role"] for turn in turns] == ["user"]:
        return _shorten(turns[0]["content"])
    shown = [f"{turn['role']}: {_shorten(turn['content'])}" for turn in turns[-PREVIEW_TURNS:]]
    return " / ".join(["…"] * (len(turns) > PREVIEW_TURNS) + shown)


def _unused_text(columns: Sequence[str]) -> str:
    return f"Not used: {', '.join(columns[:12])}{' …' if len(columns) > 12 else ''}"


def _shorten(text: str) -> str:
    collapsed = " ".join(text.split())
    return collapsed if len(collapsed) <= 60 else f"{collapsed[:59]}…"


def format_result(result: ImportResult, parsed_file: ParsedFile) -> str:
    """What was imported and what was left out."""
    created = f"{pluralize(result.pairs, 'new pair')} and {pluralize(result.prompts, 'new prompt')}"
    sentences = [f"Imported: {pluralize(result.votes, 'vote')} from {parsed_file.name}, on {created}."]
    if parsed_file.unused_columns:
        sentences.append(f"{_unused_text(parsed_file.unused_columns)}.")
    if result.held:
        criterion = "the same answer of the same person about the same two texts"
        sentences.append(
            f"Left out, because they are already in this project: {pluralize(result.held, 'vote')} ({criterion})."
        )
    if result.duplicates:
        handling = "left out" if result.dropped else "imported; there is an option to leave them out"
        further = pluralize(result.duplicates, "further answer")
        sentences.append(f"Also: {further} of the same person about the same two texts ({handling}).")
    sentences += filter(None, (left_out_text(parsed_file), same_names_text(parsed_file)))
    if result.broken:
        sentences.append(f"Left out: {pluralize(result.broken, 'row')} with a problem.")
    if result.same_texts:
        sentences.append(
            f"A reward model cannot learn from {pluralize(result.same_texts, 'comparison')} of a text with itself."
        )
    return " ".join(sentences)


def format_undo(undo: ImportUndo, *, completed: bool = False) -> str:
    """What undoing an import would remove, or has removed (completed)."""
    removed, kept = ("removed", "kept") if completed else ("will be removed", "will be kept")
    sentences = [f"{pluralize(undo.votes, 'vote')} and {pluralize(undo.pairs, 'pair')} {removed}."]
    if undo.staying:
        sentences.append(f"{pluralize(undo.staying, 'pair')} {kept}, because other people have voted there.")
    if undo.prompts:
        sentences.append(f"{pluralize(undo.prompts, 'prompt')} will no longer be used for sampling.")
    if undo.models:
        models_phrase = f"{pluralize(undo.models, 'reward model')} {'has' if undo.models == 1 else 'have'}"
        sentences.append(
            f"{models_phrase} been trained on these votes and will not change: train another one afterwards."
        )
    return " ".join(sentences)
