"""Errors of the Hub client as readable lines."""

import pytest

from rlhf_lab.common.hub_errors import first_line

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("start", [0, 285, 299, 300])
def test_no_part_of_the_token_is_in_the_line(start):
    line = first_line(ValueError("x" * start + TOKEN + " refused\nmore"), TOKEN)
    assert "hf_" not in line
    assert line == ("x" * start + "… refused")[:300]


def test_an_error_without_a_message_is_named_by_its_class():
    assert first_line(ValueError(" "), None) == "ValueError"
