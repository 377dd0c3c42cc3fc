"""Texts with counts, for messages."""


def pluralize(count: int, noun: str) -> str:
    """ "1 vote", "25,000 votes"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def pluralize_of(count: int, total: int, noun: str) -> str:
    """ "3 of 10 votes"; "10 votes" if count equals total."""
    return ("" if count == total else f"{count:,} of ") + pluralize(total, noun)


def prompts_skipped_message(skipped_count: int, max_new_tokens: int) -> str:
    """ "2 prompts left out: too long for the model with 64 new tokens"; "" if there are none."""
    if not skipped_count:
        return ""
    return f"{pluralize(skipped_count, 'prompt')} left out: too long for the model with {pluralize(max_new_tokens, 'new token')}"
