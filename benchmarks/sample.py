"""Tokens per second of the local engine against Hugging Face `generate`, in one run.

    python benchmarks/sample.py --model smollm2 --batches 1 8 32 128

Both sample the same prompts (groups of 8 share one) for the same number of tokens, in turns, after
a warm-up; medians are reported. At batch 1 also the share of the measured memory bandwidth that
reading the weights once per token makes up, at the largest batch the share of the measured matrix
product rate. One JSON line. On a busy machine, `OMP_NUM_THREADS=1 ... --clock cpu` counts processor
time instead of wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from polyopt.engines.fast_projection import projection
from polyopt.engines.generic_decoder import GenericDecoder
from polyopt.engines.local import LocalEngine, choose_decoder
from polyopt.engines.protocol import SampleRequest
from polyopt.models.loading import load_policy

GROUP = 8


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]


def seconds(call: Callable[[], Any]) -> float:
    """Time of one call."""
    start = clock()
    call()
    return clock() - start


def load(name: str) -> Any:
    """The model of a Hugging Face folder, or one that polyopt knows by name."""
    return load_policy(name).model.eval()


def prompts_of(batch: int, length: int, vocabulary: int) -> list[tuple[int, ...]]:
    """A prompt per row, the same for groups of 8, with lengths from `length` to 3/4 of it."""
    made = []
    for group in range(-(-batch // GROUP)):
        count = length - (group * 7) % max(1, length // 4)
        noise = torch.Generator().manual_seed(group)
        made += [tuple(torch.randint(3, vocabulary, (count,), generator=noise).tolist())] * GROUP
    return made[:batch]


def hf_call(model: Any, prompts: list[tuple[int, ...]], tokens: int) -> Callable[[], Any]:
    """Hugging Face's own sampling of exactly `tokens` tokens for every prompt."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])

    def call() -> Any:
        return model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            temperature=1.0,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )

    return call


def engine_call(
    engine: LocalEngine, prompts: list[tuple[int, ...]], tokens: int
) -> Callable[[], Any]:
    """The engine's sampling of the same."""
    requests = [SampleRequest(prompt=p, seed=i, max_tokens=tokens) for i, p in enumerate(prompts)]
    return lambda: engine.sample(requests)


def compare(model: Any, batch: int, options: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of each sampler at one batch size, measured in turns."""
    prompts = prompts_of(batch, options.prompt, model.config.vocab_size)
    calls = {}
    for name, decoder in (("polyopt", choose_decoder), ("generic", GenericDecoder)):
        if name in options.samplers:
            engine = LocalEngine(model, lambda ids: "", decoder=decoder, cache_bytes=8 << 30)
            calls[name] = engine_call(engine, prompts, options.tokens)
    if "hf" in options.samplers:
        calls["hf"] = hf_call(model, prompts, options.tokens)
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.repeats):
        for name, call in calls.items():
            times[name].append(seconds(call))
    rates = {n: batch * options.tokens / statistics.median(t) for n, t in times.items()}
    if "hf" in rates and "polyopt" in rates:
        rates["ratio"] = rates["polyopt"] / rates["hf"]
    return rates


def step_seconds(model: Any, batch: int, options: argparse.Namespace) -> float:
    """Time of one decoding step of the engine: a whole call less one of a single token."""
    prompts = prompts_of(batch, options.prompt, model.config.vocab_size)
    engine = LocalEngine(model, lambda ids: "", cache_bytes=8 << 30)
    calls = [engine_call(engine, prompts, tokens) for tokens in (options.tokens, 1)]
    times = [[seconds(call) for call in calls] for _ in range(options.repeats + 1)][1:]
    whole, first = (statistics.median(column) for column in zip(*times, strict=True))
    return float(whole - first) / float(options.tokens - 1)


def bandwidth() -> float:
    """Bytes per second of reading memory."""
    block = torch.ones(64 << 20)
    return block.nbytes / min(seconds(block.sum) for _ in range(10))


def product_rate(size: int = 2048) -> float:
    """Floating-point operations per second of the fastest large float32 product here."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    fast = projection(b)
    calls = (lambda: a @ b, lambda: fast(a))
    with torch.inference_mode():
        return 2 * size**3 / min(seconds(call) for _ in range(10) for call in calls)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--prompt", type=int, default=64, help="prompt length in tokens")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per row")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--samplers", nargs="+", default=["polyopt", "hf"])
    options = parser.parse_args()
    global clock
    clock = CLOCKS[options.clock]
    model = load(options.model)
    weights = sum(p.numel() for p in model.parameters())
    report: dict[str, Any] = {"model": options.model, "clock": options.clock}
    report |= {"threads": torch.get_num_threads(), "new_tokens": options.tokens}
    report["tokens_per_s"] = {str(b): compare(model, b, options) for b in options.batches}
    first, last = options.batches[0], options.batches[-1]
    read, peak = bandwidth(), product_rate()
    step = step_seconds(model, first, options)
    report[f"weight_bandwidth_share_at_{first}"] = weights * 4 / step / read
    step = step_seconds(model, last, options)
    report[f"product_rate_share_at_{last}"] = 2 * weights * last / step / peak
    report |= {"memory_bytes_per_s": read, "product_flop_per_s": peak}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
