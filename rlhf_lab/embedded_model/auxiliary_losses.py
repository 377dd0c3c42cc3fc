"""Auxiliary losses of the later pretraining passes: the right name where a text repeats one, and no impossible tokens.

Such mistakes add little to the next-token loss but are obvious to a reader. Neither term changes the optimum: the first is
the cross-entropy restricted to names, the second penalises only tokens that never occur there in the corpus.
"""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast as Tokenizer

from rlhf_lab.embedded_model.batching import PretrainBatch
from rlhf_lab.embedded_model.tales import hero_names


class WrongTokenLoss:
    """Both losses, and a table of the bigrams seen in training.

    Attributes:
        name_ids: (N,) int64 ids of the hero names that are single tokens.
        name_index: (vocab,) int64 index into name_ids, or -1.
        seen_bigrams: (vocab, vocab) bool.
    """

    def __init__(self, tokenizer: Tokenizer, name_weight: float, tail_weight: float) -> None:
        single_token_ids = [row[1] for name in hero_names() if len(row := tokenizer(f" {name}")["input_ids"]) == 2]
        self.name_ids = torch.tensor(sorted(single_token_ids), dtype=torch.long)
        self.name_index = torch.full((len(tokenizer),), -1)
        self.name_index[self.name_ids] = torch.arange(len(self.name_ids))
        self.seen_bigrams = torch.zeros(len(tokenizer), len(tokenizer), dtype=torch.bool)
        self.name_weight, self.tail_weight = name_weight, tail_weight

    def observe(self, _logits: Tensor, batch: PretrainBatch) -> float:
        """Record the bigrams of a batch; returns a loss of 0."""
        self.seen_bigrams[batch.ids[:, :-1][batch.target_mask], batch.targets] = True
        return 0.0

    def loss(self, logits: Tensor, batch: PretrainBatch) -> Tensor:
        """Scalar, nats per token. logits: (targets, vocab).

        Impossible tokens are those that batch.allowed excludes; without it, those that never followed the previous token in
        the texts seen so far.
        """
        targets = batch.targets
        is_repeat = self.repeated_names(batch.ids)[batch.target_mask]
        name_logprobs = logits[is_repeat][:, self.name_ids].log_softmax(-1)
        name_loss = -name_logprobs.gather(1, self.name_index[targets[is_repeat], None]).sum()
        allowed = self.seen_bigrams[batch.ids[:, :-1][batch.target_mask]] if batch.allowed is None else batch.allowed
        allowed_or_target = allowed.scatter(1, targets[:, None], True)
        tail_loss = logits.logsumexp(-1) - logits.masked_fill(~allowed_or_target, float("-inf")).logsumexp(-1)
        return (self.name_weight * name_loss + self.tail_weight * tail_loss.sum()) / len(targets)

    def repeated_names(self, ids: Tensor) -> Tensor:
        """(B, L-1) bool: targets that are a name which occurs earlier in the same text."""
        is_repeat = self.name_index[ids[:, 1:]] >= 0
        for row, pos in is_repeat.nonzero().tolist():
            is_repeat[row, pos] = bool((ids[row, : pos + 1] == ids[row, pos + 1]).any())
        return is_repeat
