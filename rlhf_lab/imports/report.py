"""An import in words and as JSON, for the command line and the page."""

from dataclasses import asdict
from typing import Any

from rlhf_lab.counted import counted
from rlhf_lab.imports.found import TOLD, Found, Judgement
from rlhf_lab.imports.saving import Saved
from rlhf_lab.store.imports import TakenBack

SHOWN = 5  # judgements in a preview


def preview(found: Found, doubts: dict[str, int] | None = None) -> dict[str, Any]:
    """What would be imported. doubts: what it would meet (`saving.doubts_of`), where that is known."""
    choices: dict[str, int] = {}
    for item in found.judgements:
        choices[item.choice.value] = choices.get(item.choice.value, 0) + 1
    people = sorted({item.annotator for item in found.judgements if item.annotator})
    said = {
        "name": found.name, "digest": found.digest, "shape": found.shape, "mapping": found.mapping,
        "unused": list(found.unused), "rows": found.rows, "votes": len(found.judgements), "choices": choices,
        "prompts": len({item.prompt for item in found.judgements}), "annotators": people[:50], "people": len(people),
        "first": [_shown(item) for item in found.judgements[:SHOWN]],
        "same_texts": sum(item.first.text == item.second.text for item in found.judgements),
        "empty_texts": sum(not (item.first.text.strip() and item.second.text.strip()) for item in found.judgements),
        "problems": [str(problem) for problem in found.problems[:TOLD]], "broken": len(found.problems), **(doubts or {}),
    }  # fmt: skip
    return said | {"doubts": _doubts_words(said)}


def _doubts_words(said: dict[str, Any]) -> str:
    """What somebody should look at before they import; "" where there is nothing."""
    told = {
        "held": ("vote", " that this project has already, left out"),
        "duplicates": (
            "vote",
            " by somebody who has answered about the same two texts before, in the file or in this project",
        ),
        "same_texts": ("comparison", " of a text with itself: nothing can be learnt there"),
        "empty_texts": ("comparison", " with an empty text"),
    }
    words = [counted(said[name], word) + rest for name, (word, rest) in told.items() if said.get(name)]
    return f"Look again: {'; '.join(words)}." if words else ""


def _shown(item: Judgement) -> dict[str, Any]:
    return {
        "row": item.row, "prompt": item.prompt[:600], "first": item.first.text[:600], "second": item.second.text[:600],
        "choice": item.choice.value, "annotator": item.annotator,
    }  # fmt: skip


def preview_words(said: dict[str, Any]) -> str:
    """For the terminal."""
    mapping = ", ".join(f"{meaning} = {column}" for meaning, column in said["mapping"].items())
    lines = [
        f"{said['name']}: {counted(said['rows'], 'row')}, {counted(said['votes'], 'vote')} on "
        f"{counted(said['prompts'], 'prompt')} ({said['shape']})",
        f"columns: {mapping}" + (f"; not used: {', '.join(said['unused'][:12])}" if said["unused"] else ""),
        "votes: " + (", ".join(f"{n:,} {choice}" for choice, n in said["choices"].items()) or "none")
        + (f"; {counted(said['people'], 'annotator')}" if said["people"] else ""),
    ]  # fmt: skip
    for item in said["first"]:
        lines.append(
            f"row {item['row']}: {item['choice']}: {_short(item['prompt'])} | {_short(item['first'])} | {_short(item['second'])}"
        )
    return "\n".join(lines + [said["doubts"]] * bool(said["doubts"]) + said["problems"])


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 60 else f"{words[:59]}…"


def saved_words(saved: Saved, name: str) -> str:
    """What was done, in a sentence or two."""
    new = f"{counted(saved.pairs, 'new pair')} and {counted(saved.prompts, 'new prompt')}"
    parts = [f"Taken in: {counted(saved.votes, 'vote')} of {name}, on {new}."]
    if saved.held:
        same = "the same answer of the same person about the same two texts"
        parts.append(f"Left out, because this project has that already: {counted(saved.held, 'vote')} ({same}).")
    if saved.duplicates:
        kept = "left out" if saved.dropped else "kept; left out when that is asked for"
        further = counted(saved.duplicates, "further answer")
        parts.append(f"Besides: {further} of the same person about the same two texts ({kept}).")
    if saved.broken:
        parts.append(f"Left out: {counted(saved.broken, 'row')} with a problem.")
    if saved.same_texts:
        parts.append(f"Nothing can be learnt from {counted(saved.same_texts, 'comparison')} of a text with itself.")
    return " ".join(parts)


def goes_words(goes: TakenBack, *, done: bool = False) -> str:
    """What would go with an import, or what went."""
    will, stay = ("went", "stayed") if done else ("go", "stay")
    parts = [f"{counted(goes.votes, 'vote')} and {counted(goes.pairs, 'pair')} {will}."]
    if goes.staying:
        parts.append(f"{counted(goes.staying, 'pair')} {stay}, because others have voted there.")
    if goes.prompts:
        parts.append(f"{counted(goes.prompts, 'prompt')} will not be sampled from any more.")
    if goes.models:
        learnt = f"{counted(goes.models, 'reward model')} {'has' if goes.models == 1 else 'have'}"
        parts.append(f"{learnt} learnt from these votes and will not change: train another one afterwards.")
    return " ".join(parts)


def saved_dict(saved: Saved) -> dict[str, Any]:
    return asdict(saved)
