"""Words of strangers in a CSV that somebody opens as a spreadsheet: there a cell that begins like a formula is one, and runs."""

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")


def escape_formula(text: str) -> str:
    """With an apostrophe before what a spreadsheet would compute, and before what already begins so: `unescape_formula` is exact."""
    return f"'{text}" if _FORMULA.match(text) else text


def unescape_formula(text: str) -> str:
    """The words that `escape_formula` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
