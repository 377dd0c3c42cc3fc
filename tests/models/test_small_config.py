"""Small configurations keep one layer of every kind, and the proportions of the widths."""

import pytest
from transformers import (
    CONFIG_MAPPING,
    Gemma3nTextConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from rlhf_lab.models.small_config import small_configs


def smallest(config):
    return next(small_configs(config))


def test_widths_by_hand():
    """Qwen2.5-0.5B's: 14 heads of 64 share 2 key heads. 4 heads remain, so the width is 4 · 64, and 4864 · 4 / 14 is odd."""
    config = CONFIG_MAPPING["qwen2"](
        hidden_size=896, intermediate_size=4864, num_attention_heads=14, num_key_value_heads=2, num_hidden_layers=24,
        vocab_size=151936, pad_token_id=151643, eos_token_id=[151645, 151643], sliding_window=32768,
        use_sliding_window=False,
    )  # fmt: skip
    small = smallest(config)
    assert (small.hidden_size, small.num_attention_heads, small.num_key_value_heads) == (256, 4, 2)
    assert (small.intermediate_size, small.num_hidden_layers) == (64, 2)
    assert (small.vocab_size, small.pad_token_id, small.eos_token_id) == (72, 71, 0)
    assert config.hidden_size == 896  # unchanged
    sizes = [(c.hidden_size, c.intermediate_size, c.num_hidden_layers) for c in small_configs(config)]
    assert sizes == [(256, 64, 2), (256, 4864, 2), (896, 4864, 2)]


def test_heads_without_shared_keys():
    small = smallest(LlamaConfig(hidden_size=512, num_attention_heads=8, num_key_value_heads=8, num_hidden_layers=6))
    assert (small.num_attention_heads, small.num_key_value_heads, small.hidden_size) == (4, 4, 256)
    small = smallest(LlamaConfig(hidden_size=512, num_attention_heads=8, num_key_value_heads=1, num_hidden_layers=6))
    assert (small.num_attention_heads, small.num_key_value_heads) == (4, 1)


def test_every_kind_of_layer_is_kept():
    """LFM2's third layer is the first with attention; Jamba's fifth is, and its second the first with experts."""
    lfm2 = Lfm2Config(num_hidden_layers=6, layer_types=["conv", "conv", "full_attention"] * 2)
    assert smallest(lfm2).layer_types == ["conv", "conv", "full_attention"]
    assert smallest(JambaConfig()).num_hidden_layers == 5
    rope = [1, 1, 1, 0] * 9
    assert smallest(SmolLM3Config(no_rope_layers=rope)).no_rope_layers == [1, 1, 1, 0]
    moe = Qwen3MoeConfig(num_hidden_layers=12, mlp_only_layers=[0, 1, 2, 9])
    assert (smallest(moe).num_hidden_layers, smallest(moe).mlp_only_layers) == (4, [0, 1, 2])


def test_lists_of_layers_and_counts_from_the_end_are_cut_together():
    """Gemma 3n: 35 layers, every fifth without a window; the first 10 have sparse activations, the last 15 borrow keys."""
    small = smallest(Gemma3nTextConfig())
    count = small.num_hidden_layers
    assert count < 35
    assert len(small.layer_types) == len(small.intermediate_size) == len(small.activation_sparsity_pattern) == count
    assert small.num_kv_shared_layers == 15 * count // 35
    kinds = {
        (kind, sparsity > 0, i >= count - small.num_kv_shared_layers)
        for i, (kind, sparsity) in enumerate(zip(small.layer_types, small.activation_sparsity_pattern, strict=True))
    }
    assert {kind[0] for kind in kinds if kind[2]} == {"sliding_attention", "full_attention"}
    assert {sparse for _, sparse, _ in kinds} == {True, False}


def test_windows_are_shorter_than_the_texts_of_a_trial():
    assert smallest(CONFIG_MAPPING["gemma2"]()).sliding_window == 4
    assert smallest(CONFIG_MAPPING["falcon_h1"]()).mamba_chunk_size == 8


@pytest.mark.parametrize("broken", [{"num_experts_per_tok": None}, {"moe_intermediate_size": -1}])
def test_a_configuration_of_which_no_model_can_be_made(broken):
    config = Qwen3MoeConfig()
    for name, value in broken.items():
        config.__dict__[name] = value
    assert list(small_configs(config)) == []
