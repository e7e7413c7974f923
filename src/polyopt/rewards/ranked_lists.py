"""Rewards for completions that are lists, one item a line."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from polyopt.batch import Batch
from polyopt.parts import part
from polyopt.rewards.answers import visible
from polyopt.rewards.verifiers import normalised


@part("rewards.shaping", provides={"hits"})
@dataclass(frozen=True)
class LineHits:
    """Adds `hits` [N, K]: 1 where line k of the completion is one of the prompt's answers.

    Blank lines don't count as lines, case and enclosing marks not as differences.
    Rank-GRPO, arXiv 2510.20150.

    Attributes:
        ranks: K, the length of a list.
    """

    ranks: int = 20

    def __call__(self, batch: Batch) -> Batch:
        """The batch with `hits`."""
        hits = batch.rewards.new_zeros(len(batch), self.ranks)
        for row, (prompt, text) in enumerate(zip(batch.prompts, batch.texts, strict=True)):
            answer = prompt.answer
            wanted = answer if isinstance(answer, list | tuple) else [answer]
            known = {normalised(str(one)) for one in wanted if one is not None}
            lines = [line for line in visible(text).splitlines() if line.strip()]
            found = [normalised(line) in known for line in lines[: self.ranks]]
            hits[row, : len(found)] = torch.tensor(found).to(hits)
        return batch.replace(hits=hits)


@part("rewards.shaping", needs={"tokens"}, provides={"items"})
@dataclass(frozen=True)
class LineItems:
    """Adds `items` [N, T]: how many line breaks precede each sampled token; -1 elsewhere.

    Attributes:
        line_breaks: Token ids that end a line, in the tokenizer of the run.
    """

    line_breaks: tuple[int, ...] = ()

    def __call__(self, batch: Batch) -> Batch:
        """The batch with `items`."""
        ids = torch.tensor(self.line_breaks, dtype=torch.long, device=batch.mask.device)
        breaks = (torch.isin(batch["tokens"], ids) & batch.mask).long()
        items = breaks.cumsum(1) - breaks
        return batch.replace(items=items.masked_fill(~batch.mask, -1))


def remaining_gain(hits: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """R_k = sum_{j >= k} hit_j / log2(j + 1), ranks from 1: the DCG that is left from rank k on."""
    ranks = torch.arange(1, hits.shape[1] + 1, dtype=hits.dtype, device=hits.device)
    return (hits / (ranks + 1).log2()).flip(1).cumsum(1).flip(1)


@part("rewards.shaping", needs={"hits"}, provides={"rank_rewards"})
def discounted_rank_rewards(batch: Batch) -> Batch:
    """Adds `rank_rewards` [N, K]: the DCG that is left from each rank on, so that no item is paid
    for earlier ones ("log_decay"). Rank-GRPO, arXiv 2510.20150.
    """
    return batch.replace(rank_rewards=remaining_gain(batch["hits"]))


@part("rewards.shaping", needs={"hits"}, provides={"rank_rewards"})
def own_rank_rewards(batch: Batch) -> Batch:
    """Adds `rank_rewards` [N, K]: each item's own hit ("exp_inf"). Rank-GRPO, arXiv 2510.20150."""
    return batch.replace(rank_rewards=batch["hits"])
