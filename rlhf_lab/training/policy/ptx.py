"""PPO-ptx: the gradient of a pretraining loss added to every update, so that the policy stays fluent.

Ouyang et al. 2022 (InstructGPT) §3.5. The texts of an update are drawn from the seed, the step and the update alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_lab.common.progress import ProgressCallback
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core.policy_losses import ptx_loss
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.batch import pad_right
from rlhf_lab.training.distributed import Distributed
from rlhf_lab.training.policy.batching import split_micro_batches
from rlhf_lab.training.policy.rollout import PolicyModel

MAX_TEXT_TOKENS = 256  # longer texts are truncated


class PtxObjective:
    """Pretraining texts as token ids, and the gradient of their loss."""

    def __init__(self, policy: PolicyModel, texts: Sequence[str], config: PolicyConfig) -> None:
        """Raises TrainingError if no text has at least two tokens, the second of which can be predicted."""
        self.policy, self.coef = policy, config.ptx_coef
        max_tokens = min(MAX_TEXT_TOKENS, policy.backbone.context_length)
        tokenised = (policy.backbone.encode_document(text)[:max_tokens] for text in texts)
        self.texts = [ids for ids in tokenised if len(ids) > 1]
        if not self.texts:
            raise TrainingError(
                f"ptx_coef = {config.ptx_coef:g} mixes in pretraining text, but there is none. Give some, or set it to 0."
            )

    def batch_backward(
        self,
        update_path: tuple[int, int, int],
        config: PolicyConfig,
        distributed: Distributed,
        on_progress: ProgressCallback,
    ) -> Tensor:
        """Add ptx_coef times the gradient of one batch of texts; returns their loss, nats per token.

        update_path: step, epoch and minibatch of the update.
        """
        backbone = self.policy.backbone
        generator = torch.Generator().manual_seed(derive_seed(config.seed, "ptx", *update_path))
        chosen = torch.randint(len(self.texts), (config.ptx_batch,), generator=generator).tolist()
        batch = sorted((self.texts[i] for i in chosen), key=len)
        predicted_tokens = sum(len(ids) - 1 for ids in batch)
        micro_batches = split_micro_batches(torch.arange(len(batch)), config.micro_batch, distributed.world_size)
        total_loss = torch.zeros((), device=backbone.device)
        for indices in distributed.shard(micro_batches):
            on_progress()
            tokens, mask = pad_right([batch[i] for i in indices.tolist()], backbone.pad_id, backbone.device)
            total_loss = total_loss + self._micro_batch_backward(tokens, mask, predicted_tokens)
        distributed.all_reduce_([total_loss])
        return total_loss

    def _micro_batch_backward(self, tokens: Tensor, mask: Tensor, predicted_tokens: int) -> Tensor:
        """The loss of some texts of the batch, detached. Frees its graph on return (see update.micro_batch_backward)."""
        with self.policy.adapters.using(self.policy.adapter):
            logits = self.policy.backbone.logits(self.policy.backbone.hidden(tokens))
        loss = ptx_loss(logits, tokens, mask, denominator=predicted_tokens)
        (self.coef * loss).backward()
        return loss.detach()
