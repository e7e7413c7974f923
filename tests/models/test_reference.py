from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.models.loading import load_policy
from polyopt.models.policy import Policy

ON = Distribution()
Batches = Callable[..., Batch]
Loads = Callable[..., Policy]


def nudge(policy: Policy, by: float = 0.05) -> None:
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(by * torch.ones_like(parameter))
    policy.version += 1


@pytest.fixture
def loads(model_of: Any, tokenizer_of: Any, tmp_path: Any) -> Loads:
    """Policies by kind of reference: full, fresh (LoRA) or loaded (a trained adapter)."""

    def load(kind: str) -> Policy:
        model, tokenizer = model_of("llama"), tokenizer_of()
        if kind == "full":
            return load_policy(model, tokenizer=tokenizer)
        fresh = load_policy(model, tokenizer=tokenizer, lora=4)
        if kind == "fresh":
            return fresh
        nudge(fresh)
        fresh.save(tmp_path, merged=False)
        adapter = tmp_path / "adapter"
        return load_policy(model_of("llama"), tokenizer=tokenizer, adapter=adapter)

    return load


@pytest.mark.parametrize("kind", ["full", "fresh", "loaded"])
def test_reference_is_the_starting_policy_before_and_after_updates(
    kind: str, loads: Loads, batch_of: Batches
) -> None:
    policy, batch = loads(kind), batch_of()
    start = policy.evaluate_all(batch, ON).logp
    policy.prepare_reference()
    reference = policy.reference_log_probs(batch, ON)
    torch.testing.assert_close(reference, start, rtol=1e-6, atol=1e-6)
    nudge(policy)
    moved = policy.evaluate_all(batch, ON).logp
    assert (moved - start).abs().max() > 1e-2
    assert torch.equal(
        policy.reference_log_probs(batch, ON, 20), policy.reference_log_probs(batch, ON, 20)
    )
    torch.testing.assert_close(policy.reference_log_probs(batch, ON), start, rtol=1e-5, atol=1e-5)
    assert torch.equal(policy.evaluate_all(batch, ON).logp, moved)


def test_the_reference_of_a_trained_adapter_is_not_the_bare_base(
    loads: Loads, batch_of: Batches
) -> None:
    policy, batch = loads("loaded"), batch_of()
    policy.prepare_reference()
    with policy.model.disable_adapter():
        base = policy.evaluate_all(batch, ON).logp
    assert (policy.reference_log_probs(batch, ON) - base).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["full", "fresh", "loaded"])
def test_the_trained_policy_is_active_again_when_the_pass_raises(
    kind: str, loads: Loads, batch_of: Batches
) -> None:
    policy, batch = loads(kind), batch_of()
    policy.prepare_reference()
    nudge(policy)
    moved = policy.evaluate_all(batch, ON).logp
    trainable = [p.requires_grad for p in policy.model.parameters()]
    bad = batch.replace(tokens=torch.full_like(batch["tokens"], 10_000))
    with pytest.raises(IndexError):
        policy.reference_log_probs(bad, ON)
    assert torch.equal(policy.evaluate_all(batch, ON).logp, moved)
    assert [p.requires_grad for p in policy.model.parameters()] == trainable


@pytest.mark.parametrize("kind", ["full", "fresh", "loaded"])
def test_the_reference_gets_no_gradient_and_no_update(
    kind: str, loads: Loads, batch_of: Batches
) -> None:
    policy, batch = loads(kind), batch_of()
    policy.prepare_reference()
    start = policy.reference_log_probs(batch, ON)
    optimizer = torch.optim.SGD(policy.trainable_parameters(), lr=0.01)
    reference = policy.reference_log_probs(batch, ON)
    assert not reference.requires_grad
    (policy.evaluate(batch, ON).logp - reference).pow(2).sum().add(
        policy.evaluate(batch, ON).logp.sum()
    ).backward()
    optimizer.step()
    torch.testing.assert_close(policy.reference_log_probs(batch, ON), start, rtol=1e-5, atol=1e-5)
    if kind != "full":
        assert all("lora" in n for n, p in policy.model.named_parameters() if p.requires_grad)
        assert all(p.grad is not None for p in policy.trainable_parameters())


@pytest.mark.parametrize("kind", ["full", "fresh", "loaded"])
def test_preparing_again_moves_the_reference(kind: str, loads: Loads, batch_of: Batches) -> None:
    policy, batch = loads(kind), batch_of()
    policy.prepare_reference()
    nudge(policy)
    policy.prepare_reference()
    moved = policy.evaluate_all(batch, ON).logp
    nudge(policy)
    torch.testing.assert_close(policy.reference_log_probs(batch, ON), moved, rtol=1e-5, atol=1e-5)


def test_a_reference_can_not_be_made_after_training_began(loads: Loads, batch_of: Batches) -> None:
    policy = loads("full")
    policy.version = 3
    with pytest.raises(RuntimeError, match="before the first optimizer step"):
        policy.reference_log_probs(batch_of(), ON)


def test_the_frozen_copy_shares_nothing_and_carries_no_gradients(
    loads: Loads, batch_of: Batches
) -> None:
    policy = loads("full")
    policy.evaluate(batch_of(), ON).logp.sum().backward()
    policy.prepare_reference()
    frozen: Any = policy._reference
    assert all(p.grad is None and not p.requires_grad for p in frozen.scorer.model.parameters())


def test_a_fresh_adapter_needs_no_copy(loads: Loads) -> None:
    policy = loads("fresh")
    policy.prepare_reference()
    assert type(policy._reference).__name__ == "AdapterDisabled"
