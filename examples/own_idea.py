"""An idea of your own, to be named in an expression.

    polyopt show grpo+examples/own_idea.py:curious
    polyopt train grpo+examples/own_idea.py:curious --set curious.weight=0.3 --model embedded \
        --task reasoning_gym:chain_sum
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import polyopt
from polyopt import Batch, Recipe


@polyopt.part("advantages.shaping", name="curious", needs={"entropy"})
@dataclass(frozen=True)
class Curious:
    """Credit grows with the entropy of the token: A_t (1 + weight H_t)."""

    weight: float = 0.1

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        """Advantages [N, T]."""
        return advantages * (1 + self.weight * batch["entropy"])


@polyopt.idea(title="Credit where the policy is undecided")
def curious(recipe: Recipe) -> Recipe:
    """Tokens at which the policy is undecided get more of the credit."""
    return recipe.append("advantages.shaping", Curious())
