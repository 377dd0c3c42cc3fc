"""Tiny random models of common families, saved as folders: see tests/models/test_architectures.py."""

from support import tiny_models
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

KINDS = ("llama", "gpt2", "qwen2", "qwen3", "gemma2", "gemma3", "granite", "cohere")
#: Families whose layers are fused.
WHOLE = ("llama", "qwen2", "mistral")
SHARED = {
    "vocab_size": len(tiny_models.WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 48, "initializer_range": 0.3,
    "attention_dropout": 0.5, "bos_token_id": tiny_models.BOS, "eos_token_id": tiny_models.EOS,
}  # fmt: skip
GEMMA = SHARED | {
    "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4, "pad_token_id": tiny_models.PAD,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
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


def save(kind, folder, **sizes):
    """A model of the family: Gemma has a sliding window of 4 tokens in every other layer, Qwen2's pad token is its EOS.

    The soft caps and scales are strong enough to show in a model of this size.
    """
    if kind == "llama":
        return tiny_models.save_llama(folder, **sizes)
    if kind == "gpt2":
        return tiny_models.save_gpt2(folder, **sizes)
    model, config, words = {
        "qwen2": (Qwen2ForCausalLM, lambda: Qwen2Config(**SHARED | {"vocab_size": 128} | sizes), qwen_words()),
        "mistral": (MistralForCausalLM, lambda: MistralConfig(
            **SHARED | {"sliding_window": None, "head_dim": 8, "pad_token_id": tiny_models.PAD} | sizes
        ), tiny_models.tokenizer()),
        "lfm2": (Lfm2ForCausalLM, lambda: Lfm2Config(
            **SHARED | {"layer_types": ["conv", "full_attention"], "pad_token_id": tiny_models.PAD} | sizes
        ), tiny_models.tokenizer()),
        "mixtral": (MixtralForCausalLM, lambda: MixtralConfig(
            **SHARED | {"num_local_experts": 3, "num_experts_per_tok": 2, "pad_token_id": tiny_models.PAD} | sizes
        ), tiny_models.tokenizer()),
        "qwen3": (Qwen3ForCausalLM, lambda: Qwen3Config(
            **SHARED | {"vocab_size": 128, "head_dim": 8} | sizes
        ), qwen_words()),
        "gemma3": (Gemma3ForCausalLM, lambda: Gemma3TextConfig(**GEMMA | sizes), tiny_models.tokenizer()),
        "gemma2": (Gemma2ForCausalLM, lambda: Gemma2Config(
            **GEMMA | {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 0.5} | sizes
        ), tiny_models.tokenizer()),
        "granite": (GraniteForCausalLM, lambda: GraniteConfig(
            **SHARED | {"logits_scaling": 3.0, "embedding_multiplier": 1.5, "attention_multiplier": 0.4,
                        "residual_multiplier": 0.7, "pad_token_id": tiny_models.PAD} | sizes
        ), tiny_models.tokenizer()),
        "cohere": (CohereForCausalLM, lambda: CohereConfig(
            **SHARED | {"logit_scale": 0.25, "use_qk_norm": True, "pad_token_id": tiny_models.PAD} | sizes
        ), tiny_models.tokenizer()),
    }[kind]  # fmt: skip
    return tiny_models._save(folder, model, config(), words, seed=0)
