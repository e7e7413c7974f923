from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polyopt.distribution import Distribution
from polyopt.errors import UserError
from polyopt.models import log_probs as module
from polyopt.models.log_probs import log_probs, log_probs_from_logits

CUTS = [Distribution(0.7, top_k=5), Distribution(1.3, top_p=0.6), Distribution(min_p=0.2)]


def inputs(bias: bool, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=g, dtype=dtype)
    weight = torch.randn(11, 5, generator=g, dtype=dtype)
    extra = torch.randn(11, generator=g, dtype=dtype) if bias else None
    targets = torch.randint(0, 11, (7,), generator=g)
    for tensor in (hidden, weight, extra):
        if tensor is not None:
            tensor.requires_grad_(True)
    return hidden, weight, extra, targets  # type: ignore[return-value]


def slow(hidden, weight, bias, targets, temperature):  # type: ignore[no-untyped-def]
    z = torch.nn.functional.linear(hidden, weight, bias) / temperature
    logp = z.log_softmax(-1)
    return logp[torch.arange(len(targets)), targets], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_values_and_gradients_equal_the_slow_way(
    bias: bool, temperature: float, chunk: int
) -> None:
    hidden, weight, b, targets = inputs(bias)
    leaves = [t for t in (hidden, weight, b) if t is not None]
    g1, g2 = torch.randn(2, 7, dtype=torch.float64).unbind()
    logp, entropy = log_probs(
        hidden, weight, targets, Distribution(temperature), bias=b, entropy=True, chunk=chunk
    )
    expected = slow(hidden, weight, b, targets, temperature)
    torch.testing.assert_close((logp, entropy), expected)
    for pick in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        got = torch.autograd.grad(
            (pick[0] * g1 * logp + pick[1] * g2 * entropy).sum(), leaves, retain_graph=True
        )
        want = torch.autograd.grad(
            (pick[0] * g1 * expected[0] + pick[1] * g2 * expected[1]).sum(),
            leaves,
            retain_graph=True,
        )
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("only", ["logp", "entropy"])
def test_one_unused_output_costs_no_gradient(only: str) -> None:
    hidden, weight, _, targets = inputs(False)
    outputs = log_probs(hidden, weight, targets, Distribution(0.5), entropy=True, chunk=2)
    expected = slow(hidden, weight, None, targets, 0.5)
    k = 0 if only == "logp" else 1
    got = torch.autograd.grad(outputs[k].sum(), (hidden, weight))
    torch.testing.assert_close(got, torch.autograd.grad(expected[k].sum(), (hidden, weight)))


def test_gradcheck_in_float64() -> None:
    hidden, weight, b, targets = inputs(True)

    def call(h: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return log_probs(h, w, targets, Distribution(0.8), bias=c, entropy=True, chunk=3)  # type: ignore[return-value]

    assert torch.autograd.gradcheck(call, (hidden, weight, b))


@pytest.mark.parametrize("cut", CUTS)
def test_gradcheck_of_cut_distributions(cut: Distribution) -> None:
    hidden, weight, b, targets = inputs(True)

    def call(h: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return log_probs(h, w, targets, cut, bias=c, entropy=True, chunk=3)  # type: ignore[return-value]

    assert torch.autograd.gradcheck(call, (hidden, weight, b))


@pytest.mark.parametrize("cut", CUTS)
def test_cut_distributions_keep_the_sampled_token_and_sum_to_one(cut: Distribution) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -9.0]])
    every = torch.arange(7)
    logp, entropy = log_probs_from_logits(logits.expand(7, 7), every, cut, entropy=True)
    assert torch.isfinite(logp).all()
    assert torch.isfinite(entropy).all()
    inside = logp[:1].exp().item()
    kept = (logits / cut.temperature).softmax(-1)[0]
    assert inside > kept[0].item() + 1e-4, "cutting must raise the probability of what remains"


def test_top_k_log_probabilities_by_hand() -> None:
    hidden, weight = torch.eye(3)[:1], torch.tensor([[2.0, 0, 0], [1.0, 0, 0], [0.0, 0, 0]])
    logp, entropy = log_probs(
        hidden.expand(2, 3), weight, torch.tensor([0, 1]), Distribution(top_k=2), entropy=True
    )
    torch.testing.assert_close(logp, torch.tensor([-0.313262, -1.313262]), atol=1e-6, rtol=0)
    torch.testing.assert_close(entropy, torch.full((2,), 0.582203), atol=1e-5, rtol=0)


def test_tempered_log_probabilities_of_case_06() -> None:
    hidden, weight = torch.ones(2, 1), torch.tensor([[2.0], [0.0]])
    targets = torch.tensor([0, 1])
    logp, _ = log_probs(hidden, weight, targets, Distribution(0.5))
    torch.testing.assert_close(logp, torch.tensor([-0.018150, -4.018150]), atol=1e-6, rtol=0)
    logp, _ = log_probs(hidden, weight, targets, Distribution())
    torch.testing.assert_close(logp, torch.tensor([-0.126928, -2.126928]), atol=1e-6, rtol=0)


def test_temperature_zero_is_refused() -> None:
    with pytest.raises(UserError, match="greedy"):
        log_probs(torch.ones(1, 1), torch.ones(2, 1), torch.tensor([0]), Distribution(0.0))


def test_bfloat16_inputs_are_summed_in_float32() -> None:
    hidden, weight, _, targets = inputs(False, torch.float32)
    low_h, low_w = (t.detach().bfloat16().requires_grad_(True) for t in (hidden, weight))
    logp, entropy = log_probs(low_h, low_w, targets, Distribution(), entropy=True)
    expected = slow(low_h.float(), low_w.float(), None, targets, 1.0)
    assert logp.dtype == torch.float32
    torch.testing.assert_close((logp, entropy), expected)
    logp.sum().backward()
    assert low_h.grad is not None
    assert low_h.grad.dtype == torch.bfloat16


def test_no_more_than_a_chunk_of_logits_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, _, targets = inputs(False)
    sizes: list[int] = []
    real = module._logits

    def spy(h: Tensor, *rest: object) -> Tensor:
        sizes.append(len(h))
        return real(h, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_logits", spy)
    for distribution in (Distribution(), CUTS[0]):
        log_probs(hidden, weight, targets, distribution, chunk=3)[0].sum().backward()
    assert max(sizes) == 3
    assert sum(sizes) == 4 * 7


@pytest.mark.parametrize("distribution", [Distribution(), CUTS[0]])
def test_no_tokens_give_empty_results_with_a_graph(distribution: Distribution) -> None:
    hidden, weight, _, targets = inputs(False)
    logp, entropy = log_probs(hidden[:0], weight, targets[:0], distribution, entropy=True)
    assert logp.shape == (0,)
    assert entropy is not None
    assert entropy.shape == (0,)
    logp.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
