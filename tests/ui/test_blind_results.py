"""Results of blind tests, with numbers worked by hand."""

import math
import re
from pathlib import Path

import pytest

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.stats import detectable_share
from rlhf_lab.ui import compare
from rlhf_lab.ui.compare.blind_results import (
    BlindPair,
    ChoiceCounts,
    choice_by_reward,
    group_preference_sentence,
    preference_sentence,
)


def test_a_clear_preference_is_not_called_chance():
    names = ["base model", "run 1, step 40"]
    assert preference_sentence(ChoiceCounts(4, 14, 2), names) == (
        "like run 1, step 40 more often: 14 of 18 decided pairs (78 %, 95 % interval 55 to 91 %), 2 ties."
    )
    assert preference_sentence(ChoiceCounts(14, 4, 0), names, third_person=True) == (
        "likes the base model more often: 14 of 18 decided pairs (78 %, 95 % interval 55 to 91 %)."
    )


def test_no_difference_found_means_none_or_too_few_pairs():
    names = ["base model", "run 1, step 40"]
    few, many, none = ChoiceCounts(8, 10, 0), ChoiceCounts(98, 102, 0), ChoiceCounts(1, 1, 0)
    assert preference_sentence(few, names).endswith(
        "contains 50 %. 18 decided pairs can only show a preference of 83 % or more; a weaker one needs more pairs."
    )
    assert preference_sentence(many, names).endswith("contains 50 %. If there is a difference, it is small.")
    assert preference_sentence(none, names) == (
        "like both as often: 1 of 2 decided pairs each. 2 decided pairs are too few to tell."
    )


def test_the_page_states_the_sizes_that_pairs_show():
    """Beside the number of pairs, before a test starts."""
    script = (Path(compare.__file__).parent / "blind_test" / "view.js").read_text(encoding="utf-8")
    text = "".join(re.findall(r"'(.*)'", script[script.index("const SIZES") : script.index("const DONE")]))
    stated = re.findall(r"(\d+) (?:decided )?pairs (?:can show that one model wins )?(\d+) %", text)
    assert [(int(n), int(share)) for n, share in stated] == [
        (n, math.ceil(100 * detectable_share(n))) for n in (20, 40, 80, 200)
    ]


def test_several_people_have_an_interval_over_pairs():
    """Ten pairs, three people: run 1 is preferred 3 3 3 3 3 3 2 1 0 0 times (by hand in tests/common/test_stats.py); a pair with
    only ties does not count."""
    names = ["base model", "run 1, step 40"]
    pairs = [ChoiceCounts(3 - wins, wins, 0) for wins in (3, 3, 3, 3, 3, 3, 2, 1, 0, 0)] + [ChoiceCounts(0, 0, 3)]
    assert group_preference_sentence(pairs, names) == (
        "like run 1, step 40 more often: 21 of 30 decided answers to 10 pairs (70 %, 95 % interval 38 to 90 %), 3 "
        "ties. This may be chance: the interval contains 50 %. 10 decided pairs can only show a preference of 92 % or "
        "more; a weaker one needs more pairs."
    )
    swapped = [ChoiceCounts(second, first, ties) for first, second, ties in pairs]
    assert group_preference_sentence(swapped, names).startswith("like the base model more often: 21 of 30")
    assert "interval 38 to 90 %" in group_preference_sentence(swapped, names)
    assert group_preference_sentence([ChoiceCounts(0, 3, 0)] * 10, names) == (
        "like run 1, step 40 more often: 30 of 30 decided answers to 10 pairs (100 %, 95 % interval 66 to 100 %)."
    )
    assert group_preference_sentence([ChoiceCounts(1, 1, 1)], names) == (
        "like both as often: 1 of 2 decided answers to 1 pair each, 1 tie."
    )
    assert group_preference_sentence([ChoiceCounts(0, 0, 2)], names) == "decided no pair, 2 ties."


@pytest.mark.parametrize(
    ("scores", "choice"), [((2.0, 1.0), Choice.FIRST), ((-2.0, -1.0), Choice.SECOND), ((0.5, 0.5), Choice.TIE)]
)
def test_the_higher_score_is_the_reward_models_choice(scores, choice):
    assert choice_by_reward(BlindPair("p", "a", "b", scores)) is choice
