"""Errors of the Hub's client in one line, without the token."""


def first_line(error: BaseException, token: str | None) -> str:
    """The first 300 characters of the message's first line; the class of an error without a message."""
    line = (str(error).strip() or type(error).__name__).split("\n", 1)[0]
    return (line.replace(token, "…") if token else line)[:300]  # cut last: a part of the token would not be replaced
