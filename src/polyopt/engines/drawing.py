"""Drawing tokens: one uniform per token, inverted through the distribution's cumulative sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from polyopt.distribution import Distribution, apply_distribution
from polyopt.native.library import Library, native

BLOCK = 128
"""Vocabulary entries that are summed before the cumulative sum is taken."""


class Drawn(NamedTuple):
    """Tokens drawn for a batch of rows, with what was asked about their distributions."""

    tokens: Int[Tensor, " R"]
    logp: Float[Tensor, " R"]
    entropy: Float[Tensor, " R"] | None


def uniforms_of(seed: int, start: int, count: int) -> npt.NDArray[np.float64]:
    """Draws `start` to `start + count` of the request's own stream, which Philox(seed) makes."""
    bits = np.random.Philox(seed)
    bits.advance(start // 4)  # Philox makes four 64-bit words per counter value
    return np.random.Generator(bits).random(start % 4 + count)[start % 4 :]


def draw(
    logits: Float[Tensor, "R V"],
    uniforms: npt.NDArray[np.float64],
    distributions: Sequence[Distribution],
    *,
    entropy: bool,
) -> Drawn:
    """One token per row, each under its own distribution.

    Rows that share a distribution are drawn together.
    """
    device, first = logits.device, distributions[0]
    u = torch.from_numpy(uniforms).to(device)
    if distributions.count(first) == len(distributions):
        return _draw_alike(logits, u, first, entropy)
    tokens = torch.empty(len(logits), dtype=torch.long, device=device)
    logp = torch.empty(len(logits), dtype=torch.float64, device=device)
    entropies = torch.empty_like(logp)
    rows_of: dict[Distribution, list[int]] = {}
    for row, kind in enumerate(distributions):
        rows_of.setdefault(kind, []).append(row)
    for kind, rows in rows_of.items():
        index = torch.tensor(rows, dtype=torch.long, device=device)
        part = _draw_alike(logits[index], u[index], kind, entropy)
        tokens[index] = part.tokens
        logp[index] = part.logp
        if part.entropy is not None:
            entropies[index] = part.entropy
    return Drawn(tokens, logp, entropies if entropy else None)


def _draw_alike(
    logits: Float[Tensor, "R V"],
    uniforms: Float[Tensor, " R"],
    distribution: Distribution,
    entropy: bool,
) -> Drawn:
    """Draw every row from one kind of distribution."""
    if logits.device.type == "cpu" and (kernels := native()):
        return _draw_by_kernels(kernels, logits, uniforms, distribution, entropy)
    return _draw_by_torch(logits, uniforms, distribution, entropy)


def _draw_by_torch(
    logits: Float[Tensor, "R V"],
    uniforms: Float[Tensor, " R"],
    distribution: Distribution,
    entropy: bool,
) -> Drawn:
    """Softmax, cumulative sum, search."""
    probabilities = apply_distribution(logits.float(), distribution).softmax(-1)
    blocks = _blocks(probabilities)
    cumulative = blocks.sum(-1).double().cumsum(-1)
    total = cumulative[:, -1]
    _refuse(~torch.isfinite(total))
    if distribution.temperature == 0.0:
        tokens = logits.argmax(-1)
    else:
        tokens = _invert(blocks, cumulative, uniforms)
    chosen = probabilities.gather(-1, tokens[:, None]).squeeze(-1)
    logp = (chosen.double() / total).log()
    entropies = torch.special.entr(probabilities).sum(-1).double() if entropy else None
    return Drawn(tokens, logp, entropies)


def _draw_by_kernels(
    kernels: Library,
    logits: Float[Tensor, "R V"],
    uniforms: Float[Tensor, " R"],
    distribution: Distribution,
    entropy: bool,
) -> Drawn:
    """The same without ever holding the probabilities."""
    logits, temperature = logits.float().contiguous(), distribution.temperature
    if distribution.truncated:
        logits = apply_distribution(logits, distribution)
        temperature = 1.0 if temperature > 0 else 0.0
    drawn = Drawn(*kernels.draw(logits, temperature, uniforms.contiguous(), entropy=entropy))
    _refuse(drawn.tokens < 0)
    return drawn


def _refuse(rows: Bool[Tensor, " R"]) -> None:
    """Raise if any of the rows' logits are not finite."""
    if bool(rows.any()):
        raise FloatingPointError(
            f"logits of {int(rows.sum())} of {len(rows)} rows are not finite: "
            "the policy's weights have diverged; lower the learning rate or load a checkpoint"
        )


def _blocks(probabilities: Float[Tensor, "R V"]) -> Float[Tensor, "R B K"]:
    """The vocabulary in blocks, the last one filled up with zeros."""
    rest = -probabilities.shape[-1] % BLOCK
    if rest:
        probabilities = F.pad(probabilities, (0, rest))
    return probabilities.view(len(probabilities), -1, BLOCK)


def _invert(
    blocks: Float[Tensor, "R B K"], cumulative: Float[Tensor, "R B"], uniforms: Float[Tensor, " R"]
) -> Int[Tensor, " R"]:
    """First index whose cumulative weight passes `uniform * total`; its weight is never 0."""
    target = uniforms * cumulative[:, -1]
    block = _first_above(cumulative, target)
    before = torch.where(
        block > 0, cumulative.gather(-1, (block - 1).clamp_min(0)[:, None]).squeeze(-1), 0.0
    )
    rows = torch.arange(len(blocks), device=blocks.device)
    inside = blocks[rows, block].double().cumsum(-1)
    return block * blocks.shape[-1] + _first_above(inside, target - before)


def _first_above(
    cumulative: Float[Tensor, "R K"], target: Float[Tensor, " R"]
) -> Int[Tensor, " R"]:
    """Index of the first cumulative sum above the target, which rounding may not push past all."""
    last = cumulative[:, -1]
    below = torch.nextafter(last, torch.zeros_like(last))
    bounded = torch.minimum(target, below)[:, None]
    return torch.searchsorted(cumulative, bounded, right=True).squeeze(-1)
