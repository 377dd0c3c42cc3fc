"""How good labels are, by what they say about each other: agreement, consistency, habits. No torch, no model.

figures   pure functions on votes: Krippendorff's alpha, pairwise agreement, one person's figures, figures over time
reading   a project's votes, and the labels that a reward model doubts
"""

from rlhf_lab.quality.agreement import (
    Agreement,
    AnnotatorQuality,
    TimeBucket,
    VoteRecord,
    annotator_qualities,
    krippendorff_alpha,
    pairwise_agreement,
    quality_over_time,
)
from rlhf_lab.quality.queries import DoubtedLabel, doubted_labels, request_new_vote, vote_records

__all__ = [
    "Agreement",
    "AnnotatorQuality",
    "DoubtedLabel",
    "TimeBucket",
    "VoteRecord",
    "annotator_qualities",
    "doubted_labels",
    "krippendorff_alpha",
    "pairwise_agreement",
    "quality_over_time",
    "request_new_vote",
    "vote_records",
]
