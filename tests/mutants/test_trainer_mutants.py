"""Mutants of models, trainers and settings: each row breaks a line, and the tests it names must notice (runner.py)."""

import pytest
from runner import Mutant, check_control, check_mutant, controls

ROWS, BACKBONE, GENERATION = "models/rows.py", "models/backbone.py", "models/generation.py"
ADAPTERS, HEADS, REWARD_MODEL = "models/adapters.py", "models/heads.py", "models/reward_model.py"
ROLLOUT, METRICS, POLICY = "trainers/rollout.py", "trainers/metrics.py", "trainers/policy.py"
CHECKPOINT, EVALUATION = "trainers/checkpoint.py", "trainers/evaluation.py"
REWARD, WARM_START, CONFIG = "trainers/reward.py", "trainers/warm_start.py", "config.py"
PLAIN_LOOP = "trainers/test_policy.py::test_a_whole_step_equals_a_plain_loop"

# A table: two or three lines a row, not seven.
# fmt: off
MUTANTS = [
    # --- models/rows.py ---
    Mutant(ROWS, "logits slice off by one", "hidden[:, width - 1 : -1]", "hidden[:, width:]",
           f"test_item_01_logits_slice {PLAIN_LOOP}"),
    Mutant(ROWS, "score reads the position before", "-1], hidden[:, width:])", "-1], hidden[:, width - 1 : -1])",
           "test_read_is_where_the_token_was_read models/test_reward_model.py::test_score_by_hand"),
    Mutant(ROWS, "results in the order of lengths, not of rows",
           "result[torch.tensor(order, device=joined.device)] = joined", "result = joined",
           "test_by_length_keeps_the_order_and_groups_similar_lengths "
           "models/test_reward_model.py::test_item_04_score_reads_the_response"),
    Mutant(ROWS, "only the first stop token ends", "response[-1] in backbone.eos_ids",
           "response[-1] == backbone.eos_ids[0]", "test_item_20_any_stop_token_in_force_ends "
           "trainers/test_policy.py::test_item_20_missing_eos_penalty_in_a_run"),
    Mutant(ROWS, "padding is attended to", "torch.cat([rows.prompt_mask, rows.mask.long()], dim=1)",
           "torch.ones_like(ids)", "test_item_02_left_padding_shifts_no_position "
           "models/test_reward_model.py::test_item_04_score_ignores_padding"),
    Mutant(ROWS, "take keeps the left end of the prompts", "prompts[:, -width:]", "prompts[:, :width]",
           f"test_take_trims_to_what_its_rows_need {PLAIN_LOOP}"),
    # --- models/backbone.py ---
    Mutant(BACKBONE, "positions not from the mask", "(attention_mask.cumsum(1) - 1).clamp_min(0)",
           "torch.arange(input_ids.shape[1]).expand_as(input_ids)", "test_positions_are_counted_from_the_mask "
           "models/test_rows.py::test_item_02_left_padding_shifts_no_position"),
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
    # --- models/adapters.py ---
    Mutant(ADAPTERS, "adapters not restored after an exception", "        finally:\n            self._apply(before",
           "        except KeyError:\n            raise\n        else:\n"
           "            self._apply(before",
           "test_item_18_state_is_restored_after_an_exception test_item_18_merging_gives_the_identical_tensors_back"),
    Mutant(ADAPTERS, "adapters not restored at all",
           "self._apply(before if before.name is None or before.name in self._trainable else _State(None, False))",
           "pass", "test_contexts_nest_and_restore"),
    Mutant(ADAPTERS, "merged weights kept", "module.weight = original", "pass",
           "test_item_18_merging_gives_the_identical_tensors_back test_contexts_nest_and_restore "
           "trainers/test_policy.py::test_item_18_the_backbone_and_the_other_adapters_are_never_trained"),
    Mutant(ADAPTERS, "merging forgets the adapter",
           "base.weight + layer.get_delta_weight(state.name).to(base.weight.dtype)", "base.weight.clone()",
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
    Mutant(ROLLOUT, "temperature missing in the reference",
           "return response_logprobs(self.backbone, hidden, rows, temperature)[0]",
           "return response_logprobs(self.backbone, hidden, rows, 1.0)[0]",
           f"test_item_05_temperature_divides_old_and_reference {PLAIN_LOOP}"),
    Mutant(ROLLOUT, "temperature missing in old and new",
           "logprobs, entropy = response_logprobs(self.backbone, hidden, rows, temperature)",
           "logprobs, entropy = response_logprobs(self.backbone, hidden, rows, 1.0)",
           f"test_item_05_temperature_divides_old_and_reference {PLAIN_LOOP}"),
    Mutant(ROLLOUT, "the reference is the policy", "with self.adapters.using(None):",
           "with self.adapters.using(self.adapter):", "test_item_05_temperature_divides_old_and_reference "
           "trainers/test_policy.py::test_item_09_the_kl_of_the_first_step_is_zero_and_then_grows"),
    Mutant(ROLLOUT, "KL sign", "kl_estimate(old, ref,", "kl_estimate(ref, old,",
           f"test_item_09_kl_is_policy_minus_reference_and_is_charged {PLAIN_LOOP}"),
    Mutant(ROLLOUT, "KL of padding", "config.kl_estimator).masked_fill(~rows.mask, 0.0)", "config.kl_estimator)",
           "test_item_09_kl_is_policy_minus_reference_and_is_charged"),
    Mutant(ROLLOUT, "missing-EOS penalty flipped", "(~rows.ended)", "rows.ended",
           "test_item_20_missing_eos_penalty_goes_by_the_stop_token_in_force "
           "trainers/test_policy.py::test_item_20_missing_eos_penalty_in_a_run"),
    Mutant(ROLLOUT, "missing-EOS penalty added", "used = used - config.missing", "used = used + config.missing",
           "test_item_20_missing_eos_penalty_goes_by_the_stop_token_in_force "
           "test_item_12_score_is_added_once_after_clipping"),
    Mutant(ROLLOUT, "score not clipped", "scores if config.score_clip is None else", "scores if True else",
           f"test_item_12_score_is_added_once_after_clipping {PLAIN_LOOP}"),
    Mutant(ROLLOUT, "whitening before returns", "advantages = whiten(advantages, rows.mask)",
           "advantages = whiten(advantages, rows.mask); returns = advantages + values",
           f"test_item_14_returns_use_unwhitened_advantages {PLAIN_LOOP}"),
    Mutant(ROLLOUT, "whitened rewards lose their mean", "whiten(rewards, rows.mask, shift_mean=False)",
           "whiten(rewards, rows.mask)", "test_item_15_whitened_rewards_keep_their_mean"),
    Mutant(ROLLOUT, "value loss never reaches the adapter", "hidden.detach() if detach_value else hidden",
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
    Mutant(METRICS, "clipped whatever the advantage", "((ratio > 1 + config.cliprange) & (advantages > 0))",
           "(ratio > 1 + config.cliprange)", "test_token_records"),
    Mutant(METRICS, "ratio upside down in the records", "ratio = (logprobs - old).exp()\n    clipped",
           "ratio = (old - logprobs).exp()\n    clipped", "test_token_records"),
    # --- trainers/policy.py ---
    Mutant(POLICY, "old log-probs recomputed after the update", "ppo_clip(now.logprobs, old,",
           "ppo_clip(now.logprobs, now.logprobs.detach(),", f"test_target_kl_stops_the_epochs {PLAIN_LOOP}"),
    Mutant(POLICY, "old log-probs from the cached decode", "old[index, :length] = evaluated.logprobs.to(old)",
           "old[index, :length] = 1.001 * evaluated.logprobs.to(old)", "test_item_07_first_ratio_is_one"),
    Mutant(POLICY, "micro-batch mean of means", "cliprange=config.cliprange, denominator=tokens)",
           "cliprange=config.cliprange)", "test_item_16_any_micro_batch_gives_the_same_gradient"),
    Mutant(POLICY, "mean of means in the value loss", "cliprange_value=config.cliprange_value, denominator=tokens",
           "cliprange_value=config.cliprange_value", "test_item_16_any_micro_batch_gives_the_same_gradient"),
    Mutant(POLICY, "mean of means in the entropy", "token_mean(now.entropy, rows.mask, tokens)",
           "token_mean(now.entropy, rows.mask)", "test_item_16_any_micro_batch_gives_the_same_gradient"),
    Mutant(POLICY, "controller fed a token mean", 'self.controller.update(metrics["objective/kl"], len',
           'self.controller.update(metrics["objective/kl"] / metrics["tokens/response_len"], len',
           "test_item_11_the_controller_is_fed_the_sequence_sum"),
    Mutant(POLICY, "learning rate off by one", "(1 - self.step / self.config.steps)",
           "(1 - (self.step + 1) / self.config.steps)", f"test_learning_rate_is_annealed_to_zero {PLAIN_LOOP}"),
    Mutant(POLICY, "schedule reported, not used", 'group["lr"] = lr', "pass",
           "test_the_scheduled_rate_is_the_one_that_is_used"),
    Mutant(POLICY, "entropy punished", "- config.entropy_coef * entropy", "+ config.entropy_coef * entropy",
           PLAIN_LOOP),
    Mutant(POLICY, "vf_coef forgotten", "config.vf_coef * value.loss", "value.loss", PLAIN_LOOP),
    Mutant(POLICY, "returns in place of old values", "rollout.advantages, rollout.values, rollout.returns",
           "rollout.advantages, rollout.returns, rollout.returns", PLAIN_LOOP),
    Mutant(POLICY, "gradients not clipped", "clip_grad_norm_(self.parameters, self.config.max_grad_norm)",
           "clip_grad_norm_(self.parameters, 1e9)", PLAIN_LOOP),
    Mutant(POLICY, "sampled without the policy",
           "range(len(prompts))]\n        with self.adapters.using(self.policy.adapter, merged=True):\n       "
           "     sampled", "range(len(prompts))]\n        with self.adapters.using(None):\n            sampled",
           "test_item_07_first_ratio_is_one"),
    Mutant(POLICY, "decoded and encoded again", "make_rows(self.backbone, prompts, sampled.tokens)",
           "make_rows(self.backbone, prompts, [self.backbone.encode_response(self.backbone.decode(x)) for x "
           "in sampled.tokens])", "test_item_19_trained_ids_are_the_sampled_ids"),
    Mutant(POLICY, "rollout seeds from the global generator", 'derive(self.config.seed, "rollout", self.step, row)',
           "int(torch.randint(2**40, ()))", "test_same_seed_same_curve test_item_23_resuming_is_exact"),
    Mutant(POLICY, "the same rollouts every step", 'derive(self.config.seed, "rollout", self.step, row)',
           'derive(self.config.seed, "rollout", row)', "test_every_step_draws_anew"),
    Mutant(POLICY, "optimiser not restored", "self.optimiser.state[parameter] = {", "_ = {",
           "test_item_23_resuming_is_exact"),
    Mutant(POLICY, "coefficient not restored", 'float(numbers["beta"]), float(numbers["lr"])',
           'self.controller.value, float(numbers["lr"])', "test_item_23_resuming_is_exact"),
    Mutant(POLICY, "value head not restored", 'self.policy.value_head.load_state_dict(part("value."))', "pass",
           "test_item_23_resuming_is_exact"),
    Mutant(POLICY, "half a gradient left over", "self.optimiser.zero_grad()  # a step", "pass  # a step",
           "test_item_23_a_stopped_step_leaves_no_trace"),
    Mutant(POLICY, "prompts drawn with repeats", "orders[round_][position % count]",
           "orders[round_][min(position % count, 3)]", "test_prompts_are_used_once_a_round"),
    Mutant(POLICY, "wild ratios learnt from", "if stats.mean_ratio > self.config.ratio_threshold:", "if False:",
           "test_an_update_with_a_wild_ratio_is_skipped"),
    Mutant(POLICY, "skipped gradients kept", "stats.skip()\n                    self.optimiser.zero_grad()",
           "stats.skip()", "test_an_update_with_a_wild_ratio_is_skipped"),
    Mutant(POLICY, "target KL ignored", "and stats.epoch_approx_kl() > self.config.target_kl", "and False",
           "test_target_kl_stops_the_epochs"),
    Mutant(POLICY, "first ratio not checked", "and not worst < RATIO_TOLERANCE", "and worst < 0",
           "test_old_logprobs_that_are_not_the_policys"),
    Mutant(POLICY, "NaN passes", "if broken:", "if False:", "test_nan_in_the_value_head"),
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
    # --- trainers/reward.py, warm_start.py ---
    Mutant(WARM_START, "folds ignore groups", "[order[group] % folds for group in groups]",
           "[i % folds for i in range(len(groups))]", "trainers/test_reward.py::test_folds_never_split_a_prompt"),
    Mutant(WARM_START, "ties are votes for chosen", "target = torch.where(ties, 0.5, 1.0).to(differences)\n    eye",
           "target = torch.ones_like(ties).to(differences)\n    eye",
           "test_no_direction_lowers_the_loss test_ties_pull_to_zero"),
    Mutant(WARM_START, "gradient without the ridge", "(probability - target) + ridge * weights",
           "(probability - target)", "test_no_direction_lowers_the_loss test_one_dimension_by_hand"),
    Mutant(REWARD, "normalisation skipped", "head.scale.copy_(", "torch.empty(()).copy_(",
           "test_scores_of_the_reference_have_mean_0_and_sd_1"),
    Mutant(REWARD, "chosen and rejected swapped", "chosen, rejected = scores.chunk(2)",
           "rejected, chosen = scores.chunk(2)", "test_learns_the_word_that_wins"),
    # --- config.py ---
    Mutant(CONFIG, "range open at the top", "number > item.high", "number >= item.high",
           "test_every_range_is_inclusive_and_enforced"),
    Mutant(CONFIG, "none on the command line is no answer", "None if item.optional and given == NONE else given",
           "values.get(item.name, item.default) if given == NONE else given",
           "test_none_on_the_command_line_turns_a_limit_off"),
]
# fmt: on


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{mutant.file} {mutant.name}" for mutant in MUTANTS])
def test_mutant_is_killed(mutant, request):
    check_mutant(mutant, request)


@pytest.mark.parametrize(("file", "test"), controls(MUTANTS))
def test_without_a_mutant_it_passes(file, test, request):
    check_control(file, test, request)
