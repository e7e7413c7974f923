from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyopt.batch import Batch
from polyopt.distribution import Distribution
from polyopt.errors import UserError
from polyopt.models.policy import Policy
from polyopt.models.value_head import ValueHead

KINDS = ["llama", "qwen2", "mistral", "gpt2", "gemma2", "granite"]
PLAIN = {"llama", "qwen2", "mistral", "gpt2"}
Make = Callable[..., Policy]
Batches = Callable[..., Batch]


def gradients(policy: Policy, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, policy.trainable_parameters(), allow_unused=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probs_and_gradients_equal_rows_one_at_a_time(
    kind: str, temperature: float, policy_of: Make, batch_of: Batches, slowly: Any
) -> None:
    policy, batch = policy_of(kind), batch_of()
    assert policy._scorer.plain_head == (kind in PLAIN)
    weights = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(1))
    got = policy.evaluate(batch, Distribution(temperature))
    expected = slowly(policy.model, batch, temperature)
    torch.testing.assert_close(got.logp, expected, rtol=1e-5, atol=2e-5)
    assert not got.logp[~batch.mask].any()
    pairs = zip(
        gradients(policy, (got.logp * weights).sum()),
        gradients(policy, (expected * weights).sum()),
        strict=True,
    )
    for own, slow in pairs:
        torch.testing.assert_close(own, slow, rtol=1e-3, atol=1e-3)


def test_an_attention_mask_would_change_nothing(policy_of: Make, batch_of: Batches) -> None:
    from polyopt.models.packing import rows_of

    policy, batch = policy_of("mistral"), batch_of()
    rows = rows_of(batch)
    lengths = batch["prompt_lengths"] + batch["lengths"]
    mask = (torch.arange(rows.input_ids.shape[1]) < lengths[:, None]).long()
    masked = policy.model(input_ids=rows.input_ids, attention_mask=mask).logits
    plain = policy.model(input_ids=rows.input_ids).logits
    at = (rows.row, rows.position)
    torch.testing.assert_close(masked[at], plain[at], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_entropy_is_that_of_the_sampled_distribution(
    kind: str, policy_of: Make, batch_of: Batches
) -> None:
    policy, batch = policy_of(kind), batch_of(rows=2)
    got = policy.evaluate(batch, Distribution(0.5), ("entropy",))
    i, t = batch.mask.nonzero()[-1].tolist()
    p = int(batch["prompt_lengths"][i])
    ids = torch.cat([batch["prompt_tokens"][i, :p], batch["tokens"][i, :t]])
    logp = (policy.model(input_ids=ids[None]).logits[0, -1] / 0.5).log_softmax(-1)
    assert got.entropy is not None
    torch.testing.assert_close(got.entropy[i, t], -(logp.exp() * logp).sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_values_are_read_before_the_token_and_not_tempered(
    kind: str, policy_of: Make, batch_of: Batches
) -> None:
    head = ValueHead(32)
    assert not head(torch.ones(2, 32)).any(), "a fresh value head gives 0"
    nn.init.normal_(head.linear.weight)
    policy, batch = policy_of(kind, value_head=head), batch_of(rows=2)
    values = [policy.evaluate(batch, Distribution(t), ("values",)).values for t in (1.0, 0.25)]
    assert values[0] is not None
    assert torch.equal(values[0], values[1])
    i, t = batch.mask.nonzero()[-1].tolist()
    p = int(batch["prompt_lengths"][i])
    ids = torch.cat([batch["prompt_tokens"][i, :p], batch["tokens"][i, :t]])
    hidden = policy.model(input_ids=ids[None], output_hidden_states=True).hidden_states[-1][0, -1:]
    torch.testing.assert_close(values[0][i, t], head(hidden)[0], rtol=1e-4, atol=1e-4)
    assert len(policy.trainable_parameters()) == len(list(policy.model.parameters())) + 2


def test_values_without_a_value_head_are_refused(policy_of: Make, batch_of: Batches) -> None:
    with pytest.raises(UserError, match="value_head=True"):
        policy_of().evaluate(batch_of(), Distribution(), ("values",))


def test_micro_batches_come_back_in_order(policy_of: Make, batch_of: Batches) -> None:
    policy, batch = policy_of(value_head=ValueHead(32)), batch_of(rows=11)
    whole = policy.evaluate(batch, Distribution(), ("entropy", "values"))
    for budget in (1, 40, 10_000):
        parts = policy.evaluate_all(batch, Distribution(), ("entropy", "values"), budget)
        torch.testing.assert_close(parts.logp, whole.logp.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(parts.entropy, whole.entropy.detach(), rtol=1e-5, atol=1e-5)  # type: ignore[union-attr]
        assert parts.values is not None
        assert not parts.logp.requires_grad


def test_padding_changes_nothing(policy_of: Make, batch_of: Batches) -> None:
    policy, batch = policy_of(), batch_of()
    pad = nn.functional.pad
    wider = batch.replace(
        mask=pad(batch.mask, (0, 5)),
        tokens=pad(batch["tokens"], (0, 5), value=9),
        prompt_tokens=pad(batch["prompt_tokens"], (0, 4), value=9),
    )
    narrow = policy.evaluate(batch, Distribution()).logp
    wide = policy.evaluate(wider, Distribution()).logp
    assert torch.equal(wide[:, : batch.width], narrow)
    assert not wide[:, batch.width :].any()


def test_rows_without_trained_tokens_and_empty_batches_give_zeros(
    policy_of: Make, batch_of: Batches
) -> None:
    policy, batch = policy_of(), batch_of(rows=2)
    off = batch.replace(mask=torch.zeros_like(batch.mask))
    logp = policy.evaluate(off, Distribution()).logp
    logp.sum().backward()
    assert not logp.any()
    none = batch.select(torch.tensor([], dtype=torch.long))
    assert policy.evaluate_all(none, Distribution()).logp.shape == (0, batch.width)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_never_runs_so_ratios_are_exactly_one(
    kind: str, checkpointing: bool, model_of: Any, policy_of: Make, batch_of: Batches
) -> None:
    drops = {"attention_dropout": 0.5} if kind == "llama" else {"resid_pdrop": 0.5}
    model = model_of(kind, **drops).train()
    policy = policy_of(model=model, gradient_checkpointing=checkpointing)
    first = policy.evaluate_all(batch_of(), Distribution()).logp
    second = policy.evaluate(batch_of(), Distribution()).logp
    assert torch.equal(first, second)
    policy.model.train()
    assert torch.equal(policy.evaluate(batch_of(), Distribution()).logp, first)


def test_gradient_checkpointing_recomputes_and_gives_the_same_gradients(
    policy_of: Make, batch_of: Batches
) -> None:
    plain, saving = policy_of(), policy_of(gradient_checkpointing=True)
    calls: list[int] = []
    saving.evaluate(batch_of(), Distribution())  # the checks of first use
    saving.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    pairs = zip(
        gradients(plain, plain.evaluate(batch_of(), Distribution()).logp.sum()),
        gradients(saving, saving.evaluate(batch_of(), Distribution()).logp.sum()),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * b.abs().max().item())
    assert len(calls) == 2


def test_bfloat16_keeps_float32_weights_and_results(policy_of: Make, batch_of: Batches) -> None:
    exact = policy_of().evaluate(batch_of(), Distribution()).logp
    policy = policy_of(precision="bfloat16")
    logp = policy.evaluate(batch_of(), Distribution()).logp
    assert logp.dtype == torch.float32
    assert 0 < (logp - exact).abs().max() < 0.5
    logp.sum().backward()
    assert {p.grad.dtype for p in policy.trainable_parameters()} == {torch.float32}


def test_state_dict_restores_weights_value_head_and_version_exactly(
    policy_of: Make, batch_of: Batches
) -> None:
    policy = policy_of(value_head=ValueHead(32))
    saved = copy.deepcopy(policy.state_dict())
    before = policy.evaluate_all(batch_of(), Distribution(), ("values",))
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.1)
    policy.version = 5
    assert not torch.equal(policy.evaluate_all(batch_of(), Distribution()).logp, before.logp)
    policy.load_state_dict(saved)
    after = policy.evaluate_all(batch_of(), Distribution(), ("values",))
    assert torch.equal(after.logp, before.logp)
    assert torch.equal(after.values, before.values)
    assert policy.version == 0
    with pytest.raises(UserError, match="another policy"):
        policy_of("qwen2", value_head=ValueHead(32)).load_state_dict(saved)
    with pytest.raises(UserError, match="value head"):
        policy_of().load_state_dict(saved)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_saved_folder_loads_as_a_plain_causal_lm(
    kind: str, policy_of: Make, batch_of: Batches, slowly: Any, tmp_path: Path
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = policy_of(kind, value_head=ValueHead(32))
    policy.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    policy.save(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    expected = policy.evaluate(batch_of(), Distribution()).logp
    torch.testing.assert_close(slowly(model, batch_of()), expected, rtol=1e-5, atol=2e-5)
    assert (tmp_path / "out" / "generation_config.json").is_file()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert load_file(tmp_path / "out" / "value_head.safetensors")["linear.weight"].shape == (1, 32)


def test_tied_and_trained_weights_are_listed_once(model_of: Any, policy_of: Make) -> None:
    policy = policy_of(model=model_of("llama", tie_word_embeddings=True))
    assert len({id(p) for p in policy.trainable_parameters()}) == len(policy.trainable_parameters())
    policy.model.get_input_embeddings().requires_grad_(False)
    assert len(policy.trainable_parameters()) == len(list(policy.model.parameters())) - 1


def test_decode_keeps_special_tokens_only_on_request(policy_of: Make) -> None:
    policy = policy_of()
    ids = policy.tokenizer("hi </s>", add_special_tokens=True).input_ids
    assert policy.decode(ids) == "hi "
    assert policy.decode(ids, False) == "<s>hi </s>"
