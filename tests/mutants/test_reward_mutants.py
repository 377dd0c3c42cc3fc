"""Mutants of the reward trainer: each must make the tests named beside it fail. The runner says how."""

from runner import Mutant, mutant_tests

HEADS, WARM_START, REWARD = "models/heads.py", "trainers/warm_start.py", "trainers/reward.py"
REWARD_FIT, REPORT = "trainers/reward_fit.py", "trainers/reward_report.py"
LOOP = "trainers/test_reward_loop.py::"
CLASSIFIER, CHOICE = "exports/classifier.py", "trainers/pair_choice.py"

# fmt: off
MUTANTS = [
    Mutant(WARM_START, "folds ignore groups", "[order[group] % folds for group in groups]",
           "[i % folds for i in range(len(groups))]", "trainers/test_reward.py::test_folds_never_split_a_prompt"),
    Mutant(WARM_START, "ties are votes for chosen", ".masked_fill(labels.ties, 0.5)", "",
           "test_no_direction_lowers_the_loss test_ties_pull_to_zero"),
    Mutant(WARM_START, "gradient without the ridge", "(probability - target)) + ridge * weights",
           "(probability - target))", "test_no_direction_lowers_the_loss test_one_dimension_by_hand"),
    Mutant(WARM_START, "draws do not count", "(counts * (probability - target))", "(probability - target)",
           "test_margins_counts_and_smoothing_in_the_fit"),
    Mutant(WARM_START, "all directions alike", "variance + FLOOR) ** power - self.rest", "variance + FLOOR) ** 0 - self.rest",
           "test_stretch_by_hand"),
    Mutant(WARM_START, "stretched features of any spread", "return self._stretch(x) * self.unit", "return self._stretch(x)",
           "test_stretch_by_hand test_stretched_features_have_unit_spread_whatever_their_scale"),
    Mutant(WARM_START, "whole steps, wherever they lead", "and share > 1e-9:", "and share > 1.0:",
           "test_wide_margins_do_not_throw_the_fit_to_and_fro"),
    Mutant(WARM_START, "margins of ties", ".masked_fill(labels.ties, 0.0)", "", "test_margins_counts_and_smoothing_in_the_fit"),
    Mutant(REWARD, "the finished model is not normalised", "    task.normalise(model)\n", "",
           "trainers/test_reward_options.py::test_an_ensemble_learns_and_is_normalised"),
    Mutant(HEADS, "normalisation skipped", "head.scale.copy_(", "torch.empty(()).copy_(",
           "trainers/test_reward.py::test_scores_of_the_reference_have_mean_0_and_sd_1"),
    Mutant(HEADS, "members are not normalised", "        for head, row in zip(self.heads, raw, strict=True):\n"
           "            _normalise(head, row)\n", "",
           "models/test_ensemble_head.py::test_normalised_members_and_normalised_together"),
    Mutant(HEADS, "worst is the best for words", "members.argmin(dim=0)", "members.argmax(dim=0)",
           "models/test_ensemble_head.py::test_word_shares_average_to_the_score"),
    Mutant(REWARD_FIT, "chosen and rejected swapped", "chosen, rejected = member.chunk(2)",
           "rejected, chosen = member.chunk(2)", "trainers/test_reward.py::test_learns_the_word_that_wins"),
    Mutant(REWARD_FIT, "all members draw alike", '"labels of a member", k,', '"labels of a member",',
           "trainers/test_reward_options.py::test_each_member_draws_its_labels_with_replacement"),
    Mutant(REWARD_FIT, "everybody weighs the same", "all_once[subset] = self.count[subset]", "all_once[subset] = 1",
           "trainers/test_reward.py::test_a_label_that_counts_twice_is_the_label_given_twice"),
    Mutant(REWARD_FIT, "strength forgotten", "margin_from_strength(strength, config.margin)", "0.0",
           "trainers/test_reward_options.py::test_strength_becomes_a_margin_in_the_loss "
           "trainers/test_reward_options.py::test_strength_counts_in_the_warm_start_too"),
    Mutant(REWARD_FIT, "shorter fits anneal faster", "self.updates(len(subset), config.epochs), list",
           "self.updates(len(subset), what.epochs), list",
           "trainers/test_reward_options.py::test_stopping_early_is_the_same_fit_cut_short"),
    Mutant(REWARD_FIT, "the warm start's mean score is not 0", "copy_(-(self.stretch.mean @ weights)[None])", "zero_()",
           f"{LOOP}test_a_warm_start_is_the_optimum_of_the_loss_written_out"),
    Mutant(REWARD_FIT, "rate not annealed", "config.lr * (1 - len(losses) / total)", "config.lr",
           f"{LOOP}test_a_whole_training_equals_a_plain_loop"),
    Mutant(REWARD_FIT, "decay forgotten", "weight_decay=config.weight_decay", "weight_decay=0.0",
           f"{LOOP}test_a_whole_training_equals_a_plain_loop"),
    Mutant(REWARD_FIT, "gradients not clipped", "clip_grad_norm_(parameters, config.max_grad_norm)",
           "clip_grad_norm_(parameters, 1e9)", f"{LOOP}test_a_whole_training_equals_a_plain_loop"),
    Mutant(REWARD_FIT, "smoothing forgotten", "            label_smoothing=config.label_smoothing,\n", "",
           f"{LOOP}test_a_whole_training_equals_a_plain_loop"),
    Mutant(REWARD_FIT, "ties are votes for chosen", ", tie=self.tie[which].to(chosen.device),", ",",
           f"{LOOP}test_a_whole_training_equals_a_plain_loop"),
    Mutant(REWARD_FIT, "labels of a batch weigh alike", "own * (len(times) / count / members)",
           "own * (len(index) / count / members)",
           f"{LOOP}test_a_whole_training_equals_a_plain_loop"),
    Mutant(REWARD_FIT, "the probability of the members' mean", "torch.sigmoid(chosen - rejected).mean(dim=0)",
           "torch.sigmoid((chosen - rejected).mean(dim=0))",
           "trainers/test_reward_options.py::test_a_held_out_probability_is_the_mean_of_the_members"),
    Mutant(REWARD, "stops where held-out labels fare worst", "epochs = min(by_passes", "epochs = max(by_passes",
           "trainers/test_reward_options.py::test_early_stopping_takes_the_passes_that_held_out_labels_liked_best"),
    Mutant(REWARD, "held-out labels judged by a model that saw them", "train = [i for i, f in enumerate(assigned) if f != fold]",
           "train = list(range(len(assigned)))",
           "trainers/test_reward_options.py::test_held_out_probabilities_come_from_models_that_did_not_see_the_prompt"),
    Mutant(REPORT, "ties among the disagreements", "decided = [one for one in held if not comparisons[one.index].tie]",
           "decided = list(held)", "test_disagreements_are_the_worst_first_and_no_ties"),
    Mutant(REPORT, "confidence of the label, not of the choice",
           "sorted((max(p, 1 - p), p > 0.5)", "sorted((p, p > 0.5)",
           "test_calibration_by_hand"),
    Mutant(REPORT, "bins count alike",
           "math.fsum(count * abs(predicted - observed) for predicted, observed, count in bins) / total",
           "math.fsum(abs(predicted - observed) for predicted, observed, count in bins) / len(bins)",
           "test_the_error_weighs_bins_by_their_counts"),
    # --- trainers/pair_choice.py ---
    Mutant(CHOICE, "sureness ignored", "(covariance.diagonal() * information)", "covariance.diagonal().clone()",
           "test_what_is_sure_or_known_is_not_asked test_greedy_equals_the_posterior_written_out"),
    Mutant(CHOICE, "the same again and again",
           "covariance -= torch.outer(row, row) *", "covariance -= 0.0 * torch.outer(row, row) *",
           "test_not_the_same_twice test_greedy_equals_the_posterior_written_out"),
    Mutant(CHOICE, "labels so far forgotten", ".sqrt()[:, None] * labelled", ".sqrt()[:, None] * 0.0 * labelled",
           "test_what_is_sure_or_known_is_not_asked"),
    Mutant(CHOICE, "margins forgotten", "logit = logit - labels.margins.masked_fill(labels.ties, 0.0)", "pass",
           "test_margins_and_repeated_labels_are_part_of_the_posterior"),
    # --- exports/classifier.py ---
    Mutant(CLASSIFIER, "head of another scale",
           '(head["linear.weight"] / head["scale"])', '(head["linear.weight"] * head["scale"])',
           "test_logits_are_the_scores_but_for_the_number_the_card_names"),
    Mutant(CLASSIFIER, "head not saved with the adapter", " | {HEAD_KEY: weight}", "",
           "test_logits_are_the_scores_but_for_the_number_the_card_names"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
