"""What a run logs of its rollouts, token by token."""

from __future__ import annotations

import math

from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task

from polyopt.ideas import build
from polyopt.rollout_log import logged_rollouts
from polyopt.trainer import Trainer


def test_every_number_of_a_token_is_logged() -> None:
    trainer = Trainer(tiny_policy(), tiny_task(), build("grpo+ktae", TINY_NUMBERS), steps=3)
    result = trainer.step()
    rows = logged_rollouts(result, trainer.policy, 1, groups=2)
    assert len({row["group"] for row in rows}) == 2
    for row in rows:
        for name in ("advantages", "logp", "entropy", "ratio", "loss_weight"):
            assert len(row[name]) == len(row["tokens"]), name
        sampled = [i for i, one in enumerate(row["mask"]) if one]
        assert all(row["ratio"][i] == 1 for i in sampled)
        assert all(
            math.copysign(1, row["loss_weight"][i]) == math.copysign(1, row["advantages"][i])
            for i in sampled
            if row["advantages"][i]
        )


def test_small_weights_keep_their_digits() -> None:
    trainer = Trainer(tiny_policy(), tiny_task(), build("grpo", TINY_NUMBERS), steps=3)
    result = trainer.step()
    assert result.trained is not None
    small = result.trained["loss_weight"] * 1e-7
    object.__setattr__(result, "trained", result.trained.replace(loss_weight=small))
    weights = [
        w for row in logged_rollouts(result, trainer.policy, 1, 9) for w in row["loss_weight"]
    ]
    assert 0 < max(abs(w) for w in weights) < 1e-6
