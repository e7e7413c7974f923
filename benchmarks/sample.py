"""Tokens per second of the local engine against Hugging Face `generate`, and against the machine.

    python benchmarks/sample.py --model smollm2 --batches 1 8 32 128

All sample the same prompts (groups of 8 share one) for the same number of tokens at temperature 1,
with no token that ends them, in turns. Two lines a batch size: against `generate`, and against
transformers' continuous batching (`generate_batch`, with its cache sized to the work). Two more
lines set the engine's decoding steps against the machine: at the smallest batch the bytes of
weights read per second against measured memory bandwidth, at the largest the FLOP/s of products
with weights (attention not counted) against the best measured rate of matrix products.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hf
import limits
from harness import (
    Comparison,
    Side,
    against_limit,
    attempt_all,
    in_turns,
    parse,
    parser,
    rates,
    seconds,
)
from workloads import policy_of

from polyopt.engines.local import LocalEngine
from polyopt.engines.protocol import SampleRequest

GROUP = 8
GOALS = {32: 6.0}
READ_GOAL, PRODUCT_GOAL = 0.6, 0.5


def prompts_of(batch: int, length: int, vocabulary: int) -> list[list[int]]:
    """A prompt per row, the same for groups of 8, with lengths from `length` to 3/4 of it."""
    import torch

    made: list[list[int]] = []
    for group in range(-(-batch // GROUP)):
        count = length - (group * 7) % max(1, length // 4)
        noise = torch.Generator().manual_seed(group)
        made += [torch.randint(3, vocabulary, (count,), generator=noise).tolist()] * GROUP
    return made[:batch]


def requests_of(prompts: Sequence[Sequence[int]], tokens: int) -> list[SampleRequest]:
    """A request for `tokens` tokens for every prompt."""
    return [SampleRequest(tuple(p), seed=i, max_tokens=tokens) for i, p in enumerate(prompts)]


def engine_call(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> Callable[[], Any]:
    """The engine's sampling of exactly `tokens` tokens for every prompt."""
    engine = LocalEngine(model, lambda ids: "", cache_bytes=8 << 30)
    requests = requests_of(prompts, tokens)
    return lambda: engine.sample(requests)


def compare(model: Any, batch: int, options: argparse.Namespace) -> list[Comparison]:
    """Tokens per second at one batch size against each of the peers, all measured in turns."""
    prompts = prompts_of(batch, options.prompt, model.config.vocab_size)
    calls = {"polyopt": engine_call(model, prompts, options.tokens)}
    note = ""
    if "generate" in options.peers:
        calls["generate"] = hf.generate_call(model, prompts, options.tokens)
    if "continuous" in options.peers:
        try:
            calls["continuous"] = hf.continuous_call(model, prompts, options.tokens)
        except Exception as error:
            note = f"generate_batch fails here: {type(error).__name__}: {error}"
    try:
        times = in_turns(calls, options)
    finally:
        hf.end_continuous(model)
    work = batch * options.tokens
    sides = {name: rates(name, work, samples) for name, samples in times.items()}
    return [line(batch, peer, sides, note, options) for peer in options.peers]


def line(
    batch: int, peer: str, sides: dict[str, Side], note: str, options: argparse.Namespace
) -> Comparison:
    """The comparison with one peer."""
    ours, other = sides["polyopt"], sides.get(peer)
    return Comparison(
        "sample",
        f"batch {batch} against {peer}",
        "tokens/s",
        ours,
        other,
        ours.median / other.median if other else None,
        goal=GOALS.get(batch) if peer == "generate" else None,
        note="" if other else note,
        details={"model": options.model, "prompt": options.prompt, "tokens": options.tokens},
    )


def step_seconds(model: Any, batch: int, options: argparse.Namespace) -> list[float]:
    """Times of one decoding step of the engine: a whole call less one of a single token."""
    prompts = prompts_of(batch, options.prompt, model.config.vocab_size)
    calls = [engine_call(model, prompts, tokens) for tokens in (options.tokens, 1)]
    rows = [[seconds(c, options.clock) for c in calls] for _ in range(options.repeats + 1)][1:]
    first = statistics.median(row[1] for row in rows)
    return [max(row[0] - first, 1e-9) / (options.tokens - 1) for row in rows]


def against_machine(model: Any, options: argparse.Namespace) -> list[Comparison]:
    """Decoding at the smallest batch against bandwidth, at the largest against product rate."""
    low, high = min(options.batches), max(options.batches)
    weights = limits.weights_read(model)
    details = {"model": options.model, "weights": weights}
    made = partial(against_limit, "sample", details=details)
    read = limits.bandwidth(options.clock, options.quick)
    shapes = limits.layer_shapes(model.config, 1024)
    peak = limits.product_rate(shapes, options.clock, options.quick)
    bandwidth = Side("memory bandwidth", [read / 1e9])
    products = Side("matrix products", [peak / 1e9])
    bytes_read = rates("polyopt", weights * 4 / 1e9, step_seconds(model, low, options))
    flop = rates("polyopt", 2 * weights * high / 1e9, step_seconds(model, high, options))
    return [
        made(f"batch {low}", "GB/s", bytes_read, bandwidth, goal=READ_GOAL),
        made(f"batch {high}", "GFLOP/s", flop, products, goal=PRODUCT_GOAL),
    ]


def main(arguments: Sequence[str] | None = None) -> bool:
    """Print the JSON lines; whether all went well."""
    made = parser(__doc__)
    made.add_argument("--model", default="smollm2")
    made.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    made.add_argument("--prompt", type=int, default=64, help="prompt length in tokens")
    made.add_argument("--tokens", type=int, default=64, help="new tokens per row")
    made.add_argument(
        "--peers", nargs="*", choices=["generate", "continuous"], default=["generate", "continuous"]
    )
    options = parse(made, arguments)
    if options.quick:
        options.model, options.batches = "embedded", [1, 8]
        options.prompt, options.tokens = 8, 4
    model = policy_of(options.model).model.eval()
    hf.never_stop(model)
    measures = {f"batch {n}": partial(compare, model, n, options) for n in options.batches}
    measures["the machine"] = partial(against_machine, model, options)
    return attempt_all("sample", measures, options)


if __name__ == "__main__":
    sys.exit(not main())
