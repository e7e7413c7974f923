"""Synthetic batches for the laws: every column a part may need, ragged and uneven on purpose."""

from __future__ import annotations

import torch
from torch import Tensor

from polyopt.batch import PADDING, Batch, Prompt
from polyopt.parts import PartInfo, load_all_parts


def ragged_batch(seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    """Twelve rollouts of four prompts (5, 4, 2 and 1), lengths 0 to 7, a hole in one mask."""
    draw = torch.Generator().manual_seed(seed)
    group = torch.tensor([7, 3, 7, 90, 3, 7, 3, 12, 7, 12, 3, 7])
    lengths = torch.tensor([5, 7, 3, 4, 1, 6, 7, 2, 0, 5, 4, 7])
    n, width = len(group), 7
    inside = torch.arange(width)[None] < lengths[:, None]
    mask = inside.clone()
    mask[1, 2] = False  # tool output inside a completion
    rewards = (torch.rand(n, generator=draw) < 0.5).to(dtype)
    rewards[group == 12] = 1.0  # a group of equal rewards
    rewards[:2] = torch.tensor([1.0, 0.0], dtype=dtype)

    def tokens_like(scale: float = 1.0, shift: float = 0.0) -> Tensor:
        values = torch.randn(n, width, generator=draw, dtype=dtype) * scale + shift
        return values.masked_fill(~inside, 0.0)

    logp_old = -tokens_like(1.0).abs()
    columns = {
        "tokens": torch.randint(2, 9, (n, width), generator=draw).masked_fill(~inside, 0),
        "lengths": lengths,
        "prompt_tokens": torch.randint(2, 9, (n, 3), generator=draw)[group % n],
        "prompt_lengths": torch.full((n,), 3),
        "provenance": torch.where(inside, torch.where(mask, 4, -2), PADDING),
        "logp_sampler": logp_old,
        "logp_old": logp_old,
        "logp_ref": logp_old + tokens_like(0.3),
        "entropy": tokens_like().abs(),
        "values": tokens_like(0.5),
        "returns": tokens_like(0.5),
        "advantages": tokens_like(),
        "truncated": lengths == width,
        "max_tokens": torch.full((n,), 8.0, dtype=dtype),
        "greedy_reward": (group % 2).to(dtype),
        "accuracy": rewards.clone(),
        "control": (torch.arange(n) % 3 == 2).to(dtype),  # a rollout at another temperature
        **rollout_credit_columns(group, inside, dtype),
        **whole_loss_columns(group, inside, dtype),
        **token_credit_columns(group, inside, dtype),
    }
    prompts = [Prompt(f"p{g}", f"problem {g}", metadata={"solution": "ab"}) for g in group.tolist()]
    return Batch.of(
        mask=mask,
        group=group,
        rewards=rewards,
        prompts=prompts,
        texts=[f"answer {i}" for i in range(n)],
        **columns,
    )


def rollout_credit_columns(group: Tensor, inside: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Columns read by parts that give credit to whole rollouts, lists or thoughts."""
    draw = torch.Generator().manual_seed(11)
    n, width = inside.shape
    hits = torch.randint(0, 2, (n, 3), generator=draw).to(dtype)
    return {
        "reference_reward": torch.randint(0, 2, (n,), generator=draw).to(dtype),
        "answer_class": torch.randint(0, 3, (n,), generator=draw),
        "revisit": torch.rand(n, generator=draw) < 0.3,
        "previous_drift": torch.rand(n, generator=draw, dtype=dtype) / 10,
        "global_advantages": torch.randn(n, 1, generator=draw, dtype=dtype) * inside,
        "local_weight": torch.rand(n, 1, generator=draw, dtype=dtype) * inside,
        "hits": hits,
        "rank_rewards": hits * 0.7,
        "items": (torch.arange(width)[None] // 2).expand(n, -1).masked_fill(~inside, -1),
        "thought": torch.arange(n) // 2 + 40,
        "thought_tokens": inside & (torch.arange(width)[None] < 3),
    }


def whole_loss_columns(group: Tensor, inside: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Columns read by distillation, demonstrations, preferences and Bellman regressions."""
    draw = torch.Generator().manual_seed(13)
    n, width = inside.shape

    def log_probs() -> Tensor:
        values = -torch.randn(n, width, generator=draw, dtype=dtype).abs()
        return values.masked_fill(~inside, 0.0)

    return {
        "level": torch.randint(1, 5, (n,), generator=draw),
        "reference_rewards": torch.randint(0, 2, (n, 4), generator=draw).to(dtype),
        "demonstration": (torch.arange(n) % 5 == 1).to(dtype),
        "guided": (torch.arange(n) % 4 == 2).to(dtype),
        "success_rate": (group % 3).to(dtype) / 3,
        "logp_teacher": log_probs(),
        "teacher_weight": torch.rand(n, generator=draw, dtype=dtype),
        "uniform_value_old": log_probs() - 2,
        "answer_tokens": inside & (torch.arange(width)[None] >= 4),
    }


def _tree_path(turns: Tensor) -> Tensor:
    """Nodes of a binary tree on the way that left and right turns describe, numbered by level."""
    weights = torch.tensor([[1, 2, 4], [0, 1, 2], [0, 0, 1]])
    return turns @ weights + torch.tensor([0, 2, 6])


def token_credit_columns(group: Tensor, inside: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Columns read by credit for tokens, segments, turns and trees."""
    draw = torch.Generator().manual_seed(17)
    n, width = inside.shape

    def ids(count: int, *shape: int) -> Tensor:
        return torch.randint(0, count, shape or (n,), generator=draw)

    def numbers(*shape: int) -> Tensor:
        return torch.rand(*(shape or (n,)), generator=draw, dtype=dtype)

    place = torch.arange(width).expand(n, width)
    return {
        "tree": ids(2),
        "variant": ids(2),
        "own_variant": ids(2),
        "turn": ids(2),
        "agent": group % 2,
        "module": group % 3,
        "call": torch.arange(n),
        "turn_reward": numbers(),
        "result_run": ids(3) - 1,
        "team_reward": numbers(),
        "segment": torch.where(place < 3, (torch.arange(n) % 2)[:, None], place // 5 * n + 10)
        + torch.where(place < 3, 0, torch.arange(n)[:, None]),
        "cut": ids(2, n, width),
        "path": torch.where(torch.arange(3) < ids(4, n, 1), _tree_path(ids(2, n, 3)), -1),
        "prefix_values": numbers(n, width),
        "step_label": ids(2, n, width),
        "step": place // 2,
        "state": ids(2, n, width),
        "action": ids(2, n, width),
        "next_state": ids(2, n, width),
        "first_call": ids(4) - 1,
        "effective_rank": numbers(),
        "erv": numbers() - 0.5,
        "era": numbers() - 0.5,
        "vocabulary_divergence": numbers(n, width),
        "prefix_share": numbers(n, width),
        "uniform": numbers(n, width),
    }


def widened(batch: Batch, by: int = 3) -> Batch:
    """The same rollouts with more padding; garbage stands in it."""

    def wide(column: Tensor) -> Tensor:
        if column.dim() < 2 or column.shape[1] != batch.width:
            return column
        filler = torch.full((len(column), by, *column.shape[2:]), 5, dtype=column.dtype)
        return torch.cat([column, filler], dim=1)

    columns = {name: wide(column) for name, column in batch.columns.items()}
    columns["provenance"] = wide(batch["provenance"]).clone()
    columns["provenance"][:, batch.width :] = PADDING
    mask = torch.cat([batch.mask, torch.zeros(len(batch), by, dtype=torch.bool)], dim=1)
    return batch.replace(mask=mask, columns=columns)


def renamed(batch: Batch) -> Batch:
    """The same groups and rollouts under other ids, in another order of ids."""
    return batch.replace(group=1000 - batch.group, rollout=batch.rollout * 17 + 5)


def parts_in(*slots: str) -> list[PartInfo]:
    """Registered parts of some slots, in order of name."""
    found = [info for info in load_all_parts().values() if info.slot in slots]
    return sorted(found, key=lambda info: (info.slot, info.name))


def names(infos: list[PartInfo]) -> list[str]:
    """Test ids."""
    return [f"{info.slot}/{info.name}" for info in infos]
