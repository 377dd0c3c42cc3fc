"""The inputs of a reward head: pooled states of the last layer or of all layers, against the hidden states of transformers."""

import json

import pytest
import torch
from support import tiny_models

from rlhf_lab.common.model_files import HEAD_CONFIG
from rlhf_lab.errors import ModelError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.features import FeatureSpec, text_features, token_states
from rlhf_lab.models.heads import EnsembleHead, RewardHead
from rlhf_lab.models.reward_model import RewardModel, load_reward_model

ALL = FeatureSpec("mean", 0.25, "all")


@torch.no_grad()
def by_hand(backbone, prompt, response, spec):
    """Embeddings and layers of one text at a time, from the modules of transformers; the mean and the last token by loops."""
    backbone.fused_layers.disable()
    layers = backbone.trunk(input_ids=torch.tensor([[*prompt, *response]]), output_hidden_states=True).hidden_states
    backbone.fused_layers.set_adapter({})
    pooled = []
    for layer in layers if spec.layers == "all" else layers[-1:]:
        states = layer[0, len(prompt) :].double()
        mean = sum(states) / len(states)
        pooled.append(states[-1] if spec.pooling == "last" else 0.75 * mean + 0.25 * states[-1])
    return torch.cat(pooled).float()


@pytest.mark.parametrize("spec", [ALL, FeatureSpec("last", 0.0, "all"), FeatureSpec("mean", 0.25)])
def test_features_equal_those_of_the_modules(folders, spec):
    """Ragged rows in one batch, through fused layers where the model has them; a pass starts at the shortest prompt's end."""
    for folder in folders.values():
        backbone = tiny_models.load(folder)
        prompts, responses = tiny_models.ragged()
        prompts = [[*tiny_models.ids("the old"), *prompt] for prompt in prompts]
        actual = text_features(backbone, make_batch(backbone, prompts, responses), spec)
        assert actual.shape == (len(prompts), spec.size(backbone))
        expected = [by_hand(backbone, *text, spec) for text in zip(prompts, responses, strict=True)]
        torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_the_last_of_all_layers_is_the_last_layer(folders):
    for folder in folders.values():
        backbone = tiny_models.load(folder)
        batch = make_batch(backbone, *tiny_models.ragged())
        every = text_features(backbone, batch, ALL)
        assert every.shape[1] == backbone.state_count * backbone.hidden_size
        last = text_features(backbone, batch, ALL._replace(layers="last"))
        torch.testing.assert_close(every[:, -backbone.hidden_size :], last)


def test_fused_layers_are_pooled_one_at_a_time(llama_folder):
    """A layer is computed only after the states of the previous one were used, and without positions that are not needed."""
    backbone = tiny_models.load(llama_folder)
    computed, layers = [], backbone.fused_layers._layers
    for index, fused in enumerate(layers):

        def counted(*args, index=index, forward=fused.forward_sequence):
            computed.append(index)
            return forward(*args)

        fused.forward_sequence = counted
    computed_counts = []
    for states in backbone.layer_states(torch.tensor([tiny_models.ids("the old cat sat")]), 1):
        computed_counts.append(len(computed))
        assert states.shape == (1, 3, backbone.hidden_size)
    assert computed_counts == list(range(len(layers) + 1))


def model_of(folder, head):
    backbone = tiny_models.load(folder)
    return RewardModel(backbone, tiny_models.adapters_of(backbone, "reward"), "reward", head.requires_grad_(False))


def test_a_score_is_the_product_of_weights_and_features(llama_folder):
    """(w · features + b - shift) / scale, in float64, with the adapter in use."""
    backbone = tiny_models.load(llama_folder)
    head = RewardHead(ALL.size(backbone), ALL, 3)
    head.shift.fill_(0.5)
    head.scale.fill_(0.25)
    model = model_of(llama_folder, head)
    prompts, responses = tiny_models.ragged()
    with torch.no_grad(), model.adapters.using("reward"):
        features = text_features(model.backbone, make_batch(model.backbone, prompts, responses), ALL).double()
    expected = (features @ head.linear.weight[0].double() - 0.5) / 0.25
    assert model.scores(prompts, responses).tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("members", [1, 3])
def test_token_scores_of_all_layers_average_to_the_score(llama_folder, members):
    size = ALL.size(tiny_models.load(llama_folder))
    model = model_of(llama_folder, RewardHead(size, ALL, 3) if members == 1 else EnsembleHead(size, ALL, [3, 4, 5]))
    prompt, response = tiny_models.ids("the cat"), tiny_models.ids("sat very old . <eos>")
    words = model.token_scores(prompt, response)
    assert sum(words) / len(words) == pytest.approx(float(model.scores([prompt], [response])), abs=1e-5)
    assert max(words) - min(words) > 0.01
    batch = make_batch(model.backbone, [prompt], [response])
    with torch.no_grad():
        pooled = ALL.pool(token_states(model.backbone, batch, ALL), batch.mask)
        torch.testing.assert_close(pooled, text_features(model.backbone, batch, ALL))


def test_saved_with_its_layers(llama_folder, tmp_path):
    """A saved head of all layers scores the same; one without the key, from an older version, reads the last layer."""
    model = model_of(llama_folder, RewardHead(ALL.size(tiny_models.load(llama_folder)), ALL, 3))
    model.save(tmp_path)
    again = load_reward_model(model.backbone, Adapters(model.backbone), tmp_path, "judge")
    texts = tiny_models.ragged()
    assert again.head.features == ALL
    assert torch.equal(again.scores(*texts), model.scores(*texts))
    old = model_of(llama_folder, RewardHead(32, FeatureSpec("mean", 0.25), 3))
    old.save(tmp_path / "old")
    metadata = json.loads((tmp_path / "old" / HEAD_CONFIG).read_text())
    assert metadata.pop("layers") == "last"
    (tmp_path / "old" / HEAD_CONFIG).write_text(json.dumps(metadata))
    again = load_reward_model(old.backbone, Adapters(old.backbone), tmp_path / "old", "judge")
    assert torch.equal(again.scores(*texts), old.scores(*texts))


def test_a_head_of_all_layers_does_not_initialise_a_critic():
    """Nor does an ensemble of such heads: a critic reads the last layer alone."""
    for head in (RewardHead(8, ALL, 3), EnsembleHead(8, ALL, [3, 4])):
        with pytest.raises(ModelError, match="train a reward model with layers = last"):
            head.linear_map()
