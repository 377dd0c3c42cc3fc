"""No function of the core creates a tensor on the CPU if its arguments are on another device.

The device is "meta", which every machine has: it holds shapes only, and like a GPU it cannot be mixed with the CPU.
Functions that read values (a check, a chosen row) cannot run there and are not in this list.
"""

import pytest
import torch
from support import reference_formulas

from rlhf_lab.core import (
    advantages,
    kl,
    policy_losses,
    preference,
    reward_scaling,
    trpo,
)

X = torch.empty(3, 4, device="meta", dtype=torch.float32, requires_grad=True)
MASK = torch.empty(3, 4, device="meta", dtype=torch.bool)
ROW, ENDED = X[:, 0], MASK[:, 0]
LOGITS, TOKENS = torch.empty(3, 4, 7, device="meta"), torch.empty(3, 4, device="meta", dtype=torch.int64)

CALLS = {
    "gae": lambda: advantages.gae(X, X, MASK, gamma=0.9, lam=0.9, last_values=ROW)[1],
    "nstep": lambda: advantages.nstep(X, X, MASK, gamma=0.9, n=2, last_values=ROW)[1],
    "whiten": lambda: advantages.whiten(X, MASK),
    "explained_variance": lambda: policy_losses.explained_variance(X, X, MASK),
    "weights": lambda: advantages.reinforce_weights(X, MASK, gamma=0.9, baseline="batch_mean"),
    "weights, values": lambda: advantages.reinforce_weights(X, MASK, credit="total", baseline="value", values=X),
    "time_discount": lambda: reference_formulas.time_discount(MASK, 0.9),
    "rloo": lambda: advantages.rloo_advantages(X),
    "grpo": lambda: advantages.grpo_advantages(X),
    "over_tokens": lambda: advantages.broadcast_to_tokens(ROW, MASK),
    "value targets": lambda: advantages.value_targets(
        X, X, MASK, gamma=0.9, lam=0.9, target="monte_carlo", last_values=ROW
    ),
    "truncation": lambda: advantages.truncation_values(ROW, ENDED),
    "eos": lambda: reward_scaling.missing_eos_penalty(ROW, ENDED, 1.0),
    "normalise": lambda: reward_scaling.normalise_scores(ROW, scale=2.0, clip=1.0),
    "shape": lambda: kl.shape_rewards(ROW, X, MASK, 0.1),
    "shape, spread": lambda: kl.shape_rewards(ROW, X, MASK, 0.1, placement="spread"),
    "k3": lambda: reference_formulas.kl_from_logits(LOGITS, LOGITS, TOKENS, "k3", 0.7),
    "full": lambda: reference_formulas.kl_from_logits(LOGITS, LOGITS, TOKENS, "full", 0.7),
    "mask": lambda: reference_formulas.response_mask(TOKENS, 3),
    "ppo": lambda: policy_losses.ppo_clip(X, X, X, MASK, cliprange=0.2, reduction="trajectory_mean").loss,
    "value": lambda: policy_losses.clipped_value_loss(X, X, X, MASK, cliprange_value=0.2).loss,
    "reinforce": lambda: policy_losses.reinforce_loss(X, X, MASK),
    "a2c": lambda: reference_formulas.a2c_loss(X, X, X, X, MASK, vf_coef=0.1).loss,
    "penalty": lambda: policy_losses.ppo_penalty(X, X, X, MASK, coef=0.1).loss,
    "total": lambda: policy_losses.total_loss(X.sum(), entropy=X.sum(), entropy_coef=0.1),
    "trajectory ratio": lambda: reference_formulas.trajectory_log_ratio(X, X, MASK),
    "policy_losses mean": lambda: reference_formulas.importance_mean(X, X, MASK),
    "policy_losses variance": lambda: reference_formulas.importance_variance(X, X, X),
    "ess": lambda: reference_formulas.effective_sample_size(X, MASK),
    "preference": lambda: preference.bradley_terry_loss(ROW, ROW, margin=0.5, tie=ENDED, label_smoothing=0.1),
    "centring": lambda: preference.centring_penalty(ROW, ROW) + preference.score_l2(ROW, ROW),
    "ensemble": lambda: preference.combine_ensemble_scores(X, "uncertainty"),
    "flatten": lambda: trpo.flatten(trpo.unflatten(trpo.flatten([X, ROW]), [X, ROW])),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_result_stays_where_the_arguments_are(name):
    assert CALLS[name]().device.type == "meta"
