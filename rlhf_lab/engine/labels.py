"""Labels as the trainer takes them: each counted as often as its annotator's weight says, and cut to what the model reads."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlhf_lab.errors import ConfigError, LabelError
from rlhf_lab.kinds import Choice, Source
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.records import Comparison, LabelSnapshot
from rlhf_lab.store.comparisons import annotator_of_each, comparisons, vote_counts
from rlhf_lab.store.database import Database

HEAVIEST = 10


class Prepared(NamedTuple):
    """One comparison a label, in the snapshot's order; cut: how many were longer than the model reads."""

    labels: list[Comparison]
    cut: int


def check_weights(weights: Mapping[str, int]) -> dict[str, int]:
    """Raises ConfigError unless every weight is a whole number from 1 to HEAVIEST; whom not to ask is said by `annotators`."""
    for name, weight in weights.items():
        if type(weight) is not int or not 1 <= weight <= HEAVIEST:
            raise ConfigError(
                f"The weight of {name} is {weight!r}; it can be a whole number from 1 to {HEAVIEST}. Leave out an annotator by "
                "not choosing them."
            )
    return dict(weights)


def check_any(db: Database, project_id: int, pinned: LabelSnapshot, annotators: Sequence[str] | None) -> None:
    """Raises LabelError where a snapshot holds no label, and says where there are some."""
    if pinned.vote_ids:
        return
    human, simulated = (
        sum(n for choice, n in vote_counts(db, project_id)[source].items() if choice is not Choice.SKIP)
        for source in (Source.HUMAN, Source.SIMULATED)
    )
    whose = "of people" if pinned.source is Source.HUMAN else "of a judge"
    by = f" by {', '.join(annotators)}" if annotators else ""
    raise LabelError(
        f"there are no labels {whose}{by} yet: a reward model needs at least 2 decided pairs. This project has {human} labels of "
        f"people and {simulated} simulated ones, ties included. Label some pairs first, or choose others (on the command line: "
        "`label`, `train-reward --source`)."
    )


def prepared(db: Database, pinned: LabelSnapshot, backbone: Backbone, weights: Mapping[str, int]) -> Prepared:
    """The labels of a snapshot. Raises ConfigError for a weight that is none, StoreError for labels that were changed."""
    checked = check_weights(weights)
    labels = comparisons(db, pinned)
    if checked:
        names = annotator_of_each(db, pinned)
        labels = [dataclasses.replace(c, count=checked.get(name, 1)) for c, name in zip(labels, names, strict=True)]
    fitted = [_cut(backbone, c) for c in labels]
    return Prepared(fitted, sum(new is not old for new, old in zip(fitted, labels, strict=True)))


def _cut(backbone: Backbone, label: Comparison) -> Comparison:
    """The label as it is where it fits. Else the prompt loses its beginning until it takes at most half of the context, and
    the texts lose their ends: imported texts may be of any length, and one of them must not stop a training."""
    room = backbone.context
    prompt = backbone.encode_prompt(label.prompt)
    sides = [
        list(ids) or backbone.encode_response(text)
        for ids, text in ((label.chosen_ids, label.chosen), (label.rejected_ids, label.rejected))
    ]
    if len(prompt) + max(map(len, sides)) <= room:
        return label
    text, half = label.prompt, room // 2
    while len(prompt) > half and text:
        keep = min(len(text) - 1, len(text) * half // len(prompt))
        text = text[len(text) - keep :]
        prompt = backbone.encode_prompt(text)
    chosen, rejected = (_tuple(side[: room - len(prompt)]) for side in sides)
    return dataclasses.replace(label, prompt=text, chosen_ids=chosen, rejected_ids=rejected)


def _tuple(ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in ids)
