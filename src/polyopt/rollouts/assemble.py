"""From rollouts to a batch: ragged Python lists to columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polyopt.batch import FORCED, PADDING, Batch
from polyopt.rollouts.protocol import Rollout


def assemble(rollouts: Sequence[Rollout], max_tokens: int, first_id: int = 0) -> Batch:
    """A batch with one row per rollout; rewards are NaN until somebody scores them.

    Masks come from lengths and provenance alone: no token id is ever compared with a pad id. They
    cover what the policy sampled, and demonstrations, which stand in for it.

    Args:
        rollouts: At least one rollout.
        max_tokens: The completion limit in tokens, as a column.
        first_id: Rollout id of the first row.
    """
    n = len(rollouts)
    provenance = _padded([r.provenance for r in rollouts], np.int64, PADDING)
    columns = {
        "tokens": _padded([r.tokens for r in rollouts], np.int64, 0),
        "lengths": torch.tensor([len(r.tokens) for r in rollouts]),
        "prompt_tokens": _padded([r.prompt_tokens for r in rollouts], np.int64, 0),
        "prompt_lengths": torch.tensor([len(r.prompt_tokens) for r in rollouts]),
        "provenance": provenance,
        "logp_sampler": _padded([r.logp for r in rollouts], np.float32, 0),
        "truncated": torch.tensor([r.finish == "length" for r in rollouts]),
        "max_tokens": torch.full((n,), float(max_tokens)),
    }
    for name in dict.fromkeys(name for r in rollouts for name in r.extras):
        columns[name] = _column([r.extras.get(name, 0.0) for r in rollouts])
    shown = columns.get("demonstration", torch.zeros(n)) > 0
    return Batch(
        mask=(provenance >= 0) | (shown[:, None] & (provenance == FORCED)),
        group=torch.tensor([r.request.group for r in rollouts]),
        rollout=torch.arange(first_id, first_id + n),
        rewards=torch.full((n,), float("nan")),
        columns=columns,
        prompts=tuple(r.request.prompt for r in rollouts),
        texts=tuple(r.text for r in rollouts),
    )


def _column(values: Sequence[float | tuple[float, ...]]) -> Tensor:
    """A number per rollout [N], or per token [N, T]; 0 where a rollout doesn't have it."""
    padded = _padded([v if isinstance(v, tuple) else (v,) for v in values], np.float32, 0)
    return padded if any(isinstance(value, tuple) for value in values) else padded[:, 0]


def _padded(rows: Sequence[Sequence[float]], dtype: npt.DTypeLike, fill: int) -> Tensor:
    """Rows of unequal length as one tensor, at least one column wide."""
    lengths = np.array([len(row) for row in rows])
    padded = np.full((len(rows), max(1, lengths.max())), fill, dtype)
    inside = np.arange(padded.shape[1]) < lengths[:, None]
    padded[inside] = np.fromiter(chain.from_iterable(rows), dtype, lengths.sum())
    return torch.from_numpy(padded)
