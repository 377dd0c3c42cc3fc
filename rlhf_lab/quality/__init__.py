"""Quality of labels, measured by their agreement, and rankings of models. No torch.

agreement      statistics of votes: Krippendorff's alpha, pairwise agreement, per annotator, over time
queries        a project's votes, and the labels to which a reward model gives a low probability
tournament     the next pair of a tournament, and the ranking from all answers
bradley_terry  the Bradley-Terry model used for the ranking
"""
