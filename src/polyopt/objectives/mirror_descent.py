"""Mirror descent over whole action distributions, for places where all of them are at hand.

With sampled tokens it is `ImportanceWeighted` plus `StepDivergence(ReverseKL(), 1 / step_size)`;
these are the exact forms over states [M] and actions [V]. MDPO, arXiv 2005.09814.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from polyopt.divergences import exact_kl

Logits = Float[Tensor, "M V"]


def mirror_descent_loss(
    logits: Logits,
    logits_old: Logits,
    actions: Int[Tensor, " M"],
    advantages: Float[Tensor, " M"],
    step_size: float,
) -> Float[Tensor, ""]:
    """mean_s [-rho A + KL(pi || old) / step_size], rho the ratio of the action taken.

    KL is new against old, TRPO's the other way round. Several steps are meant to be taken on one
    batch: at the first the divergence has no gradient.
    """
    taken = actions[:, None]
    move = logits.log_softmax(-1).gather(1, taken) - logits_old.log_softmax(-1).gather(1, taken)
    gain = move[:, 0].exp() * advantages
    return (exact_kl(logits, logits_old) / step_size - gain).mean()


def soft_mirror_descent_loss(
    logits: Logits, logits_old: Logits, values: Logits, kl: float, entropy: float
) -> Float[Tensor, ""]:
    """mean_s E_pi[kl log pi + (entropy - kl) log old - Q(s, a)]: off-policy, at sampled states.

    entropy = 0 is plain mirror descent, entropy = kl is soft actor-critic.
    """
    log_pi, log_old = logits.log_softmax(-1), logits_old.log_softmax(-1)
    cost = kl * log_pi + (entropy - kl) * log_old - values
    return (log_pi.exp() * cost).sum(-1).mean()
