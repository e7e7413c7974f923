"""The laws that every part of an objective satisfies (DESIGN, section 6)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.objectives.aggregation import token_mean
from polyopt.objectives.objective import Objective
from polyopt.objectives.protocol import Evaluation
from polyopt.objectives.surrogates import ClippedSurrogate, PolicyGradient
from polyopt.parts import PartInfo
from tests.laws.batches import names, parts_in, ragged_batch, widened

SLOTS = ("ratio", "surrogate", "trust_region", "kl", "entropy", "value", "aggregation")
PARTS = parts_in(*(f"objective.{slot}" for slot in SLOTS))
every_part = pytest.mark.parametrize("info", PARTS, ids=names(PARTS))


def objective_with(info: PartInfo) -> Objective:
    """A clipped objective with one part in its slot."""
    part: Any = info.example()
    slot = info.slot.removeprefix("objective.")
    value = (part,) if slot == "trust_region" else part
    return Objective(**{"surrogate": ClippedSurrogate(), slot: value})


def loss_and_grads(
    objective: Objective, batch: Batch, shift: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss at logp_old + shift, with gradients for every field of the evaluation."""
    leaves = {
        "logp": (batch["logp_old"] + shift).requires_grad_(),
        "entropy": batch["entropy"].clone().requires_grad_(),
        "values": (batch["values"] + 0.1).requires_grad_(),
        "uniform_value": (batch["uniform_value_old"] + 0.2).requires_grad_(),
    }
    loss = objective(Evaluation(**leaves), batch).loss
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return loss.detach(), {n: torch.zeros_like(v) if g is None else g for (n, v), g in pairs}


def shift_for(batch: Batch, scale: float = 0.3) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    return torch.randn(batch.mask.shape, generator=draw, dtype=torch.float64) * scale


@every_part
def test_padding_changes_neither_loss_nor_gradient(info: PartInfo) -> None:
    batch, objective = ragged_batch(), objective_with(info)
    wide, shift = widened(batch), shift_for(batch)
    more = torch.cat([shift, torch.ones(len(batch), wide.width - batch.width)], dim=1)
    loss, grads = loss_and_grads(objective, batch, shift)
    wide_loss, wide_grads = loss_and_grads(objective, wide, more)
    torch.testing.assert_close(wide_loss, loss)
    for name, grad in grads.items():
        torch.testing.assert_close(wide_grads[name][:, : batch.width], grad)
        assert (wide_grads[name][:, batch.width :] == 0).all()


@every_part
@pytest.mark.parametrize("pieces", [2, 5, 12])
def test_cutting_into_micro_batches_changes_neither_loss_nor_gradient(
    info: PartInfo, pieces: int
) -> None:
    objective = objective_with(info)
    batch = objective.prepare(ragged_batch())
    if objective.coupled:
        pytest.skip("coupled parts are never cut: the learner differentiates at the boundary")
    shift = shift_for(batch)
    loss, grads = loss_and_grads(objective, batch, shift)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(1))
    total, gathered = torch.zeros_like(loss), {n: torch.zeros_like(g) for n, g in grads.items()}
    for rows in order.tensor_split(pieces):
        part_loss, part_grads = loss_and_grads(objective, batch.select(rows), shift[rows])
        total += part_loss
        for name, grad in part_grads.items():
            gathered[name][rows] = grad
    torch.testing.assert_close(total, loss)
    for name, grad in grads.items():
        torch.testing.assert_close(gathered[name], grad)


@every_part
def test_garbage_at_masked_tokens_reaches_no_loss_and_no_gradient(info: PartInfo) -> None:
    batch, objective = ragged_batch(), objective_with(info)
    shift = shift_for(batch)
    loss, _ = loss_and_grads(objective, batch, shift)
    outside = ~batch.mask
    dirty = {
        name: column.masked_fill(outside, float("nan"))
        for name, column in batch.columns.items()
        if column.is_floating_point() and column.shape == batch.mask.shape
    }
    dirty["logp_ref"] = batch["logp_ref"].masked_fill(outside, float("-inf"))
    dirty_loss, dirty_grads = loss_and_grads(objective, batch.replace(**dirty), shift)
    torch.testing.assert_close(dirty_loss, loss)
    for grad in dirty_grads.values():
        assert grad.isfinite().all()
        assert (grad[outside] == 0).all()


@every_part
@pytest.mark.parametrize("size", [40.0, -40.0, 120.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_log_ratios_give_finite_losses_and_gradients(
    info: PartInfo, size: float, dtype: torch.dtype
) -> None:
    batch, objective = ragged_batch(dtype=dtype), objective_with(info)
    for sign in (1.0, -1.0):
        signed = batch.replace(advantages=sign * batch["advantages"].abs())
        loss, grads = loss_and_grads(objective, signed, torch.full_like(batch["logp_old"], size))
        assert loss.isfinite()
        assert all(grad.isfinite().all() for grad in grads.values())


@every_part
def test_empty_completions_give_finite_losses(info: PartInfo) -> None:
    batch, objective = ragged_batch(), objective_with(info)
    nothing = batch.replace(mask=torch.zeros_like(batch.mask))
    loss, grads = loss_and_grads(objective, nothing, shift_for(batch))
    assert loss == 0
    assert all((grad == 0).all() for grad in grads.values())


@pytest.mark.parametrize(
    "info",
    [info for info in PARTS if "reinforce" in info.claims],
    ids=lambda info: info.name,
)
def test_on_policy_gradient_is_reinforce_where_the_method_claims_it(info: PartInfo) -> None:
    batch = ragged_batch()
    still = torch.zeros_like(batch["logp_old"])
    plain = Objective(surrogate=PolicyGradient(), aggregation=token_mean)
    _, expected = loss_and_grads(plain, batch, still)
    _, found = loss_and_grads(objective_with(info), batch, still)
    torch.testing.assert_close(found["logp"], expected["logp"])


@every_part
def test_masked_out_rollouts_leave_the_denominator(info: PartInfo) -> None:
    """A rollout whose tokens don't train changes the loss no more than its absence does."""
    batch, objective = ragged_batch(), objective_with(info)
    if info.name == "constant-length":
        pytest.skip("constant length counts every rollout, by definition")
    out = torch.zeros(len(batch), dtype=torch.bool)
    out[3] = True
    masked = batch.replace(loss_mask=batch.mask & ~out[:, None])
    shift = shift_for(batch)
    with_loss, _ = loss_and_grads(objective, masked, shift)
    without_loss, _ = loss_and_grads(objective, batch.select(~out), shift[~out])
    torch.testing.assert_close(with_loss, without_loss)
