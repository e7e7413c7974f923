"""TRL's trainer on the embedded model, and the same batch for polyopt's own learner."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyopt.batch import Batch, Prompt
from polyopt.distribution import Distribution
from polyopt.models.loading import load_policy
from polyopt.models.policy import Policy
from polyopt.recipe import Recipe
from polyopt.updates.learner import Learner
from polyopt.updates.optimizers import AdamW, Constant

pytest.importorskip("trl", reason="TRL isn't installed: `make peers`")
datasets = pytest.importorskip("datasets")

SUMS = [f"{a} + {b} =" for a in range(1, 5) for b in range(1, 5)]
WIDTH = 12
GROUP = 4


def spread_lengths(completions: Sequence[str], **_: Any) -> list[float]:
    """Rewards that differ within most groups."""
    return [float(sum(map(ord, text)) % 3) for text in completions]


def arguments(folder: Path, **changes: Any) -> Any:
    """A configuration for a CPU: one step is sixteen rollouts, in two micro-batches of eight."""
    from trl import GRPOConfig

    numbers: dict[str, Any] = {
        "output_dir": str(folder),
        "bf16": False,
        "use_cpu": True,
        "num_generations": GROUP,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_completion_length": WIDTH,
        "max_steps": 1,
        "report_to": [],
        "logging_steps": 1,
        "disable_tqdm": True,
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "learning_rate": 1e-3,
        "max_grad_norm": 0.0,
    }
    return GRPOConfig(**numbers | changes)


def data(**columns: list[Any]) -> Any:
    """Sixteen sums to complete."""
    return datasets.Dataset.from_dict({"prompt": SUMS, **columns})


def trainer(
    recipe: Any,
    folder: Path,
    policy: Policy | None = None,
    columns: dict[str, list[Any]] | None = None,
    **changes: Any,
) -> Any:
    """polyopt's trainer for TRL on the embedded model."""
    from polyopt.adapters.trl import GRPOTrainer

    policy = policy or embedded()
    return Watched.of(GRPOTrainer)(
        recipe=recipe,
        model=policy.model,
        reward_funcs=changes.pop("reward_funcs", spread_lengths),
        args=arguments(folder, **changes),
        train_dataset=data(**(columns or {})),
        processing_class=policy.tokenizer,
    )


class Watched:
    """Keeps gradients of each optimizer step and TRL's own tensors of each generation."""

    @staticmethod
    def of(kind: type) -> type:
        """A subclass that watches."""

        class Subclass(kind):  # type: ignore[misc]
            def __init__(self, *args: Any, **named: Any) -> None:
                self.generated: list[dict[str, Any]] = []
                self.steps: list[dict[str, Any]] = []
                self.losses: list[Tensor] = []
                super().__init__(*args, **named)

            def _generate_and_score_completions(self, inputs: Any) -> Any:
                found = super()._generate_and_score_completions(inputs)
                rewards = self._rewards[:, 0].clone()
                self.generated.append({**found, "prompts": inputs, "rewards": rewards})
                return found

            def training_step(self, model: Any, *args: Any) -> Tensor:
                loss: Tensor = super().training_step(model, *args)
                self.losses.append(loss.detach())
                if len(self.losses) % self.args.gradient_accumulation_steps == 0:
                    grads = [p.grad.clone() for p in model.parameters()]
                    part = self.losses[-self.args.gradient_accumulation_steps :]
                    self.steps.append({"grads": grads, "loss": float(sum(part))})
                return loss

        return Subclass


def embedded() -> Policy:
    """The embedded model in double precision, so that rounding is no excuse."""
    policy = load_policy("embedded", device="cpu")
    policy.model.double()
    return policy


def batch_of(generated: dict[str, Any], policy: Policy, size: int = GROUP) -> Batch:
    """TRL's rollouts as polyopt's own collector would have them, built without the adapter."""
    inside = generated["completion_mask"].bool()
    n = len(inside)
    last = [ids[mask][-1] for ids, mask in zip(generated["completion_ids"], inside, strict=True)]
    rows = [
        ids[mask.bool()]
        for ids, mask in zip(generated["prompt_ids"], generated["prompt_mask"], strict=True)
    ]
    prompts = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return Batch.of(
        mask=inside,
        group=torch.arange(n) // size,
        rewards=generated["rewards"],
        tokens=generated["completion_ids"] * inside,
        lengths=inside.sum(1),
        prompt_tokens=prompts,
        prompt_lengths=torch.tensor([len(row) for row in rows]),
        max_tokens=torch.full((n,), float(WIDTH)),
        truncated=torch.tensor([int(token) not in policy.stop_ids for token in last]),
        prompts=[
            Prompt(row["prompt"], row["prompt"], metadata=row) for row in generated["prompts"]
        ],
        texts=policy.tokenizer.batch_decode(
            [ids[mask] for ids, mask in zip(generated["completion_ids"], inside, strict=True)],
            skip_special_tokens=True,
        ),
    )


def credited(recipe: Recipe, batch: Batch) -> Batch:
    """The rows that train, with the recipe's credit."""
    keep = torch.ones(len(batch), dtype=torch.bool)
    for screen in recipe.selection.screens:
        keep &= screen(batch)
    batch = batch.select(keep)
    for shaping in recipe.rewards.shaping:
        batch = shaping(batch)
    batch = recipe.advantages(batch)
    for part in recipe.selection.parts:
        batch = part(batch)
    return batch


def learned(recipe: Recipe, batch: Batch, policy: Policy) -> tuple[float, list[Tensor]]:
    """Loss and gradients by polyopt's own learner."""
    policy = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    learner = Learner(
        policy,
        recipe.objective,
        AdamW(),
        Constant(),
        distribution=Distribution(),
        micro_tokens=100_000,
        total_steps=1,
    )
    if "logp_ref" in recipe.needs() and "logp_ref" not in batch:
        batch = batch.replace(logp_ref=learner.log_probs(batch))
    metrics = learner.gradient(batch)
    grads = [p.grad for p in policy.model.parameters()]
    return metrics["loss"], [g for g in grads if g is not None]
