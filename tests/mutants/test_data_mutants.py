"""Mutants of the figures of annotators, of chats as texts and of where imported votes go: each must make the tests named beside
it fail."""

from runner import Mutant, mutant_tests

FIGURES, CHATS, PLACE = "quality/figures.py", "chats.py", "imports/place.py"
HERE = "quality/test_quality_figures.py::"

# fmt: off
MUTANTS = [
    Mutant(FIGURES, "both bad is a value of its own", "Choice.TIE if self.choice is Choice.BOTH_BAD else self.choice",
           "Choice.TIE if self.choice is Choice.SKIP else Choice.FIRST if self.choice is Choice.BOTH_BAD else self.choice",
           HERE + "test_alpha_by_hand"),
    Mutant(FIGURES, "the side is the choice", "(self.value is Choice.FIRST) is self.on_left", "self.value is Choice.FIRST",
           HERE + "test_habits_by_hand"),
    Mutant(FIGURES, "unknown sides are right sides", "if self.on_left is None or self.value", "if self.value",
           HERE + "test_habits_by_hand"),
    Mutant(FIGURES, "repeats are votes", "[vote for vote in votes if not vote.repeat]", "list(votes)",
           HERE + "test_repeats_tell_of_consistency_and_of_nothing_else"),
    Mutant(FIGURES, "a vote agrees with itself", "agreed += row[VALUES.index(vote.value)] - 1",
           "agreed += row[VALUES.index(vote.value)]", HERE + "test_habits_by_hand"),
    Mutant(FIGURES, "alpha without somebody has them in", "rest[index[vote.pair], VALUES.index(vote.value)] -= 1", "pass",
           HERE + "test_alpha_and_agreement_equal_their_definitions"),
    Mutant(FIGURES, "time is the order of the rows", "sorted(votes, key=lambda vote: (vote.at, vote.vote_id))", "list(votes)",
           HERE + "test_over_time_in_stretches_of_equal_length"),
    Mutant(CHATS, "the first turn is the whole prompt", "at = chosen.rfind(ANSWER", "at = chosen.find(ANSWER",
           "test_transcripts_part_at_the_last_shared_turn_of_the_assistant"),
    Mutant(CHATS, "words cut in two", "while end and not a[end - 1].isspace():", "while end and not a[end - 1].isascii():",
           "test_a_word_is_not_cut_in_two"),
    Mutant(CHATS, "turns within turns are lost", 'parts[-1]["content"] += TURN + piece', 'parts[-1]["content"] += piece',
           "test_several_turns_and_back"),
    Mutant(PLACE, "what is there is not known where its texts are turned",
           "answer if first == content.one else answer._replace(choice=flipped(answer.choice))", "answer",
           "test_what_the_project_holds_is_left_out_whichever_way_round"),
    Mutant(PLACE, "what is held is left out for ever", "self._votes[said] >= self._wanted[said]", "self._votes[said] >= 1",
           "test_rows_that_name_nobody_may_be_several_people test_what_a_file_repeats_is_a_duplicate_except_under_another_name"),
    Mutant(PLACE, "duplicates are counted and kept when they are to go", "            if drop:", "            if False:",
           "test_what_a_file_repeats_is_a_duplicate_except_under_another_name"),
    Mutant(PLACE, "a name is given before it is known", "place.name = name", "pass",
           "test_a_pair_that_is_there_gets_the_first_name_and_what_is_held_is_left_out_as_often_as_it_is_held"),
    Mutant(PLACE, "a named pair forgets its people", "            self._called[place.content, place.name].judged.add(voter)",
           "            pass", "test_what_a_file_repeats_is_a_duplicate_except_under_another_name"),
    Mutant(PLACE, "every duplicate looks at all before it", "        self._reached[voter] = at\n", "",
           "test_many_duplicates_of_one_person_take_as_many_steps_as_there_are"),
    Mutant(PLACE, "every name looks at all pairs", "            self._named += 1", "            self._named += 1\n"
           "        at, self._named = self._named, 0\n        return self.places[at] if at < len(self.places) else None",
           "test_many_duplicates_of_one_person_take_as_many_steps_as_there_are"),
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
