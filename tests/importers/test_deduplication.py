"""Which pair a judgement is about, without a database."""

import pytest

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.importers.deduplication import Answer, PairIndex, PairKey
from rlhf_lab.importers.parsed_rows import ParsedCompletion, ParsedVote


def find(places, letters, choice=Choice.FIRST, who="ann", pair="", drop=False, **more):
    """The pair that `who` judges; letters: the first text and the second."""
    item = ParsedVote(1, "p", ParsedCompletion(letters[0]), ParsedCompletion(letters[1]), choice, pair_name=pair)
    answer = Answer((who, more.get("repeat", False)), more.get("source", Source.HUMAN), choice, more.get("strength"))
    return places.assign_slot(item, answer, drop_duplicates=drop)


def counts(places):
    found = places.counts
    return found.held, found.duplicates, found.dropped


def with_a_pair(choice, who="ann"):
    """Pair 7 of the texts b and a, on which somebody has voted."""
    places = PairIndex()
    places.add_existing(7, PairKey.from_texts("p", "b", "a"), "b", "a")
    places.add_vote(7, Answer((who, False), Source.HUMAN, choice, None))
    places.add_vote(8, Answer((who, False), Source.HUMAN, choice, None))  # another pair, of which the file says nothing
    return places


def test_what_the_project_holds_is_left_out_whichever_way_round():
    assert find(with_a_pair(Choice.FIRST), "ba") is None
    assert find(with_a_pair(Choice.FIRST), "ab", Choice.SECOND) is None
    assert find(with_a_pair(Choice.TIE), "ab", Choice.TIE) is None
    places = with_a_pair(Choice.FIRST)
    assert find(places, "ab", Choice.FIRST).pair_id is None  # the other answer: a pair of its own
    assert counts(places) == (0, 1, 0)
    assert find(places, "ba") is None
    assert counts(places) == (1, 1, 0)


def test_another_person_joins_the_pair_that_is_there():
    places = with_a_pair(Choice.FIRST)
    assert find(places, "ab", who="bob").pair_id == 7
    assert find(places, "ab", repeat=True).pair_id == 7
    assert counts(places) == (0, 0, 0)


@pytest.mark.parametrize("more", [{"source": Source.SIMULATED}, {"strength": Strength.MUCH}])
def test_what_makes_another_answer(more):
    places = with_a_pair(Choice.FIRST)
    assert find(places, "ba", **more).pair_id is None
    assert counts(places) == (0, 1, 0)
    assert find(with_a_pair(Choice.FIRST), "ba", drop=True, **more) is None


def test_what_a_file_repeats_is_a_duplicate_except_under_another_name():
    places = PairIndex()
    found = [find(places, "ab", pair=pair) for pair in ("1", "1", "2", "2")]
    assert len(set(map(id, found))) == 4  # a duplicate gets a pair of its own
    assert counts(places) == (0, 2, 0)
    assert find(places, "ab", who="bob", pair="2") is found[2]
    assert find(places, "ab", Choice.TIE, pair="2") not in found
    assert counts(places) == (0, 3, 0)
    assert [find(places, "ab", pair=pair, drop=True) for pair in ("1", "2", "3")][:2] == [None, None]
    assert counts(places) == (0, 5, 2)


def test_a_pair_that_is_there_gets_the_first_name_and_what_is_held_is_left_out_as_often_as_it_is_held():
    places = with_a_pair(Choice.FIRST)
    assert find(places, "ba", pair="1") is None
    again = find(places, "ba", pair="2")
    assert (again.pair_id, again.pair_name) == (None, "2")
    assert find(places, "ba", who="bob", pair="1").pair_id == 7
    assert counts(places) == (1, 0, 0)


def test_rows_that_name_nobody_may_be_several_people():
    places = with_a_pair(Choice.FIRST, "imported")
    found = [find(places, "ba", who="imported") for _ in range(3)]
    assert [place is not None for place in found] == [False, True, True]
    assert counts(places) == (1, 2, 0)


class Counted(str):
    """A name that counts how often it is looked up or looked at."""

    looks = 0

    def __hash__(self):
        Counted.looks += 1
        return super().__hash__()

    def __bool__(self):
        Counted.looks += 1
        return len(self) > 0

    __eq__ = str.__eq__


@pytest.mark.parametrize("named", [False, True])
def test_many_duplicates_of_one_person_take_as_many_steps_as_there_are(named):
    def steps(count):
        places, who, Counted.looks = PairIndex(), Counted("imported"), 0
        for number in range(count):
            name = Counted(number) if named else ""
            item = ParsedVote(number, "p", ParsedCompletion("a"), ParsedCompletion("b"), Choice.FIRST, pair_name=name)
            places.assign_slot(item, Answer((who, False), Source.HUMAN, Choice.FIRST, None), drop_duplicates=False)
        assert places.counts.duplicates == (0 if named else count - 1)
        return Counted.looks

    assert steps(2_000) <= 2.1 * steps(1_000)
