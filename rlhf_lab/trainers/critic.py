"""A value function with an adapter of its own: fresh, or begun as the reward model, which already knows good from bad."""

import torch
from torch import nn

from rlhf_lab.config import PolicyConfig
from rlhf_lab.errors import TrainingError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.heads import ValueHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.seeds import derive
from rlhf_lab.trainers.rollout import CRITIC


def add_critic(adapters: Adapters, head: ValueHead, scorer: object, config: PolicyConfig) -> list[nn.Parameter]:
    """Add the critic's adapter and return its tensors; begun as the reward model, the head starts as that one's too.

    What the head says of a single state is what the values start as; their mean over a response is its score where mean pooling
    reads nothing besides (last_weight 0).
    Raises TrainingError where there is no reward model with an adapter to begin with.
    """
    if config.critic_init == "fresh":
        adapters.add(
            CRITIC, r=config.lora_r, alpha=config.lora_alpha, seed=derive(config.seed, "critic"), trainable=True
        )
        return adapters.parameters(CRITIC)
    if not isinstance(scorer, RewardModel) or scorer.adapter is None:
        raise TrainingError(
            "critic_init = reward, but what scores here is no reward model with an adapter. Choose critic_init = fresh."
        )
    adapters.copy(scorer.adapter, CRITIC, trainable=True)
    with torch.no_grad():
        weight, bias = scorer.head.linear_map()
        head.linear.weight.copy_(weight)
        head.linear.bias.copy_(bias)
    return adapters.parameters(CRITIC)
