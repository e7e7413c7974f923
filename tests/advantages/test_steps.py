"""Credit for environment steps: the layout in rows doesn't matter, the definition does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from polyopt.advantages.steps import AnchorStates, EpisodeByStep, SharedSteps, Steps
from polyopt.batch import Batch

EPISODES = [  # rollout: (state, action, reward) of each step
    [(0, 1, 0.0), (1, 1, 0.0), (2, 0, 1.0)],
    [(0, 1, 0.5), (1, 0, 0.0)],
    [(0, 0, 0.0), (3, 1, 0.0), (0, 0, 0.2), (3, 1, 0.0)],
]
TOKENS = 2
"""Tokens of each step."""


def one_row_each() -> Batch:
    """A rollout is a row."""
    width = TOKENS * max(map(len, EPISODES))
    columns: dict[str, list[list[Any]]] = {}
    for episode in EPISODES:
        following = [s for s, _, _ in episode[1:]] + [-5]
        row = {
            "step": [k for k in range(len(episode)) for _ in range(TOKENS)],
            "state": [s for s, _, _ in episode for _ in range(TOKENS)],
            "action": [a for _, a, _ in episode for _ in range(TOKENS)],
            "next_state": [n for n in following for _ in range(TOKENS)],
            "token_rewards": [r / TOKENS for _, _, r in episode for _ in range(TOKENS)],
            "mask": [1] * TOKENS * len(episode),
        }
        for name, values in row.items():
            columns.setdefault(name, []).append(values + [0] * (width - len(values)))
    rewards = torch.tensor(columns.pop("token_rewards"), dtype=torch.float64)
    tensors = {name: torch.tensor(values) for name, values in columns.items()}
    tensors["token_rewards"] = rewards
    return Batch.of(rewards=torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64), **tensors)


def one_row_a_step() -> Batch:
    """Every step is a row of its rollout, in no particular order."""
    batch = one_row_each()
    pairs = [(i, k) for i, episode in enumerate(EPISODES) for k in range(len(episode))]
    pairs = [pairs[i] for i in (4, 0, 7, 2, 8, 1, 3, 6, 5)]
    rows = torch.tensor([i for i, _ in pairs])
    start = torch.tensor([k * TOKENS for _, k in pairs])[:, None]
    spots = start + torch.arange(TOKENS)
    columns = {name: column[rows].gather(1, spots) for name, column in batch.columns.items()}
    return Batch.of(
        mask=torch.ones(len(rows), TOKENS),
        group=torch.zeros(len(rows)),
        rollout=rows,
        rewards=batch.rewards[rows],
        **columns,
    )


def by_step(batch: Batch, credit: Tensor) -> dict[tuple[int, int], float]:
    """Credit of each (rollout, step)."""
    return {
        (int(batch.rollout[row]), int(batch["step"][row, t])): round(float(credit[row, t]), 9)
        for row, t in batch.mask.nonzero().tolist()
    }


@pytest.mark.parametrize("part", [AnchorStates(), SharedSteps(), SharedSteps(2), EpisodeByStep()])
def test_rows_of_whole_rollouts_and_rows_of_single_steps_get_the_same_credit(part: Any) -> None:
    whole, single = one_row_each(), one_row_a_step()
    found = []
    for batch in (whole, single):
        start = batch.rewards[:, None] * batch.mask
        found.append(by_step(batch, part(start, batch)))
    assert found[0] == found[1]
    assert len(set(found[0].values())) > 2


def test_returns_discount_the_rewards_that_follow() -> None:
    batch = one_row_each()
    returns = AnchorStates(gamma=0.5).returns(batch, Steps.of(batch))
    expected = [0.25, 0.5, 1.0, 0.5, 0.0, 0.05, 0.1, 0.2, 0.0]
    torch.testing.assert_close(returns, torch.tensor(expected, dtype=torch.float64))


def test_an_anchor_compares_the_returns_from_one_state_only() -> None:
    batch = one_row_each()
    credit = by_step(batch, AnchorStates(gamma=1.0).step_credit(batch))
    from_state_0 = [1.0, 0.5, 0.2, 0.2]
    assert credit[0, 0] == round(1.0 - sum(from_state_0) / 4, 9)
    assert credit[0, 2] == 0  # nobody else was in state 2


def test_a_longer_history_shares_fewer_steps() -> None:
    batch = one_row_each()
    steps = Steps.of(batch)
    edges = [len(SharedSteps(h).edges(batch, steps).unique()) for h in range(3)]
    assert edges == [7, 8, 8]  # the third rollout's second lap differs once history counts


def test_outcome_alone_is_discounted_back_from_the_last_step() -> None:
    batch = one_row_each().replace(token_rewards=None)
    returns = AnchorStates(gamma=0.5).returns(batch, Steps.of(batch))
    torch.testing.assert_close(returns[:3], torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64))
