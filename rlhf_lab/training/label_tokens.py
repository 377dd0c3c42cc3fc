"""The token ids of labels, and which labels say nothing to a model."""

from rlhf_lab.common.records import Comparison
from rlhf_lab.errors import LabelError
from rlhf_lab.models.backbone import Backbone


def response_tokens(backbone: Backbone, label: Comparison) -> tuple[list[int], list[int]]:
    """Token ids of the chosen and the rejected text.

    If they are equal, the model cannot tell the texts apart: they differ only after the end of its context, if at all. Such a
    label is left out of every training and counted, because nothing can be learned from it and no prediction of it is wrong.
    """
    return (
        list(label.chosen_ids) or backbone.encode_response(label.chosen),
        list(label.rejected_ids) or backbone.encode_response(label.rejected),
    )


def same_tokens_error(count: int) -> LabelError:
    """The error if in all `count` labels the two texts have the same tokens."""
    return LabelError(
        f"in all {count} labels the two texts have the same tokens for this model: they differ only after the end "
        "of its context, if at all. Label texts that differ earlier, or choose a model with a longer context."
    )
