"""The packed forward: a prompt shared by several rows is encoded once, and no padding is.

All prompts and completions of a micro-batch stand behind one another in one sequence of real
tokens. Everything but attention treats tokens one by one and needs no change; attention is given
the structure: a completion sees its prompt and itself, never another completion. The keys and
values of a prompt are computed once and read by all of its completions, so their gradients add up
in it. Outputs and gradients are those of the plain forward up to the order of float sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from polyopt.models.activations import Activations
from polyopt.models.block_stack import BlockStack, Tokens, why_not_stacked
from polyopt.models.packed_kernels import Stretches
from polyopt.models.packed_kernels import packed_attention as kernel_attention
from polyopt.models.packing import Rows, same_prompts
from polyopt.native.library import kernels_for

ATTENTION = "polyopt_packed"
"""Name under which the attention function is registered with transformers."""
RAGGED = 0.75
"""Segments share a block of attention if they are at least this fraction of its longest one."""


@dataclass
class Block:
    """Segments of like length whose attention is one call, padded on the right.

    Attributes:
        queries: Places in the packed sequence.
        keys: Places in the packed sequence; None where queries attend causally to themselves.
        mask: Which keys each query sees; None if causal.
    """

    queries: Int[Tensor, "R C"]
    keys: Int[Tensor, "R K"] | None = None
    mask: Bool[Tensor, "R 1 C K"] | None = None
    _additive: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def additive(self, dtype: torch.dtype) -> Tensor | None:
        """The mask as 0 and -inf, made once for all layers."""
        if self.mask is None:
            return None
        if dtype not in self._additive:
            zero = torch.zeros((), dtype=dtype, device=self.mask.device)
            self._additive[dtype] = torch.where(self.mask, zero, float("-inf"))
        return self._additive[dtype]


@dataclass(frozen=True)
class Packed:
    """A micro-batch as one sequence of S real tokens.

    Attributes:
        input_ids: Trunks (shared prompts, or whole rows that share nothing), then branches (the
            completions of shared prompts).
        row: Row of each token; of a shared prompt, the first one.
        position_ids: Each token's position in its own row.
        blocks: How attention is computed.
        order: Places of the S tokens in the blocks' flattened outputs.
        source: Place of the hidden state that predicts each of the M tokens.
        stretches: Who sees whom, as the C kernels take it.
    """

    input_ids: Int[Tensor, "1 S"]
    row: Int[Tensor, " S"]
    position_ids: Int[Tensor, "1 S"]
    blocks: tuple[Block, ...]
    order: Int[Tensor, " S"]
    source: Int[Tensor, " M"]
    stretches: Stretches

    @property
    def tokens(self) -> Tokens:
        """The tokens and who of them sees whom."""
        return Tokens(self.input_ids[0], self.position_ids[0], self.stretches)


@dataclass(frozen=True)
class Segments:
    """2N stretches of the packed sequence: trunk of row i at i, branch of row i at N + i.

    A prompt that several rows share is the trunk of the first of them, and their completions are
    branches; a row that shares nothing is a trunk as a whole. The other stretches are empty.

    Attributes:
        begins: Position in its row of each stretch's first token.
        lengths: Tokens of each stretch.
        starts: Place in the packed sequence of each stretch's first token.
        trunk: Row whose trunk each row builds on (itself, if it shares nothing).
        branched: Whether a row has a trunk in common with others.
    """

    begins: Int[Tensor, " 2N"]
    lengths: Int[Tensor, " 2N"]
    starts: Int[Tensor, " 2N"]
    trunk: Int[Tensor, " N"]
    branched: Bool[Tensor, " N"]

    def spans(self, chosen: list[int]) -> tuple[Tensor, Tensor]:
        """Places of some stretches' tokens [R, C], and which of them are real, not repeats."""
        index = torch.tensor(chosen, device=self.starts.device)
        size = self.lengths[index, None]
        step = torch.arange(int(size.max()), device=size.device)
        return self.starts[index, None] + torch.minimum(step, size - 1), step < size


def pack(rows: Rows) -> Packed:
    """The packed form of rows, of which at least one predicts a token.

    Only what is needed is packed: tokens after the last prediction of a row are left out, and so
    are rows that predict nothing.
    """
    n, device = len(rows.input_ids), rows.input_ids.device
    segments = _segments(rows)
    owner = torch.repeat_interleave(torch.arange(2 * n, device=device), segments.lengths)
    position = torch.arange(len(owner), device=device) - segments.starts[owner]
    position += segments.begins[owner]

    in_branch = segments.branched[rows.row] & (rows.position >= segments.begins[rows.row + n])
    home = torch.where(in_branch, rows.row + n, segments.trunk[rows.row])
    blocks, places = _blocks(segments)
    filled = (places >= 0).nonzero()[:, 0]
    return Packed(
        input_ids=rows.input_ids[owner % n, position][None],
        row=owner % n,
        position_ids=position[None],
        blocks=blocks,
        order=torch.empty_like(owner).index_put_((places[filled],), filled),
        source=segments.starts[home] + rows.position - segments.begins[home],
        stretches=_stretches(segments),
    )


def _segments(rows: Rows) -> Segments:
    index = torch.arange(len(rows.input_ids), device=rows.input_ids.device)
    used = torch.zeros_like(index).scatter_reduce_(0, rows.row, rows.position + 1, "amax")
    prompt = torch.where(used > 0, rows.prompt_lengths, 0)
    key = same_prompts(rows.input_ids, prompt)
    branched = (torch.bincount(key)[key] > 1) & (prompt > 0)
    first = torch.full_like(index, len(index)).scatter_reduce_(0, key, index, "amin")[key]
    trunk = torch.where(branched, first, index)
    lengths = torch.cat(
        [
            torch.where(branched, torch.where(trunk == index, prompt, 0), used),
            torch.where(branched, used - prompt, 0),
        ]
    )
    begins = torch.cat([torch.zeros_like(prompt), prompt])
    return Segments(begins, lengths, lengths.cumsum(0) - lengths, trunk, branched)


def _stretches(segments: Segments) -> Stretches:
    """Each trunk, followed by the branches that build on it."""
    n = len(segments.trunk)
    starts, lengths = segments.starts.tolist(), segments.lengths.tolist()
    branches: dict[int, list[int]] = {}
    for row, trunk in enumerate(segments.trunk.tolist()):
        branches.setdefault(trunk, []).extend([n + row] if lengths[n + row] else [])
    table, families = [], [0]
    for trunk, own in branches.items():
        if lengths[trunk]:
            table.append((starts[trunk], lengths[trunk], 0, 0))
            table += [(starts[b], lengths[b], starts[trunk], lengths[trunk]) for b in own]
            families.append(len(table))
    return Stretches(torch.tensor(table).view(-1, 4), torch.tensor(families))


def _blocks(segments: Segments) -> tuple[tuple[Block, ...], Tensor]:
    """Blocks of trunks, then of branches; and whose token each place of their outputs is, or -1."""
    n, sizes = len(segments.trunk), segments.lengths.tolist()
    blocks, places = [], []
    for chosen in _alike(range(2 * n), sizes):
        index, real = segments.spans(chosen)
        places.append(torch.where(real, index, -1).flatten())
        if chosen[0] < n:
            blocks.append(Block(index))
            continue
        stems = segments.trunk[torch.tensor(chosen, device=index.device) - n].tolist()
        prefix, present = segments.spans(stems)
        causal = torch.ones(2 * index.shape[1:], dtype=torch.bool, device=index.device).tril()
        seen = torch.cat(
            [
                present[:, None].expand(-1, len(causal), -1),
                causal.expand(len(index), -1, -1),
            ],
            dim=2,
        )
        room = -seen.shape[2] % 8  # GPU kernels want aligned masks
        keys = pad(torch.cat([prefix, index], 1), (0, room))
        blocks.append(Block(index, keys, pad(seen, (0, room))[:, None]))
    return tuple(blocks), torch.cat(places)


def _alike(stretches: range, sizes: list[int]) -> list[list[int]]:
    """Stretches that aren't empty in runs of one kind and like length, longest first."""
    n = len(stretches) // 2
    ordered = sorted((s for s in stretches if sizes[s]), key=lambda s: (s >= n, -sizes[s], s))
    runs: list[list[int]] = []
    for stretch in ordered:
        head = runs[-1][0] if runs else -1
        same_kind = head >= 0 and (head >= n) == (stretch >= n)
        if same_kind and sizes[stretch] >= RAGGED * sizes[head]:
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
    return runs


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed: Packed | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over a packed sequence, in the form that transformers calls.

    Args:
        module: The attention layer; unused.
        query: [1, heads, S, D].
        key: [1, key-value heads, S, D].
        value: [1, key-value heads, S, D].
        attention_mask: Unused: `packed` says who sees whom.
        scaling: Factor on the scores.
        packed: The structure.
        kwargs: Anything that would change the scores is refused.

    Raises:
        NotImplementedError: Soft-capping or another change of the scores.
    """
    odd = [name for name in ("softcap", "position_bias", "s_aux") if kwargs.get(name) is not None]
    if packed is None or odd:
        raise NotImplementedError(f"packed attention without structure or with {odd}")
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if kernels := kernels_for(q, k, v):
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        return kernel_attention(kernels, q, k, v, packed.stretches, scale)[None], None
    outputs = []
    for block in packed.blocks:
        keys = block.queries if block.keys is None else block.keys
        out = scaled_dot_product_attention(
            q[block.queries].transpose(1, 2),
            _heads(k[keys], q.shape[1]).transpose(1, 2),
            _heads(v[keys], q.shape[1]).transpose(1, 2),
            attn_mask=block.additive(q.dtype),
            is_causal=block.keys is None,
            scale=scaling,
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)[packed.order][None], None


def _heads(tensor: Tensor, heads: int) -> Tensor:
    """Key-value heads [R, K, h, D] repeated for grouped queries."""
    repeats = heads // tensor.shape[2]
    return tensor if repeats == 1 else tensor.repeat_interleave(repeats, dim=2)


class PackedDecoder:
    """Runs a decoder on packed rows, if its attention can be given the structure.

    Models like Llama have forward and backward written out (`BlockStack`) on the CPU in float32;
    others run by their own code, with another attention.

    Attributes:
        model: The causal LM.
        decoder: Its module that gives the last hidden states, None if it can't be told.
        longest: Rows longer than this, in tokens, take the plain route: a window of attention
            would hide tokens from one another. None where there is no window.
        stack: The written-out model, where there is one.
    """

    def __init__(self, model: Any, decoder: Any) -> None:
        self.decoder = decoder
        self.longest = _window(decoder.config) if decoder is not None else None
        written = decoder is not None and why_not_stacked(model) is None
        self.stack = BlockStack(model) if written else None
        self._exact: bool | None = None

    @property
    def exact(self) -> bool:
        """Whether this decoder gives the same hidden states packed and plain, tried once."""
        if self._exact is None:
            self._exact = self.decoder is not None and self._try()
            if not self._exact and self.stack is not None:
                self.stack = None
                self._exact = self._try()
        return self._exact

    def takes(self, longest: int) -> bool:
        """Whether the packed route is right for rows of up to `longest` tokens."""
        return self.exact and (self.longest is None or longest <= self.longest)

    @property
    def written_out(self) -> BlockStack | None:
        """The written-out model, if it is right for the model's present weights and autocast."""
        weight = self.decoder.get_input_embeddings().weight
        plain = weight.dtype == torch.float32 and weight.device.type == "cpu"
        return self.stack if plain and not torch.is_autocast_enabled("cpu") else None

    def __call__(self, packed: Packed, known: Activations | None = None) -> Tensor:
        """Hidden states [M, H] that predict the M tokens; `known` activations save the forward."""
        if stack := self.written_out:
            return stack(packed.tokens, packed.source, known)
        with attention_of(self.decoder.config, ATTENTION):
            output = self.decoder(
                input_ids=packed.input_ids,
                position_ids=packed.position_ids,
                use_cache=False,
                packed=packed,
            )
        hidden: Tensor = output.last_hidden_state[0, packed.source]
        return hidden

    @torch.no_grad()
    def _try(self) -> bool:
        device = next(self.decoder.parameters()).device
        vocabulary = self.decoder.get_input_embeddings().weight.shape[0]
        ids = torch.tensor([[3, 1, 4, 1, 5, 9], [3, 1, 4, 2, 6, 0], [7, 2, 8, 1, 0, 0]])
        ids = (ids % vocabulary).to(device)
        row, position = (ids > -1).nonzero(as_tuple=True)
        real = position < torch.tensor([6, 5, 4], device=device)[row]
        row, position = row[real], position[real]
        prompts = torch.tensor([3, 3, 2], device=device)
        keep = position >= prompts[row] - 1
        row, position = row[keep], position[keep]
        rows = Rows(ids, row, position, position, ids[row, position], prompts, (3, 6))
        plain = self.decoder(input_ids=ids, use_cache=False).last_hidden_state[row, position]
        try:
            own = self(pack(rows))
        except Exception:  # another architecture's own ways; the plain route is always right
            return False
        tolerance = 1e-4 if plain.dtype in (torch.float32, torch.float64) else 5e-2
        return bool((own - plain).abs().max() <= tolerance * plain.abs().max())


@contextmanager
def attention_of(config: Any, name: str) -> Iterator[None]:
    """Inside the context, models of this config compute attention by the function of that name."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    usual = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = usual


def checkpoint_contexts(config: Any) -> Any:
    """Contexts for activation checkpointing: layers recompute with the attention they ran with."""

    def contexts() -> tuple[Any, Any]:
        now = config._attn_implementation
        return nullcontext(), attention_of(config, now)

    return contexts


def _window(config: Any) -> int | None:
    """Longest row that no sliding or chunked attention of the model cuts, None if any."""
    sizes = [getattr(config, "attention_chunk_size", None)]
    if getattr(config, "use_sliding_window", True):
        sizes.append(getattr(config, "sliding_window", None))
    known = [int(size) for size in sizes if size]
    return min(known) if known else None
