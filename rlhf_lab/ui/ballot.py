"""What the browser says about a pair, read and stored: votes, other answers to earlier pairs, and the list of those."""

import hashlib
from collections.abc import Mapping
from typing import Any

from rlhf_lab.errors import LabelError, StaleVoteError, StoreError
from rlhf_lab.kinds import Choice, Source, Strength
from rlhf_lab.labelling import LabellingConfig
from rlhf_lab.records import Pair, Vote
from rlhf_lab.store import leases
from rlhf_lab.store.labelling import history, labelling_of
from rlhf_lab.store.projects import get_pair
from rlhf_lab.ui.context import Context

SIDES = {"left": (Choice.FIRST, Choice.SECOND), "right": (Choice.SECOND, Choice.FIRST)}
MAX_NOTE = 1000
LONGEST_MS = 3_600_000


def left_is_first(annotator: str, pair_id: int, repeat: bool = False) -> bool:
    """Which completion stands on the left: random, the same after a reload, and the other way at a hidden repeat."""
    return coin(f"{annotator}/{pair_id}") is not repeat


def coin(words: str) -> bool:
    """Heads or tails by what is said: the same for the same words."""
    return hashlib.sha256(words.encode()).digest()[0] % 2 == 0


def sides(pair: Pair, on_left: bool) -> tuple[str, str]:
    """The texts on the left and on the right."""
    texts = (pair.first.text.strip(), pair.second.text.strip())
    return texts if on_left else texts[::-1]


def word_of(vote: Vote) -> str:
    """A vote's choice as the screen names it: left, right, tie, both_bad, skip."""
    if vote.choice not in (Choice.FIRST, Choice.SECOND):
        return vote.choice.value
    return "left" if (vote.choice is Choice.FIRST) is vote.first_on_left else "right"


def cast(ctx: Context, said: dict[str, Any], via: str = "page") -> Vote:
    """Store what was said: {uuid, pair_id, annotator, choice: left|right|tie|both_bad|skip, ms, strength, note}.

    Raises LabelError for anything else, StaleVoteError for a pair that is not open to this annotator.
    """
    try:
        pair_id, annotator, uuid = int(said["pair_id"]), str(said["annotator"]), str(said["uuid"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unreadable(error) from error
    try:
        pair = get_pair(ctx.db, pair_id)
    except StoreError as error:
        raise StaleVoteError(
            "That pair is not there any more; here is the next one. Your vote was not counted."
        ) from error
    if pair.project_id != ctx.project.id:
        if (known := leases.stored_vote(ctx.db, uuid)) is not None:
            return known  # sent again, because its answer was lost
        raise StaleVoteError("Another project was opened meanwhile; here is its next pair. Your vote was not counted.")
    on_left = left_is_first(annotator, pair_id, leases.is_repeat(ctx.db, pair_id, annotator))
    return leases.cast_leased(
        ctx.db, _vote(said, pair_id, annotator, on_left, via), labelling_of(ctx.db, pair.project_id)
    )


def change(ctx: Context, said: dict[str, Any]) -> Vote:
    """Another answer to an earlier pair: {vote_id, uuid, annotator, choice, strength, note, made}; sides as they were then."""
    try:
        vote_id, annotator = int(said["vote_id"]), str(said["annotator"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unreadable(error) from error
    if of_another(ctx, said):
        raise StaleVoteError("Another project was opened meanwhile; your answer was not changed.")
    old = next((vote for vote, _ in history(ctx.db, ctx.project.id, annotator, 1000) if vote.id == vote_id), None)
    new = _vote(said, 0 if old is None else old.pair_id, annotator, old is not None and old.first_on_left, "page")
    return leases.change_vote(ctx.db, ctx.project.id, vote_id, new)


def of_another(ctx: Context, said: Mapping[str, Any]) -> bool:
    """Whether the page that speaks shows another project than the one that is open: when that was `made` says so."""
    made = ctx.project.created_at
    return bool(said.get("made", made) != made)


def earlier(ctx: Context, annotator: str) -> list[dict[str, Any]]:
    """A person's last labels as the list shows them."""
    found = []
    for vote, pair in history(ctx.db, ctx.project.id, annotator):
        left, right = sides(pair, vote.first_on_left)
        found.append({
            "id": vote.id, "prompt": pair.prompt.text, "left": left, "right": right, "choice": word_of(vote),
            "strength": vote.strength or "", "note": vote.note,
        })  # fmt: skip
    return found


def shown(pair: Pair, annotator: str, repeat: bool, rules: LabellingConfig) -> dict[str, Any]:
    """A pair as the screen and the API show it; nothing says that it is a repeat."""
    left, right = sides(pair, left_is_first(annotator, pair.id, repeat))
    return {"id": pair.id, "prompt": pair.prompt.text, "left": left, "right": right, "markdown": rules.markdown}


def _vote(said: dict[str, Any], pair_id: int, annotator: str, on_left: bool, via: str) -> Vote:
    try:
        word, uuid = said["choice"], str(said["uuid"])
        choice = SIDES[word][0 if on_left else 1] if word in SIDES else Choice(word)
        ms = min(max(int(said.get("ms") or 0), 0), LONGEST_MS)
        strength = Strength(said["strength"]) if said.get("strength") and word in SIDES else None
        note = str(said.get("note") or "").strip()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _unreadable(error) from error
    if choice in (Choice.FIRST, Choice.SECOND) and word not in SIDES:
        raise LabelError("The vote could not be read. Reload the page and vote again.")
    if len(uuid) > 64:
        raise LabelError("The vote's number is too long; 64 characters fit. Reload the page and vote again.")
    if len(note) > MAX_NOTE:
        raise LabelError(
            f"The note has {len(note):,} characters; {MAX_NOTE:,} fit. Your vote was not counted: shorten it."
        )
    return Vote(uuid, pair_id, annotator, Source.HUMAN, choice, on_left, ms, strength=strength, note=note, via=via)


def _unreadable(error: Exception) -> LabelError:
    return LabelError(f"The vote could not be read ({error!r}). Reload the page and vote again.")
