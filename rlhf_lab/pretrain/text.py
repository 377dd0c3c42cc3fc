"""What a prompt set of the corpus writes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A prompt, one response for it, and the axes the response was written to (mood, length, dialogue …)."""

    prompt: str
    response: str
    axes: dict[str, int]
