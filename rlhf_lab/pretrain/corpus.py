"""The corpus of the embedded model: three prompt sets written by a grammar of our own. No external text."""

import random
from collections.abc import Callable, Iterator

from rlhf_lab.errors import ConfigError
from rlhf_lab.pretrain import reviews, support, tales
from rlhf_lab.pretrain.text import Text
from rlhf_lab.seeds import derive

WRITERS: dict[str, Callable[[random.Random], Text]] = {
    "tales": tales.write,
    "support": support.write,
    "reviews": reviews.write,
}
PROMPTS: dict[str, Callable[[random.Random], tuple[str, dict[str, str]]]] = {
    "tales": tales.prompt,
    "support": support.prompt,
    "reviews": reviews.prompt,
}


def texts(seed: int, count: int, start: int = 0) -> Iterator[Text]:
    """Texts start … start+count, the prompt sets in turn; text i depends on (seed, i) alone."""
    names = list(WRITERS)
    for i in range(start, start + count):
        yield WRITERS[names[i % len(names)]](random.Random(derive(seed, "text", i)))


def prompt_list(prompt_set: str, count: int, seed: int) -> list[str]:
    """`count` distinct prompts of a set. Raises ConfigError for an unknown set."""
    if prompt_set not in PROMPTS:
        raise ConfigError(f'unknown prompt set "{prompt_set}"; choose one of {", ".join(PROMPTS)}')
    rng = random.Random(derive(seed, "prompts", prompt_set))
    found: dict[str, None] = {}
    while len(found) < count:
        found[PROMPTS[prompt_set](rng)[0]] = None
    return list(found)
