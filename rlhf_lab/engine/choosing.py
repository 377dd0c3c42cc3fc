"""Which of the candidate pairs people should see: where the reward model is least sure, or what differs most from the rest.

The pairs carry their reason, so that chosen ones can be told from a random sample: an accuracy measured on chosen pairs says
nothing about pairs in general.
"""

from collections.abc import Sequence

from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.heads import EnsembleHead
from rlhf_lab.models.reward_model import RewardModel

CANDIDATES = 4  # pairs written for each pair kept


def least_sure(
    model: RewardModel, prompts: Sequence[Sequence[int]], firsts: Sequence[Sequence[int]], seconds: Sequence[Sequence[int]],
    keep: int, tick: Tick = no_tick,
) -> list[int]:  # fmt: skip
    """Places of the `keep` pairs that a reward model is least sure of, in order of place.

    An ensemble: where its members disagree most on the difference of the two scores (their sd). A single head: where that
    difference is smallest.
    """
    both = model.raw_scores([*prompts, *prompts], [*firsts, *seconds], tick)
    gaps = both[:, : len(prompts)] - both[:, len(prompts) :]
    doubt = gaps.std(dim=0, correction=0) if gaps.shape[0] > 1 else -gaps[0].abs()
    order = sorted(range(len(prompts)), key=lambda i: (-float(doubt[i]), i))
    return sorted(order[:keep])


def doubt_of(model: RewardModel) -> str:
    """What `least_sure` goes by with this reward model, in a word."""
    return "ensemble" if isinstance(model.head, EnsembleHead) else "gap"


def least_alike(candidates: Sequence[frozenset[str]], known: Sequence[frozenset[str]], keep: int) -> list[int]:
    """Places of `keep` candidates, each the farthest from what is known and from those taken before it, in order of place.

    Distance: the share of the words of two that only one of them has.
    """
    nearest = [min((distance(one, other) for other in known), default=1.0) for one in candidates]
    taken: list[int] = []
    while len(taken) < min(keep, len(candidates)):
        best = max((i for i in range(len(candidates)) if i not in taken), key=lambda i: (nearest[i], -i))
        taken.append(best)
        nearest = [min(far, distance(one, candidates[best])) for far, one in zip(nearest, candidates, strict=True)]
    return sorted(taken)


def words(*texts: str) -> frozenset[str]:
    return frozenset(word.strip(".,;:!?\"'()").lower() for text in texts for word in text.split()) - {""}


def distance(one: frozenset[str], other: frozenset[str]) -> float:
    union = one | other
    return len(one ^ other) / len(union) if union else 0.0
