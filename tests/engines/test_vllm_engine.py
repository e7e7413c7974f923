"""vLLM in this process: run by hand with an interpreter that has it (see docs/engines.md)."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
import torch
from tests.engines.small_models import small_policy
from torch import nn

from polyopt.engines.protocol import Sample, SampleRequest
from polyopt.errors import UserError

pytestmark = pytest.mark.slow
ASKS = [SampleRequest((5, 6, 7), seed=i, max_tokens=12) for i in range(8)]


@pytest.fixture(scope="module")
def engine() -> Any:
    """One engine for the module: vLLM is built once."""
    pytest.importorskip("vllm")
    from polyopt.engines.vllm import VllmEngine

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    made = VllmEngine()
    with pytest.raises(UserError, match="sync"):
        made.sample(ASKS)
    made.sync(small_policy())
    return made


def check(model: Any, samples: list[Sample]) -> None:
    """Their log-probabilities are those of the model's plain forward."""
    for sample in samples:
        with torch.no_grad():
            logits = model(torch.tensor([[5, 6, 7, *sample.tokens]])).logits[0, 2:-1]
        logp = logits.log_softmax(-1).gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
        assert sample.logp == pytest.approx(logp.tolist(), abs=1e-4)


def test_sync_hands_over_weights_in_memory(engine: Any) -> None:
    policy = small_policy(seed=1)
    policy.version = 3
    engine.sync(policy)
    samples = engine.sample(ASKS)
    check(policy.model, samples)
    assert {sample.version for sample in samples} == {3}
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.5)
    engine.sync(policy)
    check(policy.model, engine.sample(ASKS))


def test_a_lora_policy_is_sampled_with_its_adapter_merged(engine: Any) -> None:
    peft = pytest.importorskip("peft")
    policy = small_policy(seed=2)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    policy.model = peft.get_peft_model(copy.deepcopy(policy.model), config)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, 0.0, 0.3)
    engine.sync(policy)
    check(policy.model, engine.sample(ASKS))


def test_a_run_trains_with_vllm_in_step_with_the_policy(engine: Any) -> None:
    """Three updates with synced weights leave no gap between sampler and trainer."""
    from tests.tiny import tiny_task

    from polyopt.ideas import build
    from polyopt.trainer import Trainer

    numbers = {"rollouts.max_tokens": 5, "rollouts.per_prompt": 8, "prompts.per_step": 4}
    policy = small_policy(seed=3)
    recipe = build("grpo", numbers | {"updates.optimizer.lr": 0.01})
    trainer = Trainer(policy, tiny_task(), recipe, steps=3, engine=engine)
    gaps = [trainer.step().metrics["sampler_gap"] for _ in range(3)]
    assert policy.version > 0
    assert max(gaps) < 1e-4
