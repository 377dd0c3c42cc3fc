"""Mutants of the figures of annotators and of chats as texts: each must make the tests named beside it fail."""

from runner import Mutant, mutant_tests

FIGURES, CHATS = "quality/figures.py", "chats.py"
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
]
# fmt: on

test_mutant_is_killed, test_without_a_mutant_it_passes = mutant_tests(MUTANTS)
