"""PPO-ptx: the gradient of pretraining text mixed into every update, so that the policy does not forget to write.

Ouyang et al. 2022 (InstructGPT) §3.5. The texts of an update are drawn from the seed, the step and the update alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_lab.config import PolicyConfig
from rlhf_lab.core.policy_gradients import ptx_loss
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.generation import Tick, pad_right
from rlhf_lab.seeds import derive
from rlhf_lab.trainers.group import Group
from rlhf_lab.trainers.order import in_parts
from rlhf_lab.trainers.rollout import Policy

LONGEST = 256  # tokens of a text that are read


class Pretraining:
    """Texts, as token ids, and their part in the gradient."""

    def __init__(self, policy: Policy, texts: Sequence[str], config: PolicyConfig, tick: Tick) -> None:
        """Raises TrainingError if no text has two tokens, one of which could be predicted."""
        self.policy, self.config, self.tick = policy, config, tick
        longest = min(LONGEST, policy.backbone.context)
        tokenised = (policy.backbone.tokenizer(text)["input_ids"][:longest] for text in texts)
        self.texts = [[int(token) for token in ids] for ids in tokenised if len(ids) > 1]
        if not self.texts:
            raise TrainingError(
                f"ptx_coef = {config.ptx_coef:g} mixes in pretraining text, but there is none. Give some, or set it to 0."
            )

    def accumulate(self, step: int, epoch: int, number: int, micro_batch: int, group: Group) -> Tensor:
        """Add ptx_coef times the gradient of one batch of texts; returns their loss, nats a token."""
        backbone, config = self.policy.backbone, self.config
        seed = derive(config.seed, "ptx", step, epoch, number)
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randint(len(self.texts), (config.ptx_batch,), generator=generator).tolist()
        batch = sorted((self.texts[i] for i in chosen), key=len)
        predicted = sum(len(ids) - 1 for ids in batch)
        total = torch.zeros((), device=backbone.device)
        for part in group.own(in_parts(torch.arange(len(batch)), micro_batch, group.size)):
            self.tick()
            tokens, mask = pad_right([batch[i] for i in part.tolist()], backbone.pad_id, backbone.device)
            total = total + self._gradient(tokens, mask, predicted)
        group.add_up([total])
        return total

    def _gradient(self, tokens: Tensor, mask: Tensor, predicted: int) -> Tensor:
        """Of some texts of the batch; returns what they add to its loss. The graph ends here (gradient_step.micro_gradient)."""
        with self.policy.adapters.using(self.policy.adapter):
            logits = self.policy.backbone.logits(self.policy.backbone.hidden(tokens))
        loss = ptx_loss(logits, tokens, mask, denominator=predicted)
        (self.config.ptx_coef * loss).backward()
        return loss.detach()
