"""The parts of `gpu.py`: each measures one thing on the GPU and gives its lines."""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gpu_peers
import hf
import limits
import sample
import torch
import train
import workers
from gpu_setting import Setting
from harness import Comparison, Side, against_limit, in_turns, rates, seconds
from workloads import trainer_of

READ_GOAL, SAMPLE_GOAL = 0.6, 0.5


def sampling(given: Setting) -> Iterator[Comparison]:
    """Tokens per second against `generate` and continuous batching, then against the GPU."""
    model = given.model().bfloat16()
    hf.never_stop(model)
    given.options.peers = ["generate"]
    for batch in given.options.batches:
        yield from sample.compare(model, batch, given.options)
    read, peak = bandwidth(given), product_rate(given)
    low, high = min(given.options.batches), max(given.options.batches)
    weights = limits.weights_read(model)
    took = sample.step_seconds(model, low, given.options)
    ours, limit = rates("polyopt", weights * 2 / 1e9, took), Side("memory bandwidth", [read / 1e9])
    yield against_limit("sample", f"batch {low}", "GB/s", ours, limit, goal=READ_GOAL)
    took = sample.step_seconds(model, high, given.options)
    ours = rates("polyopt", 2 * weights * high / 1e9, took)
    limit = Side("matrix products", [peak / 1e9])
    yield against_limit("sample", f"batch {high}", "GFLOP/s", ours, limit, goal=SAMPLE_GOAL)


def continuous(given: Setting) -> Iterator[Comparison]:
    """Tokens per second against transformers' continuous batching."""
    model = given.model().bfloat16()
    hf.never_stop(model)
    given.options.peers = ["continuous"]
    for batch in given.options.batches[:2]:
        yield from sample.compare(model, batch, given.options)


def vllm(given: Setting) -> Iterator[Comparison]:
    """Tokens per second of the local engine against vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise RuntimeError("vLLM isn't installed")
    from polyopt.engines.vllm import VllmEngine

    policy = given.policy()
    policy.model = policy.model.bfloat16()
    peer = VllmEngine(gpu_memory_utilization=0.3)
    peer.sync(policy)
    vocabulary, options = policy.model.config.vocab_size, given.options
    for batch in options.batches[:2]:
        prompts = sample.prompts_of(batch, options.prompt, vocabulary)
        ours = sample.engine_call(policy.model, prompts, options.tokens)
        theirs = partial(peer.sample, sample.requests_of(prompts, options.tokens))
        times = in_turns({"polyopt": ours, "vllm": theirs}, options)
        sides = {n: rates(n, batch * options.tokens, t) for n, t in times.items()}
        yield sample.line(batch, "vllm", sides, "", options)


def steps(given: Setting) -> Iterator[Comparison]:
    """Seconds of a whole step against TRL, or against the plain loop, in turns."""
    trainer = trainer_of(given.policy(), given.work)
    times: list[float] = []
    name, peer = gpu_peers.steps(
        given, given.options.repeats + 1, lambda: times.append(seconds(trainer.step))
    )
    ours, other = Side("polyopt", times[1:]), Side(name, peer[1:])
    ratio = other.median / ours.median
    details = {"sizes": str(given.work)}
    yield Comparison("step", f"against {name}", "s", ours, other, ratio, details=details)


def memory(given: Setting) -> Iterator[Comparison]:
    """Peak memory on the GPU over two steps of each side, each alone there."""
    ours = Side("polyopt", [_peak_of(lambda: _own_steps(given, 2))])
    names: list[str] = []
    peak = _peak_of(lambda: names.append(gpu_peers.steps(given, 2, lambda: None)[0]))
    other = Side(names[0], [peak])
    ratio = other.median / ours.median
    details = {"sizes": str(given.work)}
    yield Comparison("memory", f"against {names[0]}", "GB", ours, other, ratio, details=details)


def _own_steps(given: Setting, count: int) -> None:
    trainer = trainer_of(given.policy(), given.work)
    for _ in range(count):
        trainer.step()


def _peak_of(call: Callable[[], Any]) -> float:
    """Peak of memory allocated on the GPU during a call, in GB; in a dry run, of the process."""
    gc.collect()
    if not torch.cuda.is_available():
        call()
        return workers.peak_gb()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() / 1e9


def training(given: Setting) -> Iterator[Comparison]:
    """Forward and backward against Hugging Face with cross-entropy, then against the GPU."""
    policy, work = given.policy(), given.work
    given.options.peer_rows = max(1, work.rows // 4)
    own = dataclasses.replace(work, prompts=work.rows, rollouts=1)
    peak = product_rate(given)
    for name, sizes in (("shared", work), ("own", own)):
        yield from train.measure(policy, name, sizes, peak, given.options)


def bandwidth(given: Setting) -> float:
    """Bytes per second of reading the device's memory."""
    if not given.cuda:
        return limits.bandwidth(quick=True)
    block = torch.ones(4 << 30, dtype=torch.bfloat16, device=given.device)
    matrix, vector = block.view(-1, 8192), torch.ones(8192, dtype=block.dtype, device=block.device)
    return block.nbytes / limits.best((block.sum, block.amax, lambda: matrix @ vector), "wall")


def product_rate(given: Setting) -> float:
    """FLOP per second of the fastest of a few bf16 products, the model's MLP among them."""
    sizes = [64] if not given.cuda else [4096, 8192]
    hidden, inner = given.shape["hidden_size"], given.shape["intermediate_size"]
    shapes = [(n, n, n) for n in sizes] + [(max(sizes), hidden, 2 * inner)]
    return max(_product_rate(shape, given.device) for shape in shapes)


def _product_rate(shape: tuple[int, int, int], device: str) -> float:
    rows, inner, columns = shape
    a = torch.randn(rows, inner, device=device, dtype=torch.bfloat16)
    b = torch.randn(columns, inner, device=device, dtype=torch.bfloat16)
    return 2 * rows * inner * columns / limits.best((lambda: a @ b.t(),), "wall")


PARTS: tuple[tuple[str, float, Callable[[Setting], Iterator[Comparison]]], ...] = (
    ("sampling", 60, sampling),
    ("steps", 60, steps),
    ("training", 30, training),
    ("memory", 30, memory),
    ("vllm", 90, vllm),
    ("continuous", 30, continuous),
)
"""Name, least seconds that make it worth starting, and the part; the most important first."""
