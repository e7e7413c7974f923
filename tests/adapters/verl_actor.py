"""The function that verl's actor differentiates, `ppo_loss`, on a sample.

It is given what verl's FSDP engine gives it (`forward_backward_batch`): a micro-batch without
padding, log-probabilities of the packed tokens, and the totals of the mini-batch. The engine itself
needs a process group and a wrapped model, and the trainer around it needs Ray.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from tests.peers.accumulation import LossAndGradient, differentiated
from tests.peers.random_batches import Sample, pieces
from tests.peers.verl_functions import actor_config, standing_in

with standing_in("ray", "PIL"):  # which loading of data needs, and the loss doesn't
    losses = importlib.import_module("verl.workers.utils.losses")


def actor_loss(name: str, made: Sample, mode: str, count: int, **numbers: Any) -> LossAndGradient:
    """Loss of `ppo_loss` summed over `count` micro-batches, and its gradient.

    Args:
        name: Of the policy loss, in verl's registry.
        made: With columns `advantages` and `logp_ref`.
        mode: verl's name of the aggregation.
        count: Micro-batches.
        numbers: Of the actor's configuration.
    """
    logp = made.logp.clone().requires_grad_()
    config = actor_config(loss_mode=name, loss_agg_mode=mode, **numbers)
    total = torch.zeros((), dtype=torch.float64)
    for rows in pieces(len(made.batch), count):
        data = micro_batch(made, rows)
        packed = pack(logp[rows], made.batch["lengths"][rows])
        total = total + losses.ppo_loss(config, {"log_probs": packed}, data)[0]
    return differentiated(total, logp)


def micro_batch(made: Sample, rows: slice) -> Any:
    """Rows as verl's data: prompts of one token, packed ids, padded columns, and the totals."""
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import left_right_2_no_padding

    batch = made.batch
    mask, lengths = batch.mask[rows].long(), batch["lengths"][rows]
    attention = torch.arange(batch.width + 1) <= lengths[:, None]
    columns = {
        "input_ids": torch.ones_like(attention, dtype=torch.long),
        "attention_mask": attention.long(),
        "position_ids": torch.arange(batch.width + 1).expand(attention.shape).clone(),
        "prompts": torch.ones(len(mask), 1, dtype=torch.long),
        "responses": torch.ones_like(mask),
        "response_mask": mask,
        "old_log_probs": batch["logp_old"][rows],
        "ref_log_prob": batch["logp_ref"][rows],
        "advantages": batch["advantages"][rows],
    }
    totals = {
        "dp_size": 1,
        "batch_num_tokens": int(batch.mask.sum()),
        "global_batch_size": len(batch),
    }
    data = tensordict_utils.get_tensordict(columns, totals)
    return left_right_2_no_padding(data)


def pack(logp: Tensor, lengths: Tensor) -> Tensor:
    """Log-probabilities as the model gives them: at the position before each token, unpadded."""
    width = logp.shape[1]
    rows = [
        torch.cat([row[:length], row.new_zeros(1)])
        for row, length in zip(logp, lengths.clamp(max=width).tolist(), strict=True)
    ]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
