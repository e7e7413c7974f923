"""Activations kept while sampling: the same gradients, and no forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.engines.local import LocalEngine
from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.models.policy import Policy
from polyopt.native.library import native

pytestmark = pytest.mark.skipif(native() is None, reason="no C compiler")
ON = Distribution(0.8)
PROMPTS = (tuple(range(20, 27)), tuple(range(50, 90)), (3, 1))
PER_PROMPT, NEW = 4, 11
Make = Callable[..., Policy]


def requests_of(stop: Sequence[int] = range(5, 30)) -> list[SampleRequest]:
    """Four completions for each prompt, of which some stop early."""
    return [
        SampleRequest(
            prompt, seed=100 * i + j, max_tokens=NEW, distribution=ON, stop_ids=frozenset(stop)
        )
        for i, prompt in enumerate(PROMPTS)
        for j in range(PER_PROMPT)
    ]


def batch_of(samples: Sequence[Sample]) -> Batch:
    """The samples as a batch in which every token trains."""
    prompts = [torch.tensor(sample.request.prompt) for sample in samples]
    tokens = [torch.tensor(sample.request.prefix + sample.tokens) for sample in samples]
    lengths = torch.tensor([len(each) for each in tokens])
    pad = torch.nn.utils.rnn.pad_sequence
    return Batch.of(
        mask=torch.arange(int(lengths.max())) < lengths[:, None],
        group=torch.arange(len(samples)) // PER_PROMPT,
        tokens=pad(tokens, batch_first=True),
        lengths=lengths,
        prompt_tokens=pad(prompts, batch_first=True),
        prompt_lengths=torch.tensor([len(each) for each in prompts]),
    )


@pytest.fixture(params=["llama", "qwen3"])
def policy(request: pytest.FixtureRequest, policy_of: Make, model_of: Any) -> Policy:
    """With and without norms of heads, whose size fills no vector."""
    if request.param == "llama":
        return policy_of("llama")
    sizes = model_of("llama").config.to_dict() | {"head_dim": 6}
    names = set(Qwen3Config().to_dict()) & set(sizes) - {"model_type"}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**{name: sizes[name] for name in names}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, float(parameter.dim() == 1), 0.3)
    return policy_of(model=model.eval())


def sampled(
    policy: Policy,
    most: int = 1 << 14,
    requests: Sequence[SampleRequest] | None = None,
    **options: Any,
) -> list[Sample]:
    """Sample while recording."""
    engine = LocalEngine(policy.model, policy.decode, **options)
    engine.sync(policy)
    with policy.recording(most):
        return engine.sample(requests or requests_of())


class Forwards:
    """Tokens that went through the written-out model."""

    def __init__(self, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        assert policy.recorder is not None
        assert policy._scorer.packed.exact
        self.tokens = 0
        run = policy.recorder.stack.forward

        def counted(tokens: Any, *rest: Any) -> Any:
            self.tokens += len(tokens.ids)
            return run(tokens, *rest)

        monkeypatch.setattr(policy.recorder.stack, "forward", counted)


def gradients(policy: Policy, batch: Batch, micro_tokens: int = 1 << 14) -> list[Tensor]:
    """Of a loss that weighs every token differently, micro-batch by micro-batch."""
    weights = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(3))
    policy.model.zero_grad()
    for rows in policy.micro_batches(batch, micro_tokens):
        part = batch.select(rows)
        (policy.evaluate(part, ON).logp * weights[rows]).sum().backward()
    return [p.grad.clone() for p in policy.trainable_parameters() if p.grad is not None]


def expected(policy: Policy, batch: Batch) -> list[Tensor]:
    """The same without a record."""
    recorder, policy.recorder = policy.recorder, None
    found = gradients(policy, batch)
    policy.recorder = recorder
    return found


def close(got: list[Tensor], slow: list[Tensor]) -> None:
    most = max(tensor.abs().max().item() for tensor in slow)
    assert len(got) == len(slow)
    for a, b in zip(got, slow, strict=True):
        bound = 2e-5 * b.abs().max().item() + 1e-6 * most
        torch.testing.assert_close(a, b, rtol=2e-5, atol=bound)


@pytest.mark.parametrize("options", [{}, {"max_rows": 3}])
def test_gradients_are_those_of_a_forward_pass(
    policy: Policy, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(sampled(policy, **options))
    slow = expected(policy, batch)
    policy.evaluate_all(batch, ON)  # with the look at one row, by the model's own forward
    forwards = Forwards(policy, monkeypatch)
    close(gradients(policy, batch), slow)
    assert forwards.tokens == 0


def test_a_backward_pass_uses_the_record_up(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(sampled(policy))
    policy.evaluate_all(batch, ON)
    forwards = Forwards(policy, monkeypatch)
    first = gradients(policy, batch)
    assert forwards.tokens == 0
    assert policy.recorder is not None
    assert policy.recorder.activations is None
    close(gradients(policy, batch), first)
    assert forwards.tokens > 0


def test_two_graphs_at_a_time(policy: Policy) -> None:
    batch = batch_of(sampled(policy))
    halves = [batch.select(rows) for rows in torch.arange(len(batch)).chunk(2)]
    losses = [policy.evaluate(half, ON).logp.sum() for half in halves]
    policy.model.zero_grad()
    torch.autograd.backward(losses)
    found = [p.grad.clone() for p in policy.trainable_parameters() if p.grad is not None]
    policy.model.zero_grad()
    policy.evaluate(batch, ON).logp.sum().backward()  # type: ignore[no-untyped-call]
    close(found, [p.grad for p in policy.trainable_parameters() if p.grad is not None])


def test_log_probabilities_are_the_samplers_own(policy: Policy) -> None:
    samples = sampled(policy)
    batch = batch_of(samples)
    logp = policy.evaluate_all(batch, ON).logp
    for row, sample in zip(logp, samples, strict=True):
        torch.testing.assert_close(
            row[: len(sample.logp)], torch.tensor(sample.logp), rtol=1e-5, atol=1e-5
        )


def test_what_does_not_fit_is_computed(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(sampled(policy, most=90))
    forwards = Forwards(policy, monkeypatch)
    first = policy.micro_batches(batch, 1 << 14)[0]
    assert 0 < len(first) < len(batch)
    assert policy.recorder is not None
    assert 0 < policy.recorder.used <= 90
    close(gradients(policy, batch), expected(policy, batch))
    assert forwards.tokens > 0


@pytest.mark.parametrize("most", [1, 2, 7, 9, 20])
def test_there_may_be_no_room_for_a_whole_row(policy: Policy, most: int) -> None:
    batch = batch_of(sampled(policy, most=most))
    close(gradients(policy, batch), expected(policy, batch))


def test_rows_that_end_early_leave_room(policy: Policy) -> None:
    tight = sum(map(len, PROMPTS)) + 3 * NEW
    early = batch_of(sampled(policy, most=tight, max_rows=2, requests=requests_of(range(105))))
    assert set(early["lengths"].tolist()) == {1}
    rows = len(PROMPTS) * PER_PROMPT
    batch = batch_of(sampled(policy, most=tight, max_rows=2))
    assert policy.recorder is not None
    known = len(policy.micro_batches(batch, 1 << 14)[0])
    assert 3 < known < rows


def test_a_cut_completion_is_known_and_a_changed_one_is_not(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(sampled(policy, requests=requests_of(())))
    cut = batch.replace(mask=batch.mask & (torch.arange(batch.width) < 5))
    policy.evaluate_all(cut, ON)
    forwards = Forwards(policy, monkeypatch)
    policy.evaluate_all(cut, ON)
    assert forwards.tokens == 0
    changed = batch["tokens"].clone()
    changed[1, 2] = (changed[1, 2] + 1) % 50
    other = batch.replace(tokens=changed)
    splits = policy.micro_batches(other, 1 << 14)
    assert [len(rows) for rows in splits] == [len(batch) - 1, 1]
    close(gradients(policy, other), expected(policy, other))


@pytest.mark.parametrize("how", ["a step", "a write", "another weight"])
def test_new_weights_make_the_record_void(
    policy: Policy, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(sampled(policy))
    weight = next(policy.model.parameters())
    with torch.no_grad():
        if how == "a step":
            weight.data += 0.1  # as a fused optimizer does: no counter is raised
            policy.version += 1
        elif how == "a write":
            weight += 0.1
        else:
            weight.data = weight.data + 0.1
    forwards = Forwards(policy, monkeypatch)
    close(gradients(policy, batch), expected(policy, batch))
    assert forwards.tokens > 0


def test_an_engine_with_other_weights_records_nothing(policy: Policy) -> None:
    engine = LocalEngine(policy.model, policy.decode)
    engine.sync(policy)
    policy.version += 1
    with policy.recording(1 << 14):
        batch = batch_of(engine.sample(requests_of()))
    assert len(policy.micro_batches(batch, 1 << 14)[0]) == len(batch)
    assert policy.recorder is not None
    assert policy.recorder.used == 0


def test_forks_are_computed_again(policy: Policy) -> None:
    samples = sampled(policy, requests=requests_of(()))
    fork = samples[4].fork(2, seed=9)
    both = [*requests_of(()), fork]
    batch = batch_of(sampled(policy, requests=both))
    splits = policy.micro_batches(batch, 1 << 14)
    assert [len(rows) for rows in splits] == [len(both) - 1, 1]
    close(gradients(policy, batch), expected(policy, batch))


def test_a_record_that_is_not_the_models_is_not_used(policy: Policy) -> None:
    batch = batch_of(sampled(policy))
    recorder = policy.recorder
    assert recorder is not None
    assert recorder.activations is not None
    recorder.activations.last.add_(0.5)
    close(gradients(policy, batch), expected(policy, batch))
    assert not recorder.trusted


def test_other_models_have_no_recorder(policy_of: Make) -> None:
    assert policy_of("gpt2").recorder is None
    assert policy_of(gradient_checkpointing=True).recorder is None
    with policy_of("gpt2").recording(100):
        pass
