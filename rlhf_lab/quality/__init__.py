"""How good labels are, by what they say about each other: agreement, consistency, habits. No torch, no model.

figures   pure functions on votes: Krippendorff's alpha, pairwise agreement, one person's figures, figures over time
reading   a project's votes, and the labels that a reward model doubts
"""

from rlhf_lab.quality.figures import Agreement, Person, Said, Stretch, alpha, over_time, pairwise, people
from rlhf_lab.quality.reading import Doubt, ask_again, doubts, votes_of

__all__ = [
    "Agreement",
    "Doubt",
    "Person",
    "Said",
    "Stretch",
    "alpha",
    "ask_again",
    "doubts",
    "over_time",
    "pairwise",
    "people",
    "votes_of",
]
