"""Random batches of ragged rollouts in float64: what both sides of a comparison are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.recipe import Recipe
from polyopt.rewards.dense import last_token

WIDTH = 12
"""Longest completion in tokens."""
EQUAL = (4, 4, 4, 4, 4, 4, 4)
"""Seven groups of four: 28 rollouts can be cut into 1, 2 and 7 equal micro-batches."""
UNEQUAL = (2, 3, 4, 5, 6, 3, 5)
"""28 rollouts in groups of different sizes."""
SEEDS = range(6)


@dataclasses.dataclass(frozen=True)
class Sample:
    """A batch, and the log-probabilities at which its loss is taken.

    Attributes:
        batch: Rewards, groups, mask, `logp_old`, `logp_ref`, `lengths`,
            `max_tokens`.
        logp: Current log-probabilities, [N, T].
    """

    batch: Batch
    logp: Tensor

    def credited(self, recipe: Recipe) -> Sample:
        """The sample after the recipe's reward shaping and with its advantages."""
        batch = self.batch
        for shape in recipe.rewards.shaping:
            batch = shape(batch)
        return dataclasses.replace(self, batch=recipe.advantages(batch))

    def changed(self, **columns: Tensor) -> Sample:
        """The sample with other columns in its batch."""
        return dataclasses.replace(self, batch=self.batch.replace(**columns))

    def on_policy(self) -> Sample:
        """The sample at which the current policy is the old one."""
        return dataclasses.replace(self, logp=self.batch["logp_old"].clone())


def sample(
    seed: int, sizes: Sequence[int] = UNEQUAL, *, holes: bool = True, empty: int = 0
) -> Sample:
    """A random sample; even seeds have real-valued rewards, odd ones 0 and 1.

    Steps from `logp_old` differ by orders of magnitude between rows, so that token and sequence
    ratios fall on all sides of every clip range.

    Args:
        seed: Of all that is random.
        sizes: Rollouts of each group.
        holes: Whether some tokens inside completions aren't the policy's own (tool output).
        empty: How many rollouts have no token that trains.
    """
    draw = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    normal = torch.randn(n, WIDTH, generator=draw, dtype=torch.float64)
    logp_old = -0.1 - 3 * torch.rand(n, WIDTH, generator=draw, dtype=torch.float64)
    step = 10 ** (-4 + 3.7 * torch.rand(n, 1, generator=draw, dtype=torch.float64))
    mask, lengths = _mask(n, draw, holes)
    mask[n - empty :] = False
    rewards = torch.randn(n, generator=draw, dtype=torch.float64)
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    batch = Batch.of(
        mask=mask,
        group=group,
        rewards=rewards if seed % 2 == 0 else (rewards > 0).double(),
        logp_old=logp_old,
        logp_ref=logp_old + 0.5 * torch.randn(n, WIDTH, generator=draw, dtype=torch.float64),
        lengths=lengths,
        max_tokens=torch.full((n,), WIDTH),
    )
    return Sample(batch, logp_old + step * normal)


def _mask(n: int, draw: torch.Generator, holes: bool) -> tuple[Tensor, Tensor]:
    """Own tokens [N, T] and completion lengths [N]; the first token is always the policy's own."""
    lengths = torch.randint(1, WIDTH + 1, (n,), generator=draw)
    inside = torch.arange(WIDTH) < lengths[:, None]
    own = torch.rand(n, WIDTH, generator=draw) > (0.2 if holes else 0.0)
    own[:, 0] = True
    return inside & own, lengths


def rewards_at_end(batch: Batch) -> Tensor:
    """Dense rewards with each rollout's reward on its last own token, [N, T]."""
    return batch.rewards[:, None] * last_token(batch.mask)


def pieces(n: int, count: int) -> list[slice]:
    """`count` runs of equally many rows."""
    assert n % count == 0
    return [slice(i, i + n // count) for i in range(0, n, n // count)]
