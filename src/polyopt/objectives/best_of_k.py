"""max@k off-policy: credit for the best of k under the current policy, from old rollouts.

Every max_I r is weighted with rho(I), the product of the sequence ratios of the rollouts in I.
"The Best of N Worlds: Aligning Reinforcement Learning with Best-of-N Sampling via max@k
Optimisation", arXiv 2510.23393.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polyopt.advantages.best_of_k import Ranked
from polyopt.advantages.trajectories import Trajectories
from polyopt.batch import Batch
from polyopt.groups import group_size, group_z_score
from polyopt.objectives.protocol import Evaluation, TokenLoss, Tokens
from polyopt.objectives.surrogates import bounded_ratio, clipped_loss
from polyopt.parts import part

PerRollout = Float[Tensor, " R"]
Index = Int[Tensor, " R"]


def first_order(rewards: PerRollout, ratio: PerRollout, index: Index, k: int) -> PerRollout:
    """q_i with rho(I) to first order in delta = ratio - 1, float64. With ranks ascending from 1:

    C(n, k) q_i = w_ii r_i + sum_{j > i} w_ij r_j,
    w_ii = C(i-1, k-1) (1 + delta_i) + C(i-2, k-2) S_i,
    w_ij = C(j-2, k-2) (1 + delta_i + delta_j) + C(j-3, k-3) (S_j - delta_i),
    S_j the sum of delta over lower ranks.
    """
    ranked = Ranked.of(rewards, index, k)
    delta, r = ratio.double() - 1, ranked.rewards
    lower = ranked.before(delta)
    one, two, three = (ranked.weight(less) for less in (1, 2, 3))
    own = r * (one * (1 + delta) + two * lower)
    shared = ranked.after(r * (two * (1 + delta) + three * lower))
    return own + shared + delta * ranked.after(r * (two - three))


def exact(rewards: PerRollout, ratio: PerRollout, index: Index, k: int) -> PerRollout:
    """q_i with the whole products, float64. With r ascending and e_m the elementary symmetric
    polynomials of the ratios of lower ranks,

    C(n, k) q_i = ratio_i (r_i e_{k-1}(<i) + sum_{j > i} r_j ratio_j e_{k-2}(<j, without i)).

    The polynomials are recursive in j, hence one loop over the places of the largest group.
    """
    ranked = Ranked.of(rewards, index, k)
    place = (index, (ranked.rank - 1).long())
    width = int(ranked.n.max()) if len(index) else 0
    empty = ranked.rewards.new_zeros(group_size(index), width)
    r, rho = (empty.index_put(place, values) for values in (ranked.rewards, ratio.double()))
    size = empty.new_ones(group_size(index)).index_put((index,), ranked.k).long()[:, None]
    sums = empty.new_zeros(group_size(index), width, k + 1)
    sums[..., 0] = 1
    whole, total = sums[:, :1].clone(), empty.clone()
    for j in range(width):
        total[:, j] += r[:, j] * rho[:, j] * whole[:, 0].gather(1, size - 1)[:, 0]
        if k > 1:
            fewer = sums.gather(2, (size - 2).clamp(min=0)[:, None].expand(-1, width, 1))[..., 0]
            pairs = rho[:, :j] * fewer[:, :j] * (r[:, j] * rho[:, j])[:, None]
            total[:, :j] += pairs.masked_fill(size < 2, 0.0)
        sums[:, torch.arange(width) != j] = _times(sums, rho[:, j])[:, torch.arange(width) != j]
        whole = _times(whole, rho[:, j])
    log_choose = torch.lgamma(ranked.n + 1) - torch.lgamma(ranked.k + 1)
    log_choose = log_choose - torch.lgamma(ranked.n - ranked.k + 1)
    return total[place] / log_choose.exp()


def _times(sums: Tensor, factor: Tensor) -> Tensor:
    """Elementary symmetric polynomials, [G, ..., m], after one more variable joined."""
    shifted = torch.nn.functional.pad(sums[..., :-1], (1, 0))
    return sums + factor[:, None, None] * shifted


@part("objective.surrogate", needs={"logp_old"})
@dataclass(frozen=True)
class OffPolicyBestOfK:
    """Clipped surrogate whose credit is the z-score of max@k's q_i under the current policy.

    q_i is taken to first order in the sequence ratios, which are constants, and computed over the
    rollouts of the optimizer batch. On-policy it is `BestOfKZScore`. arXiv 2510.23393 (which
    baseline its off-policy runs use isn't known to us).

    Attributes:
        k: Size of the sets of which the best counts.
        clip_low: The token ratio is held above 1 - clip_low.
        clip_high: The token ratio is held below 1 + clip_high.
        eps: Added to the deviation.
    """

    k: int = 4
    clip_low: float = 0.2
    clip_high: float = 0.2
    eps: float = 1e-6
    coupled = True

    def __call__(self, log_ratio: Tokens, evaluation: Evaluation, batch: Batch) -> TokenLoss:
        """Token losses [N, T]; logs the share of tokens clipped on each side."""
        credit = self.credit(evaluation.logp.detach(), batch)
        return clipped_loss(log_ratio, credit, 1 - self.clip_low, 1 + self.clip_high)

    def credit(self, logp: Tokens, batch: Batch) -> Tokens:
        """Credit of each trained token at some log-probabilities, [N, T]."""
        rollouts = Trajectories.of(batch)
        rewards = rollouts.pick(batch.rewards)
        ratio = bounded_ratio(rollouts.sum(logp - batch["logp_old"]))
        q = self.estimate(rewards, ratio, rollouts.index)
        score = group_z_score(q, rollouts.index, self.eps)
        return rollouts.spread(score.to(logp.dtype))

    def estimate(self, rewards: PerRollout, ratio: PerRollout, index: Index) -> PerRollout:
        """q_i, given the sequence ratios."""
        return first_order(rewards, ratio, index, self.k)


@part("objective.surrogate", needs={"logp_old"})
@dataclass(frozen=True)
class ExactOffPolicyBestOfK(OffPolicyBestOfK):
    """The same with the whole products of ratios, whose variance grows with k. arXiv 2510.23393."""

    def estimate(self, rewards: PerRollout, ratio: PerRollout, index: Index) -> PerRollout:
        """q_i, given the sequence ratios."""
        return exact(rewards, ratio, index, self.k)
