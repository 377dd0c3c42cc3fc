"""What the browser says about a pair, read and stored: votes, other answers to earlier pairs, and the list of those."""

import hashlib
from collections.abc import Mapping
from typing import Any

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import Pair, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabelError, StaleVoteError, StoreError
from rlhf_lab.store import pair_leases
from rlhf_lab.store.annotators import get_labelling_config, vote_history
from rlhf_lab.store.projects import get_pair
from rlhf_lab.ui.context import Context

CHOICES_BY_SIDE = {"left": (Choice.FIRST, Choice.SECOND), "right": (Choice.SECOND, Choice.FIRST)}
MAX_NOTE = 1000
MAX_VOTE_MS = 3_600_000


def is_first_on_left(annotator: str, pair_id: int, repeat: bool = False) -> bool:
    """Which completion stands on the left: random, the same after a reload, and the other way at a hidden repeat."""
    return coin_flip(f"{annotator}/{pair_id}") is not repeat


def coin_flip(key: str) -> bool:
    """Heads or tails by what is said: the same for the same words."""
    return hashlib.sha256(key.encode()).digest()[0] % 2 == 0


def texts_by_side(pair: Pair, first_on_left: bool) -> tuple[str, str]:
    """The texts on the left and on the right."""
    texts = (pair.first.text.strip(), pair.second.text.strip())
    return texts if first_on_left else texts[::-1]


def choice_name_of(vote: Vote) -> str:
    """A vote's choice as the screen names it: left, right, tie, both_bad, skip."""
    if vote.choice not in (Choice.FIRST, Choice.SECOND):
        return vote.choice.value
    return "left" if (vote.choice is Choice.FIRST) is vote.first_on_left else "right"


def cast_vote(ctx: Context, payload: dict[str, Any], via: str = "page") -> Vote:
    """Store what was said: {uuid, pair_id, annotator, choice: left|right|tie|both_bad|skip, ms, strength, note}.

    Raises LabelError for anything else, StaleVoteError for a pair that is not open to this annotator.
    """
    try:
        pair_id, annotator, uuid = int(payload["pair_id"]), str(payload["annotator"]), str(payload["uuid"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unreadable_vote(error) from error
    try:
        pair = get_pair(ctx.db, pair_id)
    except StoreError as error:
        raise StaleVoteError(
            "That pair is not there any more; here is the next one. Your vote was not counted."
        ) from error
    if pair.project_id != ctx.project.id:
        if (existing := pair_leases.find_vote(ctx.db, uuid)) is not None:
            return existing  # sent again, because its answer was lost
        raise StaleVoteError("Another project was opened meanwhile; here is its next pair. Your vote was not counted.")
    first_on_left = is_first_on_left(annotator, pair_id, pair_leases.is_repeat(ctx.db, pair_id, annotator))
    return pair_leases.vote_on_lease(
        ctx.db,
        _parse_vote(payload, pair_id, annotator, first_on_left, via),
        get_labelling_config(ctx.db, pair.project_id),
    )


def change_vote(ctx: Context, payload: dict[str, Any]) -> Vote:
    """Another answer to an earlier pair: {vote_id, uuid, annotator, choice, strength, note, made}; sides as they were then."""
    try:
        vote_id, annotator = int(payload["vote_id"]), str(payload["annotator"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unreadable_vote(error) from error
    if is_stale_project(ctx, payload):
        raise StaleVoteError("Another project was opened meanwhile; your answer was not changed.")
    old = next((vote for vote, _ in vote_history(ctx.db, ctx.project.id, annotator, 1000) if vote.id == vote_id), None)
    new = _parse_vote(
        payload, 0 if old is None else old.pair_id, annotator, old is not None and old.first_on_left, "page"
    )
    return pair_leases.change_vote(ctx.db, ctx.project.id, vote_id, new)


def is_stale_project(ctx: Context, payload: Mapping[str, Any]) -> bool:
    """Whether the page that speaks shows another project than the one that is open: when that was `made` says so."""
    created_at = ctx.project.created_at
    return bool(payload.get("made", created_at) != created_at)


def recent_votes(ctx: Context, annotator: str) -> list[dict[str, Any]]:
    """A person's last labels as the list shows them."""
    rows = []
    for vote, pair in vote_history(ctx.db, ctx.project.id, annotator):
        left, right = texts_by_side(pair, vote.first_on_left)
        rows.append({
            "id": vote.id, "prompt": pair.prompt.text, "left": left, "right": right, "choice": choice_name_of(vote),
            "strength": vote.strength or "", "note": vote.note,
        })  # fmt: skip
    return rows


def pair_view(pair: Pair, annotator: str, repeat: bool, rules: LabellingConfig) -> dict[str, Any]:
    """A pair as the screen and the API show it; nothing says that it is a repeat."""
    left, right = texts_by_side(pair, is_first_on_left(annotator, pair.id, repeat))
    return {"id": pair.id, "prompt": pair.prompt.text, "left": left, "right": right, "markdown": rules.markdown}


def _parse_vote(payload: dict[str, Any], pair_id: int, annotator: str, first_on_left: bool, via: str) -> Vote:
    try:
        choice_name, uuid = payload["choice"], str(payload["uuid"])
        choice = (
            CHOICES_BY_SIDE[choice_name][0 if first_on_left else 1]
            if choice_name in CHOICES_BY_SIDE
            else Choice(choice_name)
        )
        ms = min(max(int(payload.get("ms") or 0), 0), MAX_VOTE_MS)
        strength = Strength(payload["strength"]) if payload.get("strength") and choice_name in CHOICES_BY_SIDE else None
        note = str(payload.get("note") or "").strip()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unreadable_vote(error) from error
    if choice in (Choice.FIRST, Choice.SECOND) and choice_name not in CHOICES_BY_SIDE:
        raise LabelError("The vote could not be read. Reload the page and vote again.")
    if len(uuid) > 64:
        raise LabelError("The vote's number is too long; 64 characters fit. Reload the page and vote again.")
    if len(note) > MAX_NOTE:
        raise LabelError(
            f"The note has {len(note):,} characters; {MAX_NOTE:,} fit. Your vote was not counted: shorten it."
        )
    return Vote(
        uuid, pair_id, annotator, Source.HUMAN, choice, first_on_left, ms, strength=strength, note=note, via=via
    )


def _unreadable_vote(error: Exception) -> LabelError:
    return LabelError(f"The vote could not be read ({error!r}). Reload the page and vote again.")
