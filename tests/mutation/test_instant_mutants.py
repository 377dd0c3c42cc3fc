"""Mutants of the instant reward model: see mutation_runner.py."""

from mutation_runner import Mutant, mutant_tests

FIT, MODEL = "core/preference_fit.py", "jobs/instant_reward.py"
TEXTS, VIEW = "engine/text_features.py", "ui/shared/instant_view.py"
SCREEN = "ui/test_label_screen.py::"

# fmt: off
MUTANTS = [
    # --- core/preference_fit.py ---
    Mutant(FIT, "ties count as labels for chosen", "np.where(ties, 0.5, 1.0 - targets.label_smoothing)",
           "np.full(len(ties), 1.0 - targets.label_smoothing)", "test_the_primal_gradient_vanishes"),
    Mutant(FIT, "ties have a margin", "np.where(ties, 0.0, targets.margins)", "targets.margins",
           "test_the_primal_gradient_vanishes"),
    Mutant(FIT, "the counts of labels are ignored", "return counts * (probs - target_probs)", "return (probs - target_probs)",
           "test_the_primal_gradient_vanishes test_held_out_scores_are_one_explicit_newton_step"),
    Mutant(FIT, "a label takes part in its own prediction", "np.linalg.solve(inverse[np.ix_(indices, indices)], block) - block",
           "0.0 * block", "test_held_out_scores_are_one_explicit_newton_step test_a_label_does_not_predict_itself"),
    Mutant(FIT, "a group of labels is split", "by_group.setdefault(group, [])", "by_group.setdefault((group, i), [])",
           "test_held_out_scores_are_one_explicit_newton_step test_a_label_does_not_predict_itself"),
    Mutant(FIT, "the ridge is chosen on labels that the fit has seen", "log_loss(held_out_scores(gram, fit, groups), targets)",
           "log_loss(fit.scores, targets)", "test_the_ridge_has_the_lowest_held_out_loss"),
    Mutant(FIT, "the worst ridge is chosen", "return min(losses,", "return max(losses,", "test_the_ridge_has_the_lowest_held_out_loss"),
    Mutant(FIT, "a tie counts as a label for chosen in the loss",
           "np.where(targets.ties, (np.logaddexp(0, -scores) + np.logaddexp(0, scores)) / 2, np.logaddexp(0, -scores))",
           "np.logaddexp(0, -scores)", "test_log_loss_by_hand"),
    Mutant(FIT, "layers are not scaled", "np.sqrt(layers * variance)", "np.sqrt(layers * variance * 0 + 1)",
           "test_layers_are_scaled_to_equal_spread_by_hand"),
    Mutant(FIT, "the signs of first and second texts are ignored", "* np.outer(signs, signs)", "", "test_a_gram_matrix_grows_pair_by_pair"),
    Mutant(FIT, "products of old with new pairs are missing in the Gram matrix", "self._gram[start:end, :end] = products.T", "self._gram[start:end, :end] = 0.0",
           "test_a_gram_matrix_grows_pair_by_pair"),
    Mutant(FIT, "a second label on a pair replaces the first", "np.add.at(by_row, [self.index_by_pair[pair_id] for pair_id in pair_ids], signed_coefficients)",
           "by_row[[self.index_by_pair[pair_id] for pair_id in pair_ids]] = signed_coefficients", "test_weights_score_texts_as_the_fit_does"),
    # --- jobs/instant_reward.py ---
    Mutant(MODEL, "a pair's own labels take part in its prediction", "if not self.knows(pair_id):", "if True:",
           "test_a_pair_that_has_labels_is_predicted_without_them test_a_vote_learned_before_its_turn_is_still_predicted_without_it"),
    Mutant(MODEL, "a vote is learned before it is predicted", "            predictions = self._predict(self.model, votes)\n            self.model.update()\n",
           "            self.model.update()\n            predictions = self._predict(self.model, votes) if not votes else {}\n",
           "test_a_vote_is_predicted_before_it_is_learned"),
    Mutant(MODEL, "labels are held out one by one, not by prompt", "groups = group_labels([self._keys[label.pair_id] for label in labels])", "groups = list(range(len(labels)))",
           "test_labels_on_one_prompt_are_held_out_together"),
    Mutant(MODEL, "simulated labels are used although there are people's labels", "    if labels:\n        return Source.HUMAN", "    if not labels:\n        return Source.HUMAN",
           "test_people_count_and_simulated_labels_only_without_them"),
    Mutant(MODEL, "everybody sees the predictions of other people's votes", "entry[0].annotator == annotator", "True", "test_a_vote_is_predicted_before_it_is_learned"),
    Mutant(MODEL, "predictions of undone votes stay", "is_vote_on(vote, annotator, pair_id)]:\n                del self._predictions[uuid]",
           "False]:\n                del self._predictions[uuid]", "test_predictions_of_undone_votes_are_forgotten"),
    Mutant(MODEL, "the strength of a label is ignored", "np.array([label.strength for label in labels]) *", "0.0 * np.array([label.strength for label in labels]) *",
           "test_a_stronger_label_moves_scores_further_apart"),
    Mutant(MODEL, "ignored attributes are not fitted beside the features", "self._pairs.gram(pair_ids, signs) + attribute_gram(attributes)",
           "self._pairs.gram(pair_ids, signs)", "test_a_head_that_ignores_an_attribute_is_that_of_a_trained_reward_model"),
    Mutant(MODEL, "scores contain ignored attributes", "return self._regression.residual(scaled, share * self._regression.scaler(attributes))", "return scaled",
           "test_scores_ignore_a_chosen_attribute_at_once"),
    Mutant(MODEL, "a choice of attributes waits for a label", "and ignored == self._ignored and", "and", "test_scores_ignore_a_chosen_attribute_at_once"),
    # --- engine and page ---
    Mutant(TEXTS, "features are computed without a pause during training", "rest_factor * (now - start_time) if were_missing", "0.0 if were_missing",
           "test_beside_a_training_it_rests_thirty_times_as_long"),
    Mutant(VIEW, "scores are shown in stored order, not in the order on screen", "in_order(prediction, vote.first_on_left)", "in_order(prediction, True)",
           f"{SCREEN}test_a_vote_without_a_winner_shows_the_scores_of_both_sides"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
