"""Mutants of the algorithms: estimates, objectives, the steps, the critic, pretraining text (runner.py)."""

import pytest
from runner import Mutant, check_control, check_mutant, controls

ESTIMATES, OBJECTIVES, GRADIENT = "trainers/estimates.py", "trainers/objectives.py", "trainers/gradient_step.py"
NATURAL, CRITIC, PRETRAINING = "trainers/natural_step.py", "trainers/critic.py", "trainers/pretraining.py"
ROLLOUT, MEASURE, ORDER = "trainers/rollout.py", "trainers/measure.py", "trainers/order.py"
POLICY, STATE, METRICS = "trainers/policy.py", "trainers/policy_state.py", "trainers/metrics.py"
LORA, CONFIG = "models/lora_linear.py", "policy_config.py"
ALGORITHMS, TRPO, OWN = (f"trainers/test_{name}.py::" for name in ("algorithms", "trpo", "critic"))

# A table: two or three lines a row, not seven.
# fmt: off
MUTANTS = [
    # --- estimates ---
    Mutant(ESTIMATES, "one step for n", "n=config.nstep", "n=1", "test_n_steps_ahead"),
    Mutant(ESTIMATES, "an ended response goes on", "truncation_values(measured.after, rows.ended)", "measured.after",
           "test_a_cut_response_is_worth_its_last_value_and_an_ended_one_is_not"),
    Mutant(ESTIMATES, "a cut response is worth nothing",
           "gamma=config.gamma, lam=config.lam, last_values=last)[0]", "gamma=config.gamma, lam=config.lam)[0]",
           f"test_a_cut_response_is_worth_its_last_value_and_an_ended_one_is_not {OWN}test_measured_values_are_the_critics"),
    Mutant(ESTIMATES, "KL charged twice", 'charged = beta if config.kl_penalty == "reward" else 0.0', "charged = beta",
           "test_a_kl_in_the_loss_is_not_in_the_rewards"),
    Mutant(ESTIMATES, "scores not scaled", "scale=scale", "scale=1.0",
           f"test_scores_are_scaled_then_clipped_then_penalised {OWN}test_scores_are_divided_by_the_spread_of_all_so_far"),
    Mutant(ESTIMATES, "values learn the lambda-return whatever is asked for", "target=config.value_target", 'target="gae"',
           "test_values_may_learn_what_really_followed"),
    Mutant(ESTIMATES, "rloo divides by the spread", "rloo_advantages(totals)", "grpo_advantages(totals)",
           f"test_groups_compare_what_is_left_after_the_kl {ALGORITHMS}test_group_advantages_by_hand"),
    Mutant(ESTIMATES, "groups compare bare scores", "grouped(measured, rewards.sum(1)", "grouped(measured, measured.scores",
           "test_groups_compare_what_is_left_after_the_kl"),
    Mutant(ESTIMATES, "anything is a group", "    if not alike:", "    if False:", "test_prompts_that_differ_are_no_group"),
    Mutant(ESTIMATES, "total credit is to-go", "credit=config.credit", 'credit="to_go"', "test_reinforce_weights"),
    Mutant(ESTIMATES, "no baseline", "baseline=config.baseline", 'baseline="none"', "test_reinforce_weights"),
    Mutant(ESTIMATES, "score never spread", "config.score_placement", '"last"', "test_the_score_may_be_spread"),
    Mutant(ESTIMATES, "sampled KL for the exact one", 'config.kl_estimator == "full"', "False",
           "test_the_exact_kl_is_taken_where_asked_for"),
    # --- objectives ---
    Mutant(OBJECTIVES, "grpo unclipped", 'in ("ppo", "grpo")', 'in ("ppo",)', "test_policy_loss"),
    Mutant(OBJECTIVES, "the ratio in place of log-probabilities", "if config.algorithm in ON_POLICY:", "if False:",
           "test_policy_loss"),
    Mutant(OBJECTIVES, "distance to the reference pays", "loss.loss + weights.beta", "loss.loss - weights.beta",
           "test_a_kl_in_the_loss_is_that_of_the_new_policy_and_costs"),
    Mutant(OBJECTIVES, "KL of the old policy in the loss", "kl_estimate(logprobs, part", "kl_estimate(old, part",
           "test_a_kl_in_the_loss_is_that_of_the_new_policy_and_costs"),
    Mutant(OBJECTIVES, "penalty without its weight", "coef=weights.coef", "coef=1.0",
           "test_the_penalty_is_added_with_its_weight"),
    Mutant(OBJECTIVES, "trajectories divided by tokens", 'self.tokens if reduction == "token_mean" else float(self.responses)',
           "self.tokens", "test_policy_loss"),
    Mutant(OBJECTIVES, "loss_mean not looked at", "REDUCTIONS[config.loss_mean]", 'REDUCTIONS["token"]', "test_policy_loss"),
    # --- steps ---
    Mutant(GRADIENT, "the penalty stays", "trainer.penalty.update(stats", "(stats",
           f"{ALGORITHMS}test_the_penalty_steers_itself_by_the_kl_of_the_step"),
    Mutant(GRADIENT, "KL of the step the wrong way round", "kl_estimate(part.old_logprobs.to(new), new,",
           "kl_estimate(new, part.old_logprobs.to(new),",
           f"{ALGORITHMS}test_the_penalty_steers_itself_by_the_kl_of_the_step"),
    Mutant(GRADIENT, "no warm-up", "trainer.steps_done < config.value_warmup", "False",
           f"{OWN}test_values_warm_up_before_the_policy_moves"),
    Mutant(GRADIENT, "no values without a shared trunk", "elif config.uses_values:", "elif False:",
           f"{OWN}test_policy_and_critic_learn_from_their_own_loss_alone"),
    Mutant(GRADIENT, "pretraining text forgotten", "if trainer.pretraining is not None:", "if False:",
           f"{OWN}test_pretraining_text_is_part_of_every_update_and_a_metric"),
    Mutant(NATURAL, "down the gradient", "total -= flatten(slopes)", "total += flatten(slopes)",
           f"{TRPO}test_trpo_holds_its_constraint_and_gains"),
    Mutant(NATURAL, "no damping", "total = self.config.cg_damping * vector", "total = 0.0 * vector",
           f"{TRPO}test_trpo_curvature_is_damped"),
    Mutant(NATURAL, "a refused step is kept", "            self.move(before, step, 0.0)\n", "            pass\n",
           f"{TRPO}test_trpo_takes_back_a_step_that_is_refused"),
    Mutant(NATURAL, "the limit is not kept", "line_search(evaluate, self.config.max_kl,", "line_search(evaluate, 1e9,",
           f"{TRPO}test_trpo_halves_a_step_that_goes_too_far"),
    Mutant(NATURAL, "curvature at another temperature", "full_kl(logits.detach(), logits, self.config.temperature)",
           "full_kl(logits.detach(), logits)", f"{TRPO}test_trpo_curvature_is_the_hessian_of_the_kl"),
    Mutant(NATURAL, "gain the wrong way round", "return loss - new_loss, kl", "return new_loss - loss, kl",
           f"{TRPO}test_trpo_holds_its_constraint_and_gains"),
    Mutant(LORA, "merged weight a constant in the second derivative",
           "merged = merged + (update - update.detach())", "pass", f"{TRPO}test_a_merged_layer_can_be_differentiated_twice"),
    Mutant(LORA, "no second derivative in half precision",
           "            a, b = _halved(wide_a, wide_b, ctx.scale, weight.dtype)\n", "            pass\n",
           f"{TRPO}test_a_half_precision_layer_can_be_differentiated_twice"),
    Mutant(LORA, "half precision's gradients end where they are taken",
           "        x, wide_a, wide_b, a, b, low, weight = ctx.saved_tensors\n",
           "        x, wide_a, wide_b, a, b, low, weight = ctx.saved_tensors\n"
           "        gradients = tuple(g.detach() for g in gradients)\n",
           f"{TRPO}test_trpo_curvature_in_half_precision_is_that_of_float32"),
    Mutant(LORA, "product with the input a constant in the second derivative", "            low = a @ inputs.t()\n", "",
           f"{TRPO}test_a_half_precision_layer_can_be_differentiated_twice"),
    Mutant("models/attention.py", "attention a constant in the second derivative", "weights = _weights(q, k, ctx.scale)", "pass",
           "test_it_can_be_differentiated_twice"),
    # --- critic, pretraining text ---
    Mutant(CRITIC, "head not taken over", "head.linear.bias.copy_(bias)", "pass",
           f"{OWN}test_a_critic_begins_as_the_reward_model"),
    Mutant(ROLLOUT, "the critic reads the policy's states", "using(CRITIC if own else self.adapter)", "using(self.adapter)",
           f"{OWN}test_measured_values_are_the_critics {OWN}test_a_critic_begins_as_the_reward_model"),
    Mutant(ROLLOUT, "value before the last token for the one after", "hidden.read.gather", "hidden.predicting.gather",
           f"{OWN}test_measured_values_are_the_critics"),
    Mutant(MEASURE, "the critic is not asked", "            values[index, :length] = own\n", "",
           f"{OWN}test_measured_values_are_the_critics"),
    Mutant(MEASURE, "exact KL at another temperature", "exact_kl(policy, some, states, config.temperature)",
           "exact_kl(policy, some, states, 1.0)", f"{OWN}test_the_exact_kl_is_over_the_whole_vocabulary"),
    Mutant(PRETRAINING, "mean of means over texts", "denominator=predicted", "denominator=None",
           f"{OWN}test_pretraining_text_adds_the_gradient_of_its_cross_entropy"),
    Mutant(PRETRAINING, "its weight forgotten", "(config.ptx_coef * loss)", "(loss)",
           f"{OWN}test_pretraining_text_adds_the_gradient_of_its_cross_entropy"),
    Mutant("trainers/sft.py", "mean of means over examples", "response_loss(backbone, rows, tokens)",
           "response_loss(backbone, rows)", "test_any_micro_batch_gives_the_same_adapter"),
    Mutant("trainers/sft.py", "the same order every pass", '"sft order", epoch', '"sft order"',
           "test_every_pass_has_an_order_of_its_own"),
    Mutant("trainers/sft.py", "the update forgotten in the merged folder", "state_dict=plain | state", "state_dict=plain",
           "test_a_merged_folder_is_where_a_policy_starts"),
    # --- order, state, metrics, settings ---
    Mutant(ORDER, "a group of different prompts", "[orders[round_][position % count]] * config.group_size",
           "[orders[round_][(position + i) % count] for i in range(config.group_size)]",
           f"{ALGORITHMS}test_prompts_come_in_groups"),
    Mutant(POLICY, "every rollout of the buffer draws the same", "first=first + mine.start)", "first=mine.start)",
           f"{ALGORITHMS}test_a_buffer_of_rollouts_is_one_large_rollout"),
    Mutant(POLICY, "scores of this batch alone", "self.moments.update(scores) if", "float(scores.std()) if",
           f"{OWN}test_scores_are_divided_by_the_spread_of_all_so_far"),
    Mutant(STATE, "penalty not restored", 'trainer.penalty.value = float(numbers["penalty"])', "pass",
           f"{OWN}test_state_carries_what_steers_itself"),
    Mutant(STATE, "moments not restored", 'trainer.moments.spread = numbers["scores"]', 'spread = numbers["scores"]',
           f"{OWN}test_state_carries_what_steers_itself"),
    Mutant(METRICS, "variance about another mean", 'self.mean("ratio_sum") / tokens', 'self.mean("ratio")',
           "test_metrics_by_hand"),
    Mutant(METRICS, "figures of updates that were not made", 'update_metrics(stats) if stats.known("ratio") else {}',
           "update_metrics(stats)", "test_what_is_said_of_updates_is_left_out_where_the_policy_had_none"),
    Mutant(ORDER, "fewer minibatches than asked for", "order.tensor_split(min(config.minibatches, len(order)))",
           "order.chunk(config.minibatches)", "trainers/test_policy.py::test_there_are_as_many_minibatches_as_asked_for"),
    Mutant(POLICY, "learning rate below 0", "min(1.0, self.steps_done / self.config.steps)",
           "self.steps_done / self.config.steps", "test_a_step_beyond_the_last_learns_nothing"),
    Mutant(METRICS, "effective sample size of another mean", 'self.current["ratio"].double().square() *',
           'self.current["ratio"].double() *', "test_metrics_by_hand"),
    Mutant(CONFIG, "settings of other algorithms pass", "not item.read_by(self.algorithm)", "False",
           "test_config.py::test_settings_that_contradict_each_other"),
    Mutant(CONFIG, "the command line recommends nothing", 'return ALGORITHMS.get(given.get("algorithm", "ppo"), {})',
           "return {}", "test_config.py::test_every_algorithm_has_a_recommended_config"),
]
# fmt: on


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.file} {mutant.name}" for mutant in MUTANTS])
def test_mutant_is_killed(mutant, request):
    check_mutant(mutant, request)


@pytest.mark.parametrize(("file", "test"), controls(MUTANTS))
def test_without_a_mutant_it_passes(file, test, request):
    check_control(file, test, request)
