from rlhf_lab.common.text import (
    cut_middle,
    first_items,
    plain_number,
    pluralize,
    pluralize_of,
    prompts_skipped_message,
    split_lines,
)


def test_pluralize():
    assert [pluralize(n, "vote") for n in (0, 1, 25_000)] == ["0 votes", "1 vote", "25,000 votes"]
    assert [pluralize_of(n, 1, "vote") for n in (0, 1)] == ["0 of 1 vote", "1 vote"]
    assert pluralize_of(1_000, 2_000, "new pair") == "1,000 of 2,000 new pairs"


def test_a_plain_number_has_no_exponent():
    numbers = [3e-5, 0.1, 1.0, 1e7, -2.5e-6]
    assert [plain_number(number) for number in numbers] == ["0.00003", "0.1", "1", "10000000", "-0.0000025"]
    assert plain_number(0.000123456, 3) == "0.000123"


def test_prompts_skipped_message():
    assert prompts_skipped_message(0, 64) == ""
    assert prompts_skipped_message(1, 64) == "1 prompt left out: too long for the model with 64 new tokens"
    assert prompts_skipped_message(1_200, 1) == "1,200 prompts left out: too long for the model with 1 new token"


def test_only_line_feeds_end_a_line():
    inside = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029 \r"
    assert list(split_lines(f"a{inside}b\r\n\n{inside}c\n")) == [f"a{inside}b", "", f"{inside}c", ""]
    assert list(split_lines("")) == [""]


def test_first_items():
    assert first_items([1, 2]) == "1, 2"
    assert first_items("abcdef") == "a, b, c, d, e, …"


def test_nothing_remains_of_a_word_where_a_message_is_cut():
    path = "/srv/lab/home/runs"
    for letters in range(60, 100):
        for text in (f"{'a' * letters} {path} {'z ' * 90}end", f"begin {'a ' * 90}{path} {'z' * (letters // 2)}"):
            assert len(cut_middle(text, 120)) <= 120
            assert path in cut_middle(text, 120) or "/" not in cut_middle(text, 120)
    assert cut_middle("x" * 3000, 1000) == f"{'x' * 664} … {'x' * 333}"
