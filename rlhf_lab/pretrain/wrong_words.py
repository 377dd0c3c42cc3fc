"""What the second pass of pretraining asks for besides the next token: the right name again, and no word out of place.

Both are mistakes that cost the next-token loss little and a reader much. Neither term moves what a perfect model would say: one
is the same cross-entropy among names alone, the other punishes only what the corpus never writes.
"""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast as Tokenizer

from rlhf_lab.pretrain.tales import names


class WrongWords:
    """The two terms, with a table of which token has ever followed which in the texts seen."""

    def __init__(self, tokenizer: Tokenizer, name_weight: float, tail_weight: float) -> None:
        whole = [row[1] for name in names() if len(row := tokenizer(f" {name}")["input_ids"]) == 2]
        self.names = torch.tensor(sorted(whole), dtype=torch.long)  # (N,) ids that are a name
        self.place = torch.full((len(tokenizer),), -1)  # (vocab,) which of them an id is, or -1
        self.place[self.names] = torch.arange(len(self.names))
        self.follows = torch.zeros(len(tokenizer), len(tokenizer), dtype=torch.bool)
        self.name_weight, self.tail_weight = name_weight, tail_weight

    def see(self, ids: Tensor, real: Tensor) -> None:
        """Learn what follows what. ids (B, L); real (B, L-1) bool: whether ids[:, 1:] is a token of the text."""
        self.follows[ids[:, :-1][real], ids[:, 1:][real]] = True

    def loss(self, logits: Tensor, ids: Tensor, real: Tensor) -> Tensor:
        """Scalar, nats a token. logits (tokens, vocab) for the targets ids[:, 1:][real]; ids (B, L); real (B, L-1) bool."""
        targets, before = ids[:, 1:][real], ids[:, :-1][real]
        again = self.repeated(ids)[real]
        among = logits[again][:, self.names].log_softmax(-1)
        named = -among.gather(1, self.place[targets[again], None]).sum()
        possible = self.follows[before].scatter(1, targets[:, None], True)
        tail = logits.logsumexp(-1) - logits.masked_fill(~possible, float("-inf")).logsumexp(-1)
        return (self.name_weight * named + self.tail_weight * tail.sum()) / len(targets)

    def repeated(self, ids: Tensor) -> Tensor:
        """(B, L-1) bool: targets that are a name which stands in the same text before."""
        found = self.place[ids[:, 1:]] >= 0
        for row, at in found.nonzero().tolist():
            found[row, at] = bool((ids[row, : at + 1] == ids[row, at + 1]).any())
        return found
