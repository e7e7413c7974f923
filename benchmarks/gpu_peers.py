"""Whole steps of the peer on the GPU: TRL's trainer if it is installed, else a plain loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hf
import torch
import train
import trl_trainer
from gpu_setting import Setting
from harness import seconds, settle
from torch import Tensor
from workers import installed_trl
from workloads import LEARNING_RATE, check_tokens


def steps(given: Setting, count: int, before: Callable[[], Any]) -> tuple[str, list[float]]:
    """Take so many steps, with a call of `before` ahead of each.

    Returns:
        The peer's name, and the seconds of its steps.
    """
    name = installed_trl()
    if name is not None:
        return name, trl_steps(given, count, before)
    step, times = plain_step(given), []
    for _ in range(count):
        before()
        times.append(seconds(step))
    return "plain loop", times


def trl_steps(given: Setting, count: int, before: Callable[[], Any]) -> list[float]:
    """Seconds of steps of TRL's trainer under bf16 autocast."""
    times: list[float] = []
    start = 0.0

    def begin() -> bool:
        nonlocal start
        if len(times) == count:
            return False
        before()
        settle()
        start = time.perf_counter()
        return True

    def end(sampled: float) -> None:
        settle()
        times.append(time.perf_counter() - start)
        check_tokens(given.work, sampled, "TRL")

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        given.policy().save(folder)
        trl_trainer.train(given.work, folder, begin, end, cpu=not given.cuda, low=True)
    return times


def plain_step(given: Setting) -> Callable[[], None]:
    """A step as one writes it by hand with transformers: generate, padded forward, backward, AdamW.

    Under bf16 autocast, in four micro-batches, with logits of completions only.
    """
    model, work = given.model(), given.work
    hf.never_stop(model)
    prompts, _ = train.token_rows(work, model.config.vocab_size)
    generate = hf.generate_call(model, prompts, work.new_tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    credit = torch.where(torch.arange(work.rows) % 2 == 0, 1.0, -1.0).to(model.device)
    micro = max(1, work.rows // 4)

    def step() -> None:
        with torch.no_grad(), torch.autocast(given.device, dtype=torch.bfloat16):
            ids = generate()
        for part, weight in zip(torch.split(ids, micro), torch.split(credit, micro), strict=True):
            with torch.autocast(given.device, dtype=torch.bfloat16):
                logits = model(input_ids=part, logits_to_keep=work.new_tokens + 1).logits[:, :-1]
            logp = log_probs(logits, part[:, -work.new_tokens :])
            (-(weight[:, None] * logp).sum() / ids.shape[0] / work.new_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities of the targets in float32."""
    found: Tensor = logits.float().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    return found
