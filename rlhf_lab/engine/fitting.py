"""Which of a project's prompts the model has room to answer."""

from collections.abc import Sequence
from typing import NamedTuple

from rlhf_lab.counted import counted, too_long
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.records import Prompt

MAX_NEW_TOKENS = 64


class Fitting(NamedTuple):
    """The prompts that a response of `length` tokens fits behind, in their order; left_out: how many it does not fit behind."""

    prompts: list[Prompt]
    length: int
    left_out: int

    @property
    def words(self) -> str:
        """What a person should know of it; "" where nothing is left out."""
        return too_long(self.left_out, self.length)


def fitting(backbone: Backbone, prompts: Sequence[Prompt], wanted: int | None = None) -> Fitting:
    """The prompts that leave room for `wanted` new tokens; by default for 64, or for as many as fit behind the longest of those
    that take no more than half of what the model reads.

    Prompts of a file may be of any length, and one that is too long must not stop the work on the others. Raises ModelError
    where no prompt leaves the room.
    """
    found, length = places(backbone, [prompt.text for prompt in prompts], wanted)
    return Fitting([prompts[i] for i in found], length, len(prompts) - len(found))


def places(backbone: Backbone, texts: Sequence[str], wanted: int | None = None) -> tuple[list[int], int]:
    """The same of texts: where those stand that leave the room, and how many tokens a response has."""
    sizes = [len(backbone.encode_prompt(text)) for text in texts]
    if not sizes:
        return [], wanted or MAX_NEW_TOKENS
    usual = [size for size in sizes if 2 * size <= backbone.context] or [min(sizes)]
    length = min(MAX_NEW_TOKENS, max(1, backbone.context - max(usual))) if wanted is None else wanted
    found = [i for i, size in enumerate(sizes) if size + length <= backbone.context]
    if not found:
        raise ModelError(
            f"no prompt leaves room for a response of {counted(length, 'token')}: the shortest takes {min(sizes)}, and the model "
            f"reads {backbone.context} in all. Lower max_new_tokens, choose a model with a longer context, or make a project "
            "with shorter prompts."
        )
    return found, length
