"""Mutants of the figures of annotators, of chats as texts, of what an import asks about and of where its votes go: each must make
the tests named beside it fail."""

from mutation_runner import Mutant, mutant_tests

FIGURES, CHATS, PLACE = "quality/agreement.py", "common/chat_format.py", "importers/deduplication.py"
READINGS, PROMPT_COLUMN = "importers/vote_readings.py", "importers/prompt_column.py"
MAPPING, ROWS = "importers/column_mapping.py", "importers/row_parser.py"
CELLS, INDEX = "importers/cell_parsers.py", "importers/project_index.py"
HERE = "quality/test_agreement.py::"
UNCLEAR = "importers/test_unclear_files.py::"

# fmt: off
MUTANTS = [
    Mutant(FIGURES, "both bad is a value of its own", "Choice.TIE if self.choice is Choice.BOTH_BAD else self.choice",
           "Choice.TIE if self.choice is Choice.SKIP else Choice.FIRST if self.choice is Choice.BOTH_BAD else self.choice",
           HERE + "test_alpha_by_hand"),
    Mutant(FIGURES, "the side is the choice", "(self.value is Choice.FIRST) is self.first_on_left", "self.value is Choice.FIRST",
           HERE + "test_left_preference_ties_and_seconds_by_hand"),
    Mutant(FIGURES, "unknown sides are right sides", "if self.first_on_left is None or self.value", "if self.value",
           HERE + "test_left_preference_ties_and_seconds_by_hand"),
    Mutant(FIGURES, "repeats are votes", "[vote for vote in votes if not vote.repeat]", "list(votes)",
           HERE + "test_repeats_count_for_consistency_alone"),
    Mutant(FIGURES, "a vote agrees with itself", "agreed += row[VOTE_VALUES.index(vote.value)] - 1",
           "agreed += row[VOTE_VALUES.index(vote.value)]", HERE + "test_left_preference_ties_and_seconds_by_hand"),
    Mutant(FIGURES, "alpha without somebody has them in", "other_counts[index[vote.pair_id], VOTE_VALUES.index(vote.value)] -= 1", "pass",
           HERE + "test_alpha_and_agreement_equal_their_definitions"),
    Mutant(FIGURES, "time is the order of the rows", "sorted(votes, key=lambda vote: (vote.created_at, vote.vote_id))", "list(votes)",
           HERE + "test_time_buckets_have_equal_lengths"),
    Mutant(CHATS, "the first turn is the whole prompt", "prefix_start = chosen.rfind(ASSISTANT_PREFIX", "prefix_start = chosen.find(ASSISTANT_PREFIX",
           "test_transcripts_are_split_at_the_last_shared_assistant_turn"),
    Mutant(CHATS, "words cut in two", "while end and not a[end - 1].isspace():", "while end and not a[end - 1].isascii():",
           "test_a_word_is_not_cut_in_two"),
    Mutant(CHATS, "turns within turns are lost", 'messages[-1]["content"] += TURN_SEPARATOR + segment', 'messages[-1]["content"] += segment',
           "test_chats_of_several_turns_round_trip"),
    Mutant(PLACE, "vote keys depend on the text order",
           "answer if first_text == pair_key.text_a else flipped", "answer",
           "test_known_votes_are_skipped_in_either_text_order"),
    Mutant(PLACE, "a known vote is skipped any number of times", "self._recorded_votes[vote_key] >= self._file_votes[vote_key]", "self._recorded_votes[vote_key] >= 1",
           "test_rows_without_an_annotator_can_be_from_several_people test_repeats_in_a_file_are_duplicates_except_under_another_pair_name"),
    Mutant(PLACE, "duplicates are counted and not dropped", "            if drop_duplicates:", "            if False:",
           "test_repeats_in_a_file_are_duplicates_except_under_another_pair_name"),
    Mutant(PLACE, "an unnamed pair does not take the name", "slot.pair_name = pair_name", "pass",
           "test_an_existing_pair_takes_the_first_name_and_skips_only_as_many_votes_as_it_has"),
    Mutant(PLACE, "a named pair has no voters", "            self._named_queues[slot.pair_key, slot.pair_name].voters.add(voter)",
           "            pass", "test_repeats_in_a_file_are_duplicates_except_under_another_pair_name"),
    Mutant(PLACE, "the search for a slot starts from the beginning", "        self._next_index[voter] = index\n", "",
           "test_duplicates_take_linear_time"),
    Mutant(PLACE, "the search for an unnamed slot starts from the beginning", "            self._first_unnamed += 1", "            self._first_unnamed += 1\n        index, self._first_unnamed = self._first_unnamed, 0\n        return self.slots[index] if index < len(self.slots) else None",
           "test_duplicates_take_linear_time"),
    Mutant(READINGS, "0 and 1 have a meaning of their own", 'not in (set(), {"1", "2"})', 'not in (set(), {"1", "2"}, {"0", "1"})',
           UNCLEAR + "test_votes_that_are_numbers_are_asked_about_with_the_readings_that_fit"),
    Mutant(READINGS, "1 and 2 are asked about", 'not in (set(), {"1", "2"})', "!= set()",
           UNCLEAR + "test_one_and_two_are_the_first_and_the_second_text"),
    Mutant(READINGS, "a reading may lack one of the numbers", "len(used) == len(numbers)", "len(used) >= len(numbers) - 1",
           UNCLEAR + "test_numbers_that_no_reading_fits_get_none"),
    Mutant(READINGS, "a number is a tie beside the word tie", " and not (has_tie_word and Choice.TIE in used.values())", "",
           UNCLEAR + "test_beside_the_word_tie_no_number_is_a_tie"),
    Mutant(READINGS, "the same reading is offered twice", "by_meaning.setdefault(frozenset(used.items()),", "by_meaning.setdefault(frozenset({(reading, reading)}),",
           UNCLEAR + "test_readings_that_differ_in_absent_numbers_are_one"),
    Mutant(PROMPT_COLUMN, "the shared beginning comes before a text column", "    if not candidates:", "    if not candidates or may_be_shared:",
           UNCLEAR + "test_text_columns_that_may_be_the_prompt_are_asked_about"),
    Mutant(PROMPT_COLUMN, "any text column is the prompt", "len(candidates) == 1 and candidates[0].lower() in FURTHER_PROMPT_NAMES", "len(candidates) == 1",
           UNCLEAR + "test_text_columns_that_may_be_the_prompt_are_asked_about"),
    Mutant(PROMPT_COLUMN, "the first of several columns is the prompt", "len(candidates) == 1 and candidates[0]", "candidates[0]",
           UNCLEAR + "test_text_columns_that_may_be_the_prompt_are_asked_about"),
    Mutant(PROMPT_COLUMN, "user is always the annotator", 'if name.lower() == "user"', 'if name.lower() == ""',
           UNCLEAR + "test_the_prompt_of_two_texts_and_a_vote_is_asked_about_too"),
    Mutant(PROMPT_COLUMN, "one whole conversation speaks for all rows", 'all(_is_whole_conversation', 'any(_is_whole_conversation',
           UNCLEAR + "test_one_whole_conversation_does_not_answer_for_the_other_rows"),
    Mutant(PROMPT_COLUMN, "numbers are texts", "not is_blank(value) and not is_number_or_bool(normalize_cell(value))", "not is_blank(value)",
           UNCLEAR + "test_a_column_of_numbers_in_csv_is_no_prompt"),
    Mutant(PROMPT_COLUMN, "a chosen prompt is asked about again", ' or "prompt" in overrides', "",
           UNCLEAR + "test_a_column_that_is_mapped_is_not_asked_about"),
    Mutant(MAPPING, "the first of two columns is taken", "        if len(rivals) > 1:", "        if False:",
           UNCLEAR + "test_two_columns_for_one_meaning_are_asked_about"),
    Mutant(MAPPING, "chosen comes before another pair of texts", "    if len(pairs) > 1:", "    if False:",
           UNCLEAR + "test_two_pairs_of_texts_are_asked_about"),
    Mutant(ROWS, "a vote against chosen counts for it", "if choice is Choice.SECOND and not parser.is_own_export:", "if False:",
           UNCLEAR + "test_a_vote_against_chosen_is_an_error"),
    Mutant(ROWS, "a tie beside a decided vote is not seen", "vote not in flags if flag else", "False if flag else",
           UNCLEAR + "test_two_texts_with_a_winner_and_a_tie_contradict"),
    Mutant(CELLS, "any number is a time", "if YEAR_2000 <= number / units_per_second < YEAR_2100:", "if True:",
           UNCLEAR + "test_a_number_that_is_no_time_of_this_century_is_an_error"),
    Mutant(INDEX, "a prompt may have another split in the file", "splits.get(vote.prompt, vote.split) != vote.split", "False",
           "importers/test_writer.py::test_a_prompt_that_the_project_has_in_another_split_is_an_error"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
