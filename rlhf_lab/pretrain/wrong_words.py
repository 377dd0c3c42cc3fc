"""What the later passes of pretraining ask for besides the next token: the right name again, and no word out of place.

Both are mistakes that cost the next-token loss little and a reader much. Neither term moves what a perfect model would say: one
is the same cross-entropy among names alone, the other punishes only what the corpus never writes.
"""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast as Tokenizer

from rlhf_lab.pretrain.reading import Batch
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

    def see(self, _logits: Tensor, batch: Batch) -> float:
        """Learn what follows what; a term that is 0."""
        self.follows[batch.ids[:, :-1][batch.real], batch.targets] = True
        return 0.0

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Scalar, nats a token. logits (targets, vocab).

        Out of place is what the batch says cannot stand there, and where it does not say, what never followed in what was seen.
        """
        targets = batch.targets
        again = self.repeated(batch.ids)[batch.real]
        among = logits[again][:, self.names].log_softmax(-1)
        named = -among.gather(1, self.place[targets[again], None]).sum()
        known = self.follows[batch.ids[:, :-1][batch.real]] if batch.possible is None else batch.possible
        possible = known.scatter(1, targets[:, None], True)
        tail = logits.logsumexp(-1) - logits.masked_fill(~possible, float("-inf")).logsumexp(-1)
        return (self.name_weight * named + self.tail_weight * tail.sum()) / len(targets)

    def repeated(self, ids: Tensor) -> Tensor:
        """(B, L-1) bool: targets that are a name which stands in the same text before."""
        found = self.place[ids[:, 1:]] >= 0
        for row, at in found.nonzero().tolist():
            found[row, at] = bool((ids[row, : at + 1] == ids[row, at + 1]).any())
        return found
