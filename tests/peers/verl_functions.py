"""verl's own advantage and loss functions, called on a sample.

Importing `verl.trainer.ppo.core_algos` imports the package, whose data protocol imports ray. No
function here uses it, so a placeholder stands in for ray during the import where it isn't
installed. Nothing else is replaced.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from polyopt.batch import Batch
from tests.peers.accumulation import LossAndGradient, differentiated
from tests.peers.random_batches import Sample, pieces, rewards_at_end

NO_DUAL_CLIP = 1e9
"""verl's `vanilla` always has a dual clip; at this ratio it never acts."""


@contextlib.contextmanager
def standing_in(*names: str) -> Iterator[None]:
    """While active, a placeholder can be imported for each of these packages that is missing."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    for name in missing:
        placeholder: Any = MagicMock(name=name)
        placeholder.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = placeholder
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def import_core_algos() -> ModuleType:
    """verl's module of maths; skips the tests where verl isn't installed."""
    if importlib.util.find_spec("verl") is None:
        pytest.skip("verl isn't installed: `make peers`", allow_module_level=True)
    with standing_in("ray"):
        return importlib.import_module("verl.trainer.ppo.core_algos")


core_algos = import_core_algos()


def actor_config(**numbers: Any) -> Any:
    """verl's actor configuration; numbers of its `policy_loss` are recognised by name."""
    from verl.workers.config import ActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    nested = {n: numbers.pop(n) for n in list(numbers) if hasattr(PolicyLossConfig(), n)}
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(**nested),
        **numbers,
    )


def advantages(name: str, batch: Batch, **options: Any) -> Tensor:
    """Advantages [N, T] by verl's estimator of that name."""
    dense = batch["token_rewards"] if "token_rewards" in batch else rewards_at_end(batch)
    given: dict[str, Any] = {
        "token_level_rewards": dense.clone(),
        "response_mask": batch.mask.long(),
        "index": batch.group.numpy(),
    }
    if name == "reinforce_plus_plus":
        del given["index"]
    found: Tensor = core_algos.get_adv_estimator_fn(name)(**given, **options)[0]
    return found


def loss(
    name: str, made: Sample, mode: str, kl: tuple[float, str] | None = None, **numbers: Any
) -> LossAndGradient:
    """Loss of the whole batch by verl's policy loss of that name.

    Args:
        name: In verl's registry.
        made: With a column `advantages`.
        mode: verl's name of the aggregation.
        kl: Coefficient and kind of a KL loss, added as verl's actor adds it.
        numbers: Of the actor's configuration.
    """
    logp = made.logp.clone().requires_grad_()
    return differentiated(_loss(name, made.batch, logp, mode, kl, **numbers), logp)


def accumulated_loss(
    name: str, made: Sample, mode: str, count: int, **numbers: Any
) -> LossAndGradient:
    """The same by verl's own accumulation: it is told the totals of the whole batch."""
    logp, batch = made.logp.clone().requires_grad_(), made.batch
    totals = {"batch_num_tokens": int(batch.mask.sum()), "global_batch_size": len(batch)}
    total = torch.zeros((), dtype=torch.float64)
    for rows in pieces(len(batch), count):
        part = batch.select(torch.arange(len(batch))[rows])
        total = total + _loss(name, part, logp[rows], mode, None, totals, **numbers)
    return differentiated(total, logp)


def _loss(
    name: str,
    batch: Batch,
    logp: Tensor,
    mode: str,
    kl: tuple[float, str] | None = None,
    totals: dict[str, int] | None = None,
    **numbers: Any,
) -> Tensor:
    config = actor_config(**numbers)
    config.global_batch_info.update(totals or {})
    if config.loss_scale_factor is not None:
        config.global_batch_info["loss_scale_factor"] = config.loss_scale_factor
    mask = batch.mask.long()
    policy_loss = core_algos.get_policy_loss_fn(name)
    found: Tensor = policy_loss(batch["logp_old"], logp, batch["advantages"], mask, mode, config)[0]
    if kl is not None:
        coefficient, kind = kl
        penalty = core_algos.kl_penalty(logp, batch["logp_ref"], kind)
        found = found + coefficient * core_algos.agg_loss(penalty, mask, mode)
    return found
