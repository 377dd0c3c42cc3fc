"""Which of a project's prompts the model has room to answer."""

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_lab.common.records import Prompt
from rlhf_lab.common.text import pluralize, prompts_skipped_message
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone

DEFAULT_MAX_NEW_TOKENS = 64


class FittingPrompts(NamedTuple):
    """The prompts that a response of `response_length` tokens fits behind, in their order; left_out: how many it does not fit behind."""

    prompts: list[Prompt]
    response_length: int
    too_long_count: int

    @property
    def message(self) -> str:
        """What a person should know of it; "" where nothing is left out."""
        return prompts_skipped_message(self.too_long_count, self.response_length)


def prompts_that_fit(
    backbone: Backbone, prompts: Sequence[Prompt], max_new_tokens: int | None = None
) -> FittingPrompts:
    """The prompts that leave room for `options` new tokens; by default for 64, or for as many as fit behind the longest of those
    that take no more than half of what the model reads.

    Prompts of a file may be of any length, and one that is too long must not stop the work on the others. Raises ModelError
    where no prompt leaves the room.
    """
    indices, response_length = indices_that_fit(backbone, [prompt.text for prompt in prompts], max_new_tokens)
    return FittingPrompts([prompts[i] for i in indices], response_length, len(prompts) - len(indices))


def indices_that_fit(
    backbone: Backbone, texts: Sequence[str], max_new_tokens: int | None = None
) -> tuple[list[int], int]:
    """The same of texts: where those stand that leave the room, and how many tokens a response has."""
    prompt_lengths = [len(backbone.encode_prompt(text)) for text in texts]
    if not prompt_lengths:
        return [], max_new_tokens or DEFAULT_MAX_NEW_TOKENS
    typical_lengths = [
        prompt_length for prompt_length in prompt_lengths if 2 * prompt_length <= backbone.context_length
    ] or [min(prompt_lengths)]
    response_length = (
        min(DEFAULT_MAX_NEW_TOKENS, max(1, backbone.context_length - max(typical_lengths)))
        if max_new_tokens is None
        else max_new_tokens
    )
    indices = [
        i
        for i, prompt_length in enumerate(prompt_lengths)
        if prompt_length + response_length <= backbone.context_length
    ]
    if not indices:
        raise ModelError(
            f"no prompt leaves room for a response of {pluralize(response_length, 'token')}: the shortest takes {min(prompt_lengths)}, and the model "
            f"reads {backbone.context_length} in all. Lower max_new_tokens, choose a model with a longer context, or make a project "
            "with shorter prompts."
        )
    return indices, response_length
