"""Replay by softmax of the reward."""

from __future__ import annotations

import numpy as np
import torch

from polyopt.batch import Batch, Prompt
from polyopt.replay.softmax import RewardSoftmaxReplay


def visit(texts: list[str], rewards: list[float], first: int = 0) -> Batch:
    n = len(texts)
    return Batch.of(
        rewards=torch.tensor(rewards),
        rollout=torch.arange(first, first + n),
        group=torch.full((n,), 4),
        tokens=torch.arange(n)[:, None],
        prompts=[Prompt("p", "")] * n,
        texts=texts,
    )


def test_replayed_rollouts_join_their_prompts_group_under_new_ids() -> None:
    buffer = RewardSoftmaxReplay(per_prompt=2, recent=0.0)
    buffer.store(visit(["a", "b", "c"], [1.0, 0.0, 0.5]))
    mixed = buffer.mix(visit(["d"], [0.0], first=9), np.random.default_rng(0))
    assert len(mixed) == 3
    assert mixed.group.tolist() == [4, 4, 4]
    assert mixed.rollout.tolist() == [9, 10, 11]
    assert len(set(mixed.texts)) == 3


def test_of_equal_completions_the_newest_stays_and_the_oldest_leave() -> None:
    buffer = RewardSoftmaxReplay(capacity=3)
    buffer.store(visit(["a", "b"], [0.0, 0.0]))
    buffer.store(visit(["a", "c", "d"], [1.0, 0.0, 0.0]))
    assert [(e["text"], e["reward"]) for e in buffer.pool["p"]] == [
        ("a", 1.0),
        ("c", 0.0),
        ("d", 0.0),
    ]


def test_recent_draws_come_from_the_last_visit() -> None:
    buffer = RewardSoftmaxReplay(per_prompt=5, recent=1.0)
    buffer.store(visit(["a", "b"], [1.0, 1.0]))
    buffer.store(visit(["c"], [0.0]))
    mixed = buffer.mix(visit(["d"], [0.0]), np.random.default_rng(0))
    assert mixed.texts == ("d", "c")


def test_high_rewards_are_drawn_more_often() -> None:
    buffer = RewardSoftmaxReplay(per_prompt=1, recent=0.0, inverse_temperature=3.0)
    buffer.store(visit(["bad", "good"], [0.0, 1.0]))
    draws = np.random.default_rng(0)
    picked = [buffer.mix(visit(["d"], [0.0]), draws).texts[1] for _ in range(200)]
    assert abs(picked.count("good") / 200 - 1 / (1 + np.exp(-3.0))) < 0.05
    assert np.isfinite(buffer.probabilities([1e6, 0.0])).all()


def test_unscored_rollouts_are_not_kept_and_the_pool_is_saved() -> None:
    buffer = RewardSoftmaxReplay()
    buffer.store(visit(["a", "b"], [float("nan"), 1.0]))
    again = RewardSoftmaxReplay()
    again.load_state_dict(buffer.state_dict())
    assert [entry["text"] for entry in again.pool["p"]] == ["b"]
    assert again.visit == 1
