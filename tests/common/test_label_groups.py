"""Which labels are held out together."""

import pytest

from rlhf_lab.common.label_groups import are_split, group_labels, label_keys, normal_form


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tell a story", "tell a story"),
        ("  tell  A\n\tstory. ", "tell a story"),
        ("TELL A STORY ?!…", "tell a story"),
        ("Straße", "strasse"),
        ("a.b", "a b"),
        ("\u201cTell\u00a0a sto\u200bry.\u201d\ufeff", "tell a story"),
        ("**Tell** _a_ story \u3002", "tell a story"),
        ("\uff34ell a story\uff01", "tell a story"),
        ("Cafe\u0301 don\u2019t", "café don t"),
        ("", ""),
        (" ... ", "..."),  # nothing else is left
        ("?", "?"),
    ],
)
def test_normal_form(text, expected):
    assert normal_form(text) == expected


def groups_of(*labels):
    return group_labels([label_keys(*label) for label in labels])


def test_labels_about_one_prompt_are_one_group():
    assert groups_of(("p", "a", "b"), ("q", "c", "d"), ("P.", "e", "f"), ("r", "a", "g")) == [0, 1, 0, 3]


def test_labels_about_the_same_two_texts_are_one_group():
    """Under other prompts and in either order; one common text is not enough."""
    labels = [("p", "a", "b"), ("q", "B.", "A"), ("r", "a", "c"), ("s", "d", "e"), ("t", "f", "g")]
    assert groups_of(*labels) == [0, 0, 2, 3, 4]


def test_groups_are_connected_over_other_labels():
    """0 and 3 have one prompt, 3 and 1 their texts, 1 and 4 their prompt; the others are alone."""
    labels = [("p", "a", "b"), ("q", "c", "d"), ("r", "e", "f"), ("p", "c", "d"), ("q", "g", "h")]
    labels += [(f"s{i}", f"i{i}", "j") for i in range(5)]
    assert groups_of(*labels) == [0, 0, 2, 0, 0, 5, 6, 7, 8, 9]


def test_a_group_with_most_labels_is_split_by_prompt_if_the_texts_are_few():
    """ "Yes" and "no" under six prompts, one of them twice."""
    keys = [label_keys(prompt, "Yes.", "No.") for prompt in "pqrsptu"]
    assert group_labels(keys) == [0, 1, 2, 3, 0, 5, 6]
    assert are_split(keys, group_labels(keys))


def test_a_group_with_most_labels_is_split_by_its_texts():
    """All about one prompt; and one prompt with four of seven labels."""
    one_prompt = [("p", "a", "b"), ("p.", "c", "d"), ("p", "b", "a"), ("p", "e", "f")]
    keys = [label_keys(*label) for label in one_prompt]
    assert group_labels(keys) == [0, 1, 0, 3]
    assert are_split(keys, group_labels(keys))
    mixed = [*one_prompt, ("q", "g", "h"), ("q", "i", "j"), ("r", "k", "l")]
    assert groups_of(*mixed) == [0, 1, 0, 3, 4, 4, 6]
    half = [label_keys(*label) for label in [*mixed, ("s", "m", "n")]]
    assert group_labels(half) == [0, 0, 0, 0, 4, 4, 6, 7]
    assert not are_split(half, group_labels(half))


def test_no_labels_are_no_groups():
    assert group_labels([]) == []
