"""Tiny random models of common families, saved as folders: see tests/models/test_architectures.py."""

import pytest
import torch
from support import tiny_models
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Qwen2Tokenizer

KINDS = (
    "llama", "gpt2", "qwen2", "qwen3", "gemma2", "gemma3", "granite", "cohere", "mistral", "mixtral", "phi3", "olmo2",
    "smollm3", "lfm2", "mpt", "qwen3_moe", "falcon_h1", "gemma3n",
)  # fmt: skip
#: Families without another mechanism than the cheaper ones above: their tests are marked `slow`.
LIKE_OTHERS = ("mistral", "mixtral", "phi3", "olmo2", "smollm3", "falcon_h1")
PARAMETERS = [pytest.param(kind, marks=pytest.mark.slow) if kind in LIKE_OTHERS else kind for kind in KINDS]
#: Families that are refused because transformers computes other numbers with a cache, or accepts no cache of the sampler.
REFUSED = ("minimax", "mamba")
#: Families of which transformers 5 has no sequence classifier.
WITHOUT_CLASSIFIER = ("granite", "cohere", "lfm2", "falcon_h1", "gemma3n")
#: Families that compute some of their layers in float32 whatever their dtype, or not in float64 at all.
SINGLE_PRECISION = ("gemma2", "mixtral", "qwen3_moe", "mpt", "falcon_h1")
#: PEFT does not recognise its own settings for adapters of experts.
IGNORED_WARNING = "ignore:The following (rank|alpha)_pattern keys did not match any targeted module"
#: Families whose layers are fused.
WHOLE = ("llama", "qwen2", "mistral")
SHARED = {
    "vocab_size": len(tiny_models.WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48, "initializer_range": 0.3,
    "attention_dropout": 0.5, "bos_token_id": tiny_models.BOS, "eos_token_id": tiny_models.EOS,
}  # fmt: skip
GEMMA = {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
#: How Qwen's byte-level tokenizer writes ASCII: unchanged, a blank as Ġ. No merges: one token per byte, after the
#: special tokens.
LETTERS = {("Ġ" if code == 32 else chr(code)): 5 + code - 32 for code in range(32, 127)}


def bytes_of(text):
    return [LETTERS["Ġ" if letter == " " else letter] for letter in text]


def qwen_words():
    """Transformers loads the tokenizer of every Qwen folder as byte-level BPE, whatever was saved."""
    special = {word: i for i, word in enumerate(tiny_models.WORDS[:5])}
    return Qwen2Tokenizer(
        vocab=special | LETTERS, merges=[], unk_token="<unk>", bos_token="<bos>", eos_token="<eos>", pad_token="<eos>"
    )


#: Sizes that layers in C support, with one key-value head per head, and one per two heads.
TAKEN = {
    "llama": {"intermediate_size": 64, "num_key_value_heads": 2},
    "qwen2": {"intermediate_size": 96, "num_key_value_heads": 4},
    "mistral": {"intermediate_size": 64, "head_dim": 16},
}

#: Other shapes of these families: windows shorter than the texts, vocabulary heads tied to the embeddings or not.
VARIANTS = {
    "qwen2 with windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "mistral with windows": ("mistral", {"sliding_window": 4}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False}),
    "gemma2, untied": ("gemma2", {"tie_word_embeddings": False}),
    "granite, tied": ("granite", {"tie_word_embeddings": True}),
    "lfm2, convolutions and attention": ("lfm2", {}),
    "cohere, untied": ("cohere", {"tie_word_embeddings": False}),
}  # fmt: skip


#: Configuration of each family beyond SHARED. The soft caps and scales are strong enough to show in a model of this size.
CONFIGS = {
    "qwen2": {"vocab_size": 128},
    "qwen3": {"vocab_size": 128, "head_dim": 8},
    "mistral": {"sliding_window": None, "head_dim": 8},
    "mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2},
    "gemma2": GEMMA | {"query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 0.5},
    "gemma3": GEMMA | {"query_pre_attn_scalar": 8},
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 1.5, "attention_multiplier": 0.4, "residual_multiplier": 0.7},
    "cohere": {"logit_scale": 0.25, "use_qk_norm": True},
    "phi3": {"original_max_position_embeddings": 48},
    "olmo2": {},
    "smollm3": {"no_rope_layers": [1, 0]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "qwen3_moe": {
        "vocab_size": 128, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "mlp_only_layers": [0],
    },
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 8},
    "minimax": {
        "layer_types": ["linear_attention", "full_attention"], "head_dim": 8, "num_local_experts": 3, "block_size": 4,
    },
    "gemma3n": GEMMA | {
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 48, "hidden_size_per_layer_input": 8, "laurel_rank": 4, "altup_num_inputs": 2,
        "final_logit_softcapping": 2.0, "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    },
    "mamba": {},
}  # fmt: skip
#: Types of transformers that have other names than the families here.
MODEL_TYPES = {"gemma3": "gemma3_text", "gemma3n": "gemma3n_text"}


def exact(kind):
    """The dtype of exact comparisons, and their absolute tolerance in nats."""
    return (torch.float32, 1e-5) if kind in SINGLE_PRECISION else (torch.float64, 1e-8)


def config(kind, **sizes):
    """The configuration of the family's tiny model."""
    values = SHARED | {"pad_token_id": tiny_models.PAD} | CONFIGS[kind] | sizes
    if kind == "mpt":
        values["max_seq_len"] = values.pop("max_position_embeddings")
    return CONFIG_MAPPING[MODEL_TYPES.get(kind, kind)](**values)


def save(kind, folder, **sizes):
    """A model of the family: Gemma has a sliding window of 4 tokens in every other layer, Qwen's pad token is its EOS."""
    if kind == "llama":
        return tiny_models.save_llama(folder, **sizes)
    if kind == "gpt2":
        return tiny_models.save_gpt2(folder, **sizes)
    words = qwen_words() if kind.startswith("qwen") else tiny_models.tokenizer()
    return tiny_models._save(folder, AutoModelForCausalLM.from_config, config(kind, **sizes), words, seed=0)
