"""Derived seeds: every random draw is a function of a seed and its purpose; there is no shared generator state.

A run that resumes at step 17 draws exactly what the uninterrupted run drew at step 17, whatever was sampled in between.
"""

import hashlib


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed from `seed` and the purpose, e.g. derive(0, "rollout", 17)."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
