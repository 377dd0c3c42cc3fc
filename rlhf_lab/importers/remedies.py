"""Remedies in messages: options of the command line, and the same for the form of the page.

Messages are written for the command line; `for_page` is the only place that rewords them.
"""

import re
import shlex

_MAP = re.compile(r"""--map ('[^']*'(?:"'"'[^']*')*|[\w@%+:./=-]*[\w=])""")
_OTHERS = (
    (re.compile(r'--choices=("[^"]*")'), """enter \\1 under "what the votes' words mean\""""),
    (re.compile(r"--choices"), 'the field "what the votes\' words mean"'),
    (re.compile(r"the split \(--split\)"), 'the fields "split" and "configuration"'),
    (re.compile(r"as in --split (\S+)"), 'as in \\1 in the field "split"'),
    (re.compile(r"\(on the command line: --skip-broken\)"), '(tick "leave out rows that cannot be used")'),
)


def map_option(meaning: str, column: str = "") -> str:
    """The option that maps a meaning to a column; no column: to none."""
    assignment = f"{meaning}={column}"
    is_bare = re.fullmatch(r"[\w@%+:./=-]*[\w=]", assignment) is not None
    return f"--map {assignment}" if is_bare else "--map '" + assignment.replace("'", "'\"'\"'") + "'"


def choices_option(words: str) -> str:
    """The option with the meanings of words. With "=", because argparse takes "-1=first" alone for another option."""
    return f'--choices="{words}"'


def for_page(text: str) -> str:
    """A message with the form's fields instead of options."""
    text = _MAP.sub(_map_on_page, text).replace('" choose ', '" and choose ')
    for pattern, wording in _OTHERS:
        text = pattern.sub(wording, text)
    return text


def _map_on_page(match: re.Match[str]) -> str:
    meaning, _, column = "".join(shlex.split(match[1])).partition("=")
    shown = "a column" if column == "COLUMN" else f'"{column}"'
    if not column:
        shown = '"text at the beginning of both responses"' if meaning == "prompt" else '"no column"'
    return f'choose {shown} for "{meaning.replace("_", " ")}"'
