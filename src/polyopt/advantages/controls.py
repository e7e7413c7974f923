"""Credit of control rollouts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.advantages.statistics import spread
from polyopt.batch import Batch
from polyopt.parts import part


@part("advantages.shaping", needs={"control"})
def controls_by_reward(advantages: Float[Tensor, "N T"], batch: Batch) -> Float[Tensor, "N T"]:
    """A <- the reward itself on controls (`control` > 0): right ones push, wrong ones do nothing.

    AEPO, arXiv 2510.08141 (rewards 0 and 1).
    """
    control = (batch["control"] > 0)[:, None]
    return torch.where(control, spread(batch.rewards, batch.mask), advantages)
