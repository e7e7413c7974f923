"""Dense rewards: a reward for each token."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from polyopt.batch import Batch


def last_token(mask: Bool[Tensor, "N T"]) -> Bool[Tensor, "N T"]:
    """1 at the last masked token of each row; nowhere in a row without any."""
    after = mask.flip(1).cumsum(1).flip(1)
    return mask & (after == 1)


def token_rewards(batch: Batch) -> Float[Tensor, "N T"]:
    """The batch's `token_rewards`, or else each rollout's reward on its last sampled token."""
    if "token_rewards" in batch:
        return batch["token_rewards"]
    return batch.rewards[:, None] * last_token(batch.mask).to(batch.rewards.dtype)
