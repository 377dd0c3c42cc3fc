"""Assignment of votes to pairs, without a database."""

import pytest

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.importers.deduplication import Answer, PairIndex, PairKey
from rlhf_lab.importers.parsed_rows import ParsedCompletion, ParsedVote


def assign(index, texts, choice=Choice.FIRST, annotator="ann", pair="", drop=False, **options):
    """The slot of a vote. texts: two letters, the first and the second text."""
    item = ParsedVote(1, "p", ParsedCompletion(texts[0]), ParsedCompletion(texts[1]), choice, pair_name=pair)
    answer = Answer(
        (annotator, options.get("repeat", False), False),
        options.get("source", Source.HUMAN),
        choice,
        options.get("strength"),
    )
    return index.assign_slot(item, answer, drop_duplicates=drop)


def counts(index):
    return index.counts.held, index.counts.duplicates, index.counts.dropped


def index_with_pair(choice, annotator="ann"):
    """An index with pair 7 of the texts b and a, and a vote on it."""
    index = PairIndex()
    index.add_existing(7, PairKey.from_texts("p", "b", "a"), "b", "a")
    index.add_vote(7, Answer((annotator, False, False), Source.HUMAN, choice, None))
    index.add_vote(8, Answer((annotator, False, False), Source.HUMAN, choice, None))  # a pair that was not added
    return index


def test_known_votes_are_skipped_in_either_text_order():
    assert assign(index_with_pair(Choice.FIRST), "ba") is None
    assert assign(index_with_pair(Choice.FIRST), "ab", Choice.SECOND) is None
    assert assign(index_with_pair(Choice.TIE), "ab", Choice.TIE) is None
    index = index_with_pair(Choice.FIRST)
    assert assign(index, "ab", Choice.FIRST).pair_id is None  # the other answer: a separate pair
    assert counts(index) == (0, 1, 0)
    assert assign(index, "ba") is None
    assert counts(index) == (1, 1, 0)


def test_another_annotator_joins_the_existing_pair():
    index = index_with_pair(Choice.FIRST)
    assert assign(index, "ab", annotator="bob").pair_id == 7
    assert assign(index, "ab", repeat=True).pair_id == 7
    assert counts(index) == (0, 0, 0)


@pytest.mark.parametrize("options", [{"source": Source.SIMULATED}, {"strength": Strength.MUCH}])
def test_source_and_strength_make_a_different_answer(options):
    index = index_with_pair(Choice.FIRST)
    assert assign(index, "ba", **options).pair_id is None
    assert counts(index) == (0, 1, 0)
    assert assign(index_with_pair(Choice.FIRST), "ba", drop=True, **options) is None


def test_repeats_in_a_file_are_duplicates_except_under_another_pair_name():
    index = PairIndex()
    slots = [assign(index, "ab", pair=pair) for pair in ("1", "1", "2", "2")]
    assert len(set(map(id, slots))) == 4  # a duplicate gets a separate pair
    assert counts(index) == (0, 2, 0)
    assert assign(index, "ab", annotator="bob", pair="2") is slots[2]
    assert assign(index, "ab", Choice.TIE, pair="2") not in slots
    assert counts(index) == (0, 3, 0)
    assert [assign(index, "ab", pair=pair, drop=True) for pair in ("1", "2", "3")][:2] == [None, None]
    assert counts(index) == (0, 5, 2)


def test_an_existing_pair_takes_the_first_name_and_skips_only_as_many_votes_as_it_has():
    index = index_with_pair(Choice.FIRST)
    assert assign(index, "ba", pair="1") is None
    repeated = assign(index, "ba", pair="2")
    assert (repeated.pair_id, repeated.pair_name) == (None, "2")
    assert assign(index, "ba", annotator="bob", pair="1").pair_id == 7
    assert counts(index) == (1, 0, 0)


def test_rows_without_an_annotator_can_be_from_several_people():
    index = index_with_pair(Choice.FIRST, "imported")
    slots = [assign(index, "ba", annotator="imported") for _ in range(3)]
    assert [slot is not None for slot in slots] == [False, True, True]
    assert counts(index) == (1, 2, 0)


class Counted(str):
    """A name that counts hash and truth tests."""

    calls = 0

    def __hash__(self):
        Counted.calls += 1
        return super().__hash__()

    def __bool__(self):
        Counted.calls += 1
        return len(self) > 0

    __eq__ = str.__eq__


@pytest.mark.parametrize("has_names", [False, True])
def test_duplicates_take_linear_time(has_names):
    def steps(count):
        index, annotator, Counted.calls = PairIndex(), Counted("imported"), 0
        for number in range(count):
            name = Counted(number) if has_names else ""
            item = ParsedVote(number, "p", ParsedCompletion("a"), ParsedCompletion("b"), Choice.FIRST, pair_name=name)
            index.assign_slot(
                item, Answer((annotator, False, False), Source.HUMAN, Choice.FIRST, None), drop_duplicates=False
            )
        assert index.counts.duplicates == (0 if has_names else count - 1)
        return Counted.calls

    assert steps(2_000) <= 2.1 * steps(1_000)
