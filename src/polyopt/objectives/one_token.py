"""One-token rollouts: supervised tokens as one-step policy-gradient problems.

At each position of a supervised sequence K tokens are drawn from the policy itself; a draw that
hits the supervised token is worth 1, any other `miss`. OTR, arXiv 2509.26313.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import drift
from polyopt.parts import part


@dataclass(frozen=True)
class OneTokenRollout:
    """L = -(1/K) sum_k R_k log pi(a_k), R_k = 1 if a_k is the supervised token, else `miss`.

    Attributes:
        miss: Worth of another token than the supervised one (from memory of the paper).
    """

    miss: float = -0.1

    def rewards(
        self, drawn: Int[Tensor, "*B K"], supervised: Int[Tensor, "*B"]
    ) -> Float[Tensor, "*B K"]:
        """R_k of each drawn token."""
        hit = drawn == supervised[..., None]
        return torch.where(hit, 1.0, self.miss).to(torch.get_default_dtype())

    def __call__(
        self,
        logits: Float[Tensor, "*B V"],
        drawn: Int[Tensor, "*B K"],
        supervised: Int[Tensor, "*B"],
    ) -> Float[Tensor, "*B"]:
        """Loss at each position, from the logits at temperature 1."""
        logp = logits.log_softmax(-1).gather(-1, drawn)
        return -(self.rewards(drawn, supervised).to(logp.dtype) * logp).mean(-1)

    def expected(
        self,
        logits: Float[Tensor, "*B V"],
        supervised: Int[Tensor, "*B"],
        temperature: float = 1.0,
    ) -> Float[Tensor, "*B"]:
        """The loss for K to infinity, tokens drawn at a temperature: -sum_a q(a) R(a) log pi(a)."""
        drawn_from = (logits.detach() / temperature).softmax(-1)
        everything = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
        worth = self.rewards(everything, supervised).to(logits.dtype)
        return -(drawn_from * worth * logits.log_softmax(-1)).sum(-1)


@part("objective.surrogate", needs={"advantages"})
@dataclass(frozen=True)
class ExpectedOneTokenRollout:
    """L = -(1 - miss) A sg(pi(y)) log pi(y): one-token rollouts at temperature 1 in expectation.

    For K to infinity the gradient of `OneTokenRollout` at temperature 1 is this one's: the score
    function sums to 0, so what misses cost is what the hit gains. No token need be drawn. It
    is the loss of dynamic fine-tuning (DFT) up to its factor. A is the worth of a token as
    supervision: 1 for demonstrations, the reward where the policy's own verified answers are used.

    OTR, arXiv 2509.26313.

    Attributes:
        miss: Worth of another token than the supervised one.
    """

    miss: float = -0.1

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]."""
        weight = (1 - self.miss) * evaluation.logp.detach().clamp(max=0.0).exp()
        return TokenLoss(-weight * batch["advantages"] * evaluation.logp, drift(log_ratio))
