"""The projection onto an order, and the orders that a tree of prefixes gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polyopt.advantages.order_projection import OrderConstraints
from polyopt.advantages.staged_prefixes import StagedProjection
from polyopt.batch import Batch


def pooled(values: list[float]) -> list[float]:
    """Isotonic regression by pooling neighbours."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [value for value, count in blocks for _ in range(count)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_on_a_chain_it_is_isotonic_regression(seed: int, margin: float) -> None:
    target = torch.randn(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = OrderConstraints(torch.arange(8), torch.arange(1, 9), margin)
    slope = margin * torch.arange(9).double()
    expected = torch.tensor(pooled((target - slope).tolist()), dtype=torch.float64) + slope
    torch.testing.assert_close(order.project(target), expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_no_feasible_point_is_closer(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    target = torch.randn(7, generator=draw, dtype=torch.float64)
    target -= target.mean()
    pairs = torch.tensor([[0, 1], [0, 2], [3, 2], [4, 5], [5, 6], [3, 6]])
    order = OrderConstraints(pairs[:, 0], pairs[:, 1], 0.1)
    a = order.project(target)
    assert (order.violation(a) < 1e-8).all()
    torch.testing.assert_close(a.sum(), target.sum(), atol=1e-9, rtol=0)
    for _ in range(50):
        b = order.project(torch.randn(7, generator=draw, dtype=torch.float64))
        b = b - (b.sum() - a.sum()) / 7
        assert float((target - a) @ (b - a)) < 1e-7


def test_a_group_that_is_too_long_ends_on_the_ball_and_the_others_stay() -> None:
    target = torch.tensor([6.0, -6.0, 0.5, -0.5], dtype=torch.float64)
    index = torch.tensor([0, 0, 1, 1])
    order = OrderConstraints(torch.tensor([3]), torch.tensor([2]), 0.1)
    a = order.project_into_ball(target, index)
    torch.testing.assert_close(a[:2].square().sum(), torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(a[2:], target[2:])


def test_contradictory_orders_end_instead_of_running_forever() -> None:
    order = OrderConstraints(torch.tensor([0, 1]), torch.tensor([1, 0]), 0.5, rounds=200)
    a = order.project(torch.zeros(2, dtype=torch.float64))
    assert a.isfinite().all()
    assert (order.violation(a) > 0).any()


def test_a_failure_ranks_below_the_success_that_its_prefix_leads_to() -> None:
    path = torch.tensor([[0, -1], [0, 1], [0, 2], [0, 2]])
    rewards = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    batch = Batch.of(mask=torch.ones(4, 1), rewards=rewards, path=path)

    def pairs(part: StagedProjection) -> set[tuple[int, int]]:
        low, high = part.ordered_pairs(batch)
        return set(zip(low.tolist(), high.tolist(), strict=True))

    assert pairs(StagedProjection()) == {(0, 1)}
    advantages: Tensor = StagedProjection(2.0)(torch.zeros(4, 1), batch)
    assert float(advantages[1, 0] - advantages[0, 0]) >= 2 - 1e-6


def test_failing_from_a_prefix_that_others_solved_is_worse_than_from_a_hopeless_sibling() -> None:
    path = torch.tensor([[0, 1], [0, 1], [0, 2]])
    rewards = torch.tensor([0.0, 1.0, 0.0])
    batch = Batch.of(mask=torch.ones(3, 1), rewards=rewards, path=path)
    low, high = StagedProjection().ordered_pairs(batch)
    assert (low.tolist(), high.tolist()) == ([0], [2])
