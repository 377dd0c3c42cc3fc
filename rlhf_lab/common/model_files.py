"""Names of the files in the folder of an adapter (PEFT's format) or of a reward model."""

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILE = "adapter_model.safetensors"
HEAD_CONFIG = "reward_head.json"
HEAD_FILE = "reward_head.safetensors"
