"""Rollouts as rows of a run's log, for the report's rollout browser."""

from __future__ import annotations

from typing import Any

import torch

from polyopt.batch import Batch
from polyopt.models.policy import Policy
from polyopt.trainer import StepResult

COLUMNS = {
    "advantages": "advantages",
    "logp": "logp_sampler",
    "entropy": "entropy",
    "ratio": "ratio",
    "loss_weight": "loss_weight",
}
"""Numbers of each token, and the columns of the batch that they are.

Where several parts give credit, each part's share stands beside them as `advantages/PART`.
"""


def logged_rollouts(
    result: StepResult, policy: Policy, step: int, groups: int
) -> list[dict[str, Any]]:
    """Rows for the report's rollout browser: the first groups that trained, token by token."""
    batch = result.trained
    if batch is None:
        return []
    chosen = list(dict.fromkeys(batch.group.tolist()))[:groups]
    picked = batch.select(torch.isin(batch.group, torch.tensor(chosen)))
    return [_logged_row(picked, i, policy, step) for i in range(len(picked))]


def _logged_row(batch: Batch, i: int, policy: Policy, step: int) -> dict[str, Any]:
    length = int(batch["lengths"][i])
    terms = {
        name.removeprefix("reward/"): float(column[i])
        for name, column in batch.columns.items()
        if name.startswith("reward/")
    }
    token_ids = batch["tokens"][i, :length].tolist()
    row: dict[str, Any] = {
        "step": step,
        "phase": "train",
        "group": int(batch.group[i]),
        "rollout": int(batch.rollout[i]),
        "prompt_id": batch.prompts[i].id,
        "prompt": batch.prompts[i].text,
        "completion": batch.texts[i],
        "answer": str(batch.prompts[i].answer),
        "reward": float(batch.rewards[i]),
        "terms": terms,
        "accuracy": float(batch["accuracy"][i]) if "accuracy" in batch else None,
        "finish": "length" if bool(batch["truncated"][i]) else "stop",
        "tokens": policy.token_texts(token_ids),
        "mask": batch.mask[i, :length].int().tolist(),
    }
    parts = {name: name for name in batch.columns if name.startswith("advantages/")}
    for name, column in (COLUMNS | (parts if len(parts) > 1 else {})).items():
        if column in batch:
            row[name] = [float(f"{v:.5g}") for v in batch[column][i, :length].tolist()]
    return row
