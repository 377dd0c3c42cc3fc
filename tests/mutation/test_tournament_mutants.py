"""Mutants of tournaments and of the pairs made in a chat: see mutation_runner.py."""

from mutation_runner import Mutant, mutant_tests

FIT, RANKING, SCREEN = "quality/bradley_terry.py", "quality/tournament.py", "ui/compare/tournament/api.py"
CHAT, CHAT_PAIRS = "ui/chat/api.py", "store/chat_pairs.py"
NOT_A_PAIR = "ui/test_chat_screen.py::test_what_cannot_become_a_pair"

# fmt: off
MUTANTS = [
    Mutant(FIT, "who loses comes first", "gradient = wins.sum(1) -", "gradient = wins.sum(0) -", "test_unequal_wins_by_hand"),
    Mutant(FIT, "an interval of the score alone, not of its distance to the base", "to_first @ covariance @ to_first.T", "covariance",
           "test_equal_wins_by_hand"),
    Mutant(FIT, "answers to a prompt are independent", "max(1.0, float(both / alone) if alone > 0 else 1.0,", "max(1.0,",
           "test_intervals_have_their_coverage_for_other_prompts"),
    Mutant(FIT, "prompts count however little they say", "independent**2 / np.maximum(np.square(shares).sum(0), 1e-300)", "np.full(count, float(m))",
           "test_prompts_that_say_nothing_about_the_distance_to_the_base_do_not_count test_unequal_prompts_count_by_their_answers"),
    Mutant(FIT, "few prompts can be sure", "student_t(max(0, prompts[i] - 1))", "1.96", "test_interval_of_one_answer_to_each_prompt_by_hand"),
    Mutant(FIT, "an end from the prior alone", "return [(bool(below), bool(above))", "return [(True, True)",
           "test_without_a_defeat_there_is_no_upper_end test_ends_follow_chains_of_preferences"),
    Mutant(FIT, "several people are sure that there is no defeat", "1.0 if all(ends) else float(per_prompt)", "1.0",
           "test_without_a_defeat_there_is_no_upper_end"),
    Mutant(FIT, "few defeats are sure", "-TOLERANCE else 0.0", "-1e9 else 0.0",
           "test_intervals_have_their_coverage_beside_much_better_models"),
    Mutant(FIT, "the scores of others are held", "- cross @ np.linalg.solve(inner, cross)", "",
           "test_an_end_is_where_the_standardised_derivative_has_its_value"),
    Mutant(RANKING, "all are compared", "if is_compared else (None, None, None)", "", "test_models_that_no_answers_connect_to_the_base_are_not_compared"),
    Mutant(RANKING, "each answer has a prompt of its own", "answers_by_prompt[answer.position]", "answers_by_prompt[id(answer)]",
           "test_answers_to_one_prompt_count_once"),
    Mutant(RANKING, "a tie is a win of the first", "Choice.TIE: 0.5", "Choice.TIE: 1.0", "test_ties_count_half_and_skips_nothing"),
    Mutant(RANKING, "the best known comparison comes first", "(-worth[key], key[1:]", "(worth[key], key[1:]",
           "test_the_least_known_comparison_comes_first_on_a_new_prompt"),
    Mutant(SCREEN, "the first text is always on the left", "else texts[::-1]", "else texts", "test_sides_are_chosen_for_each_person"),
    Mutant(SCREEN, "the left text is the first contestant's", "not _is_first_on_left(ctx, tournament.id, key, annotator)", "False",
           "test_a_person_judges_blind_pairs_until_none_is_left"),
    Mutant(CHAT, "answers to different conversations are a pair", 'results[0]["prompt"] != results[1]["prompt"]', "False", NOT_A_PAIR),
    Mutant(CHAT_PAIRS, "labels of a prompt that is kept for evaluation", 'row.split == "eval"', "False", NOT_A_PAIR),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
