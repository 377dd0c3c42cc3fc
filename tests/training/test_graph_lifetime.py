"""Tensors saved for a gradient are freed before the next forward pass; otherwise they fragment the heap (glibc)."""

import weakref

import pytest
import torch
from support import tiny_models
from support.preference_data import comparisons, reference_of

from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.training.reward.trainer import train_reward
from rlhf_lab.training.sft import SFTConfig, SFTRow, encode_examples, train_sft


class Marker:
    """Stored in the metadata of a graph; it lives as long as the graph."""


@pytest.fixture
def graphs(monkeypatch):
    """The number of earlier graphs alive at each forward pass that creates one."""
    hidden, layer_states, markers, actual = Backbone.hidden, Backbone.layer_states, [], []

    def alive():
        return sum(marker() is not None for marker in markers)

    def watch(states, earlier):
        if states.grad_fn is not None:
            marker = Marker()
            states.grad_fn.metadata["sign"] = marker
            markers.append(weakref.ref(marker))
            actual.append(earlier)
        return states

    def watched_hidden(backbone, input_ids, start_pos=0):
        earlier = alive()
        return watch(hidden(backbone, input_ids, start_pos), earlier)

    def watched_layers(backbone, input_ids, start_pos=0):
        """A pass of all layers is one graph: that of its last states."""
        earlier = alive()
        *first, last = layer_states(backbone, input_ids, start_pos)
        return iter([*first, watch(last, earlier)])

    monkeypatch.setattr(Backbone, "hidden", watched_hidden)
    monkeypatch.setattr(Backbone, "layer_states", watched_layers)
    return actual


def policy(folder):
    tiny_models.trainer(folder, micro_batch=2, minibatches=2, epochs=2).run_step()


def pretraining_text(folder):
    trainer = tiny_models.learner(folder, "rloo", ptx_coef=0.3, ptx_batch=5, micro_batch=2)
    state = trainer.state
    state.ptx.batch_backward((0, 0, 0), state.config, state.distributed, state.on_progress)


def supervised(folder):
    backbone = tiny_models.load(folder)
    pairs = [("the cat", "sat . !"), ("a dog", "saw the moon ."), ("the king", "sat .")]
    examples = encode_examples(backbone, [SFTRow(0, *pair) for pair in pairs])
    train_sft(backbone, Adapters(backbone), examples, SFTConfig(lora_r=4, epochs=2, micro_batch=1))


def reward(folder):
    backbone, config = tiny_models.load(folder), RewardConfig(epochs=2, batch_size=2, folds=0)
    train_reward(Adapters(backbone), comparisons(8), reference_of(backbone), config)


@pytest.mark.parametrize("train", [policy, pretraining_text, supervised, reward])
def test_a_graph_is_freed_before_the_next_forward_pass(train, graphs, llama_folder):
    train(llama_folder)
    assert len(graphs) >= 3
    assert not any(graphs)


def test_a_retained_graph_is_detected(graphs, llama_folder):
    backbone = tiny_models.load(llama_folder)
    adapters = Adapters(backbone)
    adapters.add("kept", r=2, alpha=4, seed=0, trainable=True)
    ids = torch.tensor([tiny_models.ids("the cat")])
    with adapters.using("kept"):
        loss = backbone.hidden(ids).sum()
        backbone.hidden(ids)
    loss.backward()
    assert graphs == [0, 1]
