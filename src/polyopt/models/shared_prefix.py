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

from polyopt.batch import Batch
from polyopt.models.packing import Rows

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
        position_ids: Each token's position in its own row.
        blocks: How attention is computed.
        order: Places of the S tokens in the blocks' flattened outputs.
        source: Place of the hidden state that predicts each of the M tokens.
        longest: Longest row in tokens.
    """

    input_ids: Int[Tensor, "1 S"]
    position_ids: Int[Tensor, "1 S"]
    blocks: tuple[Block, ...]
    order: Int[Tensor, " S"]
    source: Int[Tensor, " M"]
    longest: int


def same_prompts(tokens: Int[Tensor, "N L"], lengths: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """A number for each row, equal for rows whose first `lengths` tokens are equal."""
    tokens = tokens[:, : int(lengths.max())]
    beyond = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None]
    text = torch.cat([lengths[:, None], tokens.masked_fill(beyond, 0)], 1)
    return torch.unique(text, dim=0, return_inverse=True)[1]


def pack(rows: Rows) -> Packed:
    """The packed form of rows, of which at least one predicts a token."""
    n, device = len(rows.input_ids), rows.input_ids.device
    used = torch.zeros(n, dtype=torch.long, device=device)
    used.scatter_reduce_(0, rows.row, rows.position + 1, "amax")
    prompt = torch.where(used > 0, torch.minimum(rows.prompt_lengths, used), 0)
    key = same_prompts(rows.input_ids, prompt)
    counts = torch.bincount(key, minlength=n)
    shared = (counts[key] > 1) & (prompt > 0)
    first = torch.full((len(counts),), n, device=device)
    first.scatter_reduce_(0, key, torch.arange(n, device=device), "amin")

    leads = first[key] == torch.arange(n, device=device)
    trunk_length = torch.where(shared, torch.where(leads, prompt, 0), used)
    branch_length = torch.where(shared, used - prompt, 0)
    segment_row = torch.arange(n, device=device).repeat(2)
    lengths = torch.cat([trunk_length, branch_length])
    begins = torch.cat([torch.zeros_like(prompt), prompt])
    starts = lengths.cumsum(0) - lengths

    owner = torch.repeat_interleave(torch.arange(2 * n, device=device), lengths)
    within = torch.arange(len(owner), device=device) - starts[owner]
    position = begins[owner] + within
    ids = rows.input_ids[segment_row[owner], position]
    trunk = torch.where(shared, first[key], torch.arange(n, device=device))

    in_branch = shared[rows.row] & (rows.position >= prompt[rows.row])
    home = torch.where(in_branch, rows.row + n, trunk[rows.row])
    source = starts[home] + rows.position - begins[home]
    blocks, places = _blocks(starts, lengths, trunk, n)
    order = torch.empty(len(owner), dtype=torch.long, device=device)
    order[places[places >= 0]] = (places >= 0).nonzero()[:, 0]
    return Packed(
        ids[None], position[None], blocks, order, source, int(used.max())
    )


def _blocks(
    starts: Tensor, lengths: Tensor, trunk: Tensor, n: int
) -> tuple[tuple[Block, ...], Tensor]:
    """Blocks of trunks, then of branches; and the token at each place of their outputs, -1 if none.

    Segment i < n is the trunk that row i leads, segment n + i its branch.
    """
    blocks, places = [], []
    sizes = lengths.tolist()
    for segments in _alike(range(n), sizes):
        index, real = _spans(starts, lengths, segments)
        blocks.append(Block(index))
        places.append(torch.where(real, index, -1).flatten())
    for segments in _alike(range(n, 2 * n), sizes):
        index, real = _spans(starts, lengths, segments)
        stems = trunk[torch.tensor(segments, device=starts.device) - n].tolist()
        prefix, present = _spans(starts, lengths, stems)
        room = -(index.shape[1] + prefix.shape[1]) % 8  # GPU kernels want aligned masks
        causal = torch.ones(2 * index.shape[1:], dtype=torch.bool, device=starts.device).tril()
        seen = torch.cat(
            [
                present[:, None].expand(-1, len(causal), -1),
                causal.expand(len(index), -1, -1),
            ],
            dim=2,
        )
        keys = pad(torch.cat([prefix, index], 1), (0, room))
        blocks.append(Block(index, keys, pad(seen, (0, room))[:, None]))
        places.append(torch.where(real, index, -1).flatten())
    return tuple(blocks), torch.cat(places)


def _alike(segments: range, sizes: list[int]) -> list[list[int]]:
    """Segments that aren't empty, longest first, cut into runs of like length."""
    ordered = sorted((s for s in segments if sizes[s]), key=lambda s: -sizes[s])
    runs: list[list[int]] = []
    for segment in ordered:
        if runs and sizes[segment] >= RAGGED * sizes[runs[-1][0]]:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return runs


def _spans(starts: Tensor, lengths: Tensor, segments: list[int]) -> tuple[Tensor, Tensor]:
    """Places of the segments' tokens [R, C], and which of them are real (the rest repeat)."""
    chosen = torch.tensor(segments, device=starts.device)
    size = lengths[chosen, None]
    step = torch.arange(int(size.max()), device=starts.device)
    return starts[chosen, None] + torch.minimum(step, size - 1), step < size


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

    Attributes:
        decoder: The module that gives the last hidden states.
        longest: Rows longer than this, in tokens, take the plain route: a window of attention
            would hide tokens from one another. None where there is no window.
    """

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.longest = _window(decoder.config) if decoder is not None else None
        self._exact: bool | None = None

    @property
    def exact(self) -> bool:
        """Whether this decoder gives the same hidden states packed and plain, tried once."""
        if self._exact is None:
            self._exact = self.decoder is not None and self._try()
        return self._exact

    def takes(self, packed: Packed) -> bool:
        """Whether the packed route is right for these rows."""
        return self.exact and (self.longest is None or packed.longest <= self.longest)

    def __call__(self, packed: Packed) -> Tensor:
        """Hidden states [M, H] that predict the M tokens."""
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
        except (NotImplementedError, TypeError, RuntimeError, ValueError, KeyError):
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
