"""Numbers of things, in words for people."""


def counted(number: int, word: str) -> str:
    """ "1 vote", "25,000 votes"."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def counted_of(part: int, whole: int, word: str) -> str:
    """ "3 of 10 votes"; "10 votes" where none is missing."""
    return ("" if part == whole else f"{part:,} of ") + counted(whole, word)


def too_long(prompts: int, new_tokens: int) -> str:
    """ "2 prompts left out: too long for the model with 64 new tokens"; "" where none is."""
    if not prompts:
        return ""
    return f"{counted(prompts, 'prompt')} left out: too long for the model with {counted(new_tokens, 'new token')}"
