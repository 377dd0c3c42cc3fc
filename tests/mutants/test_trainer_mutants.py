"""Mutants of models, trainers and settings: each row breaks a line, and the tests it names must notice (runner.py)."""

import pytest
from runner import Mutant, check_control, check_mutant, controls

ROWS, BACKBONE, GENERATION = "models/rows.py", "models/backbone.py", "models/generation.py"
ADAPTERS, HEADS, REWARD_MODEL = "models/adapters.py", "models/heads.py", "models/reward_model.py"
ROLLOUT, METRICS, POLICY = "trainers/rollout.py", "trainers/metrics.py", "trainers/policy.py"
ESTIMATES, MEASURE, ORDER = "trainers/estimates.py", "trainers/measure.py", "trainers/order.py"
OBJECTIVES, GRADIENT, STATE = "trainers/objectives.py", "trainers/gradient_step.py", "trainers/policy_state.py"
SELFCHECKS, NATURAL, CRITIC = "trainers/selfchecks.py", "trainers/natural_step.py", "trainers/critic.py"
PRETRAINING, SFT = "trainers/pretraining.py", "trainers/sft.py"
CHECKPOINT, EVALUATION = "trainers/checkpoint.py", "trainers/evaluation.py"
LORA, LOGPROBS = "models/lora_linear.py", "core/logprobs.py"
SETTINGS = "settings.py"
PLAIN_LOOP = "trainers/test_policy.py::test_a_whole_step_equals_a_plain_loop"

# A table: two or three lines a row, not seven.
# fmt: off
MUTANTS = [
    # --- models/rows.py ---
    Mutant(ROWS, "logits slice off by one", "self._at(self.prompts - 1)", "self._at(self.prompts)",
           f"test_item_01_logits_slice {PLAIN_LOOP}"),
    Mutant(ROWS, "score reads the position before", "self._at(self.prompts)", "self._at(self.prompts - 1)",
           "test_read_is_where_the_token_was_read models/test_reward_model.py::test_score_by_hand"),
    Mutant(ROWS, "results in the order of lengths, not of rows",
           "result[torch.tensor(order, device=joined.device)] = joined", "result = joined",
           "test_by_length_keeps_the_order_and_groups_similar_lengths "
           "models/test_reward_model.py::test_item_04_score_reads_the_response"),
    Mutant(ROWS, "only the first stop token ends", "response[-1] in backbone.eos_ids",
           "response[-1] == backbone.eos_ids[0]", "test_item_20_any_stop_token_in_force_ends "
           "trainers/test_policy.py::test_item_20_missing_eos_penalty_in_a_run"),
    Mutant(ROWS, "the row keeps its left padding", "start = rows.prompts.shape[1] - prompts", "start = 0 * prompts",
           "test_item_02_left_padding_shifts_no_position "
           "models/test_reward_model.py::test_item_04_score_ignores_padding"),
    Mutant(ROWS, "take keeps the left end of the prompts", "prompts[:, -width:]", "prompts[:, :width]",
           f"test_take_trims_to_what_its_rows_need {PLAIN_LOOP}"),
    # --- models/backbone.py ---
    Mutant(BACKBONE, "dropout stays on", "model.to(device=where).eval()", "model.to(device=where).train()",
           "models/test_rows.py::test_item_08_dropout_is_off"),
    Mutant(BACKBONE, "backbone not frozen", "    model.requires_grad_(False)\n", "", "test_what_is_known_of_a_model"),
    Mutant(BACKBONE, "stop tokens of the generation config ignored", "[tokenizer.eos_token_id, *ids]",
           "[tokenizer.eos_token_id]", "models/test_rows.py::test_item_20_any_stop_token_in_force_ends"),
    Mutant(BACKBONE, "prompt keeps an appended EOS", "while len(ids) > 1 and ids[-1] in self.eos_ids:", "while False:",
           "test_a_prompt_keeps_its_bos_and_loses_an_appended_eos"),
    Mutant(BACKBONE, "scaled logits pass", "if not torch.allclose(ours.float()",
           "if False and torch.allclose(ours.float()", "test_a_model_that_scales_its_logits"),
    Mutant(BACKBONE, "imported text without EOS", "return [*ids, self.eos_ids[0]]", "return ids",
           "test_a_plain_prompt_is_its_own_ids"),
    # --- models/generation.py ---
    Mutant(GENERATION, "EOS dropped", "if token >= 0]", "if token >= 0 and token not in backbone.eos_ids]",
           "test_item_03_eos_is_kept_as_the_last_id_and_ends_the_row"),
    Mutant(GENERATION, "temperature missing in the sampler", "logits.double() / temperature", "logits.double()",
           "test_draw_at_a_temperature_by_hand test_item_05_sampler_logprobs_equal_teacher_forcing "
           "test_item_06_frequencies_are_the_softmax"),
    Mutant(GENERATION, "a top-k filter leaks in", "torch.softmax(logits.double() / temperature",
           "torch.softmax(logits.double().where(logits >= logits.topk(2).values[:, -1:], -torch.inf) / temperature",
           "test_item_06_frequencies_are_the_softmax"),
    Mutant(GENERATION, "uniforms of other rows", "uniform[rows, t]", "uniform[: len(rows), t]",
           "test_a_row_does_not_depend_on_its_batch"),
    Mutant(GENERATION, "uniforms from the global generator", "generator=torch.Generator().manual_seed(seed), ", "",
           "test_uniforms_belong_to_their_seed test_sampling_leaves_the_global_generator_and_the_weights_alone"),
    Mutant(GENERATION, "decode positions stand still", "positions = positions[:, -1:] + 1",
           "positions = positions[:, -1:]", "test_item_05_sampler_logprobs_equal_teacher_forcing"),
    Mutant(GENERATION, "prefill positions not from the mask", "positions = (mask.cumsum(1) - 1).clamp_min(0)",
           "positions = torch.arange(ids.shape[1]).expand_as(ids)",
           "test_item_05_sampler_logprobs_equal_teacher_forcing test_a_row_does_not_depend_on_its_batch"),
    Mutant(GENERATION, "impossible token at u = 0", "right=True", "right=False",
           "test_an_impossible_token_is_not_drawn_at_the_very_bottom"),
    Mutant(GENERATION, "mask where the token is not the pad", "        mask[i, : len(row)] = True\n",
           "        mask[i, : len(row)] = ids[i, : len(row)] != pad_id\n",
           "test_padding_by_hand models/test_rows.py::test_item_03_masks_come_from_lengths"),
    Mutant(GENERATION, "repeated prompts mixed up", "positions = logits[index], mask[index], positions[index]",
           "positions = logits[index.flip(0)], mask[index], positions[index]",
           "test_a_prompt_that_occurs_often_is_read_once"),
    Mutant(GENERATION, "finished rows write on", "tokens.masked_fill(~alive, -1)", "tokens",
           "models/test_kv_cache.py::test_samples_are_those_of_the_plain_cache"),
    Mutant("models/kv_cache.py", "rows that are dropped stay", "self.room = [room[indices] for room in self.room]", "pass",
           "models/test_kv_cache.py::test_it_holds_what_the_plain_layer_holds"),
    # --- models/lora_linear.py ---
    Mutant(LORA, "scale forgotten in the merged weight", "alpha=parts.scale", "alpha=1.0",
           "test_states_and_gradients_equal_pefts test_by_hand"),
    Mutant(LORA, "scale forgotten in the gradient", "da = ctx.scale * (", "da = 1.0 * (",
           "test_states_and_gradients_equal_pefts test_by_hand"),
    Mutant(LORA, "merged weight of before the update", "and versions == self._versions", "",
           "test_the_merged_weight_follows_an_optimiser_step trainers/test_golden.py::test_three_steps_as_recorded"),
    Mutant(LORA, "merged weight of another adapter", "held and versions", "versions",
           "models/test_adapters.py::test_contexts_nest_and_restore"),
    Mutant(LORA, "merged over the frozen weight", "self._weight = torch.empty_like(frozen)", "self._weight = frozen",
           "trainers/test_policy.py::test_item_18_the_backbone_and_the_other_adapters_are_never_trained"),
    Mutant(LORA, "half precision merged", "if not same or", "if",
           "test_half_precision_and_other_layers_are_left_to_peft"),
    # --- core/logprobs.py, the part that training uses ---
    Mutant(LOGPROBS, "temperature missing in the slope", "g = (gradients[0] / ctx.temperature)", "g = gradients[0]",
           "test_sampled_logprobs_by_hand test_sampled_logprobs_have_the_same_gradient_and_none_for_the_entropy"),
    Mutant(LOGPROBS, "0 times minus infinity", "all_logprobs.clamp_min_(torch.finfo(all_logprobs.dtype).min)", "pass",
           "test_sampled_logprobs_have_the_same_gradient_and_none_for_the_entropy"),
    # --- models/adapters.py ---
    Mutant(ADAPTERS, "adapters not restored after an exception", "        finally:\n            self._apply(before",
           "        except KeyError:\n            raise\n        else:\n"
           "            self._apply(before",
           "test_item_18_state_is_restored_after_an_exception test_item_18_merging_gives_the_identical_tensors_back"),
    Mutant(ADAPTERS, "adapters not restored at all",
           "self._apply(before if before.name is None or before.name in self._trainable else _State(None, False))",
           "pass", "test_contexts_nest_and_restore"),
    Mutant(ADAPTERS, "merged weights kept", "module.weight = original", "pass",
           "test_item_18_merging_gives_the_identical_tensors_back test_contexts_nest_and_restore"),
    Mutant(ADAPTERS, "merging forgets the adapter",
           "base.weight + layer.get_delta_weight(name).to(base.weight.dtype)", "base.weight.clone()",
           "test_sampling_through_merged_weights_equals_unmerged"),
    Mutant(ADAPTERS, "alpha ignored", "lora_alpha=alpha", "lora_alpha=r", "test_delta_by_hand"),
    Mutant(ADAPTERS, "frozen adapters trained", "parameter.requires_grad_(trainable)", "parameter.requires_grad_(True)",
           "test_only_trainable_adapters_require_gradients"),
    Mutant(ADAPTERS, "global generator moved", "torch.random.fork_rng(devices=[]), ", "",
           "test_a_new_adapter_changes_nothing_and_its_seed_decides"),
    Mutant(ADAPTERS, "LoRA dropout on", "lora_dropout=0.0", "lora_dropout=0.1", "test_saved_config_has_no_dropout"),
    # --- models/heads.py ---
    Mutant(HEADS, "pads kept in the pool", ".masked_fill(~mask[..., None], 0.0)", "",
           "test_mean_pooling_by_hand models/test_reward_model.py::test_item_04_score_ignores_padding"),
    Mutant(HEADS, "mean over the padded width", "hidden.sum(1) / lengths[:, None]", "hidden.mean(1)",
           "test_mean_pooling_by_hand models/test_reward_model.py::test_score_by_hand"),
    Mutant(HEADS, "last column, not last token", "device=hidden.device), lengths - 1]", "device=hidden.device), -1]",
           "test_last_pooling_by_hand models/test_reward_model.py::test_item_04_score_ignores_padding"),
    Mutant(HEADS, "shift forgotten", "return (self.raw(hidden, mask) - self.shift) /",
           "return self.raw(hidden, mask) /", "test_score_is_shifted_then_scaled"),
    Mutant(HEADS, "initial spread", "/ (hidden_size + 1) ** 0.5", "/ 3",
           "test_reward_head_starts_at_one_over_root_d_plus_one"),
    Mutant(HEADS, "values start at random", "nn.init.zeros_(self.linear.weight)", "nn.init.normal_(self.linear.weight)",
           "test_value_head_starts_at_zero test_new_heads_leave_the_global_generator_alone"),
    # --- models/reward_model.py ---
    Mutant(REWARD_MODEL, "head not loaded", "head.load_state_dict(tensors)", "pass", "test_item_21_saved_with_its_head "
           "trainers/test_reward.py::test_item_21_saved_with_head_and_normalisation"),
    Mutant(REWARD_MODEL, "head not saved", "in self.head.state_dict().items()",
           "in RewardHead(self.backbone.hidden_size, self.head.pooling, 0).state_dict().items()",
           "test_item_21_saved_with_its_head "
           "trainers/test_reward.py::test_item_21_saved_with_head_and_normalisation"),
    Mutant(REWARD_MODEL, "normalisation not saved", "for k, v in self.head.state_dict().items()}",
           'for k, v in (self.head.state_dict() | {"scale": torch.ones(())}).items()}',
           "test_item_21_saved_with_its_head"),
    Mutant(REWARD_MODEL, "scored without its adapter", "using(self.adapter):\n            return",
           "using(None):\n            return", "test_score_by_hand"),
    Mutant(REWARD_MODEL, "another backbone accepted", 'about["backbone_sha256"] != backbone.digest', "False",
           "test_files_that_cannot_be_used"),
    # --- trainers/rollout.py ---
    Mutant(MEASURE, "temperature missing in the reference",
           "response_logprobs(policy.backbone, states, some, config.temperature)",
           "response_logprobs(policy.backbone, states, some, 1.0)", PLAIN_LOOP),
    Mutant(ROLLOUT, "temperature missing in the reference",
           "self.reference_states(rows), rows, temperature)[0]", "self.reference_states(rows), rows, 1.0)[0]",
           "test_item_05_temperature_divides_old_and_reference"),
    Mutant(ROLLOUT, "temperature missing in old and new",
           "logprobs, entropy = response_logprobs(self.backbone, hidden, rows, temperature, learn_entropy)",
           "logprobs, entropy = response_logprobs(self.backbone, hidden, rows, 1.0, learn_entropy)",
           f"test_item_05_temperature_divides_old_and_reference {PLAIN_LOOP}"),
    Mutant(ROLLOUT, "the entropy bonus has no slope", "both = logprobs_and_entropy if learn_entropy else sampled_logprobs",
           "both = sampled_logprobs", "trainers/test_golden.py::test_three_steps_as_recorded"),
    Mutant(ROLLOUT, "the reference is the policy", "with self.adapters.using(None):",
           "with self.adapters.using(self.adapter):", "test_item_05_temperature_divides_old_and_reference "
           "trainers/test_policy.py::test_item_09_the_kl_of_the_first_step_is_zero_and_then_grows"),
    Mutant(ESTIMATES, "KL sign", "kl_estimate(measured.old_logprobs, measured.ref_logprobs,",
           "kl_estimate(measured.ref_logprobs, measured.old_logprobs,",
           f"trainers/test_rollout.py::test_item_09_kl_is_policy_minus_reference_and_is_charged {PLAIN_LOOP}"),
    Mutant(ESTIMATES, "KL of padding", "return kl.masked_fill(~measured.rows.mask, 0.0)", "return kl",
           "trainers/test_rollout.py::test_item_09_kl_is_policy_minus_reference_and_is_charged"),
    Mutant(ESTIMATES, "missing-EOS penalty flipped", "(used, rows.ended, config", "(used, ~rows.ended, config",
           "trainers/test_rollout.py::test_item_20_missing_eos_penalty_goes_by_the_stop_token_in_force "
           "trainers/test_policy.py::test_item_20_missing_eos_penalty_in_a_run"),
    Mutant(ESTIMATES, "missing-EOS penalty added", "used = missing_eos_penalty(used",
           "used = 2 * used - missing_eos_penalty(used",
           "trainers/test_rollout.py::test_item_20_missing_eos_penalty_goes_by_the_stop_token_in_force "
           "trainers/test_rollout.py::test_item_12_score_is_added_once_after_clipping"),
    Mutant(ESTIMATES, "score not clipped", "clip=config.score_clip", "clip=None",
           f"trainers/test_rollout.py::test_item_12_score_is_added_once_after_clipping {PLAIN_LOOP}"),
    Mutant(ESTIMATES, "whitening before returns", "advantages = whiten(advantages, rows.mask)",
           "advantages = whiten(advantages, rows.mask); returns = advantages + values",
           f"trainers/test_rollout.py::test_item_14_returns_use_unwhitened_advantages {PLAIN_LOOP}"),
    Mutant(ESTIMATES, "whitened rewards lose their mean", "whiten(rewards, rows.mask, shift_mean=False)",
           "whiten(rewards, rows.mask)", "trainers/test_rollout.py::test_item_15_whitened_rewards_keep_their_mean"),
    Mutant(ROLLOUT, "value loss never reaches the adapter", 'hidden.detach() if self.trunk == "detached" else hidden',
           "hidden.detach()", f"test_value_loss_reaches_the_adapter_unless_detached {PLAIN_LOOP}"),
    # --- trainers/metrics.py ---
    Mutant(METRICS, "the last micro-batch alone", "self.current.get(name, 0.0) + part.detach()", "part.detach()",
           "test_item_16_micro_batches_add_up_and_updates_average"),
    Mutant(METRICS, "KL a token, not a sequence", "rollout.kl.sum(1).mean()", "rollout.kl.sum() / mask.sum()",
           f"test_metrics_by_hand {PLAIN_LOOP}"),
    Mutant(METRICS, "sign of the KL cost", "non_score = -beta", "non_score = beta",
           f"test_metrics_by_hand {PLAIN_LOOP}"),
    Mutant(METRICS, "sampler gap over padding", "rollout.old_logprobs).abs().masked_fill(~mask, 0.0)",
           "rollout.old_logprobs).abs()", "test_metrics_by_hand"),
    Mutant(METRICS, "clipped whatever the advantage", "((ratio > 1 + clip) & (advantages > 0))", "(ratio > 1 + clip)",
           "test_token_records"),
    Mutant(METRICS, "ratio upside down in the records", "ratio = (logprobs - old).exp()\n    clipped",
           "ratio = (old - logprobs).exp()\n    clipped", "test_token_records"),
    Mutant(METRICS, "first ratios of one micro-batch alone", "torch.maximum(before, worst)", "before",
           "test_item_07_first_ratio_deviation_is_that_of_the_first_minibatch"),
    Mutant(METRICS, "first ratios of every minibatch", "if not self.updates and not self.skipped:", "if True:",
           "test_item_07_first_ratio_deviation_is_that_of_the_first_minibatch "
           "test_item_07_a_first_minibatch_that_was_skipped_counts_too"),
    # --- trainers/policy.py ---
    Mutant(OBJECTIVES, "old log-probs recomputed after the update", "old, advantages, divisor = part.old_logprobs,",
           "old, advantages, divisor = logprobs.detach(),",
           f"trainers/test_policy.py::test_target_kl_stops_the_epochs {PLAIN_LOOP}"),
    Mutant(MEASURE, "old log-probs from the cached decode", "old[index, :length] = evaluated.logprobs.to(old)",
           "old[index, :length] = 1.001 * evaluated.logprobs.to(old)",
           "trainers/test_policy.py::test_item_07_first_ratio_is_one"),
    Mutant(OBJECTIVES, "micro-batch mean of means",
           "loss = ppo_clip(logprobs, old, advantages, mask, cliprange=clip_of(config), denominator=whole.tokens)",
           "loss = ppo_clip(logprobs, old, advantages, mask, cliprange=clip_of(config))",
           "trainers/test_policy.py::test_item_16_any_micro_batch_gives_the_same_gradient"),
    Mutant(OBJECTIVES, "mean of means in the value loss", "denominator=whole.tokens,\n    )\n", ")\n",
           "trainers/test_policy.py::test_item_16_any_micro_batch_gives_the_same_gradient"),
    Mutant(GRADIENT, "mean of means in the entropy", "token_mean(now.entropy, part.rows.mask, whole.tokens)",
           "token_mean(now.entropy, part.rows.mask)",
           "trainers/test_policy.py::test_item_16_any_micro_batch_gives_the_same_gradient"),
    Mutant(POLICY, "controller fed a token mean", 'self.controller.update(metrics["objective/kl"], count',
           'self.controller.update(metrics["objective/kl"] / metrics["tokens/response_len"], count',
           "test_item_11_the_controller_is_fed_the_sequence_sum"),
    Mutant(POLICY, "learning rate off by one", "done = self.steps_done / self.config.steps",
           "done = (self.steps_done + 1) / self.config.steps", f"test_learning_rate_is_annealed_to_zero {PLAIN_LOOP}"),
    Mutant(POLICY, "schedule reported, not used", 'group["lr"] = lr', "pass",
           "test_the_scheduled_rate_is_the_one_that_is_used"),
    Mutant(GRADIENT, "entropy punished", "entropy=entropy,", "entropy=-entropy,",
           PLAIN_LOOP),
    Mutant(GRADIENT, "vf_coef forgotten", "vf_coef=config.vf_coef", "vf_coef=1.0", PLAIN_LOOP),
    Mutant(ROLLOUT, "returns in place of old values", "self.advantages, self.values, self.returns)",
           "self.advantages, self.returns, self.returns)",
           PLAIN_LOOP),
    Mutant(GRADIENT, "gradients not clipped", "clip_grad_norm_(trainer.parameters, trainer.config.max_grad_norm)",
           "clip_grad_norm_(trainer.parameters, 1e9)", PLAIN_LOOP),
    Mutant(POLICY, "sampled without the policy", "using(self.policy.adapter, merged=True)", "using(None)",
           "test_item_07_first_ratio_is_one"),
    Mutant(POLICY, "decoded and encoded again", "make_rows(self.backbone, prompts, sampled.tokens)",
           "make_rows(self.backbone, prompts, [self.backbone.encode_response(self.backbone.decode(x)) for x "
           "in sampled.tokens])", "test_item_19_trained_ids_are_the_sampled_ids"),
    Mutant(POLICY, "rollout seeds from the global generator", "derive(self.config.seed, *purpose, first + row)",
           "int(torch.randint(2**40, ()))", "test_same_seed_same_curve test_item_23_resuming_is_exact"),
    Mutant(POLICY, "the same rollouts every step", '"rollout", self.steps_done, first=first)',
           '"rollout", first=first)', "test_every_step_draws_anew"),
    Mutant(STATE, "optimiser not restored", "trainer.optimiser.state[parameter] = {", "_ = {",
           "trainers/test_policy.py::test_item_23_resuming_is_exact"),
    Mutant(STATE, "coefficient not restored", 'float(numbers["beta"]), float(numbers["lr"])',
           'trainer.controller.value, float(numbers["lr"])', "trainers/test_policy.py::test_item_23_resuming_is_exact"),
    Mutant(STATE, "value head not restored", 'trainer.policy.value_head.load_state_dict(part("value."))', "pass",
           "trainers/test_policy.py::test_item_23_resuming_is_exact"),
    Mutant(STATE, "half a gradient left over", "trainer.optimiser.zero_grad()  # a step", "pass  # a step",
           "trainers/test_policy.py::test_item_23_a_stopped_step_leaves_no_trace"),
    Mutant(ORDER, "prompts drawn with repeats", "orders[round_][position % count]]",
           "orders[round_][min(position % count, 3)]]", "trainers/test_policy.py::test_prompts_are_used_once_a_round"),
    Mutant(GRADIENT, "wild ratios learnt from", "if stats.mean_ratio > config.ratio_threshold:", "if False:",
           "trainers/test_policy.py::test_an_update_with_a_wild_ratio_is_skipped"),
    Mutant(GRADIENT, "skipped gradients kept", "stats.skip()\n                trainer.optimiser.zero_grad()",
           "stats.skip()", "trainers/test_policy.py::test_an_update_with_a_wild_ratio_is_skipped"),
    Mutant(GRADIENT, "target KL ignored", "and stats.epoch_approx_kl() > config.target_kl", "and False",
           "trainers/test_policy.py::test_target_kl_stops_the_epochs"),
    Mutant(SELFCHECKS, "first ratio not checked", "and not worst < RATIO_TOLERANCE", "and worst < 0",
           "trainers/test_policy.py::test_old_logprobs_that_are_not_the_policys"),
    Mutant(SELFCHECKS, "NaN passes", "if broken:", "if False:", "trainers/test_policy.py::test_nan_in_the_value_head"),
    # --- trainers/checkpoint.py ---
    Mutant(CHECKPOINT, "content not verified", "all(_sha256(folder / name) == digest for",
           "all((folder / name).exists() for", "test_a_damaged_checkpoint_falls_back_to_the_one_before"),
    Mutant(CHECKPOINT, "full disk not recognised", "(OSError, SafetensorError)", "OSError",
           "test_a_full_disk_keeps_the_last_checkpoint_and_says_so"),
    Mutant(CHECKPOINT, "half a checkpoint left behind",
           "        shutil.rmtree(building, ignore_errors=True)\n        raise", "        raise",
           "test_a_full_disk_keeps_the_last_checkpoint_and_says_so"),
    Mutant(CHECKPOINT, "one checkpoint kept, not two", "checkpoints(run)[:-RESUMABLE]", "checkpoints(run)[:-1]",
           "test_older_checkpoints_keep_the_adapter_alone"),
    Mutant(CHECKPOINT, "newest by name of the oldest", "for step in reversed(checkpoints(run)):",
           "for step in checkpoints(run):", "test_the_newest_is_loaded_and_a_step_can_be_written_again"),
    # --- trainers/evaluation.py ---
    Mutant(EVALUATION, "best of n by the gold score", "key=lambda i: row_scores[i]", "key=lambda i: row_gold[i]",
           "test_best_of_by_hand"),
    Mutant(EVALUATION, "KL a token, not a sequence", "return difference.sum(1)", "return difference.mean(1)",
           "test_sequence_kl_against_exact_enumeration "
           "test_sequence_kl_uses_the_temperature_and_is_zero_for_the_base"),
    Mutant(EVALUATION, "equal scores count as right", " and score_a != score_b", "", "test_ranking_accuracy_by_hand"),
    Mutant(EVALUATION, "bound of best-of-n", "math.log(n) - (n - 1) / n", "math.log(n)", "test_best_of_kl_literals"),
    # --- settings.py ---
    Mutant(SETTINGS, "range open at the top", "number > item.high", "number >= item.high",
           "test_config.py::test_every_range_is_inclusive_and_enforced"),
    Mutant(SETTINGS, "none on the command line is no answer", "None if item.optional and given == NONE else given",
           "values.get(item.name, item.default) if given == NONE else given",
           "test_config.py::test_none_on_the_command_line_turns_a_limit_off"),
]
# fmt: on


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.file} {mutant.name}" for mutant in MUTANTS])
def test_mutant_is_killed(mutant, request):
    check_mutant(mutant, request)


@pytest.mark.parametrize(("file", "test"), controls(MUTANTS))
def test_without_a_mutant_it_passes(file, test, request):
    check_control(file, test, request)
