"""Comparisons of tiny texts and reward training on them, for the tests of the reward trainer."""

import torch
from support import tiny_models

from rlhf_lab.common.records import Comparison
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.training.reward.task import ReferenceSamples
from rlhf_lab.training.reward.trainer import train_reward

QUICK = {"epochs": 2, "batch_size": 4, "folds": 0, "lora_r": 2, "lora_alpha": 4, "lr": 3e-3}


def comparisons(count=12, seed=0):
    """ "happy" is better than "sad", between other words; four pairs per prompt."""
    generator = torch.Generator().manual_seed(seed)
    labels = []
    for i in range(count):
        group = i // 4
        before, after = (tiny_models.WORDS[int(torch.randint(5, 35, (1,), generator=generator))] for _ in range(2))
        texts = [f"{before} {word} {word} {after}" for word in ("happy", "sad")]
        ids = [(*tiny_models.ids(text), tiny_models.EOS) for text in texts]
        labels.append(Comparison(tiny_models.PROMPTS[group % 5], *texts, *ids, group=group))
    return labels


def reference_of(backbone, count=24):
    prompts = [backbone.encode_prompt(tiny_models.PROMPTS[i % 5]) for i in range(count)]
    return ReferenceSamples(prompts, sample(backbone, prompts, tiny_models.seeded(count, 6, first=100)).tokens)


def train(folder, labels=None, progress=None, on_progress=lambda: None, **changes):
    backbone = tiny_models.load(folder)
    adapters = Adapters(backbone)
    config = RewardConfig(**(QUICK | changes))
    labels = comparisons() if labels is None else labels
    return train_reward(adapters, labels, reference_of(backbone), config, on_update=progress, on_progress=on_progress)


def raw_gap(model, comparison):
    """Mean raw score difference of a pair, before normalisation."""
    prompt = [model.backbone.encode_prompt(comparison.prompt)]
    chosen, rejected = (model.scores(prompt, [list(ids)]) for ids in (comparison.chosen_ids, comparison.rejected_ids))
    return float(model.head.scale) * float(chosen - rejected)


def contradicting():
    """For two prompts "happy" wins, for two others "sad": the same texts, so only grouped folds see it coming wrong."""
    labels = comparisons(16)
    texts = labels[:4]
    contradictory = []
    for i, c in enumerate(labels):
        t = texts[i % 4]
        pair = ((t.chosen, t.chosen_ids), (t.rejected, t.rejected_ids))
        (chosen, chosen_ids), (rejected, rejected_ids) = pair if c.group % 2 == 0 else pair[::-1]
        contradictory.append(Comparison("the cat", chosen, rejected, chosen_ids, rejected_ids, group=c.group % 2))
    return contradictory


def flat(value):
    """The numbers of a report, or of a field of it, as a flat list."""
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in flat(value[key])]
    if isinstance(value, list):
        return [number for item in value for number in flat(item)]
    return [] if value is None or isinstance(value, str) else [value]
