"""The algorithms by their properties, written by hand: what the records of `common.algorithms` must say."""

ONLINE_ALGORITHMS = ("ppo", "ppo_penalty", "trpo", "a2c", "reinforce", "rloo", "grpo")
OFFLINE_ALGORITHMS = ("dpo", "sft", "rejection")
VALUE_ALGORITHMS = ("ppo", "ppo_penalty", "trpo", "a2c", "reinforce")
SINGLE_PASS_ALGORITHMS = ("a2c", "reinforce", "rloo")
GROUP_ALGORITHMS = ("rloo", "grpo")
CLIPPED_ALGORITHMS = ("ppo", "grpo")
FIRST_ORDER_ALGORITHMS = ("ppo", "ppo_penalty", "a2c", "reinforce", "rloo", "grpo")
REPEATED_UPDATE_ALGORITHMS = ("ppo", "ppo_penalty", "grpo")
LABEL_ALGORITHMS = ("dpo", "sft")
BETA_ALGORITHMS = (*ONLINE_ALGORITHMS, "dpo")
