"""transformers asks of every forward pass without a mask whether a row holds several texts, and waits for a GPU to know.

Here a row holds one text, always (rows.py), and the answer is given beforehand. With a mask, and with a cache, it does not ask.
"""

from torch import Tensor
from transformers import masking_utils


def one_text_a_row() -> None:
    """From now on in this process."""
    masking_utils.find_packed_sequence_indices = _none


def _none(position_ids: Tensor) -> Tensor | None:
    return None
