"""A prompt's previous rollout comes along, and does nothing but measure."""

from __future__ import annotations

import numpy as np
import torch
from tests.laws.batches import ragged_batch
from tests.tiny import TINY_NUMBERS, tiny_policy, tiny_task

from polyopt.ideas import build
from polyopt.replay.previous_visit import PreviousVisit
from polyopt.trainer import Trainer


def test_known_prompts_bring_their_last_scored_rollout_into_their_group() -> None:
    batch, draws = ragged_batch(), np.random.default_rng(0)
    part = PreviousVisit()
    assert not part.mix(batch, draws)["revisit"].any()
    part.store(batch.select(batch.group == 7))
    restored = PreviousVisit()
    restored.load_state_dict(part.state_dict())
    mixed = restored.mix(batch.replace(group=batch.group + 100), draws)
    added = mixed.select(mixed["revisit"])
    assert len(added) == 1
    last = int((batch.group == 7).nonzero().flatten()[-1])
    assert added.group.item() == 107
    assert added.rewards.isnan().all()
    assert added.texts == (batch.texts[last],)
    torch.testing.assert_close(added["logp_sampler"][0], batch["logp_sampler"][last])
    assert len(set(mixed.rollout.tolist())) == len(mixed)


def test_single_stream_measures_drift_in_the_real_loop_and_trains_only_fresh_rollouts() -> None:
    numbers = {k: v for k, v in TINY_NUMBERS.items() if k != "rollouts.per_prompt"}
    recipe = build("spo-single-stream", {**numbers, "prompts.per_step": 8})
    trainer = Trainer(tiny_policy(), tiny_task(), recipe, steps=6)
    drifts = []
    for _ in range(6):
        batch = trainer.step().trained
        assert batch is not None
        revisit = batch["revisit"]
        assert not batch.loss_mask[revisit].any()
        assert (batch["advantages"][revisit] == 0).all()
        drifts.append(float(batch["previous_drift"].max()))
    assert drifts[0] == 0
    assert max(drifts[2:]) > 0.01
