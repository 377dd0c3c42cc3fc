"""Quality control of annotators: experts, the gold rule applied to a person, and the figures for the operator."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import Chat, turns_of_prompt
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.config.labelling import GoldRule, LabellingConfig
from rlhf_lab.errors import NotAllowedError
from rlhf_lab.store.adjudication import disputed_pairs
from rlhf_lab.store.gold_pairs import GoldResult, count_gold_pairs, gold_results, result_at_last_look
from rlhf_lab.store.project_people import experts
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.store.reward_model_list import list_reward_models
from rlhf_lab.store.vote_table import code, current_votes
from rlhf_lab.ui.context import Context

PAUSED_TEXT = (
    "Your labelling in this project is paused: many of your answers differ from known ones. Please read the guideline "
    "and talk to the operator of this lab, who can end the pause. Your answers so far are kept."
)
NOTE_TEXT = (
    "A friendly note: some of your answers differ from known ones. Please read the guideline again and take your "
    "time. You can continue."
)


class Standing(NamedTuple):
    """The consequences of the gold rule for a person. pause, note: texts shown to them, "" for none."""

    pause: str = ""
    note: str = ""


class Disputes(TypedDict):
    """The number of pairs about which people disagree, and the prompts of the first ones, without votes and numbers."""

    count: int
    prompts: list[Chat]


class GoldRow(TypedDict):
    """A person's answers to gold pairs. low, high: 95 % interval of the accuracy. below: whether the rule applies to them."""

    annotator: str
    right: int
    answers: int
    low: float
    high: float
    below: bool


class GoldView(TypedDict):
    """For the operator: the number of gold pairs, the rule, everybody's accuracy on them, and the experts."""

    gold_pairs: int
    rule: GoldRule
    people: list[GoldRow]
    experts: list[str]


def annotator_notice(ctx: Context, project_id: int, annotator: str, rules: LabellingConfig) -> Standing:
    if rules.gold_rule not in ("inform", "pause") or result_at_last_look(ctx.db, project_id, annotator, rules) is None:
        return Standing()
    return Standing(pause=PAUSED_TEXT) if rules.gold_rule == "pause" else Standing(note=NOTE_TEXT)


def pause_text(ctx: Context, annotator: str) -> str:
    """The text for a person whom the gold rule has paused; "" for others."""
    project_id = ctx.project.id
    return annotator_notice(ctx, project_id, annotator, get_labelling_config(ctx.db, project_id)).pause


def refuse_if_paused(ctx: Context, annotator: str) -> None:
    """Raises NotAllowedError for a person whom the gold rule has paused."""
    if text := pause_text(ctx, annotator):
        raise NotAllowedError(text)


def is_expert(ctx: Context, annotator: str) -> bool:
    """Whether a person may decide disputed pairs and choose gold pairs: an expert of the project, or the operator."""
    return ctx.is_operator() or annotator in experts(ctx.db, ctx.project.id)


def require_expert(ctx: Context, annotator: str) -> None:
    """Raises NotAllowedError unless the person `is_expert`."""
    if not is_expert(ctx, annotator):
        raise NotAllowedError("Only an expert may do this. The operator chooses the experts under People.")


def disputed_view(ctx: Context, project_id: int) -> Disputes:
    count, pairs = disputed_pairs(ctx.db, project_id, "")
    return {"count": count, "prompts": [turns_of_prompt(pair.prompt.text) for pair in pairs]}


def sees_comparisons(ctx: Context) -> bool:
    """Whether the visitor may see figures for which it matters whether others have voted on a pair: how often people agree, how
    many pairs still need votes, how votes compare with earlier scores.

    While a lab of several people shows gold pairs, only the operator may: gold pairs are those that already have a vote.
    """
    if not ctx.access.is_multi_user or ctx.is_operator():
        return True
    return get_labelling_config(ctx.db, ctx.project.id).gold_rate <= 0


def visible_votes(ctx: Context, vote_ids: Iterable[int], claimed_name: object) -> list[int]:
    """Those of these votes whose answer the visitor may see: never that of another person on a pair that the visitor may still be
    asked to judge, as an ordinary pair, a hidden repeat or an expert, to whom any pair may come until one has decided it.

    The operator may see all, and everybody a judge's.
    """
    ids = list(vote_ids)
    if ctx.is_operator():
        return ids
    annotator, project_id = ctx.annotator_name(claimed_name), ctx.project.id
    votes = current_votes(ctx.db, project_id)
    own = votes.votes_by(annotator) & (votes.choice != code(Choice.SKIP))
    if get_labelling_config(ctx.db, project_id).repeats > 0:
        own &= votes.repeat  # no pair comes back twice
    is_settled = np.zeros(len(votes.pair_id), np.bool_)
    is_settled[votes.pair[own]] = True
    if annotator in experts(ctx.db, project_id):
        is_settled &= votes.decided_by_experts()
    is_visible = is_settled[votes.pair] | (votes.source == code(Source.SIMULATED))
    visible = set(votes.vote_id[is_visible & np.isin(votes.vote_id, ids)].tolist())
    return [vote_id for vote_id in ids if vote_id in visible]


def fixed_pairs(ctx: Context, claimed_name: object) -> set[int]:
    """Ids of the pairs on which the visitor's answer stays as it is, because reports may have shown them another person's. The
    operator, who sees all answers, may change theirs."""
    if ctx.is_operator() or not sees_comparisons(ctx):
        return set()
    models = list_reward_models(ctx.db, ctx.project.id)
    shown = [vote_id for row in models for vote_id in (*dict(row.disagreements), *row.examples)]
    votes, visible = current_votes(ctx.db, ctx.project.id), visible_votes(ctx, shown, claimed_name)
    is_of_others = ~votes.cast_by(ctx.annotator_name(claimed_name)) & (votes.source == code(Source.HUMAN))
    return set(votes.pair_id[votes.pair[is_of_others & np.isin(votes.vote_id, visible)]].tolist())


def gold_view(ctx: Context) -> GoldView:
    project_id = ctx.project.id
    rules = get_labelling_config(ctx.db, project_id)
    return {
        "gold_pairs": count_gold_pairs(ctx.db, project_id),
        "rule": rules.gold_rule,
        "people": [gold_row(result, rules) for result in gold_results(ctx.db, project_id)],
        "experts": experts(ctx.db, project_id),
    }


def gold_row(result: GoldResult, rules: LabellingConfig) -> GoldRow:
    low, high = result.interval
    return {
        "annotator": result.annotator,
        "right": result.right,
        "answers": result.answers,
        "low": round(low, 4),
        "high": round(high, 4),
        "below": rules.gold_rule != "none" and result.is_below_bound(rules),
    }
