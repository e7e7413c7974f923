"""After an update and `sync`, the engine samples from the new weights."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import tiny_policy

from polyopt.distribution import Distribution
from polyopt.engines.local import LocalEngine
from polyopt.engines.protocol import SampleRequest


@pytest.mark.parametrize("fused", [True, False])
def test_sync_takes_over_weights_that_an_optimizer_changed(fused: bool) -> None:
    """Fused optimizers don't raise version counters: a change can't be seen, only told."""
    policy = tiny_policy()
    engine = LocalEngine(policy.model, policy.decode)
    engine.sync(policy)
    request = SampleRequest((3, 4), seed=1, max_tokens=6, distribution=Distribution(temperature=0))
    before = engine.sample([request])[0]
    optimizer = torch.optim.AdamW(policy.trainable_parameters(), lr=0.3, fused=fused)
    policy.model(torch.tensor([[3, 4, 5]]), labels=torch.tensor([[3, 4, 5]])).loss.backward()
    optimizer.step()
    policy.version += 1
    engine.sync(policy)
    after = engine.sample([request])[0]
    assert after.version == before.version + 1
    logits = policy.model(torch.tensor([[3, 4]])).logits[0, -1]
    assert after.logp[0] == pytest.approx(float(logits.detach().log_softmax(-1).max()), abs=1e-4)
    assert after.logp[0] != pytest.approx(before.logp[0], abs=1e-4)
