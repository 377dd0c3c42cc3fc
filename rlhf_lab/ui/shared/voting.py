"""Stores, changes and lists votes, and decides which text of a pair is on the left."""

import contextlib
import hashlib
import itertools
import math
from collections.abc import Iterable
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import Chat, turns_of_prompt
from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import Lease, Pair, Vote
from rlhf_lab.common.text import cut_length, pluralize
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabelError, NotAllowedError, NotFoundError, StaleVoteError
from rlhf_lab.jobs.model_inspection import stop_token_ids
from rlhf_lab.store import pair_leases
from rlhf_lab.store.edited_answers import EDIT_SUFFIX, check_edit
from rlhf_lab.store.gold_pairs import known_answers
from rlhf_lab.store.projects import get_labelling_config, get_pair
from rlhf_lab.store.votes import find_vote, vote_history
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import MAX_LEASES_OF_ADDRESS
from rlhf_lab.ui.shared.api import LongText, Payload
from rlhf_lab.ui.shared.crowd import fixed_pairs, is_expert

CHOICES_BY_SIDE = {"left": (Choice.FIRST, Choice.SECOND), "right": (Choice.SECOND, Choice.FIRST)}
MAX_NOTE = 1000
PAIRS_OF_PAGE = 2  # the one on screen and the next one
MAX_UUID = 64
MAX_VOTE_MS = 3_600_000


class Cuts(TypedDict):
    """After how many tokens the text on each side was cut off; None for a text that ended, and for one of unknown tokens."""

    left: int | None
    right: int | None


class PairTexts(TypedDict):
    """The texts of a pair, by side. turns: the conversation as the model reads it. adjudication: an expert decides it."""

    id: int
    turns: Chat
    left: str
    right: str
    cut: Cuts
    adjudication: bool


class ShownPair(PairTexts):
    """A pair as a person sees it; does not reveal whether it is a repeat or a gold pair."""

    prompt: str
    markdown: bool


class EarlierVote(PairTexts):
    """A person's vote. gold: for experts, whether the pair is a gold pair."""

    choice: str
    strength: Strength | Literal[""]
    note: str
    gold: NotRequired[bool]


def is_first_on_left(annotator: str, pair_id: int, repeat: bool = False) -> bool:
    """Whether the first completion is on the left where pairs have their own ids: random, the same after a reload, and swapped
    at a hidden repeat."""
    return (hashlib.sha256(f"{annotator}/{pair_id}".encode()).digest()[0] % 2 == 0) is not repeat


def texts_by_side(pair: Pair, first_on_left: bool) -> tuple[str, str]:
    """The texts on the left and on the right."""
    texts = (pair.first.text.strip(), pair.second.text.strip())
    return texts if first_on_left else texts[::-1]


def cuts_by_side(ctx: Context, pair: Pair, first_on_left: bool) -> Cuts:
    stop_ids = stop_token_ids(ctx.project.model) if pair.first.token_ids or pair.second.token_ids else ()
    first, second = (cut_length(text.token_ids, stop_ids) for text in (pair.first, pair.second))
    return {"left": first, "right": second} if first_on_left else {"left": second, "right": first}


def choice_name_of(vote: Vote) -> str:
    """A vote's choice as the screen names it: left, right, tie, both_bad, skip."""
    if vote.choice not in (Choice.FIRST, Choice.SECOND):
        return vote.choice.value
    return "left" if (vote.choice is Choice.FIRST) is vote.first_on_left else "right"


class Answer(Payload):
    """A person's answer to a pair. choice: the better text, or neither. uuid: identifies the vote, so that it counts once even
    if it is sent again."""

    uuid: str
    choice: Literal["left", "right", "tie", "both_bad", "skip"]
    strength: Strength | Literal[""] = ""
    note: LongText = ""
    duration_ms: int = 0


class VotePayload(Answer):
    """edit: the better text as the person would have written it; "" without an edit."""

    pair_id: int
    edit: LongText = ""


class ChangePayload(Answer):
    """project_created_at: identifies the project that the page shows."""

    vote_id: int
    project_created_at: float | None = None


def lease_pairs(ctx: Context, project_id: int, annotator: str, rules: LabellingConfig, *, prefetch: int) -> list[Lease]:
    """`pair_leases.lease_pairs` for a visitor. Raises NotAllowedError if their address holds too many pairs."""
    check_may_hold(ctx, annotator, rules, 1 + prefetch)
    return pair_leases.lease_pairs(ctx.db, project_id, annotator, rules, prefetch=prefetch)


def check_may_hold(ctx: Context, annotator: str, rules: LabellingConfig, pairs: int = PAIRS_OF_PAGE) -> None:
    """Count so many pairs for a visitor, before they are leased. Raises NotAllowedError if their address holds too many."""
    address = ctx.client_address() if ctx.access.is_multi_user and not ctx.is_operator() else ""
    if address and not ctx.lease_limiter.may_hold(annotator, address, pairs, rules.hold_s):
        raise NotAllowedError(
            f"Pages and programs of your network have {MAX_LEASES_OF_ADDRESS} pairs on screen, more than a class needs. Close "
            f"some, or try again in {pluralize(math.ceil(rules.hold_s / 60), 'minute')}."
        )


def give_leases_back(ctx: Context, annotator: str) -> None:
    pair_leases.end_leases(ctx.db, annotator)
    ctx.lease_limiter.give_back(annotator)


def cast_vote(ctx: Context, payload: VotePayload, annotator: str, via: str = "page") -> Vote:
    """Store a vote. Raises StaleVoteError for a pair that is not leased to this annotator, LabelError for a vote that cannot be
    stored, such as one with the uuid of another vote."""
    leased = pair_leases.leased_pairs(ctx.db, annotator)
    try:
        pair = _pair_shown_as(ctx, annotator, payload.pair_id, leased)
    except StaleVoteError:
        if (existing := find_vote(ctx.db, payload.uuid)) is not None:
            return _same_vote(ctx, existing, payload, annotator)  # sent again, because its answer was lost
        raise
    if payload.edit:
        check_may_edit(ctx, payload, pair)
    _, first_on_left = shown_as(ctx, annotator, pair.id, leased.get(pair.id, False))
    vote = _vote_of(payload, pair.id, annotator, first_on_left, via)
    remembered = ctx.demo.labelling_from(annotator, ctx.client_address()) if ctx.demo else contextlib.nullcontext()
    with remembered:
        stored = pair_leases.vote_on_lease(ctx.db, vote, get_labelling_config(ctx.db, pair.project_id))
    return _same_vote(ctx, stored, payload, annotator)


def _same_vote(ctx: Context, stored: Vote, payload: VotePayload, annotator: str) -> Vote:
    """The stored vote with the payload's uuid. Raises LabelError if it is by somebody else or on another pair."""
    if stored.annotator != annotator or payload.pair_id != shown_as(ctx, annotator, stored.pair_id)[0]:
        raise LabelError("Another vote already has this uuid; nothing was counted. Use a new uuid for each vote.")
    return stored


def may_edit(ctx: Context) -> bool:
    """Whether a visitor may write texts of pairs, or their prompts: in demo mode, where everybody may be anybody, only the
    operator."""
    return ctx.is_labeller() and (ctx.demo is None or ctx.is_operator())


def check_may_edit(ctx: Context, payload: VotePayload, pair: Pair) -> None:
    """Raises NotAllowedError, or LabelError for a text that cannot be stored; before the vote is."""
    if not may_edit(ctx):
        raise NotAllowedError(
            "In demo mode only the operator can edit texts. Your vote was not counted: vote again without an edit."
        )
    if payload.choice not in CHOICES_BY_SIDE:
        raise LabelError("Only the better text of a pair can be edited. Choose one, then edit it.")
    if len(payload.uuid) + len(EDIT_SUFFIX) > MAX_UUID:
        raise LabelError(f"The vote's uuid is too long; at most {MAX_UUID - len(EDIT_SUFFIX)} characters with an edit.")
    for text in (pair.first.text, pair.second.text):
        check_edit(text, payload.edit)


def _pair_shown_as(ctx: Context, annotator: str, shown_id: int, leased: Iterable[int]) -> Pair:
    """The pair of the open project that the person's page calls shown_id: one that is leased to them, or that they have judged
    lately. Raises StaleVoteError, with one message for all other numbers: it does not reveal which pairs exist."""
    judged = (vote.pair_id for vote, _ in vote_history(ctx.db, ctx.project.id, annotator))
    pair_ids = itertools.chain(leased, judged)
    pair_id = next((i for i in pair_ids if shown_as(ctx, annotator, i)[0] == shown_id), None)
    try:
        pair = get_pair(ctx.db, 0 if pair_id is None else pair_id)
    except NotFoundError as error:
        raise StaleVoteError(
            "That pair was deleted or was not given to you; here is the next one. Your vote was not counted."
        ) from error
    if pair.project_id != ctx.project.id:
        raise StaleVoteError("Another project has been opened; here is its next pair. Your vote was not counted.")
    return pair


def change_vote(ctx: Context, payload: ChangePayload, annotator: str) -> Vote:
    """Replace an earlier vote; left and right are as they were shown then. Raises LabelError, StaleVoteError."""
    if is_stale_project(ctx, payload.project_created_at):
        raise StaleVoteError("Another project has been opened; your answer was not changed.")
    votes = (vote for vote, _ in vote_history(ctx.db, ctx.project.id, annotator, 1000))
    old = next((vote for vote in votes if vote.id == payload.vote_id), None)
    pair_id, first_on_left = (old.pair_id, old.first_on_left) if old else (0, False)
    new = _vote_of(payload, pair_id, annotator, first_on_left, "page")
    return pair_leases.change_vote(ctx.db, ctx.project.id, payload.vote_id, new, fixed_pairs(ctx, payload.annotator))


def is_stale_project(ctx: Context, created_at: float | None) -> bool:
    """Whether a page shows a project other than the open one. created_at: that of the page's project, None if unknown."""
    return created_at is not None and created_at != ctx.project.created_at


def recent_votes(ctx: Context, annotator: str) -> list[EarlierVote]:
    """A person's last votes, for the list on the screen."""
    rows = list[EarlierVote]()
    history = vote_history(ctx.db, ctx.project.id, annotator)
    gold = known_answers(ctx.db, [vote.pair_id for vote, _ in history]) if is_expert(ctx, annotator) else None
    for vote, pair in history:
        left, right = texts_by_side(pair, vote.first_on_left)
        rows.append({
            "id": vote.id, "turns": turns_of_prompt(pair.prompt.text), "left": left, "right": right,
            "cut": cuts_by_side(ctx, pair, vote.first_on_left), "choice": choice_name_of(vote),
            "strength": vote.strength or "", "note": vote.note,
            "adjudication": vote.adjudication,
        })  # fmt: skip
        if gold is not None:
            rows[-1]["gold"] = pair.id in gold
    return rows


def lease_view(ctx: Context, lease: Lease, rules: LabellingConfig, system_prompt: str = "") -> ShownPair:
    """A leased pair, for the screen and the API; in a multi-user lab with an id and a side that only the lab can compute."""
    pair = lease.pair
    shown_id, first_on_left = shown_as(ctx, lease.annotator, pair.id, lease.repeat)
    left, right = texts_by_side(pair, first_on_left)
    return {
        "id": shown_id, "prompt": pair.prompt.text, "turns": turns_of_prompt(pair.prompt.text, system_prompt),
        "left": left, "right": right, "markdown": rules.markdown, "adjudication": lease.adjudication,
        "cut": cuts_by_side(ctx, pair, first_on_left),
    }  # fmt: skip


def shown_as(ctx: Context, annotator: str, pair_id: int, repeat: bool = False) -> tuple[int, bool]:
    """The id under which a person's page or a program knows a pair, and whether the first text is on the left.

    In a multi-user lab only the lab can compute both, because a pair's own id tells how old it is; the id has 31 bits. On a local
    lab, whose visitors are all the operator, it is the pair's own id.
    """
    if not ctx.access.key:
        return pair_id, is_first_on_left(annotator, pair_id, repeat)
    shown_id = int.from_bytes(ctx.blind_digest("pair", annotator, pair_id)[:4], "big") >> 1
    return shown_id, ctx.blind_side("pair", annotator, pair_id) is not repeat


def _vote_of(answer: Answer, pair_id: int, annotator: str, first_on_left: bool, via: str) -> Vote:
    if len(answer.uuid) > MAX_UUID:
        raise LabelError(f"The vote's uuid is too long; at most {MAX_UUID} characters. Reload the page and vote again.")
    note = answer.note.strip()
    if len(note) > MAX_NOTE:
        raise LabelError(
            f"The note has {len(note):,} characters; {MAX_NOTE:,} are allowed. Your vote was not counted: shorten "
            "the note."
        )
    if answer.choice in CHOICES_BY_SIDE:
        choice = CHOICES_BY_SIDE[answer.choice][0 if first_on_left else 1]
        strength = answer.strength or None
    else:
        choice, strength = Choice(answer.choice), None
    ms = min(max(answer.duration_ms, 0), MAX_VOTE_MS)
    return Vote(
        answer.uuid, pair_id, annotator, Source.HUMAN, choice, first_on_left, ms, strength=strength, note=note, via=via
    )
