"""Numbers of things, in words for people."""


def counted(number: int, word: str) -> str:
    """ "1 vote", "25,000 votes"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
