"""Escapes CSV cells that a spreadsheet would execute as a formula."""

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")


def escape_formula(text: str) -> str:
    """Prefix formulas with an apostrophe. Formulas after apostrophes are prefixed too, so that escaping is reversible."""
    return f"'{text}" if _FORMULA.match(text) else text


def unescape_formula(text: str) -> str:
    """The inverse of `escape_formula`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
