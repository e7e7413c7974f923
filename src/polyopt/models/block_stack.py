"""Llama-like models with forward and backward written out, on the CPU in float32.

The residual stream is kept where a block begins and in its middle, and of the rest what can't be
had again without a product: norms, the gated product and rotations are computed a second time on
the way back. That is half of what autograd keeps (SmolLM2-135M: 692 KB a token, not 1,338).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from polyopt.models.activations import Activations, LayerActivations
from polyopt.models.llama_like import geometry_of, is_lora, linears, why_not_native
from polyopt.models.matrix_products import product
from polyopt.models.packed_kernels import Stretches, attend, attend_backward
from polyopt.models.rotary import RotaryTable
from polyopt.native.arena import in_huge_pages
from polyopt.native.blocks import BlockKernels
from polyopt.native.library import native

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Block = dict[str, Tensor]
"""A block's weights, or their gradients, by their names in the block."""

INPUT_NORM, MLP_NORM = "input_layernorm.weight", "post_attention_layernorm.weight"
HEAD_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUT, GATE, UP, DOWN = "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"


@dataclass(frozen=True)
class Tokens:
    """S tokens that go through the model together.

    Attributes:
        ids: Token ids.
        positions: Their positions.
        stretches: Who sees whom.
    """

    ids: Int[Tensor, " S"]
    positions: Int[Tensor, " S"]
    stretches: Stretches


def why_not_stacked(model: PreTrainedModel) -> str | None:
    """What keeps the model from being run here, or None."""
    if reason := why_not_native(model):
        return reason
    if any(is_lora(module) for module in linears(model)):
        return "LoRA adapters"
    checkpointing = any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    return "activation checkpointing" if checkpointing else None


class BlockStack:
    """Embedding, blocks and last norm of a model that `why_not_stacked` has nothing against."""

    def __init__(self, model: PreTrainedModel) -> None:
        kernels, sizes = native(), geometry_of(model)
        assert kernels is not None
        self.library = kernels
        self.kernels = BlockKernels(
            kernels,
            query_heads=sizes.query_heads,
            key_heads=sizes.key_heads,
            dim=sizes.head_dim,
            eps=sizes.norm_eps,
            scaling=sizes.scaling,
        )
        self.rotary = RotaryTable(model)
        inner: Any = model.model
        self._inner = inner
        self._names = [[name for name, _ in block.named_parameters()] for block in inner.layers]

    def __call__(
        self,
        tokens: Tokens,
        source: Int[Tensor, " M"],
        known: Activations | None = None,
    ) -> Float[Tensor, "M H"]:
        """Last hidden states at M of the tokens, with a graph as the ambient grad mode has it.

        Args:
            tokens: What goes through the model.
            source: Places of the hidden states among the tokens.
            known: The tokens' activations under the present weights, if they are there already;
                the backward pass empties the list of layers.
        """
        weights = (self._inner.embed_tokens.weight, self._inner.norm.weight)
        flat = [weight for block in self.blocks() for weight in block.values()]
        hidden: Tensor = _Stack.apply(  # type: ignore[no-untyped-call]
            self, tokens, source, known, torch.is_grad_enabled(), *weights, *flat
        )
        return hidden

    def room_for(self, count: int) -> Activations:
        """Room for the activations of this many tokens; memory is taken when it is written to."""
        inner, kernels = self._inner, self.kernels
        hidden, first = inner.norm.weight.shape[0], inner.layers[0]
        shapes = {
            "entered": (hidden,),
            "heads": (kernels.heads, kernels.room),
            "norm": (kernels.query_heads,),
            "attended": (kernels.query_heads * kernels.dim,),
            "between": (hidden,),
            "gate_up": (2 * first.mlp.gate_proj.weight.shape[0],),
        }
        normed = hasattr(first.self_attn, "q_norm")
        raw = {"qkv": (kernels.heads * kernels.dim,)} if normed else {}

        def room(shape: tuple[int, ...]) -> Tensor:
            return in_huge_pages(torch.empty(count * math.prod(shape))).view(count, *shape)

        def layer() -> LayerActivations:
            rooms: dict[str, Any] = {name: room(shape) for name, shape in (shapes | raw).items()}
            return LayerActivations(**({"qkv": None} | rooms))

        return Activations([layer() for _ in inner.layers], room((hidden,)))

    def blocks(self) -> list[dict[str, nn.Parameter]]:
        """The blocks' parameters as they are now."""
        pairs = zip(self._inner.layers, self._names, strict=True)
        return [{name: block.get_parameter(name) for name in names} for block, names in pairs]

    def named(self, flat: tuple[Tensor, ...]) -> list[Block]:
        """Weights of all blocks, one after the other, by their names."""
        values = iter(flat)
        return [{name: next(values) for name in names} for names in self._names]

    def flattened(self, blocks: list[Block]) -> Iterator[Tensor | None]:
        """The way back; None for a name that a block doesn't have."""
        for names, block in zip(self._names, blocks, strict=True):
            yield from (block.get(name) for name in names)

    def forward(
        self,
        tokens: Tokens,
        embedding: Tensor,
        blocks: list[Block],
        keep: Callable[[LayerActivations], None],
    ) -> Float[Tensor, "S H"]:
        """The stream after the last block; `keep` gets the activations of one after the other."""
        stream = F.embedding(tokens.ids, embedding)
        rotary = self.rotary.upto(int(tokens.positions.max()))
        for block in blocks:
            activations, stream = self._enter(block, stream, tokens, rotary)
            keep(activations)
        return stream

    @torch.no_grad()
    def run(self, tokens: Tokens, keep: Callable[[LayerActivations], None]) -> Float[Tensor, "S H"]:
        """`forward` with the present weights."""
        blocks: list[Block] = [dict(block) for block in self.blocks()]
        return self.forward(tokens, self._inner.embed_tokens.weight, blocks, keep)

    def _enter(
        self, block: Block, stream: Tensor, tokens: Tokens, rotary: Tensor
    ) -> tuple[LayerActivations, Tensor]:
        """One block."""
        kernels, dim = self.kernels, self.kernels.dim
        qkv = _side_by_side(block, QKV, kernels.norm(stream, block[INPUT_NORM]))
        heads = kernels.turn(qkv, tokens.positions, rotary, _head_norms(block))
        out, norm = attend(self.library, self._split(heads), tokens.stretches, 1.0)
        attended = out[..., :dim].reshape(len(out), -1)
        between = _affine(block, OUT, attended, add=stream)
        gate_up = _side_by_side(block, (GATE, UP), kernels.norm(between, block[MLP_NORM]))
        after = _affine(block, DOWN, kernels.gated(gate_up), add=between)
        raw = qkv if HEAD_NORMS[0] in block else None
        return LayerActivations(stream, raw, heads, norm, attended, between, gate_up), after

    def backward_(
        self,
        tokens: Tokens,
        block: Block,
        known: LayerActivations,
        places: Tensor | None,
        gradient: Float[Tensor, "S H"],
    ) -> Block:
        """Turn the gradient after a block into the one before it; returns those of its weights."""
        kernels, found = self.kernels, Block()
        slope = product(gradient, block[f"{DOWN}.weight"])
        slopes = kernels.gated_backward_(known.gate_up, slope, places)
        _take(found, block, DOWN, slope, gradient)
        normed = kernels.norm(known.between, block[MLP_NORM], places)
        slope = _back(found, block, (GATE, UP), normed, slopes)
        del slopes, normed
        found[MLP_NORM] = kernels.norm_backward_(
            known.between, block[MLP_NORM], slope, gradient, places
        )
        attended = _rows(known.attended, places)
        _take(found, block, OUT, attended, gradient)
        slope = product(gradient, block[f"{OUT}.weight"])
        slopes = self._attention_backward(tokens, block, known, places, (attended, slope), found)
        normed = kernels.norm(known.entered, block[INPUT_NORM], places)
        slope = _back(found, block, QKV, normed, slopes)
        found[INPUT_NORM] = kernels.norm_backward_(
            known.entered, block[INPUT_NORM], slope, gradient, places
        )
        return found

    def _attention_backward(
        self,
        tokens: Tokens,
        block: Block,
        known: LayerActivations,
        places: Tensor | None,
        ends: tuple[Tensor, Tensor],
        found: Block,
    ) -> Float[Tensor, "S A"]:
        """Gradient of queries, keys and values, from attention's output and its gradient."""
        heads, norm = _rows(known.heads, places), _rows(known.norm, places)
        out, slope = (self._padded(end) for end in ends)
        slopes = attend_backward(
            self.library, self._split(heads), out, norm, slope, tokens.stretches, 1.0
        )
        rotary = self.rotary.upto(int(tokens.positions.max()))
        back, norms = self.kernels.turn_backward(
            known.qkv, slopes, tokens.positions, rotary, _head_norms(block), places
        )
        if norms is not None:
            found.update(zip(HEAD_NORMS, norms, strict=True))
        return back

    def _split(self, heads: Float[Tensor, "S N R"]) -> tuple[Tensor, Tensor, Tensor]:
        kernels = self.kernels
        queries, keys, values = heads.split_with_sizes(
            [kernels.query_heads, kernels.key_heads, kernels.key_heads], 1
        )
        return queries, keys, values

    def _padded(self, flat: Float[Tensor, "S Q*D"]) -> Float[Tensor, "S Q R"]:
        """Heads with room for whole vectors."""
        kernels = self.kernels
        heads = flat.view(len(flat), kernels.query_heads, kernels.dim)
        return (
            F.pad(heads, (0, kernels.room - kernels.dim)) if kernels.room > kernels.dim else heads
        )


class _Stack(torch.autograd.Function):
    """The stack as one differentiable step."""

    @staticmethod
    def forward(
        ctx: Any,
        stack: BlockStack,
        tokens: Tokens,
        source: Tensor,
        known: Activations | None,
        keep: bool,
        embedding: Tensor,
        norm: Tensor,
        *flat: Tensor,
    ) -> Tensor:
        if known is None:
            layers: list[LayerActivations] = []
            take = layers.append if keep else _drop
            known = Activations(layers, stack.forward(tokens, embedding, stack.named(flat), take))
        at = source if known.places is None else known.places[source]
        if keep:
            ctx.save_for_backward(embedding, norm, *flat)
            ctx.rest = stack, tokens, source, known
        return stack.kernels.norm(known.last, norm, at)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        embedding, norm, *flat = ctx.saved_tensors
        stack, tokens, source, known = ctx.rest
        if not known.layers:
            raise RuntimeError("this forward pass was differentiated before; run it again")
        places = known.places
        at = source if places is None else places[source]
        ends = torch.zeros(len(source), known.last.shape[1])
        norm_found = stack.kernels.norm_backward_(known.last, norm, gradient.contiguous(), ends, at)
        stream = torch.zeros(len(tokens.ids), known.last.shape[1]).index_add_(0, source, ends)
        found: list[Block] = []
        for block in reversed(stack.named(tuple(flat))):
            layer = known.layers.pop()
            found.insert(0, stack.backward_(tokens, block, layer, places, stream))
        embedded = None
        if embedding.requires_grad:
            embedded = torch.zeros_like(embedding).index_add_(0, tokens.ids, stream)
        return None, None, None, None, None, embedded, norm_found, *stack.flattened(found)


def _affine(block: Block, name: str, inputs: Tensor, *, add: Tensor) -> Tensor:
    """add + inputs W^T + bias."""
    out = product(inputs, block[f"{name}.weight"].t(), add=add)
    bias = block.get(f"{name}.bias")
    return out if bias is None else out.add_(bias)


def _side_by_side(block: Block, names: tuple[str, ...], inputs: Tensor) -> Tensor:
    """Several affine maps of the same inputs, one beside the other."""
    weights = [block[f"{name}.weight"] for name in names]
    whole = torch.empty(len(inputs), sum(len(weight) for weight in weights))
    parts = whole.split_with_sizes([len(weight) for weight in weights], 1)
    for name, weight, part in zip(names, weights, parts, strict=True):
        product(inputs, weight.t(), out=part)
        if (bias := block.get(f"{name}.bias")) is not None:
            part += bias
    return whole


def _back(
    found: Block, block: Block, names: tuple[str, ...], inputs: Tensor, slopes: Tensor
) -> Tensor:
    """The way back through `_side_by_side`: the gradient of its inputs."""
    total: Tensor | None = None
    widths = [len(block[f"{name}.weight"]) for name in names]
    for name, slope in zip(names, slopes.split_with_sizes(widths, 1), strict=True):
        _take(found, block, name, inputs, slope)
        total = product(slope, block[f"{name}.weight"], add=total, out=total)
    assert total is not None
    return total


def _take(found: Block, block: Block, name: str, inputs: Tensor, slope: Tensor) -> None:
    """Gradients of an affine map's weight and bias, where they are wanted."""
    if block[f"{name}.weight"].requires_grad:
        found[f"{name}.weight"] = product(slope.t(), inputs)
    if (bias := block.get(f"{name}.bias")) is not None and bias.requires_grad:
        found[f"{name}.bias"] = slope.sum(0)


def _head_norms(block: Block) -> tuple[Tensor, Tensor] | None:
    query, key = HEAD_NORMS
    return (block[query], block[key]) if query in block else None


def _drop(activations: LayerActivations) -> None:
    """Keep nothing."""


def _rows(tensor: Tensor, places: Tensor | None) -> Tensor:
    return tensor if places is None else tensor.index_select(0, places)
