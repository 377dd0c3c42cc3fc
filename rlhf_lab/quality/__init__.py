"""Quality of labels, measured by how they agree with each other. No torch.

agreement   statistics of votes: Krippendorff's alpha, pairwise agreement, per annotator, over time
queries     a project's votes, and the labels that a reward model doubts
"""
