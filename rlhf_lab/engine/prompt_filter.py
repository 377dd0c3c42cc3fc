"""Selects the prompts that leave room for a response in the model's context."""

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_lab.common.records import Prompt
from rlhf_lab.common.text import pluralize, prompts_skipped_message
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone


class FilteredPrompts(NamedTuple):
    """The prompts that leave room for a response of `response_length` tokens, in order, and the number of the others."""

    prompts: list[Prompt]
    response_length: int
    too_long_count: int

    @property
    def message(self) -> str:
        """A message for the user; "" if no prompt is too long."""
        return prompts_skipped_message(self.too_long_count, self.response_length)


def filter_prompts(
    backbone: Backbone, prompts: Sequence[Prompt], max_new_tokens: int, *, shortens: bool = False
) -> FilteredPrompts:
    """The prompts that leave room for `max_new_tokens` new tokens.

    shortens: where the context is too small, the responses are shorter instead: as long as fits after the longest of those
    prompts that take at most half of the context. Longer prompts are not considered, because a single one in a file must not
    exclude the others. Raises ModelError if no prompt leaves room.
    """
    texts = [prompt.text for prompt in prompts]
    indices, response_length = indices_that_fit(backbone, texts, max_new_tokens, shortens=shortens)
    return FilteredPrompts([prompts[i] for i in indices], response_length, len(prompts) - len(indices))


def indices_that_fit(
    backbone: Backbone, texts: Sequence[str], max_new_tokens: int, *, shortens: bool = False
) -> tuple[list[int], int]:
    """Like `filter_prompts`, for texts. Returns the indices of those that fit, and the response length in tokens."""
    prompt_lengths = [len(backbone.encode_prompt(text)) for text in texts]
    if not prompt_lengths:
        return [], max_new_tokens
    context, response_length = backbone.context_length, max_new_tokens
    if shortens:
        longest = max((length for length in prompt_lengths if 2 * length <= context), default=min(prompt_lengths))
        response_length = min(max_new_tokens, max(1, context - longest))
    indices = [i for i, length in enumerate(prompt_lengths) if length + response_length <= context]
    if not indices:
        raise ModelError(
            f"no prompt leaves room for a response of {pluralize(response_length, 'token')}: the shortest takes "
            f"{min(prompt_lengths)}, and the model reads {context} in all. Lower max_new_tokens, choose a model "
            "with a longer context, or make a project with shorter prompts."
        )
    return indices, response_length
