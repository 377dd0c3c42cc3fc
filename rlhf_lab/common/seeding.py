"""Derived seeds: every random draw is a function of a seed and its purpose; there is no shared generator state.

A run that is resumed at step 17 draws exactly the same numbers as the uninterrupted run at step 17, whatever was sampled before.
"""

import hashlib
import secrets


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed derived from `seed` and the purpose, such as derive_seed(0, "rollout", 17)."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def secret_seed() -> int:
    """A random seed that nobody can guess or try out. Whoever knows the seed and has the model can compute the texts, and so
    their age and their model. 52 bits: a browser reads it without rounding."""
    return secrets.randbits(52)
