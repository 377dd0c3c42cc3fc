"""Screen "Label": two texts, which is better? Keys and buttons; the next pair is there at once."""

import hashlib
import time
from typing import Any

import gradio as gr

from rlhf_lab.errors import LabelError, StaleVoteError
from rlhf_lab.jobs import steward
from rlhf_lab.judges import JUDGES
from rlhf_lab.records import Choice, Pair, Source, Vote
from rlhf_lab.store.comparisons import cast_vote, next_pair, undo_vote
from rlhf_lab.store.projects import get_pair
from rlhf_lab.ui.context import Context, told
from rlhf_lab.ui.widgets import widget

MAX_NAME = 60
SIDES = {"left": (Choice.FIRST, Choice.SECOND), "right": (Choice.SECOND, Choice.FIRST)}


def build(ctx: Context, operator: gr.BrowserState) -> None:
    """The screen's widget and its events."""
    judges = [{"name": judge.name, "about": judge.description, "set": judge.prompt_set} for judge in JUDGES.values()]
    part = widget("label", data={"judges": judges}, label="Label pairs of texts")
    quiet: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}

    def opened(event: gr.EventData) -> dict[str, Any]:
        return state(ctx, name_of(event))

    def vote(event: gr.EventData) -> dict[str, Any]:
        who = name_of(event)
        try:
            cast(ctx, event._data)
        except StaleVoteError as error:
            return state(ctx, who, notice=str(error))
        return state(ctx, who)

    def undo(event: gr.EventData) -> dict[str, Any]:
        who = name_of(event)
        project = ctx.project
        taken = undo_vote(ctx.db, project.id, who)
        if taken is None:
            return state(ctx, who, notice="There is nothing to undo.")
        return state(ctx, who, pair=get_pair(ctx.db, taken.pair_id), notice="Your last vote is taken back.")

    def judge(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        ctx.require_operator(secret)
        said = steward.ask_judge(ctx.db, ctx.project.id, str(event.judge), int(event.count))
        return state(ctx, name_of(event), notice=said)

    def reset(secret: str | None, event: gr.EventData) -> dict[str, Any]:
        ctx.require_operator(secret)
        project = steward.fresh_copy(ctx.db, ctx.project)
        return state(
            ctx, name_of(event), notice=f'A fresh project begins: "{project.name}". The old one is kept under Project.'
        )

    part.opened(told(opened), None, part, **quiet)
    part.vote(told(vote), None, part, **quiet)
    part.undo(told(undo), None, part, **quiet)
    part.judge(told(judge), operator, part, **quiet)
    part.reset(told(reset), operator, part, **quiet)


def name_of(event: gr.EventData) -> str:
    """The annotator's name as the browser gave it. Raises LabelError for none, or one that is too long."""
    name = str(event._data.get("annotator") or "").strip() if event._data else ""
    if not name or len(name) > MAX_NAME or name.startswith("judge:"):
        raise LabelError("This page has no usable name for you; reload it.")
    return name


def left_is_first(annotator: str, pair_id: int) -> bool:
    """Which completion stands on the left: random, and the same after a reload."""
    return hashlib.sha256(f"{annotator}/{pair_id}".encode()).digest()[0] % 2 == 0


def cast(ctx: Context, said: dict[str, Any]) -> Vote:
    """Store what the browser said: {uuid, pair_id, annotator, choice: left|right|tie|both_bad|skip, ms}.

    Raises LabelError for anything else, StaleVoteError for a pair that is not open to this annotator.
    """
    try:
        pair_id, word, annotator, uuid = int(said["pair_id"]), said["choice"], str(said["annotator"]), str(said["uuid"])
        pair = get_pair(ctx.db, pair_id)
        on_left = left_is_first(annotator, pair_id)
        choice = SIDES[word][0 if on_left else 1] if word in SIDES else Choice(word)
        ms = min(max(int(said.get("ms") or 0), 0), 3_600_000)
    except (KeyError, TypeError, ValueError) as error:
        raise LabelError(f"The vote could not be read ({error!r}). Reload the page and vote again.") from error
    if pair.project_id != ctx.project.id:
        raise StaleVoteError("Another project was opened meanwhile; here is its next pair. Your vote was not counted.")
    if choice in (Choice.FIRST, Choice.SECOND) and word not in SIDES:
        raise LabelError("The vote could not be read. Reload the page and vote again.")
    return cast_vote(ctx.db, Vote(uuid, pair_id, annotator, Source.HUMAN, choice, on_left, ms))


def state(ctx: Context, annotator: str, *, pair: Pair | None = None, notice: str = "") -> dict[str, Any]:
    """Everything the widget shows. `pair` is null while the engine writes new ones; `waiting` says so."""
    project = ctx.project
    pair = pair or next_pair(ctx.db, project.id, annotator)
    progress = steward.labels(ctx.db, project.id)
    shown = None
    if pair is not None:
        texts = (pair.first.text, pair.second.text)
        left, right = texts if left_is_first(annotator, pair.id) else texts[::-1]
        shown = {"id": pair.id, "prompt": pair.prompt.text, "left": left.strip(), "right": right.strip()}
    return {
        "at": time.time_ns(),  # a value equal to the one before would not reach the script
        "project": {"id": project.id, "name": project.name, "set": project.prompt_set},
        "pair": shown,
        "waiting": "" if pair else "You have seen every pair. The engine is writing new ones …",
        "notice": notice,
        "labels": progress.human,
        "simulated": progress.simulated,
        "goal": progress.goal,
        "left": progress.to_next,
        "models": progress.newest_model,
    }
