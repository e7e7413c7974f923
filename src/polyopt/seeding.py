"""Derived randomness: every draw has its own seed, a hash of what the draw is for.

No generator is shared between stages, so adding an idea doesn't reshuffle the others, and two
recipes compared with one run seed see the same prompts and the same sampling noise.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(*key: int | str) -> int:
    """A 63-bit seed from a key such as (run seed, step, stage, prompt, rollout).

    Parts are hashed with their types and lengths, so ("a", 12) and ("a1", 2) differ, and adding
    indices can't collide as `seed + prompt + sample` does.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*key: int | str) -> np.random.Generator:
    """A counter-based NumPy generator seeded by `derive_seed(*key)`."""
    return np.random.Generator(np.random.Philox(derive_seed(*key)))
