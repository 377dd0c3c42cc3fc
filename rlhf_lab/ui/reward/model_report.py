"""What the screen "Reward model" says of one model: how it was trained, its scores, and labels that it contradicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.curves import downsample_values
from rlhf_lab.common.records import Comparison
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.store.label_snapshots import comparisons_by_vote
from rlhf_lab.store.reward_model_list import ListedRewardModel, listed_model
from rlhf_lab.store.votes import next_unvoted_pair
from rlhf_lab.ui.compare.typed_texts import votes_with_scores
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.crowd import sees_comparisons, visible_votes

MAX_POINTS = 300  # of a loss curve
MAX_LOG_ODDS = 18.0


class ExampleText(TypedDict):
    """A text to explain. tag: what is known about it."""

    prompt: str
    turns: list[dict[str, str]]
    text: str
    tag: str


class Disagreement(TypedDict):
    """A label that the model would have decided otherwise. probability: that it gave this label."""

    turns: list[dict[str, str]]
    chosen: str
    rejected: str
    probability: float


class AttributeRow(TypedDict):
    """What labels say about an attribute of the texts. odds: by what `step_text` multiplies the odds of being preferred;
    low, high: 95 % interval; None if they are not measured."""

    name: str
    label: str
    step_text: str
    odds: float | None
    low: float | None
    high: float | None
    is_ignored: bool


class RewardReport(TypedDict):
    """The constant facts about a reward model. calibration: (confidence, accuracy, pairs) of each bin; scores: (score, texts)."""

    id: int
    counts_hidden: bool
    ties: int
    folds: int
    train_accuracy: float | None
    chosen_scores: list[tuple[float, int]]
    rejected_scores: list[tuple[float, int]]
    length_correlation: float | None
    loss: list[float]
    pooling: str | None
    warm_start: bool
    adapter_rejected: bool
    note: str
    seconds: float | None
    example_texts: list[ExampleText]
    calibration: list[tuple[float, float, int]]
    calibration_error: float | None
    disagreements: list[Disagreement]
    attributes: list[AttributeRow]


def model_detail(ctx: Context, model: int, annotator: str | None = None) -> RewardReport:
    """annotator: the name that the visitor's page sends. Raises StoreError if there is no such model."""
    row = listed_model(ctx.db, ctx.project.id, model)
    counts_hidden = not sees_comparisons(ctx)
    if counts_hidden:
        row = without_counts(row)
    report, labels = row.report, training_labels(ctx, row, annotator)
    return {
        "id": row.id, "counts_hidden": counts_hidden,
        "ties": report.get("ties", 0), "folds": report.get("folds", 0), "train_accuracy": report.get("train_accuracy"),
        "chosen_scores": row.chosen_scores, "rejected_scores": row.rejected_scores,
        "length_correlation": report.get("length_correlation"), "loss": thin_and_round(row.loss),
        "pooling": row.config.get("pooling"), "warm_start": bool(row.config.get("warm_start")),
        "adapter_rejected": (report.get("adapter") or {}).get("used") is False,
        "note": report.get("note", ""), "seconds": report.get("seconds"),
        "example_texts": example_texts(ctx, [labels[vote_id] for vote_id in row.examples if vote_id in labels]),
        "calibration": [(predicted, right, pairs) for predicted, right, pairs in report.get("calibration") or ()],
        "calibration_error": report.get("expected_calibration_error"),
        "disagreements": disagreement_rows(
            row.disagreements, {vote_id: labels[vote_id] for vote_id in votes_with_scores(ctx, labels)}
        ),
        "attributes": attribute_rows(report.get("attribute_effects") or [], row.config),
    }  # fmt: skip


def attribute_rows(effects: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[AttributeRow]:
    """The measured attributes and the ignored ones, in the order of ATTRIBUTES."""
    by_name, rows = {effect["name"]: effect for effect in effects}, list[AttributeRow]()
    for name, attribute in ATTRIBUTES.items():
        is_ignored, effect = config.get(name) == "ignore", by_name.get(name)
        if effect is not None or is_ignored:
            odds, low, high = (
                None if effect is None else odds_ratio(effect[key]) for key in ("log_odds", "low", "high")
            )
            rows.append({
                "name": name, "label": attribute.label, "step_text": attribute.step_text, "odds": odds, "low": low,
                "high": high, "is_ignored": is_ignored,
            })  # fmt: skip
    return rows


def odds_ratio(log_odds: float) -> float:
    """With three significant digits; at most about 10^8 and at least 10^-8, which is more than is ever known."""
    return float(f"{math.exp(min(max(log_odds, -MAX_LOG_ODDS), MAX_LOG_ODDS)):.3g}")


def without_counts(row: ListedRewardModel) -> ListedRewardModel:
    """The reward model without all that tells how many labels it was trained on, votes on gold pairs left out."""
    kept = {name: row.report.get(name) for name in ("adapter", "folds", "train_accuracy", "length_correlation")}
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in kept.items()}
    return replace(row, report=rounded, chosen_scores=[], rejected_scores=[], loss=[])


def training_labels(ctx: Context, row: ListedRewardModel, annotator: str | None) -> dict[int, Comparison]:
    """The labels whose texts are shown, by vote, in their present state, without deleted ones and without those that the visitor
    may not see (`visible_votes`); none for visitors who may not see comparisons."""
    if not sees_comparisons(ctx):
        return {}
    shown = [*(vote_id for vote_id, _ in row.disagreements), *row.examples]
    return comparisons_by_vote(ctx.db, visible_votes(ctx, shown, annotator))


def disagreement_rows(
    disagreements: Sequence[tuple[int, float]], labels: Mapping[int, Comparison]
) -> list[Disagreement]:
    """disagreements: (vote, probability)."""
    return [
        {
            "turns": turns_of_prompt(labels[vote_id].prompt),
            "chosen": labels[vote_id].chosen.strip(),
            "rejected": labels[vote_id].rejected.strip(),
            "probability": probability,
        }
        for vote_id, probability in disagreements
        if vote_id in labels
    ]


def example_texts(ctx: Context, decided: Sequence[Comparison]) -> list[ExampleText]:
    """Texts to explain: a pair without a vote, and decided pairs that the model was trained on."""
    texts = []
    # Another pair than this one on a person's screen would be a gold pair.
    pair = next_unvoted_pair(ctx.db, ctx.project.id, "reward screen") if sees_comparisons(ctx) else None
    if pair is not None:
        texts = [(pair.prompt.text, side.text, "waits for a label") for side in (pair.first, pair.second)]
    for label in decided:
        texts += [(label.prompt, label.chosen, "preferred"), (label.prompt, label.rejected, "not preferred")]
    return [
        {"prompt": prompt, "turns": turns_of_prompt(prompt), "text": text.strip(), "tag": tag}
        for prompt, text, tag in texts
    ]


def thin_and_round(numbers: list[float]) -> list[float]:
    """At most MAX_POINTS, with four significant digits."""
    return [float(f"{x:.4g}") for x in downsample_values(numbers, MAX_POINTS)]
