"""How much of its KL budget a live run may use, by how well the reward model predicts labels that it has not seen.

A shift of the policy by a given KL changes the true reward by r·sqrt(2 KL) standard deviations, where r is the correlation of the
scores with the true ones. What else it does to the texts costs about as much per nat with a bad reward model as with a good
one. If that is c·KL, the sum is largest at KL = r² / (2 c²): the best budget is proportional to r². The accuracy on held-out
labels says how large r is: docs/LEARNING.md, "The budget of a live run".
"""

import math

from rlhf_lab.errors import ConfigError

SMALLEST_SHARE = 0.01  # of the full budget; what keeps a run within its budget divides by it


def evidence_budget(full: float, right: float, decided: int) -> float:
    """The KL budget, in nats, of a live run whose reward model predicts `right` of `decided` held-out labels correctly.

    full · r², with r = sin(π (accuracy - 1/2)): the correlation of two normal variables whose signs agree with this probability
    (Sheppard 1899). Three right and three wrong labels are added (the posterior mean of the accuracy for the prior Beta(3, 3)),
    so that a few labels that are right by chance allow little: 6 of 6 allow half of the full budget. An accuracy of at most 1/2,
    or just above it, leaves full · SMALLEST_SHARE.

    Raises:
        ConfigError: a full budget that is not positive, or not 0 <= right <= decided.
    """
    if not (full > 0 and 0 <= right <= decided):
        raise ConfigError(
            f"full={full}, right={right}, decided={decided}: needs a positive budget and 0 <= right <= decided."
        )
    accuracy = (right + 3) / (decided + 6)
    return full * max(SMALLEST_SHARE, math.sin(math.pi * max(0.0, accuracy - 0.5)) ** 2)
