"""Aggregation for thoughts with several answers each."""

from __future__ import annotations

import torch

from polyopt.advantages.trajectories import Trajectories
from polyopt.batch import Batch
from polyopt.groups import group_first, group_sum, subgroups
from polyopt.objectives.protocol import Tokens
from polyopt.parts import part


@part("objective.aggregation", needs={"thought", "thought_tokens"})
def thought_mean_answer_mean(batch: Batch) -> Tokens:
    """Mean over thoughts of their token mean, plus mean over answers of their token mean.

    A thought whose tokens stand in the rows of several answers counts once: each copy carries its
    share. GRPO-MA, arXiv 2509.24494.
    """
    rollouts = Trajectories.of(batch)
    dtype = batch.rewards.dtype
    inside = batch["thought_tokens"].bool()
    thinking, answering = inside.to(dtype), (~inside).to(dtype)
    thought_length, answer_length = rollouts.sum(thinking), rollouts.sum(answering)
    live = (thought_length > 0).to(dtype)
    thought = subgroups(rollouts.pick(batch["thought"]), rollouts.index)
    copies = group_sum(live, thought).clamp(min=1)
    first = group_first(thought) == torch.arange(len(thought), device=thought.device)
    thoughts = (group_sum(live, thought)[first] > 0).sum().clamp(min=1)
    answers = (answer_length > 0).sum().clamp(min=1)
    per_thought = live / (thought_length.clamp(min=1) * copies * thoughts)
    per_answer = 1 / (answer_length.clamp(min=1) * answers)
    return rollouts.spread(per_thought) * thinking + rollouts.spread(per_answer) * answering
