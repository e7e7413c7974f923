"""From rollouts to a batch: ragged Python lists to columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyopt.batch import PADDING, Batch
from polyopt.rollouts.protocol import Rollout


def assemble(rollouts: Sequence[Rollout], max_tokens: int, first_id: int = 0) -> Batch:
    """A batch with one row per rollout; rewards are NaN until somebody scores them.

    Masks come from lengths and provenance alone: no token id is ever compared with a pad id.

    Args:
        rollouts: At least one rollout.
        max_tokens: The completion limit in tokens, as a column.
        first_id: Rollout id of the first row.
    """
    n = len(rollouts)
    provenance = _padded([r.provenance for r in rollouts], torch.long, PADDING)
    columns = {
        "tokens": _padded([r.tokens for r in rollouts], torch.long, 0),
        "lengths": torch.tensor([len(r.tokens) for r in rollouts]),
        "prompt_tokens": _padded([r.prompt_tokens for r in rollouts], torch.long, 0),
        "prompt_lengths": torch.tensor([len(r.prompt_tokens) for r in rollouts]),
        "provenance": provenance,
        "logp_sampler": _padded([r.logp for r in rollouts], torch.float32, 0),
        "truncated": torch.tensor([r.finish == "length" for r in rollouts]),
        "max_tokens": torch.full((n,), float(max_tokens)),
    }
    for name in rollouts[0].extras:
        values = [r.extras[name] for r in rollouts]
        columns[name] = _column([v if isinstance(v, tuple) else (v,) for v in values], values)
    return Batch(
        mask=provenance >= 0,
        group=torch.tensor([r.request.group for r in rollouts]),
        rollout=torch.arange(first_id, first_id + n),
        rewards=torch.full((n,), float("nan")),
        columns=columns,
        prompts=tuple(r.request.prompt for r in rollouts),
        texts=tuple(r.text for r in rollouts),
    )


def _column(rows: Sequence[tuple[float, ...]], values: Sequence[object]) -> Tensor:
    """A number per rollout [N], or per token [N, T]."""
    padded = _padded(rows, torch.float32, 0)
    return padded if isinstance(values[0], tuple) else padded[:, 0]


def _padded(rows: Sequence[Sequence[float]], dtype: torch.dtype, fill: int) -> Tensor:
    """Rows of unequal length as one tensor, at least one column wide."""
    width = max(1, max(len(row) for row in rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=dtype)
