"""The value estimate of a policy."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class ValueHead(nn.Module):
    """A linear value estimate of a hidden state; begins at 0, so it changes nothing at first."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Float[Tensor, "M H"]) -> Float[Tensor, " M"]:
        """Values [M], in the unit of the rewards."""
        weight = self.linear.weight
        with torch.autocast(hidden.device.type, enabled=False):
            values: Tensor = self.linear(hidden.to(weight.dtype))[:, 0]
        return values
