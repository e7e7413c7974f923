"""Derived randomness: every draw has its own seed, a hash of what the draw is for.

No generator is shared between stages, so adding an idea doesn't reshuffle the others, and two
recipes compared with one run seed see the same prompts and the same sampling noise.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


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


def random_state() -> dict[str, Any]:
    """State of the global generators, which a user's reward function may draw from."""
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore what `random_state` gave."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
