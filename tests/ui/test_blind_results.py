"""Results of blind tests, with numbers worked by hand."""

from types import SimpleNamespace

import pytest

from rlhf_lab.common.enums import Choice
from rlhf_lab.ui.compare.blind_results import (
    BlindPair,
    ChoiceCounts,
    choice_by_reward,
    group_preference_sentence,
    is_check,
    left_out_note,
    meaning_for_training,
    meaning_of_answers,
    preference_sentence,
    preferred_share,
    size_note,
)


def test_a_clear_preference_is_not_called_chance():
    names = ["base model", "run 1, step 40"]
    assert preference_sentence(ChoiceCounts(4, 14, 2), names) == (
        "like run 1, step 40 more often: 14 of 18 decided pairs (78 %, 95 % interval 52 to 94 %), 2 ties."
    )
    assert preference_sentence(ChoiceCounts(14, 4, 0), names, third_person=True) == (
        "likes the base model more often: 14 of 18 decided pairs (78 %, 95 % interval 52 to 94 %)."
    )


def test_no_difference_found_means_none_or_too_few_pairs():
    names = ["base model", "run 1, step 40"]
    few, many, none = ChoiceCounts(8, 10, 0), ChoiceCounts(98, 102, 0), ChoiceCounts(1, 1, 0)
    assert preference_sentence(few, names).endswith("This may be chance: the interval contains 50 %, no preference.")
    assert preference_sentence(many, names).endswith("no preference. If there is a difference, it is small.")
    assert preference_sentence(none, names) == ("like both equally often: 1 of 2 decided pairs each.")


def test_the_large_figure_counts_the_answers_of_everybody():
    names, first, second, tie = ["base model", "run 1, step 40"], Choice.FIRST, Choice.SECOND, Choice.TIE
    assert preferred_share([{0: second, 1: tie}, {0: second, 1: first}], names) == (
        "1 : 2", "for the base model against run 1, step 40: no clear preference",
    )  # fmt: skip
    wins = dict.fromkeys(range(11), second) | {11: first, 12: tie, 13: Choice.SKIP}
    assert preferred_share([wins], names) == ("92 %", "for run 1, step 40 in 12 decided answers")
    assert preferred_share([wins], names[::-1]) == ("92 %", "for the base model in 12 decided answers")
    assert preferred_share([{0: tie}], names) is None
    assert preferred_share([], names) is None


@pytest.mark.parametrize(("first", "second"), [(4, 5), (5, 4), (3, 3), (1, 0), (0, 5), (8, 4), (90, 110)])
def test_the_large_figure_names_no_winner_that_may_be_chance(first, second):
    """By the exact intervals: 14 to 79 %, 21 to 86 %, 12 to 88 %, none for one and five answers, 35 to 90 %, 38 to 52 %."""
    names, choices = ["base, best of 4", "base model"], [Choice.FIRST] * first + [Choice.SECOND] * second
    assert preferred_share([dict(enumerate(choices))], names) == (
        f"{first} : {second}", "for the best of 4 texts of the base against the base model: no clear preference",
    )  # fmt: skip


def test_many_answers_to_few_pairs_name_no_winner():
    """Five people agree on two pairs."""
    figure = preferred_share([{0: Choice.FIRST, 1: Choice.FIRST}] * 5, ["run 1, step 40", "base model"])
    assert figure == ("10 : 0", "for run 1, step 40 against the base model: no clear preference")


def test_pairs_that_nobody_judges_are_explained():
    """Of 5 prompts one was too long; two of the other pairs are equal."""
    job = SimpleNamespace(payload={"prompts": ["p"] * 5, "max_new_tokens": 8})
    texts = [("a", "a"), ("a", "b"), ("c", "c"), ("d", "e")]
    pairs = {i: BlindPair("p", *pair, None) for i, pair in enumerate(texts)}
    too_long = "1 prompt left out: too long for the model with 8 new tokens."
    assert left_out_note(job, pairs) == f"{too_long} 2 pairs left out: both models wrote the same text."
    assert left_out_note(job, {1: pairs[1], 3: pairs[3]}).count("left out") == 1
    job.payload["prompts"] = ["p"] * 2
    assert left_out_note(job, {1: pairs[1], 3: pairs[3]}) == ""


def test_several_people_have_an_interval_over_pairs():
    """Ten pairs, three people: run 1 is preferred 3 3 3 3 3 3 2 1 0 0 times (by hand in tests/common/test_stats.py); a pair with
    only ties does not count."""
    names = ["base model", "run 1, step 40"]
    pairs = [ChoiceCounts(3 - wins, wins, 0) for wins in (3, 3, 3, 3, 3, 3, 2, 1, 0, 0)] + [ChoiceCounts(0, 0, 3)]
    assert group_preference_sentence(pairs, names) == (
        "like run 1, step 40 more often: 21 of 30 decided answers to 10 pairs (70 %, 95 % interval 38 to 90 %), 3 "
        "ties. This may be chance: the interval contains 50 %, no preference."
    )
    swapped = [ChoiceCounts(second, first, ties) for first, second, ties in pairs]
    assert group_preference_sentence(swapped, names).startswith("like the base model more often: 21 of 30")
    assert "interval 38 to 90 %" in group_preference_sentence(swapped, names)
    assert group_preference_sentence([ChoiceCounts(0, 3, 0)] * 10, names) == (
        "like run 1, step 40 more often: 30 of 30 decided answers to 10 pairs (100 %, 95 % interval 66 to 100 %)."
    )
    assert group_preference_sentence([ChoiceCounts(1, 1, 1)], names) == (
        "like both equally often: 1 of 2 decided answers to 1 pair each, 1 tie."
    )
    assert group_preference_sentence([ChoiceCounts(0, 0, 2)], names) == "had no preference in any pair."


@pytest.mark.parametrize(
    ("scores", "choice"), [((2.0, 1.0), Choice.FIRST), ((-2.0, -1.0), Choice.SECOND), ((0.5, 0.5), Choice.TIE)]
)
def test_the_higher_score_is_the_reward_models_choice(scores, choice):
    assert choice_by_reward(BlindPair("p", "a", "b", scores)) is choice


@pytest.mark.parametrize(
    ("wins", "losses", "beginning", "advice"),
    [
        (11, 1, "People prefer what this reward model prefers", "PPO can follow it"),
        (1, 11, "People do not prefer", "Label more pairs"),
        (52, 48, "People do not prefer", "Label more pairs"),  # 62 % at most
        (8, 4, "There are too few answers", "So far people seem to: start PPO"),
        (6, 6, "There are too few answers", "So far people do not seem to: label more pairs"),
        (0, 0, "There are too few answers", "So far people do not seem to: label more pairs"),
    ],
)
def test_a_check_says_what_its_answers_mean_for_ppo(wins, losses, beginning, advice):
    """By the exact interval of the share: 62 to 100 %, 0 to 38 %, then a literal, 35 to 90 %, 21 to 79 %, and none."""
    choices = [Choice.FIRST] * wins + [Choice.SECOND] * losses + [Choice.TIE]
    if wins == 52:
        assert meaning_for_training(ChoiceCounts(52, 48, 0), (0.42, 0.60)).startswith(beginning)
        return
    sentence = meaning_of_answers(range(len(choices)), [dict(enumerate(choices))])
    assert sentence.startswith(beginning)
    assert advice in sentence


@pytest.mark.parametrize("decided", range(1, 60))
def test_a_verdict_and_the_note_on_the_size_of_a_test_have_one_rule(decided):
    """Where equal answers, of one person or one of each person, are a preference, the note names one that so many can show."""
    names, equal = ["base model", "run 1, step 40"], ChoiceCounts(0, decided, 0)
    can_tell = not size_note(decided).endswith("however people choose.")
    assert can_tell is (decided >= 6)  # 2 / 2^6 < 5 % < 2 / 2^5
    assert ("may be chance" not in preference_sentence(equal, names)) is can_tell
    one_each = [ChoiceCounts(0, 1, 0)] * decided
    assert ("may be chance" not in group_preference_sentence(one_each, names)) is can_tell
    answers = [{position: Choice.FIRST} for position in range(decided)]
    assert meaning_of_answers(range(decided), answers).startswith("People prefer") is can_tell


def test_answers_of_several_people_to_one_pair_count_as_one():
    """Five people agree on two pairs: too few pairs for an interval, although there are ten answers."""
    answers = [{0: Choice.FIRST, 1: Choice.FIRST}] * 5
    assert meaning_of_answers(range(2), answers).startswith("There are too few answers")


def test_a_check_is_the_best_of_several_texts_of_the_base_against_the_base():
    best, base, run = {"checkpoint": "base", "best_of": 4}, {"checkpoint": "base"}, {"checkpoint": "run/1/40"}
    tests = [[best, base], [base, best], [base, run], [best, run], [best, best]]
    assert [is_check(payloads) for payloads in tests] == [True, False, False, False, False]
