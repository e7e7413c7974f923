"""Attention of one new token per row over its group's prompt and its own completion.

The prompt's keys and values are read once for all rows of a group: their queries form one product
with them. Another product covers each row's own keys; one softmax covers both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.engines.decoder import Segment
from polyopt.engines.fast_cache import padding_mask

Masks = tuple[Tensor | None, Tensor | None]
"""Padding of the prompts [R, P] and of the completions [R, C]; None without padding."""


class Grouping:
    """Where each row's queries go in a [S, Q] arrangement of S groups of up to Q rows.

    Attributes:
        gather: Row of each of the S * Q places (any row, where a place is empty).
        scatter: Place of each row.
        mask: Padding of the prompts, for each row.
    """

    def __init__(self, prompts: Sequence[Segment], of_row: Sequence[Segment | None]) -> None:
        slot_of = {id(prompt): slot for slot, prompt in enumerate(prompts)}
        slots = [slot_of[id(prompt)] for prompt in of_row]
        counts = [0] * len(prompts)
        ranks = []
        for slot in slots:
            ranks.append(counts[slot])
            counts[slot] += 1
        self.groups, self.most = len(prompts), max(counts)
        places = [s * self.most + r for s, r in zip(slots, ranks, strict=True)]
        self.aligned = places == list(range(self.groups * self.most))
        gather = [0] * (self.groups * self.most)
        for row, place in enumerate(places):
            gather[place] = row
        self.gather, self.scatter = torch.tensor(gather), torch.tensor(places)
        self.lengths = [len(prompts[slot].tokens) for slot in slots]
        self.columns = max(self.lengths)

    def mask(self, like: Tensor) -> Float[Tensor, "R P"] | None:
        """-inf on the padding of the rows' prompts; None if there is no padding."""
        return padding_mask(self.lengths, like, left=False)

    def to_groups(self, rows: Float[Tensor, "R K G X"]) -> Float[Tensor, "S*K Q*G X"]:
        """Arrange rows by group, for a product with each group's prompt."""
        _, heads, share, dim = rows.shape
        if not self.aligned:
            rows = rows.index_select(0, self.gather)
        rows = rows.view(self.groups, self.most, heads, share, dim).transpose(1, 2)
        return rows.reshape(self.groups * heads, self.most * share, dim)

    def to_rows(self, grouped: Float[Tensor, "S*K Q*G X"], heads: int) -> Float[Tensor, "R K G X"]:
        """The inverse of `to_groups`."""
        rows = grouped.view(self.groups, heads, self.most, -1, grouped.shape[-1]).transpose(1, 2)
        rows = rows.flatten(0, 1)
        return rows if self.aligned else rows.index_select(0, self.scatter)


def attend(
    queries: Float[Tensor, "R K G D"],
    own: tuple[Float[Tensor, "R K D C"], Float[Tensor, "R K D C"]],
    prompts: tuple[Float[Tensor, "S K D P"], Float[Tensor, "S K D P"]],
    group: Grouping,
    masks: Masks,
) -> Float[Tensor, "R K*G*D"]:
    """softmax(q [prompt keys, own keys]) [prompt values, own values]; queries are scaled."""
    heads, columns = queries.shape[1], group.columns
    own_keys, own_values = (one.flatten(0, 1) for one in own)
    prompt_keys, prompt_values = (one.flatten(0, 1)[..., :columns] for one in prompts)
    on_prompt = group.to_rows(torch.bmm(group.to_groups(queries), prompt_keys), heads)
    on_own = torch.bmm(queries.flatten(0, 1), own_keys).view(*queries.shape[:3], -1)
    scores = _joined(on_prompt, on_own, masks)
    weights = scores.softmax(-1, dtype=torch.float32).to(queries.dtype)
    of_prompt = group.to_groups(weights[..., :columns])
    out = group.to_rows(torch.bmm(of_prompt, prompt_values.transpose(1, 2)), heads)
    of_own = weights[..., columns:].flatten(0, 1).transpose(1, 2)
    own_part = torch.bmm(own_values, of_own)
    own_part = own_part.view(*queries.shape[:2], *own_part.shape[1:])
    out = out + own_part.transpose(2, 3)
    return out.flatten(1)


def _joined(
    shared: Float[Tensor, "R K G P"],
    own: Float[Tensor, "R K G C"],
    masks: Masks,
) -> Float[Tensor, "R K G P+C"]:
    """Scores on the prompt and on the completion side by side, padding masked."""
    columns = shared.shape[-1]
    scores = own.new_empty(*own.shape[:3], columns + own.shape[-1])
    parts = (scores[..., :columns], scores[..., columns:])
    for part, score, mask in zip(parts, (shared, own), masks, strict=True):
        if mask is None:
            part.copy_(score)
        else:
            torch.add(score, mask[:, None, None], out=part)
    return scores
