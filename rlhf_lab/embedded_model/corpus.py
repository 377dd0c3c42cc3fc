"""The corpus of the embedded model: three prompt sets written by a grammar of our own. No external text."""

import random
from collections.abc import Callable, Iterator

from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.embedded_model import reviews, support, tales
from rlhf_lab.embedded_model.grammar import CorpusText
from rlhf_lab.errors import ConfigError

TEXT_GENERATORS: dict[str, Callable[[random.Random], CorpusText]] = {
    "tales": tales.generate_text,
    "support": support.generate_text,
    "reviews": reviews.generate_text,
}
PROMPT_GENERATORS: dict[str, Callable[[random.Random], tuple[str, dict[str, str]]]] = {
    "tales": tales.generate_prompt,
    "support": support.generate_prompt,
    "reviews": reviews.generate_prompt,
}


def generate_texts(seed: int, count: int, start: int = 0) -> Iterator[CorpusText]:
    """Texts start … start+count, the prompt sets in turn; text i depends on (seed, i) alone."""
    prompt_sets = list(TEXT_GENERATORS)
    for i in range(start, start + count):
        yield TEXT_GENERATORS[prompt_sets[i % len(prompt_sets)]](random.Random(derive_seed(seed, "text", i)))


def generate_prompts(prompt_set: str, count: int, seed: int) -> list[str]:
    """`count` distinct prompts of a set. Raises ConfigError for an unknown set."""
    if prompt_set not in PROMPT_GENERATORS:
        raise ConfigError(f'unknown prompt set "{prompt_set}"; choose one of {", ".join(PROMPT_GENERATORS)}')
    rng = random.Random(derive_seed(seed, "prompts", prompt_set))
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        prompts[PROMPT_GENERATORS[prompt_set](rng)[0]] = None
    return list(prompts)
