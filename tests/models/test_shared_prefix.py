from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.models.loading import load_policy
from polyopt.models.packing import rows_of, shared_micro_batches
from polyopt.models.policy import Policy
from polyopt.models.shared_prefix import ATTENTION, pack
from polyopt.models.value_head import ValueHead

ON = Distribution(0.9)
Make = Callable[..., Policy]
Batches = Callable[..., Batch]


def results(policy: Policy, batch: Batch, *, packed: bool) -> tuple[Tensor, list[Tensor]]:
    """Log-probabilities, and the gradient of a loss that weighs every token differently."""
    policy._scorer.share_prefix = packed
    logp = policy.evaluate(batch, ON).logp
    weights = torch.randn(logp.shape, generator=torch.Generator().manual_seed(3))
    loss = (logp * weights.to(logp.dtype)).sum()
    return logp.detach(), list(torch.autograd.grad(loss, policy.trainable_parameters()))


def close(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * b.abs().max().item())


def assert_same(policy: Policy, batch: Batch, tolerance: float = 1e-5) -> None:
    assert policy._scorer.packed.exact
    (plain, slow), (packed, quick) = (results(policy, batch, packed=p) for p in (False, True))
    close([packed, *quick], [plain, *slow], tolerance)


def shapes(batch: Batch) -> list[Batch]:
    """Groups that share a prompt, rows that share nothing, holes, rows without trained tokens."""
    rows = torch.arange(len(batch))
    alone = batch.select(rows[::2])
    off = batch.replace(mask=batch.mask & (rows != 1)[:, None] & (rows != 4)[:, None])
    first_only = batch.replace(mask=torch.arange(batch.width).expand_as(batch.mask) == 0)
    short = batch.select(rows[2:3])
    return [batch, alone, off, first_only, short]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("case", range(5))
def test_packed_forward_equals_the_plain_one(
    kind: str, case: int, model_of: Any, policy_of: Make, batch_of: Batches
) -> None:
    policy = policy_of(model=model_of(kind).double())
    # Llama and Qwen compute norms and rotations in float32 whatever the weights are.
    tolerance = 1e-9 if kind == "gpt2" else 1e-5
    assert_same(policy, shapes(batch_of(rows=10, width=14))[case], tolerance)


def test_equal_prompts_of_different_lengths_of_padding_are_one(batch_of: Batches) -> None:
    packed = pack(rows_of(batch_of(rows=10)))
    batch = batch_of(rows=10)
    prompts = batch["prompt_lengths"][::2].sum()
    used = torch.where(batch.mask, torch.arange(batch.width), 0).amax(1)
    assert packed.input_ids.shape[1] == int(prompts + used.sum())


def test_gradient_checkpointing_recomputes_the_packed_attention(
    model_of: Any, policy_of: Make, batch_of: Batches
) -> None:
    plain = policy_of(model=model_of("llama").double())
    saving = policy_of(model=model_of("llama").double(), gradient_checkpointing=True)
    _, expected = results(plain, batch_of(), packed=False)
    _, got = results(saving, batch_of(), packed=True)
    close(got, expected, 1e-5)


def test_lora_and_value_heads_see_the_same(
    model_of: Any, tokenizer_of: Any, batch_of: Batches
) -> None:
    policy = load_policy(model_of("qwen2").double(), tokenizer=tokenizer_of(), lora=2)
    policy.model.double()
    assert_same(policy, batch_of())
    policy.value_head = ValueHead(32).double()
    torch.nn.init.normal_(policy.value_head.linear.weight)
    found = []
    for packed in (False, True):
        policy._scorer.share_prefix = packed
        found.append(policy.evaluate(batch_of(), ON, ("values", "entropy")))
    plain, shared = found
    close([shared.values, shared.entropy], [plain.values, plain.entropy], 1e-5)


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_other_attention_takes_the_plain_route(
    kind: str, policy_of: Make, batch_of: Batches, slowly: Any
) -> None:
    policy = policy_of(kind)
    usual = policy.model.config._attn_implementation
    assert not policy._scorer.packed.exact
    assert policy.model.config._attn_implementation == usual
    got = policy.evaluate(batch_of(), Distribution()).logp
    torch.testing.assert_close(got, slowly(policy.model, batch_of()), rtol=1e-5, atol=2e-5)


def test_a_window_is_respected_where_rows_outgrow_it(
    model_of: Any, policy_of: Make, batch_of: Batches, slowly: Any
) -> None:
    policy = policy_of(model=model_of("mistral", sliding_window=8))
    assert policy._scorer.packs(8)
    assert not policy._scorer.packs(9)
    got = policy.evaluate(batch_of(), Distribution()).logp
    torch.testing.assert_close(got, slowly(policy.model, batch_of()), rtol=1e-5, atol=2e-5)


def test_attention_is_as_before_also_after_an_error(policy_of: Make, batch_of: Batches) -> None:
    policy, batch = policy_of(), batch_of()
    policy.evaluate(batch, ON)
    bad = batch.replace(tokens=torch.full_like(batch["tokens"], 10_000))
    with pytest.raises(IndexError):
        policy.evaluate(bad, ON)
    assert policy.model.config._attn_implementation not in (None, ATTENTION)


@pytest.mark.parametrize("budget", [1, 20, 45, 1000])
def test_shared_micro_batches_hold_each_row_once_within_the_budget(
    batch_of: Batches, budget: int
) -> None:
    batch = batch_of(rows=12)
    split = shared_micro_batches(batch, budget)
    assert sorted(torch.cat(split).tolist()) == list(range(12))
    for rows in split:
        prompts = {int(batch.group[i]): int(batch["prompt_lengths"][i]) for i in rows}
        tokens = sum(prompts.values()) + int(batch["lengths"][rows].sum())
        assert len(rows) == 1 or tokens <= budget
    if budget == 1000:
        assert len(split) == 1
    visits = torch.cat([batch.group[rows] for rows in split])
    assert int((visits[1:] != visits[:-1]).sum()) == 5, "rows of a prompt stay together"


def test_a_policy_splits_by_the_route_it_takes(policy_of: Make, batch_of: Batches) -> None:
    batch = batch_of(rows=12)
    shared, plain = policy_of(), policy_of(shared_prefix=False)
    assert len(shared.micro_batches(batch, 60)) <= len(plain.micro_batches(batch, 60))
    whole = plain.evaluate(batch, ON).logp
    for policy in (shared, plain):
        parts = policy.evaluate_all(batch, ON, (), 25).logp
        torch.testing.assert_close(parts, whole.detach(), rtol=1e-5, atol=1e-5)
