"""The choice of the next pair of a tournament, and the ranking."""

import hmac
import math
from collections import Counter
from itertools import pairwise

import pytest

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import PairKey, TournamentAnswer
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.quality.tournament import Contestant, choose_pair, pair_count, rank_contestants, win_matrix

MODELS = ["base", "base/best/4", "run/1/40"]


def contestants(prompts=4, models=MODELS):
    return [
        Contestant(model, [f"{model} {i}" for i in range(prompts)], [float(n)] * prompts, [0.5 * n] * prompts)
        for n, model in enumerate(models)
    ]


def answer(key, choice=Choice.FIRST, annotator="ann", at=100.0):
    return TournamentAnswer(annotator, *key, choice, at)


def test_ties_count_half_and_skips_nothing():
    choices = (Choice.FIRST, Choice.SECOND, Choice.TIE, Choice.BOTH_BAD, Choice.SKIP, None)
    answers = [answer((i, 0, 2), choice) for i, choice in enumerate(choices)]
    assert win_matrix(3, answers).tolist() == [[0, 0, 2], [0, 0, 0], [2, 0, 0]]


def test_ranking_with_what_stands_beside_it():
    """One of eight answers prefers the base to the first model; the only answer about the second one is to one prompt."""
    answers = [answer((i, 0, 2), Choice.SECOND) for i in range(4)] + [answer((0, 0, 1), Choice.SECOND)]
    answers += [answer((i, 0, 2), Choice.SECOND, "bob") for i in range(3)] + [answer((3, 0, 2), Choice.FIRST, "bob")]
    first, second, last = rank_contestants(contestants(), answers, [[1.0] * 4, [2.0] * 4, [3.0] * 4])
    assert (first.name, second.name, last.name) == ("run 1, step 40", "base, best of 4", "base model")
    assert (first.answers, second.answers, last.answers) == (8, 1, 9)
    assert (first.kl, first.reward, first.gold) == (1.0, 2.0, 3.0)
    assert (last.score, last.low, last.high) == (0, 0, 0)
    assert first.low < first.score < first.high
    assert (second.low, second.high) == (None, None)
    assert rank_contestants(contestants(), [])[0].gold is None


def test_models_that_no_answers_connect_to_the_base_are_not_compared():
    """Base and the first model, and two models of another island; the last one has no answer."""
    models = [*MODELS, "run/1/80", "run/1/90"]
    answers = [answer((i, 0, 1), Choice.SECOND) for i in range(4)] + [answer((i, 2, 3), Choice.FIRST) for i in range(4)]
    standings = rank_contestants(contestants(4, models), answers)
    assert [standing.contestant for standing in standings] == [1, 0, 2, 3, 4]
    assert [standing.score is None for standing in standings] == [False, False, True, True, True]
    assert [(standing.low, standing.high) for standing in standings[2:]] == [(None, None)] * 3
    assert (standings[0].low is None, standings[0].high) == (False, None)
    joined = rank_contestants(contestants(4, models), [*answers, answer((0, 1, 2), Choice.TIE)])
    assert [standing.score is None for standing in joined] == [False] * 4 + [True]


def test_answers_to_one_prompt_count_once():
    """Eight people who judge one pair say nothing about other prompts; eight prompts do, and skips change nothing."""

    def width(positions):
        answers = [answer((p, 0, 1), Choice.FIRST if i % 4 else Choice.SECOND) for i, p in enumerate(positions)]
        standings = rank_contestants(contestants(8, MODELS[:2]), [*answers, answer((7, 0, 1), Choice.SKIP)])
        ((low, high),) = ((standing.low, standing.high) for standing in standings if standing.contestant == 1)
        return None if low is None and high is None else high - low

    assert width([0] * 8) is None
    assert width(range(8)) < 5


def test_the_least_known_comparison_comes_first_on_a_new_prompt():
    answers = [answer((i, 0, 1), Choice.TIE, "bob") for i in range(4)] + [answer((2, 0, 2), Choice.TIE, "ann")]
    key = choose_pair(contestants(), answers, "ann", 0)
    assert (key.first, key.second) == (1, 2)
    assert key.position != 2


def test_a_pair_on_anothers_screen_is_left_out_until_its_lease_ends():
    pair = contestants(1, MODELS[:2])
    leased = [answer((0, 0, 1), None, "bob", 100.0)]
    assert choose_pair(pair, leased, "ann", leased_since=99.0) is None
    assert choose_pair(pair, leased, "ann", leased_since=101.0) == PairKey(0, 0, 1)
    assert choose_pair(pair, [answer((0, 0, 1))], "ann", 0) is None


def test_people_at_once_get_other_contestants():
    first = choose_pair(contestants(), [], "ann", 0)
    second = choose_pair(contestants(), [answer(first, None, "ann")], "bob", 0)
    assert second[1:] != first[1:]


def test_a_person_judges_every_pair_once_and_each_prompt_before_a_second_time():
    answers, all_contestants = [], contestants()
    all_contestants[1].texts[0] = all_contestants[0].texts[0]  # equal texts are not judged
    while (key := choose_pair(all_contestants, answers, "ann", 0)) is not None:
        answers.append(answer(key, Choice.TIE))
        counts = Counter(one.position for one in answers)
        assert len(answers) < 4 or max(counts.values()) - min(counts.values()) < 3
        assert len(answers) > 4 or max(counts.values()) == 1
    assert len(answers) == len({one.key for one in answers}) == pair_count(all_contestants) == 11


def shown_pairs(all_contestants, key, annotator="ann"):
    """The pairs that a person gets who skips every one, as often as they like."""

    def draw(pair):
        return hmac.new(key, repr((annotator, pair)).encode(), "sha256").digest()

    answers, keys = [], []
    while (pair := choose_pair(all_contestants, answers, annotator, math.inf, draw)) is not None:
        keys.append(pair)
        answers.append(answer(pair, Choice.SKIP, annotator))
    return keys


def test_the_order_of_skipped_pairs_says_nothing_about_the_models():
    """Over 300 keys the first pairs of all prompts have each of the six pairs of models about equally often: 1,200 draws, so
    200 each with a standard deviation of 13. The next pair after a skip is of another prompt."""
    four = contestants(4, [*MODELS, "run/1/80"])
    counts, repeated = Counter(), 0
    for i in range(300):
        keys = shown_pairs(four, b"%d" % i)
        counts.update(key[1:] for key in keys[:4])
        repeated += sum(a[1:] == b[1:] for a, b in pairwise(keys[:4]))
        assert sorted(key.position for key in keys[:4]) == [0, 1, 2, 3]
    assert sorted(counts) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert all(140 < count < 260 for count in counts.values())
    assert 90 < repeated < 220  # of 900, one in six


def test_a_person_sees_no_text_twice():
    four = contestants(3, [*MODELS, "run/1/80"])
    four[3].texts[0] = f" {four[0].texts[0]}"  # the same text by another model
    keys = shown_pairs(four, b"key")
    texts = [four[i].texts[key.position].strip() for key in keys for i in key[1:]]
    assert len(texts) == len(set(texts)) == 10  # of 11 texts; the third of the first prompt is left over
    assert shown_pairs(four, b"key", "bob") != keys


def test_people_get_one_of_the_more_informative_half():
    """Base and the first model are compared already, at half of the prompts; the other two pairs remain."""
    answers = [answer((i, 0, 1), Choice.TIE, "bob") for i in range(4)]
    drawn = {
        choose_pair(contestants(8), answers, "ann", 0, lambda key, i=i: derive_seed(i, *key).to_bytes(8))[1:]
        for i in range(40)
    }
    assert drawn == {(0, 2), (1, 2)}


@pytest.mark.parametrize(("skips", "since", "waits"), [(10, 99.0, True), (9, 99.0, False), (10, 101.0, False)])
def test_ten_skips_in_a_row_are_followed_by_a_pause(skips, since, waits):
    answers = [answer((i, 0, 1), Choice.SKIP) for i in range(skips)]
    pair = choose_pair(contestants(20), answers, "ann", since, bytes)
    assert (pair is None) == waits
    assert choose_pair(contestants(20), answers, "bob", since, bytes) is not None
    answers[3] = answer((3, 0, 1), Choice.TIE)
    assert choose_pair(contestants(20), answers, "ann", since, bytes) is not None


@pytest.mark.parametrize(
    ("model", "name"), [("base", "base model"), ("base/best/4", "base, best of 4"), ("run/7/0", "run 7, step 0")]
)
def test_names(model, name):
    assert Contestant(model, [], None, []).name == name
