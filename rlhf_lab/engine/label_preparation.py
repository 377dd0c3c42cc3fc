"""Prepares labels for the reward trainer: weights them by annotator and truncates them to the model's context."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlhf_lab.common.chat_format import chat_of_prompt, prompt_of_chat
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.label_groups import LabelKeys, are_split, group_labels, label_keys
from rlhf_lab.common.records import Comparison, LabelSnapshot
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import ConfigError, LabelError, ModelError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import annotator_per_vote, load_comparisons
from rlhf_lab.store.votes import vote_counts

MAX_ANNOTATOR_WEIGHT = 10


class PreparedLabels(NamedTuple):
    """The labels in the order of the snapshot. truncated_count: how many were too long for the context. grouping_note: see
    the function of this name."""

    labels: list[Comparison]
    truncated_count: int
    grouping_note: str


def check_annotator_weights(weights: Mapping[str, int]) -> dict[str, int]:
    """The weights. Raises ConfigError unless each is a whole number from 1 to MAX_ANNOTATOR_WEIGHT."""
    for name, weight in weights.items():
        if type(weight) is not int or not 1 <= weight <= MAX_ANNOTATOR_WEIGHT:
            raise ConfigError(
                f"The weight of {name} is {weight!r}; it can be a whole number from 1 to {MAX_ANNOTATOR_WEIGHT}. Leave out an "
                "annotator by not choosing them."
            )
    return dict(weights)


def check_has_labels(
    db: Database, project_id: int, label_snapshot: LabelSnapshot, annotators: Sequence[str] | None
) -> None:
    """Raises LabelError if a snapshot has no labels; the message says which labels the project has."""
    if label_snapshot.vote_ids:
        return
    human, simulated = (
        sum(n for choice, n in vote_counts(db, project_id)[source].items() if choice is not Choice.SKIP)
        for source in (Source.HUMAN, Source.SIMULATED)
    )
    source_phrase = "of people" if label_snapshot.source is Source.HUMAN else "of a judge"
    annotator_phrase = f" by {', '.join(annotators)}" if annotators else ""
    raise LabelError(
        f"there are no labels {source_phrase}{annotator_phrase} yet: a reward model needs at least 2 decided pairs. "
        f"This project has {human} labels of people and {simulated} simulated ones, ties included. Label some pairs first, or "
        "choose others (on the command line: `label`, `train-reward --source`)."
    )


def prepare_labels(
    db: Database, label_snapshot: LabelSnapshot, backbone: Backbone, weights: Mapping[str, int]
) -> PreparedLabels:
    """The labels of a snapshot. Raises ConfigError for an invalid weight, StoreError if the labels were changed."""
    checked_weights = check_annotator_weights(weights)
    labels = grouped(load_comparisons(db, label_snapshot))  # before prompts are shortened
    if checked_weights:
        names = annotator_per_vote(db, label_snapshot)
        labels = [
            dataclasses.replace(c, count=checked_weights.get(name, 1)) for c, name in zip(labels, names, strict=True)
        ]
    truncated = [_truncate(backbone, c) for c in labels]
    truncated_count = sum(new is not old for new, old in zip(truncated, labels, strict=True))
    return PreparedLabels(truncated, truncated_count, grouping_note(labels))


def _keys_of(labels: Sequence[Comparison]) -> list[LabelKeys]:
    return [label_keys(c.prompt, c.chosen, c.rejected) for c in labels]


def grouped(labels: Sequence[Comparison]) -> list[Comparison]:
    """The labels, each with its group of labels that are held out together."""
    groups = group_labels(_keys_of(labels))
    return [dataclasses.replace(label, group=group) for label, group in zip(labels, groups, strict=True)]


def grouping_note(labels: Sequence[Comparison]) -> str:
    """A note if labels that share a prompt or their texts are in several groups; "" otherwise."""
    if not are_split(_keys_of(labels), [c.group for c in labels]):
        return ""
    return (
        "more than half of the labels share prompts or texts, so they are not all held out together: the accuracy is partly "
        "for prompts or texts that the model has seen"
    )


def label_note(truncated_count: int, indistinguishable_count: int = 0) -> str:
    """A note about truncated and omitted labels; "" if all were used unchanged."""
    notes = []
    if truncated_count:
        notes.append(f"{_labels_are(truncated_count)} longer than the model reads, and truncated")
    if indistinguishable_count:
        notes.append(f"{_labels_are(indistinguishable_count)} left out: the model reads the same tokens for both texts")
    return "; ".join(notes)


def _labels_are(count: int) -> str:
    return f"{pluralize(count, 'label')} {'is' if count == 1 else 'are'}"


def _truncate(backbone: Backbone, label: Comparison) -> Comparison:
    """The label, truncated if it does not fit the model's context.

    First the prompt is shortened to at most half of the context, by dropping its oldest messages and, if only one is left, the
    beginning of that. Then the responses are truncated on the right. Imported texts may have any length, and a single one must
    not make a training fail. Raises ModelError if the system prompt alone leaves no room.
    """
    context = backbone.context_length
    prompt = backbone.encode_prompt(label.prompt)
    response_ids = [
        list(ids) or backbone.encode_response(text)
        for ids, text in ((label.chosen_ids, label.chosen), (label.rejected_ids, label.rejected))
    ]
    if len(prompt) + max(map(len, response_ids)) <= context:
        return label
    text, max_prompt_tokens = label.prompt, context // 2
    while len(prompt) > max_prompt_tokens and text:
        text = _shorten_prompt(text, max_prompt_tokens / len(prompt))
        prompt = backbone.encode_prompt(text)
    if len(prompt) >= context:
        raise ModelError(
            f"the project's system prompt takes {len(prompt):,} tokens, and the model reads {context:,} in all, so no text fits "
            "after it. Make a project with a shorter one."
        )
    chosen, rejected = (tuple(map(int, response[: context - len(prompt)])) for response in response_ids)
    return dataclasses.replace(label, prompt=text, chosen_ids=chosen, rejected_ids=rejected)


def _shorten_prompt(text: str, share: float) -> str:
    """A prompt without its oldest turn; for a single message, about this share of its characters, from the end."""
    chat = chat_of_prompt(text)
    if len(chat) > 1:
        later_turns = [i for i, message in enumerate(chat) if i and message["role"] == "user"]
        return prompt_of_chat(chat[later_turns[0] if later_turns else 1 :])
    char_count = min(len(text) - 1, int(len(text) * share))
    return text[len(text) - char_count :]
