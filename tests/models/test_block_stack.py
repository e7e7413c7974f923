"""The written-out model against the model's own forward and autograd, in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from polyopt.models.activations import Activations, LayerActivations
from polyopt.models.block_stack import BlockStack, why_not_stacked
from polyopt.models.packing import Rows
from polyopt.models.shared_prefix import Packed, pack
from polyopt.native.library import native

pytestmark = pytest.mark.skipif(native() is None, reason="no C compiler")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 52,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
}
KINDS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama with biases": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
}


def model_of(kind: str) -> Any:
    """A model whose norms and biases are not the 1 and 0 that they begin with."""
    torch.manual_seed(0)
    model = KINDS[kind]().eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.7, 0.3)
    return model


def rows_of_three() -> Rows:
    """Three rows, of which two share a prompt and one is short."""
    ids = torch.randint(0, 97, (3, 9), generator=torch.Generator().manual_seed(1))
    ids[1, :4] = ids[0, :4]
    prompts, ends = torch.tensor([4, 4, 2]), torch.tensor([9, 7, 5])
    place = torch.arange(9)
    row, position = ((place >= prompts[:, None] - 1) & (place < ends[:, None])).nonzero(
        as_tuple=True
    )
    return Rows(ids, row, position, position, ids[row, position], prompts, (3, 9))


def gradients(output: Tensor, model: Any) -> list[Tensor]:
    """Of a sum that weighs every number differently."""
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    return list(torch.autograd.grad((output * weights).sum(), list(model.model.parameters())))


def close(got: list[Tensor], expected: list[Tensor]) -> None:
    """Up to rounding: relative to a tensor's largest number, and a little to that of all."""
    most = max(tensor.abs().max().item() for tensor in expected)
    for a, b in zip(got, expected, strict=True):
        bound = 2e-5 * b.abs().max().item() + 1e-7 * most
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=bound)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_the_models_own(kind: str) -> None:
    model, rows = model_of(kind), rows_of_three()
    packed = pack(rows)
    assert why_not_stacked(model) is None
    hidden = BlockStack(model)(packed.tokens, packed.source)
    found = gradients(hidden, model)
    model.double()
    plain = model.model(input_ids=rows.input_ids, use_cache=False).last_hidden_state
    expected = plain[rows.row, rows.position]
    close([hidden], [expected])
    close(found, gradients(expected, model))


def shuffled(stack: BlockStack, packed: Packed) -> Activations:
    """The packed tokens' activations in another order, with rows of nonsense between them."""
    kept: list[LayerActivations] = []
    stream = stack.run(packed.tokens, kept.append)
    count = packed.input_ids.shape[1]
    places = torch.randperm(2 * count, generator=torch.Generator().manual_seed(3))[:count]

    def spread(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        return torch.full((2 * count, *tensor.shape[1:]), 1e9).index_copy_(0, places, tensor)

    layers = [
        LayerActivations(**{name: spread(value) for name, value in vars(layer).items()})  # type: ignore[arg-type]
        for layer in kept
    ]
    last = spread(stream)
    assert last is not None
    return Activations(layers, last, places)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_known_activations_give_the_same_without_a_forward_pass(kind: str) -> None:
    model = model_of(kind)
    packed, stack = pack(rows_of_three()), BlockStack(model)
    hidden = stack(packed.tokens, packed.source)
    again = stack(packed.tokens, packed.source, shuffled(stack, packed))
    assert torch.equal(again, hidden)
    for a, b in zip(gradients(again, model), gradients(hidden, model), strict=True):
        assert torch.equal(a, b)


def test_frozen_weights_get_no_gradient() -> None:
    model, packed = model_of("llama"), pack(rows_of_three())
    layers = model.model.layers
    layers[0].requires_grad_(False)
    model.model.embed_tokens.requires_grad_(False)
    BlockStack(model)(packed.tokens, packed.source).sum().backward()
    assert layers[0].mlp.up_proj.weight.grad is None
    assert model.model.embed_tokens.weight.grad is None
    assert bool(layers[1].mlp.up_proj.weight.grad.any())


def test_a_second_backward_is_refused() -> None:
    model, packed = model_of("llama"), pack(rows_of_three())
    total = BlockStack(model)(packed.tokens, packed.source).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated before"):
        total.backward()


def test_threads_change_nothing() -> None:
    model, packed = model_of("qwen3"), pack(rows_of_three())
    found, threads = [], torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        hidden = BlockStack(model)(packed.tokens, packed.source)
        found.append(gradients(hidden, model))
    torch.set_num_threads(threads)
    for one, three in zip(*found, strict=True):
        assert torch.equal(one, three)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: model.double(), "float64"),
        (lambda model: model.gradient_checkpointing_enable(), "checkpointing"),
        (lambda model: setattr(model.config, "hidden_act", "gelu"), "gelu"),
    ],
)
def test_what_it_cannot_run_is_named(change: Any, reason: str) -> None:
    model = model_of("llama")
    change(model)
    assert reason in str(why_not_stacked(model))
