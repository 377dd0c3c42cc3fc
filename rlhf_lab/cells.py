"""Words of strangers in a CSV that somebody opens as a spreadsheet: there a cell that begins like a formula is one, and runs."""

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")


def defused(words: str) -> str:
    """With an apostrophe before what a spreadsheet would compute, and before what already begins so: `restored` is exact."""
    return f"'{words}" if _FORMULA.match(words) else words


def restored(words: str) -> str:
    """The words that `defused` was given."""
    return words[1:] if words.startswith("'") and _FORMULA.match(words) else words
