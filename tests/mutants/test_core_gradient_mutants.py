"""Mutants of the core beyond PPO-clip, and the mistakes that the texts themselves make (docs/FROM_THE_TEXTS.md)."""

import pytest
from runner import Mutant, check_control, check_mutant, controls

PREFERENCE, LOGPROBS, KL = "core/preference.py", "core/logprobs.py", "core/kl.py"
ADVANTAGES, LOSSES, GRADIENTS = "core/advantages.py", "core/policy_losses.py", "core/policy_gradients.py"
CREDIT, SHAPING = "core/credit.py", "core/score_shaping.py"
IMPORTANCE, REGION = "core/importance.py", "core/trust_region.py"
CAT = "core/test_cat_world.py::"

# A table: two lines a row, not seven.
# fmt: off
TEXTS = [
    Mutant(CREDIT, "value targets are rewards, not returns",
           "return gae(rewards, values, mask, gamma=gamma, lam=lam, last_values=last_values)[1].detach()",
           "return rewards.masked_fill(~mask, 0.0)", "test_value_targets_by_hand"),
    Mutant(CREDIT, "every state's target is the return from the start",
           "return rewards_to_go(rewards, mask, gamma=gamma, last_values=last_values).detach()",
           "return over_tokens(rewards_to_go(rewards, mask, gamma=gamma, last_values=last_values)[:, 0], mask)",
           "test_value_targets_by_hand test_monte_carlo_is_the_lambda_return_with_lambda_one"),
    Mutant(CREDIT, "the value's target moves with the value",
           "last_values=last_values)[1].detach()", "last_values=last_values)[1]",
           "test_value_targets_by_hand"),
    Mutant(ADVANTAGES, "one-step error under the name of GAE",
           "advantages = _discounted_sums(deltas, mask, gamma * lam)", "advantages = deltas",
           f"test_gae_by_hand {CAT}test_gae_is_the_weighted_mean_of_the_nstep_advantages"),
    Mutant(GRADIENTS, "entropy with the sign of a loss",
           "- entropy_coef * torch.as_tensor(entropy)", "+ entropy_coef * torch.as_tensor(entropy)",
           "test_total_loss_signs test_a_step_down_the_total_loss_raises_what_is_wanted"),
    Mutant(GRADIENTS, "the policy's objective added to losses as it is",
           "    return (\n        policy\n", "    return (\n        -policy\n",
           "test_total_loss_signs test_a_step_down_the_total_loss_raises_what_is_wanted"),
    Mutant(GRADIENTS, "product of sums for the sum of products",
           "weights.detach().masked_fill(~mask, 0.0) *", "weights.detach().masked_fill(~mask, 0.0).sum(1, keepdim=True) *",
           f"test_reinforce_loss_by_hand {CAT}test_every_weighting_gives_the_exact_gradient"),
    Mutant(LOSSES, "expectation over trajectories taken for the mean over tokens",
           'if reduction == "trajectory_mean":', "if True:",
           f"test_reductions_by_hand {CAT}test_every_weighting_gives_the_exact_gradient"),
    Mutant(ADVANTAGES, "sum where a mean belongs", "return x.sum() / mask.sum().clamp(min=1)", "return x.sum()",
           "test_masked_mean_and_var_by_hand core/test_policy_losses.py::test_reductions_by_hand"),
    Mutant(IMPORTANCE, "one step's ratio for the trajectory's",
           "(logprobs - old_logprobs).masked_fill(~mask, 0.0).sum(dim=-1)",
           "(logprobs - old_logprobs).masked_fill(~mask, 0.0)[:, 0]",
           f"test_trajectory_log_ratio_is_the_sum_over_the_response "
           f"{CAT}test_trajectory_ratios_carry_over_means_and_gradients"),
    Mutant(CREDIT, "the discount before an action forgotten",
           "since_start = (mask.cumsum(dim=1) - 1).clamp(min=0)", "since_start = (0 * mask.cumsum(dim=1))",
           f"test_time_discount_counts_from_the_start_of_the_response "
           f"{CAT}test_discounted_rewards_to_go_alone_follow_another_gradient"),
    Mutant(PREFERENCE, "a negative loss",
           "return -(target * F.logsigmoid(logit)", "return (target * F.logsigmoid(logit)",
           "test_the_loss_is_never_negative test_loss_of_one_pair_by_hand"),
    Mutant(KL, "KL between logits, not between distributions",
           "logprobs = token_logprobs(logits, tokens, temperature=temperature)",
           "logprobs = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)",
           "test_every_estimator_from_logits test_the_full_estimator_is_the_expectation_of_the_unbiased_ones"),
    Mutant(GRADIENTS, "the KL penalty multiplies the surrogate",
           "surrogate.loss + coef * mean_kl", "surrogate.loss * (1 - coef * mean_kl)",
           "test_ppo_penalty_by_hand test_ppo_penalty_equals_loop_whatever_the_padding"),
    Mutant(REGION, "the KL is no constraint", "if kl > max_kl:", "if False:",
           "test_line_search_takes_the_first_fraction_that_keeps_the_limit test_line_search_says_why_it_gave_up"),
    Mutant(LOGPROBS, "the first action's probability twice",
           "scaled.gather(-1, tokens.unsqueeze(-1))", "scaled.gather(-1, tokens.roll(1, -1).unsqueeze(-1))",
           "test_item_05_temperature_divides_the_logits test_packed_rows_and_empty_batch"),
    Mutant(LOGPROBS, "one action more than there are", "return eos_before == 0",
           "return (eos_before == 0) | (eos_before.roll(1, 1) == 0)",
           "test_item_03_mask_ends_with_the_first_eos"),
]

MUTANTS = [
    # --- core/credit.py ---
    Mutant(CREDIT, "total from the second token on", "(mask.cumsum(dim=1) == 1)", "(mask.cumsum(dim=1) == 2)",
           "test_weights_by_hand"),
    Mutant(CREDIT, "rows without a token in the batch mean", "totals.sum() / first.sum().clamp(min=1)", "totals.mean()",
           "test_weights_by_hand"),
    Mutant(CREDIT, "baseline added", "weights = weights - values.detach()", "weights = weights + values.detach()",
           f"test_weights_by_hand {CAT}test_every_baseline_lowers_the_variance"),
    Mutant(CREDIT, "baseline with a gradient", "weights = weights - values.detach()", "weights = weights - values",
           "test_weights_by_hand"),
    Mutant(CREDIT, "weights leak into padding", "return weights.masked_fill(~mask, 0.0)", "return weights",
           "test_weights_by_hand"),
    Mutant(CREDIT, "time counted from column 0", "since_start = (mask.cumsum(dim=1) - 1)",
           "since_start = torch.arange(mask.shape[1]).expand(mask.shape)",
           "test_time_discount_counts_from_the_start_of_the_response"),
    Mutant(CREDIT, "leave-one-out leaves none out", " * (group / (group - 1))", "",
           "test_group_advantages_by_hand test_leave_one_out_is_unbiased_and_the_batch_mean_shrinks"),
    Mutant(CREDIT, "mean over all prompts", "centred = scores - scores.mean(dim=1, keepdim=True)",
           "centred = scores - scores.mean()", "test_group_advantages_by_hand test_group_advantages_equal_loop"),
    Mutant(CREDIT, "biased deviation in a group", "scores.std(dim=1, keepdim=True)",
           "scores.std(dim=1, keepdim=True, correction=0)",
           "test_group_advantages_by_hand test_group_advantages_equal_loop"),
    Mutant(CREDIT, "no epsilon: 0 / 0 where all are alike", " + GROUP_EPS)", ")", "test_group_advantages_by_hand"),
    Mutant(CREDIT, "bootstrapped where it ended", "next_values.masked_fill(ended, 0.0)", "next_values.masked_fill(~ended, 0.0)",
           f"test_truncation_values_only_where_the_limit_cut {CAT}test_a_cut_response_is_worth_its_last_value"),
    Mutant(CREDIT, "a response's number on padding",
           "return per_response.unsqueeze(1).expand(mask.shape).masked_fill(~mask, 0.0)",
           "return per_response.unsqueeze(1).expand(mask.shape)", "test_over_tokens"),
    # --- core/advantages.py ---
    Mutant(ADVANTAGES, "what comes after is not discounted", "after = (gamma * last_values)", "after = last_values",
           "core/test_credit.py::test_value_targets_by_hand "
           "core/test_credit.py::test_monte_carlo_is_the_lambda_return_with_lambda_one"),
    # --- core/score_shaping.py ---
    Mutant(SHAPING, "a penalty for ending", "penalty * (~ended)", "penalty * ended",
           "test_item_20_only_a_missing_end_costs"),
    Mutant(SHAPING, "a missing end pays", "scores - penalty", "scores + penalty", "test_item_20_only_a_missing_end_costs"),
    Mutant(SHAPING, "clipped before scaling", "normalised = (scores - mean) / scale",
           "normalised = ((scores - mean) if clip is None else (scores - mean).clamp(-clip, clip)) / scale",
           "test_scores_are_shifted_scaled_then_clipped"),
    Mutant(SHAPING, "scaled without the shift", "normalised = (scores - mean) / scale", "normalised = scores / scale",
           "test_scores_are_shifted_scaled_then_clipped"),
    Mutant(SHAPING, "spread over columns, not tokens", "scores / mask.sum(dim=1).clamp(min=1)", "scores / mask.shape[1]",
           "test_score_on_the_last_token_or_in_equal_parts core/test_kl.py::test_score_in_equal_parts_by_hand"),
    Mutant(SHAPING, "batches merged without their distance",
           " + shift * shift * self.count * count / total", "",
           "test_running_moments_equal_those_of_all_scores_together"),
    Mutant(SHAPING, "biased running deviation", "(self.count - 1)", "self.count",
           "test_running_moments_equal_those_of_all_scores_together"),
    # --- core/kl.py ---
    Mutant(KL, "placement ignored", "place_scores(scores, mask, placement)", "place_scores(scores, mask)",
           "test_score_in_equal_parts_by_hand"),
    Mutant(KL, "temperature lost on the way to the full KL", "return full_kl(logits, ref_logits, temperature)",
           "return full_kl(logits, ref_logits)", "test_every_estimator_from_logits"),
    Mutant(KL, "the penalty relents when the KL is too large", "self.value *= self.factor", "self.value /= self.factor",
           "test_adaptive_penalty_by_hand "
           "core/test_policy_gradients.py::test_the_adaptive_penalty_finds_a_step_within_its_bounds"),
    Mutant(KL, "the penalty never relents", "elif kl < self.kl_min:", "elif kl < 0:", "test_adaptive_penalty_by_hand"),
    Mutant(KL, "the bound itself is beyond", "if kl > self.kl_max:", "if kl >= self.kl_max:", "test_adaptive_penalty_by_hand"),
    # --- core/policy_losses.py ---
    Mutant(LOSSES, "an empty row counts as a trajectory", "token_mean(per_row, lengths > 0, denominator)",
           "token_mean(per_row, lengths >= 0, denominator)", "test_reductions_by_hand"),
    Mutant(LOSSES, "statistics summed over a trajectory",
           '"token_mean" if reduction == "token_mean" else "trajectory_mean"', "reduction",
           "test_ppo_clip_of_trajectories_equals_loop"),
    Mutant(LOSSES, "reduction ignored", "clipped), mask, reduction, denominator)", "clipped), mask, 'token_mean', denominator)",
           f"test_ppo_clip_of_trajectories_equals_loop {CAT}test_the_per_token_ratio_is_exact_only_where_the_policies_meet"),
    # --- core/policy_gradients.py ---
    Mutant(GRADIENTS, "REINFORCE runs downhill", "terms = -weights", "terms = weights",
           f"test_reinforce_loss_by_hand {CAT}test_every_weighting_gives_the_exact_gradient"),
    Mutant(GRADIENTS, "weights with a gradient", "terms = -weights.detach()", "terms = -weights",
           "test_reinforce_loss_by_hand test_a2c_critic_learns_from_the_squared_error_alone"),
    Mutant(GRADIENTS, "returns with a gradient", "returns.detach(), mask, cliprange_value", "returns + values - values.detach(), "
           "mask, cliprange_value", "test_a2c_critic_learns_from_the_squared_error_alone"),
    Mutant(GRADIENTS, "the critic's weight lost", "total_loss(policy, value=value, vf_coef=vf_coef)", "policy + value",
           "test_a2c_equals_loop test_a2c_critic_learns_from_the_squared_error_alone"),
    Mutant(GRADIENTS, "penalty on KL(new || old)",
           "kl_estimate(old_logprobs.masked_fill(~mask, 0.0), logprobs.masked_fill(~mask, 0.0), ",
           "kl_estimate(logprobs.masked_fill(~mask, 0.0), old_logprobs.masked_fill(~mask, 0.0), ",
           "test_ppo_penalty_by_hand test_ppo_penalty_takes_the_exact_kl"),
    Mutant(GRADIENTS, "penalty with the sign of a bonus", "surrogate.loss + coef * mean_kl", "surrogate.loss - coef * mean_kl",
           "test_ppo_penalty_by_hand test_the_adaptive_penalty_finds_a_step_within_its_bounds"),
    Mutant(GRADIENTS, "pretraining text predicts itself", "tokens[:, 1:][predicted]", "tokens[:, :-1][predicted]",
           "test_ptx_loss_by_hand"),
    Mutant(GRADIENTS, "a token with nothing before it is predicted", "predicted = mask[:, 1:] & mask[:, :-1]",
           "predicted = mask[:, 1:]", "test_ptx_loss_by_hand"),
    # --- core/importance.py ---
    Mutant(IMPORTANCE, "weights never normalised", "if normalise and bool(mask.any()) else", "if False else",
           "test_importance_mean_by_hand test_normalised_weights_know_a_constant"),
    Mutant(IMPORTANCE, "second moment under the new policy, unweighted", "(p * x).square() / q", "p * x.square()",
           f"test_variance_by_hand {CAT}test_importance_sampling_keeps_the_mean_and_not_the_variance"),
    Mutant(IMPORTANCE, "0 / 0 where nothing ever happens", "terms.masked_fill(p * x == 0, 0.0)", "terms",
           "test_variance_where_something_never_happens"),
    Mutant(IMPORTANCE, "sample size without the square", "weights.sum().square() / squares", "weights.sum() / squares",
           "test_effective_sample_size_by_hand_and_by_the_variance_of_the_weights test_effective_sample_size_at_its_ends"),
    Mutant(IMPORTANCE, "squares overflow", "weights = weights / largest", "weights = weights * 1",
           "test_effective_sample_size_at_its_ends"),
    # --- core/trust_region.py ---
    Mutant(REGION, "steepest descent: directions not conjugate", "residual + (square / before) * direction", "residual",
           "test_conjugate_gradient_by_hand test_conjugate_gradient_solves_in_n_steps"),
    Mutant(REGION, "tolerance ignored", "limit = tol * tol * square", "limit = 0.0",
           "test_conjugate_gradient_stops_when_it_is_near_enough"),
    Mutant(REGION, "negative curvature followed", "if not curvature > 0:", "if curvature == 0:",
           "test_conjugate_gradient_stops_at_negative_curvature"),
    Mutant(REGION, "damping lost", "flatten(second) + damping * vector", "flatten(second)",
           "test_fisher_product_equals_the_dense_matrix test_parameters_that_the_kl_does_not_know_have_no_curvature"),
    Mutant(REGION, "half the KL", "math.sqrt(2.0 * max_kl / curvature)", "math.sqrt(max_kl / curvature)",
           "test_natural_step_by_hand test_natural_step_of_a_policy_costs_the_kl_it_was_given"),
    Mutant(REGION, "the gradient's own direction", "return math.sqrt(2.0 * max_kl / curvature) * x",
           "return math.sqrt(2.0 * max_kl / float(gradient @ matvec(gradient))) * gradient", "test_natural_step_by_hand"),
    Mutant(REGION, "a small step must gain as much as the whole", "accept_ratio * fraction * expected_gain",
           "accept_ratio * expected_gain", "test_line_search_asks_for_a_share_of_the_expected_gain"),
    Mutant(REGION, "no gain is a gain", "if gain > 0 and gain >= wanted", "if gain >= wanted",
           "test_line_search_says_why_it_gave_up"),
    Mutant(REGION, "always the whole step", "fraction = shrink**attempt", "fraction = 1.0",
           "test_line_search_takes_the_first_fraction_that_keeps_the_limit "
           "test_line_search_asks_for_a_share_of_the_expected_gain"),
    Mutant(REGION, "NaN accepted for a reason", "return Reason.NOT_FINITE", "return Reason.GAIN",
           "test_line_search_says_why_it_gave_up"),
    # --- core/preference.py ---
    Mutant(PREFERENCE, "margin without its scale", "strength.to(dtype) * scale", "strength.to(dtype)",
           "test_margin_grows_with_the_strength"),
    Mutant(PREFERENCE, "centring pulls the pair together", "(chosen + rejected).square().mean()",
           "(chosen - rejected).square().mean()", "test_centring_and_l2_by_hand"),
    Mutant(PREFERENCE, "L2 of one side only", "0.5 * (chosen.square() + rejected.square())", "0.5 * (chosen.square())",
           "test_centring_and_l2_by_hand"),
    Mutant(PREFERENCE, "the best of the ensemble", "scores.min(dim=0).values", "scores.max(dim=0).values",
           "test_ensembles_by_hand"),
    Mutant(PREFERENCE, "disagreement pays", "scores.mean(dim=0) - coef *", "scores.mean(dim=0) + coef *",
           "test_ensembles_by_hand"),
    Mutant(PREFERENCE, "variance of one model is NaN", "scores.var(dim=0, correction=0)", "scores.var(dim=0)",
           "test_ensembles_by_hand"),
]
# fmt: on


@pytest.mark.parametrize("mutant", TEXTS + MUTANTS, ids=[mutant.name for mutant in TEXTS + MUTANTS])
def test_new_core_mutant_is_killed(mutant, request):
    check_mutant(mutant, request)


@pytest.mark.parametrize(("file", "test"), controls(TEXTS + MUTANTS))
def test_without_a_new_core_mutant_it_passes(file, test, request):
    check_control(file, test, request)
