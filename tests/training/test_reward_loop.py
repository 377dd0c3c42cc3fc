"""A whole reward training against plain loops: one text at a time, no padding, sums over lists."""

import dataclasses
import math

import pytest
import torch
from support import tiny_models
from support.preference_data import comparisons, reference_of
from torch.nn.functional import logsigmoid

from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.reward.trainer import train_reward

SETTINGS = {
    "epochs": 3, "batch_size": 3, "folds": 0, "lora_r": 2, "lora_alpha": 4, "lr": 3e-3, "weight_decay": 0.3, "seed": 4,
    "max_grad_norm": 0.2, "label_smoothing": 0.1, "margin": 0.4, "centering": 0.05, "score_l2": 0.02, "last_weight": 0.2,
}  # fmt: skip


def mixed():
    """A tie with a strength, a margin, a strength, a label that counts three times, one that counts less, one that does not
    count, a plain one; of uneven lengths."""
    labels = comparisons(7, seed=3)
    labels[0] = dataclasses.replace(labels[0], tie=True, strength=2.0)
    labels[1] = dataclasses.replace(labels[1], margin=0.7)
    labels[2] = dataclasses.replace(labels[2], strength=2.0)
    labels[3] = dataclasses.replace(
        labels[3], count=3, chosen_ids=(*tiny_models.ids("the old dog"), *labels[3].chosen_ids)
    )
    labels[4] = dataclasses.replace(labels[4], weight=0.25)
    labels[5] = dataclasses.replace(labels[5], weight=0.0)
    return labels


def loaded(folder):
    backbone = tiny_models.load(folder, torch.float64)
    return backbone, Adapters(backbone)


def pooled(model, prompt, ids):
    """(F,) float64 mean of the states where the response's tokens have been read, with some of the last; or the last of them.

    Of the last layer, or of the embeddings and every layer.
    """
    model.backbone.fused_layers.disable()
    layers = model.backbone.trunk(input_ids=torch.tensor([[*prompt, *ids]]), output_hidden_states=True).hidden_states
    parts = []
    for layer in layers if model.head.features.layers == "all" else layers[-1:]:
        states = layer[0, len(prompt) :].double()
        mean = sum(states) / len(states)
        parts.append(states[-1] if model.head.features.pooling == "last" else 0.8 * mean + 0.2 * states[-1])
    return torch.cat(parts)


def nats(model, label, config):
    """Loss of one label, before its weight."""
    prompt = model.backbone.encode_prompt(label.prompt)
    with model.adapters.using(model.adapter):
        chosen, rejected = (
            pooled(model, prompt, ids).float() @ model.head.linear.weight[0] + model.head.linear.bias[0]
            for ids in (label.chosen_ids, label.rejected_ids)
        )
    logit = chosen - rejected - (0.0 if label.tie else label.margin + config.margin * label.strength)
    target = 0.5 if label.tie else 1 - config.label_smoothing
    loss = -target * logsigmoid(logit) - (1 - target) * logsigmoid(-logit)
    squares = (chosen**2 + rejected**2) / 2
    return loss + config.centering * (chosen + rejected) ** 2 + config.score_l2 * squares


@pytest.mark.parametrize(("pooling", "layers", "batch_size"), [("mean", "all", 3), ("last", "last", 1)])
def test_a_whole_training_equals_a_plain_loop(llama_folder, pooling, layers, batch_size):
    """Every update: order, weights of the labels, margins, penalties, clipping, decay, and the rate annealed to 0.

    A label of weight 1/4 alone in its batch has a quarter of the loss of one with weight 1; the mean of count times weight is
    (1 + 1 + 1 + 3 + 1/4 + 1) / 6 = 7.25 / 6. The label of weight 0 is in no batch.
    """
    config = RewardConfig(**SETTINGS | {"batch_size": batch_size}, pooling=pooling, layers=layers, warm_start=False)
    backbone, adapters = loaded(llama_folder)
    actual, report = train_reward(adapters, mixed(), reference_of(backbone), config)
    backbone, adapters = loaded(llama_folder)
    adapters.add("reward", r=2, alpha=4, seed=derive_seed(4, "reward adapter"), trainable=True)
    spec = FeatureSpec(pooling, 0.2, layers)
    head = RewardHead(96 if layers == "all" else 32, spec, derive_seed(4, "head"))
    model = RewardModel(backbone, adapters, "reward", head)
    parameters = [*adapters.parameters("reward"), *model.head.parameters()]
    optimiser = torch.optim.AdamW(parameters, weight_decay=0.3)
    generator, labels, losses = torch.Generator().manual_seed(derive_seed(4, "order", "all")), mixed(), []
    del labels[5]
    for _ in range(3):
        order = torch.randperm(6, generator=generator).tolist()
        for batch in [order[start : start + batch_size] for start in range(0, 6, batch_size)]:
            loss = sum(labels[i].count * labels[i].weight * nats(model, labels[i], config) for i in batch)
            loss = loss / (len(batch) * 7.25 / 6)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.2)
            updates = 3 * math.ceil(6 / batch_size)
            optimiser.param_groups[0]["lr"] = 3e-3 * (updates - len(losses)) / updates
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
    assert report.loss == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(actual.head.linear.weight, model.head.linear.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(actual.head.linear.bias, model.head.linear.bias, rtol=1e-5, atol=1e-6)
    expected = adapters.tensors("reward")
    for name, tensor in actual.adapters.tensors(actual.adapter).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("layers", ["all", "last"])
def test_a_fitted_head_is_the_optimum_of_the_explicit_loss(llama_folder, pooling, layers):
    """The derivative of counts * losses + ridge / 2 |u|^2 vanishes, u the head of scaled features; the base's mean scores 0."""
    config = RewardConfig(**(SETTINGS | {"epochs": 0}), pooling=pooling, layers=layers, ridge=0.5)
    backbone, adapters = loaded(llama_folder)
    reference = reference_of(backbone)
    model, _ = train_reward(adapters, mixed(), reference, config)
    weight, bias = model.head.linear.weight[0].double(), float(model.head.linear.bias)
    base = torch.stack([pooled(model, *pair) for pair in zip(*reference, strict=True)])
    assert float(base.mean(0) @ weight) + bias == pytest.approx(0.0, abs=1e-5)
    derivative = torch.zeros_like(weight)
    for label in mixed():
        prompt = backbone.encode_prompt(label.prompt)
        difference = pooled(model, prompt, label.chosen_ids) - pooled(model, prompt, label.rejected_ids)
        logit = float(difference @ weight) - (0.0 if label.tie else label.margin + 0.4 * label.strength)
        derivative += (
            label.count * label.weight * (1 / (1 + math.exp(-logit)) - (0.5 if label.tie else 0.9)) * difference
        )
    parts = (base - base.mean(0)).split(32, dim=1)
    scale = torch.cat(
        [(len(parts) * part.square().mean(0).sum()).rsqrt().nan_to_num(posinf=0.0).expand(32) for part in parts]
    )
    torch.testing.assert_close(derivative * scale**2, -0.5 * weight, rtol=1e-3, atol=1e-3 * float(weight.abs().max()))
    assert float(weight.abs().max()) > 0.01
