"""One spelling for each name, and names that look alike."""

import pytest

from rlhf_lab.common.person_names import is_blank, latin_spelling, lookalike_keys, mixed_scripts, normalize_name


def look_alike(one, other):
    return not lookalike_keys(one).isdisjoint(lookalike_keys(other))


@pytest.mark.parametrize(
    ("name", "normalized"),
    [
        ("  Ann \u00a0 Lee ", "Ann Lee"),
        ("Zoe\u0308", "Zo\u00eb"),  # decomposed
        ("\uff21nn", "Ann"),  # fullwidth A
        ("\U0001d400nn", "Ann"),  # mathematical bold A
        ("A\ufe0fn\U000e0101n", "Ann"),  # variation selectors
        ("Ann\u3164", "Ann"),  # Hangul filler
        ("\uffa0Ann\u115f\u1160", "Ann"),
        ("An\u034fn\u2800", "Ann"),  # combining grapheme joiner, empty Braille pattern
        ("Zoe\ufe0f\u0308", "Zo\u00eb"),  # composed once the selector is removed
        ("\u3164", ""),
        ("\u0301", ""),  # an accent without a letter
        (" \u0301\u0301 \u0902Ann", "Ann"),
        ("\u674e\u660e", "\u674e\u660e"),
    ],
)
def test_each_name_has_one_spelling(name, normalized):
    assert normalize_name(name) == normalized
    assert normalize_name(normalized) == normalized


@pytest.mark.parametrize(
    "other",
    [
        "ANN", "\u0410nn", "\u0391nn", "\u13aann", "\ua4eenn", "\u1d00nn", "\u0251nn", "A\u0578\u0578", "Ann\u3164",
        "A\u043f\u043f", "\u0391\u039d\u039d", "\u2c6dnn",
    ],
)  # fmt: skip
def test_names_of_letters_with_the_same_shape_look_alike(other):
    """Cyrillic, Greek, Cherokee, Lisu, small capital, IPA, Armenian, a filler, Cyrillic n, all in Greek, and capital alpha."""
    assert look_alike("Ann", other)


@pytest.mark.parametrize("other", ["Mari\uab32", "Mar\u05c0e", "Mar|e", "Mar\u2223e", "M\u1d00rie", "Ma\ua783ie"])
def test_variants_of_latin_letters_and_bars_look_alike(other):
    """Blackletter e, a Hebrew and a mathematical bar, a small capital, an insular r."""
    expected = {"Mar\u05c0e": "Marle", "Mar|e": "Marle", "Mar\u2223e": "Marle"}.get(other, "Marie")
    assert look_alike(expected, other)


@pytest.mark.parametrize(
    "dash", "-\u02d7\u2010\u2011\u2013\u2014\u2043\u2212\u058a\u1806\u2e3a\u301c\ufe63\uff0d\u2796"
)
def test_all_dashes_look_alike(dash):
    assert look_alike("visitor-1", f"visitor{dash}1")
    assert latin_spelling(f"visitor{dash}1").startswith("visitor-")


@pytest.mark.parametrize(
    ("one", "other"),
    [("Ian", "lan"), ("Bob", "B0b"), ("Arnold", "Amold"), ("O\u2019Brien", "O'Brien"), ("Jean\u2011Luc", "Jean-Luc"),
     ("\u0421\u0430\u0448\u0430 1", "\u0421\u0430\u0448\u0430 l"), ("Zo\u00eb", "Zo\u0451"), ("stra\u00dfe", "STRASSE")],
)  # fmt: skip
def test_further_names_that_look_alike(one, other):
    assert look_alike(one, other)


@pytest.mark.parametrize(
    ("one", "other"), [("Ann", "Anna"), ("Zoe", "Zo\u00eb"), ("Ian", "Lan"), ("Ann 1", "Ann 2"), ("\u674e", "\u738b")]
)
def test_names_that_can_be_told_apart(one, other):
    assert not look_alike(one, other)


def test_a_word_of_two_alphabets_is_found():
    assert mixed_scripts("\u0410nn") == ["CYRILLIC", "LATIN"]
    assert mixed_scripts("Bob \U00010402nn") == ["DESERET", "LATIN"]
    for name in (
        "Anna \u0410\u043d\u043d\u0430",
        "Zo\u00eb",
        "\u674eLi",
        "\u30c6\u30b9\u30c8\u3055\u3093",
        "O\u02bcBrien 2",
        "\u0410\u043d\u043d\u0430",
        "",
    ):
        assert mixed_scripts(name) == []


@pytest.mark.parametrize(
    "text", ["", " \n\t", "\u200b", "\u3164\u2800", "\u202e\ufe0f", "\u0301", "\u00a0\u2003", "\x1b"]
)
def test_texts_of_which_nothing_can_be_seen(text):
    assert is_blank(text)
    assert not any(is_blank(text + visible) for visible in ("a", "7", "?", "€", "👩", "李", "ا"))
