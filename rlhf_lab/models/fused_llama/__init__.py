"""Decoder layers of Llama, Mistral and Qwen2 computed as one function each. Other packages use only the names exported
here.
"""

from rlhf_lab.models.fused_llama.attention import register_attention
from rlhf_lab.models.fused_llama.patch import MIN_SHARED_PREFIX, FusedLayers, patch_model

__all__ = ["MIN_SHARED_PREFIX", "FusedLayers", "patch_model", "register_attention"]
